"""The estimated memory cost of a filter at a broker.

A broker holds a subscribed filter as its tree, its normal form, an entry in the matching index of
the edge, and a node in the DAG of the edge's interest. The cost was measured as resident memory of
a broker for filters of many kinds, each of which is within a factor of two of the estimate
(`tests/unit/model/normal/test_memory_cost.py` has the figures). The estimate counts:

1. each byte of text: tokens of the tree, and long literals;
2. each conjunction, each of its constraints and residues, and each node of a residue, which is
   compiled once however many conjunctions have it;
3. each text that a constraint compares with, and each further range of numbers;
4. each attribute name: an axis of both indexes. This is the most expensive part and is shared by
   all filters that use the name, so names are counted separately.

This module keeps no state.
"""

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.model.language.expression import Expression, Like
from anabranch.model.normal.conditions import nodes_of
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.normal.text_ranges import ALL_TEXTS

#: The cost of an attribute that no other filter uses.
NAME_BYTES = 10_240

_FILTER_BYTES = 2_048
_TEXT_BYTES = 10
_CONJUNCTION_BYTES = 1_536
_PREDICATE_BYTES = 352
_RESIDUE_BYTES = 1_536
_RESIDUE_NODE_BYTES = 512
#: A LIKE holds a compiled pattern.
_LIKE_NODES = 12
_TEXT_RANGE_BYTES = 1_152
_NUMBER_RANGE_BYTES = 288


class FilterCost(NamedTuple):
    """The estimated memory cost of a filter."""

    #: Without its attribute names.
    bytes: int
    #: The attributes that it reads, without duplicates.
    names: tuple[str, ...] = ()

    @property
    def alone_bytes(self) -> int:
        """The total cost if no other filter uses these attributes."""
        return self.bytes + NAME_BYTES * len(self.names)


def filter_cost(text: str, conjunctions: Sequence[Conjunction]) -> FilterCost:
    size = _FILTER_BYTES + _TEXT_BYTES * len(text) + _CONJUNCTION_BYTES * len(conjunctions)
    names: dict[str, None] = {}
    residues: dict[int, Expression] = {}
    for conjunction in conjunctions:
        constraints, residue = conjunction.constraints, conjunction.residue
        size += _PREDICATE_BYTES * (len(constraints) + len(residue))
        for part in residue:
            size += _RESIDUE_BYTES
            residues[id(part)] = part
        for name, values in constraints:
            names[name] = None
            if len(values.numbers) > 1:
                size += _NUMBER_RANGE_BYTES * (len(values.numbers) - 1)
            if values.texts and values.texts is not ALL_TEXTS and values.texts != ALL_TEXTS:
                size += _TEXT_RANGE_BYTES * len(values.texts)
    size += _RESIDUE_NODE_BYTES * sum(map(_nodes, residues.values()))
    return FilterCost(size, tuple(names))


def _nodes(residue: Expression) -> int:
    return sum(_LIKE_NODES if type(node) is Like else 1 for node in nodes_of(residue))
