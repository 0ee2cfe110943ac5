"""What the demonstration shows: a tally while it runs, and a report of it.

`Tally` counts; it is the only state, and it lives as long as the demonstration. `DemoReport` is the
tally at one moment, as a value; the tables are drawn from that, the live ones and the last alike.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

#: How many symbols are shown.
TOP_SYMBOLS = 5


class Example(msgspec.Struct, frozen=True):
    """A subscription with a name, and how often it fired."""

    name: str
    filter: str
    fired: int


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """What happened so far."""

    engine: str
    subscriptions: int
    load_s: float
    seconds: float
    events: int
    #: Events per second of wall time, updates and display included.
    events_per_s: float
    #: CPU time of matching alone.
    us_per_event: float
    matches_per_event: float
    updates: int
    examples: list[Example]
    #: The symbols whose events found most subscriptions, with how many they found.
    top_symbols: list[tuple[str, int]]


class Tally:
    """Counts of everything that happened."""

    def __init__(self) -> None:
        self.events = 0
        self.matches = 0
        self.matching_ns = 0
        self.updates = 0
        self._fired: Counter[str] = Counter()
        self._by_symbol: Counter[str] = Counter()

    def count(
        self,
        events: Sequence[Mapping[str, str | int]],
        answers: Iterable[Sequence[object]],
        matching_ns: int,
    ) -> None:
        """A batch of events was matched; ids that are text are examples."""
        self.events += len(events)
        self.matching_ns += matching_ns
        for event, answer in zip(events, answers, strict=True):
            self.matches += len(answer)
            self._by_symbol[str(event["symbol"])] += len(answer)
            self._fired.update(name for name in answer if isinstance(name, str))

    def report(
        self,
        *,
        engine: str,
        subscriptions: int,
        load_s: float,
        seconds: float,
        examples: Mapping[str, str],
    ) -> DemoReport:
        """Everything so far."""
        events = max(self.events, 1)
        return DemoReport(
            engine=engine,
            subscriptions=subscriptions,
            load_s=load_s,
            seconds=seconds,
            events=self.events,
            events_per_s=self.events / max(seconds, 1e-9),
            us_per_event=self.matching_ns / 1e3 / events,
            matches_per_event=self.matches / events,
            updates=self.updates,
            examples=[Example(name, text, self._fired[name]) for name, text in examples.items()],
            top_symbols=self._by_symbol.most_common(TOP_SYMBOLS),
        )


def tables(report: DemoReport) -> RenderableType:
    """The report for people."""
    return Group(_figures(report), _examples(report), _symbols(report))


def _figures(report: DemoReport) -> Table:
    table = Table(title="Matching live", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("subscriptions", f"{report.subscriptions:,}")
    table.add_row("loaded from text in", f"{report.load_s:.1f} s")
    table.add_row("engine", report.engine)
    table.add_row("running for", f"{report.seconds:.1f} s")
    table.add_row("events", f"{report.events:,}")
    table.add_row("events per second", f"{report.events_per_s:,.0f}")
    table.add_row("matching, µs per event", f"{report.us_per_event:.2f}")
    table.add_row("matches per event", f"{report.matches_per_event:.1f}")
    table.add_row("subscriptions replaced meanwhile", f"{report.updates // 2:,}")
    return table


def _examples(report: DemoReport) -> Table:
    table = Table("subscription", "filter", "fired", title="Examples", title_justify="left")
    table.columns[2].justify = "right"
    for example in report.examples:
        table.add_row(example.name, example.filter, f"{example.fired:,}")
    return table


def _symbols(report: DemoReport) -> Table:
    table = Table("symbol", "matches", title="Most wanted", title_justify="left")
    table.columns[1].justify = "right"
    for symbol, matches in report.top_symbols:
        table.add_row(symbol, f"{matches:,}")
    return table
