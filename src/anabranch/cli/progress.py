"""Progress of long commands, as a bar on stderr.

The bar is redrawn only when a step advances, never by a thread, so that it does not disturb what a
benchmark times. If stderr is not a terminal, no bar is drawn.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

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
