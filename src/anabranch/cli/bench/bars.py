"""What the figures ought to be: bars that were promised and goals that are aimed at.

A bar binds at the sizes it was stated for, 200,000 and 1,000,000 subscriptions for matching and
100,000 for covering; at any other size there is nothing to judge. Missing one is said aloud and is
no failure of the command.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

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

COVER_SIZE = 100_000
COVER_ADDS_PER_S_MIN = {"ranges": 20_000, "nested": 200_000}
COVER_QUERY_P50_US_MAX = 5
COVER_REMOVE_P99_US_MAX = 500
COVER_REMOVE_MAX_US_MAX = 5_000


class Verdict(msgspec.Struct, frozen=True):
    """One bar, held against what was measured."""

    name: str
    measured: float
    relation: Literal["≤", "≥"]
    limit: float
    met: bool
    #: A goal has no sketch behind it: the distance is reported, nothing more was promised.
    goal: bool = False


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


class CoverFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the covering benchmark that bars are about."""

    workload: str
    subscriptions: int
    query_p50_us: float
    adds_per_s: float
    remove_p99_us: float
    remove_max_us: float


def at_most(name: str, measured: float, limit: float, *, goal: bool = False) -> Verdict:
    """A bar from above."""
    return Verdict(name, measured, "≤", limit, measured <= limit, goal)


def at_least(name: str, measured: float, limit: float, *, goal: bool = False) -> Verdict:
    """A bar from below."""
    return Verdict(name, measured, "≥", limit, measured >= limit, goal)


def match_verdicts(figures: MatchFigures) -> list[Verdict]:
    """Every bar and goal that binds this run."""
    return list(_match_verdicts(figures)) if figures.subscriptions in MATCH_SIZES else []


def cover_verdicts(figures: CoverFigures) -> list[Verdict]:
    """Every bar that binds this run."""
    return list(_cover_verdicts(figures)) if figures.subscriptions == COVER_SIZE else []


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


def _cover_verdicts(figures: CoverFigures) -> Iterator[Verdict]:
    yield at_most("is it covered?, p50 µs", figures.query_p50_us, COVER_QUERY_P50_US_MAX)
    if figures.workload in COVER_ADDS_PER_S_MIN:
        limit = COVER_ADDS_PER_S_MIN[figures.workload]
        yield at_least("adds per second", figures.adds_per_s, limit)
    yield at_most("remove, p99 µs", figures.remove_p99_us, COVER_REMOVE_P99_US_MAX)
    yield at_most("remove, max µs", figures.remove_max_us, COVER_REMOVE_MAX_US_MAX)
