"""Patterns: composite subscriptions to related events, and their parser.

    Pattern.parse(
        "low:{class = 'STOCK' AND price < 20} THEN high:{class = 'STOCK' AND price > 30}"
        " WHERE low.symbol = high.symbol WITHIN 5 s LATENESS 2 s LAST"
    )

A pattern is its immutable tree (`tree`). Rules:

1. `Pattern.parse(str(pattern)) == pattern`.
2. An existing pattern is valid, whether it was parsed or built by a program: its tree is checked
   when it is created. Limits apply when it is parsed and when it is detected.
3. Every pattern has a window: without one, no event could ever be forgotten.

The parser has one function per rule of the grammar and one token of lookahead:

4. Everything that is not a pattern raises `PatternError` with its position in the whole text,
   filters included.
5. Open parentheses are counted against `Limits.pattern_depth_max` before they are entered, so that
   no text exhausts Python's stack.
6. Parentheses without a window only group. `tree.check_pattern` checks the tree as a whole (names,
   joins, absences, sizes), with the position of each node.

docs/reference/patterns.md describes the language for users; `check.reference` defines its meaning.
"""

from typing import Final, NoReturn, Self

from anabranch.model.errors import FilterError, PatternError, PatternLimitError
from anabranch.model.filter import Filter
from anabranch.model.language.tokens import excerpt_of
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.pattern.tokens import (
    UNITS_NS,
    Token,
    duration_of,
    filter_end,
    in_pattern,
    scan_attribute,
    scan_token,
)
from anabranch.model.pattern.tree import (
    Absent,
    Join,
    Node,
    Part,
    PatternTree,
    Places,
    Policy,
    Term,
    Times,
    Within,
    all_of,
    any_of,
    check_pattern,
    pattern_text,
    sequence_of,
)

_ATOM_EXPECTED: Final = "a filter in braces, such as {price > 20} or a:{price > 20}, or ("
_CLAUSE_EXPECTED: Final = "AND, OR, THEN, WHERE, WITHIN, LATENESS, ALL, FIRST, LAST or the end"
_POLICIES: Final[dict[str, Policy]] = {"ALL": "ALL", "FIRST": "FIRST", "LAST": "LAST"}
_COUNT_DIGITS_MAX: Final = 9
#: Sufficient for nanosecond precision in any window; parsing many more digits takes long.
_DURATION_CHARACTERS_MAX: Final = 40


class PatternParser:
    """Parses one text, token by token."""

    def __init__(self, text: str, limits: Limits) -> None:
        _check_text(text, limits)
        self._text = text
        self._limits = limits
        self._places: Places = {}
        self._part_count = 0
        self._open = 0
        #: The next token.
        self._token = scan_token(text, 0)

    def parse(self) -> PatternTree:
        """Return the checked tree of the whole text."""
        if self._token.kind == "end":
            self._fail("an empty pattern", self._token, _ATOM_EXPECTED)
        root = self._any()
        tree = self._clauses(root)
        check_pattern(tree, limits=self._limits, text=self._text, places=self._places)
        return tree

    # -- the tree

    def _any(self) -> Node:
        start = self._token.start
        items = [self._all()]
        while self._took("OR"):
            items.append(self._all())
        return self._placed(any_of(items), start)

    def _all(self) -> Node:
        start = self._token.start
        items = [self._sequence()]
        while self._took("AND"):
            items.append(self._sequence())
        return self._placed(all_of(items), start)

    def _sequence(self) -> Node:
        start = self._token.start
        items: list[Node | Absent] = [self._repeated()]
        while self._took("THEN"):
            items.append(self._absent() if self._sees("NOT") else self._repeated())
        return self._placed(sequence_of(items), start)

    def _absent(self) -> Absent:
        word = self._advance()
        if self._token.kind != "name" and self._token.spelling != "{":
            self._unexpected(self._token, "one filter in braces, which must not be matched")
        absent = Absent(self._part())
        self._places[id(absent)] = word.start
        return absent

    def _repeated(self) -> Node:
        if self._sees("NOT"):
            self._fail("NOT has nothing before it", self._token, "A THEN NOT B, with a window")
        if self._token.kind != "number":
            return self._atom()
        number = self._advance()
        if not number.spelling.isdigit():
            self._fail("a repetition is a whole number", number, "such as 3 TIMES {…}")
        if len(number.spelling.lstrip("0")) > _COUNT_DIGITS_MAX:
            most = self._limits.pattern_match_events_max
            self._exceed(
                "a repetition too often", number, f"at most {most} (pattern_match_events_max)"
            )
        if not self._took("TIMES"):
            self._unexpected(self._token, "TIMES")
        return self._placed(Times(int(number.spelling), self._atom()), number.start)

    def _atom(self) -> Node:
        token = self._token
        if token.kind == "symbol" and token.spelling == "(":
            return self._group()
        if token.kind != "name" and token.spelling != "{":
            self._unexpected(token, _ATOM_EXPECTED)
        return self._part()

    def _group(self) -> Node:
        opening = self._advance()
        self._open += 1
        if self._open > self._limits.pattern_depth_max:
            most = self._limits.pattern_depth_max
            wanted = f"at most {most} levels (pattern_depth_max)"
            self._exceed("a pattern nested too deeply", opening, wanted)
        node = self._any()
        if self._took("WITHIN"):
            node = self._placed(Within(node, self._duration()), opening.start)
        if self._token.spelling != ")":
            self._unexpected(self._token, "AND, OR, THEN, WITHIN or )")
        self._advance()
        self._open -= 1
        return node

    def _part(self) -> Part:
        start = self._token.start
        self._part_count += 1
        if self._part_count > self._limits.pattern_parts_max:
            most = self._limits.pattern_parts_max
            self._exceed("a part too many", self._token, f"at most {most} (pattern_parts_max)")
        name = str(self._part_count)
        if self._token.kind == "name":
            name = self._advance().spelling
            if self._token.spelling != ":":
                self._unexpected(self._token, f": and a filter in braces, {name}:{{…}}")
            self._advance()
        if self._token.spelling != "{":
            self._unexpected(self._token, "a filter in braces")
        part = Part(name, self._filter())
        self._places[id(part)] = start
        return part

    def _filter(self) -> Filter:
        opening = self._token.start
        closing = filter_end(self._text, opening)
        try:
            wanted = Filter.parse(self._text[opening + 1 : closing], self._limits)
        except FilterError as error:
            raise in_pattern(error, self._text, opening + 1) from None
        self._token = scan_token(self._text, closing + 1)
        return wanted

    # -- the clauses

    def _clauses(self, root: Node) -> PatternTree:
        seen: set[str] = set()
        joins: tuple[Join, ...] = ()
        window_ns = lateness_ns = 0
        policy: Policy = "ALL"
        while self._token.kind != "end":
            word = self._advance()
            if word.kind != "keyword" or word.spelling in ("AND", "OR", "THEN", "NOT", "TIMES"):
                self._unexpected(word, _CLAUSE_EXPECTED)
            clause = "policy" if word.spelling in _POLICIES else word.spelling
            if clause in seen:
                self._fail(f"a second {clause}", word, "each clause once")
            seen.add(clause)
            match word.spelling:
                case "WHERE":
                    joins = self._joins()
                case "WITHIN":
                    window_ns = self._clause_duration("window", word)
                case "LATENESS":
                    lateness_ns = self._clause_duration("lateness", word)
                case other:
                    policy = _POLICIES[other]
        if "WITHIN" not in seen:
            advice = "WITHIN and a duration, such as WITHIN 5 s"
            self._fail("a pattern without a window, which would never end", self._token, advice)
        return PatternTree(root, joins, window_ns, lateness_ns, policy)

    def _clause_duration(self, what: str, word: Token) -> int:
        self._places[what] = word.start
        return self._duration()

    def _duration(self) -> int:
        number = self._advance()
        if number.kind != "number":
            self._unexpected(number, "a duration with its unit, such as 5 s")
        unit = self._advance()
        if unit.kind != "name" or unit.spelling not in UNITS_NS:
            self._unexpected(unit, "a unit: ms, s, min or h")
        if len(number.spelling) > _DURATION_CHARACTERS_MAX:
            digits = f"a duration of {len(number.spelling)} characters"
            self._fail(digits, number, f"{_DURATION_CHARACTERS_MAX} at most")
        duration_ns = duration_of(number.spelling, unit.spelling)
        if duration_ns is None:
            self._fail("a duration with fractions of a nanosecond", number, "fewer digits")
        return duration_ns

    def _joins(self) -> tuple[Join, ...]:
        joins = [self._join()]
        while self._took("AND"):
            if len(joins) == self._limits.pattern_joins_max:
                wanted = f"at most {len(joins)} (pattern_joins_max)"
                self._exceed("a join too many", self._token, wanted)
            joins.append(self._join())
        return tuple(joins)

    def _join(self) -> Join:
        left = self._term()
        if self._token.spelling != "=":
            self._unexpected(self._token, "=, the only operator of joins")
        self._advance()
        join = Join(left, self._term())
        self._places[id(join)] = self._places[id(left)]
        return join

    def _term(self) -> Term:
        part = self._advance()
        if part.kind != "name":
            self._unexpected(part, "the name of a part, a point and an attribute: a.symbol")
        if self._token.spelling != ".":
            self._unexpected(self._token, f"a point and an attribute, {part.spelling}.symbol")
        attribute, end = scan_attribute(self._text, self._token.end)
        self._token = scan_token(self._text, end)
        term = Term(part.spelling, attribute)
        self._places[id(term)] = part.start
        return term

    # -- tokens

    def _advance(self) -> Token:
        """Skip and return the next token."""
        token = self._token
        self._token = scan_token(self._text, token.end)
        return token

    def _sees(self, word: str) -> bool:
        return self._token.kind == "keyword" and self._token.spelling == word

    def _took(self, word: str) -> bool:
        """Skip the next token if it is this word."""
        if not self._sees(word):
            return False
        self._advance()
        return True

    def _placed(self, node: Node, start: int) -> Node:
        self._places.setdefault(id(node), start)
        return node

    def _unexpected(self, token: Token, expected: str) -> NoReturn:
        found = "end" if token.kind == "end" else excerpt_of(token.spelling)
        self._fail(f"unexpected {found}", token, expected)

    def _exceed(self, message: str, token: Token, expected: str) -> NoReturn:
        raise PatternLimitError(message, text=self._text, position=token.start, expected=expected)

    def _fail(self, message: str, token: Token, expected: str) -> NoReturn:
        raise PatternError(message, text=self._text, position=token.start, expected=expected)


def _check_text(text: str, limits: Limits) -> None:
    if not isinstance(text, str):
        raise PatternError(f"a pattern is text, not {type(text).__name__}", expected="a str")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        problem = "a lone surrogate is not text"
        raise PatternError(problem, text=text, position=error.start) from None
    if size_bytes > limits.pattern_bytes_max:
        raise PatternLimitError(
            f"a pattern of {size_bytes} bytes",
            text=text,
            position=0,
            expected=f"at most {limits.pattern_bytes_max} bytes (pattern_bytes_max)",
        )


class Pattern(PatternTree, frozen=True):
    """A composite subscription. See the rules at the top of this module."""

    def __post_init__(self) -> None:
        check_pattern(self, limits=None)

    @classmethod
    def parse(cls, text: str, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Parse a pattern; raise `PatternError` with the position of a mistake."""
        tree = PatternParser(text, limits).parse()
        return cls(tree.root, tree.joins, tree.window_ns, tree.lateness_ns, tree.policy)

    def __str__(self) -> str:
        return pattern_text(self)
