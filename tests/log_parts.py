"""State directories made by hand: one broker, and the log it would have written."""

from pathlib import Path

from anabranch.core.origin.log_tail import (
    BlankRecord,
    EventRecord,
    MarkRecord,
    encode_record,
)
from anabranch.model.encoding import encode_event
from anabranch.model.event import Event, EventId
from anabranch.store.files import LOG, StateDirectory
from anabranch.store.segment import encode_entry, segment_header, segment_owner


def event_record(sequence: int, publisher: str = "p") -> bytes:
    event = Event({"a": sequence}, id=EventId(publisher, 1, sequence))
    return encode_record(EventRecord(1, encode_event(event)))


def blank_record(sequence: int) -> bytes:
    return encode_record(BlankRecord(1, EventId("p", 1, sequence)))


def mark_record() -> bytes:
    return encode_record(MarkRecord(1, {}))


def make_state(folder: Path, broker: str = "o") -> Path:
    """An empty state directory of this broker."""
    path = folder / broker
    directory = StateDirectory(path, "net", broker)
    directory.establish("net", broker)
    directory.release()
    return path


def segment_bytes(first_tick: int, records: list[bytes], broker: str) -> bytes:
    entries = (encode_entry(tick, body) for tick, body in enumerate(records, first_tick))
    return segment_header(first_tick, owner=segment_owner("net", broker)) + b"".join(entries)


def write_segment(state: Path, first_tick: int, records: list[bytes], torn: bytes = b"") -> Path:
    path = state / LOG / f"{first_tick:020}.segment"
    path.write_bytes(segment_bytes(first_tick, records, state.name) + torn)
    return path
