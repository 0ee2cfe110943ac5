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

What a tree means is told in docs/reference/patterns.md and defined by `check.reference`.
"""

from collections.abc import Hashable, Iterable, Iterator
from math import prod
from typing import Final, Literal, NoReturn

import msgspec

from anabranch.model.errors import PatternError, PatternLimitError
from anabranch.model.filter import Filter
from anabranch.model.language.expression import check_string
from anabranch.model.language.tokens import name_text
from anabranch.model.limits import Limits
from anabranch.model.pattern.tokens import NAME, RESERVED, duration_text


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


# A pattern back to text: the one canonical spelling of each tree.
#
# Rules:
#
# 1. What is printed parses back to an equal pattern.
# 2. Parentheses stand only where the tree would come out differently without them, and round every
#    window inside.
# 3. Reserved words are in capitals, with one space between any two words. The clauses come in the
#    order WHERE, WITHIN, LATENESS, policy; a lateness of nothing and the policy ALL are not
#    printed.
# 4. A part whose name is a number was given none, and is printed without.


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


# Is a tree a pattern that means something, and within limits?
#
# The parser asks with the places of all nodes, so that the error can point at one; a pattern that a
# program put together has none. Rules:
#
# 1. Names of parts differ, and are words that are not reserved; a part without a name of its own
#    has its number. There are at most `pattern_parts_max`.
# 2. A NOT stands behind something in a THEN. At the end of its THEN it needs a window of its own,
#    right around that THEN: only the end of a window tells when nothing more can come.
# 3. A window is longer than nothing, and a window inside is no longer than the one around it.
# 4. A repetition is of two at least.
# 5. A join names parts that are there, one of which must not be absent.
# 6. The levels, the joins, the events of one match, the alternatives that OR leaves, and the slots
#    that all of these have together are bounded. Alternatives multiply: `6 TIMES ({…} OR {…})` has
#    64 of 6 slots each. An OR inside of the filter costs nothing.


#: Identity of a node, join or term, or the name of a clause → where it stands in the text.
Places = dict[Hashable, int]

_SECOND_NS: Final = 1_000_000_000
#: Nobody allows that many of anything.
_COUNT_CEILING: Final = 10**9
#: Levels of a tree that no limits were given for; it keeps the walk off the end of the stack.
_DEPTH_CEILING: Final = 100


def check_pattern(
    pattern: PatternTree,
    *,
    limits: Limits | None,
    text: str = "",
    places: Places | None = None,
) -> None:
    """Raise `PatternError` unless `pattern` is valid and, if they are given, within `limits`."""
    _Check(pattern, text, places or {}).check(limits)


class _Check:
    def __init__(self, pattern: PatternTree, text: str, places: Places) -> None:
        self._pattern = pattern
        self._text = text
        self._places = places

    def check(self, limits: Limits | None) -> None:
        pattern = self._pattern
        # Before anything that walks the tree without counting.
        self._check_depth(pattern.root, limits.pattern_depth_max if limits else _DEPTH_CEILING)
        self._check_clauses()
        self._check_node(pattern.root, pattern.window_ns, has_window=True)
        self._check_names(parts_of(pattern.root))
        self._check_joins()
        if limits is not None:
            self._check_sizes(limits)

    # -- shape

    def _check_clauses(self) -> None:
        pattern = self._pattern
        if pattern.window_ns <= 0:
            self._fail("an empty window", "window", "WITHIN and a duration, such as WITHIN 5 s")
        if pattern.lateness_ns < 0:
            self._fail("a lateness below nothing", "lateness", "LATENESS and a duration")
        if pattern.policy not in ("ALL", "FIRST", "LAST"):
            self._fail(f"no policy {pattern.policy!r}", "policy", "ALL, FIRST or LAST")

    def _check_node(self, node: Node, window_ns: int, *, has_window: bool) -> None:
        """`has_window`: a window stands right around this node."""
        match node:
            case Part():
                if not isinstance(node.filter, Filter):
                    self._fail("a part that is no filter", node, "a Filter")
            case And(items) | Or(items):
                self._require_items(node, items)
                for item in items:
                    self._check_node(item, window_ns, has_window=False)
            case Then(items):
                self._check_sequence(node, items, window_ns, has_window=has_window)
            case Times(count, item):
                if count < 2:
                    self._fail(f"{count} TIMES repeats nothing", node, "2 TIMES or more")
                self._check_node(item, window_ns, has_window=False)
            case Within(item, own_ns):
                self._check_window(node, own_ns, window_ns)
                self._check_node(item, own_ns, has_window=True)
            case _:
                self._fail(f"a {type(node).__name__} is no part of a pattern", node, "")

    def _require_items(self, node: And | Or | Then, items: tuple[Node | Absent, ...]) -> None:
        if len(items) < 2 or any(type(item) is type(node) for item in items):
            self._fail("AND, OR and THEN are flat and have at least two items", node, "")

    def _check_window(self, node: Within, own_ns: int, window_ns: int) -> None:
        if own_ns <= 0:
            self._fail("an empty window", node, "a duration, such as 5 s")
        if own_ns > window_ns:
            advice = "a window inside that is no longer than the one around it"
            self._fail("a window that is longer than the one around it", node, advice)

    def _check_sequence(
        self,
        node: Then,
        items: tuple[Node | Absent, ...],
        window_ns: int,
        *,
        has_window: bool,
    ) -> None:
        self._require_items(node, items)
        if isinstance(items[0], Absent):
            self._fail("NOT has nothing before it", items[0], "A THEN NOT B")
        if isinstance(items[-1], Absent) and not has_window:
            self._fail(
                "NOT at the end of a sequence without a window of its own",
                items[-1],
                "a window right around it: (A THEN NOT B WITHIN 5 s)",
            )
        for item in items:
            if not isinstance(item, Absent):
                self._check_node(item, window_ns, has_window=False)

    # -- names and joins

    def _check_names(self, parts: tuple[Part, ...]) -> None:
        names: set[str] = set()
        for number, part in enumerate(parts, 1):
            is_word = NAME.fullmatch(part.name) and part.name not in RESERVED
            if not is_word and part.name != str(number):
                self._fail(f"no part can be called {part.name!r}", part, "a word, not reserved")
            if part.name in names:
                self._fail(f"a second part called {part.name}", part, "another name")
            names.add(part.name)

    def _check_joins(self) -> None:
        names = {part.name for part in parts_of(self._pattern.root)}
        absent = absent_names(self._pattern.root)
        for join in self._pattern.joins:
            for term in (join.left, join.right):
                self._check_term(term, names)
            parts = {join.left.part, join.right.part}
            if len(parts) == 2 and parts <= absent:
                advice = "a join with a part that is there"
                self._fail("a join of two parts that must both be absent", join, advice)

    def _check_term(self, term: Term, names: set[str]) -> None:
        # A name that is a number cannot be written in a join.
        if term.part not in names or term.part.isdecimal():
            known = ", ".join(sorted(name for name in names if not name.isdecimal()))
            advice = f"one of {known}" if known else "a part with a name, such as a:{…}"
            self._fail(f"no part is called {term.part}", term, advice)
        check_string(term.attribute)
        if not term.attribute:
            self._fail("an attribute name is not empty", term, "")

    # -- sizes

    def _check_depth(self, root: Node, depth_max: int) -> None:
        pending: list[tuple[Node | Absent, int]] = [(root, 1)]
        while pending:
            node, depth = pending.pop()
            if depth > depth_max:
                wanted = f"at most {depth_max} levels (pattern_depth_max)"
                self._exceed("a pattern nested too deeply", node, wanted)
            # What is no node at all is told later, by name.
            known = isinstance(node, Part | Absent | And | Or | Then | Times | Within)
            pending.extend((child, depth + 1) for child in (children_of(node) if known else ()))

    def _check_sizes(self, limits: Limits) -> None:
        pattern = self._pattern
        if len(pattern.joins) > limits.pattern_joins_max:
            first = pattern.joins[limits.pattern_joins_max]
            wanted = f"at most {limits.pattern_joins_max} (pattern_joins_max)"
            self._exceed("a join too many", first, wanted)
        for count, most, what in _sizes(pattern, limits):
            if count > most:
                shown = str(count) if count < _COUNT_CEILING else "very many"
                name = f"pattern_{what.replace(' ', '_')}_max"
                self._exceed(
                    f"a pattern of {shown} {what}", pattern.root, f"at most {most} ({name})"
                )
        if pattern.window_ns > limits.pattern_window_s_max * _SECOND_NS:
            wanted = f"at most {limits.pattern_window_s_max} s (pattern_window_s_max)"
            self._exceed("a window too long", "window", wanted)
        if pattern.lateness_ns > limits.pattern_lateness_s_max * _SECOND_NS:
            wanted = f"at most {limits.pattern_lateness_s_max} s (pattern_lateness_s_max)"
            self._exceed("a lateness too long", "lateness", wanted)

    # -- errors

    def _fail(self, message: str, thing: object, expected: str) -> NoReturn:
        raise PatternError(message, text=self._text, position=self._at(thing), expected=expected)

    def _exceed(self, message: str, thing: object, expected: str) -> NoReturn:
        raise PatternLimitError(
            message, text=self._text, position=self._at(thing), expected=expected
        )

    def _at(self, thing: object) -> int:
        key = thing if isinstance(thing, str) else id(thing)
        return self._places.get(key, -1)


def _sizes(pattern: PatternTree, limits: Limits) -> Iterator[tuple[int, int, str]]:
    """What is counted, how much of it may be, and its name."""
    yield len(pattern.parts), limits.pattern_parts_max, "parts"
    yield events_of(pattern.root), limits.pattern_match_events_max, "match events"
    yield alternatives_of(pattern.root), limits.pattern_alternatives_max, "alternatives"
    yield slots_of(pattern.root), limits.pattern_slots_max, "slots"


def events_of(node: Node | Absent) -> int:
    """How many events a match has at most; numbers beyond `_COUNT_CEILING` stop there."""
    match node:
        case Part():
            return 1
        case Absent():
            return 0
        case Or(items):
            return max(map(events_of, items))
        case And() | Then():
            return min(sum(map(events_of, children_of(node))), _COUNT_CEILING)
        case Times(count, item):
            return min(count * events_of(item), _COUNT_CEILING)
        case Within(item, _):
            return events_of(item)


def alternatives_of(node: Node | Absent) -> int:
    """How many ways OR leaves; numbers beyond `_COUNT_CEILING` stop there."""
    match node:
        case Part() | Absent():
            return 1
        case Or(items):
            return min(sum(map(alternatives_of, items)), _COUNT_CEILING)
        case And() | Then():
            return min(prod(map(alternatives_of, children_of(node))), _COUNT_CEILING)
        case Times(count, item):
            # 2 ** 64 is too many already; no limit needs 2 ** 999,999,999 worked out.
            return min(prod([alternatives_of(item)] * min(count, 64)), _COUNT_CEILING)
        case Within(item, _):
            return alternatives_of(item)


def slots_of(node: Node | Absent) -> int:
    """How many slots all alternatives have together, if these are not very many."""
    match node:
        case Part():
            return 1
        case Absent():
            return 0
        case Or(items):
            return min(sum(map(slots_of, items)), _COUNT_CEILING)
        case And() | Then():
            ways = alternatives_of(node)
            # Each item is there once with every way of the others.
            found = sum(
                slots_of(item) * ways // alternatives_of(item) for item in children_of(node)
            )
            return min(found, _COUNT_CEILING)
        case Times(count, item):
            ways = alternatives_of(node)
            return min(count * slots_of(item) * ways // alternatives_of(item), _COUNT_CEILING)
        case Within(item, _):
            return slots_of(item)
