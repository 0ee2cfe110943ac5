"""Mutants of routing on meshes: copies, trees, branches, advertisements and bound interest."""

from anabranch.sim.mutants.mutant import Edit, Mutant

_COPYING = "anabranch.core.routing.mesh.copies:CopyForwarding"
_ORIGIN_INTEREST = "anabranch.core.routing.mesh.origin_interest:OriginInterest"
_TREES = "anabranch.core.routing.mesh.trees:Trees"
_BINDINGS = "anabranch.core.routing.mesh.bindings:Bindings"
_EVERY_HOP = "for hop, targets in by_hop.items():"

#: As printed, a copy has no targets: it is for all edges that are known on its tree.
_ADDS_TARGETS = Edit(
    f"{_COPYING}._pass_on",
    "by_hop: dict[str, list[Target]] = {}",
    "if came_from:\n"
    "    from anabranch.model.version import NOTHING\n"
    "    meant = {target.edge for target in frame.targets} | {self._shared.name}\n"
    "    edges = self._next_hop._branches.edges(frame.tree)\n"
    "    first = frame.data[0].tick if frame.data else 0\n"
    "    rest = NOTHING, DISTANCE_MAX, first, [], bool(first)\n"
    "    added = [Target(edge, *rest) for edge in edges if edge not in meant]\n"
    "    frame = replace(frame, targets=[*frame.targets, *added])\n"
    "by_hop = {}",
)

MUTANTS: dict[str, Mutant] = {
    "printed-algorithm": Mutant(
        "copies are for all of a tree, by the cheapest link, as printed",
        _ADDS_TARGETS,
        Edit(
            "anabranch.core.routing.mesh.copies:NextHopChoice.choose",
            "hop, distance = self._nearest(on_tree.get(target.edge, _NOBODY), target, came_from)",
            "ways = [\n"
            "    (self._link_costs.cost(way), far, way)\n"
            "    for way, far in self._ways(target.edge).items()\n"
            "    if way != came_from and not self._shared.links.get(way, True)\n"
            "]\n"
            '_, distance, hop = min(ways, default=(0.0, 0, ""))',
        ),
        seed=36,
        anomaly="hop-bound",
        routing="mesh",
    ),
    "copy-per-target": Mutant(
        "every target gets a copy of its own",
        Edit(
            f"{_COPYING}._pass_on",
            _EVERY_HOP,
            "for hop, targets in [(hop, [one]) for hop, some in by_hop.items() for one in some]:",
        ),
        seed=2,
        anomaly="second-copy",
        routing="mesh",
    ),
    "targets-unsorted": Mutant(
        "every neighbour gets all targets of a copy",
        Edit(
            f"{_COPYING}._pass_on",
            _EVERY_HOP,
            "every = [target for targets in by_hop.values() for target in targets]\n"
            "for hop, targets in [(hop, every) for hop in by_hop]:",
        ),
        seed=1,
        anomaly="second-path",
        routing="mesh",
    ),
    "adds-targets": Mutant(
        "copies are passed on to all edges of their tree",
        _ADDS_TARGETS,
        seed=1,
        anomaly="stray-target",
        routing="mesh",
    ),
    "hops-halved": Mutant(
        "half of the hops that are left are lost",
        Edit(f"{_COPYING}._pass_on", "frame.hops - 1", "frame.hops // 2"),
        seed=3,
        anomaly="hop-bound",
        routing="mesh",
    ),
    "former-untold": Mutant(
        "former parents are not told that they are",
        Edit(
            "anabranch.core.routing.mesh.branches:BranchTable.time_passed",
            "self._shared.send(peer, Branches(tree, {}, is_whole=True))",
            "pass",
        ),
        seed=1,
        anomaly="two-parents",
        routing="mesh",
    ),
    "parent-any": Mutant(
        "a lost parent is replaced by any neighbour",
        Edit(f"{_TREES}._replace_parent", "tree.nearest()", "min(tree.heard, default=None)"),
        seed=13,
        anomaly="stuck",
        routing="mesh",
    ),
    "edition-ignored": Mutant(
        "origins filter for edges that have not read the advertisements",
        Edit(f"{_ORIGIN_INTEREST}.may_filter", "interest.edition >= edition", "True"),
        seed=3,
        anomaly="gap",
        routing="mesh",
    ),
    "withdrawal-ignored": Mutant(
        "events are filtered as if nothing had been withdrawn since",
        Edit(f"{_ORIGIN_INTEREST}.may_filter", "first > self._withdrawn_at", "True"),
        seed=17,
        anomaly="gap",
        routing="mesh",
    ),
    "silence-promoted": Mutant(
        "silence that waits is told with the version of later ticks",
        Edit(f"{_COPYING}.publish", "if emission.mark > self._mark:", "if False:"),
        seed=11,
        anomaly="gap",
        routing="mesh",
    ),
    "no-rebinding": Mutant(
        "new advertisements attract no known interest",
        Edit(
            f"{_BINDINGS}._changes",
            "removed = [c for c in gone if (c.text, c.place) in sent.bound]",
            "removed = [c for c in gone if (c.text, c.place) in sent.bound]\n"
            "if table.edition.counter > 2:\n"
            "    added = []",
        ),
        Edit(
            f"{_BINDINGS}._changes",
            "removed = [c for key, c in before.items() if key not in met]",
            "removed = [c for key, c in before.items() if key not in met]\n"
            "if not is_whole:\n"
            "    added = []",
        ),
        seed=0,
        anomaly="s-lambda",
        routing="mesh",
    ),
    "base-ignored": Mutant(
        "a change of interest applies to any state",
        Edit(f"{_ORIGIN_INTEREST}.bind", "if not binding.is_whole and not is_base:", "if False:"),
        seed=12,
        anomaly="s-lambda",
        routing="mesh",
    ),
    "tree-never-ends": Mutant(
        "a tree stays when its advertisements are withdrawn",
        Edit(
            f"{_TREES}.set_named", "elif number not in numbers and tree is not None:", "elif False:"
        ),
        seed=4,
        anomaly="leftover",
        routing="mesh",
    ),
    "version-of-now": Mutant(
        "silence has the version known now, not that of its mark",
        Edit(
            f"{_COPYING}._targets",
            "self._interest.version_at(edge, self._mark)",
            "self._interest.known(edge)[0]",
        ),
        seed=4,
        anomaly="gap",
        routing="mesh",
    ),
    # Where several links come back, a wave for another reason nearly always helps.
    "never-seeks": Mutant(
        "a broker that lost its way asks for none",
        Edit(f"{_TREES}.link_up", "if asked:", "if False:"),
        Edit(f"{_TREES}.receive", "if wanted:", "if False:"),
        Edit(f"{_TREES}.time_passed", "if wanted:", "if False:"),
        seed=1,
        anomaly="stuck",
        routing="mesh",
        faults="divide",
    ),
}
