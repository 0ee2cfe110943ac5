"""`scripts/evaluate cover`: what the covering table and the conjunction DAG cost.

The input is parsed before any clock starts. The table takes all conjunctions one by one, is asked
about others of the same distribution, and loses some at random; the DAG does the same, but grows
only for as long as its budget lasts, since it keeps more. Rules:

1. A query takes about as long as reading the clock does, so the p50 that counts is over groups of
   calls (the mean of each group). Spreads of single calls are less the cost of a reading.
2. Additions are timed over the whole of the load, from the empty structure to the full one.
3. Roots and answers are compared with the columns the workload was drawn as: a conjunction without
   a coverer is a root, one with a coverer that is not its equal is not, and a removal names exactly
   the roots that come and go. A difference ends the run with exit code 1.

Bars
----
Bars bind at 100,000 conjunctions.

The oracle
----------
Who covers whom, from the columns a workload was drawn as.

Here every filter is one conjunction of intervals, and covering is containment of boxes: f covers g
if every interval of f contains the interval g has on the same attribute. It is brute force over
numpy columns, shares no code with the product, and is asked about a sample only.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from typing import Annotated, Literal, TypeVar

import msgspec
import numpy as np
import typer
from rich.console import Console

from anabranch import Filter
from anabranch.cli.output import print_json
from anabranch.cli.screen import Steps, console, figures_table, steps_on_stderr
from anabranch.matching.covering import CoveringTable
from anabranch.matching.dag import ConjunctionDag
from anabranch.model.normal.conjunction import Conjunction
from evaluation.measurement import (
    Verdict,
    WrongAnswerError,
    at_least,
    at_most,
    cpu_ns,
    per_second,
    percentile,
    reading_ns,
    verdicts_table,
)
from evaluation.workloads import (
    CHUNK_FILTERS,
    Columns,
    IntervalWorkload,
    covering_conjunctions,
    interval_workload,
    offsets_of,
)

# -- bars -----------------------------------------------------------------------------------------


COVER_SIZE = 100_000
COVER_ADDS_PER_S_MIN = {"ranges": 20_000, "nested": 200_000}
COVER_QUERY_P50_US_MAX = 5
COVER_REMOVE_P99_US_MAX = 500
COVER_REMOVE_MAX_US_MAX = 5_000


class CoverFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the covering benchmark that bars are about."""

    workload: str
    subscriptions: int
    query_p50_us: float
    adds_per_s: float
    remove_p99_us: float
    remove_max_us: float


def cover_verdicts(figures: CoverFigures) -> list[Verdict]:
    """Every bar that binds this run."""
    return list(_cover_verdicts(figures)) if figures.subscriptions == COVER_SIZE else []


def _cover_verdicts(figures: CoverFigures) -> Iterator[Verdict]:
    yield at_most("is it covered?, p50 µs", figures.query_p50_us, COVER_QUERY_P50_US_MAX)
    if figures.workload in COVER_ADDS_PER_S_MIN:
        limit = COVER_ADDS_PER_S_MIN[figures.workload]
        yield at_least("adds per second", figures.adds_per_s, limit)
    yield at_most("remove, p99 µs", figures.remove_p99_us, COVER_REMOVE_P99_US_MAX)
    yield at_most("remove, max µs", figures.remove_max_us, COVER_REMOVE_MAX_US_MAX)


# -- the oracle -----------------------------------------------------------------------------------


Box = dict[int, tuple[int, int]]


class CoverOracle:
    """The first `count` filters of a workload whose filters are single conjunctions."""

    def __init__(self, workload: IntervalWorkload, count: int) -> None:
        chunks = [workload.columns(number) for number in range(-(-count // CHUNK_FILTERS))]
        self._columns = _first(_joined(chunks), count)
        #: Whose filters are no longer there.
        self.removed: set[int] = set()

    def box(self, number: int) -> Box:
        """Attribute → interval of one filter."""
        columns = self._columns
        own = slice(columns.conjunctions[number], columns.conjunctions[number + 1])
        ends = zip(columns.low[own].tolist(), columns.high[own].tolist(), strict=True)
        return dict(zip(columns.attribute[own].tolist(), ends, strict=True))

    def coverers(self, box: Box) -> set[int]:
        """Who is there and covers the box, equals included."""
        return set(covering_conjunctions(self._columns, box).tolist()) - self.removed

    def strict_coverers(self, number: int) -> set[int]:
        """Who covers this filter without being its equal."""
        box = self.box(number)
        return {other for other in self.coverers(box) if self.box(other) != box}

    def check_roots(self, what: str, roots: Set[object], sample: Iterable[int]) -> None:
        """Raise unless those of the sample are roots that have to be, and no others."""
        for number in sample:
            others = self.coverers(self.box(number)) - {number}
            covered = bool(self.strict_coverers(number))
            if number in roots and covered:
                raise WrongAnswerError(f"{what}: {number} is a root but {min(others)} covers it")
            if number not in roots and not others:
                raise WrongAnswerError(f"{what}: {number} is not a root but nothing covers it")

    def check_coverers(self, what: str, number: int, found: Iterable[object]) -> None:
        """Raise unless all found cover the filter, and some are found if any does strictly."""
        answer = set(found)
        wrong = answer - self.coverers(self.box(number))
        if wrong:
            raise WrongAnswerError(f"{what}: {wrong.pop()} is said to cover {number} and does not")
        if not answer and self.strict_coverers(number):
            raise WrongAnswerError(f"{what}: {number} is said to have no coverer and has one")


def _joined(chunks: list[Columns]) -> Columns:
    sizes = np.concatenate([np.diff(chunk.conjunctions) for chunk in chunks])
    return Columns(
        np.arange(len(sizes) + 1),
        offsets_of(sizes),
        np.concatenate([chunk.attribute for chunk in chunks]),
        np.concatenate([chunk.low for chunk in chunks]),
        np.concatenate([chunk.high for chunk in chunks]),
    )


def _first(columns: Columns, count: int) -> Columns:
    end = int(columns.conjunctions[count])
    return Columns(
        columns.filters[: count + 1],
        columns.conjunctions[: count + 1],
        columns.attribute[:end],
        columns.low[:end],
        columns.high[:end],
    )


# -- report ---------------------------------------------------------------------------------------


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


# -- command --------------------------------------------------------------------------------------


CoverWorkload = Literal["ranges", "nested", "stock"]
Asked = TypeVar("Asked")

QUERIES = 20_000
GROUP_CALLS = 64
REMOVALS = 5_000
CHECKED = 200
#: Additions between two looks at the clock and the progress bar.
CHUNK_ADDS = 1_000


def cover(
    *,
    name: Annotated[CoverWorkload, typer.Option("--workload", help="What to cover.")] = "ranges",
    subscriptions: Annotated[int, typer.Option(min=2, help="How many conjunctions.")] = 100_000,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other conjunctions.")] = 1,
    dag_budget_s: Annotated[
        float, typer.Option(min=0.1, help="CPU seconds the DAG may grow for.")
    ] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure covering: queries, additions and removals, and check the bars."""
    try:
        with steps_on_stderr() as steps:
            report = run(interval_workload(name, seed), subscriptions, dag_budget_s, steps)
    except WrongAnswerError as error:
        typer.echo(f"evaluate: error: {error}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        print_json(report)
    else:
        print_report(report, console())


def run(
    workload: IntervalWorkload, subscriptions: int, dag_budget_s: float, steps: Steps
) -> CoverReport:
    """The whole benchmark."""
    steps.begin("warm-up")
    warm_up(workload)
    asked = min(QUERIES, subscriptions)
    steps.begin("parsing", subscriptions + asked)
    parsed = _parsed(workload, subscriptions + asked, steps.advance)
    held, strangers = parsed[:subscriptions], parsed[subscriptions:]
    oracle = CoverOracle(workload, subscriptions)
    clock_ns = reading_ns()

    steps.begin("covering table", subscriptions)
    table = CoveringTable()
    adds_ns, _ = _grow(table.add, held, float("inf"), steps.advance)
    roots = set(table.roots())
    sample = _sample(workload.seed, subscriptions, CHECKED)
    oracle.check_roots("covering table", roots, sample)
    queries = _ask(table.is_covered, strangers, clock_ns)
    covered = sum(map(table.is_covered, strangers))
    removes = _shrink_table(table, oracle, roots, workload.seed, clock_ns)

    steps.begin("conjunction DAG", subscriptions)
    dag = _measure_dag(workload, held, dag_budget_s, clock_ns, steps)
    figures = CoverFigures(
        workload=workload.name,
        subscriptions=subscriptions,
        query_p50_us=queries.grouped_p50_us,
        adds_per_s=per_second(subscriptions, adds_ns),
        remove_p99_us=removes.p99_us,
        remove_max_us=removes.max_us,
    )
    return CoverReport(
        workload=workload.name,
        subscriptions=subscriptions,
        seed=workload.seed,
        table=Structure(
            held=subscriptions, adds_per_s=figures.adds_per_s, queries=queries, removes=removes
        ),
        roots=len(roots),
        covered_share=covered / len(strangers),
        dag=dag,
        bars=cover_verdicts(figures),
    )


def warm_up(workload: IntervalWorkload) -> None:
    """Run everything once on a small scale, so that nothing timed later compiles first."""
    conjunctions = _parsed(workload, 600, lambda _: None)
    table, dag = CoveringTable(), ConjunctionDag()
    for number, conjunction in enumerate(conjunctions):
        table.add(number, conjunction)
        dag.add(number, conjunction)
    for number, conjunction in enumerate(conjunctions[:100]):
        table.is_covered(conjunction)
        dag.coverers(number)
        table.remove(number)
        dag.remove(number)


def _shrink_table(
    table: CoveringTable, oracle: CoverOracle, roots: set[object], seed: int, clock_ns: float
) -> Spread:
    """Remove some at random, and check what the table says became of the roots."""
    size = len(table)
    leaving = _sample(seed + 1, size, min(REMOVALS, size // 2))
    durations_ns: list[int] = []
    changes = []
    for number in leaving:
        begin = cpu_ns()
        change = table.remove(number)
        durations_ns.append(cpu_ns() - begin)
        changes.append(change)
    remaining = set(roots)
    for change in changes:
        remaining.difference_update(change.removed_roots)
        remaining.update(change.added_roots)
    if remaining != set(table.roots()):
        raise WrongAnswerError("covering table: the changes of removals do not add up to its roots")
    oracle.removed.update(leaving)
    staying = [number for number in range(size) if number not in oracle.removed]
    chosen = _sample(seed + 2, len(staying), CHECKED)
    oracle.check_roots("after removals", remaining, [staying[place] for place in chosen])
    return spread(durations_ns, clock_ns)


def _measure_dag(
    workload: IntervalWorkload,
    conjunctions: Sequence[Conjunction],
    budget_s: float,
    clock_ns: float,
    steps: Steps,
) -> Structure:
    dag = ConjunctionDag()
    adds_ns, held = _grow(dag.add, conjunctions, budget_s, steps.advance)
    oracle = CoverOracle(workload, held)
    for number in _sample(workload.seed, held, CHECKED):
        found = [other for node in dag.coverers(number) for other in node.ids]
        oracle.check_coverers("conjunction DAG", number, found)
    queries = _ask(dag.coverers, _sample(workload.seed + 1, held, QUERIES), clock_ns)
    durations_ns: list[int] = []
    for number in _sample(workload.seed + 2, held, min(REMOVALS, held // 2)):
        begin = cpu_ns()
        dag.remove(number)
        durations_ns.append(cpu_ns() - begin)
    return Structure(
        held=held,
        adds_per_s=per_second(held, adds_ns),
        queries=queries,
        removes=spread(durations_ns, clock_ns),
    )


def _grow(
    add: Callable[[int, Conjunction], object],
    conjunctions: Sequence[Conjunction],
    budget_s: float,
    advance: Callable[[int], None],
) -> tuple[int, int]:
    """Add while the budget lasts; CPU nanoseconds spent, and how many it was enough for."""
    spent_ns = done = 0
    while done < len(conjunctions) and spent_ns < budget_s * 1e9:
        chunk = conjunctions[done : done + CHUNK_ADDS]
        begin = cpu_ns()
        for number, conjunction in enumerate(chunk, done):
            add(number, conjunction)
        spent_ns += cpu_ns() - begin
        done += len(chunk)
        advance(len(chunk))
    return spent_ns, done


def _ask(
    question: Callable[[Asked], object], subjects: Sequence[Asked], clock_ns: float
) -> Queries:
    """Rule 1: once in groups, once one by one."""
    groups_us = []
    for first in range(0, len(subjects), GROUP_CALLS):
        group = subjects[first : first + GROUP_CALLS]
        begin = cpu_ns()
        for subject in group:
            question(subject)
        groups_us.append((cpu_ns() - begin) / 1e3 / len(group))
    singles_ns = []
    for subject in subjects:
        begin = cpu_ns()
        question(subject)
        singles_ns.append(cpu_ns() - begin)
    return Queries(
        grouped_p50_us=percentile(groups_us, 0.5),
        group_calls=GROUP_CALLS,
        single=spread(singles_ns, clock_ns),
    )


def _parsed(
    workload: IntervalWorkload, count: int, advance: Callable[[int], None]
) -> list[Conjunction]:
    """The one conjunction of each of the first filters."""
    conjunctions: list[Conjunction] = []
    for text in workload.filter_texts(0, count):
        (conjunction,) = Filter.parse(text).conjunctions
        conjunctions.append(conjunction)
        if len(conjunctions) % CHUNK_ADDS == 0:
            advance(CHUNK_ADDS)
    return conjunctions


def _sample(seed: int, count: int, size: int) -> list[int]:
    """Up to `size` distinct numbers below `count`."""
    chosen: list[int] = np.random.default_rng(seed).permutation(count)[:size].tolist()
    return chosen
