"""What filters of clients take of a broker's memory: charged, bounded, and given back."""

from anabranch.core.filter_memory import FilterMemory
from anabranch.model.client_frames import (
    Advertises,
    Define,
    Defined,
    Drop,
    Dropped,
    Refused,
    Subscribe,
    Subscribed,
    Unsubscribe,
    Unsubscribed,
)
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from anabranch.model.normal.memory_cost import NAME_BYTES, FilterCost
from tests.catalog_parts import RISE, Machine

SMALL = "n > 1"
LARGE = " OR ".join(f"(n = {number} AND m > {number})" for number in range(20))


def cost_of(text: str) -> int:
    return Filter.parse(text).cost(text).alone_bytes


#: Room for one large filter and some small ones.
TIGHT = Limits(client_subscriptions_bytes_max=cost_of(LARGE) + 3 * cost_of(SMALL))


def used(machine: Machine) -> int:
    return machine.broker.filter_bytes


def test_a_name_counts_once_for_the_broker_and_once_for_each_client() -> None:
    memory, cost = FilterMemory(Limits()), FilterCost(100, ("a", "b"))
    for client in ("one", "one", "two"):
        memory.charge(client, cost)
    assert memory.used == 300 + 2 * NAME_BYTES
    assert memory.used_by("one") == 200 + 2 * NAME_BYTES
    assert memory.used_by("two") == 100 + 2 * NAME_BYTES
    for client in ("one", "two", "one"):
        memory.release(client, cost)
    assert memory.used == memory.used_by("one") == memory.used_by("two") == 0


def test_what_fits_exactly_is_taken_and_a_byte_more_is_not() -> None:
    memory = FilterMemory(Limits(client_subscriptions_bytes_max=100, subscriptions_bytes_max=150))
    assert memory.refusal("one", FilterCost(100)) == ""
    memory.charge("one", FilterCost(100))
    assert "(client_subscriptions_bytes_max)" in memory.refusal("one", FilterCost(1))
    assert memory.refusal("two", FilterCost(50)) == ""
    assert "(subscriptions_bytes_max)" in memory.refusal("two", FilterCost(51))
    assert memory.refusal("", FilterCost(50)) == ""


def test_a_client_beyond_its_quota_is_refused_and_has_room_again_when_it_unsubscribes() -> None:
    machine = Machine(limits=TIGHT)
    greedy, other = machine.connect("greedy"), machine.connect("other")
    machine.say(greedy, Subscribe(1, "one", LARGE, "durable"))
    machine.say(greedy, Subscribe(2, "two", LARGE, "durable"))
    machine.say(greedy, Subscribe(3, "three", SMALL, "reliable"))
    machine.say(other, Subscribe(1, "mine", LARGE, "reliable"))
    machine.wait(1.0)
    assert [each.request for each in machine.heard(greedy, Refused)] == [2]
    assert [each.request for each in machine.heard(greedy, Subscribed)] == [1, 3]
    assert len(machine.heard(other, Subscribed)) == 1
    machine.say(greedy, Unsubscribe(4, "one"))
    machine.wait(1.0)
    assert len(machine.heard(greedy, Unsubscribed)) == 1
    machine.say(greedy, Subscribe(5, "two", LARGE, "durable"))
    machine.wait(1.0)
    assert [each.request for each in machine.heard(greedy, Subscribed)] == [1, 3, 5]


def test_a_name_that_is_being_forgotten_is_no_way_round_the_quota() -> None:
    machine = Machine(limits=TIGHT)
    session = machine.connect("greedy")
    machine.say(session, Subscribe(1, "large", LARGE, "durable"))
    machine.say(session, Subscribe(2, "small", SMALL, "durable"))
    machine.wait(1.0)
    machine.tell_together(session, Unsubscribe(3, "small"), Subscribe(4, "small", LARGE, "durable"))
    machine.wait(1.0)
    assert [each.request for each in machine.heard(session, Subscribed)] == [1, 2]
    (refused,) = machine.heard(session, Refused)
    assert refused.request == 4
    assert "(client_subscriptions_bytes_max)" in refused.reason


def test_subscriptions_of_a_session_are_given_back_when_it_ends() -> None:
    machine = Machine()
    before = used(machine)
    session = machine.connect("one")
    machine.say(session, Subscribe(1, "r", LARGE, "reliable"))
    machine.say(session, Subscribe(2, "b", SMALL, "best-effort"))
    machine.say(session, Advertises([LARGE, SMALL]))
    machine.wait(1.0)
    assert used(machine) > before + cost_of(LARGE)
    machine.leave(session)
    machine.wait(1.0)
    assert used(machine) == before


def test_advertisements_replace_each_other_and_too_large_ones_cut_the_session() -> None:
    machine = Machine(limits=TIGHT)
    session = machine.connect("one")
    machine.say(session, Advertises([LARGE]))
    once = used(machine)
    machine.say(session, Advertises([LARGE]))
    assert used(machine) == once
    machine.say(session, Advertises([SMALL]))
    assert 0 < used(machine) < once
    assert machine.cuts == []
    machine.say(session, Advertises([LARGE.replace("m", f"m{each}") for each in range(4)]))
    assert "(client_subscriptions_bytes_max)" in str(machine.cuts)
    machine.leave(session)
    assert used(machine) == 0


def test_a_pattern_is_charged_once_with_its_join_point_and_given_back() -> None:
    machine = Machine()
    session = machine.connect("one")
    machine.say(session, Define(1, "p", RISE, is_new=True))
    charged = used(machine)
    machine.wait(1.0)
    assert machine.heard(session, Defined) == [Defined(1)]
    # The join point has subscribed meanwhile.
    assert used(machine) == charged > cost_of(SMALL)
    machine.say(session, Drop(2, "p"))
    machine.wait(5.0)
    assert len(machine.heard(session, Dropped)) == 1
    assert used(machine) == 0


def test_a_join_point_subscribes_although_its_client_has_no_room_left() -> None:
    measured = Machine()
    measured.say(measured.connect("one"), Define(1, "p", RISE, is_new=True))
    quota = used(measured)
    limits = Limits(client_subscriptions_bytes_max=quota, subscriptions_bytes_max=quota)
    machine = Machine(limits=limits)
    session = machine.connect("one")
    machine.say(session, Define(1, "p", RISE, is_new=True))
    machine.say(session, Subscribe(2, "s", SMALL, "reliable"))
    machine.wait(1.0)
    assert machine.heard(session, Defined) == [Defined(1)]
    assert [each.request for each in machine.heard(session, Refused)] == [2]


def test_what_is_on_disk_is_taken_beyond_the_quota_and_counts() -> None:
    machine = Machine()
    session = machine.connect("one")
    machine.say(session, Subscribe(1, "kept", LARGE, "durable"))
    machine.say(session, Define(2, "p", RISE, is_new=True))
    machine.wait(1.0)
    held = used(machine)
    tiny = Limits(client_subscriptions_bytes_max=1_000, subscriptions_bytes_max=1_000)
    again = machine.again(limits=tiny)
    again.wait(5.0)
    # The catalog has another text of the same filter.
    assert abs(used(again) - held) < held // 10
    assert again.errors() == []
    assert again.broker.join_points is not None
    assert list(again.broker.join_points.active) == ["p"]
    session = again.connect("one")
    again.say(session, Subscribe(1, "kept", LARGE, "durable", start="resume"))
    again.say(session, Subscribe(2, "more", SMALL, "reliable"))
    again.wait(1.0)
    assert [each.request for each in again.heard(session, Subscribed)] == [1]
    assert [each.request for each in again.heard(session, Refused)] == [2]
    again.say(session, Unsubscribe(3, "kept"))
    again.say(session, Drop(4, "p"))
    again.wait(5.0)
    assert used(again) == 0


def test_tens_of_thousands_of_small_subscriptions_of_one_client_fit_by_default() -> None:
    memory = FilterMemory(Limits())
    for number in range(20_000):
        text = f"symbol = 'S{number}' AND price > {number}.5"
        cost = Filter.parse(text).cost(text)
        assert memory.refusal("one", cost) == ""
        memory.charge("one", cost)


def test_what_a_filter_would_take_is_refused_before_anything_is_put() -> None:
    machine = Machine(limits=TIGHT)
    session = machine.connect("greedy")
    machine.say(session, Subscribe(1, "one", LARGE, "durable"))
    machine.wait(1.0)
    rows = dict(machine.catalog["subscriptions"])
    machine.say(session, Subscribe(2, "two", LARGE, "durable"))
    machine.wait(1.0)
    assert machine.catalog["subscriptions"] == rows
