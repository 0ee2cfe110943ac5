"""Verifying a log: every byte that is in use is looked at, and held against all that is known.

A start believes a full segment whose CRC is right. This does not: it reads record by record, and
checks the index too. Rules:

1. Corrupt is what a start would refuse (`recovery`); the error names the exact place.
2. An index that is missing or wrong is a *finding*, not corrupt: the next start makes it again. So
   is an interrupted write at the end, which the next start cuts off.
3. The log of a running broker can be verified; see `view`.

This module keeps no state.
"""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import msgspec

from anabranch.store.catalog import LogFacts
from anabranch.store.index import TimeOf
from anabranch.store.recovery import (
    check_header,
    index_path,
    segment_path,
    segment_paths,
    stored_index,
)
from anabranch.store.segment import CorruptError, Scan
from anabranch.store.view import LogPlace, read_facts, scan_steadily


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A log without damage."""

    segments: int
    records: int
    bytes: int
    first_tick: int
    #: `first_tick` − 1 if there is no record.
    last_tick: int
    #: What a start would mend by itself.
    findings: list[str]


def verify(
    place: LogPlace, time_of: TimeOf, progress: Callable[[int], None] = lambda _bytes: None
) -> Verified:
    """Look at everything; `CorruptError` at the first damage."""
    facts = read_facts(place)
    paths = segment_paths(place.directory)
    if not paths or paths[-1][0] < facts.begun_tick:
        _complain_of_missing(place, facts)
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
            # Its broker runs, and deleted it just now.
            continue
        records += len(found.records)
        size += found.end_offset
        last_tick = found.last_tick
    return Verified(
        segments=len(paths),
        records=records,
        bytes=size,
        first_tick=paths[0][0] if paths else 1,
        last_tick=last_tick,
        findings=findings,
    )


def _complain_of_missing(place: LogPlace, facts: LogFacts) -> None:
    if facts.begun_tick:
        path = segment_path(place.directory, facts.begun_tick)
        reason = "the segment is missing, though the catalog knows it"
        raise CorruptError(reason, path=str(path), offset=0, tick=facts.begun_tick)


def _check_end(path: Path, found: Scan, full_tick: int | None, findings: list[str]) -> None:
    """Whether the segment ends as it should; `full_tick` is the last one of a full segment."""
    if full_tick is None:
        if found.state == "torn":
            findings.append(f"{path}: an interrupted write at byte {found.end_offset}")
    elif found.state == "torn" or found.last_tick != full_tick:
        reason = "the segment is full, but it does not end as it was written"
        tick = min(found.last_tick, full_tick) + 1
        raise CorruptError(reason, path=str(path), offset=found.end_offset, tick=tick)


def _index_findings(path: Path, found: Scan, time_of: TimeOf) -> list[str]:
    """What is wrong with the index of a full segment."""
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
            return [f"{name}: tick {point.tick} does not stand at byte {point.offset}"]
        if time_of(found.records[place]) != point.time_ns:
            return [f"{name}: tick {point.tick} has another time"]
    if any(one.tick >= other.tick for one, other in pairwise(index.points)):
        return [f"{name}: the points are not in order"]
    return []
