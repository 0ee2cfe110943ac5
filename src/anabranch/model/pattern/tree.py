"""The tree of a pattern: what the parser builds, and the reference and the detector read.

A pattern says which events belong together. Its leaves are *parts*, each a filter with a name; its
inner nodes say how the events of the parts have to lie in time. On top of it stand the *clauses*,
which are about all of it. A tree is a frozen value, and has one shape per meaning where that is
cheap:

1. `And`, `Or` and `Then` are flat (none holds another of its own kind) and have at least two items.
   `all_of`, `any_of` and `sequence_of` keep this rule.
2. An `Absent` stands only in a `Then`, and never first.
3. A part that was given no name has its number among all parts as its name, from "1" on. A name
   that was given starts with a letter or `_`, so the two cannot be confused.

What a tree means is told in docs/PATTERNS.md and defined by `check.patterns`.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from anabranch.model.filter import Filter


class Part(msgspec.Struct, frozen=True):
    """One event that matches the filter."""

    name: str
    filter: Filter


class Absent(msgspec.Struct, frozen=True):
    """`NOT part`: no such event between what stands before it and what stands behind it."""

    part: Part


class And(msgspec.Struct, frozen=True):
    """A match of every item, in any order."""

    items: tuple["Node", ...]


class Or(msgspec.Struct, frozen=True):
    """A match of one of the items."""

    items: tuple["Node", ...]


class Then(msgspec.Struct, frozen=True):
    """A match of every item, each wholly before the next one."""

    items: tuple["Node | Absent", ...]


class Times(msgspec.Struct, frozen=True):
    """`count` matches of the item, each wholly before the next one."""

    count: int
    item: "Node"


class Within(msgspec.Struct, frozen=True):
    """A match of the item whose first and last event are at most so far apart."""

    item: "Node"
    window_ns: int


Node = Part | And | Or | Then | Times | Within
Policy = Literal["ALL", "FIRST", "LAST"]


class Term(msgspec.Struct, frozen=True):
    """An attribute of a part: `a.symbol`."""

    part: str
    attribute: str


class Join(msgspec.Struct, frozen=True):
    """`left = right`: TRUE of every event of the one part with every event of the other one."""

    left: Term
    right: Term


class PatternTree(msgspec.Struct, frozen=True):
    """A whole pattern: the node on top, and the clauses."""

    root: Node
    #: All must hold. One about a part that a match has no event of says nothing about that match.
    joins: tuple[Join, ...]
    #: From the first to the last event of a match, at most; and to the end of an absence.
    window_ns: int
    #: How much later than announced an event may come.
    lateness_ns: int = 0
    #: Which of the matches that end with the same event are reported.
    policy: Policy = "ALL"

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, absent ones too, in the order of the text."""
        return parts_of(self.root)


def all_of(items: Iterable[Node]) -> Node:
    """The AND of `items`, of which there is one at least."""
    flat: list[Node] = []
    for item in items:
        flat.extend(item.items if isinstance(item, And) else (item,))
    return flat[0] if len(flat) == 1 else And(tuple(flat))


def any_of(items: Iterable[Node]) -> Node:
    """The OR of `items`, of which there is one at least."""
    flat: list[Node] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Or) else (item,))
    return flat[0] if len(flat) == 1 else Or(tuple(flat))


def sequence_of(items: Iterable["Node | Absent"]) -> Node:
    """The THEN of `items`, of which there is one at least, and the first is no absence."""
    flat: list[Node | Absent] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Then) else (item,))
    first = flat[0]
    assert not isinstance(first, Absent)
    return first if len(flat) == 1 else Then(tuple(flat))


def children_of(node: Node | Absent) -> tuple["Node | Absent", ...]:
    """The nodes right below."""
    match node:
        case And(items) | Or(items):
            return items
        case Then(items):
            return items
        case Times(_, item) | Within(item, _):
            return (item,)
        case Absent(part):
            return (part,)
        case Part():
            return ()


def nodes_of(node: Node | Absent) -> Iterator[Node | Absent]:
    """This node and all below it, from left to right."""
    yield node
    for child in children_of(node):
        yield from nodes_of(child)


def parts_of(node: Node | Absent) -> tuple[Part, ...]:
    """All parts, absent ones too, from left to right."""
    return tuple(each for each in nodes_of(node) if isinstance(each, Part))


def absent_names(node: Node) -> frozenset[str]:
    """The names of the parts that must not be there."""
    return frozenset(each.part.name for each in nodes_of(node) if isinstance(each, Absent))
