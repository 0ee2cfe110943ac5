"""What the subscriptions of an edge still need of one stream: the least tick of all their places.

An edge may have a hundred thousand places on a stream, and asks for the least of them three times a
second. Ticks of places only grow, so a place is looked at when it seems to have the least and not
before. Rules:

1. Every place of a subscription that needs each tick is entered once, under its tick then: that is
   never more than its tick now. Places under one tick are in no order.
2. A place under the least tick is believed only after a look at it. If its tick has grown, it is
   entered anew; if it is nobody's place any more, it is dropped.
3. Places that are gone are swept out when they may be half of all. That is a look at every place,
   so the edge does it for one stream at a time.

State: safe to lose, as places are.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch.core.edge.subscriptions import Place

#: The tick up to which a place needs nothing any more; None if it is nobody's.
TickOf = Callable[["Place"], int | None]

_SWEPT_MIN = 64


class Needed:
    """The places on one stream, the least first. See the rules at the top of this module."""

    __slots__ = ("_count", "_places", "_sweep_at", "_ticks")

    def __init__(self) -> None:
        #: Tick → the places under it, at least one.
        self._places: dict[int, list[Place]] = {}
        #: A heap of these ticks.
        self._ticks: list[int] = []
        self._count = 0
        self._sweep_at = _SWEPT_MIN

    def __len__(self) -> int:
        return self._count

    def enter(self, place: "Place", tick: int) -> None:
        """A new place, which needs what comes after a tick."""
        self._count += 1
        self._put(place, tick)

    def _put(self, place: "Place", tick: int) -> None:
        places = self._places.get(tick)
        if places is None:
            self._places[tick] = [place]
            heappush(self._ticks, tick)
        else:
            places.append(place)

    def least(self, tick_of: TickOf) -> int | None:
        """The tick up to which no place needs anything; None if there is none."""
        ticks = self._ticks
        while ticks:
            tick = heappop(ticks)
            places = self._places.pop(tick)
            while places:
                now = tick_of(places[-1])
                if now == tick:
                    self._places[tick] = places
                    heappush(ticks, tick)
                    return tick
                place = places.pop()
                if now is None:
                    self._count -= 1
                else:
                    self._put(place, now)
        return None

    @property
    def is_crowded(self) -> bool:
        """Whether half of the places may be gone."""
        return self._count > self._sweep_at

    def sweep(self, tick_of: TickOf) -> None:
        """Drop the places that are gone."""
        every = [place for places in self._places.values() for place in places]
        self._places = {}
        self._count = 0
        for place in every:
            tick = tick_of(place)
            if tick is not None:
                self._count += 1
                self._places.setdefault(tick, []).append(place)
        self._ticks = list(self._places)
        heapify(self._ticks)
        self._sweep_at = max(2 * self._count, _SWEPT_MIN)
