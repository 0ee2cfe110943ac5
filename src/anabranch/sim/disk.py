"""A simulated disk that loses unsynced writes.

It stores the bytes of a real log (`store.segment`) and a catalog. A crash keeps a random prefix of
the unsynced bytes, torn at any position, with the rest missing or zero; and, independently, a
random prefix of the unsynced catalog writes. Every sync is followed by a seal, as the log format
requires.
"""

import copy
from random import Random

from anabranch.core.contract import Recovered
from anabranch.core.origin import renewal
from anabranch.core.origin.ledger import first_needed
from anabranch.core.origin.log_tail import LOST, SilentTick, decode_record, entry_of
from anabranch.store.segment import HEADER_BYTES, encode_entry, encode_seal, scan, segment_header

_SEGMENT_RECORDS = 64


class _Segment:
    """One file of the log."""

    __slots__ = ("data", "first_tick", "records", "synced")

    def __init__(self, first_tick: int) -> None:
        self.first_tick = first_tick
        self.data = bytearray(segment_header(first_tick))
        self.records = 0
        #: Bytes that are on disk for sure.
        self.synced = 0


class Disk:
    """The log and the catalog of one broker."""

    def __init__(self) -> None:
        self._segments = [_Segment(1)]
        self._catalog: dict[str, dict[str, bytes]] = {}
        self._puts: list[tuple[str, str, bytes | None]] = []
        self._puts_applied = 0
        #: What each record of the segments holds, by tick, for reading.
        self._records: dict[int, bytes] = {}
        self._last_tick = 0
        self._synced_tick = 0
        #: Every record that was on disk for sure at some time.
        self.ever_synced: dict[int, bytes] = {}
        #: Ticks that were given to something else later, and that.
        self.reused: list[tuple[int, bytes]] = []

    # -- while the broker lives -----------------------------------------------------------------

    def append(self, tick: int, record: bytes) -> None:
        """Write a record, unsynced."""
        segment = self._segments[-1]
        if segment.records >= _SEGMENT_RECORDS:
            segment = _Segment(tick)
            self._segments.append(segment)
        segment.data += encode_entry(tick, record)
        segment.records += 1
        self._records[tick] = record
        self._last_tick = tick

    def put(self, table: str, key: str, value: bytes | None) -> None:
        """Change the catalog, unsynced."""
        self._puts.append((table, key, value))

    def mark(self) -> tuple[int, int, int, int]:
        """What a sync that begins now will have written when it ends."""
        segment = self._segments[-1]
        puts = self._puts_applied + len(self._puts)
        return segment.first_tick, len(segment.data), self._last_tick, puts

    def sync(self, mark: tuple[int, int, int, int]) -> None:
        """Everything up to `mark` is on disk; a seal says so from now on."""
        first_tick, size, last_tick, puts = mark
        for segment in self._segments:
            if segment.first_tick < first_tick:
                segment.synced = len(segment.data)
            elif segment.first_tick == first_tick:
                segment.synced = max(segment.synced, size)
        for tick in range(self._synced_tick + 1, last_tick + 1):
            self._remember(tick, self._records[tick])
        if last_tick > self._synced_tick:
            self._segments[-1].data += encode_seal(last_tick)
            self._synced_tick = last_tick
        self._apply(puts - self._puts_applied)

    def _remember(self, tick: int, record: bytes) -> None:
        """A record is on disk for sure."""
        if self.ever_synced.setdefault(tick, record) == record:
            return
        entry = entry_of(tick, decode_record(record))
        if not (isinstance(entry, SilentTick) and entry.reason == LOST):
            self.reused.append((tick, record))

    def _apply(self, count: int) -> None:
        for table, key, value in self._puts[:count]:
            rows = self._catalog.setdefault(table, {})
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        self._puts_applied += count
        del self._puts[:count]

    def read(self, first: int, last: int, bytes_max: int) -> tuple[bytes, ...]:
        """Records from `first` on, up to `last` or about a number of bytes."""
        found: list[bytes] = []
        size = 0
        for tick in range(first, last + 1):
            record = self._records.get(tick)
            if record is None or (found and size + len(record) > bytes_max):
                break
            size += len(record)
            found.append(record)
        return tuple(found)

    def forget(self, tick: int) -> None:
        """Delete segments that hold nothing beyond `tick`."""
        while len(self._segments) > 1 and self._segments[1].first_tick <= tick + 1:
            gone = self._segments.pop(0)
            for old in range(gone.first_tick, gone.first_tick + gone.records):
                del self._records[old]

    # -- when it does not -----------------------------------------------------------------------

    def crash(self, rng: Random) -> int:
        """Lose what was not synced, or some of it; returns how many bytes of the log went."""
        lost = 0
        for index, segment in enumerate(self._segments):
            unsynced = len(segment.data) - segment.synced
            kept = rng.randint(0, unsynced) if unsynced else 0
            if kept == unsynced:
                continue
            lost = unsynced - kept
            del segment.data[segment.synced + kept :]
            if rng.random() < 0.3:
                segment.data += bytes(lost)
            # A segment is begun when the one before is synced, so nothing follows a tear.
            for gone in self._segments[index + 1 :]:
                lost += len(gone.data)
            del self._segments[index + 1 :]
            break
        self._apply(rng.randint(0, len(self._puts)))
        self._puts_applied += len(self._puts)
        self._puts.clear()
        return lost

    def recover(self) -> Recovered:
        """What a starting broker finds; torn bytes are cut off."""
        self._records.clear()
        records: list[bytes] = []
        expected = self._segments[0].first_tick
        for index, segment in enumerate(self._segments):
            is_last = index == len(self._segments) - 1
            confirmed = 0 if is_last else self._segments[index + 1].first_tick - 1
            found = scan(bytes(segment.data), expected, confirmed_tick=confirmed)
            if found.end_offset < HEADER_BYTES:
                segment.data = bytearray(segment_header(expected))
            else:
                del segment.data[found.end_offset :]
            segment.records = len(found.records)
            segment.synced = len(segment.data)
            for record in found.records:
                self._records[expected] = record
                self._remember(expected, record)
                expected += 1
            records += found.records
        self._last_tick = self._synced_tick = expected - 1
        catalog = {table: dict(rows) for table, rows in self._catalog.items()}
        first_tick = self._segments[0].first_tick
        needed = min(max(first_needed(catalog), first_tick), expected)
        return Recovered(catalog, first_tick, tuple(records[needed - first_tick :]), needed)

    # -- copies ---------------------------------------------------------------------------------

    def copied(self, rng: Random) -> "Disk":
        """A copy of what is on the disk at this moment; the broker goes on."""
        found = copy.deepcopy(self)
        found.crash(rng)
        found.recover()
        return found

    def set_back(self, old: "Disk", *, keeps_catalog: bool) -> "Disk":
        """The disk as it was; or its log as it was, if the catalog goes with that."""
        found = copy.deepcopy(old)
        found.ever_synced, found.reused = self.ever_synced, self.reused
        if keeps_catalog and first_needed(self._catalog) <= old.head() + 1:
            found._catalog = self._catalog
        return found

    def renew(self, spare: int) -> list[tuple[int, int]]:
        """What `anabranch log renew` does to a log that is an old copy; the lost ticks. None if a
        crash has taken the verdict."""
        recovered = self.recover()
        first, last = recovered.first_tick, self._last_tick
        what = renewal.renewal_plan(recovered.catalog, first, last, above=0, spare=spare)
        if what is None:
            return []
        old = dict(self._records)
        puts = renewal.final_puts(what, recovered.catalog, recovered.records)
        time_ns = decode_record(old[last]).time_ns if old else 0
        again = [renewal.reappended(old[tick], time_ns) for tick in what.disputed]
        self._segments = [_Segment(first)]
        self._records.clear()
        self._last_tick = self._synced_tick = first - 1
        for tick, record in old.items():
            disputed = tick in what.disputed
            self.append(tick, renewal.lost_record(tick, time_ns) if disputed else record)
        for tick in range(last + 1, what.base + 1):
            self.append(tick, renewal.lost_record(tick, time_ns))
        for copied in again:
            if copied is not None:
                self.append(self._last_tick + 1, copied)
        for put in puts:
            self.put(put.table, put.key, put.value)
        self.sync(self.mark())
        return [(what.disputed_first, what.disputed_last), (last + 1, what.base)]

    def synced_tick(self) -> int:
        """The newest tick that is on disk for sure."""
        return self._synced_tick

    def head(self) -> int:
        """The newest tick."""
        return self._last_tick
