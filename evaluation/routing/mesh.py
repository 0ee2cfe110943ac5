"""`scripts/evaluate routing --routing mesh`: does choosing paths by load pay?

The model of the printed algorithm, markets in simulated meshes of busy brokers, patterns with each
of the three placements, and what it all costs a broker; beside the figures of the work that mesh
routing comes from. Two parts hold all three routings against each other: `matching`, what an event
costs a relay, and `changes`, what a changed subscription or advertisement costs a network, and the
death of a broker. All but processor times and memory is the same on every machine.

Report
------
The result of `scripts/evaluate routing --routing mesh`, as a value and as grids of text.

Costs
-----
Grids of what an event and a change cost with each routing: parts `matching` and `changes`.

The page
--------
What `scripts/evaluate routing --routing mesh --write` makes: a section of the page, and more.

The page is the one that `--routing tree` makes. Of it, only the section about meshes is replaced,
or added at its end: the table of ours and the source's, the model, and the picture. All tables are
on a page of their own, in the folder of pictures. What is between the two marks belongs to this
module; `routing_page` keeps it when it rewrites the rest.
"""

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import typer

from anabranch.cli.output import print_json
from anabranch.cli.screen import Steps, console, steps_on_stderr
from evaluation.routing.mesh_changes import (
    DEATHS,
    MANY,
    NETWORKS,
    ROUTINGS,
    Change,
    Dying,
    Memory,
    Town,
    run_dying,
)
from evaluation.routing.mesh_claims import Claim, Overhead, claims, measure_overhead
from evaluation.routing.mesh_delays import (
    DELAY_PARTS,
    Delays,
    Middle,
    Scene,
    difference,
    middle,
    play_all,
    play_places,
    play_relays,
    scenes,
)
from evaluation.routing.mesh_placement import (
    DELAY_OF_SOURCE,
    PLACEMENTS,
    TRAFFIC_OF_SOURCE,
    Placed,
    figures_of,
    place_scenes,
)
from evaluation.routing.mesh_printed import Tally, survey
from evaluation.routing.mesh_relays import KINDS, TOGETHER, Kind, Relayed, Way, relay_jobs
from evaluation.routing.tree import (
    MESH_BEGIN,
    MESH_END,
    NO_PLOT,
    Grid,
    mesh_section,
    print_grids,
    table,
)

# -- costs ----------------------------------------------------------------------------------------


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


# -- report ---------------------------------------------------------------------------------------


#: Part → title, and what it is.
_TITLES = {
    "degree": ("Degree of the graph", "All links come up at once."),
    "grown": ("A network that grew", "Links come up one by one: first trees are as they happen."),
    "publishers": ("Twice as many publishers", "Two publishers of each symbol, degree 4."),
    "rate": ("More and more events", "Degree 4. Delays that grow by half are not kept up with."),
    "burst": (
        "A burst",
        "Degree 4, two fifths of the rate, four times that in the second quarter.",
    ),
    "hops": (
        "Distance",
        "A ladder of two rows. Delays by distance are in the first table.",
    ),
    "failures": ("Failures", "After either of the first quarters a broker dies."),
    "matching": ("Matching at the ends", "Degree 4. Brokers in between do not match."),
}
_LEGEND = (
    " Mean delays from publication: *arrival* at the broker of a subscriber over links,"
    " *notification* of all subscribers, in the order of the stream. *Load* is the work that came"
    " to the busiest machine over the time there was. *Copies* are events over links per event"
    " published, *ends* those of them that were for the broker they came to."
)


class MeshReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one run found."""

    #: Which one was run, or `all`.
    part: str
    scale: float
    seed: int
    model: list[Tally]
    delays: list[Delays]
    overheads: list[Overhead]
    claims: list[Claim]
    relayed: list[Relayed] = []
    placed: list[Placed] = []
    changes: list[Change] = []
    memory: list[Memory] = []
    dying: list[Dying] = []


def mesh_grids(report: MeshReport) -> Iterator[Grid]:
    """The claims, and what they rest on."""
    if report.claims:
        yield claims_grid(report.claims)
    if report.model:
        yield model_grid(report.model)
    legend = _LEGEND
    for part, (title, remark) in _TITLES.items():
        runs = [run for run in report.delays if run.scene.part == part]
        if runs:
            yield _delays(title, remark + legend, runs)
            legend = ""
    if report.relayed:
        yield relay_grid(report.relayed)
        yield lookup_grid(report.relayed)
    if report.placed:
        yield placement_grid(report.placed)
        yield _placed(report.placed)
    if report.overheads:
        yield _overheads(report.overheads)
    yield from changes_grids(report)


def changes_grids(report: MeshReport) -> Iterator[Grid]:
    """What changes cost with each routing."""
    if report.changes:
        yield changes_grid(report.changes)
    if report.memory:
        yield memory_grid(report.memory)
    if report.dying:
        yield dying_grid(report.dying)


def claims_grid(claims: Sequence[Claim]) -> Grid:
    """Ours beside the source's."""
    remark = (
        "Medians over graphs, with the least and the greatest in brackets. Differences are against"
        " fixed paths, of each graph with itself; below zero is better. The source's figures are"
        " for its dynamic routing, which goes by utilisation."
    )
    heads = ("test", "fixed", "by utilisation", "by waiting bytes", "source", "alike?")
    rows = [(c.test, c.fixed, c.dynamic, c.waiting, c.source, c.verdict) for c in claims]
    return Grid("Ours and the source's", remark, heads, rows)


def model_grid(tallies: Sequence[Tally]) -> Grid:
    """What the printed algorithm does."""
    cases = tallies[0].cases
    remark = (
        f"{cases:,} random graphs of 4 to 12 brokers with random loads and overlapping filters, one"
        " event each: cases in which a subscriber was notified twice, a copy went in a circle, or a"
        " subscriber was not notified. `printed` matches content at every broker, `printed, trees"
        " only` at the first one; `targets` is what mesh routing does."
    )
    heads = ("routing", "doubled", "circles", "lost", "links per event, where all is well")
    rows = [
        (
            tally.routing,
            _share(tally.doubled, cases),
            _share(tally.circling, cases),
            _share(tally.lost, cases),
            f"{tally.links:.2f}",
        )
        for tally in tallies
    ]
    return Grid("The printed algorithm in a model", remark, heads, rows)


def _share(count: int, cases: int) -> str:
    return f"{count:,} ({count / cases:.1%})" if count else "0"


def _delays(title: str, remark: str, runs: Sequence[Delays]) -> Grid:
    heads = ["case", "paths", "graph", "events", "arrival, ms", "notification, ms", "first third"]
    heads += ("last third", "load", "copies", "ends")
    rows = [
        (
            run.scene.case,
            run.scene.way,
            str(run.scene.seed),
            f"{run.published:,}",
            f"{run.arrival_ms:.1f}",
            f"{run.notification_ms:.1f}",
            f"{run.early_ms:.1f}",
            f"{run.late_ms:.1f}",
            f"{run.busiest:.2f}",
            f"{run.copies:.2f}",
            f"{run.ends:.2f}",
        )
        for run in runs
    ]
    return Grid(title, remark, heads, rows)


def placement_grid(runs: Sequence[Placed]) -> Grid:
    """Each case, as medians over its graphs, beside what the source found."""
    remark = (
        "Medians over graphs, and the least and the greatest; differences are of each graph with"
        " itself, below zero is better. *Out of sources* are events that leave the brokers of"
        f" publishers, for each event published; the source has {TRAFFIC_OF_SOURCE:+.1%} for cost"
        " against simple. *Delay* is from the last event of a match to its user; the source has"
        f" {DELAY_OF_SOURCE:+.0%} for cost against topology."
    )
    heads = ("case", "simple", "topology", "cost", "cost to simple", "cost to topology")
    rows = []
    for what, field, digits in _PLACED:
        for case in dict.fromkeys(run.scene.case.name for run in runs):
            simple, topology, cost = (figures_of(runs, case, each, field) for each in PLACEMENTS)
            shown = [_placed_text(middle(each), digits) for each in (simple, topology, cost)]
            rows.append((f"{what}: {case}", *shown, _change(simple, cost), _change(topology, cost)))
    return Grid("Placement of patterns", remark, heads, rows)


def _placed_text(values: Middle, digits: int) -> str:
    return values.text(lambda number: f"{number:.{digits}f}")


_PLACED = (
    ("out of sources", "source_copies", 2),
    ("over links", "copies", 2),
    ("delay, ms", "delay_ms", 1),
)


def _change(before: Sequence[float], after: Sequence[float]) -> str:
    return difference(before, after).text(lambda share: f"{share:+.1%}") if any(before) else "–"


def _placed(runs: Sequence[Placed]) -> Grid:
    remark = (
        "Twenty brokers, degree 3, four patterns over two symbols each. Join points look for places"
        " every two seconds; *moves* are those before the measurement, and during it."
    )
    heads = ("case", "placement", "graph", "events", "matches", "out of sources", "over links")
    rows = [
        (
            run.scene.case.name,
            run.scene.placement,
            str(run.scene.seed),
            f"{run.published:,}",
            f"{run.matches:,}",
            f"{run.source_copies:.2f}",
            f"{run.copies:.2f}",
            f"{run.delay_ms:.1f}",
            f"{run.moves} + {run.late_moves}",
        )
        for run in runs
    ]
    return Grid("Placement of patterns, all runs", remark, (*heads, "delay, ms", "moves"), rows)


def _overheads(overheads: Sequence[Overhead]) -> Grid:
    remark = (
        "Measured where this ran, unlike all else. Processor time of brokers' steps, encoding"
        " included; memory is all that a broker's router refers to."
    )
    heads = ("paths", "events", "µs per event", "µs per copy", "kB per router")
    rows = [
        (
            each.way,
            f"{each.published:,}",
            f"{each.event_us:.0f}",
            f"{each.copy_us:.0f}",
            f"{each.router_bytes / 1_000:.0f}",
        )
        for each in overheads
    ]
    return Grid("Overhead", remark, heads, rows)


# -- the page -------------------------------------------------------------------------------------


_SECTION = """\
## Mesh: does choosing paths by load pay?

Markets in simulated meshes: brokers run their real code, on machines that handle one frame after
the other, so that what comes has to wait. This section is made by

    {command}

and all tables are on [a page of their own]({details}). Thirty brokers on twenty machines; twenty
publishers of one symbol each; thirty subscribers with five subscriptions each, to Zipf-distributed
symbols; three graphs of every kind. A machine takes 4.5 ms to match an event, 0.5 ms to handle it,
and 0.05 ms for any frame; a link takes 0.1 to 0.2 ms; loads are reported every 10 ms. What the
source (Li, Muthusamy, Jacobsen 2008, §5) does not say was chosen here, after first runs with fixed
and with dynamic paths at 100 to 300 events/s: the rate, 300 events/s, so that the busiest machine
is busy for about nine tenths of the time with fixed paths at degree 4; less where some graphs do
not keep up with that (degree 2, the ladder) and where brokers die; and links that come up together,
since otherwise trees depend on their order, as the row *one by one* shows. Where a graph does not
keep up, delays say how long the run was; such rows say so, and stand beside one in which all do.
Shapes are compared, not times.

*Where it pays.* Near the load at which fixed paths no longer keep up, and in a burst. They pay most
where links came up one after the other, and trees are the worse for it: fixed paths stay on those
trees.

*Where it does not*, with what we take for the reasons; none was tested apart. A network that keeps
up has little to gain: more than half of the copies of an event are at the broker that they are for,
whichever way they came, and that work cannot be moved. A path is changed only for a nearer one
([0016](adr/0016-copies-know-their-targets.md)), which keeps events from being delivered twice and
from running in circles, and leaves fewer alternatives than the source has: at degree 2 and on the
ladder hardly any, so that the delay grows with the distance as it does with fixed paths, and the
source's saving over ten and twelve links is not seen. Trees of other publishers are used in any
case, so that overlapping advertisements add nothing. Where everything is overloaded, another path
is overloaded too, and detours add to the work. In a full mesh paths are direct: nothing is gained,
and the death of a broker disturbs nobody but its own clients. At degree 4 the death of the brokers
that carry most is felt for a second or two, and far less than in the source: events that were lost
with it are asked for, and ways around it are known. Afterwards the ways are longer and the others
have more to do; paths by load are no better off then than fixed ones, and rather worse. *By waiting
bytes* hardly anything changes: what events wait for here is machines, not links.

*Matching once.* An event is matched at its origin, and at the edges it is for, by their own
subscriptions; brokers in between do not match. This is the default, and there is no option to
match again: where copies may take other paths, matching anew at every broker delivers twice and
runs in circles (*The printed algorithm in a model*), and naming the targets is what prevents it.
The source's saving, of matching at the origin only, leaves out the edges. With its 4.5 ms for a
matching, not to match in between saves much delay; with what matching takes here it is another
thing. *An event at a relay* has real processor times: passing an event on by its targets takes
less than matching it again only for very few targets behind a link, or where matching is hard (many
subscriptions that no equality tells apart); with many targets it takes more, and frames grow. So
processor time is not why relays do not match. They do not because targets are needed anyhow, and
because relays then hold no subscriptions (*Memory of routing tables*) and are told of none. All
other delays here are with 4.5 ms at every broker, as in the source's runs.

*Placement of patterns.* Where a pattern has few matches, detecting it at its publishers leaves out
what would travel for nothing: with one source most of what left it by simple placement stays where
it is, by cost and by topology (the source: 79.5 % less). With two sources about half is left, since
one has to come to the other. Delays do not fall with that, unlike the source's: the last event of a
match has the same way to go, or a longer one, since cost weighs the few matches lightly and goes to
the louder source where topology takes the fork in between. Only where a broker was overloaded by
what came there, and where topology sends many matches over links, delays are shorter. *Where it
does not pay*: patterns with more matches than events are best left alone, and cost leaves some of
them alone, topology none; a source at home leaves nothing to gain; and in a network that is busy
with other things, what patterns cost hardly shows.

*Changes and deaths* are counted for all three routings, in small networks that are the same for
all. [ROUTING](routing-costs.md) has them side by side.
"""

_DETAILS = """\
# Mesh routing: all tables

Made by

    {command}

The same command gives the same tables, but for processor times and memory, which are measured. What
it means is in [the section about meshes](../{page}).
"""


def write_mesh_page(report: MeshReport, path: Path) -> list[str]:
    """Write the section, the page with all tables, and the picture; lines about what was done."""
    folder = path.parent / path.stem.lower()
    folder.mkdir(parents=True, exist_ok=True)
    details, picture = folder / "mesh.md", folder / "mesh.svg"
    has_plot = _plot(report, picture)
    details.write_text("\n".join(_details(report, path.name)), encoding="utf-8")
    link = f"{folder.name}/{picture.name}" if has_plot else ""
    section = "\n".join(_section(report, f"{folder.name}/{details.name}", link))
    _put_section(path, f"{MESH_BEGIN}\n\n{section}\n{MESH_END}\n")
    if not has_plot:
        return [NO_PLOT, f"wrote {path} and {details}"]
    return [f"wrote {path}, {details} and {picture}"]


def _put_section(path: Path, section: str) -> None:
    """Replace the section in a page, or add it at the end."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    before = mesh_section(text)
    rest = f"{text}\n" if text else ""
    text = text.replace(before, section) if before else rest + section
    path.write_text(text, encoding="utf-8")


def _plot(report: MeshReport, picture: Path) -> bool:
    try:
        from evaluation.routing.plots import draw_mesh_picture  # noqa: PLC0415 - needs matplotlib
    except ImportError:
        return False
    draw_mesh_picture(report, picture)
    return True


def _section(report: MeshReport, details: str, link: str) -> Iterator[str]:
    yield _SECTION.format(command=_command(report), details=details)
    if link:
        yield f"![Delays with fixed paths and with paths by load]({link})\n"
    if report.claims:
        yield from table(claims_grid(report.claims), "###")
    if report.model:
        yield from table(model_grid(report.model), "###")
    if report.relayed:
        yield from table(relay_grid(report.relayed), "###")
    if report.placed:
        yield from table(placement_grid(report.placed), "###")
    for grid in changes_grids(report):
        yield from table(grid, "###")


def _details(report: MeshReport, page: str) -> Iterator[str]:
    yield _DETAILS.format(command=_command(report), page=page)
    for grid in mesh_grids(report):
        yield from table(grid)


def _command(report: MeshReport) -> str:
    words = ["scripts/evaluate", "routing", "--routing", "mesh", "--part", report.part]
    words += ["--scale", f"{report.scale:g}", "--seed", str(report.seed), "--write", "PAGE"]
    return shlex.join(words)


# -- command --------------------------------------------------------------------------------------


MeshPart = Literal[
    "all",
    "model",
    "degree",
    "grown",
    "publishers",
    "rate",
    "burst",
    "hops",
    "failures",
    "matching",
    "placement",
    "overhead",
    "changes",
]
SCALE = 0.2
_CASES = 4_000
_TIMES = 3
_DEATHS = 5


def run_mesh(part: MeshPart, scale: float, seed: int, write: Path | None, *, as_json: bool) -> None:
    """Run it, print it, and write the page."""
    processes = len(os.sched_getaffinity(0))
    with steps_on_stderr() as steps:
        report = evaluate_mesh(part, scale, seed, steps, processes)
    if write is not None:
        for line in write_mesh_page(report, write):
            typer.echo(line, err=True)
    if as_json:
        print_json(report)
    else:
        print_grids(mesh_grids(report), console())


def evaluate_mesh(
    part: MeshPart, scale: float, seed: int, steps: Steps, processes: int = 1
) -> MeshReport:
    """Run one part, or all of them."""
    tallies = _model(scale, seed, steps) if part in ("all", "model") else []
    delays: list[Delays] = []
    known: dict[Scene, Delays] = {}
    for each in DELAY_PARTS if part == "all" else (part,):
        if each in DELAY_PARTS:
            every = scenes(each, scale, seed)
            delays += steps.follow(each, play_all(every, processes, known), len(every))
    relayed: list[Relayed] = []
    if part in ("all", "matching"):
        jobs = relay_jobs(scale)
        for found in steps.follow("relays", play_relays(jobs, processes), len(jobs)):
            relayed += found
    placed: list[Placed] = []
    if part in ("all", "placement"):
        places = place_scenes(scale, seed)
        placed += steps.follow("placement", play_places(places, processes), len(places))
    overheads = _overhead(scale, seed, steps) if part in ("all", "overhead") else []
    report = MeshReport(
        part=part,
        scale=scale,
        seed=seed,
        model=tallies,
        delays=delays,
        relayed=relayed,
        overheads=overheads,
        placed=placed,
        claims=claims(delays, overheads),
    )
    return _with_changes(report, steps) if part in ("all", "changes") else report


def _model(scale: float, seed: int, steps: Steps) -> list[Tally]:
    steps.begin("model")
    return survey(max(40, round(_CASES * scale)), seed)


def _overhead(scale: float, seed: int, steps: Steps) -> list[Overhead]:
    steps.begin("overhead")
    brokers, seconds = (30, 5.0) if scale >= SCALE else (8, 2.0)
    return measure_overhead(brokers, seconds, _TIMES if scale >= SCALE else 1, seed)


def _with_changes(report: MeshReport, steps: Steps) -> MeshReport:
    """What changes cost, and the death of a broker, with all three routings."""
    seed, scale = report.seed, report.scale
    towns = [Town(*network, seed) for network in NETWORKS]
    many = max(100, round(MANY * min(1.0, scale)))
    deaths = range(seed, seed + max(1, round(_DEATHS * scale)))
    runs = [(routing, death, each) for death in DEATHS for routing in ROUTINGS for each in deaths]
    counted = steps.follow("changes", (town.changes() for town in towns), len(towns))
    return msgspec.structs.replace(
        report,
        changes=[change for every in counted for change in every],
        memory=[town.memory(many) for town in towns],
        dying=list(steps.follow("deaths", (run_dying(*each) for each in runs), len(runs))),
    )
