"""Batches: staged events become part of the stream atomically and exactly once.

Clients stage events under tokens; a commit names tokens, and their events become a batch of a sink.

    commit ─► intent ─► synced ─► events, slice by slice ─► all synced ─► Committed, row: done
                                                                          chunks are deleted

Once the intent is on disk, the batch will be in the log even after a crash: a start resumes every
intent that it finds, and recognises events that are already in the log by their id (`SinkState`).

Rules

1. Intent. The intent is written and synced before the first event of its batch is appended. From
   then on the batch consists of these tokens, regardless of later requests.
2. Slices. Events go through the intake, at most `slice_events_max` and about `SLICE_BYTES_MAX` at a
   time, the next ones when these are synced. So other publishers continue, and a batch keeps its
   order among their events. When the intake has no space, the broker retries after `RETRY_S`. One
   chunk of all batches is decoded at a time.
3. Completion. When all events are synced, waiting clients are informed. Then the row is written as
   done, then the chunks are deleted, and finally the row drops its tokens. A crash keeps puts in
   their order, so a surviving intent has its chunks, or all its events are in the log. Chunks left
   over from a crash are deleted at the start. The memory of an idle sink does not depend on how
   much it has written.
4. Order. Batches of a sink ascend, one at a time. A commit of the batch in progress waits for the
   same reply as earlier ones; a commit of a completed batch is answered at once. Tokens that it
   names and that are in no batch are dropped. A higher batch is refused while another is in
   progress, and so is a query other than the sink's first one. The reply about a lower batch
   depends on the intent, so none is sent before the intent is on disk.
5. A refused commit changes nothing.
6. Names. Sinks and clients do not share names: the publisher of a sink's events is `sink/` plus its
   name, and no client's name begins with that. The number of a new batch may be ahead of this
   broker's clock (in ns) by at most `incarnation_lead_s`, so that no number exhausts the sequence.
7. A departing broker starts no batch, but completes those whose intent is on disk.
8. Any client that knows a token may commit or discard it, and any client that knows the sink and
   the query may commit: the tasks, the driver and its successor are clients with different names.

State: intents are in the catalog, events in the log. Waiting clients are safe to lose, and so is
the record of tokens of completed batches (the newest `stage_tokens_max` of them accept no chunk).
"""

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator
from itertools import accumulate, islice

import msgspec
from msgspec.structs import replace

from anabranch.core.catalog_recovery import rows
from anabranch.core.contract import DEPARTURE_REASON, Note, Put, Recovered, SendClient, earliest
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

TABLE = "sinks"
INCARNATION_MAX = 1 << 62
_NAME_BYTES_MAX = 65_535

_encoder = msgspec.msgpack.Encoder()


class SinkRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of the table `sinks`: the newest batch of a sink."""

    query: str
    batch: Count
    incarnation: Count
    #: Its tokens; once it is done, those whose rows may still exist.
    tokens: tuple[str, ...]
    #: Number of its events.
    count: Count
    is_done: bool = False
    #: The ticks of the first and the last event; 0 if unknown, or if there are none.
    first: Position = 0
    last: Position = 0
    #: Whether the publisher of its events is `sink/…`; false in rows of version 0.1.
    is_prefixed: bool = False


_decoder = msgspec.msgpack.Decoder(SinkRow)


class WaitingCommit(msgspec.Struct, frozen=True):
    """A commit request that waits until its batch is in the log."""

    session: int
    request: int
    was_known: bool


class PendingBatch:
    """A batch that is not yet completely in the log."""

    __slots__ = (
        "_chunks",
        "_starts",
        "appended",
        "commits",
        "first",
        "is_intended",
        "is_lost",
        "last",
        "tokens",
    )

    def __init__(self, tokens: list[StagedToken]) -> None:
        self.tokens = tokens
        self._chunks = [chunk for token in tokens for chunk in token.chunks]
        #: The position of each chunk's first event, and finally the number of events.
        self._starts = [*accumulate((chunk.events for chunk in self._chunks), initial=0)]
        #: The intent is on disk: nothing is appended before.
        self.is_intended = False
        #: Staged events are missing, so the batch can never be completed.
        self.is_lost = False
        #: Events up to this sequence are in the log, synced or not.
        self.appended = 0
        self.first = 0
        self.last = 0
        self.commits: list[WaitingCommit] = []

    @property
    def count(self) -> int:
        """The number of its events, including those in the log."""
        return self._starts[-1]

    def locate(self, place: int) -> tuple[StagedChunk, int]:
        """The chunk that contains the event at this position, and its index in the chunk."""
        # The last chunk that starts there: any others are empty.
        index = bisect_right(self._starts, place) - 1
        return self._chunks[index], place - self._starts[index]

    def record(self, tick: int) -> None:
        """Record that the next event is in the log."""
        self.appended += 1
        self.first = self.first or tick
        self.last = tick


class SinkState:
    """A sink: a name under which one query writes numbered batches.

    Its row describes the newest batch. Until the batch is in the log, the row is an *intent*: this
    batch consists of these tokens, regardless of later requests.

    Rules

    1. The sink itself publishes the events of a batch: its name is their publisher, the number of
       its batches so far is their incarnation, and their sequences count from 1 over the tokens in
       the given order. So the log can tell which of them it has.
    2. The row records the ticks of a batch, for starts that no longer read its records. A crash may
       keep a put and lose the appends that came with it: if a record contradicts the row, the row
       is wrong, and if the log has no event of the batch, so are the row's ticks.
    3. Sinks are never deleted, because a deleted sink might commit a batch again. If a row cannot
       be read but the sink has published, its name stays reserved: no other sink gets it, and no
       batch is committed under it again.

    Table `sinks`: sink → [query, batch, incarnation, tokens, count, done, first tick, last tick,
    prefixed].
    """

    __slots__ = ("name", "pending", "row")

    def __init__(self, name: str, row: SinkRow, pending: PendingBatch | None = None) -> None:
        self.name = name
        self.row = row
        #: The batch in progress; None if the newest batch is done.
        self.pending = pending

    @property
    def key(self) -> tuple[str, int]:
        """Publisher and incarnation of its newest events."""
        publisher = SINK_PREFIX + self.name if self.row.is_prefixed else self.name
        return publisher, self.row.incarnation

    def put(self, row: SinkRow) -> Put:
        self.row = row
        return Put(TABLE, self.name, _encoder.encode(row))


def stored_sinks(recovered: Recovered) -> dict[str, SinkState]:
    """All sinks in the catalog, without their pending batches."""
    last = recovered.last_tick

    def read(name: str, value: bytes) -> SinkState:
        check_name(name, "the sink", _NAME_BYTES_MAX)
        row = _decoder.decode(value)
        if row.is_done and row.last > last:
            raise ValueError(f"its batch ends with tick {row.last}, but the log with {last}")
        if row.incarnation > INCARNATION_MAX:
            raise ValueError(f"{row.incarnation} is not a possible number of batches")
        return SinkState(name, row)

    return rows(recovered, TABLE, read)


def find_ticks(recovered: Recovered, sinks: Iterable[SinkState]) -> dict[str, tuple[int, int]]:
    """Sink → the ticks of the first and the last record of its newest batch, among the records that
    a start reads."""
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
RETRY_S = 0.1
#: Requests that may wait for one batch.
COMMITS_WAITING_MAX = 256
#: Batches in progress; every sync examines all of them.
BATCHES_IN_PROGRESS_MAX = 1_024

#: The reason of a refusal, and its code.
Refusal = tuple[str, str]


class SinkBatches:
    """The sinks of one origin. See the rules at the top of this module."""

    __slots__ = (
        "_batch_tokens",
        "_busy",
        "_decoded",
        "_finished_tokens",
        "_finished_tokens_max",
        "_intake",
        "_lead_ns",
        "_ledger",
        "_sinks",
        "_sinks_max",
        "_slice_events_max",
        "_tokens",
        "committed",
        "retry_at",
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
        #: Sinks with a batch in progress.
        self._busy: dict[str, SinkState] = {}
        #: The chunk whose events were appended last, with all of its decoded events.
        self._decoded: tuple[StagedChunk, list[bytes]] | None = None
        #: Tokens of batches in progress, and the newest tokens of completed ones.
        self._batch_tokens: set[str] = set()
        self._finished_tokens: dict[str, None] = {}
        self._finished_tokens_max = options.stage_tokens_max
        #: Batches completed in this life, and events appended for batches.
        self.committed = 0
        self.written = 0
        #: When to retry after the intake had no space.
        self.retry_at: float | None = None
        self._recover(recovered)

    def _recover(self, recovered: Recovered) -> None:
        """Find the intents, and how many events of each the log has."""
        own = (sink.name for sink in self._sinks.values() if not sink.row.is_prefixed)
        self._ledger.publishers.exempt(own)
        undone = [sink for sink in self._sinks.values() if not sink.row.is_done]
        ticks = find_ticks(recovered, undone)
        for sink in undone:
            self._busy[sink.name] = sink
            self._batch_tokens.update(sink.row.tokens)
            sink.pending = batch = PendingBatch(self._tokens.take(sink.row.tokens))
            batch.appended = self._ledger.publishers.appended(sink.key)
            if batch.appended:
                first, last = ticks.get(sink.name, (0, 0))
                batch.first, batch.last = first or sink.row.first, last or sink.row.last

    @property
    def is_busy(self) -> bool:
        return bool(self._busy)

    @property
    def newest(self) -> int:
        """The newest tick of a completed batch."""
        return max((sink.row.last for sink in self._sinks.values()), default=0)

    @property
    def sinks(self) -> int:
        return len(self._sinks)

    def in_progress(self) -> Iterable[SinkState]:
        return self._busy.values()

    def owns(self, token: str) -> bool:
        """Whether a batch has this token, or had it recently."""
        return token in self._batch_tokens or token in self._finished_tokens

    def started(self, now: float) -> list[PartRequest]:
        """The recovered state is on disk: delete leftover chunks, and resume every intent."""
        requests: list[PartRequest] = []
        for sink in self._sinks.values():
            if sink.row.is_done and sink.row.tokens:
                requests += self.drop(sink.row.tokens)
                requests.append(sink.put(replace(sink.row, tokens=())))
                self._ledger.commit.add_write()
        for sink in self._busy.values():
            batch, row = sink.pending, sink.row
            assert batch is not None
            if batch.appended < row.count and batch.count != row.count:
                batch.is_lost = True
                text = f"sink {sink.name!r}: {_lost_reason(sink)}"
                requests.append(
                    Note("error", f"{text}; restore the catalog, or continue with another sink")
                )
                continue
            batch.is_intended = True
            if batch.appended:
                # The next start may not read the records that contain this.
                requests.append(sink.put(replace(row, first=batch.first, last=batch.last)))
        return requests + self.advance(now)

    def session_closed(self, session: int) -> None:
        for sink in self._busy.values():
            if sink.pending is not None:
                waiting = sink.pending.commits
                sink.pending.commits = [waiter for waiter in waiting if waiter.session != session]

    def drop(self, names: Iterable[str]) -> list[PartRequest]:
        """Drop the events staged under these tokens, unless a batch has taken them."""
        puts = self._tokens.drop(self._tokens.take(names))
        if puts:
            self._ledger.commit.add_write()
        return [*puts]

    # -- commits --------------------------------------------------------------------------------

    def commit(
        self, now: float, session: int, frame: Commit, requests: list[PartRequest]
    ) -> Refusal | None:
        """Process a commit; returns the refusal, or None."""
        sink = self._sinks.get(frame.sink)
        if sink is None:
            return self._start_batch(now, session, frame, requests)
        row, batch = sink.row, sink.pending
        if frame.query != row.query:
            whose = f"sink {frame.sink!r} belongs to the query {row.query!r}"
            return f"{whose}, not to {frame.query!r}; give each query a sink", OTHER_QUERY
        if frame.batch < row.batch and batch is not None and not batch.is_intended:
            return f"batch {row.batch} of {frame.sink!r} is starting; commit again later", BUSY
        if frame.batch < row.batch or (frame.batch == row.batch and batch is None):
            ticks = (row.first, row.last) if frame.batch == row.batch else (0, 0)
            requests += self.drop(frame.tokens)
            known = Committed(frame.request, frame.sink, frame.batch, *ticks, was_known=True)
            requests.append(SendClient(session, known))
            return None
        if batch is None:
            return self._start_batch(now, session, frame, requests)
        if frame.batch != row.batch:
            text = f"batch {row.batch} of {frame.sink!r} is in progress; commit it again before"
            return f"{text} {frame.batch}", OTHER_BATCH
        if batch.is_lost:
            return f"{_lost_reason(sink)}; continue with another sink", UNKNOWN_TOKEN
        if len(batch.commits) >= COMMITS_WAITING_MAX:
            return f"{len(batch.commits)} requests already wait for batch {row.batch}", BUSY
        requests += self.drop(frame.tokens)
        batch.commits.append(WaitingCommit(session, frame.request, was_known=True))
        return None

    def _start_batch(
        self, now: float, session: int, frame: Commit, requests: list[PartRequest]
    ) -> Refusal | None:
        refusal = self._batch_refusal(now, frame) or self._sink_refusal(now, session, frame.sink)
        if refusal is not None:
            return refusal
        batch = PendingBatch(self._tokens.take(frame.tokens))
        batch.commits.append(WaitingCommit(session, frame.request, was_known=False))
        sink = self._sinks.get(frame.sink)
        incarnation = 1 if sink is None else sink.row.incarnation + 1
        what = (frame.query, frame.batch, incarnation, frame.tokens, batch.count)
        row = SinkRow(*what, is_prefixed=True)
        if sink is None:
            self._intake.count_new_name(session)
            sink = self._sinks[frame.sink] = SinkState(frame.sink, row)
        self._batch_tokens.update(frame.tokens)
        sink.pending = batch
        self._busy[frame.sink] = sink
        requests.append(sink.put(row))
        self._ledger.commit.add_intent(frame.sink)
        return None

    def _batch_refusal(self, now: float, frame: Commit) -> Refusal | None:
        if self._intake.is_departing:
            return DEPARTURE_REASON, DEPARTING
        if self._intake.is_full:
            return "the disk has no space; commit again later", BUSY
        if len(self._busy) >= BATCHES_IN_PROGRESS_MAX:
            return f"{len(self._busy)} batches are in progress; commit again later", BUSY
        if len(set(frame.tokens)) != len(frame.tokens):
            return "a token is named twice; name each token once", ""
        for name in frame.tokens:
            token = self._tokens.find(name)
            if token is None or not token.is_complete:
                what = "not staged here, or was dropped" if token is None else "not complete"
                return (
                    f"{name!r} is {what}; stage its events again with another token",
                    UNKNOWN_TOKEN,
                )
        clock_ns = self._ledger.time_ns(now)
        if frame.batch > clock_ns + self._lead_ns:
            text = f"batch {frame.batch} is ahead of this broker's clock, which is at {clock_ns} ns"
            return f"{text}; number batches consecutively, or by a correct clock", ""
        return None

    def _sink_refusal(self, now: float, session: int, name: str) -> Refusal | None:
        """Why this session cannot create a sink of this name; None if it can, or if it exists."""
        if name in self._sinks:
            return None
        # A sink whose batches are empty is not a publisher, but counts as well.
        if len(self._sinks) >= self._sinks_max:
            return f"{len(self._sinks)} sinks are on record here, the maximum (publishers_max)", ""
        first = EventId(SINK_PREFIX + name, 1, 1)
        if first.publisher in self._ledger.publishers:
            return f"the newest batch of {name!r} is no longer known; use another sink", ""
        publisher_refusal = self._ledger.publishers.refusal(first, self._ledger.time_ns(now))
        publisher_refusal = publisher_refusal or self._intake.name_refusal(session)
        return None if publisher_refusal is None else (publisher_refusal.reason, "")

    # -- the log --------------------------------------------------------------------------------

    def intents_synced(self, names: Iterable[str]) -> None:
        for name in names:
            batch = self._busy[name].pending
            assert batch is not None
            batch.is_intended = True

    def advance(self, now: float) -> list[PartRequest]:
        """Advance every batch in progress as far as possible."""
        requests: list[PartRequest] = []
        self.retry_at = None
        for sink in list(self._busy.values()):
            requests += self._advance_batch(now, sink)
        return requests

    def _advance_batch(self, now: float, sink: SinkState) -> list[PartRequest]:
        """Append the next slice of a batch or complete it; nothing while a sync is pending."""
        batch = sink.pending
        assert batch is not None
        if not batch.is_intended or batch.appended > self._ledger.publishers.synced(sink.key):
            return []
        if batch.appended < sink.row.count:
            return self._append(now, sink, batch)
        return self._finish(sink, batch)

    def _append(self, now: float, sink: SinkState, batch: PendingBatch) -> list[PartRequest]:
        requests: list[PartRequest] = []
        before, size = batch.appended, 0
        for draft in self._drafts(batch, self._slice_events_max):
            if self._intake.room_refusal(requests) is not None:
                self.retry_at = now + RETRY_S
                break
            body = identified(draft, EventId(*sink.key, batch.appended + 1))
            batch.record(self._intake.append(now, decode_envelope(body, STORED_LIMITS), requests))
            size += len(body)
            if size >= SLICE_BYTES_MAX:
                break
        if batch.appended > before:
            requests += self._intake.advertisements.batch_written(now)
        self.written += batch.appended - before
        is_all = batch.appended == sink.row.count
        if batch.appended > before and (before == 0 or is_all):
            requests.append(sink.put(replace(sink.row, first=batch.first, last=batch.last)))
        return requests

    def _drafts(self, batch: PendingBatch, events_max: int) -> Iterator[bytes]:
        """The next events of a batch."""
        place, end = batch.appended, min(batch.appended + events_max, batch.count)
        while place < end:
            chunk, first = batch.locate(place)
            if self._decoded is None or self._decoded[0] is not chunk:
                self._decoded = chunk, chunk.drafts()
            drafts = self._decoded[1][first : first + end - place]
            yield from drafts
            place += len(drafts)

    def _finish(self, sink: SinkState, batch: PendingBatch) -> list[PartRequest]:
        """All events of a batch are synced: complete it."""
        tokens = sink.row.tokens
        done = replace(sink.row, is_done=True, first=batch.first, last=batch.last)
        requests: list[PartRequest] = [sink.put(done), *self._tokens.drop(batch.tokens)]
        requests.append(sink.put(replace(done, tokens=())))
        requests += _replies(sink, batch)
        self._ledger.commit.add_write()
        sink.pending = self._decoded = None
        del self._busy[sink.name]
        self._record_finished(tokens)
        self.committed += 1
        return requests

    def _record_finished(self, tokens: Iterable[str]) -> None:
        """Record for a while that these tokens were in a batch, to refuse late chunks."""
        self._batch_tokens.difference_update(tokens)
        self._finished_tokens.update(dict.fromkeys(tokens))
        for name in list(
            islice(
                self._finished_tokens,
                max(len(self._finished_tokens) - self._finished_tokens_max, 0),
            )
        ):
            del self._finished_tokens[name]


def _lost_reason(sink: SinkState) -> str:
    row = sink.row
    return f"staged events of batch {row.batch} are lost: it stays incomplete"


def _replies(sink: SinkState, batch: PendingBatch) -> list[PartRequest]:
    waiting, batch.commits = batch.commits, []
    row = sink.row
    what = (sink.name, row.batch, row.first, row.last)
    return [
        SendClient(waiter.session, Committed(waiter.request, *what, waiter.was_known))
        for waiter in waiting
    ]


_REASON_CHARACTERS_MAX = 1_000
#: Replies that may wait for a sync.
STAGES_WAITING_MAX = 4_096

#: The cost of checking an event, and the number of bytes that add one to it.
_DRAFT_WORK = 3
_DRAFT_BYTES = 16
#: The cost of checking in one slice of a chunk.
_SLICE_WORK = 2_000

ForStaging = Stage | Commit | Discard


def _work_of(drafts: list[bytes]) -> int:
    return _DRAFT_WORK * len(drafts) + sum(map(len, drafts)) // _DRAFT_BYTES


class StagingArea:
    """Staging: events that clients send for a later commit, and the interface to batches.

    Many tasks stage events under their own tokens, in chunks (`staged_events`); then one commit
    names the tokens, and they become a batch of a sink.

    Rules

    1. A chunk is confirmed when it is on disk. It is accepted as a whole or refused, and a refusal
       changes nothing.
    2. Its events are checked as if they were published; the refusal names an invalid event by its
       position. Events have no ids until they are committed. A large chunk is checked in slices,
       and no other stimulus is processed before it is accepted or refused.
    3. A duplicate chunk is confirmed again. If its content differs, two tasks use the same token,
       and the later one is refused.
    4. A token that is in a batch accepts no further chunks.
    5. A chunk refused for lack of space has the code `busy` and may be sent again; a token that
       exceeds the whole staging quota has another code, because retrying is futile. Pending writes
       are bounded too, replies by `STAGES_WAITING_MAX` and bytes by `unsynced_bytes_max`, so that a
       flood of chunks neither overloads a slow disk nor delays the confirmations of others. A chunk
       that arrives before its predecessors has the code `unknown-token`: if they are still to come,
       it may follow them; if they were here, they were dropped, and it is futile.

    State: the parts own it.
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
        self.batches = SinkBatches(ledger, intake, self._tokens, recovered, options)
        #: Chunks whose replies wait for a sync, and the bytes of the new ones.
        self._unanswered_chunks = 0
        self._unsynced_bytes = 0

    @property
    def tokens(self) -> int:
        """Uncommitted tokens."""
        return self._tokens.count

    @property
    def size(self) -> int:
        """Staged bytes, including those of batches in progress."""
        return self._tokens.size

    def frame(
        self, now: float, session: int, frame: ForStaging, client: str
    ) -> Iterable[PartRequest]:
        """Process a staging frame; a chunk of many events is checked in slices."""
        if isinstance(frame, Discard):
            return self.batches.drop(frame.tokens)
        answer = self._answer(now, session, frame, client)
        is_long = isinstance(frame, Stage) and _work_of(frame.bodies) > _SLICE_WORK
        return answer if is_long else list(answer)

    def _answer(
        self, now: float, session: int, frame: Stage | Commit, client: str
    ) -> Iterator[PartRequest]:
        requests: list[PartRequest] = []
        try:
            if isinstance(frame, Stage):
                check_name(frame.token, "token", self._limits.name_bytes_max)
                refusal = yield from self._stage(now, session, frame, requests, client)
            else:
                bytes_max = self._limits.name_bytes_max - len(SINK_PREFIX)
                check_name(frame.sink, "sink", bytes_max)
                check_optional_name(frame.query, "query", self._limits.name_bytes_max)
                refusal = self.batches.commit(now, session, frame, requests)
        except EventError as error:
            refusal = (str(error), "")
        if refusal is not None:
            reason, code = refusal
            refused = Refused(frame.request, reason[:_REASON_CHARACTERS_MAX], code)
            requests.append(SendClient(session, refused))
        yield from requests

    def _stage(
        self, now: float, session: int, frame: Stage, requests: list[PartRequest], client: str
    ) -> Generator[WorkDone, None, Refusal | None]:
        name, index, drafts = frame.token, frame.index, frame.bodies
        if self.batches.owns(name):
            return f"token {name!r} was committed; choose another token", ""
        if self._unanswered_chunks >= STAGES_WAITING_MAX:
            return f"{self._unanswered_chunks} chunks wait for the disk; stage again later", BUSY
        token = self._tokens.find(name)
        expected = 0 if token is None else len(token.chunks)
        new_bytes = 0
        if token is not None and index < expected:
            is_last = token.is_complete and index == expected - 1
            if token.chunks[index].drafts() != drafts or is_last != frame.is_last:
                return (
                    f"a different chunk {index} of {name!r} is already staged; choose a new token",
                    "",
                )
        elif token is not None and token.is_complete:
            return f"{name!r} is complete with {expected} chunks; choose another token", ""
        elif index > expected:
            text = f"chunk {expected} of {name!r} is missing, or was dropped"
            return f"{text}; stage the events again with another token", UNKNOWN_TOKEN
        elif refusal := self._space_refusal(name, drafts, client):
            return refusal
        elif bad := (yield from self._first_invalid(drafts)):
            return f"chunk {index} of {name!r}: {bad}", ""
        else:
            requests.append(self._tokens.add(now, name, drafts, frame.is_last, client))
            new_bytes = size_of(drafts)
        self._unsynced_bytes += new_bytes
        self._ledger.commit.add_chunk(session, frame.request, new_bytes)
        self._unanswered_chunks += 1
        return None

    def _space_refusal(self, name: str, drafts: list[bytes], client: str) -> Refusal | None:
        if self._intake.is_departing:
            return DEPARTURE_REASON, DEPARTING
        if self._intake.is_full:
            return "the disk has no space; stage again later", BUSY
        if self._tokens.exceeds_quota(name, drafts):
            quota = min(
                (self._options.stage_bytes_max, "stage_bytes_max"),
                (self._options.client_stage_bytes_max, "client_stage_bytes_max"),
            )
            text = f"{name!r} has more than {quota[0]} bytes, the most that a client may stage"
            return f"{text} ({quota[1]}); stage less per token", TOO_LARGE
        if self._unsynced_bytes > self._options.unsynced_bytes_max:
            return "the disk is behind: too many bytes wait for a sync; stage again later", BUSY
        full = self._tokens.space_refusal(name, drafts, client)
        return (f"{full}; commit or discard some, or stage again later", BUSY) if full else None

    def _first_invalid(self, drafts: list[bytes]) -> Generator[WorkDone, None, str]:
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

    def session_closed(self, session: int) -> None:
        self.batches.session_closed(session)

    # -- the disk and the clock -----------------------------------------------------------------

    def started(self, now: float) -> list[PartRequest]:
        return self.batches.started(now)

    def synced(self, now: float, group: CommitGroup) -> list[PartRequest]:
        """The writes of this group are on disk, and the intake has processed it."""
        requests: list[PartRequest] = [
            SendClient(session, Staged(number)) for session, number in group.staged
        ]
        self._unanswered_chunks -= len(group.staged)
        self._unsynced_bytes -= group.staged_bytes
        self.batches.intents_synced(group.intended)
        return requests + self.batches.advance(now)

    def next_deadline(self) -> float | None:
        return earliest(self.batches.retry_at, self._tokens.next_expiry())

    def time_passed(self, now: float) -> list[PartRequest]:
        requests: list[PartRequest] = []
        old = self._tokens.expired(now)
        if old:
            requests += self.batches.drop(old)
            what = f"{len(old)} staged tokens were dropped, {old[0]!r} first"
            kept_s = self._options.stage_keep_s
            requests.append(Note("warning", f"{what}: not committed within {kept_s:g} s"))
        retry_at = self.batches.retry_at
        if retry_at is not None and retry_at <= now:
            requests += self.batches.advance(now)
        return requests
