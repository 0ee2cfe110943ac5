"""Ticks that a broker gets twice are found, and excused only where they may come twice."""

from anabranch.core import contract
from anabranch.core.routing.mesh.mesh import MeshRouter
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import Carry, Nack
from anabranch.model.mesh_frames import Branches, Copies, Target, TreeId
from anabranch.model.version import Version
from anabranch.sim.copy_watch import REST_S, Repetitions
from tests.mesh_parts import QUICK, Mesh, pairs


class Watched:
    """A square `ab ac bd cd` with `e` behind `d`, whose first tree of `a` is known to the watch."""

    def __init__(self, *, is_fixed: bool = True) -> None:
        self.mesh = Mesh(pairs("ab ac bd cd de"), QUICK)
        self.mesh.run(2.0)
        self.tree = self.mesh.root("a")
        self.found: list[str] = []
        self.watch = Repetitions(self.note, is_fixed)
        for name, router in self.mesh.routers.items():
            for peer in self.mesh.links_of(name):
                self.see(name, contract.FrameReceived(peer, Branches(self.tree, {})), router=router)
        self.parent = self.mesh.parents(self.tree)["d"]
        assert self.parent in {"b", "c"}
        self.other = "c" if self.parent == "b" else "b"

    def note(self, kind: str, _frame: Copies, text: str) -> None:
        self.found.append(f"{kind}: {text}")

    def see(
        self,
        name: str,
        stimulus: contract.Stimulus,
        *sent: tuple[str, Copies],
        router: MeshRouter | None = None,
    ) -> None:
        router = router or self.mesh.routers[name]
        self.watch.step(self.mesh.now, name, router, stimulus, list(sent))

    def copy(self, tick: int, *edges: str, tree: TreeId | None = None) -> Copies:
        targets = [Target(edge, Version(1, 1), 3, tick, [0]) for edge in edges]
        data = [Datum(tick, 1, b"")]
        return Copies("a", tree or self.tree, 4, targets, tick, data)

    def publish(self, tick: int, *sent: tuple[str, Copies]) -> None:
        self.see("a", contract.TimePassed(), *sent)


def test_a_tick_that_comes_from_two_neighbours_is_noted_while_the_tree_rests() -> None:
    all_of = Watched()
    one, other = all_of.copy(9, "d"), all_of.copy(9, "e")
    all_of.publish(9, ("b", one), ("c", other))
    all_of.see("d", contract.FrameReceived("b", one))
    assert all_of.found == []
    all_of.see("d", contract.FrameReceived("c", other))
    assert all_of.found == ["second-copy: d gets tick 9 twice"]


def test_a_tick_that_comes_twice_from_one_neighbour_is_noted() -> None:
    all_of = Watched()
    one, other = all_of.copy(9, "d"), all_of.copy(9, "e")
    all_of.publish(9, ("b", one))
    all_of.see("d", contract.FrameReceived("b", one))
    all_of.see("d", contract.FrameReceived("b", other))
    assert len(all_of.found) == 1


def test_with_dynamic_paths_a_tick_may_come_for_others_but_not_twice_for_oneself() -> None:
    all_of = Watched(is_fixed=False)
    copies = [all_of.copy(9, "e"), all_of.copy(9, "d"), all_of.copy(9, "d")]
    all_of.publish(9, ("b", copies[0]), ("c", copies[1]))
    all_of.see("d", contract.FrameReceived("b", copies[0]))
    all_of.see("d", contract.FrameReceived("c", copies[1]))
    assert all_of.found == []
    all_of.see("d", contract.FrameReceived("b", copies[2]))
    assert all_of.found == ["second-path: d gets tick 9, which is for it, twice"]


def test_what_was_asked_for_again_is_excused_on_all_of_its_way_and_once() -> None:
    for asked in (
        contract.LogRead(1, 9, ()),
        contract.FrameReceived("b", Carry("e", "a", 3, Nack([(9, 9)]))),
    ):
        all_of = Watched()
        parent = all_of.parent
        assert parent is not None
        copies = [all_of.copy(9, "e") for _ in range(3)]
        all_of.publish(9, (parent, copies[0]))
        all_of.see(parent, contract.FrameReceived("a", copies[0]), ("d", copies[0]))
        all_of.see("d", contract.FrameReceived(parent, copies[0]))
        all_of.see("a", asked, (parent, copies[1]))
        all_of.see(parent, contract.FrameReceived("a", copies[1]), ("d", copies[1]))
        all_of.see("d", contract.FrameReceived(parent, copies[1]))
        assert all_of.found == []
        assert all_of.watch.excused == 2
        all_of.see("d", contract.FrameReceived(parent, copies[2]))
        assert len(all_of.found) == 1


def test_what_a_link_repeats_is_excused_with_all_that_comes_of_it() -> None:
    all_of = Watched()
    parent = all_of.parent
    assert parent is not None
    copy, onward = all_of.copy(9, "d", "e"), [all_of.copy(9, "d", "e") for _ in range(2)]
    all_of.publish(9, (parent, copy))
    for each in onward:
        all_of.see(parent, contract.FrameReceived("a", copy), ("d", each))
        # Another broker may be done with something between the two.
        all_of.see("a", contract.TimePassed())
    for each in onward:
        all_of.see("d", contract.FrameReceived(parent, each))
    assert all_of.found == []


def test_what_came_while_the_tree_changed_is_excused_and_nothing_later() -> None:
    all_of = Watched()
    parent, other = all_of.parent, all_of.other
    assert parent is not None
    all_of.publish(9, ("b", all_of.copy(9, "d")), ("c", all_of.copy(9, "e")))
    all_of.see("d", contract.FrameReceived(parent, all_of.copy(9, "d")))
    # The link of the parent breaks, and it forgets who was behind it.
    all_of.see(parent, contract.LinkDown("d"))
    all_of.see("d", contract.FrameReceived(other, all_of.copy(9, "e")))
    assert all_of.found == []
    all_of.publish(10, ("b", all_of.copy(10, "d")), ("c", all_of.copy(10, "e")))
    all_of.see("d", contract.FrameReceived(parent, all_of.copy(10, "d")))
    all_of.see("d", contract.FrameReceived(other, all_of.copy(10, "e")))
    assert all_of.found == ["second-copy: d gets tick 10 twice"]


def test_what_a_broker_sends_that_has_not_heard_of_the_tree_is_excused() -> None:
    all_of = Watched()
    parent, other = all_of.parent, all_of.other
    assert parent is not None
    strange = all_of.mesh.root("a", 5)
    assert strange not in all_of.mesh.routers[other].trees
    one, more = all_of.copy(9, "d", tree=strange), all_of.copy(9, "e", tree=strange)
    all_of.publish(9, (parent, one), (other, more))
    all_of.see("d", contract.FrameReceived(parent, one))
    all_of.see(other, contract.FrameReceived("a", more), ("d", more))
    all_of.see("d", contract.FrameReceived(other, more))
    assert all_of.found == []


def test_a_broker_that_stays_in_two_tables_is_found_in_the_end() -> None:
    all_of = Watched()
    mesh, other = all_of.mesh, all_of.other
    assert list(all_of.watch.doubled(mesh.routers, mesh.now + REST_S)) == []
    said = Branches(all_of.tree, {"d": 0, "e": 1}, is_whole=True)
    mesh.routers[other].frame(mesh.now, "d", said)
    all_of.see(other, contract.FrameReceived("d", said))
    assert list(all_of.watch.doubled(mesh.routers, mesh.now)) == []
    later = list(all_of.watch.doubled(mesh.routers, mesh.now + REST_S))
    assert later == [("a", "d is in the tables of ['b', 'c']")]
    # A broker that is gone holds nobody.
    gone = {name: router for name, router in mesh.routers.items() if name != other}
    assert list(all_of.watch.doubled(gone, mesh.now + REST_S)) == []
