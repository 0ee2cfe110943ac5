"""When a silent neighbour is suspected: soon where it is regular, later where it is not."""

import pytest

from anabranch.core.contract import CutLink
from anabranch.core.links import Links
from anabranch.core.options import Options
from anabranch.model.errors import RemoteError
from anabranch.model.event import INT_MAX
from anabranch.model.frames import PROTOCOL_VERSION, Hello

OPTIONS = Options(heartbeat_s=0.5, dead_after_s=6.0)
LEAST_S = 2.5 * OPTIONS.heartbeat_s


class Neighbour:
    """One link, and what is heard on it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.links = Links("a", ("b",), OPTIONS)
        self.greet()

    def greet(self, life: int = 7) -> None:
        self.links.link_up(self.now, "b")
        self.links.heard(self.now, "b")
        self.links.greet(self.now, "b", Hello(PROTOCOL_VERSION, "b", life))

    def beats(self, *pauses_s: float) -> None:
        for pause_s in pauses_s:
            self.now += pause_s
            self.links.heard(self.now, "b")

    def is_cut_after(self, silence_s: float) -> bool:
        return any(isinstance(e, CutLink) for e in self.links.time_passed(self.now + silence_s))


def test_an_unknown_neighbour_gets_the_benefit_of_the_doubt() -> None:
    assert Neighbour().links.silence_bound_s("b") == OPTIONS.dead_after_s


def test_a_regular_neighbour_is_suspected_soon() -> None:
    neighbour = Neighbour()
    neighbour.beats(*[0.5] * 100)
    assert neighbour.links.silence_bound_s("b") == pytest.approx(LEAST_S, rel=0.01)
    assert not neighbour.is_cut_after(LEAST_S * 0.9)
    assert neighbour.is_cut_after(LEAST_S * 1.1)


def test_an_irregular_neighbour_is_given_time() -> None:
    neighbour = Neighbour()
    neighbour.beats(*[0.2, 1.6] * 50)
    assert LEAST_S * 1.5 < neighbour.links.silence_bound_s("b") <= OPTIONS.dead_after_s


def test_much_traffic_is_no_reason_to_expect_more() -> None:
    neighbour = Neighbour()
    neighbour.beats(*[0.5] * 100, *[0.001] * 1_000)
    assert neighbour.links.silence_bound_s("b") == pytest.approx(LEAST_S, rel=0.01)


def test_wrong_suspicion_doubles_the_patience_and_time_takes_it_back() -> None:
    neighbour = Neighbour()
    neighbour.beats(*[0.5] * 100)
    assert neighbour.is_cut_after(2.0)
    neighbour.now += 2.1
    neighbour.links.link_down("b")
    neighbour.greet()
    assert neighbour.links.silence_bound_s("b") == pytest.approx(2 * LEAST_S, rel=0.01)
    neighbour.beats(*[0.5] * 200)
    assert neighbour.links.silence_bound_s("b") == pytest.approx(LEAST_S, rel=0.01)


def test_a_neighbour_that_really_died_teaches_nothing() -> None:
    neighbour = Neighbour()
    neighbour.beats(*[0.5] * 100)
    assert neighbour.is_cut_after(2.0)
    neighbour.links.link_down("b")
    neighbour.greet(life=8)
    assert neighbour.links.silence_bound_s("b") == pytest.approx(LEAST_S, rel=0.01)


def test_patience_has_an_end() -> None:
    neighbour = Neighbour()
    for _ in range(10):
        neighbour.is_cut_after(60.0)
        neighbour.links.link_down("b")
        neighbour.greet()
    assert neighbour.links.silence_bound_s("b") == OPTIONS.dead_after_s


@pytest.mark.parametrize("life", [INT_MAX, int((100.0 + OPTIONS.life_lead_s) * 1e9) + 1])
def test_life_that_leads_the_clock_is_refused_and_does_not_keep_the_neighbour_out(
    life: int,
) -> None:
    neighbour = Neighbour()
    neighbour.links.link_down("b")
    with pytest.raises(RemoteError, match="correct the wrong clock"):
        neighbour.greet(life)
    neighbour.links.link_down("b")
    neighbour.greet(8)
    assert neighbour.links.is_greeted("b")
