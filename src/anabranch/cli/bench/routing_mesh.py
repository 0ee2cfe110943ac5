"""`anabranch bench routing --routing mesh`: does choosing paths by load pay?

The model of the printed algorithm, markets in simulated meshes of busy brokers, patterns with each
of the three placements, and what it all costs a broker; beside the figures of the work that mesh
routing comes from. All but the overhead is the same on every machine.
"""

import os
from pathlib import Path
from typing import Literal

import typer

from anabranch.cli.bench.routing_mesh_page import write_mesh_page
from anabranch.cli.bench.routing_mesh_report import MeshReport, mesh_grids
from anabranch.cli.bench.routing_report import print_grids
from anabranch.cli.bench.tables import Steps, steps_on_stderr
from anabranch.cli.output import console, print_json
from anabranch.sim.evaluation.claims import claims
from anabranch.sim.evaluation.delays import Delays
from anabranch.sim.evaluation.overhead import MatchCost, Overhead, match_cost, measure
from anabranch.sim.evaluation.parts import (
    DELAY_PARTS,
    DelayPart,
    play_all,
    play_places,
    scenes,
)
from anabranch.sim.evaluation.places import Placed, place_scenes
from anabranch.sim.evaluation.printed import Tally, survey

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
]
SCALE = 0.2
_CASES = 4_000
_SUBSCRIPTIONS = 20_000
_TIMES = 3


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
    for each in DELAY_PARTS if part == "all" else (part,):
        if each in DELAY_PARTS:
            delays += _delays(each, scale, seed, steps, processes)
    overheads: list[Overhead] = []
    match: MatchCost | None = None
    if part in ("all", "overhead"):
        overheads, match = _overhead(scale, seed, steps)
    return MeshReport(
        part=part,
        scale=scale,
        seed=seed,
        model=tallies,
        delays=delays,
        overheads=overheads,
        match=match,
        placed=_placed(scale, seed, steps, processes) if part in ("all", "placement") else [],
        claims=claims(delays, overheads, match),
    )


def _model(scale: float, seed: int, steps: Steps) -> list[Tally]:
    steps.begin("model")
    return survey(max(40, round(_CASES * scale)), seed)


def _delays(part: DelayPart, scale: float, seed: int, steps: Steps, processes: int) -> list[Delays]:
    every = scenes(part, scale, seed)
    steps.begin(part, len(every))
    found = []
    for delays in play_all(every, processes):
        found.append(delays)
        steps.advance()
    return found


def _placed(scale: float, seed: int, steps: Steps, processes: int) -> list[Placed]:
    every = place_scenes(scale, seed)
    steps.begin("placement", len(every))
    found = []
    for placed in play_places(every, processes):
        found.append(placed)
        steps.advance()
    return found


def _overhead(scale: float, seed: int, steps: Steps) -> tuple[list[Overhead], MatchCost]:
    steps.begin("overhead", 2)
    brokers, seconds = (30, 5.0) if scale >= SCALE else (8, 2.0)
    overheads = measure(brokers, seconds, _TIMES if scale >= SCALE else 1, seed)
    steps.advance()
    cost = match_cost(max(100, round(_SUBSCRIPTIONS * min(1.0, scale))), seed)
    steps.advance()
    return overheads, cost
