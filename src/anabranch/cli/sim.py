"""`anabranch sim`: simulate networks with faults in virtual time and check each run, by seed."""

import os
import statistics
import zlib
from collections import Counter
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from anabranch.cli.errors import CommandError
from anabranch.cli.output import print_json
from anabranch.cli.screen import console
from anabranch.core.routing.registry import RoutingName
from anabranch.model.errors import LocalError
from anabranch.sim.faults import ANY, asked_mix
from anabranch.sim.mutants.catalog import MUTANTS, SEEDS_MAX, planted
from anabranch.sim.runner import Order, Timed, plan_of, run_seeds
from anabranch.sim.shrink import shrink
from anabranch.sim.story import story_of
from anabranch.sim.swarm import MESH_SHAPES, Shape


class Summary(msgspec.Struct, frozen=True):
    """Totals of all seeds of a run."""

    seeds: int
    failed: tuple[int, ...]
    anomalies: dict[str, int]
    simulated_hours: float
    published: int
    deliveries: int
    crashes: int
    partitions: int
    lost_frames: int
    interest_changes: int
    troubled_changes: int
    batches: int
    matches: int
    advertised: int
    splits: int
    moves: int
    lost_disks: int
    fetches: int
    lives: int
    set_changes: int
    brokers_max: int
    cpu_s: float
    #: The reciprocal of the median CPU time of a seed.
    seeds_per_cpu_s: float
    #: With one seed, the digest of its history; otherwise a digest of all digests in seed order.
    digest: str


def sim(
    *,
    routing: Annotated[
        RoutingName | None,
        typer.Option(help="Routing. Default: that of the mutant, or tree."),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="One seed.")] = None,
    seeds: Annotated[
        str, typer.Option(help="Range FIRST..LAST. Default: 0..99, or 0..399 with --plant.")
    ] = "",
    shape: Annotated[Shape, typer.Option(help="Shape of the networks.")] = "any",
    brokers: Annotated[int | None, typer.Option(min=1, max=200, help="Maximum number.")] = None,
    faults: Annotated[
        str,
        typer.Option(
            help="Faults: any (with --plant, those the mutant needs), none, or kinds such as"
            " kill=0.5,partition."
        ),
    ] = ANY,
    copies: Annotated[
        bool, typer.Option("--copies", help="Keep copies of streams, and lose disks.")
    ] = False,
    plant: Annotated[
        list[str] | None, typer.Option(help="Plant a bug (a mutant) and stop when it is found.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Worker processes.")] = os.cpu_count() or 1,
    shrunk: Annotated[
        bool, typer.Option("--shrink", help="Minimise the first failing seed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Simulate networks with faults and check the guarantees."""
    default = f"0..{SEEDS_MAX - 1}" if plant else "0..99"
    chosen = [seed] if seed is not None else _range_of(seeds or default)
    _check_mutants(plant or [])
    mutants = [MUTANTS[name] for name in plant or ()]
    routes = [each.routing for each in mutants]
    route: RoutingName = routing if routing is not None else next(iter(routes), "tree")
    if faults == ANY:
        faults = next((each.faults for each in mutants), ANY)
    if shape in MESH_SHAPES and route != "mesh":
        raise CommandError(f"a network of shape {shape!r} is not a tree; add --routing mesh")
    try:
        asked_mix(faults)
    except LocalError as error:
        raise CommandError(str(error)) from error
    copies = copies or any(each.copies for each in mutants)
    order = Order(route, shape, brokers, faults, tuple(plant or ()), copies)
    results = _run(order, chosen, processes)
    summary = summarise(results)
    if as_json:
        print_json(summary)
    else:
        _print(summary)
        with planted(*order.mutants):
            _print_story(order, results, shrunk)
    if bool(summary.failed) != bool(plant):
        raise typer.Exit(1)


def _check_mutants(names: list[str]) -> None:
    """Reject unknown mutants, and warn of those that seeds rarely find."""
    for name in names:
        if name not in MUTANTS:
            raise CommandError(f"unknown mutant {name!r}; choose one of {', '.join(MUTANTS)}")
        finder = MUTANTS[name].found_by
        if finder:
            typer.echo(f"note: seeds rarely find {name}; {finder} finds it", err=True)


def _range_of(text: str) -> list[int]:
    first, dots, last = text.partition("..")
    if not dots or not first.isdecimal() or not last.isdecimal() or int(last) < int(first):
        raise CommandError(f"invalid range of seeds {text!r}; write FIRST..LAST, such as 0..499")
    return list(range(int(first), int(last) + 1))


def _run(order: Order, seeds: list[int], processes: int) -> list[Timed]:
    results: list[Timed] = []
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        for timed in run_seeds(order, seeds, processes):
            results.append(timed)
            progress.advance(task)
            if timed.verdict.anomalies and order.mutants:
                break
    return results


def summarise(results: list[Timed]) -> Summary:
    verdicts = [timed.verdict for timed in results]
    names = Counter(anomaly.name for verdict in verdicts for anomaly in verdict.anomalies)
    return Summary(
        seeds=len(verdicts),
        failed=tuple(verdict.seed for verdict in verdicts if verdict.anomalies),
        anomalies=dict(sorted(names.items())),
        simulated_hours=sum(verdict.simulated_s for verdict in verdicts) / 3600,
        published=sum(verdict.published for verdict in verdicts),
        deliveries=sum(verdict.deliveries for verdict in verdicts),
        crashes=sum(verdict.crashes for verdict in verdicts),
        partitions=sum(verdict.partitions for verdict in verdicts),
        lost_frames=sum(verdict.lost_frames for verdict in verdicts),
        interest_changes=sum(verdict.interest_changes for verdict in verdicts),
        troubled_changes=sum(verdict.troubled_changes for verdict in verdicts),
        batches=sum(verdict.batches for verdict in verdicts),
        matches=sum(verdict.matches for verdict in verdicts),
        advertised=sum(verdict.advertised for verdict in verdicts),
        splits=sum(verdict.splits for verdict in verdicts),
        moves=sum(verdict.moves for verdict in verdicts),
        lost_disks=sum(verdict.lost_disks for verdict in verdicts),
        fetches=sum(verdict.fetches for verdict in verdicts),
        lives=sum(verdict.lives for verdict in verdicts),
        set_changes=sum(verdict.set_changes for verdict in verdicts),
        brokers_max=max(verdict.brokers for verdict in verdicts),
        cpu_s=sum(timed.cpu_s for timed in results),
        seeds_per_cpu_s=1 / statistics.median(timed.cpu_s for timed in results),
        digest=_digest([verdict.digest for verdict in verdicts]),
    )


def _digest(digests: list[str]) -> str:
    """One digest that differs if any of these does."""
    return digests[0] if len(digests) == 1 else f"{zlib.crc32(' '.join(digests).encode()):08x}"


def _print(summary: Summary) -> None:
    table = Table(show_header=False)
    rows: list[tuple[str, str]] = [
        ("seeds", f"{summary.seeds:,}"),
        ("simulated", f"{summary.simulated_hours:.2f} h"),
        ("events published", f"{summary.published:,}"),
        ("deliveries", f"{summary.deliveries:,}"),
        ("crashes", f"{summary.crashes:,}"),
        ("partitions", f"{summary.partitions:,}"),
        ("frames lost", f"{summary.lost_frames:,}"),
        ("interest changes", f"{summary.interest_changes:,}"),
        ("… during a fault", f"{summary.troubled_changes:,}"),
        ("batches of sinks", f"{summary.batches:,}"),
        ("matches of patterns", f"{summary.matches:,}"),
        ("advertisements", f"{summary.advertised:,}"),
        ("copies split", f"{summary.splits:,}"),
        ("targets moved to another tree", f"{summary.moves:,}"),
        ("disks lost", f"{summary.lost_disks:,}"),
        ("streams fetched from copies", f"{summary.fetches:,}"),
        ("lives of streams", f"{summary.lives:,}"),
        ("… with other copies", f"{summary.set_changes:,}"),
        ("largest network", f"{summary.brokers_max} brokers"),
        ("seeds per CPU second", f"{summary.seeds_per_cpu_s:.1f} (median)"),
        ("digest", summary.digest),
        ("anomalies", ", ".join(f"{n} {c}" for n, c in summary.anomalies.items()) or "none"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    console().print(table)


def _print_story(order: Order, results: list[Timed], shrunk: bool) -> None:
    """Print the story of the first failing seed."""
    failing = next((timed.verdict for timed in results if timed.verdict.anomalies), None)
    if failing is None:
        return
    anomaly = failing.anomalies[0]
    plan = plan_of(order, failing.seed)
    if shrunk:
        plan, anomaly = shrink(plan, anomaly)
    out = console()
    out.print(f"seed {failing.seed}: {anomaly.name}: {anomaly.text}")
    for line in story_of(plan, anomaly):
        out.print("  " + line, soft_wrap=True)
    out.print(f"repeat: {order.command(failing.seed)}", soft_wrap=True)
    if shrunk:
        out.print(
            f"shrunk to: {plan.publishers} publishers at {plan.rate:.1f}/s, {plan.subscribers}"
            f" subscribers, churn {plan.churn:.1f}/s, restless {plan.restless:.1f}/s,"
            f" {plan.fault_s:.1f} s with {plan.faults}"
        )
