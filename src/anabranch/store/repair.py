"""Repairing a corrupt log: giving up what cannot be trusted, so that the rest can be used again.

Only an operator can decide that; `plan` says what it costs, `perform` does it. Rules:

1. Nobody uses the directory meanwhile: both hold its lock.
2. Records before the damage stay. The record at the damage and all later ones are given up, but no
   byte is deleted: what is cut off or taken out stays beside the log, in files named `.damaged`.
3. A tick that was given out is not given out again: other brokers may know it, and would take a new
   event for one they have seen. So ticks that are given up and known to have existed stay, as
   records whose event is not kept (`BlankRecord`); subscribers are told that they are withheld.
4. Damage that took no record (behind the last one of a full segment) costs none.
5. Interrupted at any point, it can be done again: what is known of ticks is put first.

This module keeps no state.
"""

import itertools
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from anabranch.core.records import LOST_PUBLISHER, BlankRecord, encode_record
from anabranch.model.errors import LocalError
from anabranch.model.header import EventId
from anabranch.store.catalog import Catalog, LogFacts
from anabranch.store.directory import CATALOG, LOG, read_identity, take_lock
from anabranch.store.files import sync_directory, write_whole
from anabranch.store.index import TimeOf
from anabranch.store.log import LogOptions, SegmentedLog, record_time_ns
from anabranch.store.reading import read_records
from anabranch.store.recovery import Examination, index_path, segment_paths, stored_index
from anabranch.store.segment import CorruptError, newest_tick, segment_header, segment_owner

_BATCH_TICKS = 1_024


class RepairPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair would do."""

    state_directory: Path
    #: Where the damage is, and what.
    path: Path
    offset: int
    reason: str
    #: Ticks before this one stay.
    tick: int
    #: Ticks up to this one are known to have existed; below `tick` if none is given up.
    last_tick: int
    #: Bytes of `path` that are cut off.
    cut_bytes: int
    #: Segments that are taken out as a whole.
    later: list[Path]

    @property
    def lost_ticks(self) -> int:
        """How many ticks lose their records, as far as that is known."""
        return max(self.last_tick - self.tick + 1, 0)


class Repair:
    """A state directory that is held for repair."""

    def __init__(self, path: Path, time_of: TimeOf = record_time_ns) -> None:
        """`path`: a segment of a log, the log, or the state directory it is in."""
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
        """Let the directory go."""
        self._catalog.close()
        os.close(self._lock)

    # -- what it would cost ---------------------------------------------------------------------

    def plan(self, progress: Callable[[int], None] = lambda _bytes: None) -> RepairPlan | None:
        """What there is to do; None if the log is not corrupt."""
        look = Examination(
            self._log_directory,
            owner=self._owner,
            stride_bytes=LogOptions().stride_bytes,
            time_of=self._time_of,
            progress=progress,
        )
        try:
            look.result(self._catalog.facts)
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
        """The newest tick that is known to have existed."""
        facts = self._catalog.facts
        known = [facts.synced_tick, facts.begun_tick - 1]
        known.append(newest_tick(data, error.offset, error.tick))
        for path in later:
            content = path.read_bytes()
            index = stored_index(path)
            known += [int(path.stem) - 1, index.last_tick if index else 0]
            known.append(newest_tick(content, 0, error.tick))
        return max(known)

    # -- doing it -------------------------------------------------------------------------------

    def perform(self, plan: RepairPlan) -> list[Path]:
        """Do as planned; returns the files that keep what was taken out."""
        facts = self._catalog.facts
        first_tick = int(plan.path.stem)
        begun = first_tick if plan.path.exists() and plan.offset else 0
        last_tick = max(facts.synced_tick, plan.last_tick)
        # Once this is known, everything below can be interrupted and done again.
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
        """Take out what stands behind the damage."""
        data = plan.path.read_bytes()
        beside = _damaged_path(plan.path)
        write_whole(beside, data[plan.offset :].rstrip(b"\0"))
        index_path(plan.path).unlink(missing_ok=True)
        left = data[: plan.offset]
        if not left:
            left = segment_header(first_tick, secrets.randbits(32), self._owner)
        write_whole(plan.path, left)
        return beside

    def _fill(self, plan: RepairPlan) -> None:
        """Give up the ticks that are known to have existed; rule 3."""
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
    """The state directory that this path is in, or is."""
    for candidate in (path, path.parent, path.parent.parent):
        if (candidate / CATALOG).exists():
            return candidate
    raise LocalError(f"{path} is in no state directory; name a segment that an error named")


def _blank(tick: int, time_ns: int) -> bytes:
    return encode_record(BlankRecord(time_ns, EventId(LOST_PUBLISHER, 1, tick)))


def _damaged_path(path: Path) -> Path:
    """A free name beside this file."""
    for number in itertools.count(1):
        found = path.with_name(f"{path.name}.damaged" + (f"-{number}" if number > 1 else ""))
        if not found.exists():
            return found
    raise AssertionError("there is always another number")
