"""The overlay: choices among interchangeable brokers, and messages to any broker."""

import pytest

from anabranch.core.contract import Note, Send
from anabranch.core.routing.contract import CarriedMessage
from anabranch.core.routing.overlay import Overlay
from anabranch.model.errors import RemoteError
from anabranch.model.frames import Carry, Done
from anabranch.model.network import Network
from tests.routing_turmoil import mixed, two_levels

SITE = "n1"


def overlay(name: str = "p", *links: str) -> Overlay:
    made = Overlay(name, two_levels())
    for link in links:
        made.link_up(link)
    return made


def test_nobody_is_chosen_without_a_link() -> None:
    assert overlay().next_broker(SITE, "p") is None


def test_the_only_link_is_chosen_for_every_key() -> None:
    assert {overlay("p", "m2").next_broker(SITE, key) for key in "abcdefgh"} == {"m2"}


def test_keys_spread_over_a_site() -> None:
    assert {overlay("p", "m1", "m2").next_broker(SITE, key) for key in "abcdefgh"} == {"m1", "m2"}


def test_only_what_went_to_a_lost_broker_moves() -> None:
    both, one = overlay("p", "m1", "m2"), overlay("p", "m2")
    for key in "abcdefgh":
        if both.next_broker(SITE, key) == "m2":
            assert one.next_broker(SITE, key) == "m2"


def test_senders_with_the_same_links_choose_alike() -> None:
    one, other = overlay("p", "m1", "m2"), overlay("s3", "m1", "m2")
    assert one.designated(SITE) == other.designated(SITE)


def test_full_link_is_not_chosen_until_it_takes_again() -> None:
    made = overlay("p", "m1", "m2")
    first = made.next_broker(SITE, "x")
    assert first is not None
    made.link_full(first, True)
    assert made.next_broker(SITE, "x") not in (None, first)
    made.link_full(first, False)
    assert made.next_broker(SITE, "x") == first


def test_full_link_that_is_down_is_nothing() -> None:
    made = overlay("p")
    assert not made.link_full("m1", True)
    assert made.next_broker(SITE, "x") is None


def test_broker_of_the_next_site_hands_over_to_itself() -> None:
    made = Overlay("p", mixed())
    made.link_up("m2")
    assert made.next_broker("n1", "x") == "p"


def test_turns_go_through_all_brokers_of_a_site() -> None:
    made = overlay("p", "m1", "m2")
    assert {made.designated(SITE, turn) for turn in range(2)} == {"m1", "m2"}


def test_message_to_oneself_is_delivered() -> None:
    assert overlay().carry("p", Done(3)) == [CarriedMessage("p", Done(3))]


def test_message_takes_the_direct_link_where_there_is_one() -> None:
    assert overlay("p", "m1", "m2").carry("m2", Done(3))[0] == Send(
        "m2", Carry("p", "m2", 5, Done(3))
    )


def test_message_goes_towards_its_target() -> None:
    [effect] = overlay("p", "m1").carry("s1", Done(3))
    assert isinstance(effect, Send)
    assert effect.peer == "m1"


def test_message_is_passed_on_with_one_hop_less() -> None:
    frame = Carry("p", "s1", 7, Done(3))
    [effect] = overlay("m1", "k2").carried("p", frame)
    assert effect == Send("k2", Carry("p", "s1", 6, Done(3)))


def test_message_takes_a_detour_over_its_own_site() -> None:
    [effect] = overlay("m1", "m2").carried("p", Carry("p", "s1", 7, Done(3)))
    assert effect == Send("m2", Carry("p", "s1", 6, Done(3)))


def test_message_is_not_sent_back_where_it_came_from() -> None:
    [effect] = overlay("m1", "m2").carried("m2", Carry("p", "s1", 7, Done(3)))
    assert isinstance(effect, Note)


def test_message_that_took_too_many_hops_is_dropped_with_a_note() -> None:
    [effect] = overlay("m1", "k1", "k2").carried("p", Carry("p", "s1", 0, Done(3)))
    assert isinstance(effect, Note)
    assert "hop limit" in effect.text


def test_message_without_a_way_is_dropped_with_a_note() -> None:
    assert isinstance(overlay().carry("s1", Done(3))[0], Note)
    assert isinstance(overlay().carry("nowhere", Done(3))[0], Note)


@pytest.mark.parametrize("frame", [Carry("x", "s1", 3, Done(1)), Carry("p", "x", 3, Done(1))])
def test_message_of_or_for_an_unknown_broker_is_refused(frame: Carry) -> None:
    with pytest.raises(RemoteError, match="unknown"):
        overlay("m1", "p").carried("p", frame)


def test_three_brokers_get_about_a_third_of_the_keys_each() -> None:
    network = Network(
        {"e1": ["e1"], "mid": ["m1", "m2", "m3"], "e2": ["e2"]}, [("e1", "mid"), ("mid", "e2")]
    )
    overlay = Overlay("e1", network)
    for broker in ("m1", "m2", "m3"):
        overlay.link_up(broker)
    chosen = [overlay.next_broker("mid", f"p{number}") for number in range(900)]
    assert all(chosen.count(broker) > 250 for broker in ("m1", "m2", "m3"))
