"""What the subscriptions of an edge still need of one stream: the least tick of all their places.

An edge may have a hundred thousand places on a stream, and asks for the least of them three times a
second. Ticks of places only grow, so a place is looked at when it seems to have the least and not
before. Rules:

1. Every place of a subscription that needs each tick is entered once, with its tick then: that is
   never more than its tick now.
2. The entry in front is believed only after a look at the place. If its tick has grown, it is
   entered anew; if it is nobody's place any more, it is dropped.
3. Places that are gone are swept out when they may be half of all. That is a look at every place,
   so the edge does it for one stream at a time.

State: safe to lose, as places are.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch.core.edge.subscriptions import Place

#: The tick up to which a place needs nothing any more; None if it is nobody's.
TickOf = Callable[["Place"], int | None]

_SWEPT_MIN = 64


class Needed:
    """The places on one stream, the least first. See the rules at the top of this module."""

    __slots__ = ("_entered", "_entries", "_sweep_at")

    def __init__(self) -> None:
        #: A heap of (tick, number of the entry, place).
        self._entries: list[tuple[int, int, Place]] = []
        self._entered = 0
        self._sweep_at = _SWEPT_MIN

    def __len__(self) -> int:
        return len(self._entries)

    def enter(self, place: "Place", tick: int) -> None:
        """A new place, which needs what comes after a tick."""
        self._entered += 1
        heappush(self._entries, (tick, self._entered, place))

    def least(self, tick_of: TickOf) -> int | None:
        """The tick up to which no place needs anything; None if there is none."""
        entries = self._entries
        while entries:
            tick, number, place = entries[0]
            now = tick_of(place)
            if now == tick:
                return tick
            if now is None:
                heappop(entries)
            else:
                heapreplace(entries, (now, number, place))
        return None

    @property
    def is_crowded(self) -> bool:
        """Whether half of the places may be gone."""
        return len(self._entries) > self._sweep_at

    def sweep(self, tick_of: TickOf) -> None:
        """Drop the places that are gone."""
        ticks = [(tick_of(place), number, place) for _, number, place in self._entries]
        self._entries = [(tick, number, place) for tick, number, place in ticks if tick is not None]
        heapify(self._entries)
        self._sweep_at = max(2 * len(self._entries), _SWEPT_MIN)
