"""How an edge's own element grows along a stream."""

from anabranch.core.routing.interest_clock import STEPS_MAX, VersionSteps
from anabranch.model.version import NOTHING, Version

ONE, TWO = Version(1, 1), Version(1, 2)


def test_unknown_mark_has_at_least_the_version_of_the_last_known_before_it() -> None:
    steps = VersionSteps()
    steps.learn(5, ONE)
    steps.learn(9, TWO)
    assert [steps.at(mark) for mark in (0, 4, 5, 8, 9, 99)] == [
        NOTHING,
        NOTHING,
        ONE,
        ONE,
        TWO,
        TWO,
    ]


def test_steps_are_learned_in_any_order() -> None:
    steps = VersionSteps()
    steps.learn(9, TWO)
    steps.learn(5, ONE)
    steps.learn(7, TWO)
    steps.learn(8, ONE)
    assert [steps.at(mark) for mark in (4, 5, 6, 7, 8, 9)] == [NOTHING, ONE, ONE, TWO, TWO, TWO]


def test_steps_are_bounded_and_the_oldest_go_first() -> None:
    steps = VersionSteps()
    for number in range(1, STEPS_MAX + 5):
        steps.learn(number, Version(1, number))
    assert steps.at(1) == NOTHING
    assert steps.at(STEPS_MAX + 4) == Version(1, STEPS_MAX + 4)
    assert steps.at(10) == Version(1, 10)
