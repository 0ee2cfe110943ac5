"""What the index is compared with, in the same run: a plain loop, and itself without numba.

The loop asks every filter in turn, about events that were checked once beforehand. Its time per
filter hardly depends on how many there are, so a sample of filters is enough to say what all of
them would take. The fallback is loaded in full.
"""

from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from anabranch import Event, Filter, MatchIndex
from anabranch.cli.bench.columns import EventMapping
from anabranch.cli.bench.loading import Loaded
from anabranch.cli.bench.stopwatch import least_pass_ns
from anabranch.cli.bench.verify import VERIFIED_EVENTS, check_answers
from anabranch.cli.bench.workloads import Workload

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
