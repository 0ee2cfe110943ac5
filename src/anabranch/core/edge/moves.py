"""Where cursors have moved to since they were put: few rows of the catalog for many cursors.

A row of its own for every cursor that moves is dear: among many subscriptions hardly two that move
together are neighbours, so each costs a page of the catalog. What moves together is therefore
written together:

    moves   number → {stream: {subscription: tick}}

Rules:

1. Rows are numbered in the order in which they are put. Of several moves of a cursor the one with
   the highest number counts.
2. The row of a cursor itself (`cursors`) holds the number that the next row of moves had when it
   was put: moves in earlier rows are void. So a subscription that ended and is made anew does not
   inherit where the former one stood.
3. When rows hold more than about twice as many moves as there are cursors that moved, the oldest
   row goes. What still counts of it moves once more first, to where it stands.
4. A row that cannot be read is set aside, and so is one that goes beyond the own log: the cursors
   in it stand where an older row says, or their own.

State: what the rows hold, without the ticks; built from them after a crash.
"""

from collections import deque
from collections.abc import Iterable

import msgspec

from anabranch.core.catalog_recovery import number_in, rows
from anabranch.core.contract import Recovered
from anabranch.core.edge.state import State
from anabranch.core.edge.subscriptions import Place
from anabranch.model.frame_parts import Position

MOVES = "moves"
#: So many moves are kept however few cursors there are.
KEPT_MIN = 64
#: Rows are never numbered so high.
NUMBER_MAX = 1 << 61

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[str, dict[str, Position]])

#: Row → stream → subscription → tick.
Moved = dict[int, dict[str, dict[str, int]]]


class Moves:
    """The moves of all cursors of an edge. See the rules at the top of this module."""

    def __init__(self, state: State) -> None:
        self._state = state
        #: The number of the next row.
        self.next = 1
        #: (number, whose moves), oldest first.
        self._rows: deque[tuple[int, list[Place]]] = deque()
        self._count = 0
        #: Cursors of which a move counts.
        self._counting = 0
        #: Keys of rows of which nothing counts.
        self._void: list[str] = []

    def read(self, recovered: Recovered, since: Iterable[int]) -> Moved:
        """Row → stream → subscription → tick, oldest first, beside cursors with these numbers."""
        own, last = self._state.name, recovered.last_tick

        def read(key: str, value: bytes) -> tuple[int, dict[str, dict[str, int]]]:
            number, moved = number_in(key, NUMBER_MAX - 1), _decoder.decode(value)
            if any(tick > last for tick in moved.get(own, {}).values()):
                raise ValueError(f"a cursor is beyond tick {last}, where the log ends")
            return number, moved

        moved = dict(sorted(rows(recovered, MOVES, read).values(), key=lambda row: row[0]))
        self.next = max([1, *since, *(number + 1 for number in moved)])
        return moved

    def recover(self, moved: Moved, since: dict[Place, int]) -> None:
        """Let cursors that were put when the next row was this one move to where they were."""
        for number, row in moved.items():
            counting = [
                place
                for place, tick in self._places(row)
                if number >= since[place] and self._take(place, number, tick)
            ]
            if counting:
                self._rows.append((number, counting))
                self._count += len(counting)
            else:
                self._void.append(str(number))

    def _places(self, moved: dict[str, dict[str, int]]) -> Iterable[tuple[Place, int]]:
        subscriptions = self._state.subscriptions
        for stream, ticks in moved.items():
            for name, tick in ticks.items():
                owner = subscriptions.get(name)
                place = None if owner is None else owner.places.get(stream)
                if place is not None and place.covers(tick):
                    yield place, tick

    def _take(self, place: Place, number: int, tick: int) -> bool:
        self._counting += not place.move
        place.move = number
        place.sent = place.told = place.acked = place.written = place.synced = tick
        return True

    def sweep(self) -> None:
        """Forget rows of which nothing counts."""
        for key in self._void:
            self._state.put(MOVES, key, None)
        self._void.clear()

    def put_anew(self, place: Place) -> None:
        """The own row of a cursor says where it stands, or nothing does any more."""
        self._counting -= place.move > 0
        place.move = 0

    def write(self, places: list[Place]) -> list[Place]:
        """Put a row for cursors that have moved; returns them and those that moved once more."""
        if not places:
            return places
        number, self.next = self.next, self.next + 1
        moved: list[Place] = []
        self._enter(places, number, moved)
        gone = []
        while self._rows and self._count + len(moved) > KEPT_MIN + 2 * self._counting:
            oldest, were = self._rows.popleft()
            self._count -= len(were)
            gone.append(oldest)
            self._enter(self._still_counting(oldest, were), number, moved)
        self._state.put(MOVES, str(number), _encoder.encode(_ticks(moved)))
        for oldest in gone:
            self._state.put(MOVES, str(oldest), None)
        self._rows.append((number, moved))
        self._count += len(moved)
        return moved

    def _still_counting(self, number: int, were: list[Place]) -> list[Place]:
        counting = []
        for place in were:
            if place.move != number:
                continue
            if place.is_over:
                self.put_anew(place)
            else:
                counting.append(place)
        return counting

    def _enter(self, places: list[Place], number: int, moved: list[Place]) -> None:
        for place in places:
            self._counting += not place.move
            place.move = number
            place.written = place.acked
        moved += places


def _ticks(places: list[Place]) -> dict[str, dict[str, int]]:
    moved: dict[str, dict[str, int]] = {}
    for place in places:
        ticks = moved.get(place.stream.name)
        if ticks is None:
            ticks = moved[place.stream.name] = {}
        ticks[place.subscription.name] = place.acked
    return moved
