"""What other brokers say of patterns cannot be true, or comes too late: nobody is harmed."""

import pytest
from msgspec.structs import replace

from anabranch.core import contract
from anabranch.core.patterns.join_points.records import COUNT_MAX
from anabranch.core.patterns.join_points.registry import STARTS_MAX
from anabranch.core.session.effects import PatternRequestAnswered
from anabranch.model.client_frames import BUSY
from anabranch.model.event import INT_MAX
from anabranch.model.frames import (
    AnyCarried,
    Carry,
    FindPoint,
    PointFound,
    PointSettled,
    PointTaken,
    TakePoint,
)
from anabranch.model.limits import Limits
from anabranch.model.pattern.match import PointRecord
from tests.point_parts import Stage

RISE = "low:{price < 20} THEN high:{price > 30} WHERE low.symbol = high.symbol WITHIN 2 s"
OTHER = "a:{x = 1} THEN b:{x = 2} WITHIN 1 s"


def tell(stage: Stage, source: str, target: str, content: AnyCarried) -> None:
    """A broker says something to another one, or is said to."""
    stage.world.stimulate(target, contract.FrameReceived("m", Carry(source, target, 9, content)))


def test_a_pattern_that_is_here_is_not_taken_from_elsewhere() -> None:
    stage = Stage()
    user = stage.user("u", "e1")
    user.define("rise", RISE, is_new=True)
    stage.run(1.0)
    record = stage.points("e1").records["rise"]
    lie = replace(record, text=OTHER, moves=record.moves + 1, came_from="e2")
    tell(stage, "e2", "e1", TakePoint(lie))
    stage.run(5.0)
    assert stage.points("e1").records["rise"].text == RISE
    user.publish(symbol="A", price=10)
    user.publish(symbol="A", price=40)
    stage.run(2.0)
    assert stage.assert_detected("rise") == 1


@pytest.mark.parametrize("leap", [{"incarnation": INT_MAX}, {"moves": INT_MAX}])
def test_a_pattern_whose_counters_have_leapt_is_not_taken_and_its_id_stays_free(
    leap: dict[str, int],
) -> None:
    stage = Stage()
    heard: list[object] = []
    stage.world.listener = lambda _now, _name, what: heard.append(what)
    lie = replace(PointRecord("rise", RISE, came_from="e2"), **leap)
    tell(stage, "e2", "e1", TakePoint(lie))
    stage.run(2.0)
    assert "rise" not in stage.points("e1").records
    notes = [what.text for what in heard if isinstance(what, contract.Note)]
    assert any(f"exceeds {STARTS_MAX} starts or moves" in text for text in notes)
    user = stage.user("u", "e1")
    user.define("rise", RISE, is_new=True)
    stage.run(1.0)
    user.publish(symbol="A", price=10)
    user.publish(symbol="A", price=40)
    stage.run(2.0)
    assert stage.assert_detected("rise") == 1


def test_nobody_has_taken_what_was_not_given_yet() -> None:
    stage = Stage()
    stage.user("u", "e1").define("rise", RISE, is_new=True)
    stage.run(1.0)
    stage.move("rise", "e1", "e2")
    # It is to go there, but that is not on disk yet.
    assert stage.points("e1").records["rise"].goes_to == "e2"
    tell(stage, "e2", "e1", PointTaken("rise", 1))
    stage.run(2.0)
    assert stage.owners("rise") == ["e2"]


def test_only_its_giver_can_say_that_it_has_forgotten_it() -> None:
    stage = Stage()
    stage.user("u", "e1").define("rise", RISE, is_new=True)
    stage.run(1.0)
    stage.move("rise", "e1", "e2")
    while "rise" not in stage.points("e2").records:
        stage.run(0.001)
    heard: list[object] = []
    stage.world.listener = lambda _now, _name, what: heard.append(what)
    tell(stage, "e3", "e2", PointSettled("rise", 1))
    assert stage.points("e2").records["rise"].came_from == "e1"
    notes = [what.text for what in heard if isinstance(what, contract.Note)]
    assert any("only 'e1' may settle pattern 'rise'" in text for text in notes)
    stage.run(2.0)
    assert stage.points("e2").records["rise"].came_from == ""


def test_an_answer_to_a_question_of_an_earlier_life_is_none() -> None:
    stage = Stage()
    user = stage.user("u", "e1")
    asked: list[int] = []

    def listen(_now: float, broker: str, what: object) -> None:
        frame = what.frame if isinstance(what, contract.Send) else None
        content = frame.content if isinstance(frame, Carry) else None
        if isinstance(content, FindPoint) and broker == "e1":
            asked.append(content.request)

    stage.world.kill("e2")
    stage.world.listener = listen
    user.define("rise", RISE)
    while not asked:
        stage.run(0.001)
    stage.restart("e1")
    stage.run(1.0)
    assert len(set(asked)) == 2
    # What e2 said to the first life comes now; it may have the pattern since.
    tell(stage, "e2", "e1", PointFound(asked[0], "rise", "no"))
    stage.run(7.0)
    assert {each.code for each in user.heard(PatternRequestAnswered)} == {BUSY}
    assert stage.owners("rise") == []


def test_what_is_remembered_of_patterns_that_were_refused_or_dropped_is_bounded() -> None:
    stage = Stage(limits=Limits(patterns_gone_max=20))
    user = stage.user("u", "e1")
    for number in range(8):
        user.define(f"own{number}", RISE, is_new=True)
        user.drop(f"own{number}")
        stage.run(1.0)
    heard: list[object] = []
    stage.world.listener = lambda _now, _name, what: heard.append(what)
    tell(stage, "e2", "e1", TakePoint(PointRecord("x", RISE, came_from="e3")))
    notes = [what.text for what in heard if isinstance(what, contract.Note)]
    assert any("only 'e3' may give pattern 'x' away" in text for text in notes)
    for number in range(50):
        tell(stage, "e2", "e1", TakePoint(PointRecord(f"bad{number}", "no", came_from="e2")))
    for number in range(8):
        user.define(f"own{number}", RISE, is_new=True)
    stage.run(2.0)
    reasons = [each.reason for each in user.heard(PatternRequestAnswered)][-8:]
    assert [reason[:20] for reason in reasons] == ["there was a pattern "] * 8
    for number in range(30):
        user.define(f"more{number}", RISE, is_new=True)
        stage.run(0.3)
        user.drop(f"more{number}")
        stage.run(0.7)
    stage.run(1.0)
    rows = stage.world.hosts["e1"].disk.recover().catalog.get("patterns_gone", {})
    assert len(rows) == 20


@pytest.mark.parametrize(
    "lie",
    [
        PointRecord("x", "garbage"),
        PointRecord("x", ""),
        PointRecord("", RISE),
        PointRecord("a\0b", RISE),
        PointRecord("x" * 255, RISE),
        PointRecord("x", RISE, incarnation=INT_MAX),
        PointRecord("x", RISE, incarnation=COUNT_MAX + 1),
        PointRecord("x", RISE, moves=INT_MAX),
        PointRecord("x", RISE, goes_to="e3"),
        PointRecord("x", RISE, goes_to="e1"),
        PointRecord("x", RISE, goes_to="nobody"),
    ],
)
def test_a_record_that_no_restart_could_read_is_refused_before_it_is_stored(
    lie: PointRecord,
) -> None:
    stage = Stage()
    tell(stage, "e2", "e1", TakePoint(replace(lie, came_from="e2")))
    stage.run(2.0)
    catalog = stage.world.hosts["e1"].disk.recover().catalog
    assert catalog.get("patterns", {}) == {}
    stage.restart("e1", 0.1)
    stage.run(1.0)
    broker = stage.world.hosts["e1"].broker
    assert broker is not None
    assert broker.set_aside.count == 0


def test_a_record_with_as_many_starts_and_moves_as_may_be_outlives_a_restart() -> None:
    stage = Stage()
    most = PointRecord("x", RISE, incarnation=COUNT_MAX - 9, moves=COUNT_MAX, came_from="e2")
    tell(stage, "e2", "e1", TakePoint(most))
    stage.run(2.0)
    assert stage.owners("x") == ["e1"]
    stage.restart("e1", 0.1)
    stage.run(1.0)
    assert stage.owners("x") == ["e1"]
