"""What patterns and their histories are made of, for Hypothesis; and how a detector is fed.

Times, windows and values come from small pools, so that events meet: equal times, events exactly a
window apart, joins on absent attributes, on NaN, and on values that are equal across kinds or not.
"""

from collections.abc import Iterable
from typing import NamedTuple

from hypothesis import strategies as st

from anabranch.check.reference import reference_matches
from anabranch.core.patterns.detector import Detector, Overflow, StepResult
from anabranch.core.patterns.detector_state import packed, restored
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.model.event import INT_MAX, Value
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.pattern.match import Identity, Match, PlacedEvent
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.pattern.tree import (
    Absent,
    And,
    Join,
    Node,
    Or,
    Part,
    Policy,
    Term,
    Then,
    Times,
    Within,
    absent_names,
    all_of,
    alternatives_of,
    any_of,
    events_of,
    nodes_of,
    parts_of,
    sequence_of,
)

MATCH_EVENTS_MAX = 4
DEPTH = 3
ALTERNATIVES_MAX = 6
FILTERS = [
    Filter.parse(text) for text in ("x = 1", "x > 0", "x < 2", "x <> 1", "TRUE", "TRUE", "y = 1")
]
NAN = float("nan")
VALUES: list[Value] = ["p", "q", 1, 1.0, True, NAN]


def event(stream: str, tick: int, time_ns: int, **attributes: Value) -> PlacedEvent:
    return PlacedEvent(stream, tick, time_ns, attributes)


# -- patterns

filters = st.sampled_from(FILTERS)


@st.composite
def _nodes(draw: st.DrawFn, window_ns: int, depth: int, *, has_window: bool) -> Node:
    kinds = ["and", "or", "then", "then", "times", "within"]
    if depth < DEPTH:
        kinds = ["part", "part", *kinds] if depth else ["part"]
    kind = draw(st.sampled_from(kinds))
    if kind == "part":
        return Part("", draw(filters))
    if kind == "within":
        own_ns = draw(st.integers(1, window_ns))
        return Within(draw(_nodes(own_ns, depth - 1, has_window=True)), own_ns)
    if kind == "times":
        below = _nodes(window_ns, depth - 1, has_window=False)
        item = draw(below) if draw(st.booleans()) else any_of([draw(below), draw(below)])
        return Times(draw(st.integers(2, 3)), item)
    if kind == "then":
        return draw(_sequences(window_ns, depth, has_window=has_window))
    below = _nodes(window_ns, depth - 1, has_window=False)
    items = [draw(below) for _ in range(draw(st.integers(2, 3)))]
    return all_of(items) if kind == "and" else any_of(items)


@st.composite
def _sequences(draw: st.DrawFn, window_ns: int, depth: int, *, has_window: bool) -> Node:
    ends_absent = draw(st.booleans())
    own_ns = draw(st.integers(1, window_ns)) if ends_absent and not has_window else window_ns
    below = _nodes(own_ns, depth - 1, has_window=False)
    items: list[Node | Absent] = [draw(below)]
    for _ in range(draw(st.integers(0 if ends_absent else 1, 2))):
        if draw(st.integers(0, 2)) == 0:
            items.append(Absent(Part("", draw(filters))))
        items.append(draw(below))
    if ends_absent:
        items.append(Absent(Part("", draw(filters))))
    made = sequence_of(items)
    return Within(made, own_ns) if ends_absent and not has_window else made


def named(node: Node, names: Iterable[str]) -> Node:
    """The same tree, its parts renamed from left to right."""
    left = iter(names)

    def renamed(each: Node | Absent) -> Node | Absent:
        match each:
            case Part(_, wanted):
                return Part(next(left), wanted)
            case Absent(part):
                return Absent(Part(next(left), part.filter))
            case Times(count, item):
                return Times(count, _node(renamed(item)))
            case Within(item, window_ns):
                return Within(_node(renamed(item)), window_ns)
            case Then(items):
                return Then(tuple(renamed(item) for item in items))
            case And(items):
                return And(tuple(_node(renamed(item)) for item in items))
            case Or(items):
                return Or(tuple(_node(renamed(item)) for item in items))

    return _node(renamed(node))


def _node(each: Node | Absent) -> Node:
    assert not isinstance(each, Absent)
    return each


@st.composite
def patterns(
    draw: st.DrawFn,
    policies: tuple[Policy, ...] = ("ALL", "FIRST", "LAST"),
    events_max: int = MATCH_EVENTS_MAX,
) -> Pattern:
    window_ns = draw(st.integers(1, 8))
    root = draw(
        _nodes(window_ns, DEPTH, has_window=True).filter(
            lambda node: events_of(node) <= events_max and alternatives_of(node) <= ALTERNATIVES_MAX
        )
    )
    names = ["abcdefghijklmnopqrstuvwxyz"[place] for place in range(len(parts_of(root)))]
    root = named(
        root,
        [
            draw(st.sampled_from([name, name, name, str(place)]))
            for place, name in enumerate(names, 1)
        ],
    )
    return Pattern(
        root,
        draw(_joins(root)),
        window_ns,
        draw(st.sampled_from([0, 0, 1, 3])),
        draw(st.sampled_from(policies)),
    )


@st.composite
def _joins(draw: st.DrawFn, root: Node) -> tuple[Join, ...]:
    absent = absent_names(root)
    words = [part.name for part in parts_of(root) if not part.name.isdigit()]
    if not words:
        return ()
    present = [name for name in words if name not in absent] or words
    attributes = st.sampled_from(["s", "s", "s", "t"])
    joins = []
    for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
        left = draw(st.sampled_from(present))
        # Mostly of two parts; of one with itself now and then.
        others = [name for name in words if name != left] * 4 + [left]
        right = draw(st.sampled_from(others))
        joins.append(Join(Term(left, draw(attributes)), Term(right, draw(attributes))))
    is_double: bool = draw(st.booleans())
    if joins and is_double:
        left, right = joins[0].left.part, joins[0].right.part
        joins.append(Join(Term(left, "t"), Term(right, "t")))
    return tuple(
        join
        for join in joins
        if join.left.part == join.right.part or not {join.left.part, join.right.part} <= absent
    )


# -- histories

_attributes: st.SearchStrategy[dict[str, Value]] = st.fixed_dictionaries(
    {"x": st.integers(0, 2)},
    optional={
        "s": st.sampled_from(["p", "p", "p", "p", "p", *VALUES]),
        "t": st.sampled_from(["p", "p", "p", "q", 1]),
        "y": st.just(1),
    },
)


@st.composite
def histories(draw: st.DrawFn, size_max: int = 8) -> list[PlacedEvent]:
    """Events in any order; times repeat, ticks do not."""
    count = size_max - draw(st.integers(0, size_max))
    return [
        PlacedEvent(draw(st.sampled_from("AB")), tick, draw(st.integers(0, 9)), draw(_attributes))
        for tick in draw(st.permutations(range(count)))
    ]


class Call(NamedTuple):
    """One thing that is done with a detector."""

    event: PlacedEvent | None
    watermark_ns: int = 0
    #: Whether its state is written down and read again afterwards.
    is_moved: bool = False


@st.composite
def calls(draw: st.DrawFn, size_max: int = 8) -> list[Call]:
    """A history with repetitions, and time that passes in between as it likes."""
    made: list[Call] = []
    for placed in draw(histories(size_max)):
        made.append(Call(placed, is_moved=draw(st.booleans())))
        if draw(st.integers(0, 9)) == 0:
            made.append(draw(st.sampled_from(made)))
        if draw(st.integers(0, 2)) == 0:
            made.append(Call(None, draw(st.integers(0, 14)), is_moved=draw(st.booleans())))
    return made


@st.composite
def timely_calls(draw: st.DrawFn, lateness_ns: int) -> list[Call]:
    """A history in any order of which nothing is late, though time passes as early as it may."""
    remaining = draw(histories())
    made: list[Call] = []
    while remaining:
        placed = remaining.pop()
        made.append(Call(placed, is_moved=draw(st.booleans())))
        passes: bool = draw(st.booleans())
        if remaining and passes:
            latest_ns = min(each.time_ns for each in remaining) + lateness_ns
            watermark_ns = latest_ns - draw(st.sampled_from([0, 0, 1]))
            made.append(Call(None, watermark_ns, is_moved=draw(st.booleans())))
    return made


# -- feeding


class Outcome(NamedTuple):
    """What a detector said of all calls."""

    matches: list[Match]
    #: Those that were late when they came for the first time.
    late: list[PlacedEvent]
    overflows: list[Overflow]
    detector: Detector

    @property
    def identities(self) -> list[Identity]:
        return sorted(match.identity for match in self.matches)


def detected(
    pattern: Pattern,
    what: Iterable[Call],
    *,
    limits: Limits = DEFAULT_LIMITS,
) -> Outcome:
    """What a detector finds, everything being over in the end."""
    scheme = PatternScheme(pattern, "p", limits)
    detector = Detector(scheme)
    found: list[StepResult] = []
    late: dict[tuple[str, int], PlacedEvent | None] = {}
    for call in what:
        if call.event is not None:
            found.append(detector.take(call.event))
            # One that was taken, and comes again after it was forgotten, is called late as well.
            was_late = found[-1].late == (call.event,)
            late.setdefault((call.event.stream, call.event.tick), call.event if was_late else None)
        else:
            found.append(detector.advance(call.watermark_ns))
        if call.is_moved:
            detector = restored(scheme, packed(detector))
    found.append(detector.advance(INT_MAX))
    return Outcome(
        [match for each in found for match in each.matches],
        [placed for placed in late.values() if placed is not None],
        [overflow for each in found for overflow in each.overflows],
        detector,
    )


def expected(
    pattern: Pattern,
    events: Iterable[PlacedEvent],
    matches_max: int = DEFAULT_LIMITS.pattern_matches_max,
) -> list[Identity]:
    """What the reference finds."""
    matches = reference_matches(pattern, events, "p", matches_max)
    return sorted(match.identity for match in matches)


def events_of_calls(what: Iterable[Call], without: Iterable[PlacedEvent] = ()) -> list[PlacedEvent]:
    """The events of all calls, each once, without some."""
    missing = {(each.stream, each.tick) for each in without}
    return list(
        {
            (call.event.stream, call.event.tick): call.event
            for call in what
            if call.event is not None and (call.event.stream, call.event.tick) not in missing
        }.values()
    )


def has_absence(pattern: Pattern) -> bool:
    return any(isinstance(node, Absent) for node in nodes_of(pattern.root))
