"""Verification, repair and renewal of a log.

**Repair** gives up the untrusted part of a corrupt log, so that the rest can be used again. Only an
operator can decide that; `plan` reports the cost and `perform` executes it. Rules:

1. Both hold the lock of the directory, so nothing else uses it.
2. Records before the damage stay. The record at the damage and all later ones are given up, but no
   byte is deleted: everything removed is kept beside the log, in files named `.damaged`.
3. A tick that was assigned is not assigned again: other brokers may have it, and would take a new
   event for a duplicate. Ticks that are given up and known to have existed stay as records without
   an event (`BlankRecord`); they are reported to subscribers as withheld.
4. Damage that affects no record (after the last one of a full segment) costs none.
5. An interrupted repair can be repeated: the knowledge about ticks is written first.

**Verification** reads every used byte of a log and checks it against everything known. A start
trusts a full segment whose CRC is right; `verify` reads record by record and checks the index too.
Rules:

6. A log that a start would refuse is corrupt (`log.Examination`); the error names the location.
7. A missing or wrong index is a *finding*, not corruption: the next start rebuilds it. So is an
   interrupted write at the end, which the next start truncates.
8. The log of a running broker can be verified; see `log_view`.
9. Copies of other streams are verified too, but not repaired: the broker sets a damaged one aside,
   and can get it again from others.

**Renewal** continues a log that is an old copy; see `HeldForRenewal`.

This module keeps no state.
"""

import itertools
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import msgspec

from anabranch.core.origin import ledger, renewal, rollback
from anabranch.core.origin.log_tail import LOST_PUBLISHER, BlankRecord, encode_record
from anabranch.core.origin.renewal import SPARE_TICKS, LogRenewal
from anabranch.model.durable_files import sync_directory, take_lock, write_whole
from anabranch.model.errors import LocalError
from anabranch.model.event import EventId
from anabranch.store.catalog import Catalog, CopyFacts, LogFacts, PutRow
from anabranch.store.files import CATALOG, COPIES, LOG, read_identity
from anabranch.store.log import (
    Examination,
    LogOptions,
    SegmentedLog,
    check_first,
    check_header,
    index_path,
    read_records,
    record_time_ns,
    records_after,
    segment_path,
    segment_paths,
    stored_index,
)
from anabranch.store.log_view import (
    LogPlace,
    copy_place,
    read_copies,
    read_facts,
    scan_steadily,
)
from anabranch.store.segment import (
    CorruptError,
    Scan,
    TimeOf,
    newest_tick,
    segment_header,
    segment_owner,
)

_BATCH_TICKS = 1_024


class RepairPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The actions and the cost of a repair."""

    state_directory: Path
    #: The location and the kind of the damage.
    path: Path
    offset: int
    reason: str
    #: Ticks before this one stay.
    tick: int
    #: Ticks up to this one are known to have existed; below `tick` if none is given up.
    last_tick: int
    #: Bytes that are cut off `path`.
    cut_bytes: int
    #: Segments that are removed completely.
    later: list[Path]

    @property
    def lost_ticks(self) -> int:
        """The known number of ticks that lose their records."""
        return max(self.last_tick - self.tick + 1, 0)


class Repair:
    """A state directory that is locked for repair."""

    def __init__(self, path: Path, time_of: TimeOf = record_time_ns) -> None:
        """`path`: a segment of a log, the log, or its state directory."""
        self._path = path
        self.directory = state_directory_of(path)
        self._log_directory = self.directory / LOG
        self._owner = segment_owner(*read_identity(self.directory))
        self._time_of = time_of
        self._lock = take_lock(self.directory, "repairing the log")
        try:
            self._catalog = Catalog(self.directory / CATALOG)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        self._catalog.close()
        os.close(self._lock)

    # -- planning -------------------------------------------------------------------------------

    def plan(self, progress: Callable[[int], None] = lambda _bytes: None) -> RepairPlan | None:
        """Return the necessary actions; None if the log is not corrupt."""
        examination = Examination(
            self._log_directory,
            owner=self._owner,
            stride_bytes=LogOptions().stride_bytes,
            time_of=self._time_of,
            progress=progress,
        )
        try:
            examination.result(self._catalog.facts)
        except CorruptError as error:
            return self._planned(error)
        return None

    def _planned(self, error: CorruptError) -> RepairPlan:
        path = Path(error.path)
        if self._path.is_file() and not self._path.samefile(path):
            raise LocalError(f"the first damage is not in {self._path}, but in {path}; repair that")
        data = path.read_bytes() if path.exists() else b""
        following = [later for tick, later in self._segments() if tick > int(path.stem)]
        took_nothing = bool(following) and int(following[0].stem) == error.tick
        later = [] if took_nothing else following
        known = 0 if took_nothing else self._newest_known(data, error, later)
        return RepairPlan(
            state_directory=self.directory,
            path=path,
            offset=error.offset,
            reason=error.reason,
            tick=error.tick,
            last_tick=max(known, error.tick - 1),
            cut_bytes=len(data[error.offset :].rstrip(b"\0")),
            later=later,
        )

    def _segments(self) -> list[tuple[int, Path]]:
        return segment_paths(self._log_directory)

    def _newest_known(self, data: bytes, error: CorruptError, later: list[Path]) -> int:
        """Return the newest tick that is known to have existed."""
        facts = self._catalog.facts
        known = [facts.synced_tick, facts.begun_tick - 1]
        known.append(newest_tick(data, error.offset, error.tick))
        for path in later:
            content = path.read_bytes()
            index = stored_index(path)
            known += [int(path.stem) - 1, index.last_tick if index else 0]
            known.append(newest_tick(content, 0, error.tick))
        return max(known)

    # -- performing -----------------------------------------------------------------------------

    def perform(self, plan: RepairPlan) -> list[Path]:
        """Execute the plan; return the files that keep the removed data."""
        facts = self._catalog.facts
        first_tick = int(plan.path.stem)
        begun = first_tick if plan.path.exists() and plan.offset else 0
        last_tick = max(facts.synced_tick, plan.last_tick)
        # Once this is stored, everything below can be interrupted and repeated.
        self._catalog.commit([], LogFacts(last_tick, min(facts.begun_tick, begun)))
        kept = []
        for path in reversed(plan.later):
            kept.append(_damaged_path(path))
            path.rename(kept[-1])
            index_path(path).unlink(missing_ok=True)
            sync_directory(self._log_directory)
        if plan.path.exists():
            kept.append(self._cut(plan, first_tick))
        self._fill(plan)
        return kept[::-1]

    def _cut(self, plan: RepairPlan, first_tick: int) -> Path:
        """Remove the data after the damage."""
        data = plan.path.read_bytes()
        removed = _damaged_path(plan.path)
        write_whole(removed, data[plan.offset :].rstrip(b"\0"))
        index_path(plan.path).unlink(missing_ok=True)
        left = data[: plan.offset]
        if not left:
            left = segment_header(first_tick, secrets.randbits(32), self._owner)
        write_whole(plan.path, left)
        return removed

    def _fill(self, plan: RepairPlan) -> None:
        """Write blank records for the ticks that are known to have existed (rule 3)."""
        log = SegmentedLog(self._log_directory, owner=self._owner, time_of=self._time_of)
        newest = read_records(log.pieces, log.last_tick, log.last_tick, 1)
        time_ns = self._time_of(newest[0]) if newest else 0
        ticks = range(log.last_tick + 1, plan.last_tick + 1)
        for start in range(0, len(ticks), _BATCH_TICKS):
            part = ticks[start : start + _BATCH_TICKS]
            log.append([_blank(tick, time_ns) for tick in part])
            log.sync()
            log.rotate()
        log.close()
        self._catalog.commit([], LogFacts(log.last_tick, log.begun_tick))


def state_directory_of(path: Path) -> Path:
    """Return the state directory that contains this path, or is it."""
    for candidate in (path, path.parent, path.parent.parent):
        if candidate.name == COPIES and (candidate.parent / CATALOG).exists():
            raise LocalError(
                f"{path} is part of a copy of another broker's stream, which is not repaired: start"
                " the broker, which sets a damaged copy aside and gets the stream again"
            )
        if (candidate / CATALOG).exists():
            return candidate
    raise LocalError(f"{path} is not in a state directory; give a segment named in an error")


def _blank(tick: int, time_ns: int) -> bytes:
    return encode_record(BlankRecord(time_ns, EventId(LOST_PUBLISHER, 1, tick)))


def _damaged_path(path: Path) -> Path:
    """Return an unused name beside this file."""
    for number in itertools.count(1):
        found = path.with_name(f"{path.name}.damaged" + (f"-{number}" if number > 1 else ""))
        if not found.exists():
            return found
    raise AssertionError("there is always another number")


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The result for a log without damage."""

    segments: int
    records: int
    bytes: int
    first_tick: int
    #: `first_tick` − 1 if there are no records.
    last_tick: int
    #: Problems that the next start fixes by itself.
    findings: list[str]


def verify(
    place: LogPlace, time_of: TimeOf, progress: Callable[[int], None] = lambda _bytes: None
) -> Verified:
    """Verify everything in a log; raise `CorruptError` at the first damage."""
    return _verify(place, read_facts(place), time_of, progress)


def verify_copy(
    place: LogPlace,
    stream: str,
    time_of: TimeOf,
    progress: Callable[[int], None] = lambda _bytes: None,
) -> Verified | None:
    """Verify the copy of a stream; None if there is none, or only a lost one.

    A running broker may delete it, or parts of it, at the same time. Damage is damage if the
    catalog still says the same afterwards.
    """
    known: CopyFacts | None = None
    while True:
        facts = next((each for each in read_copies(place) if each.stream == stream), None)
        if facts is None or facts.is_lost:
            return None
        try:
            return _verify(copy_place(place, facts), facts.log_facts, time_of, progress)
        except CorruptError:
            if facts == known:
                raise
            known = facts


def _verify(
    place: LogPlace, facts: LogFacts, time_of: TimeOf, progress: Callable[[int], None]
) -> Verified:
    paths = segment_paths(place.directory)
    check_first(paths, facts)
    if not paths or paths[-1][0] < facts.begun_tick:
        _raise_if_missing(place, facts)
    findings: list[str] = []
    records = size = 0
    last_tick = paths[0][0] - 1 if paths else 0
    for number, (first_tick, path) in enumerate(paths):
        is_last = number == len(paths) - 1
        confirmed = facts.synced_tick if is_last else paths[number + 1][0] - 1
        try:
            found = scan_steadily(path, first_tick, place.owner, confirmed)
            _check_end(path, found, None if is_last else confirmed, findings)
            if is_last:
                check_header(path, found, facts)
            else:
                findings += _index_findings(path, found, time_of)
            progress(path.stat().st_size)
        except FileNotFoundError:
            # Its running broker has just deleted it.
            continue
        records += len(found.records)
        size += found.end_offset
        last_tick = found.last_tick
    return Verified(
        segments=len(paths),
        records=records,
        bytes=size,
        first_tick=paths[0][0] if paths else facts.kept_tick or 1,
        last_tick=last_tick if paths else (facts.kept_tick or 1) - 1,
        findings=findings,
    )


def _raise_if_missing(place: LogPlace, facts: LogFacts) -> None:
    if facts.begun_tick:
        path = segment_path(place.directory, facts.begun_tick)
        reason = "the segment is missing, though the catalog records it"
        raise CorruptError(reason, path=str(path), offset=0, tick=facts.begun_tick)


def _check_end(path: Path, found: Scan, full_tick: int | None, findings: list[str]) -> None:
    """Check the end of a segment; `full_tick` is the last tick of a full segment."""
    if full_tick is None:
        if found.state == "torn":
            findings.append(f"{path}: an interrupted write at byte {found.end_offset}")
    elif found.state == "torn" or found.last_tick != full_tick:
        reason = "the segment is full, but it does not end as it was written"
        tick = min(found.last_tick, full_tick) + 1
        raise CorruptError(reason, path=str(path), offset=found.end_offset, tick=tick)


def _index_findings(path: Path, found: Scan, time_of: TimeOf) -> list[str]:
    """Return the problems of the index of a full segment."""
    data = path.read_bytes()
    index = stored_index(path)
    name = index_path(path)
    if index is None:
        return [f"{name}: the index is missing or damaged"]
    if index.first_tick != found.first_tick:
        return [f"{name}: the index is of another segment"]
    if index.length > found.end_offset:
        reason = "the segment is full, but it does not end as it was written"
        tick = found.last_tick + 1
        raise CorruptError(reason, path=str(path), offset=found.end_offset, tick=tick)
    right = (found.last_tick, found.end_offset, found.salt, crc32(data))
    if (index.last_tick, index.length, index.salt, index.crc) != right:
        return [f"{name}: the index is of another segment"]
    for point in index.points:
        place = point.tick - found.first_tick
        if not 0 <= place < len(found.records) or found.offsets[place] != point.offset:
            return [f"{name}: tick {point.tick} is not at byte {point.offset}"]
        if time_of(found.records[place]) != point.time_ns:
            return [f"{name}: tick {point.tick} has another time"]
    if any(one.tick >= other.tick for one, other in pairwise(index.points)):
        return [f"{name}: the points are not in order"]
    return []


_RENEW_BATCH_TICKS = 1_024


class RenewalPlan(msgspec.Struct, frozen=True, array_like=True):
    """The actions of a renewal. Kept in the catalog until they are done."""

    what: LogRenewal
    #: The first segment that is rewritten, 0 if none is.
    rewritten_from: int = 0
    #: The directory beside the log that keeps the old segments.
    kept: str = ""
    #: Whether they have been moved there.
    is_moved: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RenewalPlan)


def check_renewed(catalog: Catalog, directory: Path) -> None:
    """Raise `LocalError` if a renewal was interrupted, or if its plan is unreadable."""
    if _plan_in(catalog, directory) is not None:
        raise LocalError(
            f"a renewal of the log in {directory} was interrupted; run 'anabranch log renew"
            f" {directory}' to finish it"
        )


def _plan_in(catalog: Catalog, directory: Path) -> RenewalPlan | None:
    """Return the plan of an interrupted renewal; raise `LocalError` if it is damaged."""
    begun = catalog.tables.get(rollback.TABLE, {}).get(rollback.RENEWING)
    place = (rollback.TABLE, rollback.RENEWING)
    is_damaged = any((record.table, record.key) == place for record in catalog.damaged)
    try:
        if begun is not None:
            return _decoder.decode(begun)
    except (msgspec.DecodeError, UnicodeDecodeError):
        is_damaged = True
    if is_damaged:
        raise LocalError(
            f"a renewal of the log in {directory} was interrupted, and its plan in {CATALOG} is"
            f" damaged; put a good copy of {directory} in its place, and run 'anabranch log renew"
            f" {directory}' again"
        )
    return None


class HeldForRenewal:
    """A state directory that is locked for renewing a log that is an old copy.

    `core.origin.renewal` defines the result. Rules:

    1. The lock of the directory is held, so nothing else uses it. The log must not be corrupt.
    2. If ticks are disputed, the segments from there on are rewritten; the old ones stay beside the
       log, in a directory named `log.renewed-1` or higher.
    3. An interrupted renewal can be repeated. The plan is stored in the catalog first; until it is
       carried out, the broker does not start.
    """

    def __init__(self, path: Path) -> None:
        self.directory = state_directory_of(path)
        self._log_directory = self.directory / LOG
        self._owner = segment_owner(*read_identity(self.directory))
        self._lock = take_lock(self.directory, "renewing the log")
        try:
            self._catalog = Catalog(self.directory / CATALOG)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        self._catalog.close()
        os.close(self._lock)

    # -- planning -------------------------------------------------------------------------------

    def plan(self, above: int = 0, spare: int = SPARE_TICKS) -> RenewalPlan | None:
        """Return the necessary actions; None if there is no evidence that the log is an old copy.

        `above`: a tick that the operator knows of.
        """
        tables = self._catalog.tables
        begun = _plan_in(self._catalog, self.directory)
        if begun is not None:
            return begun
        log = self._open(self._log_directory, self._catalog.facts)
        first, last = log.first_tick, log.last_tick
        log.close()
        what = renewal.renewal_plan(tables, first, last, above=above, spare=spare)
        if what is None:
            return None
        if not what.disputed:
            return RenewalPlan(what)
        starts = [tick for tick, _ in segment_paths(self._log_directory)]
        rewritten_from = max(tick for tick in starts if tick <= what.disputed_first)
        return RenewalPlan(what, rewritten_from, self._free_name())

    def _open(self, directory: Path, facts: LogFacts = LogFacts()) -> SegmentedLog:  # noqa: B008
        return SegmentedLog(directory, owner=self._owner, facts=facts)

    def _free_name(self) -> str:
        for number in itertools.count(1):
            name = f"{LOG}.renewed-{number}"
            if not (self.directory / name).exists():
                return name
        raise AssertionError("there is always another number")

    # -- performing -----------------------------------------------------------------------------

    def perform(
        self, plan: RenewalPlan, progress: Callable[[int], None] = lambda _ticks: None
    ) -> Path | None:
        """Execute the plan; return the directory of the replaced segments, if any."""
        catalog, what = self._catalog, plan.what
        self._store_plan(plan)
        kept = self.directory / plan.kept if plan.rewritten_from else None
        if kept is not None and not plan.is_moved:
            self._move(plan, kept)
        puts = renewal.final_puts(what, catalog.tables, self._recent(kept))
        log = self._open(self._log_directory) if kept is None else self._rewritten(plan, kept)
        newest_ns = _newest_ns(log)
        ticks = range(log.last_tick + 1, what.base + 1)
        lost = (renewal.lost_record(tick, newest_ns) for tick in ticks)
        for part in _batches(itertools.chain(lost, self._disputed_records(what, kept, newest_ns))):
            _append(log, part)
            progress(len(part))
        log.close()
        rows: list[PutRow] = [(put.table, put.key, put.value) for put in puts]
        rows.append((rollback.TABLE, rollback.RENEWING, None))
        catalog.commit(rows, LogFacts(log.last_tick, log.begun_tick))
        return kept

    def _store_plan(self, plan: RenewalPlan) -> None:
        row: PutRow = (rollback.TABLE, rollback.RENEWING, _encoder.encode(plan))
        self._catalog.commit([row], self._catalog.facts)

    def _recent(self, kept: Path | None) -> Iterator[bytes]:
        """Yield the original records that are not covered by the catalog."""
        # A damaged row may have contained something that only the log can provide now.
        catalog = self._catalog
        first = 1 if catalog.damaged else ledger.first_needed(catalog.tables)
        for directory in (self._log_directory, kept):
            if directory is not None and segment_paths(directory):
                log = self._open(directory)
                for _, data in records_after(log.pieces, max(first, log.first_tick)):
                    yield data
                log.close()

    def _disputed_records(
        self, what: LogRenewal, kept: Path | None, time_ns: int
    ) -> Iterator[bytes]:
        """Yield the events of disputed ticks, from the replaced segments."""
        if kept is None:
            return
        log = self._open(kept)
        for tick, data in records_after(log.pieces, what.disputed_first):
            if tick > what.disputed_last:
                break
            record = renewal.reappended(data, time_ns)
            if record is not None:
                yield record
        log.close()

    # -- segments -------------------------------------------------------------------------------

    def _move(self, plan: RenewalPlan, kept: Path) -> None:
        """Move out the segments that are rewritten."""
        kept.mkdir(exist_ok=True)
        for tick, path in reversed(segment_paths(self._log_directory)):
            if tick >= plan.rewritten_from:
                path.rename(kept / path.name)
                index_path(path).unlink(missing_ok=True)
        sync_directory(kept)
        sync_directory(self._log_directory)
        self._store_plan(msgspec.structs.replace(plan, is_moved=True))

    def _rewritten(self, plan: RenewalPlan, kept: Path) -> SegmentedLog:
        """Return the log with lost ticks in place of disputed ones, up to its old end."""
        for tick, path in segment_paths(self._log_directory):
            if tick >= plan.rewritten_from:
                # Left by an interrupted attempt.
                index_path(path).unlink(missing_ok=True)
                path.unlink()
        header = segment_header(plan.rewritten_from, secrets.randbits(32), self._owner)
        write_whole(segment_path(self._log_directory, plan.rewritten_from), header)
        log, old = self._open(self._log_directory), self._open(kept)
        disputed = plan.what.disputed
        written = (
            renewal.lost_record(tick, record_time_ns(data)) if tick in disputed else data
            for tick, data in records_after(old.pieces, plan.rewritten_from)
        )
        for part in _batches(written):
            _append(log, part)
        old.close()
        return log


def _append(log: SegmentedLog, records: list[bytes]) -> None:
    log.append(records)
    log.sync()
    log.rotate()


def _newest_ns(log: SegmentedLog) -> int:
    """Return the time of the newest tick; later ticks must not be earlier."""
    newest = [data for _, data in records_after(log.pieces, max(log.last_tick, log.first_tick))]
    return record_time_ns(newest[-1]) if newest else 0


def _batches(records: Iterable[bytes]) -> Iterator[list[bytes]]:
    source = iter(records)
    while part := list(itertools.islice(source, _RENEW_BATCH_TICKS)):
        yield part
