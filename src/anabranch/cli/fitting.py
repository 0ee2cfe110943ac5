"""Tables that fit: where there is no room for all columns, the less important ones are left out.

No value and no heading is ever cut short, so what is shown can be read and copied. Into a file or a
pipe, which have no width, all columns go. This module keeps no state.
"""

from collections.abc import Sequence
from textwrap import wrap

import msgspec
from rich.cells import cell_len
from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table

#: Between two columns.
_GAP = 2
#: Of what goes into a file or a pipe.
_WIDTH_MAX = 1_000
#: Text is not wider than this, wherever it goes.
_TEXT_WIDTH_MAX = 100


class Column(msgspec.Struct, frozen=True):
    """One column: its heading, and how easily it is done without."""

    title: str
    #: Columns of the highest rank are left out first; those of rank 0 stay.
    rank: int = 0
    is_number: bool = False


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Table:
    """The rows, with as many columns as there is room for. A row may end early."""
    widths = [
        max([cell_len(column.title), *(cell_len(row[n]) for row in rows if n < len(row))])
        for n, column in enumerate(columns)
    ]
    chosen = _chosen([column.rank for column in columns], widths, width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for n in chosen:
        # What does not fit after all is folded, never cut.
        justify: JustifyMethod = "right" if columns[n].is_number else "left"
        table.add_column(columns[n].title, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(row[n] if n < len(row) else "" for n in chosen))
    return table


def _chosen(ranks: Sequence[int], widths: Sequence[int], width: int) -> list[int]:
    chosen = list(range(len(ranks)))
    while sum(widths[n] + _GAP for n in chosen) - _GAP > width:
        last = max(chosen, key=lambda n: (ranks[n], n))
        if not ranks[last]:
            break
        chosen.remove(last)
    return chosen


def folded(head: str, words: Sequence[str], width: int, indent: int) -> list[str]:
    """A line that begins with `head`, and goes on below its first word where it is too long."""
    begin = f"{head:{indent}}"
    # Words that belong together stay together.
    text = " ".join(word.replace(" ", "\0") for word in words)
    bound = max(min(width, _TEXT_WIDTH_MAX), indent + 20)
    lines = wrap(text, bound - indent, break_long_words=False, break_on_hyphens=False)
    first, *others = lines or [""]
    found = [f"{begin}{first}", *(f"{'':{indent}}{line}" for line in others)]
    return [line.replace("\0", " ").rstrip() for line in found]


def room(screen: Console) -> int:
    """How wide something may be there."""
    return screen.width if screen.is_terminal else _WIDTH_MAX


def show(screen: Console, *parts: RenderableType) -> None:
    """Print tables and lines, each as wide as it is."""
    if not screen.is_terminal:
        screen.width = _WIDTH_MAX
    for part in parts:
        screen.print(part)
