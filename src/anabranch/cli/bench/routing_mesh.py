"""`anabranch bench routing --routing mesh`: does choosing paths by load pay?

The model of the printed algorithm, markets in simulated meshes of busy brokers, patterns with each
of the three placements, and what it all costs a broker; beside the figures of the work that mesh
routing comes from. Two parts hold all three routings against each other: `matching`, what an event
costs a relay, and `changes`, what a changed subscription or advertisement costs a network, and the
death of a broker. All but processor times and memory is the same on every machine.
"""

import os
from pathlib import Path
from typing import Literal

import msgspec
import typer

from anabranch.cli.bench.routing_mesh_page import write_mesh_page
from anabranch.cli.bench.routing_mesh_report import MeshReport, mesh_grids
from anabranch.cli.bench.routing_report import print_grids
from anabranch.cli.bench.tables import Steps, steps_on_stderr
from anabranch.cli.output import console, print_json
from anabranch.sim.evaluation import changes, dying
from anabranch.sim.evaluation.claims import claims
from anabranch.sim.evaluation.delays import Delays, Scene
from anabranch.sim.evaluation.overhead import Overhead, measure
from anabranch.sim.evaluation.parts import (
    DELAY_PARTS,
    play_all,
    play_places,
    play_relays,
    scenes,
)
from anabranch.sim.evaluation.places import Placed, place_scenes
from anabranch.sim.evaluation.printed import Tally, survey
from anabranch.sim.evaluation.relaying import Relayed, relay_jobs

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
    return measure(brokers, seconds, _TIMES if scale >= SCALE else 1, seed)


def _with_changes(report: MeshReport, steps: Steps) -> MeshReport:
    """What changes cost, and the death of a broker, with all three routings."""
    seed, scale = report.seed, report.scale
    towns = [changes.Town(*network, seed) for network in changes.NETWORKS]
    many = max(100, round(changes.MANY * min(1.0, scale)))
    deaths = range(seed, seed + max(1, round(_DEATHS * scale)))
    runs = [
        (routing, death, each)
        for death in dying.DEATHS
        for routing in dying.ROUTINGS
        for each in deaths
    ]
    counted = steps.follow("changes", (town.changes() for town in towns), len(towns))
    return msgspec.structs.replace(
        report,
        changes=[change for every in counted for change in every],
        memory=[town.memory(many) for town in towns],
        dying=list(steps.follow("deaths", (dying.run(*each) for each in runs), len(runs))),
    )
