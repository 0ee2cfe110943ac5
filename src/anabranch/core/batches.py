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
   their events. Where the intake has no room, it is tried again after `AGAIN_S`.
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
6. A sink has its name for itself: nobody publishes under it. A name cannot become a sink if
   somebody has published under it, if another client that is connected has it, or if it is reserved
   for a join point. The number of its first batch, or of the next one, may lead this broker's clock
   (in ns) by `incarnation_lead_s`, so that no number is the last one for ever.
7. A broker that departs begins no batch, but ends those it intends to write.
8. Whoever knows a token may commit or discard it, and whoever knows sink and query may commit: the
   tasks, the driver and its successor are clients of different names.

State: intents are in the catalog, events in the log; who waits is safe to lose, and so is which
tokens were in batches that are done (the newest `stage_tokens_max` of these take no chunk).
"""

from collections.abc import Iterable
from itertools import islice

from msgspec.structs import replace

from anabranch.core import departing
from anabranch.core.asks import Ask
from anabranch.core.contract import Note, Recovered, SendClient
from anabranch.core.intake import Intake
from anabranch.core.ledger import Ledger
from anabranch.core.options import Options
from anabranch.core.points.names import RESERVED
from anabranch.core.sinks import Sink, SinkRow, Waiter, Work, find_ticks, stored_sinks
from anabranch.core.tail import STORED_LIMITS
from anabranch.core.tokens import Tokens
from anabranch.model.client_frames import (
    BUSY,
    DEPARTING,
    OTHER_BATCH,
    OTHER_QUERY,
    UNKNOWN_TOKEN,
    Commit,
    Committed,
)
from anabranch.model.encoding import decode_envelope, identified
from anabranch.model.event import EventId

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
        intake: Intake,
        tokens: Tokens,
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
        intake.sinks = self._sinks
        #: Those with a batch under way.
        self._busy: dict[str, Sink] = {}
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
            sink.work = work = Work(self._tokens.take(sink.row.tokens))
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

    def under_way(self) -> Iterable[Sink]:
        """The sinks with a batch under way."""
        return self._busy.values()

    def owns(self, token: str) -> bool:
        """Whether a batch has this token, or had it not long ago."""
        return token in self._taken or token in self._spent

    def started(self, now: float) -> list[Ask]:
        """What was recovered is on disk: sweep what is left over, and go on with every intent."""
        asks: list[Ask] = []
        for sink in self._sinks.values():
            if sink.row.is_done and sink.row.tokens:
                asks += self.drop(sink.row.tokens)
                asks.append(sink.put(replace(sink.row, tokens=())))
                self._ledger.commit.gathering.is_dirty = True
        for sink in self._busy.values():
            work, row = sink.work, sink.row
            assert work is not None
            if work.appended < row.count and len(work.drafts) != row.count:
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

    def drop(self, names: Iterable[str]) -> list[Ask]:
        """Forget what is staged with these tokens, as far as no batch has taken it."""
        puts = self._tokens.drop(self._tokens.take(names))
        self._ledger.commit.gathering.is_dirty |= bool(puts)
        return [*puts]

    # -- commits --------------------------------------------------------------------------------

    def commit(
        self, now: float, session: int, frame: Commit, asks: list[Ask], client: str
    ) -> No | None:
        """A client commits a batch; why that cannot be, or None."""
        sink = self._sinks.get(frame.sink)
        if sink is None:
            return self._intend(now, session, frame, asks, client)
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
            return self._intend(now, session, frame, asks, client)
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
        self, now: float, session: int, frame: Commit, asks: list[Ask], client: str
    ) -> No | None:
        """A batch begins."""
        no = self._no_batch(now, frame) or self._no_sink(now, session, frame.sink, client)
        if no is not None:
            return no
        work = Work(self._tokens.take(frame.tokens))
        work.waiting.append(Waiter(session, frame.request, was_known=False))
        sink = self._sinks.get(frame.sink)
        incarnation = 1 if sink is None else sink.row.incarnation + 1
        what = (frame.query, frame.batch, incarnation, frame.tokens, len(work.drafts))
        if sink is None:
            self._intake.brings(session)
            sink = self._sinks[frame.sink] = Sink(frame.sink, SinkRow(*what))
        self._taken.update(frame.tokens)
        sink.work = work
        self._busy[frame.sink] = sink
        asks.append(sink.put(SinkRow(*what)))
        gathering = self._ledger.commit.gathering
        gathering.is_dirty = True
        gathering.intended.append(frame.sink)
        return None

    def _no_batch(self, now: float, frame: Commit) -> No | None:
        """Why a batch cannot begin."""
        if self._intake.is_departing:
            return departing.REASON, DEPARTING
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

    def _no_sink(self, now: float, session: int, name: str, client: str) -> No | None:
        """Why this client cannot make a sink of this name (rule 6); None if it can, or there is
        one."""
        if name in self._sinks:
            return None
        publishers, needs = self._ledger.publishers, "a sink needs a name of its own"
        if name.startswith(RESERVED):
            return f"names that begin with {RESERVED!r} are those of join points; {needs}", ""
        if name in publishers:
            return f"{name!r} has published here; {needs}", ""
        if name != client and name in self._intake.clients:
            return f"another client is called {name!r}; {needs}", ""
        # A sink whose batches are empty is no publisher, but remembered as well.
        if len(self._sinks) >= self._sinks_max:
            return f"{len(self._sinks)} sinks are remembered here, and no more can be", ""
        refusal = publishers.refusal(EventId(name, 1, 1), self._ledger.time_ns(now))
        refusal = refusal or self._intake.no_name(session)
        return None if refusal is None else (refusal.reason, "")

    # -- the log --------------------------------------------------------------------------------

    def intended(self, names: Iterable[str]) -> None:
        """The intents of these sinks are on disk."""
        for name in names:
            work = self._busy[name].work
            assert work is not None
            work.is_intended = True

    def go_on(self, now: float) -> list[Ask]:
        """Do what can be done for every batch under way."""
        asks: list[Ask] = []
        self.again_at = None
        for sink in list(self._busy.values()):
            asks += self._advance(now, sink)
        return asks

    def _advance(self, now: float, sink: Sink) -> list[Ask]:
        """The next slice of a batch, or its end; nothing while the disk is at it."""
        work = sink.work
        assert work is not None
        if not work.is_intended or work.appended > self._ledger.publishers.safe(sink.key):
            return []
        if work.appended < sink.row.count:
            return self._append(now, sink, work)
        return self._finish(sink, work)

    def _append(self, now: float, sink: Sink, work: Work) -> list[Ask]:
        asks: list[Ask] = []
        before, size = work.appended, 0
        for draft in work.drafts[before : before + self._slice_events_max]:
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

    def _finish(self, sink: Sink, work: Work) -> list[Ask]:
        """All events of a batch are safe."""
        tokens = sink.row.tokens
        done = replace(sink.row, is_done=True, first=work.first, last=work.last)
        asks: list[Ask] = [sink.put(done), *self._tokens.drop(work.tokens)]
        asks.append(sink.put(replace(done, tokens=())))
        asks += _told(sink, work)
        self._ledger.commit.gathering.is_dirty = True
        sink.work = None
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


def _lost(sink: Sink) -> str:
    row = sink.row
    return f"staged events of batch {row.batch} are lost: it stays undone"


def _told(sink: Sink, work: Work) -> list[Ask]:
    """Whoever waits is told that a batch is in the log."""
    waiting, work.waiting = work.waiting, []
    row = sink.row
    what = (sink.name, row.batch, row.first, row.last)
    return [
        SendClient(who.session, Committed(who.request, *what, who.was_known)) for who in waiting
    ]
