"""Who covers whom, from the columns a workload was drawn as.

Here every filter is one conjunction of intervals, and covering is containment of boxes: f covers g
if every interval of f contains the interval g has on the same attribute. It is brute force over
numpy columns, shares no code with the product, and is asked about a sample only.
"""

from collections.abc import Iterable, Set

import numpy as np

from anabranch.cli.bench.columns import Columns, covering_conjunctions, offsets_of
from anabranch.cli.bench.verify import WrongAnswerError
from anabranch.cli.bench.workloads import CHUNK_FILTERS, IntervalWorkload

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
                raise WrongAnswerError(f"{what}: {number} is no root but nothing covers it")

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
