"""Changes, states and questions at a relay, frame by frame.

The relay is m1 in site n1 of the star: p, s1 and s2 around it, m2 and m3 as its peers.
"""

from collections.abc import Iterable

import msgspec
import pytest

from anabranch.core.contract import Note, Send
from anabranch.core.options import Options
from anabranch.core.routing.contract import Arrival, Outcome
from anabranch.core.routing.tree.tree import TreeRouter
from anabranch.model.errors import RemoteError
from anabranch.model.frame_parts import Conjuncts
from anabranch.model.frames import (
    AskInterest,
    InterestChange,
    InterestState,
    Knowledge,
    LinkFrame,
    MarkIs,
    Ping,
)
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.version import NOTHING, Version
from anabranch.sim.mutants.catalog import planted
from tests.routing_turmoil import star

Sent = list[tuple[str, LinkFrame]]


def at(counter: int, life: int = 1) -> Version:
    return Version(life, counter)


def conjuncts(*texts: str) -> list[Conjuncts]:
    return [Conjuncts(text, (0,)) for text in texts]


def change(
    edge: str, counter: int, plus: str = "", minus: str = "", **constraint: int
) -> InterestChange:
    """A change of one edge, as its client site tells it unless there is another constraint."""
    known = constraint or {edge: counter - 1}
    return InterestChange(
        "n1",
        edge,
        {edge: at(counter)},
        conjuncts(plus) if plus else [],
        conjuncts(minus) if minus else [],
        {name: at(count) if count else NOTHING for name, count in known.items()},
    )


class Relay:
    """m1, linked with everybody."""

    def __init__(self, links: str = "m2 m3 p s1 s2") -> None:
        self.router = TreeRouter("m1", star(), Options(), DEFAULT_LIMITS, 1)
        self.now = 0.0
        for peer in links.split():
            self.router.link_up(0, peer)

    def take(self, peer: str, frame: LinkFrame) -> Sent:
        return sends(self.router.frame(self.now, peer, frame))

    def wait(self, seconds: float) -> Sent:
        self.now += seconds
        return sends(self.router.time_passed(self.now))

    def wants(self, direction: str) -> list[str]:
        presence = self.router._presences["n1"]
        return [str(each) for each in presence.interest.conjuncts(direction)]

    def versions(self) -> dict[str, Version]:
        return self.router.presences()[0].versions


def sends(outcomes: Iterable[Outcome]) -> Sent:
    return [(each.peer, each.frame) for each in outcomes if isinstance(each, Send)]


def told(sent: Sent) -> dict[str, InterestChange]:
    """Changes by who got them."""
    return {peer: frame for peer, frame in sent if isinstance(frame, InterestChange)}


def test_change_is_told_to_peers_as_it_is_and_to_other_sites_as_their_own() -> None:
    frame = change("s1", 1, "a = 1")
    got = told(Relay().take("s1", frame))
    assert sorted(got) == ["m2", "m3", "p", "s2"]
    assert got["m2"] == msgspec.structs.replace(frame, from_peer=True)
    assert got["p"] == msgspec.structs.replace(frame, site="p", source="n1")


def test_change_from_a_peer_is_applied_and_not_told_again() -> None:
    relay = Relay()
    frame = msgspec.structs.replace(change("s1", 1, "a = 1"), from_peer=True)
    assert relay.take("m2", frame) == []
    assert relay.wants("s1") == ["a = 1"]
    assert relay.versions() == {"s1": at(1)}


def test_untouched_change_keeps_its_constraint() -> None:
    relay = Relay()
    relay.take("s2", change("s2", 1, "b = 1"))
    assert told(relay.take("s1", change("s1", 1, "a = 1")))["p"].constraint == {"s1": NOTHING}


def test_aggregated_change_is_told_with_all_that_was_known_before() -> None:
    relay = Relay()
    relay.take("s2", change("s2", 1, "a >= 0"))
    got = told(relay.take("s1", change("s1", 1, "a = 1")))
    assert got["p"].plus == []
    assert got["p"].advance == {"s1": at(1)}
    assert got["p"].constraint == {"s1": NOTHING, "s2": at(1)}
    assert got["s2"].constraint == {"s1": NOTHING}


def test_removal_is_told_with_all_that_was_known_before() -> None:
    relay = Relay()
    relay.take("s1", change("s1", 1, "a = 1"))
    got = told(relay.take("s1", change("s1", 2, minus="a = 1")))
    assert got["p"].minus == conjuncts("a = 1")
    assert got["p"].constraint == {"s1": at(1), "s2": NOTHING}


def test_removal_that_another_site_hides_counts_as_aggregation() -> None:
    relay = Relay()
    relay.take("s1", change("s1", 1, "a = 1"))
    relay.take("s2", change("s2", 1, "a = 1"))
    got = told(relay.take("s1", change("s1", 2, minus="a = 1")))
    assert got["p"].minus == []
    assert got["p"].constraint == {"s1": at(1), "s2": at(1)}


@pytest.mark.parametrize(("known", "counter"), [(1, 3), (3, 5)])
def test_change_against_another_state_is_refused(known: int, counter: int) -> None:
    relay = Relay()
    relay.take("s1", InterestState("n1", "s1", {"s1": at(known)}, []))
    relay.take("s1", change("s1", counter, "a = 1", s1=2))
    assert relay.wants("s1") == []
    assert relay.versions() == {"s1": at(known)}


def test_refused_change_leads_to_a_question_that_says_what_was_seen() -> None:
    relay = Relay()
    relay.take("s1", change("s1", 1, "a = 1"))
    assert relay.take("s1", change("s1", 5, "b = 1")) == []
    assert relay.wait(1) == [("s1", AskInterest("s1", "n1", {"s1": at(1)}, {"s1": at(5)}))]


def test_repeated_change_is_ignored() -> None:
    relay = Relay()
    relay.take("s1", change("s1", 1, "a = 1"))
    assert relay.take("s1", change("s1", 1, "a = 1")) == []
    assert relay.wait(1) == []


def test_state_replaces_all_that_was_known_of_a_site() -> None:
    relay = Relay()
    relay.take("s1", change("s1", 1, "a = 1"))
    sent = relay.take("s1", InterestState("n1", "s1", {"s1": at(4)}, conjuncts("b = 1")))
    assert relay.wants("s1") == ["b = 1"]
    got = told(sent)["p"]
    assert (got.advance, got.constraint) == ({"s1": at(4)}, {"s1": at(1), "s2": NOTHING})
    assert (got.plus, got.minus) == (conjuncts("b = 1"), conjuncts("a = 1"))
    states = [(peer, frame) for peer, frame in sent if isinstance(frame, InterestState)]
    assert [(peer, frame.from_peer) for peer, frame in states] == [("m2", True), ("m3", True)]


def test_state_of_a_new_life_replaces_the_old_one() -> None:
    relay = Relay()
    relay.take("s1", change("s1", 1, "a = 1"))
    relay.take("s1", InterestState("n1", "s1", {"s1": at(1, life=2)}, []))
    assert relay.wants("s1") == []
    assert relay.versions() == {"s1": at(1, life=2)}


@pytest.mark.parametrize("version", [at(1), at(2), at(9, life=0)])
def test_state_that_is_no_news_changes_nothing(version: Version) -> None:
    relay = Relay()
    relay.take("s1", InterestState("n1", "s1", {"s1": at(2)}, conjuncts("a = 1")))
    assert relay.take("s1", InterestState("n1", "s1", {"s1": version}, [])) == []
    assert relay.wants("s1") == ["a = 1"]


def test_state_that_must_go_onward_does_even_if_it_is_no_news() -> None:
    relay = Relay()
    state = InterestState("n1", "s1", {"s1": at(2)}, conjuncts("a = 1"))
    relay.take("s1", state)
    sent = relay.take("s1", msgspec.structs.replace(state, onward=True))
    assert sent == [
        ("p", InterestState("p", "n1", {"s1": at(2)}, conjuncts("a = 1"), onward=True)),
        ("s2", InterestState("s2", "n1", {"s1": at(2)}, conjuncts("a = 1"), onward=True)),
    ]


def test_frame_repeated_a_hundred_times_causes_answers_once() -> None:
    relay = Relay()
    state = InterestState("n1", "s1", {"s1": at(2)}, conjuncts("a = 1"), onward=True)
    question = AskInterest("n1", "s2")
    sent = [relay.take("s1", state) for _ in range(100)]
    assert sum(map(len, sent)) <= 6
    assert sum(len(relay.take("s2", question)) for _ in range(100)) == 1


def test_question_is_answered_with_what_the_asker_does_not_have() -> None:
    relay = Relay()
    relay.take("s1", change("s1", 1, "a = 1"))
    relay.take("p", change("p", 1, "b = 1"))
    [(peer, answer)] = relay.take("s2", AskInterest("n1", "s2"))
    assert peer == "s2"
    assert answer == InterestState(
        "s2", "n1", {"p": at(1), "s1": at(1)}, conjuncts("a = 1", "b = 1")
    )


def test_question_without_news_for_the_asker_is_not_answered() -> None:
    relay = Relay()
    relay.take("s1", change("s1", 1, "a = 1"))
    assert relay.take("s2", AskInterest("n1", "s2", {"s1": at(1)})) == []


def test_question_shows_a_lag_to_whoever_is_asked() -> None:
    relay = Relay()
    relay.take("s2", AskInterest("n1", "s2", {"s1": at(3)}))
    assert relay.wait(1) == [("s1", AskInterest("s1", "n1", {}, {"s1": at(3)}))]


def test_mark_shows_a_lag() -> None:
    relay = Relay()
    relay.take("p", MarkIs("p", 4, {"s1": at(3), "s2": NOTHING}))
    assert relay.wait(1) == [("s1", AskInterest("s1", "n1", {}, {"s1": at(3)}))]


def test_every_new_link_is_asked() -> None:
    relay = Relay(links="")
    assert sends(relay.router.link_up(0, "s1")) == [("s1", AskInterest("s1", "n1"))]
    assert sends(relay.router.link_up(0, "m2")) == []


def test_link_that_takes_again_is_asked_again() -> None:
    relay = Relay()
    assert sends(relay.router.link_full(0, "s1", True)) == []
    assert sends(relay.router.link_full(0, "s1", False)) == [("s1", AskInterest("s1", "n1"))]


@pytest.mark.parametrize("name", ["constraint-at-least", "no-constraint"])
def test_mutants_apply_what_must_be_refused(name: str) -> None:
    with planted(name):
        relay = Relay()
        relay.take("s1", change("s1", 3, "a = 1", s1=0))
        relay.take("s1", change("s1", 5, "b = 1", s1=1))
        assert relay.wants("s1") == ["a = 1", "b = 1"]


@planted("minus-ignored-aggregation")
def test_mutant_forgets_the_constraint_of_an_aggregation() -> None:
    relay = Relay()
    relay.take("s2", change("s2", 1, "a >= 0"))
    assert told(relay.take("s1", change("s1", 1, "a = 1")))["p"].constraint == {"s1": NOTHING}


@planted("state-keeps-old")
def test_mutant_keeps_what_a_state_replaces() -> None:
    relay = Relay()
    relay.take("s1", change("s1", 1, "a = 1"))
    relay.take("s1", InterestState("n1", "s1", {"s1": at(1, life=2)}, []))
    assert relay.wants("s1") == ["a = 1"]


@pytest.mark.parametrize(
    ("peer", "frame"),
    [
        ("s1", change("s2", 1)),
        ("s1", change("nobody", 1)),
        ("s1", msgspec.structs.replace(change("s1", 1), site="s2")),
        ("s1", msgspec.structs.replace(change("s1", 1), from_peer=True)),
        ("m2", change("s1", 1)),
        ("s1", msgspec.structs.replace(change("s1", 1), advance={})),
        ("s1", msgspec.structs.replace(change("s1", 1), constraint={})),
        ("s1", change("s1", 2, s1=1, s2=1)),
        ("s1", change("s1", 1, "a = ")),
        ("s1", change("s1", 1, minus="nothing AND")),
        ("s1", InterestState("n1", "s1", {"s1": at(1)}, [Conjuncts("a = 1", (3,))])),
        ("s1", InterestState("n1", "s1", {"unknown": at(1)}, [])),
        ("s1", AskInterest("n1", "s1", {"s1": at(1)})),
        ("s1", AskInterest("n1", "s2")),
        ("p", MarkIs("p", 3, {"unknown": at(1)})),
        ("p", MarkIs("m2", 3, {})),
        ("p", MarkIs("p", 0, {})),
        ("p", Ping()),
    ],
)
def test_frame_that_cannot_be_is_refused_and_changes_nothing(peer: str, frame: LinkFrame) -> None:
    relay = Relay()
    with pytest.raises(RemoteError):
        relay.take(peer, frame)
    assert relay.versions() == {}
    assert relay.wait(5) == []


def test_version_of_the_own_interest_that_was_never_given_is_not_believed() -> None:
    router = TreeRouter("s1", star(), Options(), DEFAULT_LIMITS, 5)
    router.link_up(0, "m1")
    router.frame(0, "m1", MarkIs("p", 3, {"s1": at(99, life=4)}))
    (note,) = router.frame(0, "m1", MarkIs("p", 4, {"s1": at(1, life=5)}))
    assert isinstance(note, Note)
    assert "the next one is" in note.text
    outcomes = router.frame(0, "m1", Knowledge("p", "s1", "", 4, [], [(4, 4)]))
    (arrival,) = [each for each in outcomes if isinstance(each, Arrival)]
    assert arrival.version == at(99, life=4)
