"""The origin: accepts events from publishers and turns them into ticks of this broker's stream.

Each broker has one stream, named after it. An event is appended to the log and gets the next tick.
After the log is synced, and not before, the origin confirms the event to its publisher and emits it
to the network. Between events stand *marks*: ticks without an event that hold the versions of
interest that later ticks carry (`log_tail`).

    publish ─► append ─┐                         ┌─► confirm to the publisher
    vector ──► mark ───┼─► sync (one at a time) ─┼─► announce marks, emit to the network
    done ────► puts ───┘                         └─► delete records

`ledger` holds the durable state, `publish_intake` accepts events, `batches` stages and commits
batches, `replay` serves edges that lack ticks, and `retention` tracks the ticks that edges are done
with. This module connects them to the network and the clock.

Rules

1. Durability. Nothing leaves before it is synced: no confirmation, no tick, no mark, no head.
2. Marks. A new mark is the maximum of the newest mark and the versions that the router reports, so
   vectors never decrease. New versions are collected for `mark_after_s`.
3. Reserve. A full log still takes `MARKS_RESERVE` marks of `MARKS_RESERVE_BYTES`, so that
   subscriptions can start; a full disk does not.
4. Retention. Ticks are deleted once all edges are done with them, at most once per `done_every_s`,
   not before they are `keep_s` old (unless the log is full), and only after the catalog holds the
   state that their records carry. With lossy retention, ticks older than `log_age_s_max` are also
   deleted; edges that request them receive them as withheld.
5. Heads. An idle, non-empty stream announces its head every `head_every_s`. After a start it first
   announces its marks and then its head, so that edges request the ticks that they lack.
6. Rollback. The origin appends nothing until its neighbours have reported their knowledge of the
   stream. If they have seen ticks that this log lacks, it stops appending, and neither confirms nor
   emits pending events (`rollback`).
7. Publishers that stay away are forgotten (`publishers`), but not while the origin accepts no
   events because of rule 6.
8. Head time. No tick after a head is older than the time in that head (except after a crash, when
   the clock may have gone back).

`started` must be called first, once the recovered state is on disk. Earlier requests are not
answered; edges repeat requests that they need.

State: the parts own it; this module holds only deadlines and the position up to which the network
was informed. Safe to lose.

Prior art: the publisher-hosting broker of Gryphon, Zhao 2006, §3.1.2, §4.1.3.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from anabranch.core.contract import DeleteThrough, Effect, LogRead, Note, Put, Recovered, earliest
from anabranch.core.filter_memory import FilterMemory
from anabranch.core.options import Options
from anabranch.core.origin.batches import ForStaging, StagingArea
from anabranch.core.origin.ledger import Ledger
from anabranch.core.origin.log_tail import (
    LifeRecord,
    MarkRecord,
    RowsRecord,
    SilentTick,
    emissions_of,
)
from anabranch.core.origin.publish_intake import PublishIntake
from anabranch.core.origin.replay import Replays, validated_replay
from anabranch.core.origin.rollback import LogView, RollbackInquiry
from anabranch.core.part_requests import AnnounceMark, CarryTo, PartRequest
from anabranch.core.routing.contract import Emission, WorkDone
from anabranch.model.client_frames import Advertises, Publish
from anabranch.model.errors import RemoteError
from anabranch.model.frames import Done, Held, Hello, Hold, Nack, NotKept, Replay
from anabranch.model.limits import Limits
from anabranch.model.network import Network
from anabranch.model.replication import CopySet, Life, Row
from anabranch.model.version import Version, raise_to

MARKS_RESERVE = 1_024
MARKS_RESERVE_BYTES = 1_048_576
#: Holds that may wait for one sync.
HOLDS_MAX = 1_024

ForOrigin = Nack | Done | Replay | Hold
FromClient = Publish | Advertises | ForStaging


class Origin:
    """One stream and its log. See the rules at the top of this module."""

    def __init__(  # noqa: PLR0917 - the arguments of every part of a broker
        self,
        name: str,
        network: Network,
        options: Options,
        limits: Limits,
        recovered: Recovered,
        now: float,
        memory: FilterMemory | None = None,
    ) -> None:
        """Advertisements are charged to `memory`, which other parts may share."""
        self.name = name
        self._network = network
        self._options = options
        self._limits = limits
        self._ledger = ledger = Ledger(recovered, network, options, now)
        self._tail = ledger.tail
        self._marks = ledger.marks
        self._intake = PublishIntake(ledger, options, limits, memory or FilterMemory(limits))
        #: Staged events and batches (`batches`).
        self.staging = StagingArea(ledger, self._intake, options, limits, recovered, now=now)
        self._replays = Replays(ledger.tail, ledger.marks, options)
        self._is_started = False
        #: The inquiry among neighbours for rollback detection; None if there is none.
        self.inquiry: RollbackInquiry | None = None
        #: The vector of the newest mark, or of the next one if it is pending.
        self._vector = dict(ledger.marks.vector(ledger.marks.newest))
        #: The newest tick, and the newest mark, that the network was sent.
        self._emitted = ledger.tail.synced
        self._marked = ledger.marks.newest
        self._head_at: float | None = None
        self._mark_at: float | None = None
        self._release_at: float | None = None
        #: Whether a client has a session at this broker.
        self._is_present: Callable[[str], bool] = lambda _client: False

    @property
    def head(self) -> int:
        """The newest synced tick."""
        return self._tail.synced

    @property
    def oldest(self) -> int:
        """The oldest tick in the log, or the next one if the log is empty."""
        return self._tail.oldest

    @property
    def newest(self) -> int:
        """The newest tick, synced or not."""
        return self._tail.last

    @property
    def unsynced_ticks(self) -> int:
        return self._tail.last - self._tail.synced

    @property
    def unsynced_bytes(self) -> int:
        return self._tail.unsynced_bytes

    @property
    def publishers(self) -> int:
        """Publishers on record, including those of sinks and join points."""
        return len(self._ledger.publishers)

    @property
    def publishers_forgotten(self) -> int:
        """Publishers forgotten in this life."""
        return self._ledger.publishers.forgotten

    @property
    def reads(self) -> int:
        return self._replays.reads

    def depart(self, now: float) -> None:
        """Refuse new events from now on, and keep only ticks that edges still need."""
        self._intake.depart()
        self._options = replace(self._options, keep_s=0.0)
        self._release_at = None
        self._release_later(now)

    @property
    def is_committing(self) -> bool:
        """Whether a batch is in progress, which will append further ticks in any case."""
        return self.staging.batches.is_busy

    @property
    def newest_committed(self) -> int:
        return self.staging.batches.newest

    def edges_needing(self, tick: int) -> list[str]:
        return self._ledger.retention.edges_needing(tick)

    @property
    def log_bytes(self) -> int:
        return self._ledger.sections.size

    @property
    def vector(self) -> Mapping[str, Version]:
        """The vector that the newest synced tick carries."""
        return self._marks.vector(self._marks.at(self._tail.synced))

    def start_inquiry(self, now: float, inquiry: RollbackInquiry) -> list[PartRequest]:
        """Append nothing until the neighbours have answered. Called before `started`."""
        self.inquiry = inquiry
        return self._apply_inquiry(inquiry.begin(now))

    def greeted(self, now: float, peer: str, hello: Hello) -> list[PartRequest]:
        """Process a neighbour's greeting, which reports its knowledge of the stream."""
        inquiry = self.inquiry
        if inquiry is None:
            return []
        view = LogView(self._emitted, self._tail.last, self._tail.time_of)
        was_pending = inquiry.is_alone_removal_pending
        requests = self._apply_inquiry(inquiry.greeted(now, peer, hello, view))
        if inquiry.is_alone_removal_pending and not was_pending:
            self._ledger.commit.add_alone_removal()
        return requests + self._resume_batches(now) + self._ledger.commit.request_sync()

    @property
    def may_announce(self) -> bool:
        """Whether the stream may be announced to neighbours now (`rollback`, rule 3)."""
        return self.inquiry is None or not self.inquiry.is_alone_removal_pending

    def _apply_inquiry(self, effects: Sequence[Effect]) -> list[PartRequest]:
        assert self.inquiry is not None
        self._intake.suspend(self.inquiry.suspension)
        if any(isinstance(effect, Put) for effect in effects):
            self._ledger.commit.add_write()
        return [*effects]

    def _resume_batches(self, now: float) -> list[PartRequest]:
        """Resume batches if ticks may be appended."""
        if self._intake.suspension or not self._is_started:
            return []
        return self.staging.batches.advance(now)

    @property
    def _is_rolled_back(self) -> bool:
        return self.inquiry is not None and self.inquiry.verdict is not None

    def started(self, now: float) -> list[PartRequest]:
        """The recovered state is on disk, and the network is ready."""
        self._is_started = True
        self._ledger.publishers.begin_looks(now)
        requests: list[PartRequest] = [AnnounceMark(mark, vector) for mark, vector in self._marks]
        if self._tail.synced:
            requests.append(self._head(now))
        deleted = self._ledger.beginning.deleted
        if deleted:
            # A crash may have occurred between the checkpoint and the deletion.
            requests.append(DeleteThrough(deleted))
        self._release_later(now)
        requests += self.staging.started(now)
        return requests + self._ledger.commit.request_sync()

    # -- clients and disk -----------------------------------------------------------------------

    def client_frame(
        self, now: float, session: int, frame: FromClient, client: str
    ) -> Iterable[PartRequest]:
        """Process a publishing frame of a client; `RemoteError` if a published event is
        malformed."""
        if isinstance(frame, Advertises):
            return self._intake.advertisements.replace(now, session, frame.filters, client)
        if not isinstance(frame, Publish):
            requests = self.staging.frame(now, session, frame, client)
        else:
            requests = self._intake.publish(now, session, frame, client)
        if isinstance(requests, list):
            return requests + self._ledger.commit.request_sync()
        return self._then_commit(requests)

    def _then_commit(self, requests: Iterable[PartRequest]) -> Iterator[PartRequest]:
        yield from requests
        yield from self._ledger.commit.request_sync()

    def set_session_lookups(
        self, host_of: Callable[[int], str], is_present: Callable[[str], bool]
    ) -> None:
        """Set the lookups from a session to its client's host, and whether a client has one."""
        self._intake.set_host_lookup(host_of)
        self._is_present = is_present

    def client_disconnected(self, now: float, session: int) -> list[PartRequest]:
        self._intake.session_closed(now, session)
        self.staging.session_closed(session)
        return []

    def synced(self, now: float, ticket: int) -> list[PartRequest]:
        """The writes of this ticket are on disk: emit, confirm and delete accordingly."""
        commit = self._ledger.commit
        group = commit.synced(ticket)
        if group is None:
            return []
        requests: list[PartRequest] = []
        if group.removes_alone_row:
            assert self.inquiry is not None
            self.inquiry.alone_removal_synced()
        if group.tick:
            self._tail.sync(group.tick)
            if not self._is_rolled_back:
                requests += self._emit(now, group.tick)
                requests += self._intake.synced(group)
            requests += self._ledger.save()
            if self._release_at is None:
                requests += self._ledger.waive_held_back()
                self._release_later(now)
            self._tail.trim(self._options.recent_ticks_max, self._options.recent_bytes_max)
        requests += self.staging.synced(now, group)
        if group.delete_through:
            requests.append(DeleteThrough(group.delete_through))
        requests += group.replies.values()
        return requests + commit.request_sync()

    def log_read(self, now: float, read: LogRead) -> list[PartRequest]:
        """Use log records to answer a nack or a replay."""
        return self._replays.log_read(read, self._ledger.head_time_ns(now))

    def log_full(self, now: float, full: bool) -> list[PartRequest]:  # noqa: ARG002 - uniform
        """The disk has no space for further records, or has space again."""
        self._intake.log_full(full)
        if not full:
            return [Note("info", "the disk has space for the log again; accepting events")]
        requests: list[PartRequest] = [
            Note("warning", "the disk has no space for the log; refusing events")
        ]
        if self._options.retention == "lossy":
            requests += self._ledger.make_room()
        return requests + self._ledger.commit.request_sync()

    def append_life(self, now: float, life: Life, copies: CopySet) -> list[PartRequest]:
        """A life of this stream has begun (`core.replication`)."""
        time_ns = self._ledger.time_ns(now)
        append = self._ledger.append(LifeRecord(time_ns, life, copies), SilentTick(time_ns))
        return [append, *self._ledger.commit.request_sync()]

    def append_rows(self, now: float, rows: list[Row]) -> list[PartRequest]:
        """Carry rows of the catalog in the stream, for its copies (`core.replication.rows`)."""
        time_ns = self._ledger.time_ns(now)
        append = self._ledger.append(RowsRecord(time_ns, rows), SilentTick(time_ns))
        return [append, *self._ledger.commit.request_sync()]

    # -- the network ----------------------------------------------------------------------------

    def _emit(self, now: float, last: int) -> list[PartRequest]:
        """Send the network all synced ticks up to this one that it has not received."""
        first = self._emitted + 1
        if first > last:
            return []
        entries = self._tail.between(first, last)
        time_ns = self._ledger.head_time_ns(now)
        requests: list[PartRequest] = []
        for emit in emissions_of(self._marks, first, entries, head=last, time_ns=time_ns):
            if emit.mark > self._marked:
                self._marked = emit.mark
                requests.append(AnnounceMark(emit.mark, self._marks.vector(emit.mark)))
            requests.append(emit)
        self._emitted = last
        self._head_at = now + self._options.head_every_s
        return requests

    def _head(self, now: float) -> Emission:
        self._head_at = now + self._options.head_every_s
        head, time_ns = self._tail.synced, self._ledger.head_time_ns(now)
        return Emission(self._marks.at(head), head=head, time_ns=time_ns)

    def carried(self, now: float, source: str, content: ForOrigin) -> list[PartRequest]:
        """Process a request of an edge; `RemoteError` if it is invalid."""
        if not self._ledger.retention.is_known(source):
            raise RemoteError(f"{source!r} is not an edge of this network")
        if isinstance(content, Done):
            return self._done(now, source, content)
        if not self._is_started:
            return []
        if isinstance(content, Nack):
            time_ns = self._ledger.head_time_ns(now)
            return self._replays.nack(now, source, content.ranges, time_ns)
        if isinstance(content, Replay):
            distance = self._network.distance(self.name, source)
            wanted = validated_replay(source, content, distance, self._options, self._limits)
            requests = self._replays.replay(wanted, content.first)
            return [*requests, WorkDone(wanted.reading_work)]
        return self._hold(source, content)

    # -- release --------------------------------------------------------------------------------

    def _done(self, now: float, edge: str, done: Done) -> list[PartRequest]:
        if self._is_coming(self._emitted, done.tick):
            # The edge repeats it.
            return []
        if done.tick > self._emitted:
            inquiry = self.inquiry
            if inquiry is not None and inquiry.believes_edges:
                requests = self._apply_inquiry(inquiry.refuted(done.tick, edge, self._tail.last))
                return requests + self._ledger.commit.request_sync()
            raise RemoteError(
                f"{edge!r} is done with tick {done.tick}, but the newest is {self._emitted}: the"
                " edge is wrong, or this log lost ticks that others have seen and whose"
                " replacements will not reach them; restore the log, or stop this broker and run"
                f" 'anabranch log renew STATE_DIRECTORY --above {done.tick}'"
            )
        self._ledger.retention.done(edge, done.tick, done.request)
        self._release_later(now)
        return []

    def _is_coming(self, known: int, tick: int) -> bool:
        """Whether an edge may have a tick from a keeper that is not `known` here yet: its copies
        have confirmed it, but this origin has not been told so."""
        return self._options.copies > 1 and known < tick <= self._tail.last

    def _hold(self, edge: str, hold: Hold) -> list[PartRequest]:
        tail, commit = self._tail, self._ledger.commit
        if hold.tick > tail.synced and self._intake.suspension:
            # The log may have lost this tick; the edge repeats its request.
            return []
        if self._is_coming(tail.synced, hold.tick):
            return []
        tick = min(hold.tick, tail.synced)
        if tick + 1 < tail.oldest:
            return [CarryTo(edge, NotKept(hold.request, tail.oldest))]
        if commit.replies >= HOLDS_MAX:
            return []
        requests: list[PartRequest] = [*self._ledger.retention.hold(edge, tick, hold.request)]
        commit.add_reply(hold.request, CarryTo(edge, Held(hold.request, tail.synced)))
        return requests + commit.request_sync()

    def _released(self) -> int:
        return self._ledger.retention.done_by_all()

    def _release_later(self, now: float) -> None:
        if self._release_at is not None or self._released() < self._tail.oldest:
            return
        self._release_at = now + self._options.done_every_s
        if self._options.keep_s:
            kept_until = self._ledger.sections.aged_at(self._options.keep_s, self._tail.synced)
            self._release_at = max(self._release_at, kept_until or 0.0)

    def _release(self, now: float) -> list[PartRequest]:
        """Delete ticks that no edge needs and that are older than `keep_s`."""
        self._release_at = None
        waived = self._ledger.waive_held_back()
        tick = self._released()
        if self._options.keep_s:
            aged = self._ledger.sections.aged(self._options.keep_s, now, self._tail.synced)
            tick = min(tick, aged)
        requests = waived + self._ledger.delete_through(tick)
        if self._options.keep_s:
            self._release_later(now)
        return requests

    # -- time -----------------------------------------------------------------------------------

    def vector_advance(self, now: float, vector: Mapping[str, Version]) -> list[PartRequest]:
        """The router reports these versions of interest."""
        if raise_to(self._vector, vector) and self._mark_at is None:
            self._mark_at = now + self._options.mark_after_s
        return []

    def next_deadline(self) -> float | None:
        if not self._is_started:
            return None if self.inquiry is None else self.inquiry.next_deadline()
        is_suspended = bool(self._intake.suspension)
        return earliest(
            None if self.inquiry is None else self.inquiry.next_deadline(),
            self._head_at,
            None if is_suspended else self._mark_at,
            None if is_suspended else self._ledger.publishers.next_look(),
            self._release_at,
            self._ledger.too_old_at(),
            self.staging.next_deadline(),
            self._intake.advertisements.next_deadline(),
        )

    def time_passed(self, now: float) -> list[PartRequest]:
        requests: list[PartRequest] = []
        if self.inquiry is not None and self._intake.suspension:
            requests += self._apply_inquiry(self.inquiry.time_passed(now))
            requests += self._resume_batches(now)
        if not self._is_started:
            return requests + self._ledger.commit.request_sync()
        is_suspended = bool(self._intake.suspension)
        if self._mark_at is not None and self._mark_at <= now and not is_suspended:
            requests += self._mark(now)
        if not is_suspended:
            requests += self._look_at_publishers(now)
        if self._release_at is not None and self._release_at <= now:
            requests += self._release(now)
        requests += self.staging.time_passed(now)
        requests += self._intake.advertisements.time_passed(now)
        too_old_at = self._ledger.too_old_at()
        if too_old_at is not None and too_old_at <= now:
            requests += self._ledger.delete_old(now)
        if self._head_at is not None and self._head_at <= now:
            if self._is_rolled_back:
                self._head_at = None
            else:
                requests.append(self._head(now))
            if self._intake.is_full and self._options.retention == "lossy":
                requests += self._ledger.make_room()
        return requests + self._ledger.commit.request_sync()

    def _look_at_publishers(self, now: float) -> list[PartRequest]:
        looked = self._ledger.publishers.look(now, self._tail.oldest, self._is_present)
        self._intake.publishers_forgotten(looked.forgotten)
        if looked.puts:
            self._ledger.commit.add_write()
        return [*looked.puts]

    def _mark(self, now: float) -> list[PartRequest]:
        """Append a mark, or retry later if there is no space for it."""
        ticks_max = self._options.log_ticks_max + MARKS_RESERVE
        bytes_max = self._options.log_bytes_max + MARKS_RESERVE_BYTES
        is_full = self._tail.log_ticks >= ticks_max or self._ledger.sections.size >= bytes_max
        if self._intake.is_full or is_full:
            self._mark_at = now + self._options.head_every_s
            return []
        self._mark_at = None
        time_ns = self._ledger.time_ns(now)
        vector = dict(self._vector)
        append = self._ledger.append(MarkRecord(time_ns, vector), SilentTick(time_ns))
        self._marks.add(append.tick, vector)
        return [append]
