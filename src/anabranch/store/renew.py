"""Renewing a log that is an old copy, on disk (`core.renewal` says what it becomes). Rules:

1. Nobody uses the directory meanwhile: its lock is held. The log must not be corrupt.
2. Where ticks are disputed, the segments from there on are written again; the old ones stay beside
   the log, in a directory named `log.renewed-1` or higher.
3. Interrupted at any point, it can be done again. The plan is in the catalog first; until it is
   carried out the broker does not start.

This module keeps no state.
"""

import itertools
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from anabranch.core import ledger, renewal, rollback
from anabranch.core.renewal import SPARE_TICKS, Renewal
from anabranch.model.errors import LocalError
from anabranch.store.catalog import Catalog, LogFacts, PutRow
from anabranch.store.directory import CATALOG, LOG, read_identity, take_lock
from anabranch.store.files import sync_directory, write_whole
from anabranch.store.log import SegmentedLog, record_time_ns
from anabranch.store.reading import records_after
from anabranch.store.recovery import index_path, segment_path, segment_paths
from anabranch.store.repair import state_directory_of
from anabranch.store.segment import segment_header, segment_owner

_BATCH_TICKS = 1_024


class RenewalPlan(msgspec.Struct, frozen=True, array_like=True):
    """What is to be done on disk. It is in the catalog until it is done."""

    what: Renewal
    #: The first segment that is written again, 0 if none is.
    rewritten_from: int = 0
    #: Where the old segments are kept then, beside the log.
    kept: str = ""
    #: Whether they have been taken there.
    is_moved: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RenewalPlan)


def check_renewed(catalog: Catalog, directory: Path) -> None:
    """`LocalError` if a renewal was interrupted."""
    if rollback.RENEWING in catalog.tables.get(rollback.TABLE, {}):
        raise LocalError(
            f"a renewal of the log in {directory} was interrupted; run 'anabranch log renew"
            f" {directory}' to finish it"
        )


class HeldForRenewal:
    """A state directory that is held for renewal. See the rules at the top of this module."""

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
        """Let the directory go."""
        self._catalog.close()
        os.close(self._lock)

    # -- what it would do -----------------------------------------------------------------------

    def plan(self, above: int = 0, spare: int = SPARE_TICKS) -> RenewalPlan | None:
        """What there is to do; None if nothing says that the log is an old copy. `above`: a tick
        that the operator knows of."""
        tables = self._catalog.tables
        begun = tables.get(rollback.TABLE, {}).get(rollback.RENEWING)
        if begun is not None:
            return _decoder.decode(begun)
        log = self._open(self._log_directory, self._catalog.facts)
        first, last = log.first_tick, log.last_tick
        log.close()
        what = renewal.planned(tables, first, last, above=above, spare=spare)
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

    # -- doing it -------------------------------------------------------------------------------

    def perform(
        self, plan: RenewalPlan, progress: Callable[[int], None] = lambda _ticks: None
    ) -> Path | None:
        """Do as planned; returns where segments are kept that were written again, if any were."""
        catalog, what = self._catalog, plan.what
        self._remember(plan)
        kept = self.directory / plan.kept if plan.rewritten_from else None
        if kept is not None and not plan.is_moved:
            self._move(plan, kept)
        puts = renewal.final_puts(what, catalog.tables, self._recent(kept))
        log = self._open(self._log_directory) if kept is None else self._rewritten(plan, kept)
        newest_ns = _newest_ns(log)
        ticks = range(log.last_tick + 1, what.base + 1)
        lost = (renewal.lost_record(tick, newest_ns) for tick in ticks)
        for part in _batches(itertools.chain(lost, self._again(what, kept, newest_ns))):
            _append(log, part)
            progress(len(part))
        log.close()
        rows: list[PutRow] = [(put.table, put.key, put.value) for put in puts]
        rows.append((rollback.TABLE, rollback.RENEWING, None))
        catalog.commit(rows, LogFacts(log.last_tick, log.begun_tick))
        return kept

    def _remember(self, plan: RenewalPlan) -> None:
        row: PutRow = (rollback.TABLE, rollback.RENEWING, _encoder.encode(plan))
        self._catalog.commit([row], self._catalog.facts)

    def _recent(self, kept: Path | None) -> Iterator[bytes]:
        """The records that the catalog does not speak for, as they were before."""
        # A row that is damaged may have said something that only the log can tell now.
        catalog = self._catalog
        first = 1 if catalog.damaged else ledger.first_needed(catalog.tables)
        for directory in (self._log_directory, kept):
            if directory is not None and segment_paths(directory):
                log = self._open(directory)
                for _, data in records_after(log.pieces, max(first, log.first_tick)):
                    yield data
                log.close()

    def _again(self, what: Renewal, kept: Path | None, time_ns: int) -> Iterator[bytes]:
        """The events of disputed ticks, from the segments that were taken out."""
        if kept is None:
            return
        log = self._open(kept)
        for tick, data in records_after(log.pieces, what.disputed_first):
            if tick > what.disputed_last:
                break
            record = renewal.again(data, time_ns)
            if record is not None:
                yield record
        log.close()

    # -- segments -------------------------------------------------------------------------------

    def _move(self, plan: RenewalPlan, kept: Path) -> None:
        """Take the segments out that are written again."""
        kept.mkdir(exist_ok=True)
        for tick, path in reversed(segment_paths(self._log_directory)):
            if tick >= plan.rewritten_from:
                path.rename(kept / path.name)
                index_path(path).unlink(missing_ok=True)
        sync_directory(kept)
        sync_directory(self._log_directory)
        self._remember(msgspec.structs.replace(plan, is_moved=True))

    def _rewritten(self, plan: RenewalPlan, kept: Path) -> SegmentedLog:
        """The log with lost ticks in place of disputed ones, up to where it ended."""
        for tick, path in segment_paths(self._log_directory):
            if tick >= plan.rewritten_from:
                # Half of an earlier attempt.
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
    """When the newest tick was made; none may be earlier than the one before."""
    newest = [data for _, data in records_after(log.pieces, max(log.last_tick, log.first_tick))]
    return record_time_ns(newest[-1]) if newest else 0


def _batches(records: Iterable[bytes]) -> Iterator[list[bytes]]:
    source = iter(records)
    while part := list(itertools.islice(source, _BATCH_TICKS)):
        yield part
