"""Conjunctions of intervals as columns of integers: how the synthetic workloads are drawn.

A workload of a million filters is drawn as a handful of arrays, a chunk at a time, and only
becomes text when somebody asks for the text. Rules:

1. Every value is an integer from 0 on. A numeric attribute publishes the integer itself, a
   categorical one a label of fixed width (7 becomes 'V007').
2. A predicate is an interval with both ends included; on a categorical attribute both ends are
   the same and the text is an equality.
3. On a schema with open ends an interval that touches an end of the domain is written with one
   comparison (`<=` or `>=`), any other with BETWEEN. Events never leave the domain, so both
   spellings mean the same here.
4. An absent attribute is -1 in a row of values; no interval starts below 0, so none contains it.

`matching_filters` answers from the columns alone. It shares no code with the product and is what
a benchmark's results are held against.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
EventMapping = dict[str, str | int]

#: Numeric attributes take the integers from 0 up to but not including this.
DOMAIN = 1_000_000
ABSENT = -1


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of a schema."""

    name: str
    #: How many values it takes; 0: it is numeric over the whole domain.
    categories: int = 0
    #: What a category's label starts with; one letter.
    initial: str = "V"

    def label(self, value: int) -> str | int:
        """The value as an event carries it."""
        if not self.categories:
            return value
        return f"{self.initial}{value:0{len(str(self.categories - 1))}d}"


@dataclass(frozen=True, slots=True)
class Schema:
    """The attributes of a workload, in the order of their column."""

    attributes: tuple[Attribute, ...]
    #: Rule 3: may an interval at the edge of the domain be written with one comparison?
    open_ends: bool = True

    def row_of(self, event: Mapping[str, str | int]) -> Integers:
        """The event as one integer per attribute, `ABSENT` where it has none."""
        row = np.full(len(self.attributes), ABSENT, np.int64)
        for column, attribute in enumerate(self.attributes):
            value = event.get(attribute.name, ABSENT)
            row[column] = value if isinstance(value, int) else int(value[1:])
        return row

    def mapping_of(self, row: Sequence[int]) -> EventMapping:
        """The event of one row."""
        return {
            attribute.name: attribute.label(value)
            for attribute, value in zip(self.attributes, row, strict=True)
            if value != ABSENT
        }

    def wording(self, column: int, low: int, high: int) -> str:
        """The text of one predicate."""
        attribute = self.attributes[column]
        if attribute.categories:
            return f"{attribute.name} = '{attribute.label(low)}'"
        if self.open_ends and low == 0:
            return f"{attribute.name} <= {high}"
        if self.open_ends and high == DOMAIN - 1:
            return f"{attribute.name} >= {low}"
        return f"{attribute.name} BETWEEN {low} AND {high}"


@dataclass(frozen=True, slots=True)
class Columns:
    """Filters in disjunctive normal form: filters own conjunctions, conjunctions own predicates."""

    #: Filter f owns conjunctions `filters[f]` up to `filters[f + 1]`. Never an empty one.
    filters: Integers
    #: Conjunction c owns predicates `conjunctions[c]` up to `conjunctions[c + 1]`. Never empty.
    conjunctions: Integers
    attribute: Integers
    low: Integers
    high: Integers


def offsets_of(sizes: Integers) -> Integers:
    """Where each of several consecutive runs starts, and the end of the last."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def wordings(schema: Schema, columns: Columns) -> list[str]:
    """The text of every filter."""
    parts = [
        schema.wording(attribute, low, high)
        for attribute, low, high in zip(
            columns.attribute.tolist(), columns.low.tolist(), columns.high.tolist(), strict=True
        )
    ]
    bounds = columns.conjunctions.tolist()
    conjunctions = [" AND ".join(parts[start:end]) for start, end in itertools.pairwise(bounds)]
    owners = columns.filters.tolist()
    return [_disjunction(conjunctions[start:end]) for start, end in itertools.pairwise(owners)]


def matching_filters(columns: Columns, row: Integers) -> Integers:
    """Which filters the row satisfies, ascending."""
    values = row[columns.attribute]
    holds = (values >= columns.low) & (values <= columns.high)
    conjunctions = np.logical_and.reduceat(holds, columns.conjunctions[:-1])
    return np.flatnonzero(np.logical_or.reduceat(conjunctions, columns.filters[:-1]))


def covering_conjunctions(columns: Columns, box: Mapping[int, tuple[int, int]]) -> Integers:
    """Which conjunctions contain the box given as attribute → interval, ascending."""
    lows = np.full(int(columns.attribute.max()) + 1, ABSENT, np.int64)
    highs = np.full(len(lows), ABSENT, np.int64)
    for attribute, (low, high) in box.items():
        if attribute < len(lows):
            lows[attribute], highs[attribute] = low, high
    inside = (lows[columns.attribute] >= columns.low) & (highs[columns.attribute] <= columns.high)
    return np.flatnonzero(np.logical_and.reduceat(inside, columns.conjunctions[:-1]))


def _disjunction(conjunctions: Sequence[str]) -> str:
    if len(conjunctions) == 1:
        return conjunctions[0]
    return " OR ".join(f"({conjunction})" for conjunction in conjunctions)
