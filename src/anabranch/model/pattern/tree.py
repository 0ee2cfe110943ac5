"""The tree of a pattern, its canonical text and its validity.

A pattern describes which events belong together. Its leaves are *parts*, each a named filter; its
inner nodes describe the temporal order of their events. The *clauses* apply to the whole pattern. A
tree is a frozen value and has one shape per meaning where that is cheap:

1. `And`, `Or` and `Then` are flat (none contains another of its own kind) and have at least two
   items. `all_of`, `any_of` and `sequence_of` keep this rule.
2. An `Absent` occurs only in a `Then`, and never first.
3. A part without a given name is named by its number among all parts, from "1" on. A given name
   starts with a letter or `_`, so the two cannot be confused.

docs/reference/patterns.md describes the meaning of a tree, and `check.reference` defines it.

Canonical text. `pattern_text` prints the one canonical spelling of each tree:

4. The printed text parses to an equal pattern.
5. Parentheses appear only where the tree would differ without them, and around every inner window.
6. Reserved words are in capitals, with one space between words. The clauses are in the order WHERE,
   WITHIN, LATENESS, policy; zero lateness and the policy ALL are not printed.
7. A part whose name is a number is printed without a name.

Validity. The parser calls `check_pattern` with the positions of all nodes, so that errors can point
at them; patterns built by a program have none:

8. Names of parts differ, and are words that are not reserved; a part without a given name has its
   number. There are at most `pattern_parts_max` parts.
9. A NOT follows another item in a THEN. At the end of its THEN it needs a window directly around
   that THEN: only the end of a window decides that no further event can occur.
10. A window is longer than zero, and an inner window is no longer than the outer one.
11. A repetition has a count of at least two.
12. A join names existing parts, at least one of which is not absent.
13. The levels, the joins, the events of one match, the alternatives of OR, and the slots of all of
    these are bounded. Alternatives multiply: `6 TIMES ({…} OR {…})` has 64 of 6 slots each. An OR
    inside a filter costs nothing.
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
    """An event that matches the filter."""

    name: str
    filter: Filter


class Absent(msgspec.Struct, frozen=True):
    """`NOT part`: no such event between the items before and after it."""

    part: Part


class And(msgspec.Struct, frozen=True):
    """A match of every item, in any order."""

    items: tuple["Node", ...]


class Or(msgspec.Struct, frozen=True):
    """A match of one of the items."""

    items: tuple["Node", ...]


class Then(msgspec.Struct, frozen=True):
    """A match of every item, each completely before the next one."""

    items: tuple["Node | Absent", ...]


class Times(msgspec.Struct, frozen=True):
    """`count` matches of the item, each completely before the next one."""

    count: int
    item: "Node"


class Within(msgspec.Struct, frozen=True):
    """A match of the item whose first and last event are at most `window_ns` apart."""

    item: "Node"
    window_ns: int


Node = Part | And | Or | Then | Times | Within
Policy = Literal["ALL", "FIRST", "LAST"]


class Term(msgspec.Struct, frozen=True):
    """An attribute of a part: `a.symbol`."""

    part: str
    attribute: str


class Join(msgspec.Struct, frozen=True):
    """`left = right`: TRUE for all pairs of events of both parts."""

    left: Term
    right: Term


class PatternTree(msgspec.Struct, frozen=True):
    """A complete pattern: the root node and the clauses."""

    root: Node
    #: All must hold. A join with a part that has no event in a match does not apply to that match.
    joins: tuple[Join, ...]
    #: The maximum time from the first to the last event of a match, and to the end of an absence.
    window_ns: int
    #: The maximum delay of an event.
    lateness_ns: int = 0
    #: Which of the matches that end with the same event are reported.
    policy: Policy = "ALL"

    @property
    def parts(self) -> tuple[Part, ...]:
        """All parts, absent ones included, in text order."""
        return parts_of(self.root)


def all_of(items: Iterable[Node]) -> Node:
    """Return the AND of `items`, which must not be empty."""
    flat: list[Node] = []
    for item in items:
        flat.extend(item.items if isinstance(item, And) else (item,))
    return flat[0] if len(flat) == 1 else And(tuple(flat))


def any_of(items: Iterable[Node]) -> Node:
    """Return the OR of `items`, which must not be empty."""
    flat: list[Node] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Or) else (item,))
    return flat[0] if len(flat) == 1 else Or(tuple(flat))


def sequence_of(items: Iterable["Node | Absent"]) -> Node:
    """Return the THEN of `items`, which must not be empty or begin with an absence."""
    flat: list[Node | Absent] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Then) else (item,))
    first = flat[0]
    assert not isinstance(first, Absent)
    return first if len(flat) == 1 else Then(tuple(flat))


def children_of(node: Node | Absent) -> tuple["Node | Absent", ...]:
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
    yield node
    for child in children_of(node):
        yield from nodes_of(child)


def parts_of(node: Node | Absent) -> tuple[Part, ...]:
    return tuple(below for below in nodes_of(node) if isinstance(below, Part))


def absent_names(node: Node) -> frozenset[str]:
    return frozenset(below.part.name for below in nodes_of(node) if isinstance(below, Absent))


#: Binding strength of the text of a node, from loose to tight.
_OR, _AND, _THEN, _TIMES, _ATOM = range(5)


def pattern_text(pattern: PatternTree) -> str:
    text = _print(pattern.root)[0]
    if pattern.joins:
        joins = [f"{_term(join.left)} = {_term(join.right)}" for join in pattern.joins]
        text += " WHERE " + " AND ".join(joins)
    text += f" WITHIN {duration_text(pattern.window_ns)}"
    if pattern.lateness_ns:
        text += f" LATENESS {duration_text(pattern.lateness_ns)}"
    return text if pattern.policy == "ALL" else f"{text} {pattern.policy}"


def _print(node: Node | Absent) -> tuple[str, int]:
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
    """Return the text for use in a context of binding strength `level`."""
    text, own_level = _print(node)
    return text if own_level >= level else f"({text})"


def _term(term: Term) -> str:
    return f"{term.part}.{name_text(term.attribute)}"


#: Identity of a node, join or term, or the name of a clause → its position in the text.
Places = dict[Hashable, int]

_SECOND_NS: Final = 1_000_000_000
#: Counts are capped here; no limit allows as many.
_COUNT_CEILING: Final = 10**9
#: The maximum height of a tree without limits; prevents a stack overflow.
_DEPTH_CEILING: Final = 100


def check_pattern(
    pattern: PatternTree,
    *,
    limits: Limits | None,
    text: str = "",
    places: Places | None = None,
) -> None:
    """Raise `PatternError` unless `pattern` is valid and, if given, within `limits`."""
    _Check(pattern, text, places or {}).check(limits)


class _Check:
    def __init__(self, pattern: PatternTree, text: str, places: Places) -> None:
        self._pattern = pattern
        self._text = text
        self._places = places

    def check(self, limits: Limits | None) -> None:
        pattern = self._pattern
        # Before any recursive walk over the tree.
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
            self._fail("a negative lateness", "lateness", "LATENESS and a duration")
        if pattern.policy not in ("ALL", "FIRST", "LAST"):
            self._fail(f"no policy {pattern.policy!r}", "policy", "ALL, FIRST or LAST")

    def _check_node(self, node: Node, window_ns: int, *, has_window: bool) -> None:
        """`has_window`: a window is directly around this node."""
        match node:
            case Part():
                if not isinstance(node.filter, Filter):
                    self._fail("a part that is not a filter", node, "a Filter")
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
                self._fail(f"a {type(node).__name__} is not part of a pattern", node, "")

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
        # A numeric name cannot be written in a join.
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
            # Objects that are not nodes are reported later, by name.
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
        weight = sum(part.filter.search_weight for part in parts_of(pattern.root))
        if weight > limits.search_weight_max:
            self._exceed(
                f"LIKE conditions with a weight of {weight}",
                pattern.root,
                f"at most {limits.search_weight_max} (search_weight_max)",
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
    """Yield each count with its limit and its name."""
    yield len(pattern.parts), limits.pattern_parts_max, "parts"
    yield events_of(pattern.root), limits.pattern_match_events_max, "match events"
    yield alternatives_of(pattern.root), limits.pattern_alternatives_max, "alternatives"
    yield slots_of(pattern.root), limits.pattern_slots_max, "slots"


def events_of(node: Node | Absent) -> int:
    """Return the maximum number of events of a match, capped at `_COUNT_CEILING`."""
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
    """Return the number of alternatives of OR, capped at `_COUNT_CEILING`."""
    match node:
        case Part() | Absent():
            return 1
        case Or(items):
            return min(sum(map(alternatives_of, items)), _COUNT_CEILING)
        case And() | Then():
            return min(prod(map(alternatives_of, children_of(node))), _COUNT_CEILING)
        case Times(count, item):
            # 2 ** 64 already exceeds every limit; 2 ** 999,999,999 need not be computed.
            return min(prod([alternatives_of(item)] * min(count, 64)), _COUNT_CEILING)
        case Within(item, _):
            return alternatives_of(item)


def slots_of(node: Node | Absent) -> int:
    """Return the total number of slots of all alternatives, capped at `_COUNT_CEILING`."""
    match node:
        case Part():
            return 1
        case Absent():
            return 0
        case Or(items):
            return min(sum(map(slots_of, items)), _COUNT_CEILING)
        case And() | Then():
            ways = alternatives_of(node)
            # Each item occurs once with every alternative of the others.
            found = sum(
                slots_of(item) * ways // alternatives_of(item) for item in children_of(node)
            )
            return min(found, _COUNT_CEILING)
        case Times(count, item):
            ways = alternatives_of(node)
            return min(count * slots_of(item) * ways // alternatives_of(item), _COUNT_CEILING)
        case Within(item, _):
            return slots_of(item)
