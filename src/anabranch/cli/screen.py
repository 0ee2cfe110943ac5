"""Tables, text and progress bars on a terminal.

User data is printed literally and never interpreted as markup.

Tables fit the terminal: if there is not enough room for all columns, the least important ones are
left out. Values and headings are never truncated, so that they can be read and copied. Files and
pipes have no width and get all columns.

Progress bars of long commands go to stderr. A bar is redrawn only when a step advances, not by a
thread, so that it does not disturb benchmark timings. If stderr is not a terminal, no bar is drawn.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap
from typing import TypeVar

import msgspec
from rich.cells import cell_len
from rich.console import Console, JustifyMethod, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table


def console() -> Console:
    """A console on the current stdout that prints text literally."""
    return Console(markup=False, highlight=False, emoji=False)


def figures_table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """A table with names on the left and figures on the right."""
    table = Table("", "", title=title, title_justify="left", show_header=False)
    table.columns[1].justify = "right"
    for name, figure in rows:
        table.add_row(name, figure)
    return table


# -- tables ----------------------------------------------------------------------------------------

#: Spaces between two columns.
_GAP = 2
#: Width of output to a file or a pipe.
_WIDTH_MAX = 1_000
#: Width limit of folded text, on a terminal too.
_TEXT_WIDTH_MAX = 100


class Column(msgspec.Struct, frozen=True):
    """A column of a table: its heading and its importance."""

    title: str
    #: Columns of the highest rank are left out first; those of rank 0 stay.
    rank: int = 0
    is_number: bool = False


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Table:
    """A table of the rows with as many columns as fit. Missing cells at the end are empty."""
    widths = [
        max([cell_len(column.title), *(cell_len(row[n]) for row in rows if n < len(row))])
        for n, column in enumerate(columns)
    ]
    chosen = _chosen([column.rank for column in columns], widths, width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for n in chosen:
        # Cells that still do not fit are folded, not truncated.
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
    """A line that begins with `head`, wrapped with a hanging indent. Words are never broken."""
    begin = f"{head:{indent}}"
    # An item that contains spaces stays on one line.
    text = " ".join(word.replace(" ", "\0") for word in words)
    bound = max(min(width, _TEXT_WIDTH_MAX), indent + 20)
    lines = wrap(text, bound - indent, break_long_words=False, break_on_hyphens=False)
    first, *others = lines or [""]
    found = [f"{begin}{first}", *(f"{'':{indent}}{line}" for line in others)]
    return [line.replace("\0", " ").rstrip() for line in found]


def room(screen: Console) -> int:
    """The width available on a console."""
    return screen.width if screen.is_terminal else _WIDTH_MAX


def show(screen: Console, *parts: RenderableType) -> None:
    if not screen.is_terminal:
        screen.width = _WIDTH_MAX
    for part in parts:
        screen.print(part)


# -- progress --------------------------------------------------------------------------------------

Part = TypeVar("Part")


class Steps:
    """A progress bar that moves from one named step to the next."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def begin(self, name: str, total: int = 1) -> None:
        """Finish the previous step and start a step of `total` parts."""
        self.finish()
        self._task = self._progress.add_task(name, total=total)
        self._progress.refresh()

    def advance(self, parts: int = 1) -> None:
        if self._task is not None:
            self._progress.update(self._task, advance=parts, refresh=True)

    def follow(self, name: str, parts: Iterable[Part], total: int) -> Iterator[Part]:
        """Start a step of `total` parts and advance it for every part yielded."""
        self.begin(name, total)
        for part in parts:
            yield part
            self.advance()

    def finish(self) -> None:
        if self._task is not None:
            total = self._progress.tasks[self._task].total
            self._progress.update(self._task, completed=total, refresh=True)
            self._task = None


@contextmanager
def count_on_stderr(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a growing count on stderr, a terminal, while the block runs, and remove it then."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    screen = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=screen, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def steps_on_stderr() -> Iterator[Steps]:
    """Show a progress bar on stderr while the block runs."""
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
