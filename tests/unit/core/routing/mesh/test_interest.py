"""Advertisements and interest: who is told what, and what an origin may keep from an edge."""

import pytest
from msgspec.structs import replace

from anabranch.core.contract import Note, Send
from anabranch.core.routing.interest_clock import conjuncts_of
from anabranch.core.routing.mesh.bindings import Bindings
from anabranch.core.routing.mesh.mesh import MeshRouter
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from anabranch.model.mesh_frames import Advertise, Advertised, Bind, Binding, Bound, Editions
from anabranch.model.version import Version
from tests.mesh_parts import QUICK, Mesh, pairs

RING = pairs("ab bc cd da")


def test_interest_goes_only_where_something_is_advertised_that_it_meets() -> None:
    mesh = Mesh(RING)
    mesh.advertise("a", "price > 10")
    mesh.advertise("b", "price < 5")
    mesh.run()
    mesh.subscribe("c", wanted="price > 20")
    mesh.run()
    assert len(mesh.bound("a", "c")) == 1
    assert mesh.bound("b", "c") == set()
    assert mesh.bound("d", "c") == set()


def test_every_origin_hears_of_every_version() -> None:
    mesh = Mesh(RING)
    mesh.run()
    mesh.subscribe("c", wanted="price > 20")
    mesh.run()
    clock = mesh.routers["c"].clock
    assert clock is not None
    for origin in "abd":
        assert mesh.routers[origin].origin_interest.known("c")[0] == clock.propagated


def test_a_new_advertisement_attracts_interest_that_is_known_already() -> None:
    mesh = Mesh(RING)
    mesh.subscribe("c", wanted="price > 20")
    mesh.run()
    assert mesh.bound("a", "c") == set()
    mesh.advertise("a", "price > 10")
    mesh.run()
    assert len(mesh.bound("a", "c")) == 1


def test_a_withdrawn_advertisement_takes_interest_with_it() -> None:
    mesh = Mesh(RING)
    mesh.advertise("a", "price > 10")
    mesh.subscribe("c", wanted="price > 20")
    mesh.run()
    mesh.advertise("a", removed=["price > 10"])
    mesh.run()
    assert mesh.bound("a", "c") == set()


def test_events_under_a_new_advertisement_reach_edges_that_have_not_read_it() -> None:
    mesh = Mesh(RING)
    mesh.subscribe("c", wanted="price > 20")
    mesh.run()
    mesh.advertise("a", "price > 10")
    tick = mesh.publish("a", price=30)
    mesh.run()
    assert tick in mesh.got("c", "a")
    later = mesh.publish("a", price=15)
    mesh.run()
    assert later not in mesh.got("c", "a")
    assert later in mesh.told("c", "a")


def test_events_of_before_a_withdrawal_are_not_filtered_after_it() -> None:
    mesh = Mesh(RING)
    mesh.advertise("a", "price > 10")
    mesh.subscribe("c", wanted="price > 20")
    mesh.run()
    before = mesh.ticks["a"]
    mesh.advertise("a", "size > 1", removed=["price > 10"])
    mesh.run()
    interest, edition = mesh.routers["a"].origin_interest, mesh.routers["a"].advertisements.edition
    mark = mesh.vectors["a"]
    assert not interest.may_filter("c", mark, before, edition)
    assert interest.may_filter("c", mark, before + 1, edition)


def test_covered_interest_is_not_told() -> None:
    mesh = Mesh(RING)
    mesh.advertise("a", "TRUE")
    mesh.subscribe("c", wide="price > 20", narrow="price > 30")
    mesh.run()
    assert len(mesh.bound("a", "c")) == 1


def test_ended_interest_is_taken_back_everywhere() -> None:
    mesh = Mesh(RING)
    mesh.advertise("a", "TRUE")
    mesh.subscribe("c", one="price > 20", two="size > 1")
    mesh.run()
    mesh.unsubscribe("c", "one", "two")
    mesh.run()
    assert mesh.bound("a", "c") == set()


def test_interest_that_was_lost_on_the_way_is_told_again() -> None:
    mesh = Mesh(pairs("ab bc"))
    mesh.advertise("a", "TRUE")
    mesh.run()
    mesh.subscribe("c", wanted="price > 20")
    mesh.queues["c", "b"].clear()
    mesh.subscribe("c", more="size > 1")
    mesh.run(3.0)
    assert len(mesh.bound("a", "c")) == 2
    bindings = mesh.routers["c"].bindings
    assert bindings is not None
    assert bindings.is_settled()


def test_an_origin_that_is_gone_is_told_more_and_more_seldom_and_at_once_when_it_is_back() -> None:
    mesh = Mesh(pairs("ab bc cd"))
    mesh.advertise("a", "price > 10")
    mesh.subscribe("d", wanted="price > 20")
    mesh.run(2.0)
    mesh.down("a", "b")
    mesh.run(1.0)
    assert mesh.routers["d"].trees.next_hop("a") == "c"
    mesh.subscribe("d", more="price > 15")
    before = mesh.routers["d"].counters.binds_sent
    mesh.run(3_600.0)
    # After 0.2 s, 0.4 s and so on up to 205 s.
    assert 10 < mesh.routers["d"].counters.binds_sent - before < 40
    known = mesh.bound("a", "d")
    before = mesh.routers["d"].counters.binds_sent
    mesh.up("a", "b")
    mesh.run(0.5)
    assert mesh.bound("a", "d") != known
    assert mesh.routers["d"].counters.binds_sent - before <= 2


def bindings_of(mesh: Mesh, edge: str) -> Bindings:
    found = mesh.routers[edge].bindings
    assert found is not None
    return found


def bypassed(mesh: Mesh, *links: str) -> None:
    """A relay `x` between `r` and the origin `o` is down for long; links come back in this order,
    with `e`'s interest changed meanwhile."""
    mesh.advertise("o", "price > 0")
    mesh.subscribe("e", old="price > 0 AND symbol = 'old'")
    mesh.run(1.0)
    for pair in ("rx", "xo"):
        mesh.down(*pair)
    mesh.run(1.0)
    mesh.subscribe("e", new="price > 0 AND symbol = 'new'")
    mesh.run(600.0)
    assert len(mesh.bound("o", "e")) == 1
    mesh.start("x")
    for link in links:
        mesh.up(*link)
        mesh.run(0.05)


@pytest.mark.parametrize("links", [("rx", "xo"), ("xo", "rx")])
def test_interest_is_known_soon_after_a_relay_on_the_way_is_back(links: tuple[str, ...]) -> None:
    mesh = Mesh(pairs("er rx xo"), relays="rx")
    bypassed(mesh, *links)
    mesh.run(1.0)
    assert len(mesh.bound("o", "e")) == 2


def test_an_origin_that_lacks_something_is_told_everything_however_often_that_was_in_vain() -> None:
    mesh = Mesh(pairs("ab bc"))
    mesh.advertise("a", "price > 0")
    mesh.run(1.0)
    mesh.subscribe("c", lost="price > 0 AND symbol = 'lost'")
    mesh.queues["c", "b"].clear()
    sent = bindings_of(mesh, "c")._sent["a"]
    sent.attempts, sent.due = 10, mesh.now + 200.0
    mesh.subscribe("c", more="price > 0 AND symbol = 'more'")
    mesh.run(0.01)
    assert len(mesh.bound("a", "c")) == 2


def test_interest_that_changes_faster_than_it_is_answered_is_not_told_again_for_that() -> None:
    mesh = Mesh(pairs("ab bc"))
    mesh.advertise("a", "price > 0")
    mesh.run(1.0)
    before = mesh.routers["c"].counters.binds_sent
    for number in range(100):
        mesh.subscribe("c", **{f"s{number}": f"price > 0 AND symbol = '{number}'"})
        # One frame goes on, and 0.02 s pass: ten changes within the first timeout.
        mesh.step()
        mesh.now += 0.02
        for name, router in mesh.routers.items():
            mesh.do(name, router.time_passed(mesh.now))
    mesh.run(1.0)
    assert len(mesh.bound("a", "c")) == 100
    assert mesh.routers["c"].counters.binds_sent - before <= 115


def test_an_origin_whose_stream_comes_is_not_forgotten_for_long() -> None:
    mesh = Mesh(pairs("ab bc"))
    mesh.advertise("a", "price > 0")
    mesh.subscribe("c", wanted="price > 10")
    mesh.run(1.0)
    edge = bindings_of(mesh, "c")
    sent = edge._sent["a"]
    sent.attempts, sent.due = 10, mesh.now + 200.0
    mesh.publish("a", price=20)
    mesh.run(0.01)
    assert sent.due is not None
    assert sent.due - mesh.now <= 8 * QUICK.lag_after_s
    assert edge.next_deadline() == sent.due
    mesh.run(2.0)
    assert sent.due is None


def test_a_restarted_origin_is_told_everything_and_sends_everything_until_then() -> None:
    mesh = Mesh(RING)
    mesh.advertise("a", "TRUE")
    mesh.subscribe("c", wanted="price > 20")
    mesh.run()
    mesh.restart("a")
    router = mesh.routers["a"]
    router.marked(mesh.now, 1, {"c": Version(1, 1)})
    mesh.advertise("a", "TRUE")
    assert not router.origin_interest.may_filter("c", 1, 5, router.advertisements.edition)
    mesh.run(3.0)
    assert router.origin_interest.may_filter("c", 1, 5, router.advertisements.edition)


def test_without_advertisements_all_interest_goes_everywhere() -> None:
    mesh = Mesh(RING, replace(QUICK, advertisements=False))
    mesh.subscribe("c", wanted="price > 20")
    mesh.run()
    assert [len(mesh.bound(origin, "c")) for origin in "abd"] == [1, 1, 1]


def test_one_frame_goes_to_each_next_hop_and_is_split_where_trees_part() -> None:
    mesh = Mesh(pairs("ab bc bd"))
    for origin in "acd":
        mesh.advertise(origin, "TRUE")
    mesh.run()
    before = {name: r.counters.binds_sent for name, r in mesh.routers.items()}
    mesh.subscribe("a", wanted="price > 20")
    mesh.run(0.1)
    sent = {name: r.counters.binds_sent - before[name] for name, r in mesh.routers.items()}
    assert sent == {"a": 1, "b": 2, "c": 0, "d": 0}


def test_more_advertisements_than_are_told_are_told_as_everything() -> None:
    mesh = Mesh(RING, replace(QUICK, advertisements_max=10))
    mesh.advertise("a", *(f"price = {n}" for n in range(11)))
    mesh.run()
    sent = mesh.routers["c"].advertisements.tables["a"].entries
    assert [entry.advertised.text for entry in sent.values()] == ["TRUE"]


def test_ten_thousand_overlapping_advertisements_are_one_edition_and_few_trees() -> None:
    mesh = Mesh(RING)
    mesh.subscribe("c", wanted="price > 20")
    mesh.run()
    mesh.advertise("a", *(f"price > {n}" for n in range(10_000)))
    mesh.run()
    assert len(mesh.routers["c"].advertisements.tables["a"].entries) == 1
    assert len(mesh.bound("a", "c")) == 1
    trees = [tree for tree in mesh.routers["c"].trees.positions() if tree.origin == "a"]
    assert len(trees) <= 1 + QUICK.trees_max


def test_a_change_beyond_the_next_one_is_asked_for_and_a_repeated_one_is_dropped() -> None:
    mesh = Mesh(RING)
    mesh.run()
    router = mesh.routers["c"]
    edition = router.advertisements.tables["a"].edition
    late = Advertise("a", Version(edition.life, edition.counter + 2), [], [])
    sent = router.frame(mesh.now, "b", late)
    assert [type(outcome.frame) for outcome in sent] == [Editions]  # type: ignore[union-attr]
    assert router.frame(mesh.now, "b", Advertise("a", edition, [], [])) == []


def test_two_advertisements_with_one_number_are_the_later_one() -> None:
    mesh = Mesh(RING)
    mesh.run()
    router = mesh.routers["c"]
    edition = router.advertisements.tables["a"].edition
    twice = [Advertised(7, "price > 1", 0), Advertised(7, "price > 2", 0)]
    change = Advertise("a", Version(edition.life, edition.counter + 1), twice, [])
    router.frame(mesh.now, "b", change)
    entries = router.advertisements.tables["a"].entries
    assert [entry.advertised.text for entry in entries.values()] == ["price > 2"]


def test_a_change_against_another_state_is_refused_and_told_whole() -> None:
    mesh = Mesh(pairs("ab"))
    mesh.advertise("a", "TRUE")
    mesh.run()
    mesh.subscribe("b", one="price > 20")
    assert isinstance(mesh.queues["b", "a"][-1], Bind)
    mesh.queues["b", "a"].clear()
    mesh.subscribe("b", two="size > 1")
    mesh.run(0.05)
    assert len(mesh.bound("a", "b")) == 2


def test_a_router_of_a_relay_has_no_interest_of_its_own() -> None:
    mesh = Mesh(pairs("ar rb"), relays=["r"])
    router: MeshRouter = mesh.routers["r"]
    assert router.clock is None
    mesh.subscribe("b", wanted="price > 20")
    mesh.run()
    assert router.trees.next_hop("a") == "a"


def test_interest_that_ends_while_it_is_covered_is_taken_back() -> None:
    mesh = Mesh(RING)
    mesh.advertise("a", "TRUE")
    mesh.subscribe("c", one="price = 1", two="price = 2")
    mesh.run()
    mesh.subscribe("c", wide="TRUE")
    mesh.run()
    assert len(mesh.bound("a", "c")) == 1
    mesh.unsubscribe("c", "one", "two")
    mesh.unsubscribe("c", "wide")
    mesh.run()
    assert mesh.bound("a", "c") == set()


def test_a_change_that_an_origin_was_not_told_of_is_in_the_next_one() -> None:
    mesh = Mesh(pairs("ab"))
    mesh.advertise("a", "TRUE")
    mesh.run()
    mesh.subscribe("b", one="price = 1")
    mesh.queues["b", "a"].clear()
    mesh.down("a", "b")
    # The answer is waited for in vain, and there is no way: what changes now is not sent.
    mesh.run(3.0)
    mesh.subscribe("b", two="price = 2")
    mesh.run(3.0)
    mesh.up("a", "b")
    mesh.subscribe("b", three="price = 3")
    mesh.run(3.0)
    assert len(mesh.bound("a", "b")) == 3


def test_a_filter_whose_own_text_is_too_long_is_told_as_everything() -> None:
    limits = Limits(filter_bytes_max=200)
    text = " AND ".join(f"a{n} = 1e9" for n in range(14))
    filter = Filter.parse(text, limits)
    assert len(str(filter)) > 200
    assert [str(each) for each in conjuncts_of(filter, limits)] == ["TRUE"]


def test_a_bad_text_of_a_far_edge_costs_no_neighbour_its_link() -> None:
    mesh = Mesh(pairs("ab bc"))
    mesh.run()
    edition = mesh.routers["a"].advertisements.edition
    binding = Binding("a", edition, Version(0, 0), Version(0, 0), True)
    bad = Bind("c", Version(1, 9), [binding], [Bound("price >", [0], [0])], [], 3)
    found = mesh.routers["a"].frame(mesh.now, "b", bad)
    assert [type(outcome) for outcome in found] == [Note]


def test_a_question_for_one_table_is_answered_with_that_one() -> None:
    mesh = Mesh(RING)
    mesh.run()
    question = Editions({"a": Version(0, 0)}, is_question=True)
    sent = mesh.routers["c"].frame(mesh.now, "b", question)
    frames = [outcome.frame for outcome in sent if isinstance(outcome, Send)]
    assert [frame.origin for frame in frames if isinstance(frame, Advertise)] == ["a"]
    assert len(frames) == 1
