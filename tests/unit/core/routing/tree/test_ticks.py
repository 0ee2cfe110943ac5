"""Ticks through a relay and at an edge: filtering, silence, marks, versions."""

from collections.abc import Iterable

import pytest

from anabranch.core.contract import Note, Send
from anabranch.core.options import Options
from anabranch.core.routing.contract import (
    Arrival,
    Emission,
    Outcome,
    VectorAdvance,
    interest_at_once,
)
from anabranch.core.routing.tree.tree import TreeRouter
from anabranch.model.encoding import encode_event
from anabranch.model.event import Event, EventId
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Conjuncts, Datum, Hole
from anabranch.model.frames import AskMark, InterestState, Knowledge, LinkFrame, MarkIs
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.network import Network
from anabranch.model.version import NOTHING, Version
from anabranch.sim.mutants.catalog import planted
from tests.routing_turmoil import star

ONE, TWO, THREE = Version(1, 1), Version(1, 2), Version(1, 3)
MARK = MarkIs("p", 1, {"s1": ONE})


def tick(number: int, a: int) -> Datum:
    return Datum(number, 7, encode_event(Event({"a": a}, id=EventId("c", 1, number))))


def ticks(
    *data: Datum, mark: int = 1, silent: list[tuple[int, int]] | None = None, target: str = ""
) -> Knowledge:
    return Knowledge("p", "n1", target, mark, list(data), silent or [])


def sends(outcomes: Iterable[Outcome]) -> dict[str, list[LinkFrame]]:
    found: dict[str, list[LinkFrame]] = {}
    for each in outcomes:
        if isinstance(each, Send):
            found.setdefault(each.peer, []).append(each.frame)
    return found


class Relay:
    """m1 of the star; s1 wants a = 1 since version 1, s2 nothing."""

    def __init__(self, **options: bool) -> None:
        chosen = Options(**options)  # type: ignore[arg-type]
        self.router = TreeRouter("m1", star(), chosen, DEFAULT_LIMITS, 1)
        for peer in ("m2", "m3", "p", "s1", "s2"):
            self.router.link_up(0, peer)
        wanted = [Conjuncts("a = 1", (0,))]
        self.router.frame(0, "s1", InterestState("n1", "s1", {"s1": ONE}, wanted))

    def begun(self) -> "Relay":
        """Mark 1 has gone to everybody."""
        sent = self.take(MARK, ticks(silent=[(1, 1)]))
        for edge in ("s1", "s2"):
            assert sent[edge] == [MARK, Knowledge("p", edge, "", 1, [], [(1, 1)])]
        return self

    def take(self, *frames: LinkFrame, now: float = 0) -> dict[str, list[LinkFrame]]:
        outcomes = [each for frame in frames for each in self.router.frame(now, "p", frame)]
        return sends(outcomes)

    def wait(self, now: float) -> dict[str, list[LinkFrame]]:
        return sends(self.router.time_passed(now))


def test_matching_tick_goes_on_and_the_other_becomes_silence() -> None:
    sent = Relay().begun().take(ticks(tick(2, 1), tick(3, 0), tick(4, 0)))
    assert sent["s1"] == [Knowledge("p", "s1", "", 1, [tick(2, 1)], [(3, 4)])]
    assert "s2" not in sent


def test_first_silence_of_a_mark_does_not_wait() -> None:
    relay = Relay().begun()
    later = MarkIs("p", 5, {"s1": ONE, "s2": ONE})
    sent = relay.take(later, ticks(silent=[(5, 5)], mark=5))
    assert sent["s1"] == [later, Knowledge("p", "s1", "", 5, [], [(5, 5)])]
    assert "s1" not in relay.take(ticks(silent=[(6, 6)], mark=5))


def test_silence_waits_and_goes_alone_when_nothing_comes() -> None:
    relay = Relay().begun()
    relay.take(ticks(tick(2, 0)))
    relay.take(ticks(tick(3, 0)))
    relay.take(ticks(silent=[(5, 9)]))
    assert relay.wait(0.01) == {}
    silence = [Knowledge("p", "s1", "", 1, [], [(2, 3), (5, 9)])]
    assert relay.wait(0.03)["s1"] == silence


def test_silence_goes_with_the_next_data() -> None:
    relay = Relay().begun()
    relay.take(ticks(tick(2, 0)))
    sent = relay.take(ticks(tick(3, 1)))
    assert sent["s1"][-1] == Knowledge("p", "s1", "", 1, [tick(3, 1)], [(2, 2)])
    assert "s1" not in relay.wait(1)


def test_silence_of_an_earlier_mark_goes_first() -> None:
    relay = Relay().begun()
    relay.take(ticks(tick(2, 0)))
    later = MarkIs("p", 5, {"s1": ONE})
    sent = relay.take(later, ticks(tick(6, 1), mark=5))
    first, second = Knowledge("p", "s1", "", 1, [], [(2, 2)]), [tick(6, 1)]
    assert sent["s1"] == [first, later, Knowledge("p", "s1", "", 5, second)]


def test_head_reaches_everybody() -> None:
    relay = Relay().begun()
    relay.take(Knowledge("p", "n1", "", 1, [], [], [], 40, 99))
    sent = relay.wait(0.1)
    for edge in ("s1", "s2"):
        assert sent[edge][-1] == Knowledge("p", edge, "", 1, [], [], [], 40, 99)


def test_withheld_ticks_reach_everybody_at_once() -> None:
    relay = Relay()
    sent = relay.take(MARK, Knowledge("p", "n1", "", 1, [], [], [Hole(2, 4, "retention")]))
    assert sorted(sent) == ["s1", "s2"]


def test_insufficient_relay_sends_everything_on() -> None:
    sent = Relay().take(MarkIs("p", 1, {"s1": TWO}), ticks(tick(2, 0)))
    assert sent["s1"][-1] == Knowledge("p", "s1", "", 1, [tick(2, 0)])
    assert sent["s2"][-1] == Knowledge("p", "s2", "", 1, [], [(2, 2)])


def test_relay_that_learned_enough_filters_again() -> None:
    relay = Relay()
    relay.take(MarkIs("p", 1, {"s1": TWO}), ticks(tick(2, 0)))
    relay.router.frame(0, "s1", InterestState("n1", "s1", {"s1": THREE}, []))
    assert "s1" not in relay.take(ticks(tick(3, 1)))


def test_unknown_mark_sends_everything_on_and_is_asked_for_once() -> None:
    relay = Relay()
    sent = relay.take(ticks(tick(2, 0)), ticks(tick(3, 0)))
    assert sent["p"] == [AskMark("p", 1)]
    assert sent["s1"] == [
        Knowledge("p", "s1", "", 1, [tick(2, 0)]),
        Knowledge("p", "s1", "", 1, [tick(3, 0)]),
    ]
    relay.take(MARK)
    assert relay.take(ticks(tick(4, 1)))["s1"][0] == MARK


def test_question_for_a_vector_is_answered() -> None:
    relay = Relay()
    relay.take(MARK)
    assert sends(relay.router.frame(0, "s2", AskMark("p", 1))) == {"s2": [MARK]}
    assert relay.router.frame(0, "s2", AskMark("p", 9)) == []
    assert relay.router.frame(0, "s2", AskMark("p", 0)) == []


def test_vector_is_said_once_per_link_and_again_after_it_broke() -> None:
    relay = Relay()
    relay.take(MARK, ticks(tick(2, 1)))
    assert len(relay.take(ticks(tick(3, 1)))["s1"]) == 1
    relay.router.link_down(0, "s1")
    relay.router.link_up(0, "s1")
    assert relay.take(ticks(tick(4, 1)))["s1"][0] == MARK


@planted("digest-survives-link")
def test_mutant_does_not_say_it_again() -> None:
    relay = Relay()
    relay.take(MARK, ticks(tick(2, 1)))
    relay.router.link_down(0, "s1")
    relay.router.link_up(0, "s1")
    assert len(relay.take(ticks(tick(4, 1)))["s1"]) == 1


def test_without_digests_the_vector_goes_with_every_frame() -> None:
    relay = Relay(digests=False)
    relay.take(MARK, ticks(tick(2, 1)))
    assert relay.take(ticks(tick(3, 1)))["s1"][0] == MARK


def test_ticks_for_one_edge_go_there_at_once_and_are_filtered() -> None:
    relay = Relay()
    sent = relay.take(MARK, ticks(tick(2, 1), tick(3, 0), target="s1"))
    assert sent == {"s1": [MARK, Knowledge("p", "s1", "s1", 1, [tick(2, 1)], [(3, 3)])]}
    sent = relay.take(ticks(tick(2, 1), target="s2"))
    assert sent == {"s2": [MARK, Knowledge("p", "s2", "s2", 1, [], [(2, 2)])]}


def test_ticks_for_a_site_that_cannot_be_reached_are_noted_once() -> None:
    relay = Relay()
    relay.router.link_down(0, "s1")
    first = relay.router.frame(0, "p", ticks(tick(2, 1), mark=0))
    assert [type(each) for each in first] == [Note]
    assert relay.router.frame(0, "p", ticks(tick(3, 1), mark=0)) == []
    assert relay.router.counters.knowledge_dropped == 2


@planted("no-sufficiency")
def test_mutant_filters_without_knowing_enough() -> None:
    sent = Relay().take(MarkIs("p", 1, {"s1": TWO}), ticks(tick(2, 0)))
    assert sent["s1"][-1] == Knowledge("p", "s1", "", 1, [], [(2, 2)])


def test_event_that_cannot_be_read_is_sent_on_as_if_everybody_wanted_it() -> None:
    garbage = Datum(2, 1, b"garbage")
    sent = Relay().take(ticks(garbage, mark=0))
    assert sent["s1"][-1] == Knowledge("p", "s1", "", 0, [garbage])


class Edge:
    """s1 of the star."""

    def __init__(self) -> None:
        options = Options(lag_after_s=1.0)
        self.router = TreeRouter("s1", star(), options, DEFAULT_LIMITS, 1)
        self.router.link_up(0, "m1")

    def take(self, frame: LinkFrame, now: float = 0) -> list[Outcome]:
        return list(self.router.frame(now, "m1", frame))

    def arrive(self, mark: int, now: float = 0) -> Arrival:
        frame = Knowledge("p", "s1", "", mark, [], [(mark + 1, mark + 1)])
        return next(e for e in self.take(frame, now) if isinstance(e, Arrival))


def test_arrival_has_the_version_of_its_mark() -> None:
    edge = Edge()
    edge.router.time_passed(1)
    edge.take(MarkIs("p", 4, {"s1": ONE, "s2": TWO}))
    assert edge.arrive(4) == Arrival("p", ONE, [], [(5, 5)], [], 0, 0)


def test_arrival_with_an_unknown_mark_has_the_version_before_it() -> None:
    edge = Edge()
    edge.router.time_passed(1)
    edge.take(MarkIs("p", 4, {"s1": ONE}))
    assert edge.arrive(9).version == ONE
    assert edge.arrive(3).version == NOTHING
    assert edge.arrive(0).version == NOTHING


@planted("silence-without-vector")
def test_mutant_believes_silence_without_a_vector() -> None:
    edge = Edge()
    edge.router.time_passed(1)
    assert edge.arrive(0).version == ONE


def test_edge_repeats_its_interest_when_ticks_stay_behind() -> None:
    edge = Edge()
    interest_at_once(edge.router, 0, {"s": Filter.parse("a = 1")}, [])
    edge.router.time_passed(0.5)
    sent = sends(edge.take(Knowledge("p", "s1", "", 0, [], [(1, 1)]), now=5))
    wanted = [Conjuncts("a = 1", (0,))]
    assert sent == {"m1": [InterestState("n1", "s1", {"s1": ONE}, wanted, onward=True)]}


def test_own_ticks_arrive_with_the_own_version() -> None:
    edge = Edge()
    interest_at_once(edge.router, 0, {"s": Filter.parse("a = 1")}, [])
    [advance] = [e for e in edge.router.time_passed(1) if isinstance(e, VectorAdvance)]
    assert advance.vector == {"s1": ONE}
    edge.router.marked(1, 1, advance.vector)
    outcomes = edge.router.publish(1, Emission(1, [tick(2, 5)], head=2, time_ns=8))
    assert outcomes[0] == Arrival("s1", ONE, [tick(2, 5)], [], [], 2, 8)


def test_origin_is_told_of_a_vector_only_when_it_grew() -> None:
    edge = Edge()
    state = InterestState("s1", "n1", {"p": ONE, "s2": ONE}, [])
    assert VectorAdvance({"p": ONE, "s2": ONE}) in edge.take(state)
    assert edge.take(state) == []


def test_vector_found_in_the_log_is_not_told_again() -> None:
    edge = Edge()
    edge.router.marked(0, 7, {"p": TWO, "s2": ONE})
    assert edge.take(InterestState("s1", "n1", {"p": ONE, "s2": ONE}, [])) == []
    state = InterestState("s1", "n1", {"p": ONE, "s2": TWO}, [])
    assert edge.take(state) == [VectorAdvance({"p": TWO, "s2": TWO})]


def test_lone_broker_serves_itself() -> None:
    router = TreeRouter("a", Network({"a": ["a"]}), Options(), DEFAULT_LIMITS, 3)
    versions, _ = interest_at_once(router, 0, {"s": Filter.parse("a = 1")}, [])
    assert versions == {"s": Version(3, 1)}
    assert router.time_passed(1) == [VectorAdvance({"a": Version(3, 1)})]
    router.marked(1, 1, {"a": Version(3, 1)})
    arrival = Arrival("a", Version(3, 1), [tick(2, 1)], [], [])
    assert router.publish(1, Emission(1, [tick(2, 1)])) == [arrival]


def test_changes_are_gathered_and_propagated_when_due() -> None:
    edge = Edge()
    edge.router.time_passed(1)
    interest_at_once(edge.router, 2, {"s": Filter.parse("a = 1")}, [])
    interest_at_once(edge.router, 2.001, {"t": Filter.parse("b = 1")}, [])
    assert edge.router.next_deadline() == pytest.approx(2.01)
    sent = sends(edge.router.time_passed(2.02))
    assert len(sent["m1"]) == 1
    assert edge.router.next_deadline() is None
