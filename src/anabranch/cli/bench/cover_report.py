"""The result of `anabranch bench cover`, as a value and as tables."""

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console

from anabranch.cli.bench.bars import Verdict
from anabranch.cli.bench.stopwatch import percentile
from anabranch.cli.bench.tables import figures_table, verdicts_table


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Times of single calls in µs, less what a reading of the clock costs."""

    p50_us: float
    p99_us: float
    max_us: float


class Queries(msgspec.Struct, frozen=True, kw_only=True):
    """One question, asked about many conjunctions."""

    #: Median over groups of `group_calls` calls of the mean of the group.
    grouped_p50_us: float
    group_calls: int
    single: Spread


class Structure(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two data structures, filled and emptied a little."""

    #: How many it held at the most; fewer than asked for if the budget ran out.
    held: int
    adds_per_s: float
    queries: Queries
    removes: Spread


class CoverReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one run measured."""

    workload: str
    subscriptions: int
    seed: int
    table: Structure
    roots: int
    #: Of the conjunctions asked about, how many were covered.
    covered_share: float
    dag: Structure
    bars: list[Verdict]


def spread(durations_ns: Sequence[int], clock_ns: float) -> Spread:
    """What to report of the times of single calls."""
    return Spread(
        p50_us=_net_us(percentile(durations_ns, 0.5), clock_ns),
        p99_us=_net_us(percentile(durations_ns, 0.99), clock_ns),
        max_us=_net_us(max(durations_ns), clock_ns),
    )


def print_report(report: CoverReport, console: Console) -> None:
    """The report as tables."""
    title = f"{report.workload}: {report.subscriptions:,} conjunctions, parsed beforehand"
    console.print(figures_table(title, _rows(report)))
    if report.bars:
        console.print(verdicts_table(report.bars))
    else:
        console.print("Bars are stated for 100,000 subscriptions; none binds here.")


def _rows(report: CoverReport) -> Iterator[tuple[str, str]]:
    share = report.roots / report.subscriptions
    yield "roots", f"{report.roots:,} ({share:.1%})"
    yield "covered among those asked about", f"{report.covered_share:.1%}"
    yield from _structure_rows("table", "is it covered?", report.table)
    yield from _structure_rows("DAG", "its immediate coverers?", report.dag)


def _structure_rows(name: str, question: str, structure: Structure) -> Iterator[tuple[str, str]]:
    queries = structure.queries
    yield f"{name}: held", f"{structure.held:,}"
    yield f"{name}: adds", f"{structure.adds_per_s:,.0f}/s"
    yield (
        f"{name}: {question}",
        f"p50 {queries.grouped_p50_us:.2f} µs (mean of {queries.group_calls} calls)",
    )
    yield "  single calls", _spread_text(queries.single)
    yield f"{name}: removes", _spread_text(structure.removes)


def _spread_text(times: Spread) -> str:
    return f"p50 {times.p50_us:,.2f}, p99 {times.p99_us:,.2f}, max {times.max_us:,.1f} µs"


def _net_us(duration_ns: float, clock_ns: float) -> float:
    return max(0.0, duration_ns - clock_ns) / 1e3
