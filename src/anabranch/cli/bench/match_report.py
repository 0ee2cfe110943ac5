"""The result of `anabranch bench match`, as a value and as tables."""

from collections.abc import Iterator

import msgspec
from rich.console import Console

from anabranch.cli.bench.bars import Verdict
from anabranch.cli.bench.rivals import Rival
from anabranch.cli.bench.startup import StartUp
from anabranch.cli.bench.tables import figures_table, verdicts_table
from anabranch.cli.bench.updates import Slowdown, UpdateRates


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
