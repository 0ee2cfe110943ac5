"""An origin on a simulated disk, and a watcher that objects to every broken promise.

The disk keeps what was synced. A crash keeps that, any beginning of the unsynced records and,
independently, any beginning of the unsynced puts. The watcher looks at everything the origin asks
for; it knows the disk, so it can tell what was promised too early.
"""

import random
from collections.abc import Iterable

from anabranch.core import contract
from anabranch.core.contract import Recovered
from anabranch.core.options import Options
from anabranch.core.origin.ledger import first_needed
from anabranch.core.origin.log_tail import (
    BlankRecord,
    EventRecord,
    MarkRecord,
    decode_record,
)
from anabranch.core.origin.origin import ForOrigin, Origin
from anabranch.core.part_requests import (
    AnnounceMark,
    CarryTo,
    ChangeAdvertisements,
    PartRequest,
    RequestSync,
)
from anabranch.core.routing.contract import Emission, WorkDone
from anabranch.model.client_frames import AnyClientFrame, Confirmed, Publish, PublishRefused
from anabranch.model.encoding import decode_event, encode_event
from anabranch.model.event import Control, Event, EventId, Value
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import AnyCarried
from anabranch.model.limits import Limits
from anabranch.model.network import Network, tree_of_brokers
from anabranch.model.version import Version, is_at_least

#: Three brokers in a row, all of them with clients; the origin under test is "a".
NETWORK = tree_of_brokers({"a": ["b"], "b": ["c"]})
EDGES = ("a", "b", "c")


def body(
    sequence: int,
    publisher: str = "p",
    incarnation: int = 1,
    *,
    attributes: dict[str, Value] | None = None,
    control: Control | None = None,
    payload: bytes = b"",
) -> bytes:
    """An encoded event; its attribute n is its sequence."""
    return encode_event(
        Event(
            attributes or {"n": sequence},
            id=EventId(publisher, incarnation, sequence),
            control=control or Control(),
            payload=payload,
        )
    )


def version(counter: int) -> Version:
    return Version(1, counter)


class Disk:
    """A log and a catalog, each with a synced beginning."""

    def __init__(self) -> None:
        self.first_tick = 1
        self.records: list[bytes] = []
        self.synced = 0
        self.catalog: dict[str, dict[str, bytes]] = {}
        self.unsynced_puts: list[contract.Put] = []

    @property
    def last(self) -> int:
        return self.first_tick + len(self.records) - 1

    def append(self, append: contract.Append) -> None:
        assert append.tick == self.last + 1, "ticks are not dense"
        self.records.append(append.record)

    def sync(self, tick: int, puts: int) -> None:
        self.synced = max(self.synced, tick)
        for put in self.unsynced_puts[:puts]:
            table = self.catalog.setdefault(put.table, {})
            if put.value is None:
                table.pop(put.key, None)
            else:
                table[put.key] = put.value
        del self.unsynced_puts[:puts]

    def forget(self, tick: int) -> None:
        assert tick <= self.synced
        gone = max(tick + 1 - self.first_tick, 0)
        del self.records[:gone]
        self.first_tick += gone

    def crash(self, chance: random.Random) -> None:
        kept = chance.randint(self.synced, self.last) if self.last > self.synced else self.last
        del self.records[kept + 1 - self.first_tick :]
        self.sync(kept, chance.randint(0, len(self.unsynced_puts)))
        self.unsynced_puts.clear()

    def recovered(self) -> Recovered:
        catalog = {table: dict(entries) for table, entries in self.catalog.items()}
        needed = max(first_needed(catalog), self.first_tick)
        records = tuple(self.records[needed - self.first_tick :])
        return Recovered(catalog, self.first_tick, records, needed)


class Driver:
    """One origin, its disk and the watcher. Everything it asked for is in `asks` and beside."""

    def __init__(
        self,
        options: Options | None = None,
        *,
        network: Network = NETWORK,
        limits: Limits | None = None,
    ) -> None:
        self.options = options or Options()
        self.network = network
        self.limits = limits or Limits()
        self.disk = Disk()
        self.now = 100.0
        #: Tick → the event there, also when its record is deleted. Only what is synced stays.
        self.events: dict[int, EventId] = {}
        self.vectors: dict[int, dict[str, Version]] = {0: {}}
        #: (publisher, incarnation) → the highest sequence that was ever confirmed.
        self.confirmed: dict[tuple[str, int], int] = {}
        self.newest_vector: dict[str, Version] = {}
        self.start()

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> list[PartRequest]:
        """A new life, from what is on disk."""
        self.syncs: list[tuple[int, int, int]] = []
        self.reads: list[contract.Read] = []
        self.emits: list[Emission] = []
        self.told_marks: list[int] = []
        self.offered: set[str] = set()
        self.sent: list[tuple[int, AnyClientFrame]] = []
        self.carried: list[tuple[str, AnyCarried]] = []
        self.notes: list[str] = []
        self.forgotten = 0
        self.origin = Origin(
            "a", self.network, self.options, self.limits, self.disk.recovered(), self.now
        )
        return self.do(self.origin.started(self.now))

    def crash(self, seed: int = 0) -> list[PartRequest]:
        """Lose what is not synced, or a part of it, and start again."""
        self.disk.crash(random.Random(seed))
        for tick in [tick for tick in self.events if tick > self.disk.last]:
            del self.events[tick]
        for tick in [tick for tick in self.vectors if tick > self.disk.last]:
            del self.vectors[tick]
        return self.start()

    # -- stimuli --------------------------------------------------------------------------------

    def publish(self, *bodies: bytes, session: int = 1, client: str = "p") -> list[PartRequest]:
        frame = Publish(list(bodies))
        return self.do(self.origin.client_frame(self.now, session, frame, client))

    def publish_synced(self, *bodies: bytes, session: int = 1, client: str = "p") -> None:
        self.publish(*bodies, session=session, client=client)
        self.sync_all()

    def sync(self) -> list[PartRequest]:
        """The oldest sync is through."""
        ticket, tick, puts = self.syncs.pop(0)
        self.disk.sync(tick, puts)
        self.syncs = [(other, to, count - puts) for other, to, count in self.syncs]
        return self.do(self.origin.synced(self.now, ticket))

    def sync_all(self) -> None:
        while self.syncs:
            self.sync()

    def read(self, records_max: int = 1_000_000) -> list[PartRequest]:
        """The oldest read is through."""
        read = self.reads.pop(0)
        disk = self.disk
        start = max(read.first - disk.first_tick, 0)
        end = min(read.last + 1 - disk.first_tick, start + records_max)
        kept = disk.records[start:end] if read.first >= disk.first_tick else []
        found: list[bytes] = []
        size = 0
        for record in kept:
            size += len(record)
            if found and size > read.bytes_max:
                break
            found.append(record)
        answer = contract.LogRead(read.request, read.first, tuple(found))
        return self.do(self.origin.log_read(self.now, answer))

    def read_all(self) -> None:
        while self.reads:
            self.read()

    def carry(self, content: ForOrigin, source: str = "b") -> list[PartRequest]:
        return self.do(self.origin.carried(self.now, source, content))

    def advance(self, **versions: int) -> list[PartRequest]:
        vector = {edge: version(counter) for edge, counter in versions.items()}
        return self.do(self.origin.vector_advance(self.now, vector))

    def wait(self, seconds: float) -> list[PartRequest]:
        """Let time pass, deadline by deadline; syncs are not done."""
        until = self.now + seconds
        asks: list[PartRequest] = []
        while (deadline := self.origin.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            asks += self.do(self.origin.time_passed(self.now))
            following = self.origin.next_deadline()
            assert following is None or following > self.now, "a deadline that does not move"
        self.now = until
        return asks

    def mark(self, **versions: int) -> int:
        """Make a synced mark; its tick."""
        self.advance(**versions)
        self.wait(self.options.mark_after_s)
        self.sync_all()
        return self.origin.head

    # -- the watcher ----------------------------------------------------------------------------

    def do(self, asks: Iterable[PartRequest]) -> list[PartRequest]:
        done = []
        for ask in asks:
            done.append(ask)
            if isinstance(ask, contract.Append):
                self.disk.append(ask)
                self._note(ask.tick, ask.record)
            elif isinstance(ask, contract.Put):
                self.disk.unsynced_puts.append(ask)
            elif isinstance(ask, RequestSync):
                assert not self.syncs or ask.ticket > self.syncs[-1][0]
                self.syncs.append((ask.ticket, self.disk.last, len(self.disk.unsynced_puts)))
                assert len(self.syncs) == 1, "more than one sync at a time"
            elif isinstance(ask, contract.Read):
                assert ask.last <= self.disk.synced, "reads what is not synced"
                self.reads.append(ask)
            elif isinstance(ask, contract.DeleteThrough):
                self._check_forget(ask.tick)
            elif isinstance(ask, Emission):
                self._check_emit(ask)
            elif isinstance(ask, AnnounceMark):
                self._check_marked(ask)
            elif isinstance(ask, contract.SendClient):
                self.sent.append((ask.session, ask.frame))
                if isinstance(ask.frame, Confirmed):
                    self._check_confirmed(ask.frame)
            elif isinstance(ask, CarryTo):
                self.carried.append((ask.target, ask.content))
            elif isinstance(ask, ChangeAdvertisements):
                self._check_offers(ask)
            else:
                assert isinstance(ask, contract.Note | WorkDone), ask
                if isinstance(ask, contract.Note):
                    self.notes.append(ask.text)
        return done

    def _note(self, tick: int, data: bytes) -> None:
        record = decode_record(data)
        if isinstance(record, EventRecord):
            event_id = decode_event(record.body).id
            assert event_id is not None
            self.events[tick] = event_id
        elif isinstance(record, BlankRecord):
            self.events[tick] = record.id
        elif isinstance(record, MarkRecord):
            self.vectors[tick] = record.vector

    def _check_confirmed(self, frame: Confirmed) -> None:
        key = (frame.publisher, frame.incarnation)
        self.confirmed[key] = max(self.confirmed.get(key, 0), frame.sequence)
        self.check_confirmed_are_there()
        last = EventId(*key, frame.sequence)
        (tick,) = [tick for tick, event_id in self.events.items() if event_id == last]
        assert tick <= frame.tick <= self.disk.synced, "the tick is not a synced one from it on"

    def check_confirmed_are_there(self) -> None:
        """Every confirmed event has exactly one tick, and it is synced."""
        ticks: dict[EventId, list[int]] = {}
        for tick, event_id in self.events.items():
            ticks.setdefault(event_id, []).append(tick)
        for found in ticks.values():
            assert len(found) == 1, "an event is in the log twice"
        for (publisher, incarnation), highest in self.confirmed.items():
            for sequence in range(1, highest + 1):
                found = ticks.get(EventId(publisher, incarnation, sequence), [])
                assert found, "a confirmed event is lost"
                assert found[0] <= self.disk.synced, "confirmed before it is synced"

    def _check_emit(self, emit: Emission) -> None:
        self.emits.append(emit)
        ticks = [datum.tick for datum in emit.data]
        ticks += [last for _, last in emit.silent] + [hole.last for hole in emit.withheld]
        assert max(ticks, default=0) <= self.disk.synced, "emitted before it is synced"
        assert emit.head <= self.disk.synced, "a head before it is synced"
        assert emit.mark in self.told_marks, "a mark that nobody was told"
        for datum in emit.data:
            assert decode_event(datum.body).id == self.events[datum.tick], "another event"
        for first, last in emit.silent:
            assert not [t for t in range(first, last + 1) if t in self.events], "false silence"

    def _check_offers(self, change: ChangeAdvertisements) -> None:
        """What comes was not there, and what goes was."""
        assert not self.offered & set(change.added)
        self.offered |= set(change.added)
        assert set(change.removed) <= self.offered
        self.offered -= set(change.removed)

    def _check_marked(self, marked: AnnounceMark) -> None:
        assert marked.mark <= self.disk.synced, "a mark before it is synced"
        assert marked.vector == self.vectors[marked.mark], "another vector"
        self.told_marks.append(marked.mark)
        assert self.told_marks == sorted(self.told_marks)
        if marked.mark == max(self.vectors):
            assert is_at_least(marked.vector, self.newest_vector), "a vector decreases"
            self.newest_vector = dict(marked.vector)

    def _check_forget(self, tick: int) -> None:
        assert "beginning" in self.disk.catalog.get("stream", {}), "deletes without a checkpoint"
        self.disk.forget(tick)
        self.forgotten = max(self.forgotten, tick)

    # -- what was said --------------------------------------------------------------------------

    def confirmations(self, session: int = 1) -> list[tuple[str, int, int]]:
        frames = [frame for to, frame in self.sent if to == session]
        return [
            (f.publisher, f.incarnation, f.sequence) for f in frames if isinstance(f, Confirmed)
        ]

    def refusals(self, session: int = 1) -> list[PublishRefused]:
        return [f for to, f in self.sent if to == session and isinstance(f, PublishRefused)]


def data_of(asks: Iterable[PartRequest]) -> list[Datum]:
    return [datum for ask in asks if isinstance(ask, Emission) for datum in ask.data]


def ticks_of(asks: Iterable[PartRequest]) -> list[int]:
    return [datum.tick for datum in data_of(asks)]


def emits_in(asks: Iterable[PartRequest]) -> list[Emission]:
    return [ask for ask in asks if isinstance(ask, Emission)]
