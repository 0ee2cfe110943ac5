"""Merge client traces and broker logs into one history.

A trace is a file of JSON lines, each a record of `check.history`, written by a client. Records of
logged events come from the logs of brokers (`broker_logs`).

Rules

1. A process that was killed leaves an incomplete last line, which is ignored. Any other line that
   is not a record is an error that names file and line.
2. Each trace is in order. Traces are merged by time, from the clock of one machine; a record never
   moves before an earlier record of its own trace.
3. A log may have released its beginning. Events delivered from there count as logged; events
   published there that are neither logged nor delivered are left out.
"""

import heapq
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path

import msgspec

from anabranch.check import history as saw
from anabranch.core.origin.log_tail import BlankRecord, EventRecord, decode_record
from anabranch.model.encoding import decode_envelope
from anabranch.model.errors import LocalError

_decoder: msgspec.json.Decoder[saw.AnyRecord] = msgspec.json.Decoder(saw.AnyRecord)
_encoder = msgspec.json.Encoder()


def encode_line(record: saw.Record) -> bytes:
    """A record as a line of a trace."""
    return _encoder.encode(record) + b"\n"


def read_trace(path: Path) -> list[saw.Record]:
    """The records of one trace."""
    *lines, rest = path.read_bytes().split(b"\n")
    if rest and not lines:
        raise LocalError(f"{path} is not a trace: its first line is incomplete")
    records: list[saw.Record] = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(_decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LocalError(f"{path}, line {number}: not a trace record: {error}") from error
    return records


def merge(traces: Iterable[list[saw.Record]]) -> list[saw.Record]:
    """Merge traces by time."""
    timed = [zip(_times(trace), trace, strict=True) for trace in traces]
    return [record for _, record in heapq.merge(*timed, key=lambda pair: pair[0])]


def _times(trace: list[saw.Record]) -> Iterator[float]:
    """The times of records, made monotonic; a record without a time has that of the one before."""
    return accumulate((getattr(record, "time", None) or 0.0 for record in trace), max)


def logged_in(stream: str, first_tick: int, records: Iterable[bytes]) -> Iterator[saw.Logged]:
    """The events in the records of a log."""
    for tick, data in enumerate(records, first_tick):
        record = decode_record(data)
        if isinstance(record, EventRecord):
            event_id = decode_envelope(record.body).id
        elif isinstance(record, BlankRecord):
            event_id = record.id
        else:
            continue
        name = (event_id.publisher, event_id.incarnation, event_id.sequence)
        yield saw.Logged(stream, tick, *name)


def without_forgotten(
    history: list[saw.Record], logged: list[saw.Logged], first_ticks: dict[str, int]
) -> list[saw.Record]:
    """Add logged events to a history, and remove events of released beginnings: rule 3.

    `first_ticks`: stream → the first retained tick of its log."""
    beginnings = {stream: first for stream, first in first_ticks.items() if first > 1}
    if not beginnings:
        return [*history, *logged]
    witnessed = {
        (record.stream, record.tick): record
        for record in history
        if isinstance(record, saw.Delivered) and record.tick < beginnings.get(record.stream, 0)
    }
    older = [
        saw.Logged(stream, tick, seen.publisher, seen.incarnation, seen.sequence)
        for (stream, tick), seen in witnessed.items()
    ]
    known = {(r.publisher, r.incarnation, r.sequence) for r in (*older, *logged)}
    kept = [r for r in history if not _is_forgotten(r, beginnings, known)]
    return [*kept, *older, *logged]


def _is_forgotten(
    record: saw.Record, beginnings: dict[str, int], known: set[tuple[str, int, int]]
) -> bool:
    return (
        isinstance(record, saw.Published)
        and record.broker in beginnings
        and (record.publisher, record.incarnation, record.sequence) not in known
    )
