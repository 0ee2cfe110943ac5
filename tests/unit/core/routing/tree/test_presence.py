"""Liveness: when a presence asks, and when an edge repeats its interest."""

from itertools import pairwise

from anabranch.core.routing.tree.presence import InterestRepetition, PresenceLag
from anabranch.model.version import NOTHING, Version

ONE, TWO, THREE = Version(1, 1), Version(1, 2), Version(1, 3)


class Asking:
    """A lag with what it watches."""

    def __init__(self) -> None:
        self.versions: dict[str, Version] = {"s1": ONE}
        behind = {"east": ("s1", "s2"), "west": ("s3",)}
        toward = {"s1": "east", "s2": "east", "s3": "west"}
        self.lag = PresenceLag(self.versions, behind, toward, 1.0)


def test_known_version_causes_no_question() -> None:
    asking = Asking()
    asking.lag.record_seen(0, {"s1": ONE})
    assert asking.lag.next_deadline() is None


def test_later_version_causes_a_question_after_a_grace() -> None:
    asking = Asking()
    asking.lag.record_seen(0, {"s1": TWO})
    at = asking.lag.next_deadline()
    assert at is not None
    assert at > 0
    assert asking.lag.due(at / 2) == []
    assert asking.lag.due(at) == ["east"]
    assert asking.lag.seen(("s1", "s2")) == {"s1": TWO}


def test_urgent_question_is_due_at_once() -> None:
    asking = Asking()
    asking.lag.record_seen(5, {"s3": ONE}, is_urgent=True)
    assert asking.lag.due(5) == ["west"]


def test_questions_are_repeated_with_growing_pauses() -> None:
    asking = Asking()
    asking.lag.record_seen(0, {"s1": TWO}, is_urgent=True)
    times, now = [], 0.0
    for _ in range(12):
        assert asking.lag.due(now) == ["east"]
        times.append(now)
        asking.lag.record_seen(now, {"s1": TWO}, is_urgent=True)
        following = asking.lag.next_deadline()
        assert following is not None
        now = following
    pauses = [b - a for a, b in pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[0] == 0.25
    assert pauses[-1] == 8.0


def test_questions_end_when_the_versions_are_known() -> None:
    asking = Asking()
    asking.lag.record_seen(0, {"s1": TWO, "s2": ONE}, is_urgent=True)
    asking.versions["s1"] = THREE
    asking.lag.learned("east")
    assert asking.lag.next_deadline() is not None
    asking.versions["s2"] = ONE
    asking.lag.learned("east")
    assert asking.lag.next_deadline() is None
    assert asking.lag.seen(("s1", "s2")) == {}


def test_own_edge_is_not_asked_for() -> None:
    asking = Asking()
    asking.lag.record_seen(0, {"me": TWO})
    assert asking.lag.next_deadline() is None


def test_interest_is_repeated_when_ticks_stay_behind_for_too_long() -> None:
    repetition = InterestRepetition(1.0)
    repetition.propagated(10, ONE)
    assert not repetition.heard(10.5, "p", NOTHING)
    assert repetition.heard(11.0, "p", NOTHING)


def test_interest_is_not_repeated_without_ticks_that_show_it() -> None:
    repetition = InterestRepetition(1.0)
    repetition.propagated(10, ONE)
    assert not repetition.heard(99, "p", ONE)


def test_each_repetition_without_effect_doubles_the_wait() -> None:
    repetition = InterestRepetition(1.0)
    repetition.propagated(0, ONE)
    repeated = [n / 10 for n in range(1, 400) if repetition.heard(n / 10, "p", NOTHING)]
    waits = [b - a for a, b in pairwise(repeated)]
    assert len(waits) >= 3
    assert all(b > a for a, b in pairwise(waits))


def test_timeout_adapts_to_what_is_measured() -> None:
    repetition = InterestRepetition(1.0)
    for number in range(1, 40):
        repetition.propagated(number, Version(1, number))
        repetition.heard(number + 0.5, "p", Version(1, number))
    assert 0.5 <= repetition.timeout_s < 0.7


def test_timeout_has_a_floor() -> None:
    repetition = InterestRepetition(1.0)
    for number in range(1, 40):
        repetition.propagated(number, Version(1, number))
        repetition.heard(number + 0.001, "p", Version(1, number))
    assert repetition.timeout_s == 0.25


def test_repeated_version_is_not_measured() -> None:
    repetition = InterestRepetition(1.0)
    repetition.propagated(0, ONE)
    assert repetition.heard(1.0, "p", NOTHING)
    repetition.heard(500.0, "p", ONE)
    assert repetition.timeout_s == 1.0


def test_one_origin_behind_is_enough() -> None:
    repetition = InterestRepetition(1.0)
    repetition.propagated(0, ONE)
    repetition.heard(0.4, "p", ONE)
    assert not repetition.heard(0.5, "q", NOTHING)
    assert repetition.heard(5.0, "q", NOTHING)


def test_a_later_propagation_does_not_postpone_an_earlier_one() -> None:
    repetition = InterestRepetition(1.0)
    repetition.propagated(0, ONE)
    repetition.propagated(0.9, TWO)
    assert repetition.heard(1.0, "p", NOTHING)
