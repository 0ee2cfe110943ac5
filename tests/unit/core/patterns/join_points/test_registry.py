"""Requests about patterns that wait: bounded for all, and for each."""

from anabranch.core.session.effects import PatternRequestAnswered
from anabranch.model.client_frames import BUSY
from anabranch.model.limits import DEFAULT_LIMITS
from tests.point_parts import Stage, User

WAITING_MAX = DEFAULT_LIMITS.pattern_requests_max
WAITING_OF_SESSION_MAX = DEFAULT_LIMITS.session_pattern_requests_max
RISE = "low:{price < 20} THEN high:{price > 30} WHERE low.symbol = high.symbol WITHIN 2 s"


def codes(user: User) -> list[str]:
    """The codes of the answers that came."""
    return [each.code for each in user.heard(PatternRequestAnswered)]


def test_one_client_that_defines_very_much_leaves_room_for_others() -> None:
    stage = Stage()
    greedy, other = stage.user("g", "e1"), stage.user("o", "e1")
    # Nobody knows whether e2 has them, so all of them wait.
    stage.world.kill("e2")
    for number in range(WAITING_MAX):
        greedy.define(f"p{number}", RISE)
    stage.run(0.5)
    assert codes(greedy) == [BUSY] * (WAITING_MAX - WAITING_OF_SESSION_MAX)
    other.define("own", RISE, is_new=True)
    stage.run(0.5)
    assert codes(other) == [""]
    stage.world.start("e2")
    stage.run(5.0)
    assert codes(greedy).count("") == WAITING_OF_SESSION_MAX


def test_one_client_that_drops_very_much_leaves_room_for_others() -> None:
    stage = Stage()
    greedy, other = stage.user("g", "e1"), stage.user("o", "e1")
    other.define("own", RISE, is_new=True)
    stage.run(0.5)
    stage.world.kill("e2")
    for number in range(WAITING_MAX):
        greedy.drop(f"p{number}")
    stage.run(0.5)
    assert codes(greedy) == [BUSY] * (WAITING_MAX - WAITING_OF_SESSION_MAX)
    reasons = {each.reason for each in greedy.heard(PatternRequestAnswered)}
    assert all("(session_pattern_requests_max)" in reason for reason in reasons)
    other.drop("own")
    stage.run(0.5)
    assert codes(other) == ["", ""]
