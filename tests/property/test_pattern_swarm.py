"""Patterns as people nest them, over histories of a dozen events: the detector and the reference.

Hypothesis draws small patterns and looks for odd values; here they have shapes in which several
sequences run beside each other, with windows inside and joins across, drawn by a plain seed.
"""

from random import Random

import pytest

from anabranch.check.reference import reference_matches
from anabranch.core.patterns.detector import Detector
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.model.errors import PatternError
from anabranch.model.limits import Limits
from anabranch.model.pattern.match import Identity, PlacedEvent
from anabranch.model.pattern.pattern import Pattern

SEEDS_OF_A_TEST = 100
TESTS = 40
EVENTS_MAX = 4
DEPTH = 3
#: With FIRST, a slot was opened again that the last event had filled.
FOUND = "(p:{a = 0} THEN q:{a = 1} WITHIN 7 ms) AND r:{a = 2} WHERE p.b = r.b WITHIN 10 ms FIRST"
FILTERS = ("a = 0", "a = 1", "a = 2", "a < 2", "a > 0", "TRUE")


class Writer:
    """Writes a pattern with names for its parts."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.names: list[str] = []

    def part(self) -> str:
        name = f"p{len(self.names)}"
        self.names.append(name)
        return f"{name}:{{{self.rng.choice(FILTERS)}}}"

    def item(self, depth: int) -> str:
        if depth == 0 or (depth < DEPTH and self.rng.random() < 0.35):
            return self.part()
        kind = self.rng.choice(("then", "then", "and", "or", "times", "not", "ends"))
        if kind == "times":
            return f"2 TIMES {self.part()}"
        first, second = self.item(depth - 1), self.item(depth - 1)
        words = {"then": "THEN", "and": "AND", "or": "OR", "not": f"THEN NOT {self.part()} THEN"}
        if kind == "ends":
            return f"({first} THEN NOT {self.part()} WITHIN {self.rng.randint(1, 8)} ms)"
        window = f" WITHIN {self.rng.randint(2, 10)} ms" if self.rng.random() < 0.4 else ""
        return f"({first} {words[kind]} {second}{window})"

    def pattern(self) -> str:
        text = self.item(DEPTH)
        joins = []
        for _ in range(self.rng.choice((0, 1, 1, 2))):
            one, other = (self.rng.choice(self.names) for _ in range(2))
            attribute = self.rng.choice("bc")
            joins.append(f"{one}.{attribute} = {other}.{attribute}")
        where = f" WHERE {' AND '.join(joins)}" if joins else ""
        return f"{text}{where} WITHIN 10 ms {self.rng.choice(('ALL', 'FIRST', 'LAST'))}"


#: Events come in any order here, so that more than the first matches of an event may be told
#: (`test_match_bounds` has the bound): all of them are wanted.
MATCHES_MAX = 100_000
LIMITS = Limits(pattern_matches_max=MATCHES_MAX)


def written(rng: Random) -> Pattern:
    """A pattern of a few events; what is no pattern is written again."""
    while True:
        try:
            pattern = Pattern.parse(Writer(rng).pattern())
        except PatternError:
            # A window that is longer than the one around it, or a join of what is absent.
            continue
        if 1 < PatternScheme(pattern, "x").layouts[0].size <= EVENTS_MAX:
            return pattern


def history(rng: Random) -> list[PlacedEvent]:
    return [
        PlacedEvent(
            rng.choice("st"),
            tick,
            rng.randrange(24) * 1_000_000,
            {"a": rng.randrange(3), "b": rng.choice("xy"), "c": rng.choice("uv")},
        )
        for tick in range(1, rng.randrange(4, 16))
    ]


def found(pattern: Pattern, events: list[PlacedEvent]) -> list[Identity]:
    detector = Detector(PatternScheme(pattern, "x", LIMITS))
    matches = [match for event in events for match in detector.take(event).matches]
    matches += detector.advance(10**15).matches
    return sorted(match.identity for match in matches)


def assert_right(pattern: Pattern, rng: Random) -> int:
    events = history(rng)
    wanted = sorted(
        match.identity for match in reference_matches(pattern, events, "x", MATCHES_MAX)
    )
    assert found(pattern, events) == wanted, f"{pattern} over {events}"
    return len(wanted)


def test_the_one_that_was_detected_wrongly() -> None:
    pattern = Pattern.parse(FOUND)
    assert sum(assert_right(pattern, Random(seed)) for seed in range(100)) > 30


@pytest.mark.parametrize(
    "test", [*range(5), *(pytest.param(each, marks=pytest.mark.slow) for each in range(5, TESTS))]
)
def test_what_is_detected_is_what_the_reference_finds(
    test: int, request: pytest.FixtureRequest
) -> None:
    # A chunk of a soak has seeds of its own.
    chunk = int(request.config.getoption("--hypothesis-seed") or 0)
    begin = (chunk * TESTS + test) * SEEDS_OF_A_TEST
    matches = 0
    for seed in range(begin, begin + SEEDS_OF_A_TEST):
        rng = Random(seed)
        pattern = written(rng)
        for _ in range(3):
            matches += assert_right(pattern, rng)
    assert matches > SEEDS_OF_A_TEST, "too little was found for this to prove anything"
