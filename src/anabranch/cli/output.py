"""Output without a terminal: JSON lines, and counts in words. `screen` has tables and bars.

JSON output is one document per line, with sorted keys. This module does not load rich, so that
short commands start fast.
"""

import msgspec
import typer

_encoder = msgspec.json.Encoder(order="deterministic")


def print_json(document: object) -> None:
    typer.echo(_encoder.encode(document).decode())


def counted(count: int, thing: str, things: str = "") -> str:
    """A count with its noun: `1 event`, `2,000 events`. The plural defaults to the noun plus s."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"
