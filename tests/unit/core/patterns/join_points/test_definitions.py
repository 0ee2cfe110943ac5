"""How patterns begin: an id is used once in a network, and what is answered has begun."""

from random import Random

import pytest

from anabranch.core import contract
from anabranch.core.session.effects import PatternRequestAnswered, SendFrame
from anabranch.core.session.session import PATTERN_REQUEST_FIRST
from anabranch.model.client_frames import BUSY, UNKNOWN, Define
from anabranch.model.errors import LocalError
from anabranch.model.frames import Carry, FindPoint
from anabranch.model.limits import Limits
from tests.point_parts import Stage, User

RISE = "low:{price < 20} THEN high:{price > 30} WHERE low.symbol = high.symbol WITHIN 2 s"
BOTH = "low:{price < 20} AND high:{price > 30} WITHIN 2 s"
SILENCE = "order:{kind = 'order'} THEN NOT paid:{kind = 'paid'} WHERE order.n = paid.n WITHIN 1 s"


def answers(user: User) -> list[tuple[str, str]]:
    """Code and reason of each answer, in order."""
    return [(each.code, each.reason) for each in user.heard(PatternRequestAnswered)]


def test_an_id_that_another_broker_has_is_found_there() -> None:
    stage = Stage()
    first, second = stage.user("u", "e1"), stage.user("v", "e2")
    first.define("rise", RISE)
    stage.run(1.0)
    second.define("rise", RISE)
    second.define("rise", BOTH)
    stage.run(1.0)
    (_, found), (_, other) = answers(second)
    assert found == ""
    assert other == "there is another pattern 'rise' at 'e1'; use another id"
    assert stage.owners("rise") == ["e1"]


@pytest.mark.parametrize("seed", range(12))
def test_of_two_that_define_the_same_at_once_one_makes_it(seed: int) -> None:
    stage = Stage(seed=seed)
    users = [stage.user(name, home) for name, home in (("u", "e1"), ("v", "e2"), ("w", "e3"))]
    for user in users[seed % 3 :] + users[: seed % 3]:
        user.define("rise", RISE)
        stage.run(0.001 * (seed // 3))
    stage.run(4.0)
    assert [answers(user) for user in users] == [[("", "")]] * 3
    assert len(stage.owners("rise")) == 1


@pytest.mark.parametrize("seed", range(8))
def test_a_crash_while_several_define_the_same_leaves_one(seed: int) -> None:
    rng = Random(seed)
    stage = Stage(seed=seed)
    users = [stage.user(name, home) for name, home in (("u", "e1"), ("v", "e2"), ("w", "e3"))]
    victim = rng.choice(["e1", "e2", "e3", "m"])
    for user in rng.sample(users, 3):
        user.define("rise", RISE)
        stage.run(0.03 * rng.random())
    stage.restart(victim, 0.5 * rng.random())
    stage.run(9.0)
    assert len(stage.owners("rise")) == 1
    assert [answers(user) for user in users] == [[("", "")]] * 3


def test_of_two_that_define_differently_at_once_one_is_refused() -> None:
    stage = Stage()
    first, second = stage.user("u", "e1"), stage.user("v", "e2")
    second.define("rise", BOTH)
    first.define("rise", RISE)
    stage.run(4.0)
    reasons = sorted(reason for _, reason in answers(first) + answers(second))
    assert reasons[0] == ""
    assert "another pattern 'rise'" in reasons[1]
    assert len(stage.owners("rise")) == 1


def test_a_broker_that_is_away_might_have_it_so_nothing_is_made() -> None:
    stage = Stage()
    user = stage.user("u", "e1")
    stage.world.kill("e3")
    user.define("rise", RISE)
    user.drop("rise")
    stage.run(7.0)
    assert [code for code, _ in answers(user)] == [BUSY, BUSY]
    assert all("'e3'" in reason for _, reason in answers(user))
    assert stage.points("e1").records == {}
    user.define("new", RISE, is_new=True)
    stage.run(1.0)
    assert answers(user)[-1] == ("", "")
    stage.world.start("e3")
    stage.run(1.0)
    user.define("rise", RISE)
    stage.run(2.0)
    assert answers(user)[-1] == ("", "")


def test_nobody_is_asked_for_an_id_that_is_new() -> None:
    stage = Stage()
    user = stage.user("u", "e1")
    asked: list[str] = []

    def listen(_now: float, _broker: str, what: object) -> None:
        frame = what.frame if isinstance(what, contract.Send) else None
        if isinstance(frame, Carry) and isinstance(frame.content, FindPoint):
            asked.append(frame.content.pattern)

    stage.world.listener = listen
    user.define("new", RISE, is_new=True)
    user.define("perhaps", RISE)
    stage.run(1.0)
    assert answers(user) == [("", ""), ("", "")]
    assert set(asked) == {"perhaps"}


def test_one_that_must_exist_is_not_made_but_kept() -> None:
    stage = Stage()
    first, second = stage.user("u", "e1"), stage.user("v", "e2")
    second.define("rise", RISE, must_exist=True)
    stage.run(1.0)
    assert answers(second)[0][0] == UNKNOWN
    first.define("rise", RISE, lasts_s=2)
    for _ in range(4):
        stage.run(1.0)
        second.define("rise", RISE, must_exist=True)
    stage.run(1.0)
    assert answers(second)[1:] == [("", "")] * 4
    assert stage.owners("rise") == ["e1"]
    stage.run(4.0)
    second.define("rise", RISE, must_exist=True)
    stage.run(1.0)
    assert answers(second)[-1][0] == UNKNOWN
    assert stage.owners("rise") == []


@pytest.mark.parametrize("routing", ["tree", "mesh"])
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_is_published_at_its_broker_after_the_answer_counts(
    routing: str, is_killed: bool
) -> None:
    stage = Stage(routing="mesh" if routing == "mesh" else "tree")
    user, reader = stage.user("u", "e1"), stage.user("r", "e2")
    reader.subscribe_to("both")
    user.define("both", BOTH)
    while not user.heard(PatternRequestAnswered):
        stage.run(0.001)
    user.publish(price=10)
    user.publish(price=40)
    if is_killed:
        stage.run(0.05)
        stage.restart("e1")
    stage.run(4.0)
    assert stage.assert_detected("both") == len(reader.notifications()) == 1


def test_too_many_patterns_are_refused_and_there_is_room_again() -> None:
    stage = Stage(limits=Limits(patterns_max=2))
    user = stage.user("u", "e1")
    for name in ("one", "two", "three"):
        user.define(name, RISE)
    stage.run(1.0)
    reasons = {each.pattern: each.reason for each in user.heard(PatternRequestAnswered)}
    assert reasons["one"] == reasons["two"] == ""
    refusal = "this broker has 2 patterns, its limit (patterns_max)"
    assert reasons["three"].startswith(refusal)
    user.drop("one")
    stage.run(1.0)
    user.define("three", RISE)
    stage.run(1.0)
    assert answers(user)[-1] == ("", "")


def test_one_client_has_a_quota_of_patterns_and_others_have_their_own() -> None:
    stage = Stage(limits=Limits(client_patterns_max=2))
    greedy, modest = stage.user("greedy", "e1"), stage.user("modest", "e1")
    for number in range(3):
        greedy.define(f"p{number}", RISE)
        stage.run(1.0)
    modest.define("mine", RISE)
    stage.run(1.0)
    *_, (_, reason) = answers(greedy)
    assert "client 'greedy' has 2 patterns at this broker, its quota" in reason
    assert "(client_patterns_max)" in reason
    assert answers(modest) == [("", "")]
    assert stage.owners("p2") == []


def test_a_window_of_more_than_the_limit_is_refused_by_brokers_too() -> None:
    stage = Stage(limits=Limits(pattern_window_s_max=60))
    user = stage.user("u", "e1")
    user.define("long", BOTH.replace("2 s", "61 s"))
    stage.run(1.0)
    assert "60" in answers(user)[0][1]


def test_what_no_client_would_send_is_refused_and_stops_nobody() -> None:
    stage = Stage()
    user = stage.user("u", "e1")
    for number, text in enumerate(("", "{x = 1} WITHIN " + "9" * 5_000 + " h", "(" * 5_000)):
        user.define(f"bad{number}", text, is_new=True)
    user.define("good", RISE, is_new=True)
    stage.run(1.0)
    assert [bool(reason) for _, reason in answers(user)] == [True, True, True, False]


@pytest.mark.slow
def test_clocks_minutes_apart_move_matches_and_lose_none() -> None:
    """Time is that of origins: e2 is three minutes ahead, and so are its events."""
    stage = Stage(ahead_s={"e2": 180.0, "e3": -60.0})
    reader = stage.user("r", "e1")
    ahead, late = stage.user("a", "e2"), stage.user("l", "e3")
    reader.subscribe_to("rise")
    reader.subscribe_to("unpaid")
    reader.define("rise", RISE)
    reader.define("unpaid", SILENCE)
    stage.run(1.0)
    # One after the other, at brokers whose clocks say minutes in between: no match.
    late.publish(symbol="A", price=10)
    stage.run(0.2)
    ahead.publish(symbol="A", price=50)
    # At one broker: a match, whatever its clock says.
    for user in (ahead, late):
        user.publish(symbol="B", price=10)
        user.publish(symbol="B", price=50)
    ahead.publish(kind="order", n=1)
    stage.run(10.0)
    assert stage.assert_detected("rise") == 2
    # What waits for time waits until the last clock has come so far.
    assert {each.match.pattern for each in reader.notifications()} == {"rise"}
    stage.run(250.0)
    assert stage.assert_detected("unpaid") == 1
    assert len(reader.notifications()) == 3
    counters = [point.counters for point in stage.points("e1").active.values()]
    assert [(each.late, each.withheld, each.overflows) for each in counters] == [(0, 0, 0)] * 2


@pytest.mark.parametrize("text", ["garbage", RISE])
def test_a_definition_that_contradicts_itself_is_refused_and_nothing_is_stored(text: str) -> None:
    stage = Stage()
    user = stage.user("u", "e1")
    frame = Define(PATTERN_REQUEST_FIRST, "rise", text, is_new=True, must_exist=True)
    user.session.patterns._open[PATTERN_REQUEST_FIRST] = frame
    user.session.patterns._request = PATTERN_REQUEST_FIRST
    user.perform([SendFrame(frame)])
    stage.run(1.0)
    ((_, reason),) = answers(user)
    assert "cannot both be new and have to exist" in reason
    assert stage.world.hosts["e1"].disk.recover().catalog.get("patterns", {}) == {}
    stage.restart("e1", 0.1)
    stage.run(1.0)
    assert stage.owners("rise") == []
    with pytest.raises(LocalError, match="cannot both be new and have to exist"):
        user.define("rise", RISE, is_new=True, must_exist=True)


def test_garbage_that_must_exist_is_never_stored() -> None:
    stage = Stage()
    user = stage.user("u", "e1")
    user.define("rise", "garbage", must_exist=True)
    stage.run(3.0)
    assert [code for code, _ in answers(user)] == [UNKNOWN]
    for name in ("e1", "e2", "e3"):
        assert stage.world.hosts[name].disk.recover().catalog.get("patterns", {}) == {}
