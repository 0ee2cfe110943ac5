"""A pattern back to text: the one canonical spelling of each tree.

Rules:

1. What is printed parses back to an equal pattern.
2. Parentheses stand only where the tree would come out differently without them, and round every
   window inside.
3. Reserved words are in capitals, with one space between any two words. The clauses come in the
   order WHERE, WITHIN, LATENESS, policy; a lateness of nothing and the policy ALL are not printed.
4. A part whose name is a number was given none, and is printed without.
"""

from anabranch.model.language.text import name_text
from anabranch.model.pattern.durations import duration_text
from anabranch.model.pattern.tree import (
    Absent,
    And,
    Node,
    Or,
    Part,
    PatternTree,
    Term,
    Then,
    Times,
    Within,
)

#: How tightly the text of a node holds together, from loose to tight.
_OR, _AND, _THEN, _TIMES, _ATOM = range(5)


def pattern_text(pattern: PatternTree) -> str:
    """The canonical text of `pattern`."""
    text = _print(pattern.root)[0]
    if pattern.joins:
        joins = [f"{_term(join.left)} = {_term(join.right)}" for join in pattern.joins]
        text += " WHERE " + " AND ".join(joins)
    text += f" WITHIN {duration_text(pattern.window_ns)}"
    if pattern.lateness_ns:
        text += f" LATENESS {duration_text(pattern.lateness_ns)}"
    return text if pattern.policy == "ALL" else f"{text} {pattern.policy}"


def _print(node: Node | Absent) -> tuple[str, int]:
    """The text, and how tightly it holds together."""
    match node:
        case Part(name, wanted):
            return (f"{{{wanted}}}" if name.isdecimal() else f"{name}:{{{wanted}}}"), _ATOM
        case Absent(part):
            return f"NOT {_print(part)[0]}", _TIMES
        case Or(items):
            return " OR ".join(_within(item, _AND) for item in items), _OR
        case And(items):
            return " AND ".join(_within(item, _THEN) for item in items), _AND
        case Then(items):
            return " THEN ".join(_within(item, _TIMES) for item in items), _THEN
        case Times(count, item):
            return f"{count} TIMES {_within(item, _ATOM)}", _TIMES
        case Within(item, window_ns):
            return f"({_print(item)[0]} WITHIN {duration_text(window_ns)})", _ATOM


def _within(node: Node | Absent, level: int) -> str:
    """The text as part of something that holds together at `level`."""
    text, own_level = _print(node)
    return text if own_level >= level else f"({text})"


def _term(term: Term) -> str:
    return f"{term.part}.{name_text(term.attribute)}"
