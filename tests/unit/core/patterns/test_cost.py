"""What an event and a pattern cost, counted: tries, steps and calls, never time."""

import sys
from collections.abc import Callable

import pytest

from anabranch.core.patterns.detector import Detector, StepResult
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.model.errors import PatternLimitError
from anabranch.model.event import Value
from anabranch.model.limits import Limits
from anabranch.model.pattern.match import PlacedEvent
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.pattern.tree import Join, Term, slots_of

POLICIES = ["ALL", "FIRST", "LAST"]
History = list[dict[str, Value]]


def fed(text: str, history: History, tries_max: int) -> list[StepResult]:
    """What is found, each event a millisecond behind the one before, and time going with it."""
    # What is asked here is what is tried, not how many matches one event may end.
    limits = Limits(pattern_tries_max=tries_max, pattern_matches_max=1_000)
    detector = Detector(PatternScheme(Pattern.parse(text), "p", limits))
    found = []
    for tick, attributes in enumerate(history):
        time_ns = tick * 1_000_000
        found.append(detector.take(PlacedEvent("s", tick, time_ns, attributes)))
        found.append(detector.advance(time_ns + 1))
    found.append(detector.advance(2**62))
    return found


def reasons(found: list[StepResult]) -> set[str]:
    return {overflow.reason for each in found for overflow in each.overflows}


def count(found: list[StepResult]) -> int:
    return sum(len(each.matches) for each in found)


# -- what cannot matter


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("pattern", "kinds"),
    [
        ("a:{k=1} AND b:{k=2} AND c:{k=3}", (1, 2)),
        ("a:{k=1} THEN b:{k=2} THEN c:{k=3}", (1, 3)),
        ("a:{k=1} THEN b:{k=2} THEN c:{k=3}", (2, 3)),
        ("a:{k=1} THEN b:{k=2} THEN c:{k=3}", (3, 2, 1)),
        ("a:{k=1} THEN b:{k=2} THEN c:{k=3} THEN d:{k=4}", (1, 3, 2, 4)),
        ("a:{k=1} AND (b:{k=2} THEN c:{k=3})", (3, 2, 1)),
        ("a:{k=1} AND 3 TIMES b:{k=2} AND c:{k=3} AND d:{k=4}", (1, 2, 3)),
        ("a:{k=1} THEN NOT n:{k=9} THEN b:{k=2} THEN c:{k=3}", (1, 3)),
    ],
)
def test_events_that_cannot_match_cost_the_same_however_many(
    pattern: str, kinds: tuple[int, ...], policy: str
) -> None:
    history: History = [{"k": kind} for kind in kinds for _ in range(300)]
    found = fed(f"{pattern} WITHIN 1 h {policy}", history, 60)
    assert (count(found), reasons(found)) == (0, set())


@pytest.mark.parametrize("policy", ["FIRST", "LAST"])
def test_choice_gives_up_an_event_as_soon_as_its_key_is_nowhere(policy: str) -> None:
    text = "a:{k=1} AND b:{k=2} AND (d:{k=4} THEN e:{k=5}) AND c:{k=3} WHERE a.x=e.x WITHIN 1 h"
    kinds = [1] * 100 + [2] * 100 + [4] * 100 + [5] * 100
    history: History = [{"k": kind, "x": place} for place, kind in enumerate(kinds)]
    found = fed(f"{text} {policy}", [*history, {"k": 3}], 100 * 60)
    assert (count(found), reasons(found)) == (0, set())


@pytest.mark.parametrize("policy", ["FIRST", "LAST"])
def test_choice_builds_no_lists(policy: str) -> None:
    history: History = [{"k": 1 + place % 2} for place in range(2_000)]
    text = f"a:{{k=1}} AND b:{{k=2}} AND c:{{k=3}} WITHIN 1 h {policy}"
    found = fed(text, [*history, {"k": 3}], 80)
    assert (count(found), reasons(found)) == (1, set())


# -- witnesses


@pytest.mark.parametrize("joins", ["a.x=b.x AND b.y=c.y", "b.y=c.y AND a.x=b.x"])
def test_witness_is_looked_up_by_the_join_that_says_most(joins: str) -> None:
    text = f"a:{{k=1}} THEN NOT b:{{k=2}} THEN c:{{k=3}} WHERE {joins} WITHIN 1 h"
    size = 200
    history: History = [{"k": 1, "x": 1} for _ in range(size)]
    history += [{"k": 2, "x": 1, "y": 10 + place} for place in range(size)]
    found = fed(text, [*history, {"k": 3, "y": 1}], 20 * size)
    assert (count(found), reasons(found)) == (size, set())


def test_joins_that_want_two_keys_of_one_attribute_have_no_witness() -> None:
    text = "a:{k=1} THEN NOT b:{k=2} THEN c:{k=3} WHERE a.x=b.x AND b.x=c.x WITHIN 1 h"
    history: History = [{"k": 1, "x": 1}]
    history += [{"k": 2, "x": 1} for _ in range(500)]
    found = fed(text, [*history, {"k": 3, "x": 2}], 40)
    assert (count(found), reasons(found)) == (1, set())


@pytest.mark.parametrize("policy", POLICIES)
def test_witnesses_that_are_looked_at_count(policy: str) -> None:
    text = (
        f"a:{{k=1}} THEN NOT b:{{k=2}} THEN c:{{k=3}} WHERE a.x=b.x AND b.y=c.y WITHIN 1 h {policy}"
    )
    history: History = [{"k": 1, "x": 1}]
    history += [{"k": 2, "x": 1 + place % 2, "y": 2 - place % 2} for place in range(1_000)]
    # Half of them has the one key, half has the other, none has both.
    found = fed(text, [*history, {"k": 3, "y": 1}], 400)
    assert (count(found), reasons(found)) == (0, {"too-many-tries"})


def test_absences_at_the_end_share_what_may_be_tried_for_their_event() -> None:
    text = "(a:{k=1} THEN c:{k=3}) THEN NOT b:{k=2} WHERE a.x=b.x AND c.y=b.y WITHIN 1 h"
    history: History = [{"k": 1, "x": 1} for _ in range(20)]
    history += [{"k": 3, "y": 1}]
    history += [{"k": 2, "x": 1 + place % 2, "y": 2 - place % 2} for place in range(100)]
    found = fed(text, history, 600)
    overflows = [overflow for each in found for overflow in each.overflows]
    assert [(each.reason, each.tick) for each in overflows] == [("too-many-tries", 20)]
    assert 0 < count(found) < 20
    assert count(fed(text, history, 2_000)) == 20


# -- matches


def test_large_matches_count_as_much_as_they_have_events() -> None:
    found = fed("64 TIMES {k=1} WITHIN 1 h", [{"k": 1}] * 70, 64 * 200)
    assert reasons(found) == {"too-many-tries"}
    assert max(len(each.matches) for each in found) < 200


# -- patterns

ORS = " AND ".join(f"(p{n}:{{x={n}}} OR q{n}:{{y={n}}})" for n in range(6))
SELF = " AND ".join(f"a.s{n}=a.s{n}" for n in range(20))
CHAIN = " AND ".join(f"b.s{n}=a.s{n} AND a.s{n}=b.s{n + 1}" for n in range(128))
WIDE = [
    "128 TIMES a:{x=1} WITHIN 1 s",
    "127 TIMES a:{x=1} AND b:{x=2} WITHIN 1 s",
    f"126 TIMES a:{{x=1}} AND (p:{{x=2}} OR q:{{x=3}}) WHERE {SELF} WITHIN 1 s",
    f"60 TIMES a:{{x=1}} AND {ORS[: ORS.index(' AND (p4')]} WHERE {SELF} WITHIN 1 s",
    f"10 TIMES a:{{x=1}} AND {ORS} WHERE {SELF} WITHIN 1 s",
    f"a:{{x=1}} THEN b:{{x=2}} WHERE {CHAIN} WITHIN 1 s",
    "4 TIMES (" + " AND ".join(["{x=1}"] * 32) + ") WITHIN 1 s",
    "64 TIMES (a:{x=1} THEN b:{x=1} WITHIN 1 ms) WITHIN 1 s",
    "2 TIMES (2 TIMES (2 TIMES (2 TIMES (2 TIMES (2 TIMES (2 TIMES {x=1})))))) WITHIN 1 s",
    "4 TIMES (30 TIMES a:{x=1} THEN NOT n:{x=2} THEN m:{x=1}) WHERE "
    + " AND ".join(f"a.s{n}=n.s{n}" for n in range(250))
    + " WITHIN 1 s",
]


def calls_in(work: Callable[[], object]) -> int:
    """How many functions are called, and generators resumed, while `work` is done."""
    called = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal called
        called += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return called


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("text", WIDE, ids=[text[:30] for text in WIDE])
def test_wide_pattern_is_ready_after_work_in_proportion_to_its_size(text: str, policy: str) -> None:
    pattern = Pattern.parse(f"{text} {policy}")
    slots, joins = slots_of(pattern.root), len(pattern.joins)

    attributes: dict[str, Value] = {"x": 1, **{f"s{n}": 1 for n in range(256)}}

    def ready() -> None:
        detector = Detector(PatternScheme(pattern, "p"))
        detector.take(PlacedEvent("s", 1, 1, attributes))
        detector.advance(2)

    # A little for each slot and each join, and less for what each slot is asked about the others.
    assert calls_in(ready) < 100 * (slots + joins) + 20 * slots * (len(pattern.parts) + joins)


def test_steps_are_worked_out_when_a_search_comes_to_them() -> None:
    scheme = PatternScheme(Pattern.parse("127 TIMES a:{x=1} AND b:{x=2} WITHIN 1 s"), "p")
    detector = Detector(scheme)
    for tick in range(100):
        detector.take(PlacedEvent("s", tick, tick, {"x": 1}))
    layout = scheme.layouts[0]
    assert {len(scheme.plan_from(layout, slot).steps) for slot in range(layout.size)} == {1}


def test_joins_of_a_tree_are_bounded_as_those_of_a_text() -> None:
    pattern = Pattern.parse("a:{x=1} AND b:{x=2} WITHIN 1 s")
    joins = tuple(Join(Term("a", f"s{n}"), Term("b", f"s{n}")) for n in range(257))
    with pytest.raises(PatternLimitError, match="pattern_joins_max"):
        PatternScheme(Pattern(pattern.root, joins, pattern.window_ns))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("{x=1} WITHIN 1 s", 1),
        ("{x=1} OR 3 TIMES {x=2} WITHIN 1 s", 4),
        ("2 TIMES ({x=1} OR ({x=2} THEN {x=3})) WITHIN 1 s", 12),
        ("({x=1} OR {x=2}) AND (2 TIMES {x=3} OR {x=4}) WITHIN 1 s", 10),
        ("({x=1} OR {x=2}) THEN NOT {x=3} THEN ({x=4} OR {x=5}) WITHIN 1 s", 8),
    ],
)
def test_slots_are_counted_as_there_are(text: str, size: int) -> None:
    pattern = Pattern.parse(text)
    assert slots_of(pattern.root) == size
    assert sum(layout.size for layout in PatternScheme(pattern).layouts) == size


@pytest.mark.parametrize("tries_max", range(2, 30))
def test_a_match_is_reported_or_it_is_told_that_it_may_be_missing(tries_max: int) -> None:
    text = (
        "(p:{a = 0} THEN q:{a = 0} THEN NOT r:{a = 1} WITHIN 3 ms) WHERE r.b = r.c WITHIN 8 ms ALL"
    )
    found = fed(text, [{"a": 0}, {"a": 0}], tries_max)
    assert (count(found) == 1) != (reasons(found) == {"too-many-tries"})
