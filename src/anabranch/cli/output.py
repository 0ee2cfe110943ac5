"""What the command writes to stdout: lines for people, JSON for programs.

JSON is one document per line, with sorted keys where the order says nothing. Text from the user's
own data is printed as it is, never read as markup.
"""

from collections.abc import Iterable

import msgspec
import typer
from rich.console import Console
from rich.table import Table

_encoder = msgspec.json.Encoder(order="deterministic")


def print_json(document: object) -> None:
    """One line of JSON."""
    typer.echo(_encoder.encode(document).decode())


def counted(count: int, thing: str, things: str = "") -> str:
    """So many of a thing, in words: `1 event`, `2,000 events`; the plural has an s, or is given."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def console() -> Console:
    """A console on the stdout of this moment, which draws tables and takes text literally."""
    return Console(markup=False, highlight=False, emoji=False)


def figures_table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Names on the left, figures on the right."""
    table = Table("", "", title=title, title_justify="left", show_header=False)
    table.columns[1].justify = "right"
    for name, figure in rows:
        table.add_row(name, figure)
    return table
