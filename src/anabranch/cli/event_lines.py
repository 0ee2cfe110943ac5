"""Events as `sub` and `pipeline history` print them: JSON with everything, or columns for people.

One event is one line. A JSON line has the payload in base64, and leaves out what is empty. This
module keeps a count of what it has printed.
"""

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import ClassVar

import msgspec
import typer

from anabranch.cli.output import print_json
from anabranch.model.event import Event

_NS_PER_S = 1e9


class Format(StrEnum):
    """How an event is printed."""

    json = "json"
    table = "table"


class Lines:
    """Prints one thing after the other, up to a number of them; 0 is no limit."""

    #: What stands above the columns.
    columns: ClassVar[str]

    def __init__(self, form: Format, count: int = 0) -> None:
        self._form = form
        self._count = count
        #: Things that were handed over, and that were printed; the one at which nobody read any
        #: more is only among the former.
        self.given = self.shown = 0

    @property
    def is_enough(self) -> bool:
        """Whether as many are printed as were asked for."""
        return bool(self._count) and self.shown >= self._count

    def head(self) -> None:
        """Name the columns, if there are any."""
        if self._form is Format.table:
            typer.echo(self.columns)

    def put(
        self, as_json: Callable[[], Mapping[str, object]], in_columns: Callable[[], str]
    ) -> None:
        """Print one of them."""
        self.given += 1
        if self._form is Format.json:
            print_json(as_json())
        else:
            typer.echo(in_columns())
        self.shown += 1


class Printer(Lines):
    """Prints events."""

    columns = f"{'time (UTC)':23}  {'stream':12}  {'tick':>8}  event"

    def show(self, event: Event, stream: str, tick: int, time_ns: int) -> None:
        """Print one event."""
        told = (event, stream, tick, time_ns)
        self.put(lambda: document(*told), lambda: line(*told))


def document(event: Event, stream: str, tick: int, time_ns: int) -> Mapping[str, object]:
    """An event as JSON has it."""
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
    """An event in columns."""
    return f"{moment(time_ns)}  {stream:12}  {tick:>8}  {shown(event)}"


def shown(event: Event) -> str:
    """Attributes, and how large the payload is, for people."""
    words = " ".join(f"{name}={_cell(value)}" for name, value in event.attributes.items())
    return f"{words} (+{len(event.payload)} bytes)" if event.payload else words


def moment(time_ns: int) -> str:
    """A time for people."""
    found = datetime.fromtimestamp(time_ns / _NS_PER_S, UTC)
    return found.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and (not value or not value.isprintable() or " " in value):
        return msgspec.json.encode(value).decode()
    return str(value)
