"""The ledger: the durable state of an origin, in memory and on disk.

The log alone is enough to restore every guarantee of an origin. Before the oldest records are
deleted, the catalog takes over the state that only they carry: which events of each publisher are
synced, which mark the first remaining ticks carry, and what each edge is done with.

Rules

1. Ticks are dense, and their times never decrease, regardless of the clock.
2. The *beginning* (table `stream`) is written last: a crash keeps puts in their order, so if the
   beginning is on disk, the rest is too.
3. Records are deleted only after the beginning is synced. So the log starts at the beginning or
   before it; ticks before it count as deleted even if they still exist.
4. A tick counts as deleted for every reader as soon as its deletion is decided.
5. A start reads every record after the newest checkpoint (`retention`) once; only the newest
   records stay in memory.
6. The limits of age and size are enforced per section (`LogSections`); only lossy retention deletes
   ticks for them.
7. A catalog row that cannot be read is set aside (`catalog_recovery`), and the log replaces it as
   far as possible: its first tick replaces the beginning, its records replace marks and publishers.
   A log that ends before a position that a readable row states is refused, like a damaged one.
   While a log that was lost is fetched from a copy, the beginning has no row, and the log's first
   tick replaces it too. Without rows of copies that cannot be, and the log must begin with tick 1.
8. Vectors may name edges of an earlier network. They are restricted to the edges of this life's
   network when they are read, because neighbours know no others.
"""

from itertools import islice
from typing import NamedTuple

import msgspec

from anabranch.core.catalog_recovery import decoded, set_aside
from anabranch.core.contract import Append, DamagedRecord, Note, Put, Recovered
from anabranch.core.options import Options
from anabranch.core.origin import publishers as publishers_table
from anabranch.core.origin import rollback
from anabranch.core.origin.log_tail import (
    AnyRecord,
    BlankRecord,
    Entry,
    EventRecord,
    InterestMarks,
    LogTail,
    MarkRecord,
    decode_record,
    encode_record,
    entry_of,
)
from anabranch.core.origin.publishers import Key, PublisherRow, Publishers
from anabranch.core.origin.retention import KEY as CHECKPOINT
from anabranch.core.origin.retention import (
    Catalog,
    Checkpoint,
    LogSections,
    Retention,
    StoredMarks,
    checkpoint_put,
    read_checkpoint,
    read_marks,
)
from anabranch.core.part_requests import CarryTo, PartRequest, RequestSync
from anabranch.model.encoding import decode_envelope
from anabranch.model.errors import LocalError
from anabranch.model.frame_parts import Nanoseconds, Position
from anabranch.model.limits import STORED_LIMITS
from anabranch.model.network import Network
from anabranch.model.version import Version


class CommitGroup:
    """The consequences of one sync; `GroupCommit` writes it."""

    __slots__ = (
        "confirmed",
        "delete_through",
        "intended",
        "is_dirty",
        "removes_alone_row",
        "replies",
        "staged",
        "staged_bytes",
        "tick",
    )

    def __init__(self) -> None:
        #: Whether the group has anything to sync.
        self.is_dirty = False
        #: The newest tick of the group; 0 if there is none.
        self.tick = 0
        #: Publisher and incarnation → the highest sequence of the group, and its tick.
        self.confirmed: dict[Key, tuple[int, int]] = {}
        #: Records up to this tick may be deleted after the sync; 0 if none.
        self.delete_through = 0
        #: (broker, request) → the reply to send after the sync.
        self.replies: dict[tuple[str, int], CarryTo] = {}
        #: Staged chunks to confirm, as (session, request).
        self.staged: list[tuple[int, int]] = []
        #: Bytes of the new chunks among them.
        self.staged_bytes = 0
        #: Sinks whose intent is part of the group.
        self.intended: list[str] = []
        #: Whether the group removes the record that the origin continued alone (`rollback`).
        self.removes_alone_row = False


class GroupCommit:
    """Group commit: writes wait for the disk in groups.

    Writes made during a sync wait for the next one. So at most one sync is in progress, and under
    load one sync covers many events: the slower the disk, the larger the groups. The consequences
    of a sync (confirmations, emissions, deletions) are recorded in its group, and take effect when
    that group is synced and not before.

    State: the group in progress and the next one. Safe to lose: unsynced writes were not confirmed.
    """

    __slots__ = ("_in_progress", "_next", "_ticket")

    def __init__(self) -> None:
        self._next = CommitGroup()
        self._in_progress: CommitGroup | None = None
        self._ticket = 0

    # -- the next group -------------------------------------------------------------------------

    def add_write(self) -> None:
        """A put without further consequences."""
        self._next.is_dirty = True

    def add_tick(self, tick: int) -> None:
        self._next.tick = tick
        self._next.is_dirty = True

    def add_confirmation(self, key: Key, sequence: int, tick: int) -> None:
        """Confirm the events of a publisher's incarnation up to this sequence, which has this
        tick."""
        confirmed = self._next.confirmed
        confirmed[key] = max(confirmed.get(key, (0, 0)), (sequence, tick))

    def will_confirm(self, key: Key) -> bool:
        """Whether a later sync confirms more events of this incarnation."""
        return key in self._next.confirmed

    def add_deletion(self, tick: int) -> None:
        self._next.delete_through = tick
        self._next.is_dirty = True

    @property
    def replies(self) -> int:
        return len(self._next.replies)

    def add_reply(self, request: int, reply: CarryTo) -> None:
        """Reply to a request of another broker; a repeated request gets one reply."""
        self._next.replies[reply.target, request] = reply
        self._next.is_dirty = True

    def add_chunk(self, session: int, request: int, new_bytes: int) -> None:
        """Confirm a staged chunk, of which this many bytes are new."""
        self._next.staged.append((session, request))
        self._next.staged_bytes += new_bytes
        self._next.is_dirty = True

    def add_intent(self, sink: str) -> None:
        self._next.intended.append(sink)
        self._next.is_dirty = True

    def add_alone_removal(self) -> None:
        self._next.removes_alone_row = True
        self._next.is_dirty = True

    # -- syncs ----------------------------------------------------------------------------------

    def request_sync(self) -> list[RequestSync]:
        """Request a sync if there are writes and no sync is in progress."""
        if self._in_progress is not None or not self._next.is_dirty:
            return []
        self._in_progress, self._next = self._next, CommitGroup()
        self._ticket += 1
        return [RequestSync(self._ticket)]

    def synced(self, ticket: int) -> CommitGroup | None:
        """The group of this ticket; None if the ticket is out of date."""
        group = self._in_progress
        if group is None or ticket < self._ticket:
            return None
        self._in_progress = None
        return group


TABLE = "stream"
KEY = "beginning"
#: The table of the copies of streams, the own one included (`core.replication`).
_COPIES = "copies"

#: Lossy retention deletes one part of this many at a time.
_LOSSY_PART = 8


class LogStart(msgspec.Struct, frozen=True, array_like=True):
    """Where the log begins, and the state at that point."""

    #: The newest deleted tick.
    deleted: Position = 0
    #: No later tick is older than this.
    time_ns: Nanoseconds = 0
    #: The newest mark up to that tick.
    mark: Position = 0
    vector: dict[str, Version] = {}


_encoder = msgspec.msgpack.Encoder()
#: All fields are required: a default would claim that nothing was deleted.
_decoder = msgspec.msgpack.Decoder(tuple[Position, Nanoseconds, Position, dict[str, Version]])


class _Stored(NamedTuple):
    """The catalog's state of the stream, as far as it can be read."""

    beginning: LogStart
    checkpoint: Checkpoint
    marks: dict[int, dict[str, Version]]
    publishers: dict[str, PublisherRow]
    #: Publisher rows that cannot be read.
    lost: list[DamagedRecord]


def first_needed(catalog: Catalog) -> int:
    """The first tick whose record a start must read, according to the catalog."""
    stored = _stored(Recovered({table: dict(rows) for table, rows in catalog.items()}))
    return max(stored.beginning.deleted, stored.checkpoint.tick) + 1


def stored_beginning(catalog: Catalog) -> LogStart:
    """Where the log begins, according to the catalog."""
    return _stored(Recovered({table: dict(rows) for table, rows in catalog.items()})).beginning


def _stored(recovered: Recovered) -> _Stored:
    """Read the catalog and set unreadable rows aside (rule 7), except those of publishers."""
    good, bad = decoded(recovered, TABLE, _read)
    beginning, checkpoint = good.get(KEY, LogStart()), good.get(CHECKPOINT, Checkpoint())
    assert isinstance(beginning, LogStart)
    assert isinstance(checkpoint, Checkpoint)
    for damaged in bad:
        instead = None
        if damaged.key == KEY:
            beginning = LogStart(recovered.first_tick - 1)
            instead = _encoder.encode(beginning)
        set_aside(recovered, damaged, instead)
    if KEY not in recovered.catalog.get(TABLE, {}) and _has_copies(recovered):
        # A log that is being fetched from a copy.
        beginning = LogStart(recovered.first_tick - 1)
    marks, no_marks = read_marks(recovered)
    for damaged in no_marks:
        set_aside(recovered, damaged)
    publishers, lost = publishers_table.stored(recovered)
    if (no_marks or lost) and checkpoint.tick:
        checkpoint = Checkpoint()
        recovered.repairs.append(Put(TABLE, CHECKPOINT, None))
    return _Stored(beginning, checkpoint, marks, publishers, lost)


def _has_copies(recovered: Recovered) -> bool:
    damaged = (record.table == _COPIES for record in recovered.damaged)
    return bool(recovered.catalog.get(_COPIES)) or any(damaged)


def _read(key: str, value: bytes) -> LogStart | Checkpoint:
    if key == CHECKPOINT:
        return read_checkpoint(value)
    if key != KEY:
        raise ValueError(f"table {TABLE!r} has no such key")
    found = LogStart(*_decoder.decode(value))
    if found.mark > found.deleted:
        raise ValueError(f"mark {found.mark} is after tick {found.deleted}, where the log begins")
    return found


class Ledger:
    """The durable state of one origin. See the rules at the top of this module."""

    __slots__ = (
        "_edges",
        "_now",
        "_options",
        "_stored_marks",
        "beginning",
        "checkpoint",
        "clock_ns",
        "commit",
        "marks",
        "publishers",
        "retention",
        "sections",
        "tail",
        "waived",
    )

    def __init__(
        self, recovered: Recovered, network: Network, options: Options, now: float
    ) -> None:
        self._options = options
        self._edges = frozenset(network.edges)
        #: The last reading of this life's clock.
        self._now = now
        bytes_max = min(options.log_bytes_max, options.held_back_max)
        self.sections = LogSections(options.log_age_s_max, bytes_max, options.keep_s)
        stored = _stored(recovered)
        self.beginning = beginning = stored.beginning
        self.checkpoint = checkpoint = stored.checkpoint
        self._stored_marks = StoredMarks(stored.marks)
        self.publishers = Publishers(
            stored.publishers,
            options,
            now,
            last_tick=recovered.last_tick,
            is_renewed=rollback.is_renewed(recovered),
        )
        self.retention = Retention(network.edges, recovered, beginning.deleted)
        self.marks = self._with_marks(stored.marks)
        self.tail = self._read(recovered, options)
        self.publishers.replace_lost(recovered, stored.lost, now, self.tail.last)
        self.tail.trim(options.recent_ticks_max, options.recent_bytes_max)
        self.commit = GroupCommit()
        #: How often ticks were released for `held_back_bytes_max` in this life.
        self.waived = 0
        newest_ns = max(self.tail.last_time_ns, beginning.time_ns, checkpoint.time_ns)
        #: Invariant: never decreases, and no tick is later.
        self.clock_ns = max(int(now * 1e9), newest_ns)
        self.publishers.restore_floor(recovered, self.clock_ns)

    def _with_marks(self, stored: dict[int, dict[str, Version]]) -> InterestMarks:
        beginning = self.beginning
        marks = InterestMarks(beginning.mark, self._restricted(beginning.vector))
        for tick, vector in stored.items():
            if beginning.mark < tick <= self.checkpoint.tick:
                marks.add(tick, self._restricted(vector))
        return marks

    def _restricted(self, vector: dict[str, Version]) -> dict[str, Version]:
        """Restrict a vector to edges of this network (rule 8)."""
        return {edge: version for edge, version in vector.items() if edge in self._edges}

    def _read(self, recovered: Recovered, options: Options) -> LogTail:
        """Read the records after the checkpoint."""
        oldest = self.beginning.deleted + 1
        first = max(self.beginning.deleted, self.checkpoint.tick) + 1
        begins = recovered.records_first or recovered.first_tick
        skipped = first - begins
        ends = begins + len(recovered.records) - 1
        if recovered.first_tick > oldest or not 0 <= skipped <= len(recovered.records):
            raise LocalError(
                f"the log has ticks {recovered.first_tick} to {ends}, but according to the catalog"
                f" it begins with {oldest} and reaches {first - 1}; they do not belong together,"
                " restore both from the same backup"
            )
        self.sections.restore(self.checkpoint.sections, self._now)
        self.sections.delete_through(self.beginning.deleted)
        memory_first = max(first, ends + 1 - options.recent_ticks_max)
        tail = LogTail(oldest, memory_first, self.beginning.time_ns)
        for tick, data in enumerate(islice(recovered.records, skipped, None), first):
            record = decode_record(data)
            seen_ns = min(record.time_ns, int(self._now * 1e9))
            if isinstance(record, EventRecord):
                event_id = decode_envelope(record.body, STORED_LIMITS).id
                self.publishers.recover(event_id, tick, seen_ns)
            elif isinstance(record, BlankRecord):
                self.publishers.recover(record.id, tick, seen_ns)
            elif isinstance(record, MarkRecord):
                self.marks.add(tick, self._restricted(record.vector))
            self.sections.add(tick, len(data), min(record.time_ns / 1e9, self._now))
            if tick >= tail.first:
                tail.append(entry_of(tick, record))
        tail.sync(tail.last)
        return tail

    # -- time -----------------------------------------------------------------------------------

    def time_ns(self, now: float) -> int:
        """The time for a tick that is appended now."""
        self._now = now
        self.clock_ns = max(self.clock_ns, int(now * 1e9))
        return self.clock_ns

    def head_time_ns(self, now: float) -> int:
        """No unsynced or future tick is older than this time."""
        return self.tail.head_time_ns(self.time_ns(now))

    # -- changes --------------------------------------------------------------------------------

    def append(self, record: AnyRecord, entry: Entry) -> Append:
        self.tail.append(entry)
        tick = self.tail.last
        self.commit.add_tick(tick)
        data = encode_record(record)
        self.sections.add(tick, len(data), self._now)
        return Append(tick, data)

    def delete_through(self, tick: int) -> list[PartRequest]:
        """Start the log after this tick, or after the newest synced one if that is lower.

        Records up to there may be deleted once the returned puts are synced."""
        tick = min(tick, self.tail.synced)
        if tick < self.tail.oldest:
            return []
        mark = self.marks.at(tick)
        self.beginning = LogStart(tick, self.clock_ns, mark, dict(self.marks.vector(mark)))
        requests: list[PartRequest] = [*self.publishers.checkpoint(), *self.retention.checkpoint()]
        requests.append(Put(TABLE, KEY, _encoder.encode(self.beginning)))
        self.tail.delete_through(tick, self.clock_ns)
        self.marks.delete_through(tick)
        self.sections.delete_through(tick)
        self.commit.add_deletion(tick)
        return requests

    def save(self) -> list[PartRequest]:
        """Write a checkpoint if enough ticks were synced since the last one."""
        synced = self.tail.synced
        known = max(self.checkpoint.tick, self.beginning.deleted)
        if synced - known < self._options.checkpoint_ticks:
            return []
        self.checkpoint = Checkpoint(synced, self.clock_ns, self.sections.up_to(synced))
        self.commit.add_write()
        marks = self._stored_marks.puts(self.marks, synced)
        return [*marks, *self.publishers.checkpoint(), checkpoint_put(self.checkpoint)]

    def full_reason(self) -> str:
        """Why the log accepts no further event, disk space aside; "" if it does."""
        tail, options = self.tail, self._options
        if tail.log_ticks >= options.log_ticks_max:
            return f"{tail.log_ticks} ticks"
        if self.sections.size >= options.log_bytes_max:
            return f"{self.sections.size} bytes"
        return ""

    def delete_kept(self) -> list[PartRequest]:
        """Delete ticks that are kept although every edge is done with them."""
        return self.delete_through(self.retention.done_by_all()) if self._options.keep_s else []

    def waive_held_back(self) -> list[PartRequest]:
        """Release ticks that subscriptions hold back beyond `held_back_bytes_max`."""
        bytes_max = self._options.held_back_max
        if self.sections.size <= bytes_max:
            return []
        tick = min(self.sections.beyond(bytes_max), self.tail.synced)
        edges = ", ".join(map(repr, self.retention.waive(tick)))
        if not edges:
            return []
        self.waived += 1
        text = f"Ticks up to {tick} are no longer kept for subscriptions at {edges}: they hold back"
        return [Note("warning", f"{text} more than {bytes_max} bytes (held_back_bytes_max).")]

    def make_room(self) -> list[PartRequest]:
        """Delete the oldest ticks although edges may need them."""
        part = self.tail.oldest - 1 + max(self.tail.log_ticks // _LOSSY_PART, 1)
        bytes_max = self._options.log_bytes_max
        if self.sections.size >= bytes_max:
            part = max(self.sections.beyond(bytes_max - bytes_max // _LOSSY_PART - 1), part)
        return self._delete_needed(part, "the log is full")

    def delete_old(self, now: float) -> list[PartRequest]:
        """Delete ticks older than the limit although edges may need them."""
        tick = self.sections.too_old(now, self.tail.synced)
        return self._delete_needed(tick, f"they are older than {self._options.log_age_s_max} s")

    def too_old_at(self) -> float | None:
        """When `delete_old` will have ticks to delete."""
        return self.sections.too_old_at(self.tail.synced)

    def _delete_needed(self, tick: int, why: str) -> list[PartRequest]:
        oldest = self.tail.oldest
        requests = self.delete_through(tick)
        if requests:
            what = f"ticks {oldest}–{self.tail.oldest - 1} are deleted"
            requests.append(Note("warning", f"{what}: {why}, and retention is lossy"))
        return requests
