"""Which key the parts of a pattern share, if any."""

import pytest

from anabranch.core.patterns.scheme import PatternScheme, shared_key
from anabranch.model.pattern.pattern import Pattern

A, B, C = "a:{k = 'A'}", "b:{k = 'B'}", "c:{k = 'C'}"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"{A} THEN {B} WHERE a.s = b.s", ("s", "s")),
        (f"{A} THEN {B} WHERE a.s = b.t", ("s", "t")),
        # One attribute for all is found, whichever was named first.
        (f"{A} THEN {B} WHERE a.t = b.s AND a.s = b.s", ("s", "s")),
        (f"{A} THEN {B} THEN {C} WHERE a.s = b.s AND b.s = c.s", ("s", "s", "s")),
        (f"{A} THEN {B} THEN {C} WHERE a.s = b.s AND a.t = b.t AND b.t = c.t", ("t", "t", "t")),
        (f"3 TIMES {A} WHERE a.s = a.s", ("s",)),
        (f"3 TIMES {A} THEN {B} WHERE a.s = b.s", ("s", "s")),
        (f"({A} OR {B}) THEN {C} WHERE a.s = c.s AND b.t = c.s", ("s", "t", "s")),
        # A witness has the key of what it prevents.
        (f"{A} THEN NOT {B} WHERE a.s = b.t", ("s", "t")),
        (f"{A} THEN NOT {B} THEN {C} WHERE a.s = c.s AND a.s = b.s", ("s", "s", "s")),
        # A single event needs nothing in common with others.
        (f"{A} OR ({B} THEN {C}) WHERE b.s = c.s", ("s", "s", "s")),
        # Matches that end with one event have one key, though the parts have two attributes.
        (f"{A} THEN {B} WHERE a.s = b.t FIRST", ("s", "t")),
    ],
)
def test_a_key_that_all_parts_share_is_found(text: str, key: tuple[str, ...]) -> None:
    assert shared_key(PatternScheme(Pattern.parse(f"{text} WITHIN 5 s"))) == key


@pytest.mark.parametrize(
    "text",
    [
        f"{A} THEN {B}",
        A,
        f"{A} THEN {B} THEN {C} WHERE a.s = b.s",
        f"{A} THEN {B} THEN {C} WHERE a.s = b.s AND b.t = c.t",
        # Two events without a tie: each may have its own key.
        f"2 TIMES {A}",
        f"2 TIMES {A} THEN NOT {B} WHERE a.s = b.s",
        f"{A} THEN NOT {B}",
        f"{A} THEN NOT {B} THEN {C} WHERE a.s = c.s AND a.t = b.t",
        # OR takes away what tied the others together.
        f"{A} AND {B} AND ({C} OR d:{{k = 'D'}}) WHERE a.s = c.s AND c.s = b.s AND d.s = a.s",
        # A match may end with either, so LAST would choose between two shares.
        f"{A} AND {B} WHERE a.s = b.t LAST",
        # And ALL would keep the first of each share.
        f"{A} AND {B} WHERE a.s = b.t",
        f"({A} OR {B}) AND {C} WHERE a.s = c.s AND b.t = c.s",
    ],
)
def test_without_a_key_in_common_there_is_none(text: str) -> None:
    assert shared_key(PatternScheme(Pattern.parse(f"{text} WITHIN 5 s"))) is None
