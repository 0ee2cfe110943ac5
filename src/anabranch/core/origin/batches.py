"""Batches: what was staged becomes part of the stream, all of a batch or nothing, once.

A commit names tokens, and what is staged with them becomes a batch of a sink. Theory of operation:

    commit ─► intent ─► synced ─► events, slice by slice ─► all synced ─► Committed, row: done
                                                                          chunks are deleted

From the moment that the intent is on disk the batch will be in the log, whoever dies: a start goes
on with every intent it finds, and what is in the log already is known by its id (`sinks`). Rules:

1. The intent is put and synced before the first event of its batch is appended. From then on the
   batch consists of these tokens, whatever is asked later.
2. Events go through the intake, at most `slice_events_max` and about `SLICE_BYTES_MAX` at a time,
   the next ones when these are synced; so other publishers go on, and a batch keeps its order among
   their events. Where the intake has no room, it is tried again after `AGAIN_S`. One chunk of all
   batches is decoded at a time.
3. When all are synced, whoever waits is told. Then the row is put as done, after it the chunks are
   deleted, and at last the row forgets its tokens: a crash keeps puts in their order, so an intent
   that is there has its chunks, or all its events are in the log. Chunks that a crash left behind
   are swept at the start. A sink that is idle takes the same room whatever it has written.
4. Batches of a sink ascend, one at a time. A commit of the batch under way waits for the same
   answer as those before; one of a batch that is over is told so. Tokens that it names and that
   are in no batch are dropped. A higher batch while one is under way is refused, and so is another
   query than the one that the sink began with. What a lower batch is told rests on the intent, so
   nobody is told before that is on disk.
5. A refused commit changes nothing.
6. Sinks and clients do not share names: the publisher of a sink's events is `sink/` and its name,
   and no client's name begins so. The number of its first batch, or of the next one, may lead this
   broker's clock (in ns) by `incarnation_lead_s`, so that no number is the last one for ever.
7. A broker that departs begins no batch, but ends those it intends to write.
8. Whoever knows a token may commit or discard it, and whoever knows sink and query may commit: the
   tasks, the driver and its successor are clients of different names.

State: intents are in the catalog, events in the log; who waits is safe to lose, and so is which
tokens were in batches that are done (the newest `stage_tokens_max` of these take no chunk).
"""

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator
from itertools import accumulate, islice

import msgspec
from msgspec.structs import replace

from anabranch.core import departure
from anabranch.core.catalog_recovery import rows
from anabranch.core.contract import Note, Put, Recovered, SendClient, earliest
from anabranch.core.options import Options
from anabranch.core.origin.ledger import CommitGroup, Ledger
from anabranch.core.origin.log_tail import AnyRecord, BlankRecord, EventRecord, decode_record
from anabranch.core.origin.publish_intake import PublishIntake
from anabranch.core.origin.staged_events import (
    StagedChunk,
    StagedToken,
    StagedTokens,
    size_of,
)
from anabranch.core.part_requests import PartRequest
from anabranch.core.routing.contract import WorkDone
from anabranch.model.client_frames import (
    BUSY,
    DEPARTING,
    OTHER_BATCH,
    OTHER_QUERY,
    TOO_LARGE,
    UNKNOWN_TOKEN,
    Commit,
    Committed,
    Discard,
    Refused,
    Stage,
    Staged,
)
from anabranch.model.encoding import check_draft, decode_envelope, identified
from anabranch.model.errors import EventError, RemoteError
from anabranch.model.event import Count, EventId
from anabranch.model.frame_parts import Position
from anabranch.model.limits import STORED_LIMITS, Limits
from anabranch.model.names import SINK_PREFIX, check_name, check_optional_name

# Sinks: who commits batches into a stream, and how far each has got.
#
# A sink is a name under which one query writes numbered batches. Its row tells of the newest of
# them and is, until the batch is in the log, an *intent*: this batch consists of these tokens,
# whatever anybody says later. Rules:
#
# 1. The events of a batch are published by the sink itself: its name is their publisher, the number
#    of its batches so far is their incarnation, and their sequences count from 1 over the tokens in
#    the order given. So the log can tell which of them it has.
# 2. A row tells the ticks of a batch where the records are not read at a start any more. A crash
#    may keep a put and lose the appends that came with it: where a record says otherwise, the row
#    is wrong, and where the log has no event of the batch, so are its ticks.
# 3. Nobody is forgotten, because whoever is forgotten might commit a batch again. Where a row
#    cannot be read, the sink has its name still if it has published: nobody else gets it, and no
#    batch is committed under it again.
#
# Table `sinks`: sink → [query, batch, incarnation, tokens, count, done, first tick, last tick,
# prefixed].


TABLE = "sinks"
INCARNATION_MAX = 1 << 62
_NAME_BYTES_MAX = 65_535

_encoder = msgspec.msgpack.Encoder()


class SinkRow(msgspec.Struct, frozen=True, array_like=True):
    """One row of `sinks`: the newest batch."""

    query: str
    batch: Count
    incarnation: Count
    #: What it consists of; when it is done, those whose rows may still be there.
    tokens: tuple[str, ...]
    #: Its events.
    count: Count
    is_done: bool = False
    #: The ticks of the first and the last event; 0 if that is not known, or there is none.
    first: Position = 0
    last: Position = 0
    #: Whether the publisher of its events is called `sink/…`; in rows of version 0.1 it is not.
    is_prefixed: bool = False


_decoder = msgspec.msgpack.Decoder(SinkRow)


class Waiter(msgspec.Struct, frozen=True):
    """Who wants to hear that a batch is in the log."""

    session: int
    request: int
    was_known: bool


class PendingBatch:
    """A batch that is not in the log yet, or not all of it."""

    __slots__ = (
        "_chunks",
        "_starts",
        "appended",
        "first",
        "is_intended",
        "is_lost",
        "last",
        "tokens",
        "waiting",
    )

    def __init__(self, tokens: list[StagedToken]) -> None:
        self.tokens = tokens
        self._chunks = [chunk for token in tokens for chunk in token.chunks]
        #: The places of the first events of these, and at last how many events there are.
        self._starts = [*accumulate((chunk.events for chunk in self._chunks), initial=0)]
        #: Whether the intent is on disk: nothing is appended before.
        self.is_intended = False
        #: Whether staged events are missing, so that it can never be done.
        self.is_lost = False
        #: Sequences up to this one are in the log, synced or not.
        self.appended = 0
        self.first = 0
        self.last = 0
        self.waiting: list[Waiter] = []

    @property
    def count(self) -> int:
        """How many events are there, those in the log included."""
        return self._starts[-1]

    def locate(self, place: int) -> tuple[StagedChunk, int]:
        """The chunk that has the event of this place, and which one of it that is."""
        # The last of those that start there: the others have no events.
        index = bisect_right(self._starts, place) - 1
        return self._chunks[index], place - self._starts[index]

    def note(self, tick: int) -> None:
        """The next event is in the log."""
        self.appended += 1
        self.first = self.first or tick
        self.last = tick


class SinkState:
    """One sink: its newest batch, and what is to be done for it."""

    __slots__ = ("name", "row", "work")

    def __init__(self, name: str, row: SinkRow, work: PendingBatch | None = None) -> None:
        self.name = name
        self.row = row
        #: None if the newest batch is done.
        self.work = work

    @property
    def key(self) -> tuple[str, int]:
        """Publisher and incarnation of its newest events."""
        publisher = SINK_PREFIX + self.name if self.row.is_prefixed else self.name
        return publisher, self.row.incarnation

    def put(self, row: SinkRow) -> Put:
        """This is its row from now on."""
        self.row = row
        return Put(TABLE, self.name, _encoder.encode(row))


def stored_sinks(recovered: Recovered) -> dict[str, SinkState]:
    """All sinks, as the catalog has them; none has its work yet."""
    last = recovered.last_tick

    def read(name: str, value: bytes) -> SinkState:
        check_name(name, "the sink", _NAME_BYTES_MAX)
        row = _decoder.decode(value)
        if row.is_done and row.last > last:
            raise ValueError(f"its batch ends with tick {row.last}, and the log with {last}")
        if row.incarnation > INCARNATION_MAX:
            raise ValueError(f"there were never {row.incarnation} batches")
        return SinkState(name, row)

    return rows(recovered, TABLE, read)


def find_ticks(recovered: Recovered, sinks: Iterable[SinkState]) -> dict[str, tuple[int, int]]:
    """Sink → the ticks of the first and the last record of its newest batch, of those that are
    read at a start."""
    wanted = {sink.key: sink.name for sink in sinks}
    found: dict[str, tuple[int, int]] = {}
    first_tick = recovered.records_first or recovered.first_tick
    for tick, data in enumerate(recovered.records if wanted else (), first_tick):
        event_id = _id_in(decode_record(data))
        if event_id is None:
            continue
        name = wanted.get((event_id.publisher, event_id.incarnation))
        if name is not None:
            first = tick if event_id.sequence == 1 else 0
            found[name] = (found.get(name, (first, 0))[0], tick)
    return found


def _id_in(record: AnyRecord) -> EventId | None:
    if isinstance(record, EventRecord):
        return decode_envelope(record.body, STORED_LIMITS).id
    return record.id if isinstance(record, BlankRecord) else None


SLICE_BYTES_MAX = 1_048_576
AGAIN_S = 0.1
#: Requests that may wait for one batch.
COMMITS_WAITING_MAX = 256
#: Batches under way; every sync looks at all of them.
UNDER_WAY_MAX = 1_024

#: Why not, and the code of that.
No = tuple[str, str]


class Batches:
    """The sinks of one origin. See the rules at the top of this module."""

    __slots__ = (
        "_busy",
        "_decoded",
        "_intake",
        "_lead_ns",
        "_ledger",
        "_sinks",
        "_sinks_max",
        "_slice_events_max",
        "_spent",
        "_spent_max",
        "_taken",
        "_tokens",
        "again_at",
        "committed",
        "written",
    )

    def __init__(
        self,
        ledger: Ledger,
        intake: PublishIntake,
        tokens: StagedTokens,
        recovered: Recovered,
        options: Options,
    ) -> None:
        self._ledger = ledger
        self._intake = intake
        self._tokens = tokens
        self._slice_events_max = options.slice_events_max
        self._sinks_max = options.publishers_max
        self._lead_ns = int(options.incarnation_lead_s * 1e9)
        self._sinks = stored_sinks(recovered)
        #: Those with a batch under way.
        self._busy: dict[str, SinkState] = {}
        #: The chunk whose events were appended last, with all of its events.
        self._decoded: tuple[StagedChunk, list[bytes]] | None = None
        #: Tokens of these, and the newest ones of batches that are done.
        self._taken: set[str] = set()
        self._spent: dict[str, None] = {}
        self._spent_max = options.stage_tokens_max
        #: Batches that were done in this life, and events that were appended for any.
        self.committed = 0
        self.written = 0
        #: When to look for room again.
        self.again_at: float | None = None
        self._recover(recovered)

    def _recover(self, recovered: Recovered) -> None:
        """Find the intents again, and how much of each the log has."""
        undone = [sink for sink in self._sinks.values() if not sink.row.is_done]
        ticks = find_ticks(recovered, undone)
        for sink in undone:
            self._busy[sink.name] = sink
            self._taken.update(sink.row.tokens)
            sink.work = work = PendingBatch(self._tokens.take(sink.row.tokens))
            work.appended = self._ledger.publishers.taken(sink.key)
            if work.appended:
                first, last = ticks.get(sink.name, (0, 0))
                work.first, work.last = first or sink.row.first, last or sink.row.last

    @property
    def is_busy(self) -> bool:
        """Whether a batch is under way."""
        return bool(self._busy)

    @property
    def newest(self) -> int:
        """The last tick of a batch, of those that are done."""
        return max((sink.row.last for sink in self._sinks.values()), default=0)

    @property
    def sinks(self) -> int:
        """How many there are."""
        return len(self._sinks)

    def under_way(self) -> Iterable[SinkState]:
        """The sinks with a batch under way."""
        return self._busy.values()

    def owns(self, token: str) -> bool:
        """Whether a batch has this token, or had it not long ago."""
        return token in self._taken or token in self._spent

    def started(self, now: float) -> list[PartRequest]:
        """What was recovered is on disk: sweep what is left over, and go on with every intent."""
        asks: list[PartRequest] = []
        for sink in self._sinks.values():
            if sink.row.is_done and sink.row.tokens:
                asks += self.drop(sink.row.tokens)
                asks.append(sink.put(replace(sink.row, tokens=())))
                self._ledger.commit.gathering.is_dirty = True
        for sink in self._busy.values():
            work, row = sink.work, sink.row
            assert work is not None
            if work.appended < row.count and work.count != row.count:
                work.is_lost = True
                text = f"sink {sink.name!r}: {_lost(sink)}"
                asks.append(Note("error", f"{text}; restore the catalog, or go on with another"))
                continue
            work.is_intended = True
            if work.appended:
                # The records that say so may not be read by the next start.
                asks.append(sink.put(replace(row, first=work.first, last=work.last)))
        return asks + self.go_on(now)

    def left(self, session: int) -> None:
        """A session is over."""
        for sink in self._busy.values():
            if sink.work is not None:
                waiting = sink.work.waiting
                sink.work.waiting = [each for each in waiting if each.session != session]

    def drop(self, names: Iterable[str]) -> list[PartRequest]:
        """Forget what is staged with these tokens, as far as no batch has taken it."""
        puts = self._tokens.drop(self._tokens.take(names))
        self._ledger.commit.gathering.is_dirty |= bool(puts)
        return [*puts]

    # -- commits --------------------------------------------------------------------------------

    def commit(self, now: float, session: int, frame: Commit, asks: list[PartRequest]) -> No | None:
        """A client commits a batch; why that cannot be, or None."""
        sink = self._sinks.get(frame.sink)
        if sink is None:
            return self._intend(now, session, frame, asks)
        row, work = sink.row, sink.work
        if frame.query != row.query:
            whose = f"the sink {frame.sink!r} belongs to the query {row.query!r}"
            return f"{whose}, not to {frame.query!r}; give each query a sink", OTHER_QUERY
        if frame.batch < row.batch and work is not None and not work.is_intended:
            return f"batch {row.batch} of {frame.sink!r} begins; ask again", BUSY
        if frame.batch < row.batch or (frame.batch == row.batch and work is None):
            ticks = (row.first, row.last) if frame.batch == row.batch else (0, 0)
            asks += self.drop(frame.tokens)
            known = Committed(frame.request, frame.sink, frame.batch, *ticks, was_known=True)
            asks.append(SendClient(session, known))
            return None
        if work is None:
            return self._intend(now, session, frame, asks)
        if frame.batch != row.batch:
            text = f"batch {row.batch} of {frame.sink!r} is under way; commit it again, and then"
            return f"{text} {frame.batch}", OTHER_BATCH
        if work.is_lost:
            return f"{_lost(sink)}; go on with another sink", UNKNOWN_TOKEN
        if len(work.waiting) >= COMMITS_WAITING_MAX:
            return f"{len(work.waiting)} requests wait for batch {row.batch} already", BUSY
        asks += self.drop(frame.tokens)
        work.waiting.append(Waiter(session, frame.request, was_known=True))
        return None

    def _intend(
        self, now: float, session: int, frame: Commit, asks: list[PartRequest]
    ) -> No | None:
        """A batch begins."""
        no = self._no_batch(now, frame) or self._no_sink(now, session, frame.sink)
        if no is not None:
            return no
        work = PendingBatch(self._tokens.take(frame.tokens))
        work.waiting.append(Waiter(session, frame.request, was_known=False))
        sink = self._sinks.get(frame.sink)
        incarnation = 1 if sink is None else sink.row.incarnation + 1
        what = (frame.query, frame.batch, incarnation, frame.tokens, work.count)
        row = SinkRow(*what, is_prefixed=True)
        if sink is None:
            self._intake.brings(session)
            sink = self._sinks[frame.sink] = SinkState(frame.sink, row)
        self._taken.update(frame.tokens)
        sink.work = work
        self._busy[frame.sink] = sink
        asks.append(sink.put(row))
        gathering = self._ledger.commit.gathering
        gathering.is_dirty = True
        gathering.intended.append(frame.sink)
        return None

    def _no_batch(self, now: float, frame: Commit) -> No | None:
        """Why a batch cannot begin."""
        if self._intake.is_departing:
            return departure.REASON, DEPARTING
        if self._intake.is_full:
            return "the disk has no room; commit again later", BUSY
        if len(self._busy) >= UNDER_WAY_MAX:
            return f"{len(self._busy)} batches are under way; commit again later", BUSY
        if len(set(frame.tokens)) != len(frame.tokens):
            return "a token is named twice; name each of them once", ""
        for name in frame.tokens:
            token = self._tokens.find(name)
            if token is None or not token.is_complete:
                what = "not staged here, or was dropped" if token is None else "not complete"
                return f"{name!r} is {what}; stage it anew with another token", UNKNOWN_TOKEN
        clock_ns = self._ledger.time_ns(now)
        if frame.batch > clock_ns + self._lead_ns:
            text = f"batch {frame.batch} is beyond this broker's clock, which is at {clock_ns} ns"
            return f"{text}; number batches by counting, or by a clock that is right", ""
        return None

    def _no_sink(self, now: float, session: int, name: str) -> No | None:
        """Why this session cannot make a sink of this name; None if it can, or there is one."""
        if name in self._sinks:
            return None
        # A sink whose batches are empty is no publisher, but remembered as well.
        if len(self._sinks) >= self._sinks_max:
            return f"{len(self._sinks)} sinks are remembered here, and no more can be", ""
        first = EventId(SINK_PREFIX + name, 1, 1)
        if first.publisher in self._ledger.publishers:
            return f"the newest batch of {name!r} is not known any longer; use another sink", ""
        refusal = self._ledger.publishers.refusal(first, self._ledger.time_ns(now))
        refusal = refusal or self._intake.no_name(session)
        return None if refusal is None else (refusal.reason, "")

    # -- the log --------------------------------------------------------------------------------

    def intended(self, names: Iterable[str]) -> None:
        """The intents of these sinks are on disk."""
        for name in names:
            work = self._busy[name].work
            assert work is not None
            work.is_intended = True

    def go_on(self, now: float) -> list[PartRequest]:
        """Do what can be done for every batch under way."""
        asks: list[PartRequest] = []
        self.again_at = None
        for sink in list(self._busy.values()):
            asks += self._advance(now, sink)
        return asks

    def _advance(self, now: float, sink: SinkState) -> list[PartRequest]:
        """The next slice of a batch, or its end; nothing while the disk is at it."""
        work = sink.work
        assert work is not None
        if not work.is_intended or work.appended > self._ledger.publishers.safe(sink.key):
            return []
        if work.appended < sink.row.count:
            return self._append(now, sink, work)
        return self._finish(sink, work)

    def _append(self, now: float, sink: SinkState, work: PendingBatch) -> list[PartRequest]:
        asks: list[PartRequest] = []
        before, size = work.appended, 0
        for draft in self._drafts(work, self._slice_events_max):
            if self._intake.no_room(asks) is not None:
                self.again_at = now + AGAIN_S
                break
            body = identified(draft, EventId(*sink.key, work.appended + 1))
            work.note(self._intake.append(now, decode_envelope(body, STORED_LIMITS), asks))
            size += len(body)
            if size >= SLICE_BYTES_MAX:
                break
        if work.appended > before:
            asks += self._intake.offers.batch_written(now)
        self.written += work.appended - before
        is_all = work.appended == sink.row.count
        if work.appended > before and (before == 0 or is_all):
            asks.append(sink.put(replace(sink.row, first=work.first, last=work.last)))
        return asks

    def _drafts(self, work: PendingBatch, events_max: int) -> Iterator[bytes]:
        """The next events of a batch."""
        place, end = work.appended, min(work.appended + events_max, work.count)
        while place < end:
            chunk, first = work.locate(place)
            if self._decoded is None or self._decoded[0] is not chunk:
                self._decoded = chunk, chunk.drafts()
            drafts = self._decoded[1][first : first + end - place]
            yield from drafts
            place += len(drafts)

    def _finish(self, sink: SinkState, work: PendingBatch) -> list[PartRequest]:
        """All events of a batch are safe."""
        tokens = sink.row.tokens
        done = replace(sink.row, is_done=True, first=work.first, last=work.last)
        asks: list[PartRequest] = [sink.put(done), *self._tokens.drop(work.tokens)]
        asks.append(sink.put(replace(done, tokens=())))
        asks += _told(sink, work)
        self._ledger.commit.gathering.is_dirty = True
        sink.work = self._decoded = None
        del self._busy[sink.name]
        self._spend(tokens)
        self.committed += 1
        return asks

    def _spend(self, tokens: Iterable[str]) -> None:
        """Remember for a while that these were in a batch: a chunk that comes late is in vain."""
        self._taken.difference_update(tokens)
        self._spent.update(dict.fromkeys(tokens))
        for name in list(islice(self._spent, max(len(self._spent) - self._spent_max, 0))):
            del self._spent[name]


def _lost(sink: SinkState) -> str:
    row = sink.row
    return f"staged events of batch {row.batch} are lost: it stays undone"


def _told(sink: SinkState, work: PendingBatch) -> list[PartRequest]:
    """Whoever waits is told that a batch is in the log."""
    waiting, work.waiting = work.waiting, []
    row = sink.row
    what = (sink.name, row.batch, row.first, row.last)
    return [
        SendClient(who.session, Committed(who.request, *what, who.was_known)) for who in waiting
    ]


_REASON_CHARACTERS_MAX = 1_000
#: Answers that wait for the disk.
STAGES_WAITING_MAX = 4_096

#: What checking an event costs, and how many of its bytes cost one more.
_DRAFT_WORK = 3
_DRAFT_BYTES = 16
#: What is checked of a chunk before others may have their turn.
_SLICE_WORK = 2_000

ForStaging = Stage | Commit | Discard


def _work_of(drafts: list[bytes]) -> int:
    return _DRAFT_WORK * len(drafts) + sum(map(len, drafts)) // _DRAFT_BYTES


class StagingArea:
    """Staging: events that are brought for a later commit. This is the door for all of it.

    Many tasks stage events with tokens of their own, in chunks (`tokens`); then one commit names
    the tokens, and they become a batch of a sink (`batches`). Rules:

    1. A chunk is answered when it is on disk. It is taken whole or refused, and a refusal changes
       nothing.
    2. Its events are checked as if they were published, and one that is none is named by its
       position. They have no ids until they are committed. Many are checked in slices, and nothing
       else happens before the chunk is taken or refused.
    3. A chunk that comes again is answered again, if it is the same. If it is another one, two
       tasks use one token, and the later one is refused.
    4. A token of a batch takes no further chunks.
    5. What is not taken for lack of room has the code `busy`, and may be sent again; a token that
       is more than all that may be staged has not, since it would be in vain. What waits for the
       disk is bounded too: answers by `STAGES_WAITING_MAX`, bytes by `unsynced_bytes_max`, so that
       neither a slow disk nor others' confirmations suffer from a flood of chunks. A chunk that
       lacks those before it has the code `unknown-token`: if they are still to come, it may follow
       them; if they were here, they were dropped, and it is in vain.

    State: that of the parts; see there.
    """

    def __init__(
        self,
        ledger: Ledger,
        intake: PublishIntake,
        options: Options,
        limits: Limits,
        recovered: Recovered,
        *,
        now: float,
    ) -> None:
        self._ledger = ledger
        self._intake = intake
        self._options = options
        self._limits = limits
        self._tokens = StagedTokens(recovered, options, now)
        self.batches = Batches(ledger, intake, self._tokens, recovered, options)
        #: Chunks whose answers wait for the disk, and bytes of those that are new.
        self._waiting = 0
        self._waiting_bytes = 0

    @property
    def tokens(self) -> int:
        """Tokens that nobody has committed."""
        return self._tokens.count

    @property
    def size(self) -> int:
        """Bytes that are staged, those of batches under way included."""
        return self._tokens.size

    def frame(
        self, now: float, session: int, frame: ForStaging, client: str
    ) -> Iterable[PartRequest]:
        """A client wants something. A chunk of many events is checked in slices."""
        if isinstance(frame, Discard):
            return self.batches.drop(frame.tokens)
        answer = self._answer(now, session, frame, client)
        is_long = isinstance(frame, Stage) and _work_of(frame.bodies) > _SLICE_WORK
        return answer if is_long else list(answer)

    def _answer(
        self, now: float, session: int, frame: Stage | Commit, client: str
    ) -> Iterator[PartRequest]:
        asks: list[PartRequest] = []
        try:
            if isinstance(frame, Stage):
                check_name(frame.token, "token", self._limits.name_bytes_max)
                no = yield from self._stage(now, session, frame, asks, client)
            else:
                bytes_max = self._limits.name_bytes_max - len(SINK_PREFIX)
                check_name(frame.sink, "sink", bytes_max)
                check_optional_name(frame.query, "query", self._limits.name_bytes_max)
                no = self.batches.commit(now, session, frame, asks)
        except EventError as error:
            no = (str(error), "")
        if no is not None:
            reason, code = no
            refused = Refused(frame.request, reason[:_REASON_CHARACTERS_MAX], code)
            asks.append(SendClient(session, refused))
        yield from asks

    def _stage(
        self, now: float, session: int, frame: Stage, asks: list[PartRequest], client: str
    ) -> Generator[WorkDone, None, No | None]:
        name, index, drafts = frame.token, frame.index, frame.bodies
        if self.batches.owns(name):
            return f"what is staged as {name!r} was committed; choose another token", ""
        if self._waiting >= STAGES_WAITING_MAX:
            return f"{self._waiting} chunks wait for the disk; stage again later", BUSY
        token = self._tokens.find(name)
        expected = 0 if token is None else len(token.chunks)
        gathering = self._ledger.commit.gathering
        if token is not None and index < expected:
            is_last = token.is_complete and index == expected - 1
            if token.chunks[index].drafts() != drafts or is_last != frame.is_last:
                return f"another chunk {index} of {name!r} is here already; choose a new token", ""
        elif token is not None and token.is_complete:
            return f"{name!r} is complete with {expected} chunks; choose another token", ""
        elif index > expected:
            text = f"chunk {expected} of {name!r} is not here, or not any more"
            return f"{text}; stage it anew with another token", UNKNOWN_TOKEN
        elif no := self._no_room(name, drafts, client):
            return no
        elif bad := (yield from self._bad(drafts)):
            return f"chunk {index} of {name!r}: {bad}", ""
        else:
            asks.append(self._tokens.add(now, name, drafts, frame.is_last, client))
            gathering.staged_bytes += size_of(drafts)
            self._waiting_bytes += size_of(drafts)
        gathering.is_dirty = True
        gathering.staged.append((session, frame.request))
        self._waiting += 1
        return None

    def _no_room(self, name: str, drafts: list[bytes], client: str) -> No | None:
        if self._intake.is_departing:
            return departure.REASON, DEPARTING
        if self._intake.is_full:
            return "the disk has no room; stage again later", BUSY
        if self._tokens.never_fits(name, drafts):
            quota = min(
                (self._options.stage_bytes_max, "stage_bytes_max"),
                (self._options.client_stage_bytes_max, "client_stage_bytes_max"),
            )
            text = f"{name!r} has more than {quota[0]} bytes, which is all that a client may stage"
            return f"{text} ({quota[1]}); stage less with a token", TOO_LARGE
        if self._waiting_bytes > self._options.unsynced_bytes_max:
            return "the disk is behind: too much waits for it; stage again later", BUSY
        full = self._tokens.why_full(name, drafts, client)
        return (f"{full}; commit or discard some, or stage again later", BUSY) if full else None

    def _bad(self, drafts: list[bytes]) -> Generator[WorkDone, None, str]:
        work = 0
        for place, draft in enumerate(drafts):
            try:
                check_draft(draft, self._limits)
            except RemoteError as error:
                return f"event {place}: {error}"
            work += _DRAFT_WORK + len(draft) // _DRAFT_BYTES
            if work > _SLICE_WORK:
                yield WorkDone(work)
                work = 0
        return ""

    def left(self, session: int) -> None:
        """A session is over."""
        self.batches.left(session)

    # -- the disk and the clock -----------------------------------------------------------------

    def started(self, now: float) -> list[PartRequest]:
        """What was recovered is on disk."""
        return self.batches.started(now)

    def synced(self, now: float, batch: CommitGroup) -> list[PartRequest]:
        """What the disk was given with this is safe; the intake has been told."""
        asks: list[PartRequest] = [
            SendClient(session, Staged(number)) for session, number in batch.staged
        ]
        self._waiting -= len(batch.staged)
        self._waiting_bytes -= batch.staged_bytes
        self.batches.intended(batch.intended)
        return asks + self.batches.go_on(now)

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        return earliest(self.batches.again_at, self._tokens.old_at())

    def time_passed(self, now: float) -> list[PartRequest]:
        """A deadline may have come."""
        asks: list[PartRequest] = []
        old = self._tokens.old(now)
        if old:
            asks += self.batches.drop(old)
            what = f"{len(old)} tokens were dropped, {old[0]!r} the first"
            kept_s = self._options.stage_keep_s
            asks.append(Note("warning", f"{what}: not committed within {kept_s:g} s"))
        again_at = self.batches.again_at
        if again_at is not None and again_at <= now:
            asks += self.batches.go_on(now)
        return asks
