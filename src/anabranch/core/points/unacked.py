"""What a join point has been given and must be able to get again.

Entries are kept per stream, in the order of ticks, each with a time: once all matches before that
time are reported for good, it is needed no more. A stream is acknowledged up to its first entry
that is still needed.

State: volatile. What is not acknowledged is delivered again.
"""

from collections import deque
from collections.abc import Mapping


class Unacked:
    """The entries of all streams. See the top of this module."""

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        self._streams: dict[str, deque[tuple[int, int]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._streams.values()))

    def add(self, stream: str, tick: int, needed_ns: int) -> None:
        """This tick is needed until everything before that time is reported."""
        self._streams.setdefault(stream, deque()).append((tick, needed_ns))

    def forget(self, reported_ns: int) -> None:
        """Everything before this time is reported for good."""
        for entries in self._streams.values():
            while entries and entries[0][1] < reported_ns:
                entries.popleft()

    def ticks(self, received: Mapping[str, int]) -> dict[str, int]:
        """Stream → the tick up to which nothing is needed any more."""
        streams = self._streams
        return {s: streams[s][0][0] - 1 if streams.get(s) else tick for s, tick in received.items()}
