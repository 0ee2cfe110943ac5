"""What has arrived for a subscription and waits for the application.

Each stream has a line of its own. The next item is the first of one of these lines: of the one
whose first event has the highest priority, and among equal ones of that which arrived first. So
priority decides between streams and never overtakes within one. Ranges that are withheld wait in
line like events, with the priority of an ordinary one.

The number of events that wait is bounded by the window, which the broker keeps to.
"""

import heapq
from collections import deque

from anabranch.client.received import Item, Received
from anabranch.model.header import DEFAULT_CONTROL


class Arrivals:
    """The items of one subscription that wait. See the top of this module."""

    __slots__ = ("_count", "_heads", "_lines")

    def __init__(self) -> None:
        #: Stream → its line, if that is not empty.
        self._lines: dict[str, deque[tuple[int, Item]]] = {}
        #: (−priority, arrival, stream) of the first item of every line.
        self._heads: list[tuple[int, int, str]] = []
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._heads)

    @property
    def next_event(self) -> Received | None:
        """The next item, if it is there and an event."""
        item = self._lines[self._heads[0][2]][0][1] if self._heads else None
        return item if isinstance(item, Received) else None

    def add(self, item: Item) -> None:
        """Something has arrived."""
        self._count += 1
        line = self._lines.get(item.stream)
        if line is None:
            self._lines[item.stream] = deque([(self._count, item)])
            heapq.heappush(self._heads, (-_priority(item), self._count, item.stream))
        else:
            line.append((self._count, item))

    def take(self) -> Item:
        """The next item; there must be one."""
        heads = self._heads
        stream = heads[0][2]
        line = self._lines[stream]
        item = line.popleft()[1]
        if line:
            number, first = line[0]
            heapq.heapreplace(heads, (-_priority(first), number, stream))
        else:
            heapq.heappop(heads)
            del self._lines[stream]
            if not heads:
                # Of many subscriptions most have nothing that waits, and take little room then.
                self._lines.clear()
        return item


def _priority(item: Item) -> int:
    if isinstance(item, Received):
        return item.event.header.control.priority
    return DEFAULT_CONTROL.priority
