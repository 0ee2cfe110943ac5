"""Which conjunctions may cover which, as far as their residues tell.

A residue is covered by the same residue, or where so few values are left to the attributes it reads
that all of them can be tried (`model.normal.conjunction`). Of thousands of conjunctions with
residues hardly any two have one in common. Those that do are found by their residues; the others
are left out without being compared. Rules:

1. What has a residue covers only conjunctions that have the same one, or that leave few values to
   each attribute the residue reads.
2. What has none is for `covers` to judge.

State: entries by residue; rebuilt from the conjunctions."""

import numpy as np
from numpy.typing import NDArray

from anabranch.matching.engine import Integers
from anabranch.model.language.expression import Expression
from anabranch.model.normal.conditions import attribute_names
from anabranch.model.normal.conjunction import Conjunction, few_attributes

_NONE: dict[int, None] = {}


class Residues:
    """The residues of seated conjunctions. See the rules above."""

    def __init__(self) -> None:
        #: Residue → the entries that have it.
        self._entries: dict[Expression, dict[int, None]] = {}
        #: Entry → the attributes that the first part of its residue reads.
        self._reads: dict[int, frozenset[str]] = {}
        #: By entry: whether it has a residue, and whether it leaves few values to an attribute.
        self._has: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._few: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def grow(self, entries: int) -> None:
        """There may be so many entries."""
        if entries > len(self._has):
            more = np.zeros(max(entries, 2 * len(self._has)) - len(self._has), np.bool_)
            self._has = np.concatenate((self._has, more))
            self._few = np.concatenate((self._few, more))

    def seat(self, entry: int, conjunction: Conjunction) -> None:
        """An entry has this conjunction."""
        self._few[entry] = bool(few_attributes(conjunction))
        if not conjunction.residue:
            return
        self._has[entry] = True
        self._reads[entry] = frozenset(attribute_names(conjunction.residue[0]))
        for part in conjunction.residue:
            self._entries.setdefault(part, {})[entry] = None

    def unseat(self, entry: int, conjunction: Conjunction) -> None:
        """It has none any more."""
        self._few[entry] = False
        if not conjunction.residue:
            return
        self._has[entry] = False
        del self._reads[entry]
        for part in set(conjunction.residue):
            entries = self._entries[part]
            del entries[entry]
            if not entries:
                del self._entries[part]

    def may_cover(self, conjunction: Conjunction, entries: Integers) -> Integers:
        """Those of the entries that may cover a conjunction."""
        if not self._reads:
            return entries
        has = self._has[entries]
        found = ~has
        for part in conjunction.residue:
            found |= _are_in(entries, self._entries.get(part, _NONE))
        few = few_attributes(conjunction)
        if few:
            reads = self._reads
            others = entries[has].tolist()
            tried = [entry for entry in others if reads[entry] <= few]
            found |= _are_in(entries, dict.fromkeys(tried))
        return entries[found]

    def may_be_covered(self, conjunction: Conjunction, entries: Integers) -> Integers:
        """Those of the entries that a conjunction may cover."""
        if not conjunction.residue:
            return entries
        having = [self._entries.get(part, _NONE) for part in conjunction.residue]
        return entries[self._few[entries] | _are_in(entries, min(having, key=len))]


def _are_in(entries: Integers, some: dict[int, None]) -> NDArray[np.bool_]:
    """Which of the entries are some of these."""
    if not some:
        return np.zeros(len(entries), np.bool_)
    return np.isin(entries, np.fromiter(some, np.int64, len(some)))
