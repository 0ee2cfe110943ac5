"""`anabranch bench cover`: what the covering table and the conjunction DAG cost.

The input is parsed before any clock starts. The table takes all conjunctions one by one, is asked
about others of the same distribution, and loses some at random; the DAG does the same, but grows
only for as long as its budget lasts, since it keeps more. Rules:

1. A query takes about as long as reading the clock does, so the p50 that counts is over groups of
   calls (the mean of each group). Spreads of single calls are less the cost of a reading.
2. Additions are timed over the whole of the load, from the empty structure to the full one.
3. Roots and answers are held against the columns the workload was drawn as: who has no coverer is
   a root, who has one that is not its equal is none, and a removal names exactly the roots that
   come and go. A difference ends the run with exit code 1.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal, TypeVar

import numpy as np
import typer

from anabranch import Filter
from anabranch.cli.bench import bars
from anabranch.cli.bench.cover_oracle import CoverOracle
from anabranch.cli.bench.cover_report import (
    CoverReport,
    Queries,
    Spread,
    Structure,
    print_report,
    spread,
)
from anabranch.cli.bench.stopwatch import cpu_ns, per_second, percentile, reading_ns
from anabranch.cli.bench.tables import Steps, steps_on_stderr
from anabranch.cli.bench.verify import WrongAnswerError
from anabranch.cli.bench.workloads import IntervalWorkload, interval_workload
from anabranch.cli.output import console, print_json
from anabranch.matching.covering import CoveringTable
from anabranch.matching.dag import ConjunctionDag
from anabranch.model.normal.conjunction import Conjunction

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
    """Time covering: is it covered, adding, removing, and how far the bars are."""
    try:
        with steps_on_stderr() as steps:
            report = run(interval_workload(name, seed), subscriptions, dag_budget_s, steps)
    except WrongAnswerError as error:
        typer.echo(f"anabranch: error: {error}", err=True)
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
    figures = bars.CoverFigures(
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
        bars=bars.cover_verdicts(figures),
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
