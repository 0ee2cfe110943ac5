"""Residual checks: conditions that the engines cannot decide, evaluated on the event itself.

These are residues, and constraints beyond the keys of the engines. An entry with such conditions
has a check here. The engine reports the entry as a candidate when everything it can decide holds;
the check then evaluates the remaining conditions exactly. A check states what it costs, because
a search in a large text may take a thousand times as long as a comparison.

Checks can be stored in a snapshot. A loaded snapshot creates a check when the engine first reports
its entry; most are never needed.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec
import numpy as np
from numpy.typing import NDArray

from anabranch.matching.identities import TextTable
from anabranch.matching.schema import Spelling
from anabranch.model.event import Attributes
from anabranch.model.language.evaluate import Condition, compile_condition
from anabranch.model.language.expression import Expression
from anabranch.model.language.parser import parse_expression
from anabranch.model.language.tokens import expression_text
from anabranch.model.limits import Limits
from anabranch.model.normal.conditions import search_weight
from anabranch.model.normal.value_set import ValueSet

#: The cost of one check, in microseconds of an ordinary machine: CHECK_WORK, plus one for every
#: CHECKED_BYTES bytes of the event. Each unit of the weight of its searches (`model.language.like`)
#: adds one for every SEARCHED_BYTES.
CHECK_WORK = 3
CHECKED_BYTES = 2_048
SEARCHED_BYTES = 1_024


class Check:
    """What remains to be evaluated of one entry."""

    __slots__ = ("_conditions", "_undecided", "_weight")

    def __init__(self, conditions: Iterable[Condition], left: "Left") -> None:
        self._conditions = tuple(conditions)
        self._undecided = left.undecided
        self._weight = sum(map(search_weight, left.residue))

    def __call__(self, attributes: Attributes) -> bool:
        for name, values in self._undecided:
            if not values.contains(attributes.get(name)):
                return False
        return all(condition(attributes) is True for condition in self._conditions)

    def work(self, size: int) -> int:
        """The cost of checking an event of `size` bytes."""
        return CHECK_WORK + size // CHECKED_BYTES + self._weight * size // SEARCHED_BYTES


#: What was accepted once is accepted again: a snapshot does not say by which limits it was.
_ANY_SIZE = Limits(
    filter_bytes_max=1 << 30,
    filter_depth_max=1 << 30,
    filter_nodes_max=1 << 30,
    name_bytes_max=1 << 30,
    value_bytes_max=1 << 30,
)


class Left(NamedTuple):
    """What an engine leaves open of a conjunction."""

    residue: tuple[Expression, ...]
    undecided: tuple[tuple[str, ValueSet], ...]


_decoder = msgspec.msgpack.Decoder(tuple[list[str], tuple[tuple[str, ValueSet], ...]])


class Doubts:
    """Entry → the check that decides it."""

    def __init__(self) -> None:
        self._checks: dict[int, Check] = {}
        self._left: dict[int, Left] = {}
        #: Identity of a residue → its condition, as long as a check has it. Conjunctions of one
        #: filter share residues, a thousand of them perhaps, and a condition is much larger than
        #: its tree. Who has the condition has the residue too, so the identity is not used again.
        self._compiled: WeakValueDictionary[int, Condition] = WeakValueDictionary()
        #: Entries of a snapshot, ascending, and what is left of each.
        self._stored: tuple[NDArray[np.int32], TextTable] | None = None

    def __bool__(self) -> bool:
        return bool(self._checks) or self._stored is not None

    def check(self, entry: int) -> Check:
        """What decides an entry, on the attributes of an event."""
        check = self._checks.get(entry)
        return self._stored_check(entry) if check is None else check

    def put(self, entry: int, left: Left) -> None:
        """Remember what is left of an entry."""
        self._checks[entry] = Check(map(self._condition, left.residue), left)
        self._left[entry] = left

    def _condition(self, residue: Expression) -> Condition:
        known = self._compiled.get(id(residue))
        if known is None:
            known = self._compiled[id(residue)] = compile_condition(residue)
        return known

    def drop(self, entry: int) -> None:
        if entry in self._checks:
            del self._checks[entry]
            del self._left[entry]

    def decide(self, entry: int, attributes: Attributes) -> bool:
        """Whether the event satisfies what the engine left open of an entry."""
        return self.check(entry)(attributes)

    # -- for a snapshot -------------------------------------------------------------------------

    def written(self) -> Iterator[tuple[int, bytes]]:
        if self._stored is not None:
            entries, table = self._stored
            yield from ((int(entry), table.raw(n)) for n, entry in enumerate(entries))
        for entry, left in sorted(self._left.items()):
            texts = [expression_text(condition) for condition in left.residue]
            yield entry, msgspec.msgpack.encode((texts, left.undecided))

    def restore(self, entries: NDArray[np.int32], table: TextTable) -> None:
        self._stored = entries, table

    def _stored_check(self, entry: int) -> Check:
        assert self._stored is not None
        entries, table = self._stored
        texts, undecided = _decoder.decode(table.raw(int(np.searchsorted(entries, entry))))
        residue = tuple(parse_expression(text, _ANY_SIZE) for text in texts)
        check = self._checks[entry] = check_of(Left(residue, undecided))
        return check


def left_of(spelling: Spelling) -> Left | None:
    """What a spelling leaves open; None if nothing is."""
    if not spelling.residue and not spelling.undecided:
        return None
    return Left(spelling.residue, tuple(spelling.undecided))


def check_of(left: Left) -> Check:
    return Check(map(compile_condition, left.residue), left)
