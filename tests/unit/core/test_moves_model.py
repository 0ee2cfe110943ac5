"""Moves of cursors against a plain dictionary: whatever is put, and wherever a crash cuts it off.

The model has one tick for every cursor, written at once with every put that says where it stands.
After a crash that keeps any beginning of what was put, the cursors stand where the model stood at
that moment. Lives follow one another on the same disk, each cut off somewhere.
"""

from collections.abc import Sequence
from random import Random

import msgspec
import pytest

from anabranch.core.contract import Put, Recovered
from anabranch.core.edge import cursors
from anabranch.core.edge.cursors import CURSORS, KEPT_MIN, MOVES, SUBSCRIPTIONS, Cursors
from anabranch.core.edge.state import CursorsStored, EdgeState
from anabranch.core.edge.subscriptions import EdgeSubscription, StreamPosition
from anabranch.core.options import Options
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS
from tests.edge_parts import NETWORK

Catalog = dict[str, dict[str, bytes]]
#: Subscription → stream → tick.
Stands = dict[str, dict[str, int]]

STREAMS = ("a", "b", "c")
NAMES = tuple(f"s{number}" for number in range(12))
FILTER = Filter.parse("TRUE", DEFAULT_LIMITS)


class Life:
    """One life of an edge's cursors, and what the model says after each put."""

    def __init__(
        self, catalog: Catalog, stands: Stands, draw: Random, names: Sequence[str] = NAMES
    ) -> None:
        self.draw = draw
        self.choice = names
        self.state = EdgeState("a", NETWORK, Options(), DEFAULT_LIMITS, 1)
        self.cursors = Cursors(self.state)
        self.cursors.recover(Recovered(catalog, 1 << 62))
        self.catalog = catalog
        #: Where cursors stand if everything reaches the disk, with a subscription or without.
        self.placed = {name: dict(ticks) for name, ticks in stands.items()}
        self.names = set(stands)
        #: What was put, and where cursors stand if the disk has it and nothing after it.
        self.puts: list[Put] = []
        self.stands: list[Stands] = [stands]
        #: As many puts as this are on disk for certain.
        self.synced = 0
        self.writing: CursorsStored | None = None
        #: Those that the disk has not forgotten yet; their names are not free.
        self.leaving: list[EdgeSubscription] = []
        self.cursors.start()
        self.note()

    # -- the model ------------------------------------------------------------------------------

    def note(self) -> None:
        """Take what was put since, one put at a time."""
        for ask in self.state.result():
            if isinstance(ask, Put):
                self.puts.append(ask)
                self._model(ask)
                self.stands.append(
                    {name: dict(self.placed.get(name, {})) for name in sorted(self.names)}
                )
        self.state.begin()

    def _model(self, put: Put) -> None:
        if put.table == SUBSCRIPTIONS:
            (self.names.discard if put.value is None else self.names.add)(put.key)
        elif put.table == CURSORS:
            name, _, stream = put.key.partition("\0")
            if put.value is None:
                self.placed.get(name, {}).pop(stream, None)
            else:
                self.placed.setdefault(name, {})[stream] = self.acked(name, stream)
        elif put.table == MOVES and put.value is not None:
            moved = msgspec.msgpack.decode(put.value, type=dict[str, dict[str, int]])
            for stream, ticks in moved.items():
                for name in ticks:
                    self.placed[name][stream] = self.acked(name, stream)

    def acked(self, name: str, stream: str) -> int:
        return self.state.subscriptions[name].positions[stream].acked

    # -- what happens ---------------------------------------------------------------------------

    def step(self) -> None:
        happens = self.draw.choices(
            (self.make, self.end, self.ack, self.write, self.sync, self.return_, self.go_back),
            (3, 1, 8, 6, 4, 1, 1),
        )[0]
        happens()
        self.note()

    def _some(self) -> EdgeSubscription | None:
        every = [one for one in self.state.subscriptions.values() if not one.is_ending]
        return self.draw.choice(every) if every else None

    def make(self) -> None:
        name = self.draw.choice(self.choice)
        if name in self.state.subscriptions:
            return
        made = EdgeSubscription(name, name, "client", FILTER, quality="durable", number=1)
        self.state.add(made)
        for stream in self.draw.sample(STREAMS, self.draw.randrange(len(STREAMS) + 1)):
            start = self.draw.randrange(1, 50)
            made.start(self.state.streams[stream], start)
            self.cursors.put_cursor(made.positions[stream])
        self.cursors.put_subscription(made)

    def end(self) -> None:
        if (one := self._some()) is not None:
            one.end()
            self.cursors.forget(one)
            self.leaving.append(one)

    def ack(self) -> None:
        for _ in range(self.draw.randrange(1, 4)):
            one = self._some()
            if one is not None and one.positions:
                position = one.positions[self.draw.choice(sorted(one.positions))]
                self.acknowledge(position, self.draw.randrange(1, 5))

    def acknowledge(self, position: StreamPosition, ticks: int) -> None:
        """Some ticks are sent and acknowledged."""
        tick = position.acked + ticks
        position.advance(tick)
        position.announce(tick)
        self.cursors.record_ack(position, tick)

    def write(self) -> None:
        before = len(self.state.result())
        self.cursors.write(0.0)
        if len(self.state.result()) > before:
            (stored,) = self.state.stored(self.state._ticket)
            assert isinstance(stored, CursorsStored)
            self.writing = stored

    def sync(self) -> None:
        self.synced = len(self.puts)
        if self.writing is not None:
            stored, self.writing = self.writing, None
            self.cursors.stored(0.0, stored)
        for one in self.leaving:
            self.state.remove(one)
        self.leaving.clear()

    def return_(self) -> None:
        """A client comes back, with more than was known of it or not."""
        if (one := self._some()) is not None:
            for position in one.positions.values():
                position.present(position.acked + self.draw.randrange(3))
                self.cursors.put_cursor(position)
                # Each put is noted by itself, since a later one may say more.
                self.note()
            self.cursors.put_subscription(one)

    def go_back(self) -> None:
        """A client comes back with less than where a cursor started."""
        if (one := self._some()) is not None and one.positions:
            stream = self.draw.choice(sorted(one.positions))
            former = one.positions[stream]
            self.cursors.abandon(former)
            start = max(1, former.start - self.draw.randrange(1, 9))
            self.cursors.put_cursor(one.start(former.stream, start))

    # -- the end of it --------------------------------------------------------------------------

    def told(self) -> Stands:
        """What origins may have been told not to keep."""
        every = self.state.subscriptions.items()
        return {
            name: {stream: position.synced for stream, position in one.positions.items()}
            for name, one in every
        }

    def crashed(self, count: int) -> Catalog:
        """The disk with so many puts."""
        catalog = {table: dict(rows) for table, rows in self.catalog.items()}
        for put in self.puts[:count]:
            rows = catalog.setdefault(put.table, {})
            rows.pop(put.key, None)
            if put.value is not None:
                rows[put.key] = put.value
        return catalog


def recovered(catalog: Catalog) -> Stands:
    """Where cursors stand in the next life."""
    state = EdgeState("a", NETWORK, Options(), DEFAULT_LIMITS, 1)
    Cursors(state).recover(Recovered(catalog, 1 << 62))
    for one in state.subscriptions.values():
        for position in one.positions.values():
            ticks = {position.acked, position.announced, position.processed}
            assert ticks | {position.written, position.synced} == {position.acked}
    return {
        name: {stream: position.acked for stream, position in sorted(one.positions.items())}
        for name, one in sorted(state.subscriptions.items())
    }


def ordered(stands: Stands) -> Stands:
    return {name: dict(sorted(ticks.items())) for name, ticks in sorted(stands.items())}


@pytest.mark.parametrize("seed", range(10))
def test_cursors_stand_where_the_model_stood_wherever_a_crash_cuts(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Few rows are kept, so that many go.
    monkeypatch.setattr(cursors, "KEPT_MIN", 1)
    draw = Random(seed)
    names = NAMES[: draw.choice((1, 3, len(NAMES)))]
    catalog: Catalog = {}
    stands: Stands = {}
    for _ in range(5):
        life = Life(catalog, stands, draw, names)
        for _ in range(draw.choice((5, 40, 250))):
            life.step()
        for count in range(len(life.puts) + 1):
            assert recovered(life.crashed(count)) == ordered(life.stands[count])
        kept = draw.randrange(life.synced, len(life.puts) + 1)
        catalog, stands = life.crashed(kept), life.stands[kept]


@pytest.mark.parametrize("seed", range(4))
def test_no_cursor_comes_back_before_what_an_origin_may_have_been_told(seed: int) -> None:
    draw = Random(seed)
    life = Life({}, {}, draw)
    for _ in range(400):
        life.step()
        told = life.told()
        for count in (life.synced, draw.randrange(life.synced, len(life.puts) + 1)):
            for name, ticks in recovered(life.crashed(count)).items():
                assert all(told[name].get(stream, 0) <= tick for stream, tick in ticks.items())


@pytest.mark.parametrize("seed", range(2))
def test_what_rows_hold_is_bounded_by_the_cursors_there_are(seed: int) -> None:
    draw = Random(seed)
    life = Life({}, {}, draw)
    for _ in range(2_500):
        life.step()
    rows = life.crashed(len(life.puts))[MOVES].values()
    held = sum(
        len(ticks)
        for row in rows
        for ticks in msgspec.msgpack.decode(row, type=dict[str, dict[str, int]]).values()
    )
    assert held <= KEPT_MIN + 4 * len(NAMES) * len(STREAMS)


def test_a_client_that_goes_back_again_and_again_leaves_no_rows_behind() -> None:
    life = Life({}, {}, Random(1))
    made = EdgeSubscription("s", "s", "client", FILTER, quality="durable", number=1)
    life.state.add(made)
    made.start(life.state.streams["b"], 10_000)
    life.cursors.put_cursor(made.positions["b"])
    life.cursors.put_subscription(made)
    for _ in range(4 * KEPT_MIN):
        life.go_back()
        life.acknowledge(made.positions["b"], 1)
        life.write()
        life.note()
        life.sync()
    assert len(life.crashed(len(life.puts))[MOVES]) <= KEPT_MIN + 4
