"""What neighbours know of a stream, and what an origin does about it when it starts."""

from anabranch.core.contract import DamagedRecord, Effect, Note, Put, Recovered
from anabranch.core.options import Options
from anabranch.core.origin.rollback import (
    ALONE,
    HEARD,
    RENEWED,
    ROLLED_BACK,
    TABLE,
    KnownStream,
    LogView,
    RollbackInquiry,
    StoredRollback,
    StreamWitness,
    is_renewed,
    stored,
)
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import PROTOCOL_VERSION, Hello, Knowledge, LinkFrame, MarkIs
from anabranch.model.mesh_frames import Copies, TreeId
from tests.frame_parts import LINK

OPTIONS = Options(start_alone_after_s=5.0, ask_again_s=0.5)
#: A log of 90 ticks, tick n of which was made at time n.
TIMES = {tick: tick for tick in range(1, 91)}


def hello(newest: int = 0, seen: int = 0, seen_ns: int = 0) -> Hello:
    return Hello(PROTOCOL_VERSION, "r", 1, newest, seen, seen_ns)


def view(emitted: int = 90) -> LogView:
    return LogView(emitted, emitted, TIMES.get)


def inquiry(*neighbours: str, is_first_life: bool = False) -> RollbackInquiry:
    made = RollbackInquiry(
        "o", neighbours, 90, OPTIONS, StoredRollback(), is_first_life=is_first_life
    )
    made.begin(0.0)
    return made


def found(effects: list[Effect]) -> StoredRollback:
    """What the next life finds."""
    return stored(Recovered({TABLE: rows(effects)}))


def levels(effects: list[Effect]) -> list[str]:
    return [effect.level for effect in effects if isinstance(effect, Note)]


def rows(effects: list[Effect]) -> dict[str, bytes]:
    puts = [effect for effect in effects if isinstance(effect, Put)]
    return {put.key: put.value for put in puts if put.value is not None}


# -- witnesses ------------------------------------------------------------------------------------


def test_a_witness_remembers_the_newest_tick_and_the_newest_event() -> None:
    witness = StreamWitness("r", ["o", "r"], Recovered())
    frames: list[LinkFrame] = [
        Knowledge("o", "hub", "", 5, [Datum(7, 70, b""), Datum(8, 80, b"")], head=8),
        MarkIs("o", 9, {}),
        Knowledge("o", "hub", "", 9, [Datum(3, 30, b"")]),
    ]
    for frame in frames:
        witness.record(frame)
    assert witness.known("o") == KnownStream(9, 8, 80)
    witness.record(Copies("o", TreeId("o", 1, 0), 9, [], 20, [Datum(12, 120, b"")], head=30))
    assert witness.known("o") == KnownStream(30, 12, 120)
    assert witness.known("nobody") == KnownStream()


def test_no_other_frame_says_anything_about_a_stream() -> None:
    witness = StreamWitness("r", [], Recovered())
    for frame in LINK:
        witness.record(frame)
    assert witness.puts(1.0) == []


def test_a_witness_writes_what_changed_once_a_second_and_finds_it_again() -> None:
    witness = StreamWitness("r", ["o"], Recovered({HEARD: {"gone": b"\x93\x01\x00\x00"}}))
    witness.record(MarkIs("o", 9, {}))
    first = witness.puts(10.0)
    assert Put(HEARD, "gone", None) in first
    witness.record(MarkIs("o", 10, {}))
    assert witness.puts(10.5) == []
    assert rows(witness.puts(11.0)).keys() == {"o"}
    assert witness.puts(20.0) == []
    assert StreamWitness("r", ["o"], Recovered({HEARD: rows(first)})).known("o") == KnownStream(9)


# -- inquiries ------------------------------------------------------------------------------------


def test_without_neighbours_an_origin_goes_on_at_once() -> None:
    assert inquiry().is_open


def test_an_origin_goes_on_when_all_neighbours_have_told() -> None:
    made = inquiry("r", "s")
    assert made.suspension
    assert made.greeted(0.1, "r", hello(90, 90, 90), view()) == []
    assert made.state == "asking"
    assert made.greeted(0.2, "s", hello(), view()) == []
    assert made.state == "open"
    assert made.suspension == ""
    assert made.next_deadline() is None


def test_an_origin_waits_for_other_neighbours_only_for_a_moment() -> None:
    made = inquiry("r", "s")
    made.greeted(0.1, "r", hello(90), view())
    assert made.next_deadline() == 0.1 + OPTIONS.ask_again_s
    assert made.time_passed(0.6) == []
    assert made.state == "open"


def test_an_origin_that_reaches_nobody_goes_on_with_a_warning() -> None:
    made = inquiry("r", "s")
    assert made.time_passed(4.9) == []
    assert made.state == "asking"
    effects = made.time_passed(5.0)
    assert levels(effects) == ["warning"]
    assert rows(effects) == {ALONE: b"90"}
    assert made.state == "open"
    # The next life remembers when the first one began to be alone.
    again = RollbackInquiry("o", ["r"], 95, OPTIONS, found(effects), is_first_life=False)
    again.begin(0.0)
    assert rows(again.time_passed(5.0)) == {}
    told = again.greeted(6.0, "r", hello(93), LogView(95, 95, TIMES.get))
    verdict = found(told).verdict
    assert verdict is not None
    assert (verdict.newest, verdict.start) == (93, 90)


def test_a_neighbour_that_knows_nothing_of_the_stream_does_not_answer() -> None:
    made = inquiry("relay", "r")
    assert made.greeted(0.1, "relay", hello(), view()) == []
    assert made.greeted(0.1, "relay", hello(), view()) == []
    assert (made.state, made.next_deadline()) == ("asking", 5.0)
    # One that does ends the asking,
    made.greeted(0.2, "r", hello(90), view())
    assert made.state == "open"
    # and where there is none, time does. The neighbour that greeted hears of new ticks.
    made = inquiry("relay")
    made.greeted(0.1, "relay", hello(), view())
    effects = made.time_passed(5.0)
    assert levels(effects) == ["warning"]
    assert rows(effects) == {}
    assert made.state == "open"
    assert made.greeted(6.0, "relay", hello(95), view(95)) == []
    assert levels(made.greeted(7.0, "relay", hello(99), view(95))) == ["error"]


def test_an_empty_log_needs_nobody_who_knows_it() -> None:
    made = RollbackInquiry("o", ["r"], 0, OPTIONS, StoredRollback(), is_first_life=True)
    made.begin(0.0)
    made.greeted(0.1, "r", hello(), LogView(0, 0, TIMES.get))
    assert made.state == "open"


def test_a_neighbour_that_agrees_ends_being_alone() -> None:
    made = inquiry("r")
    made.time_passed(5.0)
    assert Put(TABLE, ALONE, None) in made.greeted(6.0, "r", hello(90), view(95))


def test_a_neighbour_that_knows_more_stops_the_origin() -> None:
    made = inquiry("r", "s")
    effects = made.greeted(0.1, "r", hello(100), view())
    assert levels(effects) == ["error"]
    assert rows(effects).keys() == {ROLLED_BACK}
    assert made.state == "rolled-back"
    assert "'r' has seen tick 100" in made.suspension
    assert "anabranch log renew" in made.suspension
    # Nobody takes that back, nor is it said again.
    assert made.greeted(0.2, "s", hello(90), view()) == []
    assert made.greeted(0.3, "s", hello(100), view()) == []
    assert made.suspension
    # The next life knows at once.
    again = RollbackInquiry("o", ["r"], 90, OPTIONS, found(effects), is_first_life=False)
    assert levels(again.begin(0.0)) == ["error"]
    assert again.suspension == made.suspension


def test_ticks_of_this_life_are_no_contradiction_unless_nobody_can_know_them() -> None:
    made = inquiry("r", "s")
    made.greeted(0.1, "r", hello(90), view())
    assert made.greeted(0.9, "s", hello(95), view(95)) == []
    alone = inquiry("r")
    alone.time_passed(5.0)
    assert levels(alone.greeted(6.0, "r", hello(95), view(99))) == ["error"]


def test_an_event_that_was_made_at_another_time_is_a_contradiction() -> None:
    made = inquiry("r", "s")
    made.greeted(0.1, "r", hello(), view())
    assert made.greeted(0.2, "r", hello(80, 80, 80), view()) == []
    assert levels(made.greeted(0.3, "r", hello(80, 80, 81), view())) == ["error"]


def test_an_edge_is_believed_only_if_no_neighbour_knows_the_stream() -> None:
    made = inquiry("r", "s")
    made.greeted(0.1, "r", hello(), view())
    before = made.believes_edges
    made.greeted(0.2, "s", hello(60), view())
    assert (before, made.believes_edges) == (True, False)
    assert not inquiry("r", is_first_life=True).believes_edges


def test_rows_that_cannot_be_read_are_set_aside_and_a_renewed_log_stays_renewed() -> None:
    bad = {ROLLED_BACK: b"?", ALONE: b"x", RENEWED: b"", "other": b"1"}
    recovered = Recovered({TABLE: bad, HEARD: {"o": b"?"}})
    assert stored(recovered) == StoredRollback()
    assert StreamWitness("r", ["o"], recovered).known("o") == KnownStream()
    aside = {each.record.key: each.instead for each in recovered.aside}
    assert aside == {ROLLED_BACK: None, ALONE: None, RENEWED: b"0", "other": None, "o": None}
    assert is_renewed(recovered)
    assert is_renewed(Recovered(damaged=(DamagedRecord(TABLE, RENEWED, b"", "changed"),)))
    assert not is_renewed(Recovered())
