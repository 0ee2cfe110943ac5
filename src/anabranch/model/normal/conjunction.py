"""One conjunction of the normal form: a box of value sets, and what does not fit into boxes.

The constraints form a *box*: each attribute, independently of the others, is in its set.
Conditions that tie attributes together or compute with them (`a < b`, `a + b > 5`, `x LIKE '%s'`)
are no boxes; they stay whole, as the *residue*, and are evaluated. What a residue implies about
single attributes is in the box too (for `a + b > 5` to be TRUE, a and b have to be numbers), so
the box alone is a necessary condition: an index finds candidates with it and evaluates the residue
of those only.

1. Each attribute occurs at most once, with a set that is neither empty nor everything. So the box
   is never empty: a conjunction without residue matches some event.
2. No constraints and no residue: matches every event.
3. The order of constraints and of residues is fixed, so equal conjunctions are equal values.
"""

from collections.abc import Iterable, Mapping

import msgspec

from anabranch.model.language.evaluate import evaluate
from anabranch.model.language.expression import Expression
from anabranch.model.language.text import expression_text
from anabranch.model.normal.valueset import ValueSet
from anabranch.model.values import Attributes


class Conjunction(msgspec.Struct, frozen=True, gc=False, cache_hash=True):
    """Every constraint holds and every residue is TRUE."""

    #: (attribute, what it may be), ascending by name; never the full set, never the empty set.
    constraints: tuple[tuple[str, ValueSet], ...]
    #: Expressions over attributes, each to be TRUE, ascending by their text.
    residue: tuple[Expression, ...] = ()

    def matches(self, attributes: Attributes) -> bool:
        """Whether an event with these attributes satisfies all of it."""
        for name, values in self.constraints:
            if not values.contains(attributes.get(name)):
                return False
        return all(evaluate(part, attributes) is True for part in self.residue)


#: Satisfied by every event.
EVERY_EVENT = Conjunction(())


def conjunction_from(
    constraints: Mapping[str, ValueSet], residue: Iterable[Expression] = ()
) -> Conjunction:
    """The conjunction of these parts. No set is empty; full sets say nothing and are left out."""
    kept = sorted(pair for pair in constraints.items() if not pair[1].is_everything())
    parts = tuple(set(residue))
    if len(parts) > 1:
        parts = tuple(sorted(parts, key=expression_text))
    return Conjunction(tuple(kept), parts)
