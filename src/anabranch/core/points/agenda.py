"""When which of many things is to be looked at, without looking at all of them.

A heap in which a key may be several times; only its earliest time counts, and later ones that are
met afterwards do no harm but a look too many. Whoever wants a key later than was said looks when
its time has come, and puts it there again. What is left of keys that were taken off is cleared away
when it is more than the rest.

State: volatile.
"""

from heapq import heapify, heappop, heappush

#: So much is never cleared away.
_LEFT_MAX = 64


class Agenda:
    """Times of keys. See the top of this module."""

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        #: Key → the earliest time of it in the heap.
        self._times: dict[str, float] = {}

    def add(self, key: str, at: float) -> None:
        """This is to be looked at then, or earlier if that was said."""
        known = self._times.get(key)
        if known is None or at < known:
            self._times[key] = at
            heappush(self._heap, (at, key))

    def remove(self, key: str) -> None:
        """This is not to be looked at."""
        self._times.pop(key, None)
        if len(self._heap) > 2 * len(self._times) + _LEFT_MAX:
            self._heap = [(at, each) for each, at in self._times.items()]
            heapify(self._heap)

    def due(self, now: float) -> list[str]:
        """Those whose time has come, the earliest first; they are not on the agenda any more."""
        keys = []
        while self._heap and self._heap[0][0] <= now:
            at, key = heappop(self._heap)
            if self._times.get(key) == at:
                del self._times[key]
                keys.append(key)
        return keys

    def __len__(self) -> int:
        return len(self._heap)

    def next_at(self) -> float | None:
        """The earliest time."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None
