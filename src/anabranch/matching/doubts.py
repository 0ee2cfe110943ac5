"""What the engines leave undecided: residues, and constraints beyond their keys.

An entry in doubt has a check here. The engine reports it when everything it can decide holds;
the check then evaluates what is left, exactly, on the event itself.
"""

from collections.abc import Callable

from anabranch.matching.spelling import Spelling
from anabranch.model.filter import Filter
from anabranch.model.language.evaluate import compile_condition
from anabranch.model.values import Attributes

Check = Callable[[Attributes], bool]


class Doubts:
    """Entry → the check that decides it."""

    def __init__(self) -> None:
        self._checks: dict[int, Check] = {}
        #: Entry → the filter it is part of, for writing it down.
        self.filters: dict[int, Filter] = {}

    def put(self, entry: int, check: Check, filter: Filter) -> None:
        """Remember an entry's check."""
        self._checks[entry] = check
        self.filters[entry] = filter

    def drop(self, entry: int) -> None:
        """Forget an entry; one without a check is fine."""
        if entry in self._checks:
            del self._checks[entry]
            del self.filters[entry]

    def decide(self, entry: int, attributes: Attributes) -> bool:
        """Whether the event satisfies what the engine left open of an entry."""
        return self._checks[entry](attributes)

    def __len__(self) -> int:
        return len(self._checks)


def check_of(spelling: Spelling) -> Check | None:
    """The check of what a spelling leaves undecided; None if nothing is."""
    if not spelling.residue and not spelling.undecided:
        return None
    conditions = tuple(map(compile_condition, spelling.residue))
    undecided = tuple(spelling.undecided)

    def check(attributes: Attributes) -> bool:
        for name, values in undecided:
            if not values.contains(attributes.get(name)):
                return False
        return all(condition(attributes) is True for condition in conditions)

    return check
