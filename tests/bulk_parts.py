"""Logs with all kinds of records, and what a client should get of them in bulk."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st
from msgspec.structs import replace

from anabranch.core.origin.log_tail import (
    BlankRecord,
    EventRecord,
    MarkRecord,
    encode_record,
)
from anabranch.model.encoding import decode_event, encode_event, rows_in
from anabranch.model.event import Control, Event, EventId
from anabranch.model.filter import Filter
from anabranch.store.bulk.slices import Slice, Wanted
from anabranch.store.log import LogOptions, Piece, SegmentedLog
from tests.event_parts import Bytes, frame, with_control
from tests.matching_parts import events as attributes

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
NOW_NS = 2_000
CLIENT = "reader-1"
Row = tuple[int, int, bytes]
Read = Callable[[Sequence[Piece], Wanted], Slice]


@dataclass(frozen=True)
class Said:
    """One tick: what stands in the log, and what the event in it says, if there is one."""

    record: bytes
    time_ns: int = 0
    body: bytes = b""
    event: Event | None = None

    def is_for(self, client: str, now_ns: int) -> bool:
        """Whether the client may have it."""
        if self.event is None:
            return False
        control = self.event.control
        limit = control.time_limit_ns
        is_alive = limit is None or now_ns - self.time_ns <= limit
        return is_alive and (not control.destinations or client in control.destinations)


clients = st.sampled_from([CLIENT, "reader-2", "é", "x" * 40])
controls = st.builds(
    Control,
    time_limit_ns=st.none() | st.sampled_from([0, 100, 999, 1_000, 2_000, 2**40]),
    hop_limit=st.none() | st.integers(0, 300),
    level_limit=st.none() | st.integers(0, 3),
    priority=st.integers(0, 9),
    correlation_id=st.sampled_from(["", "order 12", "é", "y" * 50]),
    destinations=st.lists(clients, max_size=3, unique=True).map(tuple)
    | st.just(tuple(f"desk-{n}" for n in range(20))),
)
usual_events = st.builds(
    Event,
    attributes,
    payload=st.binary(max_size=8) | st.sampled_from([b"p" * 300, b"q" * 70_000]),
    content_type=st.sampled_from(["", "text/plain", "ü"]),
    id=st.builds(EventId, st.sampled_from(["feed-1", "名"]), st.integers(0, 2**63 - 1), st.just(7)),
    stream=st.sampled_from(["", "quotes"]),
    timestamp_ns=st.integers(-(2**63), 2**63 - 1),
    control=st.just(Control()) | controls,
)
#: Right, but as our own writer does not write them.
odd_bodies = st.sampled_from(
    [
        frame(attributes={f"a{n}": n for n in range(20)}),
        frame(attributes=Bytes(b"\x81\xa1a\xca\x3f\x80\0\0")),
        frame(attributes=Bytes(b"\xdf\0\0\0\1\xa1a\1")),
        frame(header=[["feed-1", 3, 17], "", 0, ["persistent"], ""]),
        with_control(6, Bytes(b"\xdc\0\1\xa8reader-1")),
        with_control(6, Bytes(b"\xdd\0\0\0\1\xa8reader-1")),
        with_control(6, Bytes(b"\x91\xd9\x08reader-1")),
        with_control(1, Bytes(b"\xcf\0\0\0\0\0\0\0\1")),
    ]
)


def event_said(time_ns: int, body: bytes) -> Said:
    record = encode_record(EventRecord(time_ns, body))
    return Said(record, time_ns, body, decode_event(body))


times = st.sampled_from([0, 1_000, 1_001, 1_500, 1_999, 2_000, 2**33])
said = st.one_of(
    st.builds(event_said, times, usual_events.map(encode_event)),
    st.builds(event_said, times, odd_bodies),
    st.just(Said(encode_record(BlankRecord(1, EventId("feed-1", 1, 1))))),
    st.just(Said(encode_record(MarkRecord(1, {})))),
)


@contextmanager
def log_of(
    ticks: Sequence[Said], segment_bytes: int = 400, batch: int = 3
) -> Iterator[SegmentedLog]:
    """A log with these ticks, in small segments, sealed after every few."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    try:
        options = LogOptions(segment_bytes=segment_bytes, reserve_bytes=512, stride_bytes=100)
        log = SegmentedLog(folder, options=options)
        for start in range(0, len(ticks), batch):
            log.append([each.record for each in ticks[start : start + batch]])
            log.sync()
            log.rotate()
        yield log
        log.close()
    finally:
        shutil.rmtree(folder)


def expected(ticks: Sequence[Said], wanted: Wanted, filter: Filter | None) -> list[Row]:
    """The rows of a range of ticks."""
    return [
        (tick, each.time_ns, each.body)
        for tick, each in enumerate(ticks, 1)
        if wanted.first <= tick <= wanted.last
        and each.event is not None
        and each.is_for(wanted.client, wanted.now_ns)
        and (filter is None or filter.matches(each.event))
    ]


def all_slices(read: Read, pieces: Sequence[Piece], wanted: Wanted) -> list[Slice]:
    """Slice after slice, up to the last tick."""
    found: list[Slice] = []
    first = wanted.first
    while first <= wanted.last:
        here = read(pieces, replace(wanted, first=first))
        assert here.first == first <= here.through <= wanted.last
        assert here.count == len([*rows_in(bytes(here.rows))])
        found.append(here)
        first = here.through + 1
    return found


def cuts(slices: Sequence[Slice]) -> list[tuple[int, int, int, bytes]]:
    """Slices as values."""
    return [(each.first, each.through, each.count, bytes(each.rows)) for each in slices]


def rows_of(slices: Sequence[Slice]) -> list[Row]:
    return [row for each in slices for row in rows_in(bytes(each.rows))]
