"""Patterns are read as the grammar says, and mistakes are told with their place."""

import pytest

from anabranch.model.errors import PatternError, PatternLimitError
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.pattern.tree import (
    Absent,
    And,
    Join,
    Node,
    Or,
    Part,
    Term,
    Then,
    Times,
    Within,
)

X = Filter.parse("x = 1")
A, B, C, D = (Part(name, X) for name in "abcd")


def root_of(text: str) -> Node:
    """The tree of `text`, in which a letter stands for a part of that name."""
    for name in "abcd":
        text = text.replace(name, f"{name}:{{x = 1}}")
    return Pattern.parse(f"{text} WITHIN 5 s").root


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("a", A),
        ("a AND b OR c AND d", Or((And((A, B)), And((C, D))))),
        ("a AND b THEN c", And((A, Then((B, C))))),
        ("a THEN b OR c", Or((Then((A, B)), C))),
        ("a THEN (b OR c)", Then((A, Or((B, C))))),
        ("(a AND b) AND (c AND d)", And((A, B, C, D))),
        ("(a THEN b) THEN c", Then((A, B, C))),
        ("3 TIMES a THEN b", Then((Times(3, A), B))),
        ("3 times (a THEN b)", Times(3, Then((A, B)))),
        ("2 TIMES (3 TIMES a)", Times(2, Times(3, A))),
        ("a THEN NOT b", Then((A, Absent(B)))),
        ("(a THEN NOT b) THEN c", Then((A, Absent(B), C))),
        ("(a THEN NOT b WITHIN 1 s) THEN c", Then((Within(Then((A, Absent(B))), 10**9), C))),
        ("((a))", A),
    ],
)
def test_words_bind_as_stated(text: str, tree: Node) -> None:
    assert root_of(text) == tree


def test_clauses_come_in_any_order() -> None:
    text = (
        "a:{x = 1} AND b:{x = 1} LAST LATENESS 2 ms"
        " WHERE a.s = b.[two words] AND a.p.q = b.r WITHIN 1.5 min"
    )
    joins = (
        Join(Term("a", "s"), Term("b", "two words")),
        Join(Term("a", "p.q"), Term("b", "r")),
    )
    wanted = Pattern(And((A, B)), joins, 90 * 10**9, 2 * 10**6, "LAST")
    assert Pattern.parse(text) == wanted
    assert str(wanted) == (
        "a:{x = 1} AND b:{x = 1} WHERE a.s = b.[two words] AND a.p.q = b.r"
        " WITHIN 90 s LATENESS 2 ms LAST"
    )


def test_part_without_a_name_has_its_number() -> None:
    pattern = Pattern.parse("{x = 1} AND b:{x = 1} AND {x = 1} WITHIN 1 h")
    assert [part.name for part in pattern.parts] == ["1", "b", "3"]


def test_a_name_may_be_of_digits_that_are_no_number() -> None:
    pattern = Pattern.parse("²:{x = 1} AND b:{x = 1} WHERE ².x = b.x WITHIN 5 s")
    assert [part.name for part in pattern.parts] == ["²", "b"]
    assert Pattern.parse(str(pattern)) == pattern


def test_braces_in_strings_and_names_end_nothing() -> None:
    pattern = Pattern.parse("{x = '}' AND [}] = \"{\"} WITHIN 5s")
    assert pattern.parts[0].filter == Filter.parse("x = '}' AND [}] = '{'")
    assert pattern.window_ns == 5 * 10**9


# -- mistakes


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "", "an empty pattern"),
        ("{x = 1}", "", "without a window"),
        ("{x = 1} WITHIN 0 s", "WITHIN", "an empty window"),
        ("{x = 1} WITHIN 5", "", "ms, s, min or h"),
        ("{x = 1} WITHIN 5 sec", "sec", "ms, s, min or h"),
        ("{x = 1} WITHIN FOREVER", "FOREVER", "a duration with its unit"),
        ("{x = 1} WITHIN 0.0000001 ms", "0.0000001", "fractions of a nanosecond"),
        ("{x = 1} WITHIN " + "9" * 5_000 + " h", "9", "5000 characters"),
        ("{x = 1} WITHIN 0." + "0" * 5_000 + "1 h", "0.", "40 at most"),
        ("{x = 1} WITHIN 5 s LATENESS " + "9" * 5_000 + " h", "9", "40 at most"),
        ("{x = 1} WITHIN -5 s", "-5", "without a sign"),
        ("price > 20 WITHIN 5 s", "> 20", "a filter in braces, such as {price > 20}"),
        ("{x = 1} WITHIN 25 h", "WITHIN", "pattern_window_s_max"),
        ("{x = 1} WITHIN 5 s LATENESS 2 h", "LATENESS", "pattern_lateness_s_max"),
        ("{x = 1} WITHIN 5 s WITHIN 6 s", "WITHIN 6", "each clause once"),
        ("{x = 1} WITHIN 5 s ALL FIRST", "FIRST", "each clause once"),
        ("{x = 1} WITHIN 5 s {x = 2}", "{x = 2}", "or the end"),
        ("{x = 1 WITHIN 5 s", "{x", "never closed"),
        ("{x = } WITHIN 5 s", "} WITHIN", "the filter ends too early"),
        ("{x == 1} WITHIN 5 s", "==", "unknown operator"),
        ("{x = 'a} WITHIN 5 s", "'a}", "never closed"),
        ("{} WITHIN 5 s", "}", "an empty filter"),
        ("x = 1 WITHIN 5 s", "= 1", "x:{…}"),
        ("(x = 1) WITHIN 5 s", "= 1", "x:{…}"),
        ("a:(x = 1) WITHIN 5 s", "(x", "a filter in braces"),
        ("{x = 1} & {x = 2} WITHIN 5 s", "&", "AND"),
        ("({x = 1} WITHIN 5 s", "", "or )"),
        ("{x = 1}) WITHIN 5 s", ") WITHIN", "or the end"),
        ("NOT {x = 1} WITHIN 5 s", "NOT", "A THEN NOT B"),
        ("{x = 1} AND NOT {x = 2} WITHIN 5 s", "NOT", "A THEN NOT B"),
        ("{x = 1} THEN NOT ({x = 2} AND {x = 3}) WITHIN 5 s", "({x = 2}", "one filter in braces"),
        ("{x = 0} OR ({x = 1} THEN NOT {x = 2}) WITHIN 5 s", "NOT", "a window right around it"),
        ("({x = 1} WITHIN 6 s) WITHIN 5 s", "({x", "longer than the one around it"),
        ("1 TIMES {x = 1} WITHIN 5 s", "1 TIMES", "2 TIMES or more"),
        ("1.5 TIMES {x = 1} WITHIN 5 s", "1.5", "a whole number"),
        ("3 {x = 1} WITHIN 5 s", "{x", "TIMES"),
        ("a:{x = 1} AND a:{x = 2} WITHIN 5 s", "a:{x = 2}", "a second part called a"),
        ("all:{x = 1} WITHIN 5 s", "all", "unexpected"),
        ("a:{x = 1} WHERE a.s = b.s WITHIN 5 s", "b.s", "no part is called b"),
        ("a:{x = 1} WHERE a.s < a.t WITHIN 5 s", "< a", "a join between parts allows only ="),
        ("a:{x = 1} WHERE a = a.t WITHIN 5 s", "= a", "a point and an attribute"),
        ("a:{x = 1} WHERE a.like = a.t WITHIN 5 s", "like", "in [ ] if it is a reserved word"),
        (
            "a:{x = 1} THEN NOT b:{x = 1} THEN NOT c:{x = 2} WHERE b.s = c.s WITHIN 5 s",
            "b.s",
            "both be absent",
        ),
        ("{x = 1} WITHIN 5 s \ud800", "\ud800", "surrogate"),
    ],
)
def test_mistake_is_told_with_its_place(text: str, place: str, words: str) -> None:
    with pytest.raises(PatternError) as raised:
        Pattern.parse(text)
    assert words in str(raised.value)
    assert raised.value.position == (text.index(place) if place else len(text))


@pytest.mark.parametrize(
    ("text", "limits", "words"),
    [
        ("((({x = 1}))) WITHIN 5 s", Limits(pattern_depth_max=2), "pattern_depth_max"),
        ("{x = 1} AND {x = 1} WITHIN 5 s", Limits(pattern_parts_max=1), "pattern_parts_max"),
        ("129 TIMES {x = 1} WITHIN 5 s", Limits(), "pattern_match_events_max"),
        ("7 TIMES ({x = 1} OR {x = 2}) WITHIN 5 s", Limits(), "pattern_alternatives_max"),
        ("999999999 TIMES (2 TIMES {x = 1}) WITHIN 5 s", Limits(), "very many match events"),
        ("9999999999 TIMES {x = 1} WITHIN 5 s", Limits(), "at most 128 .pattern_match_events_max"),
        (
            "a:{x = 1} AND b:{x = 1} WHERE a.s = b.s AND a.t = b.t WITHIN 5 s",
            Limits(pattern_joins_max=1),
            "at most 1 .pattern_joins_max",
        ),
        (
            "100 TIMES {x = 1} AND 4 TIMES ({y = 1} OR {y = 2}) WITHIN 5 s",
            Limits(),
            "1664 slots",
        ),
        ("{x = 1} WITHIN 5 s", Limits(pattern_bytes_max=10), "pattern_bytes_max"),
        ("{x = 1 AND y = 2} WITHIN 5 s", Limits(filter_nodes_max=2), "filter_nodes_max"),
        (
            "{t LIKE '%a%'} THEN {t LIKE '%b%'} WITHIN 5 s",
            Limits(search_weight_max=1),
            "weight of 2.* at most 1 .search_weight_max",
        ),
    ],
)
def test_pattern_beyond_a_limit_is_refused(text: str, limits: Limits, words: str) -> None:
    with pytest.raises(PatternError, match=words) as raised:
        Pattern.parse(text, limits)
    assert raised.value.position >= 0


def test_a_hundred_thousand_parentheses_are_refused_without_following_them() -> None:
    with pytest.raises(PatternLimitError, match="nested too deeply"):
        Pattern.parse("(" * 100_000)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(PatternError, match="a pattern is text, not bytes"):
        Pattern.parse(b"{x = 1} WITHIN 5 s")  # type: ignore[arg-type]
