"""The spelling of a conjunction: the words that the engines take, and what these leave open.

`schema` writes spellings; `kernels.layout` says what the words of a record mean. A spelling is
made for one `insert` and forgotten.
"""

from anabranch.matching.kernels import layout as at
from anabranch.model.language.expression import Expression
from anabranch.model.normal.value_set import ValueSet


class Spelling:
    """A conjunction as words, the format that packs them, and what they leave undecided."""

    __slots__ = ("count", "form", "is_line", "patterned", "residue", "undecided", "words")

    def __init__(self, words: list[int | float], form: str, count: int) -> None:
        """A spelling of `count` single ranges and codes; more can be put behind them."""
        self.count = count
        self.words = words
        #: One letter per word, as `struct` has them.
        self.form = form
        #: Whether every predicate is a single range or a single code, and they fit into a line.
        self.is_line = count <= at.LINE_RANGES
        #: Constraints that the words imply but do not decide.
        self.undecided: list[tuple[str, ValueSet]] = []
        #: Residues that the words do not decide.
        self.residue: tuple[Expression, ...] = ()
        #: Attributes on which a pattern is spelled: there is one at the most.
        self.patterned: tuple[str, ...] = ()

    def put(self, form: str, *words: int | float) -> None:
        """Append one predicate that is not a single range or code."""
        self.count += 1
        self.is_line = False
        self.form += form
        self.words += words

    def put_line(self, form: str, *words: int | float) -> None:
        """Append a single range or code."""
        self.count += 1
        self.is_line = self.is_line and self.count <= at.LINE_RANGES
        self.form += form
        self.words += words
