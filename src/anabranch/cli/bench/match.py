"""`anabranch bench match`: what matching costs, through the public interface alone.

One run, in this order: two processes are started to time their first match; a small index warms
everything up; the subscriptions are loaded from text; some answers are held against the workload's
own; matching, updates and matching under updates are timed; the answers are checked again; and the
same is done by a plain loop and by the numpy engine for comparison. For text, dnf and wide the
workload `mixed` of the same size is timed too, because their goals are relative to it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Literal

import msgspec
import typer

from anabranch import MatchIndex
from anabranch.cli.bench import bars
from anabranch.cli.bench.columns import EventMapping
from anabranch.cli.bench.loading import Loaded, warm_up
from anabranch.cli.bench.match_report import Build, Matching, MatchReport, print_report
from anabranch.cli.bench.resident import resident_bytes
from anabranch.cli.bench.rivals import measure_fallback, measure_naive_loop
from anabranch.cli.bench.startup import measure_start_up
from anabranch.cli.bench.stopwatch import least_pass_ns, least_slices_ns
from anabranch.cli.bench.tables import Steps, steps_on_stderr
from anabranch.cli.bench.updates import measure_slowdown, measure_update_rates
from anabranch.cli.bench.verify import WrongAnswerError
from anabranch.cli.bench.workloads import Workload, workload
from anabranch.cli.output import console, print_json

#: Events of one timed slice.
SLICE_EVENTS = 100

MatchWorkload = Literal["stock", "mixed", "ranges", "text", "dnf", "wide"]


def match(
    *,
    name: Annotated[MatchWorkload, typer.Option("--workload", help="What to match.")] = "stock",
    subscriptions: Annotated[int, typer.Option(min=1, help="How many filters.")] = 200_000,
    events: Annotated[int, typer.Option(min=1, help="How many events.")] = 2_000,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other filters and events.")] = 1,
    rivals: Annotated[
        bool, typer.Option(help="Compare with a plain loop and the numpy engine.")
    ] = True,
    start_up: Annotated[
        bool, typer.Option(help="Start processes to time their first match, a minute or so.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time matching: µs per event, updates, memory, start-up, and how far the bars are."""
    try:
        with steps_on_stderr() as steps:
            chosen = workload(name, seed)
            parts = Parts(rivals=rivals, start_up=start_up)
            report = run(chosen, subscriptions, events, parts, steps)
    except WrongAnswerError as error:
        typer.echo(f"anabranch: error: {error}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        print_json(report)
    else:
        print_report(report, console())


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the benchmark that can be left out."""

    rivals: bool
    start_up: bool


def run(
    chosen: Workload, subscriptions: int, event_count: int, parts: Parts, steps: Steps
) -> MatchReport:
    """The whole benchmark."""
    start_up = None
    if parts.start_up:
        steps.begin("start-up, cold and cached")
        start_up = measure_start_up()
    steps.begin("warm-up")
    warm_up(chosen)
    events = chosen.events(event_count)
    steps.begin(f"loading {chosen.name}", subscriptions)
    loaded = Loaded(MatchIndex(), chosen)
    build = _measure_build(loaded, subscriptions, steps)
    steps.begin("checking answers")
    loaded.check("after loading", events, loaded.expected(events))
    steps.begin("matching")
    matching = _measure_matching(loaded.index, events)
    batch_us = matching.batch_us_per_event
    steps.begin("adding and removing")
    update_rates = measure_update_rates(loaded, chosen.seed)
    steps.begin("matching under updates")
    slowdown = measure_slowdown(loaded, events, batch_us)
    steps.begin("checking answers again")
    loaded.check("after updates", events, loaded.expected(events))
    engine = loaded.index.engine
    # Free before the next index is loaded: one at a time is enough to hold.
    del loaded
    naive_loop = numpy_fallback = None
    if parts.rivals:
        steps.begin("naive loop")
        naive_loop = measure_naive_loop(chosen, subscriptions, events, batch_us)
        steps.begin("loading the numpy fallback", subscriptions)
        numpy_fallback = measure_fallback(chosen, subscriptions, events, batch_us, steps.advance)
    mixed_us = _measure_mixed(chosen, subscriptions, event_count, steps)
    mixed_ratio = None if mixed_us is None else batch_us / mixed_us
    figures = bars.MatchFigures(
        workload=chosen.name,
        subscriptions=subscriptions,
        batch_us_per_event=batch_us,
        single_us_per_event=matching.single_us_per_event,
        adds_per_s=update_rates.adds.median_per_s,
        slowdown=slowdown.by_least,
        index_bytes_per_subscription=build.index_bytes_per_subscription,
        mixed_ratio=mixed_ratio,
    )
    return MatchReport(
        workload=chosen.name,
        subscriptions=subscriptions,
        events=event_count,
        seed=chosen.seed,
        engine=engine,
        matching=matching,
        build=build,
        update_rates=update_rates,
        slowdown=slowdown,
        start_up=start_up,
        naive_loop=naive_loop,
        numpy_fallback=numpy_fallback,
        mixed_us_per_event=mixed_us,
        mixed_ratio=mixed_ratio,
        bars=bars.match_verdicts(figures),
    )


def _measure_build(loaded: Loaded, subscriptions: int, steps: Steps) -> Build:
    before = resident_bytes()
    spent_ns = loaded.load(subscriptions, steps.advance)
    after = resident_bytes()
    growth = None if before is None or after is None else (after - before) / subscriptions
    return Build(
        cpu_s=spent_ns / 1e9,
        subscriptions_per_s=subscriptions * 1e9 / spent_ns,
        index_bytes_per_subscription=loaded.index.nbytes / subscriptions,
        resident_bytes_per_subscription=growth,
    )


def _measure_matching(index: MatchIndex, events: Sequence[EventMapping]) -> Matching:
    batch = list(events)
    found = sum(map(len, index.match_batch(batch)))

    def one_by_one() -> None:
        match_one = index.match
        for event in batch:
            match_one(event)

    def us_per_event(pass_ns: int) -> float:
        return pass_ns / 1e3 / len(batch)

    encoded = index.encode(batch)
    in_slices = [partial(index.match_batch, part) for part in _slices(batch)]

    def least_us(work: Callable[[], object]) -> float:
        """µs per event of the quickest of repeated passes over all events."""
        return us_per_event(least_pass_ns(work))

    return Matching(
        batch_us_per_event=least_us(lambda: index.match_batch(batch)),
        batch_sliced_us_per_event=us_per_event(least_slices_ns(in_slices)),
        batch_lists_us_per_event=least_us(lambda: list(index.match_batch(batch))),
        encode_us_per_event=least_us(lambda: index.encode(batch)),
        encoded_us_per_event=least_us(lambda: index.match_batch(encoded)),
        single_us_per_event=least_us(one_by_one),
        matches_per_event=found / len(batch),
    )


def _slices(batch: Sequence[EventMapping]) -> list[Sequence[EventMapping]]:
    """The events in slices of a few hundred microseconds each."""
    return [batch[start : start + SLICE_EVENTS] for start in range(0, len(batch), SLICE_EVENTS)]


def _measure_mixed(
    chosen: Workload, subscriptions: int, event_count: int, steps: Steps
) -> float | None:
    """µs per event of `mixed`, for the workloads whose goals are relative to it."""
    if chosen.name not in bars.MIXED_RATIO_GOAL:
        return None
    steps.begin("loading mixed", subscriptions)
    loaded = Loaded(MatchIndex(), workload("mixed", chosen.seed))
    loaded.load(subscriptions, steps.advance)
    events = loaded.workload.events(event_count)
    return least_pass_ns(lambda: loaded.index.match_batch(events)) / 1e3 / event_count
