"""Many simulations at once: one for each task of Spark, one row for each in Parquet.

    results = sweep(spark, read_grids(path), directory)
    results.groupBy("routing").avg("traffic_bytes").show()

Simulations know nothing of each other, so a sweep uses every core of a cluster. Rules:

1. Each simulation is a file in the directory, named by its parameters, written beside its place and
   moved there whole. So whatever ends a sweep, the next one goes on where it stopped: what is there
   is not run again.
2. A simulation that fails is a row with an `error`; `retry` runs those again.
3. The directory must be the same for the driver and for all tasks: on a cluster, a shared one.
4. Results belong to the version of the code that made them (column `version`). For another version
   take another directory.

State kept: the directory.

Grids
-----
What a sweep runs: grids of parameters, from options or from a TOML file.

    [[grid]]
    routing = ["tree", "flood"]
    shape = ["star", "redundant"]
    brokers = [10, 40]
    subscriptions = [10, 100]
    faults = ["none", "kill=0.5,cut"]
    seeds = "0..99"

A grid stands for all combinations of what is listed. A value alone is a list of one; what is not
said has its default. There are two families of workloads:

    swarm                                 whole networks with faults, judged;
                                          see docs/explanation/simulation.md;
                                          parameters: routing, shape, brokers (at most),
                                          subscriptions (at the start), faults, seeds
    selective, growing, crashing, nested  the workloads of docs/results/evaluation.md;
                                          parameters: variant, publishers, edges,
                                          scale, seconds, changes, events_per_change, seeds

A parameter that is unknown, or that its workload does not have, is an error that names it.

One simulation
--------------
One simulation of a sweep: its parameters in, a row out, whatever happens.

A simulation that cannot be run, or breaks, is a row with its parameters and what went wrong: the
seed is worth more than the job. CPU time is that of the process while it ran.
"""

import atexit
import hashlib
import secrets
import shutil
import tempfile
import time
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql.functions import col
from pyspark.sql.pandas.types import from_arrow_schema

from anabranch.core.routing.registry import RoutingName
from anabranch.model.errors import LocalError
from anabranch.sim.faults import ANY, asked_mix
from anabranch.sim.runner import Order, plan_of
from anabranch.sim.simulation import Simulation
from anabranch.sim.swarm import SHAPES, Shape
from evaluation.routing.meter import Meter
from evaluation.routing.tree_workloads import (
    CRASHING_VARIANTS,
    EDGES,
    GROWING_VARIANTS,
    NESTED_VARIANTS,
    PUBLISHERS,
    SELECTIVE_VARIANTS,
    CrashingRun,
    GrowingPoint,
    NestedPoint,
    SelectivePoint,
    Variant,
    measure_crashing,
    measure_growing,
    measure_nested,
    measure_selective,
)

# -- grids ----------------------------------------------------------------------------------------


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
    "selective": SELECTIVE_VARIANTS,
    "growing": GROWING_VARIANTS,
    "crashing": CRASHING_VARIANTS,
    "nested": NESTED_VARIANTS,
}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One simulation. What its workload does not have keeps its default."""

    workload: Workload = "swarm"
    seed: int = 1
    routing: RoutingName = "tree"
    shape: str = "any"
    #: At most this many; 0: as many as the seed draws.
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
        raise LocalError(f"{path} is not TOML: {error}") from error
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
        raise LocalError(f"unknown workload {workload!r}; choose from {', '.join(parameters)}")
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
        raise LocalError(f"unknown shape {run.shape!r}; choose from {', '.join(SHAPES)}")
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
            raise LocalError(f"invalid seeds {value!r}; write one, a list, or FIRST..LAST")
        found: list[object] = list(range(int(first), int(last or first) + 1))
    else:
        found = _listed(value)
    is_right = all(isinstance(seed, int) and not isinstance(seed, bool) for seed in found)
    if not found or not is_right:
        raise LocalError(f"invalid seeds {value!r}; write one, a list, or FIRST..LAST")
    return [seed for seed in found if isinstance(seed, int)]


def evaluation_runs(
    *,
    scale: float,
    seconds: float = 3.0,
    changes: int = 2,
    events_per_change: int = 500,
    seed: int = 1,
) -> list[Run]:
    """What docs/results/evaluation.md is made of, at a scale."""
    common: dict[str, object] = {"scale": scale, "seeds": seed}
    lasting = common | {"seconds": seconds}
    growth = {"changes": changes, "events_per_change": events_per_change}
    grids: list[dict[str, object]] = [
        lasting | {"workload": "selective", "publishers": list(PUBLISHERS)},
        common | growth | {"workload": "growing", "edges": list(EDGES)},
        common | {"workload": "crashing"},
        lasting | {"workload": "nested"},
    ]
    names = {name: [each.name for each in variants] for name, variants in VARIANTS.items()}
    return [
        run for grid in grids for run in combined(grid | {"variant": names[str(grid["workload"])]})
    ]


# -- one simulation -------------------------------------------------------------------------------


_encoder = msgspec.json.Encoder(order="deterministic")


class Outcome(msgspec.Struct, kw_only=True):
    """What came of a simulation; what is not known stays None."""

    anomalies: int = 0
    #: Name → how many, as JSON.
    anomaly_names: str = "{}"
    #: Brokers of the network.
    size: int | None = None
    published: int | None = None
    deliveries: int | None = None
    crashes: int | None = None
    lost_frames: int | None = None
    interest_changes: int | None = None
    #: Over all links: frames, and bytes of all kinds; then those of events and of control.
    frames: int | None = None
    traffic_bytes: int | None = None
    event_bytes: int | None = None
    control_bytes: int | None = None
    simulated_s: float | None = None
    cpu_s: float = 0.0
    digest: str = ""
    #: Of a workload of the evaluation, everything it counted, as JSON.
    point: str = ""
    #: Why there is nothing else.
    error: str = ""


def simulate(run: Run) -> Outcome:
    """Run it."""
    begin = time.process_time()
    try:
        outcome = _swarm(run) if run.workload == "swarm" else _evaluation(run)
    except Exception as error:  # noqa: BLE001 - whatever it was, it is a row
        outcome = Outcome(error=_told(error))
    outcome.cpu_s = round(time.process_time() - begin, 3)
    return outcome


def _swarm(run: Run) -> Outcome:
    shape: Shape = msgspec.convert(run.shape, Shape)
    plan = plan_of(Order(run.routing, shape, run.brokers or None, run.faults), run.seed)
    plan = msgspec.structs.replace(plan, subscriptions=run.subscriptions)
    simulation = Simulation(plan)
    meter = Meter(simulation.world)
    verdict = simulation.run()
    links = meter.counts().everywhere()
    names = Counter(anomaly.name for anomaly in verdict.anomalies)
    return Outcome(
        anomalies=len(verdict.anomalies),
        anomaly_names=_encoder.encode(names).decode(),
        size=verdict.brokers,
        published=verdict.published,
        deliveries=verdict.deliveries,
        crashes=verdict.crashes,
        lost_frames=verdict.lost_frames,
        interest_changes=verdict.interest_changes,
        frames=links.frames,
        traffic_bytes=links.all_bytes,
        event_bytes=links.event_bytes,
        control_bytes=links.control_bytes,
        simulated_s=verdict.simulated_s,
        digest=verdict.digest,
    )


def _evaluation(run: Run) -> Outcome:
    variant = next(each for each in VARIANTS[run.workload] if each.name == run.variant)
    point = _measured(run, variant)
    anomalies = 0
    if isinstance(point, CrashingRun):
        anomalies = sum(group.missing + group.repeated for group in point.groups)
    deliveries = getattr(point, "deliveries", None)
    return Outcome(
        anomalies=anomalies,
        published=point.published,
        deliveries=deliveries,
        point=_encoder.encode(point).decode(),
    )


def _measured(
    run: Run, variant: Variant
) -> SelectivePoint | GrowingPoint | CrashingRun | NestedPoint:
    if run.workload == "selective":
        return measure_selective(variant, run.publishers, run.scale, run.seconds, run.seed)
    if run.workload == "growing":
        length = (run.changes, run.events_per_change)
        return measure_growing(variant, run.edges, run.scale, *length, run.seed)
    if run.workload == "crashing":
        return measure_crashing(variant, run.scale, run.seed)
    return measure_nested(variant, run.scale, run.seconds, run.seed)


def _told(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    return f"{type(error).__name__} in {place}: {error}"


# -- sweep ----------------------------------------------------------------------------------------


_SUFFIX = ".parquet"
_TYPES = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    int | None: pa.int64(),
    float | None: pa.float64(),
}


def _arrow() -> pa.Schema:
    fields = [("run", pa.string()), ("version", pa.string())]
    parts = (*msgspec.structs.fields(Run), *msgspec.structs.fields(Outcome))
    fields += [(field.name, _TYPES.get(field.type, pa.string())) for field in parts]
    return pa.schema(fields)


SCHEMA = _arrow()


def sweep(
    spark: SparkSession,
    runs: Sequence[Run],
    directory: Path,
    *,
    retry: bool = False,
    again: bool = False,
) -> DataFrame:
    """Run what is missing, or with `again` everything; all rows of the directory."""
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    missing = list(runs) if again else left(spark, runs, directory, retry=retry)
    if missing:
        _ship(spark)
        numbers = spark.range(0, len(missing), 1, len(missing))
        told = numbers.mapInArrow(_running(missing, str(directory)), "run string").collect()
        gone = [row["run"] for row in told if not _file(directory, row["run"]).exists()]
        if gone:
            raise LocalError(
                f"tasks have written {len(gone):,} results to {directory}, which this machine does"
                " not see; give a directory that all machines share"
            )
    return results(spark, directory)


def _ship(spark: SparkSession) -> None:
    """Let the workers of a cluster import this package, which is not installed there. Each fetches
    it with its first task, so the archive stays until this process ends."""
    if not is_remote() and (spark.sparkContext.master or "").startswith("local["):
        return
    place = Path(tempfile.mkdtemp(prefix="anabranch-evaluate-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    package = Path(__file__).parents[1]
    name = str(place / f"{package.name}-{secrets.token_hex(4)}")
    archive = shutil.make_archive(name, "zip", package.parent, package.name)
    spark.addArtifacts(archive, pyfile=True)


def left(
    spark: SparkSession, runs: Sequence[Run], directory: Path, *, retry: bool = False
) -> list[Run]:
    """Those that are not in the directory; with `retry` also those that failed."""
    done = {path.stem for path in directory.glob(f"*{_SUFFIX}")}
    if retry and done:
        failed = results(spark, directory).where(col("error") != "").select("run").collect()
        done -= {row["run"] for row in failed}
    return [run for run in {run.key: run for run in runs}.values() if run.key not in done]


def results(spark: SparkSession, directory: Path) -> DataFrame:
    """All rows of a directory."""
    schema = from_arrow_schema(SCHEMA)
    if not any(directory.glob(f"*{_SUFFIX}")):
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(str(directory))


def _running(
    runs: Sequence[Run], directory: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                write_row(runs[number], simulate(runs[number]), Path(directory))
                keys = pa.array([runs[number].key])
                yield pa.RecordBatch.from_arrays([keys], names=["run"])

    return run


def write_row(run: Run, outcome: Outcome, directory: Path) -> None:
    """The file of one simulation, whole or not at all."""
    row: dict[str, object] = {"run": run.key, "version": version("anabranch")}
    row |= run.parameters | msgspec.to_builtins(outcome)
    fresh = directory / f".{run.key}.{secrets.token_hex(4)}"
    pq.write_table(pa.Table.from_pylist([row], schema=SCHEMA), fresh)
    fresh.replace(_file(directory, run.key))


def _file(directory: Path, key: str) -> Path:
    return directory / f"{key}{_SUFFIX}"
