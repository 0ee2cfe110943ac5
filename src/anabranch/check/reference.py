"""An independent reference implementation of filter and pattern matching, for the checker.

The checker must not rely on the code it checks, so it has its own definition of matching, simple
enough to be verified by reading. It uses no compiled form, no index and no detector.

Filters in the plain form (`history`)

1. A predicate on an absent attribute does not hold, for any operator.
2. Strings compare with strings, numbers with numbers, booleans with booleans; no other comparison
   holds.
3. Booleans are equal or not; they have no order. No comparison with NaN holds, not even `<>`.

A filter in text form is evaluated by walking its tree, which defines the language. The rules for
patterns are below.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

from msgspec.structs import replace

from anabranch.check.history import AnyFilter
from anabranch.model.event import Value
from anabranch.model.filter import Filter
from anabranch.model.language.evaluate import compare, evaluate
from anabranch.model.language.expression import Expression
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.pattern.match import Contribution, Identity, Key, Match, PlacedEvent
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
)

#: Operator → the outcomes of comparing (less −1, equal 0, greater 1) for which it holds.
_HOLDS = {"=": (0,), "<>": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}


def matches(wanted: AnyFilter, attributes: Mapping[str, Value]) -> bool:
    """Whether a filter matches, in the plain or in the text form."""
    if isinstance(wanted, str):
        return evaluate(_tree(wanted), attributes) is True
    return any(
        all(_holds(attributes.get(name), operator, value) for name, operator, value in part)
        for part in wanted
    )


@lru_cache(maxsize=1_024)
def _tree(text: str) -> Expression:
    return Filter.parse(text).expression


def _holds(actual: Value | None, operator: str, value: Value) -> bool:
    if isinstance(actual, bool) or isinstance(value, bool):
        alike = isinstance(actual, bool) and isinstance(value, bool)
        return alike and operator == ("=" if actual is value else "<>")
    if isinstance(actual, str) and isinstance(value, str):
        return (actual > value) - (actual < value) in _HOLDS[operator]
    if isinstance(actual, int | float) and isinstance(value, int | float):
        is_nan = actual != actual or value != value
        return not is_nan and (actual > value) - (actual < value) in _HOLDS[operator]
    return False


# -- patterns --------------------------------------------------------------------------------------
#
# The meaning of a pattern over a complete history, by definition: every combination of events is
# tried, and those that satisfy the pattern are kept. This is slow, but simple.
#
# 1. A match of a part is one event for which its filter is TRUE.
# 2. A match of `A AND B` is a match of each; no event is used for two parts, or twice for one part.
#    A match of `A OR B` is a match of one of them.
# 3. A match of `A THEN B` is a match of each, where all events of the first precede all events of
#    the second in the order of events. `3 TIMES A` is `A THEN A THEN A`.
# 4. In a match within a window, the first and the last event are at most the window apart.
# 5. A join is TRUE for every event of one part with every event of the other, including joins of a
#    part with itself. A join with a part that has no event in the match is ignored.
# 6. `NOT B` between A and C: no event *witnesses* B, strictly between the last of A and the first
#    of C. At the end of a sequence: none after the last of A and at or before the end of the
#    window, which begins with the first event of what stands in the same window. An event witnesses
#    B if B's filter is TRUE of it, and so are B's joins with itself and with the events of the
#    match.
# 7. Of the matches with the same last event, ALL keeps all. FIRST keeps the one with the
#    earliest first event, then the earliest second event, and so on. LAST keeps the one with the
#    latest event before the last, then the latest before that, and so on. Of two with the same
#    events, the one with the smaller identity is kept. Events are not consumed.
# 8. Of the matches with the same last event, ALL keeps the first `pattern_matches_max`, in the
#    order of FIRST. Absences at the end of a sequence are checked after that, for the kept matches,
#    since they are known only when time has passed. The kept matches show that others were dropped
#    (`is_cut`).
#
# The history is complete, so every window has passed.


_ENDLESS = float("inf")


class _Absence(NamedTuple):
    """No event witnesses the part after one event and before another, or up to a time."""

    part: Part
    after: Key
    before: Key | None
    until_ns: float


class _Candidate(NamedTuple):
    """Events for some parts, and the absences to check."""

    events: tuple[tuple[str, PlacedEvent], ...]
    absences: tuple[_Absence, ...] = ()

    @property
    def keys(self) -> list[Key]:
        """The positions of all events, in order."""
        return sorted(event.key for _, event in self.events)


def reference_matches(
    pattern: Pattern,
    history: Iterable[PlacedEvent],
    pattern_id: str = "",
    matches_max: int = DEFAULT_LIMITS.pattern_matches_max,
) -> list[Match]:
    """All matches of `pattern` in a complete history, in no particular order."""
    events = list({(event.stream, event.tick): event for event in history}.values())
    joins, is_all = pattern.joins, pattern.policy == "ALL"
    found: dict[Identity, tuple[Match, _Candidate]] = {}
    for candidate in _candidates(Within(pattern.root, pattern.window_ns), events):
        between, final = _divided(candidate)
        asked = between if is_all else candidate
        if _joined(candidate, joins) and _undisturbed(asked, joins, events):
            match = _match_of(candidate, pattern_id)
            found[match.identity] = match, final
    every = [match for match, _ in found.values()]
    if not is_all:
        return [_chosen(group, pattern.policy) for group in _groups(every).values()]
    return [
        match
        for match in first_of_each(every, matches_max)
        if _undisturbed(found[match.identity][1], joins, events)
    ]


def first_of_each(matches: Iterable[Match], matches_max: int) -> list[Match]:
    """Rule 8: the first matches with each last event."""
    kept = []
    for group in _groups(matches).values():
        ordered = sorted(group, key=lambda match: (_keys(match), match.identity))
        is_cut = len(ordered) > matches_max
        kept += [replace(match, is_cut=is_cut) for match in ordered[:matches_max]]
    return kept


# -- structure


def _candidates(node: Node, events: list[PlacedEvent]) -> Iterator[_Candidate]:
    """Rules 1 to 4, and the absences to check by rule 6."""
    match node:
        case Part(name, wanted):
            for event in events:
                if evaluate(wanted.expression, event.attributes) is True:
                    yield _Candidate(((name, event),))
        case Or(items):
            for item in items:
                yield from _candidates(item, events)
        case And(items):
            for some in product(*(list(_candidates(item, events)) for item in items)):
                yield from _united(some)
        case Then(items):
            yield from _sequences(items, events)
        case Times(count, item):
            yield from _sequences((item,) * count, events)
        case Within(item, window_ns):
            for candidate in _candidates(item, events):
                yield from _bounded(candidate, window_ns)


def _united(some: tuple[_Candidate, ...]) -> Iterator[_Candidate]:
    """All as one, if no event is in two of them."""
    events = tuple(event for each in some for event in each.events)
    if len({event.key for _, event in events}) == len(events):
        yield _Candidate(events, tuple(absence for each in some for absence in each.absences))


def _sequences(items: tuple[Node | Absent, ...], events: list[PlacedEvent]) -> Iterator[_Candidate]:
    present = [list(_candidates(item, events)) for item in items if not isinstance(item, Absent)]
    for some in product(*present):
        if all(one.keys[-1] < next_one.keys[0] for one, next_one in pairwise(some)):
            for candidate in _united(some):
                yield candidate._replace(
                    absences=candidate.absences + tuple(_absences(items, some))
                )


def _absences(items: tuple[Node | Absent, ...], some: tuple[_Candidate, ...]) -> Iterator[_Absence]:
    """The absences of a sequence; `some` are the matches of its other items."""
    place = 0
    for item in items:
        if isinstance(item, Absent):
            before = some[place].keys[0] if place < len(some) else None
            yield _Absence(item.part, some[place - 1].keys[-1], before, _ENDLESS)
        else:
            place += 1


def _bounded(candidate: _Candidate, window_ns: int) -> Iterator[_Candidate]:
    """The candidate, if it is within the window; absences that are open end with it."""
    first_ns, last_ns = candidate.keys[0][0], candidate.keys[-1][0]
    if last_ns - first_ns <= window_ns:
        yield candidate._replace(
            absences=tuple(
                absence._replace(until_ns=first_ns + window_ns)
                if absence.before is None and absence.until_ns == _ENDLESS
                else absence
                for absence in candidate.absences
            )
        )


# -- joins and absences


def _joined(candidate: _Candidate, joins: tuple[Join, ...]) -> bool:
    """Rule 5."""
    return all(
        _equal(one, join.left, other, join.right)
        for join in joins
        for one_part, one in candidate.events
        for other_part, other in candidate.events
        if (one_part, other_part) == (join.left.part, join.right.part)
    )


def _equal(one: PlacedEvent, left: Term, other: PlacedEvent, right: Term) -> bool:
    values = one.attributes.get(left.attribute), other.attributes.get(right.attribute)
    return compare("=", *values) is True


def _undisturbed(candidate: _Candidate, joins: tuple[Join, ...], events: list[PlacedEvent]) -> bool:
    """Rule 6."""
    return not any(
        _lies_in(absence, event) and _witnesses(event, absence.part, candidate, joins)
        for absence in candidate.absences
        for event in events
    )


def _divided(candidate: _Candidate) -> tuple[_Candidate, _Candidate]:
    """The candidate with the absences between its events, and with those that last after them."""
    absences = candidate.absences
    return (
        candidate._replace(absences=tuple(each for each in absences if each.before is not None)),
        candidate._replace(absences=tuple(each for each in absences if each.before is None)),
    )


def _lies_in(absence: _Absence, event: PlacedEvent) -> bool:
    is_before = absence.before is None or event.key < absence.before
    return absence.after < event.key and is_before and event.time_ns <= absence.until_ns


def _witnesses(
    event: PlacedEvent, part: Part, candidate: _Candidate, joins: tuple[Join, ...]
) -> bool:
    if evaluate(part.filter.expression, event.attributes) is not True:
        return False
    own = [join for join in joins if part.name in (join.left.part, join.right.part)]
    return _joined(_Candidate(((part.name, event), *candidate.events)), tuple(own))


# -- policies


def _match_of(candidate: _Candidate, pattern_id: str) -> Match:
    ordered = sorted(candidate.events, key=lambda pair: pair[1].key)
    return Match(pattern_id, tuple(Contribution(part, event) for part, event in ordered))


def _groups(matches: Iterable[Match]) -> dict[Key, list[Match]]:
    """The matches that end with the same event."""
    groups: dict[Key, list[Match]] = {}
    for match in matches:
        groups.setdefault(match.last.key, []).append(match)
    return groups


def _chosen(group: list[Match], policy: Policy) -> Match:
    """Rule 7: the one that is kept of those that end with the same event."""
    if policy == "FIRST":
        wanted = min(_keys(match) for match in group)
    else:
        wanted = max(_keys(match)[::-1] for match in group)[::-1]
    return min((match for match in group if _keys(match) == wanted), key=lambda m: m.identity)


def _keys(match: Match) -> list[Key]:
    return [each.event.key for each in match.contributions]
