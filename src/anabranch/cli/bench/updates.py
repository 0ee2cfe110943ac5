"""What updates cost: their own rate, and how much slower matching gets while they happen.

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
from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np

from anabranch.cli.bench.columns import EventMapping
from anabranch.cli.bench.loading import Loaded
from anabranch.cli.bench.stopwatch import Rates, cpu_ns, rates

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
    slices = _slices(events, us_per_event)
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


def _slices(events: Sequence[EventMapping], us_per_event: float) -> list[list[EventMapping]]:
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
