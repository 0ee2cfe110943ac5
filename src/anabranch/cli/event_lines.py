"""Prints events, pattern matches and log records as lines: JSON with all fields, or columns.

`sub` and `pipeline history` print one line per event. A JSON line has the payload in base64, ISO
8601 times beside nanoseconds, and leaves out empty fields.

`sub --pattern` prints one line per match. A JSON line has each contributing event as `sub` prints
events, with its part; if the match was too large to carry its events, only their positions.

`log cat` prints one line per record. A record holds an event, or the reason why it holds none: the
event was transient and is not stored, or the tick is a mark of the stream. A record written by a
newer version is an error.
"""

import base64
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, ClassVar

import msgspec
import typer

from anabranch.cli.output import iso_time, print_json, with_iso_times
from anabranch.client.patterns import Matched, PartEvent, PatternSubscription
from anabranch.core.origin.log_tail import AnyRecord, BlankRecord, EventRecord, decode_record
from anabranch.model.encoding import decode_event
from anabranch.model.event import Event
from anabranch.model.filter import Filter
from anabranch.model.limits import STORED_LIMITS


class Format(StrEnum):
    """The output format of events."""

    json = "json"
    table = "table"


FormatOption = Annotated[Format, typer.Option("--format", help="Output format.")]
JsonFormatOption = Annotated[
    bool, typer.Option("--json", help="The same as --format json, the default.")
]


class Lines:
    """Prints up to `count` items, one per line; 0 means no limit."""

    #: The heading of the columns.
    columns: ClassVar[str]

    def __init__(self, form: Format, count: int = 0) -> None:
        self._form = form
        self._count = count
        #: Items received and items printed. An item whose printing failed, because stdout was
        #: closed, counts only as received.
        self.given = self.shown = 0

    @property
    def is_enough(self) -> bool:
        """Whether the requested number of items has been printed."""
        return bool(self._count) and self.shown >= self._count

    def head(self) -> None:
        if self._form is Format.table:
            typer.echo(self.columns)

    def put(
        self, as_json: Callable[[], Mapping[str, object]], in_columns: Callable[[], str]
    ) -> None:
        self.given += 1
        if self._form is Format.json:
            print_json(with_iso_times(as_json()))
        else:
            typer.echo(in_columns())
        self.shown += 1


class Printer(Lines):
    """Prints events."""

    columns = f"{'time':24}  {'stream':12}  {'tick':>8}  event"

    def show(self, event: Event, stream: str, tick: int, time_ns: int) -> None:
        fields = (event, stream, tick, time_ns)
        self.put(lambda: document(*fields), lambda: line(*fields))


def document(event: Event, stream: str, tick: int, time_ns: int) -> Mapping[str, object]:
    more: dict[str, object] = {}
    control = event.control
    if event.payload:
        more["payload"] = base64.b64encode(event.payload).decode()
    if event.content_type:
        more["content_type"] = event.content_type
    if control.correlation_id:
        more["correlation_id"] = control.correlation_id
    return {
        "attributes": dict(event.attributes),
        "id": str(event.id) if event.id is not None else "",
        "stream": stream,
        "tick": tick,
        "time_ns": time_ns,
        "timestamp_ns": event.timestamp_ns,
        "priority": control.priority,
        **more,
    }


def line(event: Event, stream: str, tick: int, time_ns: int) -> str:
    return f"{iso_time(time_ns, 3)}  {stream:12}  {tick:>8}  {shown(event)}"


def shown(event: Event) -> str:
    words = " ".join(f"{name}={_cell(value)}" for name, value in event.attributes.items())
    return f"{words} (+{len(event.payload)} bytes)" if event.payload else words


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and (not value or not value.isprintable() or " " in value):
        return msgspec.json.encode(value).decode()
    return str(value)


class MatchPrinter(Lines):
    """Prints matches."""

    columns = f"{'time':24}  {'pattern':24}  events"

    def show(self, matched: Matched) -> None:
        self.put(lambda: match_document(matched), lambda: match_line(matched))


def match_document(matched: Matched) -> Mapping[str, object]:
    received = matched.received
    return {
        "pattern": matched.pattern,
        "identity": matched.identity,
        "events": [_event_document(each) for each in matched.events],
        "is_whole": matched.is_whole,
        "first_ns": matched.first_ns,
        "last_ns": matched.last_ns,
        "stream": received.stream,
        "tick": received.tick,
        "time_ns": received.time_ns,
    }


def _event_document(each: PartEvent) -> Mapping[str, object]:
    place = {"part": each.part, "stream": each.stream, "tick": each.tick, "time_ns": each.time_ns}
    if each.event is None:
        return with_iso_times(place)
    return with_iso_times({**document(each.event, each.stream, each.tick, each.time_ns), **place})


def match_line(matched: Matched) -> str:
    events = "; ".join(map(_event_words, matched.events))
    return f"{iso_time(matched.last_ns, 3)}  {matched.pattern:24}  {events}"


def _event_words(each: PartEvent) -> str:
    place = f"{each.part}: {each.stream} {each.tick}"
    return place if each.event is None else f"{place} {shown(each.event)}"


async def print_matches(subscription: PatternSubscription, printer: MatchPrinter) -> None:
    """Print matches until the count is reached or the task is cancelled."""
    try:
        async for matched in subscription:
            printer.show(matched)
            if printer.is_enough:
                return
    finally:
        # A match that was not printed, because stdout was closed, must be redelivered.
        if printer.shown == printer.given and not subscription.is_over:
            await subscription.ack()


_encoder = msgspec.json.Encoder(order="deterministic")


class RecordLines:
    """Formats log records as lines, and skips those that the options exclude."""

    def __init__(self, where: Filter | None, everything: bool, as_json: bool) -> None:
        self._where = where
        self._everything = everything
        self._as_json = as_json

    def line(self, tick: int, data: bytes) -> str | None:
        record = decode_record(data)
        if isinstance(record, EventRecord):
            event = decode_event(record.body, STORED_LIMITS)
            if self._where is not None and not self._where.matches(event):
                return None
            document = _logged_event_document(event)
        elif self._everything and self._where is None:
            document = _quiet_document(record)
        else:
            return None
        if self._as_json:
            whole = with_iso_times({"tick": tick, "time_ns": record.time_ns, **document})
            return _encoder.encode(whole).decode()
        return f"{tick}  {iso_time(record.time_ns, 3)}  {_text(record, document)}"


def _logged_event_document(event: Event) -> dict[str, object]:
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
