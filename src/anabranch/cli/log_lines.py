"""Records of a log as lines of text or JSON.

A record holds an event, or says why there is none: its event was transient and is not kept, or the
tick is a mark of the stream. What a newer version wrote is an error that says so.
"""

import base64
from datetime import UTC, datetime

import msgspec

from anabranch.core.origin.log_tail import (
    STORED_LIMITS,
    AnyRecord,
    BlankRecord,
    EventRecord,
    decode_record,
)
from anabranch.model.encoding import decode_event
from anabranch.model.event import Event
from anabranch.model.filter import Filter

_encoder = msgspec.json.Encoder(order="deterministic")


class RecordLines:
    """Makes lines of records; those that are not wanted make none."""

    def __init__(self, where: Filter | None, everything: bool, as_json: bool) -> None:
        self._where = where
        self._everything = everything
        self._as_json = as_json

    def line(self, tick: int, data: bytes) -> str | None:
        """The line of one record; None if it is not wanted."""
        record = decode_record(data)
        if isinstance(record, EventRecord):
            event = decode_event(record.body, STORED_LIMITS)
            if self._where is not None and not self._where.matches(event):
                return None
            document = _event_document(event)
        elif self._everything and self._where is None:
            document = _quiet_document(record)
        else:
            return None
        if self._as_json:
            return _encoder.encode({"tick": tick, "time_ns": record.time_ns, **document}).decode()
        return f"{tick}  {_time_text(record.time_ns)}  {_text(record, document)}"


def _event_document(event: Event) -> dict[str, object]:
    document: dict[str, object] = {
        "id": str(event.id),
        "attributes": dict(event.attributes),
        "timestamp_ns": event.timestamp_ns,
        "control": msgspec.structs.asdict(event.control),
    }
    if event.content_type:
        document["content_type"] = event.content_type
    if event.payload:
        document["payload"] = base64.b64encode(event.payload).decode()
    return document


def _quiet_document(record: AnyRecord) -> dict[str, object]:
    if isinstance(record, BlankRecord):
        return {"blank": str(record.id)}
    return {"mark": msgspec.to_builtins(getattr(record, "vector", {}))}


def _text(record: AnyRecord, document: dict[str, object]) -> str:
    if isinstance(record, EventRecord):
        return f"{document['id']}  {_encoder.encode(document['attributes']).decode()}"
    return _encoder.encode(document).decode()


def _time_text(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // 10**6 / 1e3, UTC).isoformat(" ", "milliseconds")
