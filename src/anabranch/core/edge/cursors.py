"""Durable cursors: what an edge stores on disk, and what origins may release.

Tables of the catalog:

    subscriptions   name → [client, filter, number, claimed, closed]
    cursors         name NUL stream → [start, acked, held, first row of moves that counts]
    moves           later positions of cursors (`CursorMoves`)
    edge            "run" → number of the last run, at least one per start (`PendingRequests`)

A crash keeps some prefix of the unsynced puts. Hence the order of puts:

1. Cursors are put before their subscription, so a subscription on disk has all its cursors. A
   subscription is deleted before its cursors; cursors without a subscription are swept at the next
   start.
2. Moves are written periodically and when a client disconnects, not with every acknowledgement. If
   a crash loses some, the client acknowledges them again when it reconnects with its ticks.
3. `Done` to an origin covers only what is on disk: otherwise a crash could bring back a cursor
   whose ticks have been released. For subscriptions that end with their session the acknowledged
   tick counts; without any subscription, the position of the reorder buffer.
4. Ticks of a pending hold request count as needed from the moment it is sent. `Done` carries the
   newest request number, so a `Done` sent before a hold cannot undo it. When a hold is no longer
   needed, `Done` releases it.
5. An unreadable row is set aside (`catalog_recovery`). A subscription is lost with its row, and its
   cursors are set aside with it. An unreadable cursor goes back to before the first tick: all
   events that the origin retains are redelivered, and all others are reported as withheld; none is
   skipped silently. An unreadable run number is replaced by the clock in units of two seconds,
   which exceeds any number of runs so far.
6. `Done` may be lost like every carried message, so it is repeated with back-off.
"""

from collections import deque
from collections.abc import Iterable
from typing import Annotated

import msgspec

from anabranch.core.catalog_recovery import decoded, number_in, rows, set_aside
from anabranch.core.contract import Recovered
from anabranch.core.edge.state import RUN_MAX, CursorsStored, EdgeState
from anabranch.core.edge.subscriptions import EdgeStream, EdgeSubscription, StreamPosition
from anabranch.core.patterns.join_points.records import TABLE as PATTERNS
from anabranch.model.event import Count
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import TICK_MAX, Position
from anabranch.model.frames import Done
from anabranch.model.limits import Limits
from anabranch.model.names import JOIN_POINT_PREFIX, check_name
from anabranch.model.normal.memory_cost import FilterCost

MOVES = "moves"
#: At least this many moves are kept, even with few cursors.
KEPT_MIN = 64
#: Upper bound of row numbers.
NUMBER_MAX = 1 << 61

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[str, dict[str, Position]])

#: Row → stream → subscription → tick.
Moved = dict[int, dict[str, dict[str, int]]]


class CursorMoves:
    """Moves of cursors since their own rows were put: one catalog row for many cursors.

    Rewriting the row of every cursor that moves is expensive: among many subscriptions, cursors
    that move at the same time are rarely neighbours, so each costs a page of the catalog. Cursors
    that move together are therefore written together:

        moves   number → {stream: {subscription: tick}}

    Rules:

    1. Rows are numbered in the order in which they are put. If several rows move a cursor, the one
       with the highest number counts.
    2. The row of a cursor itself (`cursors`) holds the number of the next row of moves at the time
       it was put: moves in earlier rows are void. So a subscription that ended and is created again
       does not inherit the position of its predecessor.
    3. When rows hold more than about twice as many moves as there are cursors that moved, the
       oldest row is deleted. Moves in it that still count are copied into the new row first.
    4. An unreadable row is set aside, and so is one that points beyond this broker's log: the
       cursors in it fall back to an older row of moves, or to their own row.

    State: what the rows hold, without the ticks; rebuilt from them after a crash.
    """

    def __init__(self, state: EdgeState) -> None:
        self._state = state
        #: The number of the next row.
        self.next_row = 1
        #: (number, positions that it moves), oldest first.
        self._rows: deque[tuple[int, list[StreamPosition]]] = deque()
        self._count = 0
        #: Cursors that have a move that counts.
        self._moved_count = 0
        #: Keys of rows without a move that counts.
        self._void: list[str] = []

    def read(self, recovered: Recovered, moves_from: Iterable[int]) -> Moved:
        """Row → stream → subscription → tick, oldest first; cursors on disk have these numbers."""
        own, last = self._state.name, recovered.last_tick

        def read(key: str, value: bytes) -> tuple[int, dict[str, dict[str, int]]]:
            number, moved = number_in(key, NUMBER_MAX - 1), _decoder.decode(value)
            if any(tick > last for tick in moved.get(own, {}).values()):
                raise ValueError(f"a cursor is at a tick after {last}, the end of the log")
            return number, moved

        moved = dict(sorted(rows(recovered, MOVES, read).values(), key=lambda row: row[0]))
        self.next_row = max([1, *moves_from, *(number + 1 for number in moved)])
        return moved

    def recover(self, moved: Moved, moves_from: dict[StreamPosition, int]) -> None:
        """Apply moves to cursors; `moves_from` holds the first row that counts for each."""
        for number, row in moved.items():
            counting = [
                position
                for position, tick in self._positions(row)
                if number >= moves_from[position] and self._take(position, number, tick)
            ]
            if counting:
                self._rows.append((number, counting))
                self._count += len(counting)
            else:
                self._void.append(str(number))

    def _positions(self, moved: dict[str, dict[str, int]]) -> Iterable[tuple[StreamPosition, int]]:
        subscriptions = self._state.subscriptions
        for stream, ticks in moved.items():
            for name, tick in ticks.items():
                owner = subscriptions.get(name)
                position = None if owner is None else owner.positions.get(stream)
                if position is not None and position.covers(tick):
                    yield position, tick

    def _take(self, position: StreamPosition, number: int, tick: int) -> bool:
        self._moved_count += not position.moves_row
        position.recover(tick, number)
        return True

    def sweep(self) -> None:
        """Delete rows without a move that counts."""
        for key in self._void:
            self._state.put(MOVES, key, None)
        self._void.clear()

    def own_row_put(self, position: StreamPosition) -> None:
        """The cursor's own row holds its position, or the cursor is no longer in use."""
        self._moved_count -= position.moves_row > 0
        position.leave_moves()

    def write(self, positions: list[StreamPosition]) -> list[StreamPosition]:
        """Put a row for cursors that moved; returns them and those copied from deleted rows."""
        if not positions:
            return positions
        number, self.next_row = self.next_row, self.next_row + 1
        moved: list[StreamPosition] = []
        self._append_to_row(positions, number, moved)
        gone = []
        while self._rows and self._count + len(moved) > KEPT_MIN + 2 * self._moved_count:
            oldest, row_positions = self._rows.popleft()
            self._count -= len(row_positions)
            gone.append(oldest)
            self._append_to_row(self._still_counting(oldest, row_positions), number, moved)
        self._state.put(MOVES, str(number), _encoder.encode(_ticks(moved)))
        for oldest in gone:
            self._state.put(MOVES, str(oldest), None)
        self._rows.append((number, moved))
        self._count += len(moved)
        return moved

    def _still_counting(
        self, number: int, row_positions: list[StreamPosition]
    ) -> list[StreamPosition]:
        counting = []
        for position in row_positions:
            if position.moves_row != number:
                continue
            if position.is_removed:
                self.own_row_put(position)
            else:
                counting.append(position)
        return counting

    def _append_to_row(
        self, positions: list[StreamPosition], number: int, moved: list[StreamPosition]
    ) -> None:
        for position in positions:
            self._moved_count += not position.moves_row
            position.write(number)
        moved += positions


def _ticks(positions: list[StreamPosition]) -> dict[str, dict[str, int]]:
    moved: dict[str, dict[str, int]] = {}
    for position in positions:
        ticks = moved.get(position.stream.name)
        if ticks is None:
            ticks = moved[position.stream.name] = {}
        ticks[position.subscription.name] = position.acked
    return moved


SUBSCRIPTIONS = "subscriptions"
CURSORS = "cursors"
RUN_TABLE = "edge"
RUN_KEY = "run"
#: Seconds of the clock per run, if the number of the last run is lost.
_RUN_S = 2

_row_encoder = msgspec.msgpack.Encoder()


class SubscriptionRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of `subscriptions`."""

    client: str
    filter: str
    number: Count
    #: Whether all other edges have yielded to this number.
    is_claimed: bool
    #: Whether the row exists only until they have.
    is_closed: bool


class CursorRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of `cursors`."""

    #: At most one more than the highest tick that a client may present.
    start: Annotated[int, msgspec.Meta(ge=1, le=TICK_MAX + 1)]
    acked: Position
    #: Whether the origin has confirmed that it retains the events after it.
    is_held: bool = True
    #: Moves count in rows with this number or a higher one.
    moves_from: Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)] = 1


_subscription_decoder = msgspec.msgpack.Decoder(SubscriptionRow)
_cursor_decoder = msgspec.msgpack.Decoder(CursorRow)


def recovered_run(recovered: Recovered, now: float) -> int:
    """The run number of this start."""

    def read(key: str, value: bytes) -> int:
        if key != RUN_KEY:
            raise ValueError(f"unknown key in table {RUN_TABLE!r}")
        return number_in(value, RUN_MAX)

    good, bad = decoded(recovered, RUN_TABLE, read)
    for each in bad:
        set_aside(recovered, each)
    is_lost = any(each.key == RUN_KEY for each in bad)
    return (int(now) // _RUN_S if is_lost else good.get(RUN_KEY, 0)) + 1


class Cursors:
    """Writes and recovers the catalog of an edge. See the rules at the top of this module."""

    def __init__(self, state: EdgeState) -> None:
        self._state = state
        self._is_writing = False
        #: Whether a client disconnected while cursors were being written.
        self._is_write_pending = False
        self._moves = CursorMoves(state)
        #: Positions of durable subscriptions with acknowledgements that are not written yet.
        self._moved: list[StreamPosition] = []
        #: Keys of cursors without a subscription.
        self._orphans: list[str] = []

    # -- rows -----------------------------------------------------------------------------------

    def recover(self, recovered: Recovered) -> None:
        """Rebuild all durable subscriptions from the catalog, without sessions."""
        lost = self._recover_subscriptions(recovered)
        state = self._state
        last = recovered.last_tick

        def read(key: str, value: bytes) -> CursorRow:
            name, _, stream = key.partition("\0")
            if not (name and stream):
                raise ValueError("the key does not name a subscription and a stream")
            if name in lost:
                raise ValueError(f"its subscription {name!r} is set aside")
            found = _cursor_decoder.decode(value)
            if found.acked < found.start - 1:
                raise ValueError(
                    f"the cursor starts at tick {found.start}, but is at {found.acked}"
                )
            if stream == state.name and found.acked > last:
                raise ValueError(f"the cursor is at tick {found.acked}, but the log ends at {last}")
            return found

        good, bad = decoded(recovered, CURSORS, read)
        moved = self._moves.read(recovered, (row.moves_from for row in good.values()))
        # Its moves, if any, may belong to an earlier subscription of the same name.
        first = CursorRow(1, 0, is_held=True, moves_from=self._moves.next_row)
        for each in bad:
            is_kept = self._owner_of(each.key) is not None
            set_aside(recovered, each, _row_encoder.encode(first) if is_kept else None)
            if is_kept:
                good[each.key] = first
        moves_from: dict[StreamPosition, int] = {}
        for key, cursor in good.items():
            owner = self._owner_of(key)
            if owner is None:
                self._orphans.append(key)
                continue
            stream = key.partition("\0")[2]
            position = owner.start(state.streams[stream], cursor.start)
            position.recover(cursor.acked)
            moves_from[position] = cursor.moves_from
            if not cursor.is_held:
                position.hold()
        self._moves.recover(moved, moves_from)

    def _recover_subscriptions(self, recovered: Recovered) -> set[str]:
        """Recover subscriptions; returns the names of those set aside."""
        state = self._state
        # The subscription of a pattern set aside has no consumer, and would block log release.
        patterns = {each.record.key for each in recovered.aside if each.record.table == PATTERNS}

        def read(name: str, value: bytes) -> None:
            if name.startswith(JOIN_POINT_PREFIX) and name[len(JOIN_POINT_PREFIX) :] in patterns:
                raise ValueError("its pattern is set aside")
            subscription, cost = _subscription_of(name, value, state.limits)
            if cost is None:
                state.close(subscription)
            else:
                state.index.add(name, subscription.filter)
                state.add(subscription)
                state.charge(subscription, cost)
                state.set_detached(subscription)

        _, bad = decoded(recovered, SUBSCRIPTIONS, read)
        for each in bad:
            set_aside(recovered, each)
        return {each.key for each in bad}

    def _owner_of(self, key: str) -> EdgeSubscription | None:
        """The subscription of a cursor row; None if it or the stream does not exist."""
        name, _, stream = key.partition("\0")
        return self._state.subscriptions.get(name) if stream in self._state.streams else None

    def start(self) -> None:
        """Put the run number, and delete leftovers of a crash."""
        for key in self._orphans:
            self._state.put(CURSORS, key, None)
        self._orphans.clear()
        self._moves.sweep()
        self._state.put(RUN_TABLE, RUN_KEY, b"%d" % self._state.run)

    def put_subscription(self, subscription: EdgeSubscription, is_closed: bool = False) -> None:
        """Put a durable subscription; its cursors must be put before."""
        row = SubscriptionRow(
            subscription.client,
            str(subscription.filter),
            subscription.number,
            subscription.is_claimed,
            is_closed,
        )
        self._state.put(SUBSCRIPTIONS, subscription.name, _row_encoder.encode(row))

    def put_cursor(self, position: StreamPosition) -> None:
        """Put the position of a durable subscription into its own row."""
        self._moves.own_row_put(position)
        position.write()
        key = f"{position.subscription.name}\0{position.stream.name}"
        row = CursorRow(
            position.start, position.acked, position.mode != "holding", self._moves.next_row
        )
        self._state.put(CURSORS, key, _row_encoder.encode(row))

    def abandon(self, position: StreamPosition) -> None:
        """Give up a position; another one takes its row."""
        position.remove()
        self._moves.own_row_put(position)

    def forget(self, subscription: EdgeSubscription, is_closed: bool = False) -> None:
        """Delete a durable subscription, or everything but the record that it is closed."""
        if is_closed:
            self.put_subscription(subscription, is_closed=True)
        else:
            self._state.put(SUBSCRIPTIONS, subscription.name, None)
        for stream, position in subscription.positions.items():
            self._moves.own_row_put(position)
            self._state.put(CURSORS, f"{subscription.name}\0{stream}", None)

    # -- periodic work --------------------------------------------------------------------------

    def write(self, now: float) -> None:
        """Write acknowledged positions, and send `Done` for those on disk."""
        if not self._is_writing:
            self._is_write_pending = False
            written = self._write_changed()
            run = self._state.requests.next_run()
            if run:
                self._state.put(RUN_TABLE, RUN_KEY, b"%d" % run)
            if written or run:
                self._is_writing = True
                self._state.sync(CursorsStored(written))
        self.send_done(now)

    def stored(self, now: float, stored: CursorsStored) -> None:
        self._is_writing = False
        for position, tick in stored.ticks:
            position.stored(tick)
        if self._is_write_pending:
            self.write(now)
        else:
            self.send_done(now)

    def client_left(self, now: float) -> None:
        """Write soon, so that the next session of the client resumes where this one ended."""
        if self._is_writing:
            self._is_write_pending = True
        elif self._moved:
            self.write(now)

    def record_ack(self, position: StreamPosition, tick: int) -> None:
        if position.acked <= position.written and position.subscription.is_durable:
            self._moved.append(position)
        position.ack(tick)

    def _write_changed(self) -> list[tuple[StreamPosition, int]]:
        moved, self._moved = self._moved, []
        written = self._moves.write([position for position in moved if _is_unwritten(position)])
        return [(position, position.acked) for position in written]

    # -- origins --------------------------------------------------------------------------------

    def send_done(self, now: float) -> None:
        """Send `Done` to origins where it has changed or is due to be repeated."""
        state = self._state
        if not state.requests.is_open:
            return
        held = self._held()
        self._sweep_one()
        for stream in state.streams.values():
            tick = self._done(stream, held)
            if tick is None:
                continue
            if stream.is_done_due(now, tick, state.options.done_every_s):
                state.carry(stream.name, Done(tick, state.requests.last_number))
            state.schedule_done_at(stream.done_repeat_at)

    def _sweep_one(self) -> None:
        for stream in self._state.streams.values():
            if stream.lowest_needed.needs_sweep:
                stream.lowest_needed.sweep(self._needed_after)
                return

    def _held(self) -> dict[str, int]:
        """Stream → lowest tick of pending attaches."""
        held: dict[str, int] = {}
        for attach in self._state.attaches.values():
            for stream, tick in attach.ticks.items():
                held[stream] = min(held.get(stream, tick), tick)
        return held

    def _needed_after(self, position: StreamPosition) -> int | None:
        """The tick up to which a position needs nothing; None if it is no longer in use."""
        if position.is_removed:
            return None
        return position.synced if position.subscription.is_durable else position.acked

    def _done(self, stream: EdgeStream, held: dict[str, int]) -> int | None:
        if not stream.buffer.is_placed:
            # A client may claim a tick beyond the end of the stream.
            return None
        needed = stream.lowest_needed.lowest(self._needed_after)
        ticks = (stream.buffer.position, needed, held.get(stream.name))
        return min(tick for tick in ticks if tick is not None)


def _is_unwritten(position: StreamPosition) -> bool:
    is_staying = not position.is_removed and not position.subscription.is_ending
    return is_staying and position.acked > position.written


def _subscription_of(
    name: str, row: bytes, limits: Limits
) -> tuple[EdgeSubscription, FilterCost | None]:
    """A subscription and the cost of its filter; None for the cost if it is closed."""
    stored = _subscription_decoder.decode(row)
    check_name(name, "the subscription", limits.name_bytes_max)
    check_name(stored.client, "its client", limits.name_bytes_max)
    filter = Filter.parse(stored.filter, limits)
    subscription = EdgeSubscription(
        name, name, stored.client, filter, quality="durable", number=stored.number
    )
    subscription.recovered(stored.is_claimed)
    return subscription, None if stored.is_closed else filter.cost(stored.filter)
