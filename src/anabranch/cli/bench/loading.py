"""Subscriptions of a workload in an index: loading them from text, and keeping track of which.

The live subscriptions of a `Loaded` are always a window of the workload's filters: additions come
at its end, removals leave at its start. So the right answers are known at any moment (see
`workloads`, rule 2). Losing this state loses a measurement and nothing else.
"""

from collections.abc import Callable, Sequence
from itertools import islice

from anabranch import MatchIndex
from anabranch.cli.bench.columns import EventMapping
from anabranch.cli.bench.stopwatch import cpu_ns
from anabranch.cli.bench.verify import VERIFIED_EVENTS, check_answers
from anabranch.cli.bench.workloads import CHUNK_FILTERS, Workload


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
