"""What the command writes to stdout: lines for people, JSON for programs.

JSON is one document per line, with sorted keys where the order says nothing. Text from the user's
own data is printed as it is, never read as markup.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import TypeVar

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console, JustifyMethod, RenderableType
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
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


# Tables that fit: where there is no room for all columns, the less important ones are left out.
#
# No value and no heading is ever cut short, so what is shown can be read and copied. Into a file or
# a pipe, which have no width, all columns go. This module keeps no state.


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


# Progress of long commands, as a bar on stderr.
#
# The bar is redrawn only when a step advances, never by a thread, so that it does not disturb what
# a benchmark times. If stderr is not a terminal, no bar is drawn.


Part = TypeVar("Part")


class Steps:
    """A progress bar that moves from one named step to the next."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def begin(self, name: str, total: int = 1) -> None:
        """Finish the step before and show a new one of `total` parts."""
        self.finish()
        self._task = self._progress.add_task(name, total=total)
        self._progress.refresh()

    def advance(self, parts: int = 1) -> None:
        """Some parts of the current step are done."""
        if self._task is not None:
            self._progress.update(self._task, advance=parts, refresh=True)

    def follow(self, name: str, parts: Iterable[Part], total: int) -> Iterator[Part]:
        """Show a new step of `total` parts, and give them as they come."""
        self.begin(name, total)
        for part in parts:
            yield part
            self.advance()

    def finish(self) -> None:
        """The current step is done."""
        if self._task is not None:
            total = self._progress.tasks[self._task].total
            self._progress.update(self._task, completed=total, refresh=True)
            self._task = None


@contextmanager
def steps_on_stderr() -> Iterator[Steps]:
    """Steps shown on stderr while the block runs."""
    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TimeElapsedColumn(),
        console=console,
        auto_refresh=False,
        disable=not console.is_terminal,
    )
    with progress:
        steps = Steps(progress)
        yield steps
        steps.finish()
