"""`scripts/evaluate match`: what matching costs, through the public interface alone.

One run, in this order: two processes are started to time their first match; a small index warms
everything up; the subscriptions are loaded from text; some answers are held against the workload's
own; matching, updates and matching under updates are timed; the answers are checked again; and the
same is done by a plain loop and by the numpy engine for comparison. For text, dnf and wide the
workload `mixed` of the same size is timed too, because their goals are relative to it.

Bars
----
A bar binds at the sizes for which it was stated, 200,000 and 1,000,000 subscriptions; a goal is
reported and was not promised.

Loading
-------
Subscriptions of a workload in an index: loading them from text, and keeping track of which.

The live subscriptions of a `Loaded` are always a window of the workload's filters: additions come
at its end, removals leave at its start. So the right answers are known at any moment (see
`workloads`, rule 2). Losing this state loses a measurement and nothing else.

Start-up
--------
Start-up: how long a new process takes until its first match.

Two processes, one after the other, share a cache directory for compiled kernels that begins empty:
the first compiles, the second loads. The time is wall time of the whole process, interpreter
included, because that is what somebody waits for.

Rivals
------
What the index is compared with, in the same run: a plain loop, and itself without numba.

The loop asks every filter in turn, about events that were checked once beforehand. Its time per
filter hardly depends on how many there are, so a sample of filters is enough to say what all of
them would take. The fallback is loaded in full.

Updates
-------
What updates cost: their own rate, and how much slower matching gets while they happen.

Additions are timed one by one through `index.add`, from filter texts that this process has never
seen, a thousand to a chunk. Removals take out the oldest subscriptions in shuffled order.

The slowdown compares two phases over the same slices of events. In the quiet one nothing changes.
In the busy one, after every slice as many updates follow as ten thousand per second of matching
time come to, half of them additions and half removals. Only the slices are compared; the CPU time
of the updates is given apart, as a share of both together. The phases alternate a few times, so
that a disturbance from outside meets both. Each slice's quickest time counts, as everywhere else;
what updates do to every slice is in it. The means stand beside: they also see work that matching
does only now and then on behalf of updates, and all disturbances.
"""

import math
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
import typer
from rich.console import Console

import anabranch
from anabranch import Event, Filter, MatchIndex
from anabranch.cli.output import print_json
from anabranch.cli.screen import Steps, console, figures_table, steps_on_stderr
from evaluation.measurement import (
    VERIFIED_EVENTS,
    Rates,
    Verdict,
    WrongAnswerError,
    at_least,
    at_most,
    check_answers,
    cpu_ns,
    least_pass_ns,
    least_slices_ns,
    rates,
    resident_bytes,
    verdicts_table,
)
from evaluation.workloads import CHUNK_FILTERS, EventMapping, Workload, workload

# -- bars -----------------------------------------------------------------------------------------


#: Batches of events → ids, in µs per event, by workload and subscriptions.
BATCH_US_MAX = {
    ("stock", 200_000): 6,
    ("stock", 1_000_000): 25,
    ("mixed", 200_000): 14,
    ("mixed", 1_000_000): 50,
    ("ranges", 200_000): 60,
    ("ranges", 1_000_000): 290,
}
MATCH_SIZES = (200_000, 1_000_000)
SINGLE_US_MAX = {("stock", 200_000): 12}
ADDS_PER_S_MIN = 30_000
SLOWDOWN_MAX = 0.15
INDEX_BYTES_MAX = {"stock": 384, "mixed": 384, "ranges": 384}
#: Goals: how many times the time of `mixed` these may take, and the bytes of `wide`.
MIXED_RATIO_GOAL = {"text": 3, "dnf": 3, "wide": 3}
INDEX_BYTES_GOAL = {"wide": 500}


class MatchFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the matching benchmark that bars are about."""

    workload: str
    subscriptions: int
    batch_us_per_event: float
    single_us_per_event: float
    adds_per_s: float
    slowdown: float
    index_bytes_per_subscription: float
    #: Time per event over that of `mixed`, where it was measured.
    mixed_ratio: float | None


def match_verdicts(figures: MatchFigures) -> list[Verdict]:
    """Every bar and goal that binds this run."""
    return list(_match_verdicts(figures)) if figures.subscriptions in MATCH_SIZES else []


def _match_verdicts(figures: MatchFigures) -> Iterator[Verdict]:
    key = (figures.workload, figures.subscriptions)
    if key in BATCH_US_MAX:
        yield at_most("batch, µs per event", figures.batch_us_per_event, BATCH_US_MAX[key])
        yield at_least("adds per second, from text", figures.adds_per_s, ADDS_PER_S_MIN)
        yield at_most("slowdown under updates", figures.slowdown, SLOWDOWN_MAX)
    if key in SINGLE_US_MAX:
        yield at_most("single event, µs", figures.single_us_per_event, SINGLE_US_MAX[key])
    for limits, goal in ((INDEX_BYTES_MAX, False), (INDEX_BYTES_GOAL, True)):
        if figures.workload in limits:
            measured = figures.index_bytes_per_subscription
            yield at_most("bytes per subscription", measured, limits[figures.workload], goal=goal)
    if figures.mixed_ratio is not None:
        limit = MIXED_RATIO_GOAL[figures.workload]
        yield at_most("times mixed", figures.mixed_ratio, limit, goal=True)


# -- loading --------------------------------------------------------------------------------------


class Loaded:
    """An index that holds filters `start` up to `stop` of a workload."""

    def __init__(self, index: MatchIndex, workload: Workload) -> None:
        self.index = index
        self.workload = workload
        self.start = 0
        self.stop = 0

    def load(self, count: int, advance: Callable[[int], None]) -> int:
        """Add `count` filters in bulk from text; returns CPU nanoseconds, rendering excluded."""
        texts = self.workload.filter_texts(self.stop, self.stop + count)
        spent_ns = 0
        while chunk := list(islice(texts, CHUNK_FILTERS)):
            ids = range(self.stop, self.stop + len(chunk))
            begin = cpu_ns()
            self.index.add_many(zip(ids, chunk, strict=True))
            spent_ns += cpu_ns() - begin
            self.stop = ids.stop
            advance(len(chunk))
        return spent_ns

    def add(self, texts: Sequence[str]) -> int:
        """Add the next filters, whose texts these are, one by one; returns CPU nanoseconds."""
        ids = range(self.stop, self.stop + len(texts))
        self.stop = ids.stop
        add = self.index.add
        begin = cpu_ns()
        for number, text in zip(ids, texts, strict=True):
            add(number, text)
        return cpu_ns() - begin

    def remove(self, numbers: Sequence[int]) -> int:
        """Remove these filters one by one; returns CPU nanoseconds.

        In any order, but once all removals are done the oldest must be those that are gone.
        """
        self.start += len(numbers)
        remove = self.index.remove
        begin = cpu_ns()
        for number in numbers:
            remove(number)
        return cpu_ns() - begin

    def expected(self, events: Sequence[EventMapping]) -> list[list[int]]:
        """The right answers for the first events, from the workload itself."""
        return self.workload.matching(events[:VERIFIED_EVENTS], self.start, self.stop)

    def check(self, what: str, events: Sequence[EventMapping], expected: list[list[int]]) -> None:
        """Hold the answers of every path against the right ones."""
        sample = list(events[:VERIFIED_EVENTS])
        check_answers(f"{what}, single", (self.index.match(event) for event in sample), expected)
        check_answers(f"{what}, batch", self.index.match_batch(sample), expected)
        encoded = self.index.encode(sample)
        check_answers(f"{what}, encoded batch", self.index.match_batch(encoded), expected)


def warm_up(workload: Workload) -> None:
    """Run everything once on a small scale, so that nothing timed later compiles first."""
    loaded = Loaded(MatchIndex(), workload)
    events = workload.events(VERIFIED_EVENTS)
    loaded.load(2_000, lambda _: None)
    loaded.add(list(workload.filter_texts(2_000, 2_100)))
    loaded.remove(range(100))
    loaded.check("warm-up", events, loaded.expected(events))


# -- start-up -------------------------------------------------------------------------------------


_FIRST_MATCH = """
from anabranch import MatchIndex
index = MatchIndex()
index.add(1, "symbol = 'S1' AND price > 50")
index.add(2, "symbol = 'S1' AND price > 60")
print(*index.match({"symbol": "S1", "price": 55}))
"""


class StartUp(msgspec.Struct, frozen=True):
    """Seconds from nothing to the first match."""

    cold_s: float
    cached_s: float


def measure_start_up() -> StartUp:
    """Start two processes, the first without compiled kernels."""
    with tempfile.TemporaryDirectory(prefix="anabranch-evaluate-") as directory:
        return StartUp(cold_s=_first_match_s(directory), cached_s=_first_match_s(directory))


def _first_match_s(cache_directory: str) -> float:
    sources = str(Path(anabranch.__file__).parents[1])
    environment = os.environ | {
        "NUMBA_CACHE_DIR": cache_directory,
        "PYTHONPATH": os.pathsep.join(filter(None, (sources, os.environ.get("PYTHONPATH", "")))),
    }
    begin = time.perf_counter()
    process = subprocess.run(
        [sys.executable, "-c", _FIRST_MATCH],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    duration_s = time.perf_counter() - begin
    if process.returncode != 0 or process.stdout.split() != ["1"]:
        last_line = (process.stderr.strip() or process.stdout.strip()).rpartition("\n")[2]
        raise WrongAnswerError(f"start-up: a new process did not match as it should: {last_line}")
    return duration_s


# -- rivals ---------------------------------------------------------------------------------------


SAMPLED_FILTERS = 1_000
FALLBACK_EVENTS = 50


class Rival(msgspec.Struct, frozen=True):
    """Another way to the same answers."""

    us_per_event: float
    #: How many times the index's own time per event that is.
    ratio: float


def measure_naive_loop(
    workload: Workload, subscriptions: int, events: Sequence[EventMapping], us_per_event: float
) -> Rival:
    """`Filter.matches` for every filter of a sample, scaled up to all."""
    count = min(subscriptions, SAMPLED_FILTERS)
    filters = [Filter.parse(text) for text in workload.filter_texts(0, count)]
    sample = [Event(event) for event in islice(events, VERIFIED_EVENTS)]

    def loop() -> list[list[int]]:
        return [
            [number for number, each in enumerate(filters) if each.matches(event)]
            for event in sample
        ]

    check_answers("naive loop", loop(), workload.matching(events[: len(sample)], 0, count))
    loop_ns = least_pass_ns(loop, budget_s=1.0)
    loop_us = loop_ns / 1e3 / len(sample) / count * subscriptions
    return Rival(loop_us, loop_us / us_per_event)


def measure_fallback(
    workload: Workload,
    subscriptions: int,
    events: Sequence[EventMapping],
    us_per_event: float,
    advance: Callable[[int], None],
) -> Rival:
    """The index with its numpy engine, same subscriptions, some of the events."""
    loaded = Loaded(MatchIndex(engine="numpy"), workload)
    loaded.load(subscriptions, advance)
    loaded.check("numpy fallback", events, loaded.expected(events))
    sample = list(islice(events, FALLBACK_EVENTS))
    batch_ns = least_pass_ns(lambda: loaded.index.match_batch(sample))
    batch_us = batch_ns / 1e3 / len(sample)
    return Rival(batch_us, batch_us / us_per_event)


# -- updates --------------------------------------------------------------------------------------


CHUNK_UPDATES = 1_000
CHUNKS = 20
UPDATES_PER_S = 10_000
#: Rounds of a quiet and a busy phase, the matching time of one phase, and that of one slice.
ROUNDS = 3
PHASE_S = 0.6
SLICE_S = 0.005
#: Passes over the events in one phase, at least.
PASSES_MIN = 3


class UpdateRates(msgspec.Struct, frozen=True):
    """Updates per second of CPU time."""

    adds: Rates
    removes: Rates


class Slowdown(msgspec.Struct, frozen=True, kw_only=True):
    """Matching while subscriptions come and go."""

    updates_per_s: int
    updates: int
    #: Additional time per event, as a share of the quiet time: 0.1 is ten per cent slower.
    by_least: float
    by_mean: float
    #: CPU time of the updates as a share of all.
    update_cpu_share: float


def measure_update_rates(loaded: Loaded, seed: int) -> UpdateRates:
    """Add, then remove, `CHUNKS` chunks; the index is as large afterwards as before."""
    count = CHUNK_UPDATES * CHUNKS
    texts = list(loaded.workload.filter_texts(loaded.stop, loaded.stop + count))
    chunks = range(0, count, CHUNK_UPDATES)
    adds_ns = [loaded.add(texts[first : first + CHUNK_UPDATES]) for first in chunks]
    order = np.random.default_rng(seed).permutation(count) + loaded.start
    oldest: list[int] = order.tolist()
    removes_ns = [loaded.remove(oldest[first : first + CHUNK_UPDATES]) for first in chunks]
    return UpdateRates(rates(CHUNK_UPDATES, adds_ns), rates(CHUNK_UPDATES, removes_ns))


def measure_slowdown(
    loaded: Loaded, events: Sequence[EventMapping], us_per_event: float
) -> Slowdown:
    """Match quietly and with updates in between, in turn."""
    slices = _timed_slices(events, us_per_event)
    passes = max(1, math.ceil(PHASE_S / (sum(map(len, slices)) * us_per_event / 1e6)))
    quiet_ns: list[list[int]] = []
    churn = _Churn(loaded)
    for _ in range(ROUNDS):
        quiet_ns += [[_match(loaded, part) for part in slices] for _ in range(passes)]
        # A busy phase may take longer than a quiet one; these texts last for twice as long.
        churn.prepare(2 * sum(map(sum, quiet_ns[-passes:])))
        for _ in range(passes):
            churn.busy_ns.append([churn.match_and_update(part) for part in slices])
    return Slowdown(
        updates_per_s=UPDATES_PER_S,
        updates=churn.updates,
        by_least=_sum_of_least(churn.busy_ns) / _sum_of_least(quiet_ns) - 1,
        by_mean=sum(map(sum, churn.busy_ns)) / sum(map(sum, quiet_ns)) - 1,
        update_cpu_share=churn.updates_ns / (churn.updates_ns + churn.matched_ns),
    )


class _Churn:
    """Subscriptions that come and go at a rate, by the clock of matching."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._texts: deque[str] = deque()
        self.busy_ns: list[list[int]] = []
        self.matched_ns = 0
        self.updates_ns = 0
        self.updates = 0

    def prepare(self, matching_ns: int) -> None:
        """Render texts ahead, so that rendering does not disturb the caches in between."""
        first = self._loaded.stop + len(self._texts)
        count = int(matching_ns / 1e9 * UPDATES_PER_S / 2) + CHUNK_UPDATES
        self._texts.extend(self._loaded.workload.filter_texts(first, first + count))

    def match_and_update(self, events: list[EventMapping]) -> int:
        """CPU nanoseconds of matching a slice; the updates it owes follow."""
        slice_ns = _match(self._loaded, events)
        self.matched_ns += slice_ns
        owed = int(self.matched_ns / 1e9 * UPDATES_PER_S) - self.updates
        texts = [self._texts.popleft() for _ in range(min(owed // 2, len(self._texts)))]
        self.updates_ns += self._loaded.add(texts)
        oldest = range(self._loaded.start, self._loaded.start + len(texts))
        self.updates_ns += self._loaded.remove(oldest)
        self.updates += 2 * len(texts)
        return slice_ns


def _timed_slices(events: Sequence[EventMapping], us_per_event: float) -> list[list[EventMapping]]:
    """Slices of about `SLICE_S`; no more events than a phase can pass over often enough."""
    affordable = max(1, int(PHASE_S / PASSES_MIN * 1e6 / us_per_event))
    chosen = list(events[:affordable])
    size = max(1, min(len(chosen), int(SLICE_S * 1e6 / us_per_event)))
    return [chosen[first : first + size] for first in range(0, len(chosen), size)]


def _match(loaded: Loaded, events: list[EventMapping]) -> int:
    begin = cpu_ns()
    loaded.index.match_batch(events)
    return cpu_ns() - begin


def _sum_of_least(passes_ns: Sequence[Sequence[int]]) -> int:
    """Each slice's quickest time, over all slices."""
    return sum(map(min, zip(*passes_ns, strict=True)))


# -- report ---------------------------------------------------------------------------------------


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """Time per event, in µs of CPU time, minimum of repeated passes."""

    #: Events as dicts in, their ids out in one array, all in one call.
    batch_us_per_event: float
    #: The same, each slice of events counted with its quickest pass: what a quiet machine would do.
    batch_sliced_us_per_event: float
    #: The same, and a list of ids made for every event.
    batch_lists_us_per_event: float
    #: The same in two calls: dicts to an encoded batch, and the encoded batch to ids.
    encode_us_per_event: float
    encoded_us_per_event: float
    #: One dict in, one list of ids out, per call.
    single_us_per_event: float
    matches_per_event: float


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """Loading all subscriptions from text, in bulk."""

    cpu_s: float
    subscriptions_per_s: float
    #: What the index itself says it holds.
    index_bytes_per_subscription: float
    #: How much the process grew; None where the system does not say.
    resident_bytes_per_subscription: float | None


class MatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one run measured."""

    workload: str
    subscriptions: int
    events: int
    seed: int
    engine: str
    matching: Matching
    build: Build
    update_rates: UpdateRates
    slowdown: Slowdown
    #: These three are None if the run was told to leave them out.
    start_up: StartUp | None
    naive_loop: Rival | None
    numpy_fallback: Rival | None
    #: Time per event over that of `mixed` in the same run; for text, dnf and wide.
    mixed_us_per_event: float | None
    mixed_ratio: float | None
    bars: list[Verdict]


def print_report(report: MatchReport, console: Console) -> None:
    """The report as tables."""
    title = (
        f"{report.workload}: {report.subscriptions:,} subscriptions, {report.events:,} events,"
        f" engine {report.engine}"
    )
    console.print(figures_table(title, _rows(report)))
    if report.bars:
        console.print(verdicts_table(report.bars))
    else:
        console.print("Bars are stated for 200,000 and 1,000,000 subscriptions; none binds here.")


def _rows(report: MatchReport) -> Iterator[tuple[str, str]]:
    matching, build, slowdown = report.matching, report.build, report.slowdown
    yield "batch of dicts → ids", f"{matching.batch_us_per_event:,.2f} µs/event"
    yield "  quickest slices", f"{matching.batch_sliced_us_per_event:,.2f} µs/event"
    yield "  and a list per event", f"{matching.batch_lists_us_per_event:,.2f} µs/event"
    yield "  encoding alone", f"{matching.encode_us_per_event:,.2f} µs/event"
    yield "  encoded batch → ids", f"{matching.encoded_us_per_event:,.2f} µs/event"
    yield "single dict → ids", f"{matching.single_us_per_event:,.2f} µs/event"
    yield "matches", f"{matching.matches_per_event:,.1f} per event"
    yield "build from text", f"{build.cpu_s:,.2f} s, {build.subscriptions_per_s:,.0f}/s"
    yield "index", f"{build.index_bytes_per_subscription:,.0f} bytes/subscription"
    if build.resident_bytes_per_subscription is not None:
        yield "process growth", f"{build.resident_bytes_per_subscription:,.0f} bytes/subscription"
    adds, removes = report.update_rates.adds, report.update_rates.removes
    yield "add from text", f"{adds.median_per_s:,.0f}/s, best {adds.best_per_s:,.0f}/s"
    yield "remove", f"{removes.median_per_s:,.0f}/s, best {removes.best_per_s:,.0f}/s"
    yield (
        f"slowdown at {slowdown.updates_per_s:,} updates/s",
        f"{slowdown.by_least:+.1%}, by the mean {slowdown.by_mean:+.1%}",
    )
    yield "  CPU share of the updates", f"{slowdown.update_cpu_share:.1%}"
    if (times := report.start_up) is not None:
        yield "start-up to first match", f"{times.cold_s:.1f} s cold, {times.cached_s:.2f} s cached"
    yield from _rival_rows(report)


def _rival_rows(report: MatchReport) -> Iterator[tuple[str, str]]:
    rivals = {"naive loop": report.naive_loop, "numpy fallback": report.numpy_fallback}
    for name, rival in rivals.items():
        if rival is not None:
            yield name, f"{rival.us_per_event:,.0f} µs/event, {rival.ratio:,.0f} times the index"
    if report.mixed_us_per_event is not None:
        yield (
            "mixed, same size",
            f"{report.mixed_us_per_event:,.2f} µs/event, this is {report.mixed_ratio:.2f} times it",
        )


# -- command --------------------------------------------------------------------------------------


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
    """Measure matching: time per event, updates, memory, start-up, and check the bars."""
    try:
        with steps_on_stderr() as steps:
            chosen = workload(name, seed)
            parts = Parts(rivals=rivals, start_up=start_up)
            report = run(chosen, subscriptions, events, parts, steps)
    except WrongAnswerError as error:
        typer.echo(f"evaluate: error: {error}", err=True)
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
    figures = MatchFigures(
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
        bars=match_verdicts(figures),
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
    if chosen.name not in MIXED_RATIO_GOAL:
        return None
    steps.begin("loading mixed", subscriptions)
    loaded = Loaded(MatchIndex(), workload("mixed", chosen.seed))
    loaded.load(subscriptions, steps.advance)
    events = loaded.workload.events(event_count)
    return least_pass_ns(lambda: loaded.index.match_batch(events)) / 1e3 / event_count
