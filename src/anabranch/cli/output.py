"""Output as text: JSON lines, times, counts with a noun. `screen` has tables and progress bars.

JSON output is one document per line, with sorted keys. This module does not load rich, so that
short commands start fast.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
import typer

_encoder = msgspec.json.Encoder(order="deterministic")


def print_json(document: object) -> None:
    typer.echo(_encoder.encode(document).decode())


def iso_time(time_ns: int, digits: int = 9) -> str:
    """A time as text, in UTC: `2026-01-31T12:00:00.123456789Z`, with this number of digits."""
    seconds, fraction = divmod(time_ns, 10**9)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{fraction:09}"[: len(text) + 1 + digits].rstrip(".") + "Z"


def with_iso_times(document: Mapping[str, object]) -> dict[str, object]:
    """A document with an ISO 8601 time beside each `…_ns`: null where that is 0 or null."""
    times = {
        name.removesuffix("_ns"): iso_time(value) if isinstance(value, int) and value else None
        for name, value in document.items()
        if name.endswith("_ns")
    }
    return {**document, **times}


def counted(count: int, thing: str, things: str = "") -> str:
    """A count with its noun: `1 event`, `2,000 events`. The plural defaults to the noun plus s."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"
