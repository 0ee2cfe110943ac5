"""What a sweep runs: grids of parameters, from options or from a TOML file.

    [[grid]]
    routing = ["tree", "flood"]
    shape = ["star", "redundant"]
    brokers = [10, 40]
    subscriptions = [10, 100]
    faults = ["none", "kill=0.5,cut"]
    seeds = "0..99"

A grid stands for all combinations of what is listed. A value alone is a list of one; what is not
said has its default. There are two families of workloads:

    swarm                                 whole networks with faults, judged (docs/SIMULATION.md);
                                          parameters: routing, shape, brokers (at most),
                                          subscriptions (at the start), faults, seeds
    selective, growing, crashing, nested  the workloads of docs/EVALUATION.md; parameters: variant,
                                          publishers, edges, scale, seconds, changes,
                                          events_per_change, seeds

A parameter that is unknown, or that its workload does not have, is an error that names it.

This module keeps no state.
"""

import hashlib
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from typing import Literal

import msgspec

from anabranch.core.broker import RoutingName
from anabranch.model.errors import LocalError
from anabranch.sim.evaluation import crashing, growing, nested, selective
from anabranch.sim.fault_mix import ANY, asked_mix
from anabranch.sim.swarm import SHAPES

Workload = Literal["swarm", "selective", "growing", "crashing", "nested"]

_SWARM = ("routing", "shape", "brokers", "subscriptions", "faults")
#: Workload → the parameters it has beside its seeds.
PARAMETERS: dict[Workload, tuple[str, ...]] = {
    "swarm": _SWARM,
    "selective": ("variant", "publishers", "scale", "seconds"),
    "growing": ("variant", "edges", "scale", "changes", "events_per_change"),
    "crashing": ("variant", "scale"),
    "nested": ("variant", "scale", "seconds"),
}
VARIANTS = {
    "selective": selective.VARIANTS,
    "growing": growing.VARIANTS,
    "crashing": crashing.VARIANTS,
    "nested": nested.VARIANTS,
}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation. What its workload does not have keeps its default."""

    workload: Workload = "swarm"
    seed: int = 1
    routing: RoutingName = "tree"
    shape: str = "any"
    #: At most so many; 0: as many as the seed draws.
    brokers: int = 0
    #: Made at the start; 0: as many as the seed draws.
    subscriptions: int = 0
    faults: str = ANY
    variant: str = "tree"
    publishers: int = 2_000
    edges: int = 1
    scale: float = 0.05
    seconds: float = 3.0
    changes: int = 2
    events_per_change: int = 500

    @property
    def parameters(self) -> dict[str, str | int | float]:
        """Those that its workload has."""
        names = ("workload", *PARAMETERS[self.workload], "seed")
        return {name: getattr(self, name) for name in names}

    @property
    def key(self) -> str:
        """A name for it: the same for the same parameters, everywhere."""
        text = msgspec.json.encode(self.parameters, order="deterministic")
        return hashlib.sha256(text).hexdigest()[:20]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.parameters.items())


def read_grids(path: Path) -> list[Run]:
    """The simulations that a file asks for, each once."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LocalError(f"{path} is no TOML: {error}") from error
    grids = document.get("grid")
    if not isinstance(grids, list) or not grids or set(document) != {"grid"}:
        raise LocalError(f"{path} has to consist of tables [[grid]]")
    runs: dict[str, Run] = {}
    for number, grid in enumerate(grids, 1):
        try:
            runs |= {run.key: run for run in combined(grid)}
        except LocalError as error:
            raise LocalError(f"{path}, grid {number}: {error}") from error
    return list(runs.values())


def combined(grid: Mapping[str, object]) -> list[Run]:
    """All combinations of a grid."""
    lists = {name: _listed(value) for name, value in grid.items() if name != "seeds"}
    for name, values in lists.items():
        if not values:
            raise LocalError(f"{name} is an empty list, so there is nothing to run")
    workloads = lists.pop("workload", ["swarm"])
    seeds = _seeds(grid.get("seeds", 1))
    return [
        _run({"workload": workload, "seed": seed} | dict(zip(lists, values, strict=True)))
        for workload in workloads
        for values in product(*lists.values())
        for seed in seeds
    ]


def _run(given: Mapping[str, object]) -> Run:
    workload = str(given["workload"])
    parameters = {str(name): known for name, known in PARAMETERS.items()}
    if workload not in parameters:
        raise LocalError(f"there is no workload {workload!r}; there is {', '.join(parameters)}")
    known = ("workload", "seed", *parameters[workload])
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known[1:])}"
            raise LocalError(f"the workload {workload!r} has no parameter {name!r}; {hint}")
    try:
        run = msgspec.convert(given, Run)
    except msgspec.ValidationError as error:
        raise LocalError(f"{error} in {dict(given)}") from error
    _check(run)
    return run


def _check(run: Run) -> None:
    if run.shape not in SHAPES:
        raise LocalError(f"there is no shape {run.shape!r}; there is {', '.join(SHAPES)}")
    asked_mix(run.faults)
    for name in ("seed", "brokers", "subscriptions"):
        if getattr(run, name) < 0:
            raise LocalError(f"{name} is {getattr(run, name)}; it is 0 or more")
    if run.workload != "swarm":
        names = [variant.name for variant in VARIANTS[run.workload]]
        if run.variant not in names:
            raise LocalError(
                f"{run.workload} has no variant {run.variant!r}; it has {', '.join(names)}"
            )
        if not 0.002 <= run.scale <= 1:
            raise LocalError(f"the scale is {run.scale}; it is between 0.002 and 1")
        if min(run.seconds, run.publishers, run.edges, run.changes, run.events_per_change) <= 0:
            raise LocalError(f"a number is not above 0 in: {run}")


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _seeds(value: object) -> list[int]:
    """Seeds as `7`, `[1, 2]`, or `"0..99"`."""
    if isinstance(value, str):
        first, dots, last = value.partition("..")
        if not first.isdecimal() or (dots and not last.isdecimal()):
            raise LocalError(f"{value!r} are no seeds; write one, a list, or FIRST..LAST")
        found: list[object] = list(range(int(first), int(last or first) + 1))
    else:
        found = _listed(value)
    is_right = all(isinstance(seed, int) and not isinstance(seed, bool) for seed in found)
    if not found or not is_right:
        raise LocalError(f"{value!r} are no seeds; write one, a list, or FIRST..LAST")
    return [seed for seed in found if isinstance(seed, int)]


def evaluation_runs(
    *,
    scale: float,
    seconds: float = 3.0,
    changes: int = 2,
    events_per_change: int = 500,
    seed: int = 1,
) -> list[Run]:
    """What docs/EVALUATION.md is made of, at a scale."""
    common: dict[str, object] = {"scale": scale, "seeds": seed}
    lasting = common | {"seconds": seconds}
    growth = {"changes": changes, "events_per_change": events_per_change}
    grids: list[dict[str, object]] = [
        lasting | {"workload": "selective", "publishers": list(selective.PUBLISHERS)},
        common | growth | {"workload": "growing", "edges": list(growing.EDGES)},
        common | {"workload": "crashing"},
        lasting | {"workload": "nested"},
    ]
    names = {name: [each.name for each in variants] for name, variants in VARIANTS.items()}
    return [
        run for grid in grids for run in combined(grid | {"variant": names[str(grid["workload"])]})
    ]
