"""The ledger: all that an origin remembers, in memory and on disk.

Everything an origin promised can be found in its log, record by record. Before the oldest records
are deleted, the catalog takes over what only they told: which events of each publisher are safe,
which mark the first remaining ticks carry, and what each edge is done with. Rules:

1. Ticks are dense, and their times never decrease, whatever the clock does.
2. The *beginning* (table `stream`) is put last: a crash keeps puts in their order, so where the
   beginning is, the rest is too.
3. Records are deleted only when the beginning is synced. So the log starts at the beginning or
   before it; ticks before it are treated as deleted even if they are still there.
4. What is decided to be deleted is gone at once, for everybody who asks.
5. Restoring reads every record after the newest checkpoint (`checkpoint`) once; only the newest
   stay in memory.
6. What is too old or too much goes by `chapters`; only lossy retention forgets for that.
7. A row of the catalog that cannot be read is set aside (`catalog_recovery`), and the log speaks in
   its place, as far as it goes: for the beginning its first tick, for a mark and for a publisher
   its records. A log that does not reach what a readable row says is refused, as a damaged one is.
8. Vectors name edges of the network as it was. What is read of them is what the network of this
   life has: neighbours know no other names.
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
from anabranch.core.origin.publishers import Key, Place, Publishers
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
    """What a sync brings about."""

    __slots__ = (
        "confirmed",
        "forget",
        "intended",
        "is_dirty",
        "is_leaving_alone",
        "replies",
        "staged",
        "staged_bytes",
        "tick",
    )

    def __init__(self) -> None:
        #: Whether there is anything to sync.
        self.is_dirty = False
        #: The newest tick in here, 0 if there is none.
        self.tick = 0
        #: Publisher and incarnation → the highest sequence in here.
        self.confirmed: dict[Key, int] = {}
        #: Records up to this tick may be deleted then, 0 if none.
        self.forget = 0
        #: What other brokers are told then, by who they are and what they asked.
        self.replies: dict[tuple[str, int], CarryTo] = {}
        #: Chunks that are safe then, by who staged them: session and request.
        self.staged: list[tuple[int, int]] = []
        #: What those among them take that are new.
        self.staged_bytes = 0
        #: Sinks whose intent is safe then.
        self.intended: list[str] = []
        #: Whether the disk has forgotten then that the origin went on alone (`rollback`).
        self.is_leaving_alone = False


class GroupCommit:
    """Group commit: what waits for the disk, in batches.

    Whatever is appended or put while a sync is under way waits for the next one. So there is at
    most one sync at a time, and under load one sync serves many events: the slower the disk, the
    larger the batches. What has to follow from a sync (confirmations, knowledge for the network,
    deletion) stands in the batch that it needs, and happens when that batch is synced and not
    before.

    State: what is under way. Safe to lose: whatever was not synced was not promised.
    """

    __slots__ = ("_asked", "_ticket", "gathering")

    def __init__(self) -> None:
        self.gathering = CommitGroup()
        self._asked: CommitGroup | None = None
        self._ticket = 0

    def please(self) -> list[RequestSync]:
        """Ask for a sync if there is something to sync and none is under way."""
        if self._asked is not None or not self.gathering.is_dirty:
            return []
        self._asked, self.gathering = self.gathering, CommitGroup()
        self._ticket += 1
        return [RequestSync(self._ticket)]

    def synced(self, ticket: int) -> CommitGroup | None:
        """The batch that this ticket stands for; None if that is an old story."""
        batch = self._asked
        if batch is None or ticket < self._ticket:
            return None
        self._asked = None
        return batch


TABLE = "stream"
KEY = "beginning"

#: Lossy retention forgets this part of the log at a time.
_LOSSY_PART = 8


class LogStart(msgspec.Struct, frozen=True, array_like=True):
    """Where the log begins, and what was true there."""

    #: The newest tick that was deleted.
    forgotten: Position = 0
    #: No tick after it was made before this.
    time_ns: Nanoseconds = 0
    #: The newest mark up to there.
    mark: Position = 0
    vector: dict[str, Version] = {}


_encoder = msgspec.msgpack.Encoder()
#: All fields have to be there: one that says nothing would say that nothing was deleted.
_decoder = msgspec.msgpack.Decoder(tuple[Position, Nanoseconds, Position, dict[str, Version]])


class _Stored(NamedTuple):
    """What the catalog says about the stream, as far as it can be read."""

    beginning: LogStart
    checkpoint: Checkpoint
    marks: dict[int, dict[str, Version]]
    publishers: dict[str, Place]
    #: Rows of publishers that cannot be read.
    lost: list[DamagedRecord]


def first_needed(catalog: Catalog) -> int:
    """The first tick whose record a start has to read, by what the catalog says."""
    stored = _stored(Recovered({table: dict(rows) for table, rows in catalog.items()}))
    return max(stored.beginning.forgotten, stored.checkpoint.tick) + 1


def stored_beginning(catalog: Catalog) -> LogStart:
    """Where the catalog says that the log begins."""
    return _stored(Recovered({table: dict(rows) for table, rows in catalog.items()})).beginning


def _stored(recovered: Recovered) -> _Stored:
    """Read it, and set aside what cannot be read (rule 7); publishers are left to the caller."""
    good, bad = decoded(recovered, TABLE, _read)
    beginning, checkpoint = good.get(KEY, LogStart()), good.get(CHECKPOINT, Checkpoint())
    assert isinstance(beginning, LogStart)
    assert isinstance(checkpoint, Checkpoint)
    for each in bad:
        instead = None
        if each.key == KEY:
            beginning = LogStart(recovered.first_tick - 1)
            instead = _encoder.encode(beginning)
        set_aside(recovered, each, instead)
    marks, no_marks = read_marks(recovered)
    for each in no_marks:
        set_aside(recovered, each)
    publishers, lost = publishers_table.stored(recovered)
    if (no_marks or lost) and checkpoint.tick:
        checkpoint = Checkpoint()
        recovered.repairs.append(Put(TABLE, CHECKPOINT, None))
    return _Stored(beginning, checkpoint, marks, publishers, lost)


def _read(key: str, value: bytes) -> LogStart | Checkpoint:
    if key == CHECKPOINT:
        return read_checkpoint(value)
    if key != KEY:
        raise ValueError(f"the table {TABLE!r} has no such key")
    found = LogStart(*_decoder.decode(value))
    if found.mark > found.forgotten:
        raise ValueError(f"mark {found.mark} is beyond tick {found.forgotten}, where it begins")
    return found


class Ledger:
    """The memory of one origin. See the rules at the top of this module."""

    __slots__ = (
        "_edges",
        "_now",
        "_options",
        "_stored_marks",
        "beginning",
        "chapters",
        "checkpoint",
        "clock_ns",
        "commit",
        "marks",
        "publishers",
        "release",
        "tail",
        "waived",
    )

    def __init__(
        self, recovered: Recovered, network: Network, options: Options, now: float
    ) -> None:
        self._options = options
        self._edges = frozenset(network.edges)
        #: The clock of this life, as it was told last.
        self._now = now
        bytes_max = min(options.log_bytes_max, options.held_back_max)
        self.chapters = LogSections(options.log_age_s_max, bytes_max, options.keep_s)
        stored = _stored(recovered)
        self.beginning = beginning = stored.beginning
        self.checkpoint = checkpoint = stored.checkpoint
        self._stored_marks = StoredMarks(stored.marks)
        self.publishers = Publishers(
            stored.publishers,
            options.publishers_max,
            options.incarnation_lead_s,
            is_renewed=rollback.is_renewed(recovered),
        )
        self.release = Retention(network.edges, recovered, beginning.forgotten)
        self.marks = self._with_marks(stored.marks)
        self.tail = self._read(recovered, options)
        self.publishers.replace_lost(recovered, stored.lost, now)
        self.tail.trim(options.recent_ticks_max, options.recent_bytes_max)
        self.commit = GroupCommit()
        #: How often ticks were given up for the quota of bytes held back, in this life.
        self.waived = 0
        known_ns = max(self.tail.last_time_ns, beginning.time_ns, checkpoint.time_ns)
        #: Invariant: never decreases, and no tick is later.
        self.clock_ns = max(int(now * 1e9), known_ns)

    def _with_marks(self, stored: dict[int, dict[str, Version]]) -> InterestMarks:
        beginning = self.beginning
        marks = InterestMarks(beginning.mark, self._restricted(beginning.vector))
        for tick, vector in stored.items():
            if beginning.mark < tick <= self.checkpoint.tick:
                marks.add(tick, self._restricted(vector))
        return marks

    def _restricted(self, vector: dict[str, Version]) -> dict[str, Version]:
        """Rule 8."""
        return {edge: version for edge, version in vector.items() if edge in self._edges}

    def _read(self, recovered: Recovered, options: Options) -> LogTail:
        """Read what the catalog does not tell: the records after the checkpoint."""
        oldest = self.beginning.forgotten + 1
        first = max(self.beginning.forgotten, self.checkpoint.tick) + 1
        begins = recovered.records_first or recovered.first_tick
        skipped = first - begins
        ends = begins + len(recovered.records) - 1
        if recovered.first_tick > oldest or not 0 <= skipped <= len(recovered.records):
            raise LocalError(
                f"the log has ticks {recovered.first_tick} to {ends}, but the catalog says that"
                f" it begins with {oldest} and has {first - 1}; they do not belong together,"
                " restore both"
            )
        self.chapters.restore(self.checkpoint.chapters, self._now)
        self.chapters.forget(self.beginning.forgotten)
        tail = LogTail(oldest, max(first, ends + 1 - options.recent_ticks_max))
        tail.forgotten_ns = self.beginning.time_ns
        for tick, data in enumerate(islice(recovered.records, skipped, None), first):
            record = decode_record(data)
            if isinstance(record, EventRecord):
                self.publishers.recover(decode_envelope(record.body, STORED_LIMITS).id)
            elif isinstance(record, BlankRecord):
                self.publishers.recover(record.id)
            elif isinstance(record, MarkRecord):
                self.marks.add(tick, self._restricted(record.vector))
            self.chapters.add(tick, len(data), min(record.time_ns / 1e9, self._now))
            if tick >= tail.first:
                tail.append(entry_of(tick, record))
        tail.sync(tail.last)
        return tail

    # -- time -----------------------------------------------------------------------------------

    def time_ns(self, now: float) -> int:
        """The time of a tick that is made now."""
        self._now = now
        self.clock_ns = max(self.clock_ns, int(now * 1e9))
        return self.clock_ns

    def head_time_ns(self, now: float) -> int:
        """No tick that is not synced was or will be made before this time."""
        return self.tail.head_time_ns(self.time_ns(now))

    # -- changes --------------------------------------------------------------------------------

    def append(self, record: AnyRecord, entry: Entry) -> Append:
        """The next tick."""
        self.tail.append(entry)
        tick = self.tail.last
        self.commit.gathering.tick = tick
        self.commit.gathering.is_dirty = True
        data = encode_record(record)
        self.chapters.add(tick, len(data), self._now)
        return Append(tick, data)

    def forget(self, tick: int) -> list[PartRequest]:
        """The log begins after this tick, or after the newest one that is synced, from now on.

        When what is returned is synced, records up to there may be deleted."""
        tick = min(tick, self.tail.synced)
        if tick < self.tail.oldest:
            return []
        mark = self.marks.at(tick)
        self.beginning = LogStart(tick, self.clock_ns, mark, dict(self.marks.vector(mark)))
        asks: list[PartRequest] = [*self.publishers.checkpoint(), *self.release.checkpoint()]
        asks.append(Put(TABLE, KEY, _encoder.encode(self.beginning)))
        self.tail.forget(tick)
        self.tail.forgotten_ns = self.clock_ns
        self.marks.forget(tick)
        self.chapters.forget(tick)
        self.commit.gathering.is_dirty = True
        self.commit.gathering.forget = tick
        return asks

    def save(self) -> list[PartRequest]:
        """A checkpoint of what is synced, if there is enough of it since the last one."""
        synced = self.tail.synced
        known = max(self.checkpoint.tick, self.beginning.forgotten)
        if synced - known < self._options.checkpoint_ticks:
            return []
        self.checkpoint = Checkpoint(synced, self.clock_ns, self.chapters.up_to(synced))
        self.commit.gathering.is_dirty = True
        marks = self._stored_marks.puts(self.marks, synced)
        return [*marks, *self.publishers.checkpoint(), checkpoint_put(self.checkpoint)]

    def why_full(self) -> str:
        """Why the log can take no further event, as far as it is not for the disk; "" if it can."""
        tail, options = self.tail, self._options
        if tail.log_ticks >= options.log_ticks_max:
            return f"{tail.log_ticks} ticks"
        if self.chapters.size >= options.log_bytes_max:
            return f"{self.chapters.size} bytes"
        return ""

    def forget_kept(self) -> list[PartRequest]:
        """Forget what is kept although nobody needs it."""
        return self.forget(self.release.all_done()) if self._options.keep_s else []

    def waive_held_back(self) -> list[PartRequest]:
        """Stop keeping what subscriptions hold back beyond `held_back_bytes_max`."""
        bytes_max = self._options.held_back_max
        if self.chapters.size <= bytes_max:
            return []
        tick = min(self.chapters.beyond(bytes_max), self.tail.synced)
        edges = ", ".join(map(repr, self.release.waive(tick)))
        if not edges:
            return []
        self.waived += 1
        text = f"Ticks up to {tick} are no longer kept for subscriptions at {edges}: they hold back"
        return [Note("warning", f"{text} more than {bytes_max} bytes (held_back_bytes_max).")]

    def make_room(self) -> list[PartRequest]:
        """Forget the oldest ticks although somebody may need them."""
        part = self.tail.oldest - 1 + max(self.tail.log_ticks // _LOSSY_PART, 1)
        bytes_max = self._options.log_bytes_max
        if self.chapters.size >= bytes_max:
            part = max(self.chapters.beyond(bytes_max - bytes_max // _LOSSY_PART - 1), part)
        return self._give_up(part, "the log is full")

    def forget_old(self, now: float) -> list[PartRequest]:
        """Forget ticks that are older than the limit although somebody may need them."""
        tick = self.chapters.too_old(now, self.tail.synced)
        return self._give_up(tick, f"they are older than {self._options.log_age_s_max} s")

    def old_at(self) -> float | None:
        """When `forget_old` will have something to forget."""
        return self.chapters.old_at(self.tail.synced)

    def _give_up(self, tick: int, why: str) -> list[PartRequest]:
        oldest = self.tail.oldest
        asks = self.forget(tick)
        if asks:
            what = f"ticks {oldest}–{self.tail.oldest - 1} are given up"
            asks.append(Note("warning", f"{what}: {why}, and its retention is lossy"))
        return asks
