"""Join points: every match once, wherever they are, whatever happens to them."""

import pytest

from anabranch.core import contract
from anabranch.core.routing.registry import RoutingName
from anabranch.core.session.effects import (
    EventsRefused,
    PatternRequestAnswered,
    SubscriptionAccepted,
    SubscriptionCut,
    SubscriptionRefused,
)
from anabranch.model.client_frames import UNKNOWN
from anabranch.model.frames import Carry, PointTaken, TakePoint
from anabranch.sim.mutants.catalog import planted
from tests.point_parts import Stage, User

RISE = "low:{price < 20} THEN high:{price > 30} WHERE low.symbol = high.symbol WITHIN 2 s"
SILENCE = "order:{kind = 'order'} THEN NOT paid:{kind = 'paid'} WHERE order.n = paid.n WITHIN 1 s"


def quotes(user: User, count: int, start: int = 0) -> None:
    """Every second one is low, the others are high."""
    for number in range(start, start + count):
        user.publish(symbol="A", price=40 if number % 2 else 10, n=number)


@pytest.mark.parametrize("routing", ["tree", "flood", "mesh"])
def test_a_match_is_one_event_with_the_events_that_contributed(routing: RoutingName) -> None:
    stage = Stage(routing=routing)
    reader, feed, other = (
        stage.user(name, home) for name, home in (("r", "e1"), ("f", "e2"), ("o", "e3"))
    )
    reader.subscribe_to("rise")
    stage.run(0.5)
    reader.define("rise", RISE)
    stage.run(1.0)
    assert [each.reason for each in reader.heard(PatternRequestAnswered)] == [""]
    feed.publish(symbol="A", price=10)
    stage.run(0.2)
    other.publish(symbol="B", price=50)
    other.publish(symbol="A", price=50)
    stage.run(1.5)
    notifications = reader.notifications()
    assert len(notifications) == 1
    assert notifications[0].is_whole
    found = notifications[0].match
    assert found.pattern == "rise"
    assert [(each.part, each.event.stream) for each in found.contributions] == [
        ("low", "e2"),
        ("high", "e3"),
    ]
    assert [each.event.attributes["price"] for each in found.contributions] == [10, 50]
    assert stage.assert_detected("rise") == 1


def test_what_did_not_come_is_told_when_its_time_is_over() -> None:
    stage = Stage()
    reader, feed = stage.user("r", "e1"), stage.user("f", "e2")
    reader.subscribe_to("unpaid")
    stage.run(0.3)
    reader.define("unpaid", SILENCE)
    stage.run(0.5)
    feed.publish(kind="order", n=1)
    feed.publish(kind="order", n=2)
    stage.run(0.3)
    feed.publish(kind="paid", n=1)
    stage.run(0.5)
    assert reader.notifications() == []
    stage.run(1.5)
    found = [each.match.contributions[0].event.attributes["n"] for each in reader.notifications()]
    assert found == [2]


def test_a_pattern_that_waits_for_time_waits_for_an_origin_that_is_away() -> None:
    stage = Stage()
    reader, feed = stage.user("r", "e1"), stage.user("f", "e2")
    reader.subscribe_to("unpaid")
    reader.define("unpaid", SILENCE)
    stage.run(1.0)
    stage.world.kill("e3")
    feed.publish(kind="order", n=1)
    stage.run(4.0)
    assert reader.notifications() == []
    stage.world.start("e3")
    stage.run(4.0)
    assert len(reader.notifications()) == 1


@pytest.mark.parametrize("after_ms", range(0, 400, 50))
def test_killed_at_any_moment_nothing_is_lost_or_told_twice(after_ms: int) -> None:
    stage = Stage(seed=after_ms)
    reader, feed = stage.user("r", "e2"), stage.user("f", "e3")
    stage.user("d", "e1").define("rise", RISE)
    reader.subscribe_to("rise")
    stage.run(1.0)
    quotes(feed, 6)
    stage.run(after_ms / 1e3)
    stage.restart("e1")
    quotes(feed, 4, 6)
    stage.run(4.0)
    count = stage.assert_detected("rise")
    assert count == len(reader.notifications()) > 6


@pytest.mark.parametrize("after_ms", range(0, 400, 50))
def test_moved_at_any_moment_nothing_is_lost_or_told_twice(after_ms: int) -> None:
    stage = Stage(seed=after_ms)
    reader, feed = stage.user("r", "e2"), stage.user("f", "e3")
    stage.user("d", "e1").define("rise", RISE)
    reader.subscribe_to("rise")
    stage.run(1.0)
    quotes(feed, 6)
    stage.run(after_ms / 1e3)
    stage.move("rise", "e1", "e2")
    quotes(feed, 4, 6)
    stage.run(0.4)
    if after_ms % 100:
        stage.restart("e2" if after_ms % 200 == 50 else "e1")
    quotes(feed, 4, 10)
    stage.run(4.0)
    count = stage.assert_detected("rise")
    assert count == len(reader.notifications()) > 10


def test_a_join_point_goes_round_and_comes_back() -> None:
    stage = Stage()
    reader, feed = stage.user("r", "e2"), stage.user("f", "e3")
    stage.user("d", "e1").define("rise", RISE)
    reader.subscribe_to("rise")
    stage.run(1.0)
    for number, (source, target) in enumerate([("e1", "e2"), ("e2", "e3"), ("e3", "e1")]):
        quotes(feed, 4, 4 * number)
        stage.run(0.3)
        stage.move("rise", source, target)
        stage.run(3.0)
        assert stage.owners("rise") == [target]
    assert stage.points("e1").records["rise"].moves == 3
    assert stage.assert_detected("rise") == len(reader.notifications())


def test_a_move_that_is_told_late_makes_no_second_join_point() -> None:
    stage = Stage()
    stage.user("d", "e1").define("rise", RISE)
    stage.run(1.0)
    moved: list[Carry] = []

    def listen(_now: float, _broker: str, what: object) -> None:
        frame = what.frame if isinstance(what, contract.Send) else None
        if isinstance(frame, Carry) and isinstance(frame.content, TakePoint):
            moved.append(frame)

    stage.world.listener = listen
    stage.move("rise", "e1", "e2")
    stage.run(2.0)
    stage.move("rise", "e2", "e3")
    stage.run(2.0)
    assert stage.owners("rise") == ["e3"]
    late = next(frame for frame in moved if frame.target == "e2")
    stage.world.stimulate("e2", contract.FrameReceived("m", late))
    stage.run(1.0)
    assert stage.owners("rise") == ["e3"]
    stage.restart("e2")
    stage.run(1.0)
    stage.world.stimulate("e2", contract.FrameReceived("m", late))
    stage.run(1.0)
    assert stage.owners("rise") == ["e3"]


def test_who_cannot_take_a_join_point_says_so_and_it_stays() -> None:
    stage = Stage()
    feed = stage.user("f", "e3")
    stage.user("d", "e1").define("rise", RISE)
    stage.run(1.0)
    stage.move("rise", "e1", "nowhere")
    stage.move("rise", "e1", "m")
    stage.run(0.5)
    assert stage.owners("rise") == ["e1"]
    quotes(feed, 4)
    stage.run(2.0)
    assert stage.assert_detected("rise") == 3


def test_a_definition_is_checked_and_answered_again_when_it_is_repeated() -> None:
    stage = Stage()
    user = stage.user("u", "e1")
    user.define("bad", "low:{price <} WITHIN 2 s")
    user.define("endless", "low:{price < 2} THEN high:{price > 3}")
    user.define("rise", RISE)
    user.define("rise", RISE)
    user.define("rise", SILENCE)
    user.define("x" * 250, RISE)
    stage.run(0.5)
    reasons = [each.reason for each in user.heard(PatternRequestAnswered)]
    answers = {each.request % 100: each.reason for each in user.heard(PatternRequestAnswered)}
    assert len(reasons) == len(answers) == 6
    by_order = [reason for _, reason in sorted(answers.items())]
    assert "at position 12" in by_order[0]
    assert "WITHIN" in by_order[1]
    assert by_order[2:4] == ["", ""]
    assert "another pattern 'rise'" in by_order[4]
    assert "at most" in by_order[5]


def test_a_definition_outlives_a_crash_as_soon_as_it_is_answered() -> None:
    stage = Stage()
    user = stage.user("u", "e1")
    user.define("rise", RISE)
    while not user.heard(PatternRequestAnswered):
        stage.run(0.005)
    stage.restart("e1")
    stage.run(2.0)
    assert stage.owners("rise") == ["e1"]
    assert "rise" in stage.points("e1").active


@pytest.mark.parametrize("home", ["e1", "e2"])
def test_a_dropped_pattern_leaves_nothing_behind(home: str) -> None:
    stage = Stage()
    stage.user("d", "e1").define("rise", RISE)
    user, feed = stage.user("u", home), stage.user("f", "e3")
    stage.run(1.0)
    user.drop("rise")
    user.drop("never")
    stage.run(2.0)
    told = {each.pattern: each.code for each in user.heard(PatternRequestAnswered)}
    assert told == {"rise": "", "never": UNKNOWN}
    assert stage.owners("rise") == []
    quotes(feed, 4)
    stage.run(2.0)
    for edge in stage.network.edges:
        broker = stage.world.hosts[edge].broker
        assert broker is not None
        assert broker.edge is not None
        assert broker.edge.durable() == []
    assert not [
        each for each in stage.logged() if "anabranch.pattern" in each.envelope.attributes()
    ]
    user.define("rise", RISE)
    stage.run(0.5)
    if home == "e1":
        assert "there was a pattern 'rise'" in user.heard(PatternRequestAnswered)[-1].reason


@pytest.mark.parametrize("after_ms", range(-40, 41, 4))
def test_one_that_moves_is_dropped_all_the_same(after_ms: int) -> None:
    stage = Stage()
    user = stage.user("u", "e3")
    stage.user("d", "e1").define("rise", RISE)
    stage.run(1.0)
    if after_ms >= 0:
        user.drop("rise")
        stage.run(after_ms / 1e3)
    stage.move("rise", "e1", "e2")
    if after_ms < 0:
        stage.run(-after_ms / 1e3)
        user.drop("rise")
    stage.run(6.0)
    assert [(each.code, each.reason) for each in user.heard(PatternRequestAnswered)] == [("", "")]
    assert stage.owners("rise") == []


def test_what_nobody_keeps_is_dropped_and_what_is_kept_stays() -> None:
    stage = Stage()
    user = stage.user("u", "e1")
    user.define("kept", RISE, lasts_s=2)
    user.define("left", RISE, lasts_s=2)
    stage.run(0.5)
    stage.move("kept", "e1", "e2")
    for _ in range(4):
        stage.run(1.0)
        user.perform(user.session.patterns.keep(["kept"]))
    assert stage.owners("kept") == ["e2"]
    assert stage.owners("left") == []


def test_what_nobody_keeps_while_it_moves_ends_when_it_has_come_back() -> None:
    stage = Stage()
    stage.user("u", "e1").define("left", RISE, lasts_s=2)
    stage.run(0.5)
    stage.world.kill("e2")
    stage.move("left", "e1", "e2")
    stage.run(4.0)
    assert stage.points("e1").records["left"].goes_to == "e2"
    refusal = Carry("e2", "e1", 9, PointTaken("left", 1, is_refused=True))
    stage.world.stimulate("e1", contract.FrameReceived("m", refusal))
    stage.run(4.0)
    assert stage.owners("left") == []


def test_names_and_attributes_of_the_network_are_no_clients_to_use() -> None:
    stage = Stage()
    user = stage.user("u", "e1")
    user.publish(**{"anabranch.pattern": "rise"})
    stage.run(0.3)
    refused = user.heard(EventsRefused)[0]
    assert refused.final
    assert "the network's own" in refused.reason
    text = "price > 1"
    user.perform(user.session.subscribe(0.0, "pattern/rise", text, quality="durable"))
    stage.run(0.3)
    assert "join points" in user.heard(SubscriptionRefused)[0].reason
    assert not user.heard(SubscriptionAccepted)
    stranger = stage.user("pattern/rise", "e1")
    stage.run(0.3)
    assert stranger.heard(SubscriptionCut) or stranger.connection is None


def test_patterns_are_matched_over_the_matches_of_patterns() -> None:
    stage = Stage()
    reader, feed = stage.user("r", "e2"), stage.user("f", "e3")
    reader.subscribe_to("twice")
    reader.define("rise", RISE)
    reader.define("twice", "2 TIMES m:{anabranch.pattern = 'rise'} WITHIN 3 s")
    stage.run(1.0)
    feed.publish(symbol="A", price=10)
    feed.publish(symbol="A", price=40)
    stage.run(0.5)
    feed.publish(symbol="B", price=10)
    feed.publish(symbol="B", price=40)
    stage.run(2.0)
    assert stage.assert_detected("rise") == 2
    assert stage.assert_detected("twice") == 1
    assert len(reader.notifications()) == 1


def test_events_that_need_not_be_kept_do_not_count() -> None:
    stage = Stage()
    feed = stage.user("f", "e3")
    stage.user("d", "e1").define("any", "2 TIMES e:{price > 0} WITHIN 2 s")
    stage.run(1.0)
    quotes(feed, 1)
    feed.publish_limited()
    stage.run(2.0)
    assert stage.assert_detected("any") == 0


def crashed_with_a_full_disk() -> Stage:
    """The disk of a join point's broker is full when matches come, and it crashes then."""
    stage = Stage()
    feed = stage.user("f", "e3")
    stage.user("d", "e1").define("rise", RISE)
    stage.run(1.0)
    stage.world.stimulate("e1", contract.LogFull(full=True))
    quotes(feed, 4)
    stage.run(6.0)
    assert not [each for each in stage.logged() if each.stream == "e1"]
    stage.restart("e1")
    stage.run(4.0)
    return stage


def test_a_full_disk_delays_matches_and_a_crash_meanwhile_loses_none() -> None:
    stage = crashed_with_a_full_disk()
    assert len([each for each in stage.logged() if each.stream == "e1"]) == 3
    assert stage.assert_detected("rise") == 3


@planted("reported-early")
def test_who_writes_down_as_reported_what_is_not_in_the_log_has_lost_it() -> None:
    stage = crashed_with_a_full_disk()
    assert not [each for each in stage.logged() if each.stream == "e1"]
