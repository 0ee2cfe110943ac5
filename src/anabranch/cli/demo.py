"""`anabranch demo`: a stock workload, matched live.

It loads subscriptions from text, a few of them named and the rest synthetic, then publishes events
to itself as fast as it can for some seconds. All the while old subscriptions leave and new ones
come, as they would. On a terminal the tables move; elsewhere only the last ones are printed.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.live import Live

from anabranch import MatchIndex
from anabranch.cli.bench.columns import EventMapping
from anabranch.cli.bench.loading import Loaded, warm_up
from anabranch.cli.bench.stopwatch import cpu_ns
from anabranch.cli.bench.tables import steps_on_stderr
from anabranch.cli.bench.workloads import workload
from anabranch.cli.demo_view import DemoReport, Tally, tables
from anabranch.cli.output import console, print_json

EXAMPLES = {
    "heavy trade in S0000": "symbol = 'S0000' AND volume > 900000",
    "leaders fall": "symbol LIKE 'S000_' AND change < 50000",
    "cheap, of these four": "symbol IN ('S0001', 'S0002', 'S0003', 'S0004') AND price < 100000",
    "bid above the day's high": "symbol = 'S0000' AND bid > high",
    "wide range, or a record": "symbol = 'S0001' AND (high - low > 900000 OR price >= 990000)",
    "the long tail": "symbol NOT LIKE 'S0%' AND volume BETWEEN 100000 AND 200000",
}
#: Events that are drawn beforehand and published over and over.
EVENTS = 5_000
BATCH_EVENTS = 250
#: Subscriptions that leave and that come, together, per second.
UPDATES_PER_S = 2_000
#: The workload has as many filters as anybody wants; nobody wants more than this.
FILTERS_MAX = 2**40
REDRAW_AFTER_S = 0.25


def demo(
    *,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to match.")] = 10.0,
    subscriptions: Annotated[int, typer.Option(min=1, help="How many subscriptions.")] = 50_000,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other subscriptions.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Load a stock workload, match it live, and show what happens."""
    show = Demonstration(seed)
    with steps_on_stderr() as steps:
        steps.begin("warming up")
        warm_up(show.loaded.workload)
        steps.begin("loading subscriptions", subscriptions)
        show.load(subscriptions, steps.advance)
    with _display(live=not as_json) as live:
        for report in show.run(seconds):
            if live is not None:
                live.update(tables(report), refresh=True)
    if as_json:
        print_json(show.report())
    else:
        console().print(tables(show.report()))


class Demonstration:
    """An index full of subscriptions, events for it, and a tally."""

    def __init__(self, seed: int) -> None:
        self.loaded = Loaded(MatchIndex(), workload("stock", seed))
        self._tally = Tally()
        self._newcomers: Iterator[str] = iter(())
        self._load_s = 0.0
        self._seconds = 0.0

    def load(self, subscriptions: int, advance: Callable[[int], None]) -> None:
        """The synthetic subscriptions, and the named ones."""
        begin = time.perf_counter()
        self.loaded.load(subscriptions, advance)
        self.loaded.index.add_many(EXAMPLES.items())
        self._load_s = time.perf_counter() - begin
        self._newcomers = self.loaded.workload.filter_texts(subscriptions, FILTERS_MAX)

    def run(self, seconds: float) -> Iterator[DemoReport]:
        """Match for so long; a report now and then."""
        batches = _batches(self.loaded.workload.events(EVENTS))
        begin = time.perf_counter()
        redraw_at_s = 0.0
        for batch in itertools.cycle(batches):
            self._match(batch)
            self._update(int(self._seconds * UPDATES_PER_S))
            self._seconds = time.perf_counter() - begin
            if self._seconds >= redraw_at_s:
                yield self.report()
                redraw_at_s = self._seconds + REDRAW_AFTER_S
            if self._seconds >= seconds:
                return

    def report(self) -> DemoReport:
        """Everything so far."""
        return self._tally.report(
            engine=self.loaded.index.engine,
            subscriptions=len(self.loaded.index),
            load_s=self._load_s,
            seconds=self._seconds,
            examples=EXAMPLES,
        )

    def _match(self, batch: list[EventMapping]) -> None:
        begin = cpu_ns()
        answers = self.loaded.index.match_batch(batch)
        self._tally.count(batch, answers, cpu_ns() - begin)

    def _update(self, due: int) -> None:
        """Let as many subscriptions come, and as many go, as are due by now."""
        pairs = (due - self._tally.updates) // 2
        self.loaded.add(list(itertools.islice(self._newcomers, pairs)))
        self.loaded.remove(range(self.loaded.start, self.loaded.start + pairs))
        self._tally.updates += 2 * pairs


def _batches(events: list[EventMapping]) -> list[list[EventMapping]]:
    starts = range(0, len(events), BATCH_EVENTS)
    return [events[start : start + BATCH_EVENTS] for start in starts]


@contextmanager
def _display(*, live: bool) -> Iterator[Live | None]:
    """Moving tables on a terminal, nothing elsewhere; they vanish when the last ones come."""
    screen = console()
    if not live or not screen.is_terminal:
        yield None
        return
    with Live(console=screen, auto_refresh=False, transient=True) as display:
        yield display
