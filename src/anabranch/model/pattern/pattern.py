"""Patterns: composite subscriptions, matched by events that belong together.

    Pattern.parse(
        "low:{class = 'STOCK' AND price < 20} THEN high:{class = 'STOCK' AND price > 30}"
        " WHERE low.symbol = high.symbol WITHIN 5 s LATENESS 2 s LAST"
    )

A pattern is its tree (`tree`) and never changes. Rules:

1. `Pattern.parse(str(pattern)) == pattern`.
2. A pattern that exists is valid, whether it was parsed or put together: its tree is checked when
   it is made. Limits are for whoever parses it, and whoever detects it.
3. Every pattern has a window: without one, nothing that was seen could ever be forgotten.

docs/PATTERNS.md is the language for users; `check.patterns` defines what it means.
"""

from typing import Self

from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.pattern.parser import PatternParser
from anabranch.model.pattern.text import pattern_text
from anabranch.model.pattern.tree import PatternTree
from anabranch.model.pattern.validity import check_pattern


class Pattern(PatternTree, frozen=True):
    """One composite subscription. See the rules at the top of this module."""

    def __post_init__(self) -> None:
        check_pattern(self, limits=None)

    @classmethod
    def parse(cls, text: str, limits: Limits = DEFAULT_LIMITS) -> Self:
        """The pattern that `text` says, or a `PatternError` that says what is wrong and where."""
        tree = PatternParser(text, limits).parse()
        return cls(tree.root, tree.joins, tree.window_ns, tree.lateness_ns, tree.policy)

    def __str__(self) -> str:
        return pattern_text(self)
