"""Workloads by name: the same filters and events on every machine, for every size.

Rules:

1. Everything follows from the workload's name and the seed. Filters are drawn in chunks of fixed
   size, each from a generator of its own, so filter 5 is the same whether two hundred thousand
   or a million are asked for, and the first of them are a prefix of the second.
2. A subscription's id is its filter's number. A window of numbers, `start` up to `stop`, stands
   for "the first `start` have left and more have come", which is how updates are measured.
3. Texts stream: one chunk is in memory at a time.
4. Every workload can say by itself which filters of a window an event matches, without the
   product's help. A benchmark compares, and fails if it disagrees.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from anabranch.cli.bench import intervals, phrases
from anabranch.cli.bench.columns import (
    Columns,
    EventMapping,
    Integers,
    Schema,
    matching_filters,
    wordings,
)

CHUNK_FILTERS = 8_192
#: Which stream of random numbers a workload's events come from; filters use the chunk's number.
_EVENTS_STREAM = 2**31


class Workload(Protocol):
    """Filters as text and events as mappings, with the answer known independently."""

    @property
    def name(self) -> str:
        """One of `WORKLOAD_NAMES`."""
        ...

    @property
    def seed(self) -> int:
        """What everything was drawn from."""
        ...

    def filter_texts(self, start: int, stop: int) -> Iterator[str]:
        """The texts of filters `start` up to `stop`."""
        ...

    def events(self, count: int) -> list[EventMapping]:
        """The first `count` events."""
        ...

    def matching(
        self, events: Sequence[Mapping[str, str | int]], start: int, stop: int
    ) -> list[list[int]]:
        """For each event the numbers of the matching filters of the window, ascending."""
        ...


@dataclass(frozen=True, slots=True)
class IntervalWorkload:
    """A workload drawn as columns of intervals."""

    name: str
    seed: int
    schema: Schema
    draw: Callable[[np.random.Generator, int], Columns]
    rows: Callable[[np.random.Generator, int], Integers]

    def filter_texts(self, start: int, stop: int) -> Iterator[str]:
        """See `Workload`."""
        for chunk in _chunks(start, stop):
            texts = wordings(self.schema, self.columns(chunk.number))
            yield from texts[chunk.first : chunk.last]

    def events(self, count: int) -> list[EventMapping]:
        """See `Workload`."""
        rows = self.rows(_generator(self.name, self.seed, _EVENTS_STREAM), count)
        return [self.schema.mapping_of(row) for row in rows.tolist()]

    def matching(
        self, events: Sequence[Mapping[str, str | int]], start: int, stop: int
    ) -> list[list[int]]:
        """See `Workload`."""
        rows = [self.schema.row_of(event) for event in events]
        answers: list[list[int]] = [[] for _ in rows]
        for chunk in _chunks(start, stop):
            columns = self.columns(chunk.number)
            for answer, row in zip(answers, rows, strict=True):
                found = matching_filters(columns, row)
                answer.extend(chunk.numbers(found))
        return answers

    def columns(self, chunk: int) -> Columns:
        """One whole chunk of filters as columns."""
        return self.draw(_generator(self.name, self.seed, chunk), CHUNK_FILTERS)


@dataclass(frozen=True, slots=True)
class TextWorkload:
    """The workload of string tests."""

    name: str
    seed: int

    def filter_texts(self, start: int, stop: int) -> Iterator[str]:
        """See `Workload`."""
        for chunk in _chunks(start, stop):
            for predicates in self._draw(chunk):
                yield phrases.wording(predicates)

    def events(self, count: int) -> list[EventMapping]:
        """See `Workload`."""
        return phrases.events_of_text(_generator(self.name, self.seed, _EVENTS_STREAM), count)

    def matching(
        self, events: Sequence[Mapping[str, str | int]], start: int, stop: int
    ) -> list[list[int]]:
        """See `Workload`."""
        answers: list[list[int]] = [[] for _ in events]
        for chunk in _chunks(start, stop):
            for number, predicates in enumerate(self._draw(chunk), chunk.start + chunk.first):
                for answer, event in zip(answers, events, strict=True):
                    if phrases.satisfies(predicates, event):
                        answer.append(number)
        return answers

    def _draw(self, chunk: "_Chunk") -> list[list[phrases.Predicate]]:
        rng = _generator(self.name, self.seed, chunk.number)
        return list(phrases.draw_text(rng, CHUNK_FILTERS))[chunk.first : chunk.last]


_INTERVAL_WORKLOADS = {
    "stock": (intervals.STOCK, intervals.draw_stock, intervals.rows_of_stock),
    "mixed": (intervals.MIXED, intervals.draw_mixed, intervals.rows_of_mixed),
    "ranges": (intervals.RANGES, intervals.draw_ranges, intervals.rows_of_ranges),
    "nested": (intervals.NESTED, intervals.draw_nested, intervals.rows_of_stock),
    "dnf": (intervals.MIXED, intervals.draw_dnf, intervals.rows_of_mixed),
    "wide": (intervals.WIDE, intervals.draw_wide, intervals.rows_of_wide),
}
WORKLOAD_NAMES = (*_INTERVAL_WORKLOADS, "text")


def interval_workload(name: str, seed: int) -> IntervalWorkload:
    """The interval workload of this name."""
    return IntervalWorkload(name, seed, *_INTERVAL_WORKLOADS[name])


def workload(name: str, seed: int) -> Workload:
    """The workload of this name, one of `WORKLOAD_NAMES`."""
    return TextWorkload(name, seed) if name == "text" else interval_workload(name, seed)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The part of one chunk that lies in a window: `first` up to `last` of it."""

    number: int
    first: int
    last: int

    @property
    def start(self) -> int:
        return self.number * CHUNK_FILTERS

    def numbers(self, places: Integers) -> list[int]:
        """The filter numbers of those places in the chunk that lie in the window."""
        inside = places[(places >= self.first) & (places < self.last)]
        numbers: list[int] = (inside + self.start).tolist()
        return numbers


def _chunks(start: int, stop: int) -> Iterator[_Chunk]:
    for number in range(start // CHUNK_FILTERS, -(-stop // CHUNK_FILTERS)):
        offset = number * CHUNK_FILTERS
        yield _Chunk(number, max(start - offset, 0), min(stop - offset, CHUNK_FILTERS))


def _generator(name: str, seed: int, stream: int) -> np.random.Generator:
    return np.random.default_rng([seed, int.from_bytes(name.encode()), stream])
