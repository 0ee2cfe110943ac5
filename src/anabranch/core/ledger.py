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
5. Restoring reads every record once; only the newest stay in memory.
"""

import msgspec

from anabranch.core import publishers as publishers_table
from anabranch.core import release as release_table
from anabranch.core.asks import Ask
from anabranch.core.commit import Commit
from anabranch.core.contract import Append, Note, Put, Recovered
from anabranch.core.marks import Marks
from anabranch.core.options import Options
from anabranch.core.publishers import Publishers
from anabranch.core.records import (
    AnyRecord,
    BlankRecord,
    EventRecord,
    MarkRecord,
    decode_record,
    encode_record,
)
from anabranch.core.release import Release
from anabranch.core.tail import STORED_LIMITS, Entry, Tail, entry_of
from anabranch.model.encoding import decode_envelope
from anabranch.model.errors import LocalError
from anabranch.model.network import Network
from anabranch.model.version import Version

TABLE = "stream"
KEY = "beginning"

#: Lossy retention forgets this part of the log at a time.
_LOSSY_PART = 8


class Beginning(msgspec.Struct, frozen=True, array_like=True):
    """Where the log begins, and what was true there."""

    #: The newest tick that was deleted.
    forgotten: int = 0
    #: No tick after it was made before this.
    time_ns: int = 0
    #: The newest mark up to there.
    mark: int = 0
    vector: dict[str, Version] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Beginning)


class Ledger:
    """The memory of one origin. See the rules at the top of this module."""

    __slots__ = ("beginning", "clock_ns", "commit", "marks", "publishers", "release", "tail")

    def __init__(
        self, recovered: Recovered, network: Network, options: Options, now: float
    ) -> None:
        catalog = recovered.catalog
        stored = catalog.get(TABLE, {}).get(KEY)
        beginning = Beginning() if stored is None else _decoder.decode(stored)
        self.beginning = beginning
        self.publishers = Publishers(
            catalog.get(publishers_table.TABLE, {}), options.publishers_max
        )
        self.release = Release(
            network.edges, catalog.get(release_table.TABLE, {}), beginning.forgotten
        )
        keeps_vectors = "vector-not-persisted" not in options.plants
        self.marks = Marks(beginning.mark, beginning.vector) if keeps_vectors else Marks(0, {})
        self.tail = self._read(recovered, options, keeps_vectors)
        self.tail.trim(options.recent_ticks_max, options.recent_bytes_max)
        self.commit = Commit()
        #: Invariant: never decreases, and no tick is later.
        self.clock_ns = max(int(now * 1e9), self.tail.last_time_ns, beginning.time_ns)

    def _read(self, recovered: Recovered, options: Options, keeps_vectors: bool) -> Tail:
        oldest = self.beginning.forgotten + 1
        skipped = oldest - recovered.first_tick
        if not 0 <= skipped <= len(recovered.records):
            raise LocalError(
                f"the log has ticks {recovered.first_tick} to"
                f" {recovered.first_tick + len(recovered.records) - 1}, but the catalog says that"
                f" it begins with {oldest}; they do not belong together, restore both"
            )
        records = recovered.records[skipped:]
        tail = Tail(oldest, max(oldest, oldest + len(records) - options.recent_ticks_max))
        for tick, data in enumerate(records, oldest):
            record = decode_record(data)
            if isinstance(record, EventRecord):
                self.publishers.recover(decode_envelope(record.body, STORED_LIMITS).id)
            elif isinstance(record, BlankRecord):
                self.publishers.recover(record.id)
            elif keeps_vectors and isinstance(record, MarkRecord):
                self.marks.add(tick, record.vector)
            if tick >= tail.first:
                tail.append(entry_of(tick, record))
        tail.sync(tail.last)
        return tail

    # -- time -----------------------------------------------------------------------------------

    def time_ns(self, now: float) -> int:
        """The time of a tick that is made now."""
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
        return Append(tick, encode_record(record))

    def forget(self, tick: int) -> list[Ask]:
        """The log begins after this tick, or after the newest one that is synced, from now on.

        When what is returned is synced, records up to there may be deleted."""
        tick = min(tick, self.tail.synced)
        if tick < self.tail.oldest:
            return []
        mark = self.marks.at(tick)
        self.beginning = Beginning(tick, self.clock_ns, mark, dict(self.marks.vector(mark)))
        asks: list[Ask] = [*self.publishers.checkpoint(), *self.release.checkpoint()]
        asks.append(Put(TABLE, KEY, _encoder.encode(self.beginning)))
        self.tail.forget(tick)
        self.marks.forget(tick)
        self.commit.gathering.is_dirty = True
        self.commit.gathering.forget = tick
        return asks

    def make_room(self) -> list[Ask]:
        """Forget the oldest ticks although somebody may need them."""
        oldest = self.tail.oldest
        asks = self.forget(oldest - 1 + max(self.tail.log_ticks // _LOSSY_PART, 1))
        if asks:
            what = f"ticks {oldest}–{self.tail.oldest - 1} are given up"
            asks.append(Note("warning", f"{what}: the log is full, and its retention is lossy"))
        return asks
