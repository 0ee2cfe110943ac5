"""Read the logs of brokers from their state directories.

    follower = LogFollower(directory)
    follower.read()     # records logged since the last call

A directory may be in use while it is read (`store.log_view`).

Rules

1. A record that the broker is still writing is left for the next call.
2. Each tick is returned once.
3. A segment that disappeared was released. `first_tick` is the first tick of the log at the first
   call.

State: the read position. Losing it costs reading the log again.
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
        #: The first tick of the log when it was first read; 0 if it was empty.
        self.first_tick = 0
        #: First tick of the segment to continue with; earlier segments are complete.
        self._segment_first = 0
        #: The last tick returned.
        self._last_tick = 0

    @property
    def stream(self) -> str:
        """The stream, which has the name of its broker."""
        return self._place.broker

    def read(self) -> list[saw.Logged]:
        """The records logged since the last call."""
        logged: list[saw.Logged] = []
        for first, path in segment_paths(self._place.directory):
            if first >= self._segment_first:
                try:
                    found = scan_steadily(path, first, self._place.owner)
                except FileNotFoundError:
                    continue  # released since it was listed
                logged += self._new_records(found)
        return logged

    def _new_records(self, found: Scan) -> list[saw.Logged]:
        self.first_tick = self.first_tick or found.first_tick
        self._segment_first = found.first_tick
        fresh = max(found.first_tick, self._last_tick + 1)
        records = found.records[fresh - found.first_tick :]
        self._last_tick = max(self._last_tick, found.last_tick)
        return list(logged_in(self.stream, fresh, records))


def read_logs(directories: Iterable[Path]) -> tuple[list[saw.Logged], dict[str, int]]:
    """All logged records below these directories; stream → the first retained tick of its log.

    A directory is the state directory of a broker, or contains some, at any depth."""
    logged: list[saw.Logged] = []
    first_ticks: dict[str, int] = {}
    for directory in directories:
        for state in state_directories(directory):
            follower = LogFollower(state)
            logged += follower.read()
            first_ticks[follower.stream] = follower.first_tick
    return logged, first_ticks


def state_directories(directory: Path) -> list[Path]:
    """The state directories of brokers: the directory itself, or those below it."""
    return sorted(path.parent for path in directory.rglob("identity.toml"))
