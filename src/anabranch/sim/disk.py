"""A simulated disk that loses unsynced writes.

It stores the bytes of real logs (`store.segment`) and a catalog: the log of the broker's own
stream, and a log for each copy of another stream that the broker keeps. Rules:

1. A crash keeps a random prefix of the unsynced bytes of each log, torn at any position, with the
   rest missing or zero; and, independently, a random prefix of the unsynced catalog writes, which
   include openings, cuts and drops of copies, and resets of the own log.
2. Every sync is followed by a seal in each log, as the log format requires.
3. A copy that is damaged is lost at the next start. The log of the own stream never is.
4. While `refuses_copies` is set, the disk has no space for copies: they refuse appends, and tell so
   at the next sync.
"""

import copy
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from anabranch.core.contract import (
    COPY_ROWS,
    SEPARATOR,
    UNLOADED_TABLES,
    Recovered,
    RecoveredCopy,
)
from anabranch.core.origin import renewal
from anabranch.core.origin.ledger import first_needed
from anabranch.core.origin.log_tail import LOST, SilentTick, decode_record, entry_of
from anabranch.store.segment import (
    HEADER_BYTES,
    CorruptError,
    encode_entry,
    encode_seal,
    scan,
    segment_header,
)

_SEGMENT_RECORDS = 64


class _Segment:
    """One file of a log."""

    __slots__ = ("data", "first_tick", "records", "synced")

    def __init__(self, first_tick: int) -> None:
        self.first_tick = first_tick
        self.data = bytearray(segment_header(first_tick))
        self.records = 0
        #: Bytes that are on disk for sure.
        self.synced = 0

    def end_of(self, tick: int) -> int:
        """The bytes that hold the records up to this tick, with what seals them."""
        found = scan(bytes(self.data), self.first_tick)
        following = tick + 1 - self.first_tick
        return found.offsets[following] if following < len(found.offsets) else found.end_offset


class _LogMark(NamedTuple):
    """What a sync of one log will have written."""

    first_tick: int
    size: int
    last_tick: int
    #: The number of cuts so far.
    cuts: int


class _Log:
    """The log of one stream, from any tick on."""

    __slots__ = (
        "cuts",
        "cuts_due",
        "is_refusing",
        "last_tick",
        "records",
        "segments",
        "synced_tick",
    )

    def __init__(self, first_tick: int = 1) -> None:
        self.segments = [_Segment(first_tick)]
        #: What each record of the segments holds, by tick, for reading.
        self.records: dict[int, bytes] = {}
        self.last_tick = self.synced_tick = first_tick - 1
        #: Whether appends were refused, and the broker has not begun again after `last_tick`.
        self.is_refusing = False
        #: After which ticks the log was cut, and how many of these cuts are not on disk yet.
        self.cuts: list[int] = []
        self.cuts_due = 0

    def append(self, tick: int, record: bytes) -> None:
        assert not self.cuts_due, f"tick {tick} is appended before the cut is synced"
        segment = self.segments[-1]
        if segment.records >= _SEGMENT_RECORDS:
            segment = _Segment(tick)
            self.segments.append(segment)
        segment.data += encode_entry(tick, record)
        segment.records += 1
        self.records[tick] = record
        self.last_tick = tick

    def mark(self) -> _LogMark:
        segment = self.segments[-1]
        return _LogMark(segment.first_tick, len(segment.data), self.last_tick, len(self.cuts))

    def sync(self, mark: _LogMark) -> range:
        """Everything up to `mark` is on disk, unless it was cut off meanwhile; the ticks that were
        not before."""
        last_tick = min((mark.last_tick, *self.cuts[mark.cuts :]))
        if last_tick < mark.last_tick:
            self._sync_through(last_tick)
        else:
            for segment in self.segments:
                if segment.first_tick < mark.first_tick:
                    segment.synced = len(segment.data)
                elif segment.first_tick == mark.first_tick:
                    segment.synced = max(segment.synced, mark.size)
        ticks = range(self.synced_tick + 1, last_tick + 1)
        if ticks:
            self.segments[-1].data += encode_seal(last_tick)
            self.synced_tick = last_tick
        return ticks

    def _sync_through(self, tick: int) -> None:
        for segment in self.segments:
            if segment.first_tick <= tick:
                segment.synced = max(segment.synced, segment.end_of(tick))

    def hide(self, tick: int) -> None:
        """Cut off the records after this tick, unsynced."""
        for gone in range(tick + 1, self.last_tick + 1):
            del self.records[gone]
        self.last_tick = tick
        self.is_refusing = False
        self.cuts.append(tick)
        self.cuts_due += 1

    def cut(self, tick: int) -> None:
        """The cut is on disk."""
        while len(self.segments) > 1 and self.segments[-1].first_tick > tick:
            self.segments.pop()
        segment = self.segments[-1]
        del segment.data[segment.end_of(tick) :]
        segment.records = max(tick + 1 - segment.first_tick, 0)
        segment.synced = min(segment.synced, len(segment.data))
        self.synced_tick = min(self.synced_tick, tick)
        self.cuts_due -= 1

    def forget(self, tick: int) -> None:
        """Delete segments that hold nothing beyond `tick`."""
        while len(self.segments) > 1 and self.segments[1].first_tick <= tick + 1:
            gone = self.segments.pop(0)
            for old in range(gone.first_tick, gone.first_tick + gone.records):
                self.records.pop(old, None)

    def crash(self, rng: Random) -> int:
        """Lose what was not synced, or some of it; returns how many bytes went."""
        lost = 0
        for index, segment in enumerate(self.segments):
            unsynced = len(segment.data) - segment.synced
            kept = rng.randint(0, unsynced) if unsynced else 0
            if kept == unsynced:
                continue
            lost = unsynced - kept
            del segment.data[segment.synced + kept :]
            if rng.random() < 0.3:
                segment.data += bytes(lost)
            # A segment is begun when the one before is synced, so nothing follows a tear.
            for gone in self.segments[index + 1 :]:
                lost += len(gone.data)
            del self.segments[index + 1 :]
            break
        return lost

    def recover(self) -> list[bytes]:
        """All records that a start finds; torn bytes are cut off. `CorruptError` if synced ones are
        missing."""
        self.records.clear()
        records: list[bytes] = []
        expected = self.segments[0].first_tick
        for index, segment in enumerate(self.segments):
            is_last = index == len(self.segments) - 1
            confirmed = self.synced_tick if is_last else self.segments[index + 1].first_tick - 1
            found = scan(bytes(segment.data), expected, confirmed_tick=confirmed)
            if found.end_offset < HEADER_BYTES:
                segment.data = bytearray(segment_header(expected))
            else:
                del segment.data[found.end_offset :]
            segment.records = len(found.records)
            segment.synced = len(segment.data)
            for record in found.records:
                self.records[expected] = record
                expected += 1
            records += found.records
        self.last_tick = self.synced_tick = expected - 1
        self.is_refusing = False
        self.cuts_due = 0
        return records

    def read(self, first: int, last: int, bytes_max: int) -> tuple[bytes, ...]:
        found: list[bytes] = []
        size = 0
        for tick in range(first, last + 1):
            record = self.records.get(tick)
            if record is None or (found and size + len(record) > bytes_max):
                break
            size += len(record)
            found.append(record)
        return tuple(found)


class Mark(NamedTuple):
    """What a sync that begins now will have written when it ends."""

    own: tuple[_Log, _LogMark]
    #: The number of catalog writes since the disk was new.
    writes: int
    copies: tuple[tuple[str, _Log, _LogMark], ...]


class _Put(NamedTuple):
    table: str
    key: str
    value: bytes | None


class _CopyChange(NamedTuple):
    """A copy is opened, or dropped (None). Of the own stream: its log begins anew."""

    stream: str
    log: _Log | None


class _CopyCut(NamedTuple):
    """A copy is cut off after this tick."""

    log: _Log
    last_tick: int


#: Told of every record of a copy that is on disk for sure: stream, tick, record.
CopyWatch = Callable[[str, int, bytes], None]


class Disk:
    """The logs and the catalog of one broker."""

    def __init__(self) -> None:
        #: Every record of the own stream that was on disk for sure at some time.
        self.ever_synced: dict[int, bytes] = {}
        #: Ticks of it that were given to something else later, and that.
        self.reused: list[tuple[int, bytes]] = []
        self.refuses_copies = False
        #: Whether records count when copies have confirmed them, and not when they are synced.
        self.is_replicated = False
        self._confirmed = 0
        self.on_copy_synced: CopyWatch | None = None
        self.lose()

    def lose(self) -> None:
        """Lose everything: the disk is as a new one."""
        #: The own log: as the broker sees it, and as the catalog on disk does.
        self._own = self._own_kept = _Log()
        #: Whether the own log was dropped, and is about to be opened.
        self._is_own_dropped = False
        self._catalog: dict[str, dict[str, bytes]] = {}
        #: Stream → its copy: as the broker sees it, and as the catalog on disk does.
        self._copies: dict[str, _Log] = {}
        self._kept: dict[str, _Log] = {}
        #: Streams whose copies were found damaged, and neither dropped nor opened since.
        self._lost: set[str] = set()
        self._writes: list[_Put | _CopyChange | _CopyCut] = []
        self._writes_applied = 0
        #: Copies that have refused appends since the last sync.
        self._refusing: dict[str, _Log] = {}

    # -- while the broker lives -----------------------------------------------------------------

    def append(self, tick: int, record: bytes, stream: str = "") -> None:
        """Write a record, unsynced."""
        if not stream:
            self._own.append(tick, record)
            return
        log = self._copies[stream]
        if tick != log.last_tick + 1:
            assert log.is_refusing, f"tick {tick} of {stream} does not follow {log.last_tick}"
            return
        log.is_refusing = self.refuses_copies
        if log.is_refusing:
            self._refusing[stream] = log
        else:
            log.append(tick, record)

    def put(self, table: str, key: str, value: bytes | None) -> None:
        """Change the catalog, unsynced."""
        self._writes.append(_Put(table, key, value))

    def open_copy(self, stream: str, first_tick: int) -> None:
        """Create a copy, or the own log anew, unsynced."""
        assert first_tick >= 1
        log = _Log(first_tick)
        if stream:
            assert stream not in self._copies, f"the copy of {stream} exists"
            self._copies[stream] = log
        else:
            assert self._is_own_dropped, "the own log exists"
            self._is_own_dropped = False
            self._own = log
        self._writes.append(_CopyChange(stream, log))

    def cut_copy(self, stream: str, last_tick: int) -> None:
        """Cut off the records of a copy after this tick, unsynced."""
        log = self._copies[stream]
        assert last_tick >= log.segments[0].first_tick - 1, f"{stream} begins after {last_tick}"
        if last_tick < log.last_tick:
            log.hide(last_tick)
            self._refusing.pop(stream, None)
            self._writes.append(_CopyCut(log, last_tick))

    def drop_copy(self, stream: str) -> None:
        """Delete a copy with its rows, unsynced; or the own log, which is opened at once."""
        if not stream:
            self._is_own_dropped = True
            return
        assert stream in self._copies or stream in self._lost, f"there is no copy of {stream}"
        self._copies.pop(stream, None)
        self._writes.append(_CopyChange(stream, None))

    def mark(self) -> Mark:
        """What a sync that begins now will have written when it ends."""
        copies = tuple((stream, log, log.mark()) for stream, log in self._copies.items())
        assert not self._is_own_dropped, "the own log was dropped and not opened"
        return Mark((self._own, self._own.mark()), self._writes_applied + len(self._writes), copies)

    def sync(self, mark: Mark) -> None:
        """Everything up to `mark` is on disk; seals say so from now on."""
        own, own_mark = mark.own
        for tick in own.sync(own_mark):
            if not self.is_replicated:
                self._remember(tick, own.records[tick])
        for stream, log, log_mark in mark.copies:
            for tick in log.sync(log_mark):
                if self.on_copy_synced is not None:
                    self.on_copy_synced(stream, tick, log.records[tick])
        self._apply(max(mark.writes - self._writes_applied, 0))

    def confirmed(self, tick: int) -> None:
        """Copies have confirmed the own stream up to here."""
        for each in range(self._confirmed + 1, tick + 1):
            if each in self._own.records:
                self._remember(each, self._own.records[each])
        self._confirmed = max(self._confirmed, tick)

    def refusals(self) -> list[tuple[str, int]]:
        """The copies that have refused appends since this was asked, and their last ticks."""
        found, self._refusing = self._refusing, {}
        return [
            (stream, log.last_tick)
            for stream, log in found.items()
            if self._copies.get(stream) is log
        ]

    def _remember(self, tick: int, record: bytes) -> None:
        """A record of the own stream is on disk for sure."""
        if self.ever_synced.setdefault(tick, record) == record:
            return
        entry = entry_of(tick, decode_record(record))
        if not (isinstance(entry, SilentTick) and entry.reason == LOST):
            self.reused.append((tick, record))

    def _apply(self, count: int) -> None:
        for write in self._writes[:count]:
            if isinstance(write, _CopyChange):
                self._change(write)
                continue
            if isinstance(write, _CopyCut):
                write.log.cut(write.last_tick)
                continue
            rows = self._catalog.setdefault(write.table, {})
            if write.value is None:
                rows.pop(write.key, None)
            else:
                rows[write.key] = write.value
        self._writes_applied += count
        del self._writes[:count]

    def _change(self, change: _CopyChange) -> None:
        stream, log = change
        if not stream:
            assert log is not None
            self._own_kept = log
            return
        self._lost.discard(stream)
        # The rows of a copy go with it.
        rows, prefix = self._catalog.get(COPY_ROWS, {}), stream + SEPARATOR
        for key in [key for key in rows if key.startswith(prefix)]:
            del rows[key]
        if log is None:
            self._kept.pop(stream, None)
        else:
            self._kept[stream] = log

    def read_rows(
        self, table: str, prefix: str, after: str, bytes_max: int
    ) -> tuple[tuple[tuple[str, bytes], ...], bool]:
        """Synced rows after a key, and whether they are the last ones."""
        rows = self._catalog.get(table, {})
        keys = sorted(key for key in rows if key.startswith(prefix) and key > after)
        found: list[tuple[str, bytes]] = []
        size = 0
        for key in keys:
            size += len(key.encode()) + len(rows[key])
            if found and size > bytes_max:
                break
            found.append((key, rows[key]))
        return tuple(found), len(found) == len(keys)

    def read(self, first: int, last: int, bytes_max: int, stream: str = "") -> tuple[bytes, ...]:
        """Records from `first` on, up to `last` or about a number of bytes."""
        log = self._copies.get(stream) if stream else self._own
        return () if log is None else log.read(first, last, bytes_max)

    def forget(self, tick: int, stream: str = "") -> None:
        """Delete segments that hold nothing beyond `tick`."""
        log = self._copies.get(stream) if stream else self._own
        if log is not None:
            log.forget(tick)

    # -- when it does not -----------------------------------------------------------------------

    def crash(self, rng: Random) -> int:
        """Lose what was not synced, or some of it; returns how many bytes of the logs went."""
        lost = self._own.crash(rng)
        self._apply(rng.randint(0, len(self._writes)))
        self._writes_applied += len(self._writes)
        self._writes.clear()
        self._copies = dict(self._kept)
        if self._own is not self._own_kept:
            # It was to begin anew.
            self._own = self._own_kept
            lost += self._own.crash(rng)
        self._is_own_dropped = False
        return lost + sum(log.crash(rng) for log in self._copies.values())

    def recover(self) -> Recovered:
        """What a starting broker finds; torn bytes are cut off."""
        first_tick = self._own.segments[0].first_tick
        records = self._own.recover()
        self._confirmed = 0
        for tick, record in enumerate(records, first_tick):
            if not self.is_replicated:
                self._remember(tick, record)
        catalog = {
            table: dict(rows)
            for table, rows in self._catalog.items()
            if table not in UNLOADED_TABLES
        }
        last_tick = self._own.last_tick
        needed = min(max(first_needed(catalog), first_tick), last_tick + 1)
        return Recovered(
            catalog,
            first_tick,
            tuple(records[needed - first_tick :]),
            needed,
            copies=self._recovered_copies(),
            lost_copies=tuple(sorted(self._lost)),
        )

    def _recovered_copies(self) -> dict[str, RecoveredCopy]:
        self._refusing.clear()
        found = {}
        for stream, log in self._copies.items():
            try:
                log.recover()
            except CorruptError:
                self._lost.add(stream)
            else:
                found[stream] = RecoveredCopy(log.segments[0].first_tick, log.last_tick)
        self._kept = {stream: self._copies[stream] for stream in found}
        self._copies = dict(self._kept)
        return found

    def damage_copy(self, stream: str, rng: Random) -> bool:
        """Change a bit of a copy, so that the next start loses it; False if no record is synced."""
        segments = [each for each in self._kept[stream].segments if each.synced > HEADER_BYTES]
        if segments:
            segment = rng.choice(segments)
            segment.data[rng.randrange(HEADER_BYTES, segment.synced)] ^= 1 << rng.randrange(8)
        return bool(segments)

    # -- old states -----------------------------------------------------------------------------

    def copied(self, rng: Random) -> "Disk":
        """What is on the disk at this moment, all copies included; the broker goes on."""
        found = self._cloned()
        found.crash(rng)
        found.recover()
        return found

    def set_back(self, old: "Disk", *, keeps_catalog: bool) -> "Disk":
        """The disk as it was; or its own log as it was, if the catalog goes with that. The copies
        are as old as the catalog, which describes them."""
        found = old._cloned()
        found.ever_synced, found.reused = self.ever_synced, self.reused
        if keeps_catalog and first_needed(self._catalog) <= old.head() + 1:
            found._catalog = self._catalog
            found._copies, found._kept, found._lost = self._copies, self._kept, self._lost
        return found

    def _cloned(self) -> "Disk":
        """The same again, with the same watch."""
        return copy.deepcopy(self, {id(self.on_copy_synced): self.on_copy_synced})

    def renew(self, spare: int) -> list[tuple[int, int]]:
        """What `anabranch log renew` does to a log that is an old copy; the lost ticks. None if a
        crash has taken the verdict. Copies stay."""
        recovered = self.recover()
        first, last = recovered.first_tick, self._own.last_tick
        what = renewal.renewal_plan(recovered.catalog, first, last, above=0, spare=spare)
        if what is None:
            return []
        old = dict(self._own.records)
        puts = renewal.final_puts(what, recovered.catalog, recovered.records)
        time_ns = decode_record(old[last]).time_ns if old else 0
        again = [renewal.reappended(old[tick], time_ns) for tick in what.disputed]
        self._own = self._own_kept = _Log(first)
        for tick, record in old.items():
            disputed = tick in what.disputed
            self.append(tick, renewal.lost_record(tick, time_ns) if disputed else record)
        for tick in range(last + 1, what.base + 1):
            self.append(tick, renewal.lost_record(tick, time_ns))
        for copied in again:
            if copied is not None:
                self.append(self._own.last_tick + 1, copied)
        for put in puts:
            self.put(put.table, put.key, put.value)
        self.sync(self.mark())
        return [(what.disputed_first, what.disputed_last), (last + 1, what.base)]

    def synced_tick(self) -> int:
        """The newest tick that is on disk for sure."""
        return self._own.synced_tick

    def head(self) -> int:
        """The newest tick."""
        return self._own.last_tick
