"""The result of `anabranch bench routing --routing mesh`, as a value and as grids of text."""

from collections.abc import Iterator, Sequence

import msgspec

from anabranch.cli.bench.routing_mesh_costs import (
    changes_grid,
    dying_grid,
    lookup_grid,
    memory_grid,
    relay_grid,
)
from anabranch.cli.bench.routing_report import Grid
from anabranch.sim.evaluation.changes import Change, Memory
from anabranch.sim.evaluation.claims import Claim
from anabranch.sim.evaluation.delays import Delays
from anabranch.sim.evaluation.dying import Dying
from anabranch.sim.evaluation.middles import Middle, difference, middle
from anabranch.sim.evaluation.overhead import Overhead
from anabranch.sim.evaluation.places import (
    DELAY_OF_SOURCE,
    PLACEMENTS,
    TRAFFIC_OF_SOURCE,
    Placed,
    figures_of,
)
from anabranch.sim.evaluation.printed import Tally
from anabranch.sim.evaluation.relaying import Relayed

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
