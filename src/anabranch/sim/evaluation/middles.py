"""The middle of some graphs, and how far they lie apart.

A mean over graphs says what the worst of them says, if that one is overloaded. So figures are
medians, with the least and the greatest beside them; differences are of each graph with itself, and
then of all graphs the median.
"""

from collections.abc import Callable, Sequence
from statistics import median

import msgspec


class Middle(msgspec.Struct, frozen=True):
    """A median, and what it is the median of lies between these."""

    value: float
    least: float
    most: float

    def text(self, show: Callable[[float], str], unit: str = "") -> str:
        """`12 ms (10 to 15)`, or `12 ms` if there is nothing between."""
        ends = show(self.least), show(self.most)
        around = f" ({ends[0]} to {ends[1]})" if ends[0] != ends[1] else ""
        return f"{show(self.value)}{unit}{around}"


def middle(values: Sequence[float]) -> Middle:
    """Of some graphs."""
    return Middle(median(values), min(values), max(values))


def difference(before: Sequence[float], after: Sequence[float]) -> Middle:
    """Of each graph against itself, as a share of what was before; 0 where that was nothing."""
    pairs = zip(before, after, strict=True)
    return middle([new / old - 1 if old else 0.0 for old, new in pairs])
