"""The numbers of requests grow over all lives of an edge, however many one life needs."""

import pytest

from anabranch.core.contract import Recovered
from anabranch.core.edge.cursors import recovered_run
from anabranch.core.edge.state import PendingRequests
from anabranch.core.edge.subscriptions import EdgeSubscription
from anabranch.core.part_requests import CarryTo
from anabranch.model.filter import Filter
from anabranch.model.frames import Find
from tests.edge_parts import Rig


def test_a_run_that_nears_its_end_takes_the_next_one_before_it_needs_it() -> None:
    requests = PendingRequests(3, 1.0)
    assert requests.next_run() == 0
    requests.last_number += (1 << 31) - 1
    assert requests.next_run() == 0
    requests.last_number += 1
    assert (requests.next_run(), requests.next_run()) == (4, 0)
    requests.last_number += 1 << 31
    assert requests.next_number() == (4 << 32) + 1
    assert requests.next_run() == 0


def test_a_run_that_is_taken_is_on_disk_and_the_next_life_has_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    monkeypatch.setattr(PendingRequests, "next_run", lambda _: 7)
    rig.wait(1.0)
    assert rig.catalog["edge"]["run"] == b"7"
    assert recovered_run(Recovered(rig.crash().catalog), 100.0) == 9


def test_each_request_is_repeated_in_its_own_turn_and_closed_ones_are_not() -> None:
    requests = PendingRequests(1, 1.0)
    requests.open(0.0)
    subject = EdgeSubscription("s", "s", "c", Filter.parse("TRUE"), quality="reliable", number=1)
    for position in range(1_000):
        requests.send(position / 1_000, requests.next_number(), "b", Find(position, "s"), subject)
    for number in range(requests.last_number - 998, requests.last_number + 1, 2):
        requests.close(number)
    assert requests.next_repeat_at == 1.0
    assert requests.repeat(0.999) == []
    for position in range(0, 1_000, 2):
        again = requests.repeat(1.0 + position / 1_000)
        assert [ask.content for ask in again if isinstance(ask, CarryTo)] == [Find(position, "s")]
    # Each pause is twice the one before.
    assert requests.repeat(2.999) == []
    assert len(requests.repeat(4.0)) == 500


def test_what_is_put_off_waits_and_what_was_put_off_often_does_not_pile_up() -> None:
    requests = PendingRequests(1, 1.0)
    requests.open(0.0)
    subject = EdgeSubscription("s", "s", "c", Filter.parse("TRUE"), quality="reliable", number=1)
    number = requests.next_number()
    requests.send(0.0, number, "b", Find(number, "s"), subject)
    for step in range(10_000):
        requests.postpone(step / 10_000, number)
    assert len(requests._due) < 200
    assert requests.repeat(1.5) == []
    assert len(requests.repeat(2.0)) == 1
