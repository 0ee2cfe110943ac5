"""What is too much to be told, or to be known: it counts as everything, says so, and ends."""

import pytest
from msgspec.structs import replace

from anabranch.core.routing.mesh import advertisements
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.mesh_frames import Bind
from anabranch.model.normal.conjunction import EVERY_EVENT
from tests.mesh_parts import QUICK, Mesh, pairs

PAIR = pairs("ab")
SMALL = replace(DEFAULT_LIMITS, frame_bytes_max=6_000)


def ranges(first: int, last: int) -> dict[str, str]:
    return {f"s{n}": f"price > {10 * n} AND price < {10 * n + 5}" for n in range(first, last)}


def settled(mesh: Mesh, name: str) -> bool:
    bindings = mesh.routers[name].bindings
    return bindings is not None and bindings.is_settled()


def test_too_many_advertisements_are_noted_and_counted_once_and_so_is_the_end() -> None:
    mesh = Mesh(PAIR, replace(QUICK, advertisements_max=2))
    texts = [f"price = {n}" for n in range(4)]
    mesh.advertise("a", *texts)
    mesh.advertise("a", "price = 9")
    assert mesh.routers["a"].counters.advertisements_coarse == 1
    assert len(mesh.notes("a", "warning")) == 1
    assert "advertisements_max" in mesh.notes("a", "warning")[0]
    assert mesh.notes("a", "info") == []
    mesh.advertise("a", removed=texts)
    assert len(mesh.notes("a", "info")) == 1
    assert mesh.routers["a"].counters.advertisements_coarse == 1
    mesh.run()
    entries = mesh.routers["b"].advertisements.tables["a"].entries.values()
    assert [entry.advertised.text for entry in entries] == ["price = 9"]


def test_too_many_conjunctions_are_told_as_everything_and_one_by_one_when_some_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(advertisements, "CONJUNCTIONS_MAX", 45)
    mesh = Mesh(PAIR)
    per_text = 10
    texts = [
        " OR ".join(f"a > {1_000 * n + m} AND b < {m}" for m in range(per_text)) for n in range(5)
    ]
    mesh.advertise("a", *texts[:-1])
    assert mesh.routers["a"].counters.advertisements_coarse == 0
    mesh.advertise("a", texts[-1])
    assert mesh.routers["a"].counters.advertisements_coarse == 1
    assert f"{len(texts) * per_text} conjunctions" in mesh.notes("a", "warning")[0]
    mesh.run()
    entries = mesh.routers["b"].advertisements.tables["a"].entries.values()
    assert [entry.advertised.text for entry in entries] == ["TRUE"]
    mesh.advertise("a", removed=texts[1:])
    mesh.run()
    entries = mesh.routers["b"].advertisements.tables["a"].entries.values()
    assert [len(entry.conjunctions) for entry in entries] == [per_text]


def test_routing_without_advertisements_is_nothing_to_note() -> None:
    mesh = Mesh(PAIR, replace(QUICK, advertisements=False))
    mesh.advertise("a", *(f"price = {n}" for n in range(4)))
    mesh.run()
    assert mesh.notes("a", "warning") == mesh.notes("a", "info") == []


def test_too_much_interest_is_noted_and_counted_once_and_so_is_the_end() -> None:
    mesh = Mesh(PAIR, limits=SMALL)
    mesh.advertise("a", "TRUE")
    mesh.run()
    mesh.subscribe("b", **ranges(0, 100))
    mesh.run()
    assert mesh.bound("a", "b") == {str(EVERY_EVENT)}
    mesh.subscribe("b", **ranges(100, 102))
    mesh.run()
    assert mesh.routers["b"].counters.bindings_coarse == 1
    assert len(mesh.notes("b", "warning")) == 1
    assert "'a'" in mesh.notes("b", "warning")[0]
    mesh.unsubscribe("b", *ranges(2, 100))
    mesh.run()
    assert len(mesh.bound("a", "b")) == 4
    assert len(mesh.notes("b", "info")) == 1
    assert settled(mesh, "b")


def test_while_interest_is_too_much_its_changes_are_not_told_but_their_versions_are() -> None:
    mesh = Mesh(PAIR, limits=SMALL)
    mesh.advertise("a", "TRUE")
    mesh.subscribe("b", **ranges(0, 100))
    mesh.run()
    mesh.subscribe("b", **ranges(100, 101))
    frames = [frame for frame in mesh.queues["b", "a"] if isinstance(frame, Bind)]
    assert [(frame.plus, frame.bindings[0].is_whole) for frame in frames] == [([], False)]
    mesh.run()
    clock = mesh.routers["b"].clock
    assert clock is not None
    assert mesh.routers["a"].origin_interest.known("b")[0] == clock.propagated
    tick = mesh.publish("a", price=1_001)
    mesh.run()
    assert tick in mesh.got("b", "a")


def test_interest_that_is_too_much_for_one_frame_goes_to_each_origin_in_its_own() -> None:
    mesh = Mesh(pairs("ab cb"), limits=SMALL)
    mesh.advertise("a", "price < 400")
    mesh.advertise("c", "price > 400")
    mesh.run()
    mesh.subscribe("b", **ranges(0, 80))
    mesh.run()
    assert len(mesh.bound("a", "b")) == 40
    assert len(mesh.bound("c", "b")) == 40
    assert mesh.routers["b"].counters.bindings_coarse == 0


def test_an_end_of_much_interest_is_told_by_what_is_left() -> None:
    mesh = Mesh(PAIR, limits=replace(SMALL, frame_bytes_max=4_000))
    mesh.advertise("a", "TRUE")
    mesh.run()
    for first in range(0, 40, 10):
        mesh.subscribe("b", **ranges(first, first + 10))
    mesh.run()
    assert len(mesh.bound("a", "b")) == 40
    mesh.unsubscribe("b", *ranges(1, 40))
    mesh.run()
    assert len(mesh.bound("a", "b")) == 1
    assert mesh.routers["b"].counters.bindings_coarse == 0


def test_interest_that_was_too_much_to_know_is_asked_for_when_there_is_room() -> None:
    mesh = Mesh(pairs("ab ac"), limits=replace(DEFAULT_LIMITS, index_conjunctions_max=20))
    mesh.advertise("a", "TRUE")
    mesh.subscribe("b", **ranges(0, 10))
    mesh.run()
    mesh.subscribe("c", **ranges(0, 15))
    mesh.run()
    router = mesh.routers["a"]
    mark, edition = mesh.vectors["a"], router.advertisements.edition
    assert not router.origin_interest.may_filter("c", mark, mesh.ticks["a"] + 1, edition)
    assert router.counters.wishes_coarse == 1
    assert len(mesh.notes("a", "warning")) == 1
    mesh.unsubscribe("b", *ranges(0, 2))
    mesh.run(60.0)
    # Asked for, and still too much: that is no news.
    assert not router.origin_interest.may_filter("c", mark, mesh.ticks["a"] + 1, edition)
    assert router.next_deadline() is None
    mesh.unsubscribe("b", *ranges(2, 10))
    mesh.run(60.0)
    assert router.origin_interest.may_filter("c", mesh.vectors["a"], mesh.ticks["a"] + 1, edition)
    assert len(mesh.bound("a", "c")) == 15
    assert len(mesh.notes("a", "warning")) == 1
    assert len(mesh.notes("a", "info")) == 1
    assert router.counters.wishes_coarse == 1
    assert all(settled(mesh, name) for name in "bc")


def is_late(mesh: Mesh, name: str) -> None:
    """Answers to a broker take longer than it waits for them: it says all once more."""
    mesh.now += 0.3
    mesh.do(name, mesh.routers[name].time_passed(mesh.now))


def test_what_came_in_parts_and_is_too_much_to_be_repeated_keeps_nothing_from_anybody() -> None:
    mesh = Mesh(PAIR, limits=SMALL)
    mesh.advertise("a", "TRUE")
    mesh.run()
    for first in range(0, 100, 20):
        mesh.subscribe("b", **ranges(first, first + 20))
        if first < 80:
            mesh.run()
    is_late(mesh, "b")
    mesh.run()
    assert mesh.bound("a", "b") == {str(EVERY_EVENT)}
    mesh.subscribe("b", more="price > 5000 AND price < 5005")
    mesh.run()
    tick = mesh.publish("a", price=5_001)
    mesh.run()
    assert tick in mesh.got("b", "a")
    assert settled(mesh, "b")


def test_too_much_that_is_repeated_stays_too_much_until_another_version() -> None:
    for count in range(40, 60):
        mesh = Mesh(PAIR, limits=SMALL)
        mesh.advertise("a", "TRUE")
        mesh.run()
        mesh.subscribe("b", **ranges(0, count))
        mesh.run()
        if mesh.routers["b"].counters.bindings_coarse:
            break
    assert mesh.routers["b"].counters.bindings_coarse == 1
    mesh.unsubscribe("b", "s0")
    is_late(mesh, "b")
    mesh.run()
    assert mesh.bound("a", "b") == {str(EVERY_EVENT)}
    assert mesh.notes("b", "info") == []
    mesh.unsubscribe("b", *ranges(2, count))
    mesh.run()
    assert len(mesh.bound("a", "b")) == 1
    assert str(EVERY_EVENT) not in mesh.bound("a", "b")
    assert settled(mesh, "b")
