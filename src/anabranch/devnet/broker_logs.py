"""What the logs of brokers hold, read from their state directories.

    follower = LogFollower(directory)
    follower.read()     # what was logged since the last time

A directory may be in use while it is read (`store.log_view`). Rules:

1. What a broker is just writing is left for the next time.
2. A tick is told once.
3. A segment that is gone was released: `first_tick` says where the log began at the first reading.

State kept: where to go on. Losing it costs reading everything again.
"""

from collections.abc import Iterable
from pathlib import Path

from anabranch.check import history as saw
from anabranch.devnet.traces import logged_in
from anabranch.store.log import segment_paths
from anabranch.store.log_view import locate, scan_steadily
from anabranch.store.segment import Scan


class LogFollower:
    """The log of one state directory. See the rules at the top of this module."""

    def __init__(self, directory: Path) -> None:
        self._place = locate(directory)
        #: Of the log when it was first read; 0 if it was empty.
        self.first_tick = 0
        #: Segments before the one that begins here were read to their end.
        self._read_first = 0
        #: Ticks up to this one were told.
        self._told_tick = 0

    @property
    def stream(self) -> str:
        """The stream, named like its broker."""
        return self._place.broker

    def read(self) -> list[saw.Logged]:
        """What was logged since the last time."""
        told: list[saw.Logged] = []
        for first, path in segment_paths(self._place.directory):
            if first >= self._read_first:
                try:
                    found = scan_steadily(path, first, self._place.owner)
                except FileNotFoundError:
                    continue  # released since it was listed
                told += self._tell(found)
        return told

    def _tell(self, found: Scan) -> list[saw.Logged]:
        self.first_tick = self.first_tick or found.first_tick
        self._read_first = found.first_tick
        fresh = max(found.first_tick, self._told_tick + 1)
        records = found.records[fresh - found.first_tick :]
        self._told_tick = max(self._told_tick, found.last_tick)
        return list(logged_in(self.stream, fresh, records))


def read_logs(directories: Iterable[Path]) -> tuple[list[saw.Logged], dict[str, int]]:
    """All that is logged below these directories; stream → the first tick its log still has.

    A directory is the state of a broker, or has such directories in it, at any depth."""
    logged: list[saw.Logged] = []
    first_ticks: dict[str, int] = {}
    for directory in directories:
        for state in state_directories(directory):
            follower = LogFollower(state)
            logged += follower.read()
            first_ticks[follower.stream] = follower.first_tick
    return logged, first_ticks


def state_directories(directory: Path) -> list[Path]:
    """The states of brokers in a directory: itself, or what is below it."""
    return sorted(path.parent for path in directory.rglob("identity.toml"))
