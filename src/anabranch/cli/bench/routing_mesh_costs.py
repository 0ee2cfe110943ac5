"""Grids of what an event and a change cost with each routing: parts `matching` and `changes`."""

from collections.abc import Iterable, Sequence

from anabranch.cli.bench.routing_report import Grid
from anabranch.sim.evaluation.changes import Change, Memory
from anabranch.sim.evaluation.dying import ROUTINGS, Dying
from anabranch.sim.evaluation.middles import middle
from anabranch.sim.evaluation.relaying import KINDS, TOGETHER, Kind, Relayed, Way


def relay_grid(found: Sequence[Relayed]) -> Grid:
    """A relay that passes events on by their targets, and relays that do it otherwise."""
    sizes = _sizes(found)
    remark = (
        "Processor time of a relay per event, in µs: decoding, the router's step, encoding, with"
        " the real routers; the quickest of forty passes. All targets are behind one link. `mesh`"
        " passes copies on by their targets; `tree` matches each event again, with so many"
        " subscriptions that do not cover each other; `flood` does neither. Filters name a *symbol*"
        " or only a *range* of prices. *Bytes* are what goes on per event. *Once is cheaper* says"
        " where `mesh` takes less than `tree`. Times depend on the machine, bytes do not."
    )
    heads = ["events in a frame", "targets", "`mesh`", "bytes", "`flood`", "bytes of both others"]
    heads += [f"`tree`, {size:,}, {kind}" for kind in KINDS for size in sizes]
    rows = []
    for together in TOGETHER:
        for targets in dict.fromkeys(each.targets for each in found):
            mine = [e for e in found if (e.together, e.targets) == (together, targets)]
            mesh, flood = _one(mine, "mesh"), _one(mine, "flood")
            trees = [_one(mine, "tree", size, kind) for kind in KINDS for size in sizes]
            row = [str(together), str(targets), f"{mesh.event_us:.1f}", f"{mesh.event_bytes:.0f}"]
            row += (f"{flood.event_us:.1f}", f"{flood.event_bytes:.0f}")
            rows.append((*row, *(f"{tree.event_us:.1f}" for tree in trees), _wins(mesh, trees)))
    return Grid("An event at a relay", remark, (*heads, "once is cheaper"), rows)


def _wins(mesh: Relayed, trees: Sequence[Relayed]) -> str:
    """Against which trees passing on by targets takes less."""
    won = [tree for tree in trees if mesh.event_us < tree.event_us]
    if len(won) in (0, len(trees)):
        return "everywhere" if won else "nowhere"
    return "; ".join(f"{tree.subscriptions:,}, {tree.kind}" for tree in won)


def lookup_grid(found: Sequence[Relayed]) -> Grid:
    """The index of a mesh's origin alone."""
    sizes = _sizes(found)
    remark = (
        "Processor time of one look-up per event in the index of a mesh's origin, in µs: what every"
        " broker on the way would do in addition, if it matched again to find the targets."
    )
    heads = ["events at once", "targets", *(f"{s:,}, {k}" for k in KINDS for s in sizes)]
    rows = []
    for together in TOGETHER:
        for targets in dict.fromkeys(each.targets for each in found):
            mine = [e for e in found if (e.together, e.targets) == (together, targets)]
            times = [_one(mine, "look-up", size, kind).event_us for kind in KINDS for size in sizes]
            rows.append((str(together), str(targets), *(f"{each:.1f}" for each in times)))
    return Grid("A look-up at an origin", remark, heads, rows)


def _sizes(found: Iterable[Relayed]) -> list[int]:
    return sorted({each.subscriptions for each in found if each.way == "tree"})


def _one(
    found: Iterable[Relayed], way: Way, subscriptions: int = 0, kind: Kind = "symbol"
) -> Relayed:
    """The one of this way; relays that know of no subscriptions have one for all numbers."""
    mine = [each for each in found if (each.way, each.kind) == (way, kind)]
    return next(each for each in mine if subscriptions in (0, each.subscriptions))


def changes_grid(changes: Sequence[Change]) -> Grid:
    """What changes cost a network."""
    networks = list(dict.fromkeys(change.network for change in changes))
    remark = (
        "Ten brokers, six of them with clients, nine links, the same for all; `mesh` with fifteen,"
        " too. All frames and bytes on all links from a change until the network is at rest again."
        " Two publishers advertise; every edge has 20 subscriptions before. *Start* is until the"
        " client knows where its subscription begins in the stream of the publisher that is five"
        " links away, at 2 to 5 ms a link. Virtual time, the same on every machine."
    )
    rows = []
    for what in dict.fromkeys(change.what for change in changes):
        mine = {each.network: each for each in changes if each.what == what}
        cells = [f"{mine[name].frames} frames, {mine[name].bytes:,} bytes" for name in networks]
        rows.append((what, *cells))
    for what in dict.fromkeys(change.what for change in changes if change.start_ms):
        mine = {each.network: each for each in changes if each.what == what}
        rows.append((f"start of {what}", *(f"{mine[name].start_ms:.0f} ms" for name in networks)))
    return Grid("What a change costs", remark, ("change", *networks), rows)


def memory_grid(memory: Sequence[Memory]) -> Grid:
    """What subscriptions take in routers."""
    remark = (
        f"What {memory[0].subscriptions:,} subscriptions of one edge to one publisher's events add"
        " to the router of a broker, in kB; the edge's own list of subscribers is not in it. The"
        " same network. Depends on the version of Python."
    )
    places = (
        ("at a relay between", "relay_bytes"),
        ("at the edge that has them", "edge_bytes"),
        ("at the origin they are for", "origin_bytes"),
        ("at an edge that has nothing to do with it", "other_bytes"),
    )
    rows = [
        (name, *(f"{getattr(each, field) / 1_000:,.0f}" for each in memory))
        for name, field in places
    ]
    return Grid("Memory of routing tables", remark, ("", *(m.network for m in memory)), rows)


def dying_grid(runs: Sequence[Dying]) -> Grid:
    """What the death of a broker does."""
    remark = (
        "A publisher's broker, four pairs of brokers, a subscriber's broker, with all links between"
        " one pair and the next; `tree` and `flood` have the pairs as sites. 200 events/s; the"
        " broker of the second pair that carries them dies. Medians, least and greatest of"
        f" {len({run.seed for run in runs})} runs in virtual time. *Late*: after more than 0.1 s."
        " Frames are those without events, from then on. Who falls silent is noticed by heartbeats,"
        " in the same way with all routings; how soon depends on what went over a link before."
    )
    rows = []
    for death in dict.fromkeys(run.death for run in runs):
        for name, field in (
            ("longest time without an event, ms", "pause_ms"),
            ("late events", "late"),
            ("frames for it", "frames"),
            ("bytes for it", "bytes"),
        ):
            cells = []
            for routing in ROUTINGS:
                mine = [r for r in runs if (r.death, r.routing) == (death, routing)]
                values = [float(getattr(run, field)) for run in mine]
                cells.append(middle(values).text(lambda number: f"{number:,.0f}"))
            rows.append((f"it {death}: {name}", *cells))
        lost = [
            sum(r.published - r.delivered for r in runs if (r.death, r.routing) == (death, each))
            for each in ROUTINGS
        ]
        rows.append((f"it {death}: events that never came", *map(str, lost)))
    return Grid("When a broker dies", remark, ("", *ROUTINGS), rows)
