"""The large counts of the project: which commands are run, how often, and what of them is counted.

This module keeps no state.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.process import memory_attack, step_attack

#: Hypothesis reports, per phase of each test, how many generated examples passed.
EXAMPLES_PASSED = r"(\d+) passing\b"

#: Seeds in which little happens prove little: what a hundred of them must have had.
SEEDS_FLOORS = (
    ("deliveries", 100_000),
    ("crashes", 250),
    ("troubled_changes", 1_000),
    ("batches", 200),
    ("matches", 300),
)
#: The same of meshes: on fixed paths copies are split, on others targets leave their trees. A few
#: seeds have most of these.
MESH_FLOORS = (("splits", 4_000), ("moves", 200), ("advertised", 300))

#: The same of streams with copies.
COPIES_FLOORS = (("lost_disks", 25), ("fetches", 25), ("lives", 300), ("set_changes", 50))
#: The same where disks are set back, and little else happens.
SET_BACK_FLOORS = (("deliveries", 20_000), ("fetches", 100), ("set_changes", 200))

#: The same of four lives of a broker whose power fails after every call to its disk.
POWER_FLOORS = (("prefixes", 600), ("losses", 3_000), ("torn", 300), ("promises", 200))

#: The same of networks that are in parts for minutes, in which as much happens in more time.
DIVIDED_FLOORS = (("deliveries", 50_000), ("interest_changes", 1_000))


@dataclass(frozen=True)
class Job:
    """A command, and how often it is to be run with another seed."""

    name: str
    #: Arguments of the interpreter; `{seed}` becomes the number of the chunk.
    arguments: tuple[str, ...]
    chunks: int
    #: What is counted, and the expression whose first groups, summed, are that count.
    unit: str
    counted: str
    #: Whether it measures time: nothing else runs meanwhile, and the JSON it prints is kept.
    measures: bool = False
    #: Whether it prints one JSON object per chunk whose numbers are to be put together.
    adds_up: bool = False
    #: Of what adds up: a name, and how much of it there must be in a chunk, on the average.
    floors: tuple[tuple[str, int], ...] = ()


def jobs(root: Path) -> list[Job]:
    """The table of jobs."""
    properties = sorted(root.glob("tests/property/**/test_*.py"))
    property_jobs = (_property_job(path.relative_to(root)) for path in properties)
    processes = [*_kill_jobs(), *_step_jobs(), *_memory_jobs(), _power_job(), *_fuzz_jobs()]
    return [*property_jobs, *_sim_jobs(), *processes, *_spark_jobs(), *_bench_jobs()]


def _property_job(path: Path) -> Job:
    run_file = ("-m", "pytest", "-q", "-p", "no:cacheprovider", path.as_posix())
    options = ("--hypothesis-seed={seed}", "--hypothesis-show-statistics")
    name = f"property/{path.stem.removeprefix('test_')}"
    return Job(name, (*run_file, *options), 40, "examples", EXAMPLES_PASSED)


#: Name → its options, its chunks, and its floors.
_SIMULATIONS = {
    "tree": (("--routing", "tree"), 200, SEEDS_FLOORS),
    "mesh": (("--routing", "mesh"), 100, (*SEEDS_FLOORS, *MESH_FLOORS)),
    "flood": (("--routing", "flood"), 10, SEEDS_FLOORS),
    "copies-tree": (("--copies", "--routing", "tree"), 100, COPIES_FLOORS),
    "copies-mesh": (("--copies", "--routing", "mesh"), 50, COPIES_FLOORS),
    "copies-flood": (("--copies", "--routing", "flood"), 10, COPIES_FLOORS),
    "copies-set-back": (
        ("--copies", "--routing", "tree", "--faults", "roll-back-disk"),
        10,
        SET_BACK_FLOORS,
    ),
    "divided": (
        ("--routing", "mesh", "--shape", "random", "--brokers", "14", "--faults", "divide"),
        10,
        DIVIDED_FLOORS,
    ),
}


def _sim_jobs() -> Iterator[Job]:
    """A hundred seeds per chunk: chunk 17 has the seeds 1700 to 1799."""
    for name, (options, chunks, floors) in _SIMULATIONS.items():
        command = ("-m", "anabranch", "sim", *options, "--processes", "1", "--json")
        seeds = ("--seeds", "{seed}00..{seed}99")
        job = Job(f"sim/{name}", (*command, *seeds), chunks, "seeds", r'"seeds":(\d+)')
        yield replace(job, adds_up=True, floors=floors)


def _kill_jobs() -> Iterator[Job]:
    """Ten kills and 40,000 events per chunk, in real processes, on either kind of network."""
    command = ("-m", "tests.process.kill_loop", "--seed", "{seed}", "--json")
    amount = ("--kills", "10", "--events", "40000", "--rate", "800")
    kills = Job("process/kills", (*command, *amount), 6, "kills", r'"kills":(\d+)', adds_up=True)
    yield kills
    on_mesh = (*kills.arguments, "--routing", "mesh")
    yield replace(kills, name="process/kills-mesh", arguments=on_mesh)


def _memory_jobs() -> Iterator[Job]:
    """Clients that want a broker's memory; it fails if they get more than 256 MiB of it."""
    unit = ("connections", r'"connections":(\d+)')
    for attack in memory_attack.ATTACKS:
        command = ("-m", "tests.process.memory_attack", "--attack", attack, "--scale", "1")
        yield Job(f"process/memory-{attack}", (*command, "--json"), 1, *unit, measures=True)


def _power_job() -> Job:
    """Every power cut of four lives per chunk, each on what a cut left of the one before."""
    command = ("-m", "tests.power.cut_loop", "--seed", "{seed}", "--json")
    amount = ("--lives", "4", "--rounds", "12", "--chances", "2")
    job = Job("power/cuts", (*command, *amount), 60, "states", r'"states":(\d+)')
    return replace(job, adds_up=True, floors=POWER_FLOORS)


def _fuzz_jobs() -> Iterator[Job]:
    """Hostile clients and brokers: some hundred examples per chunk, hours in all."""
    for kind, examples, chunks in ("core", "200", 40), ("process", "60", 20):
        command = ("-m", "tests.fuzz.run", kind, "--seed", "{seed}", "--json")
        counted = r'"examples":(\d+)'
        arguments = (*command, "--examples", examples)
        yield Job(f"fuzz/{kind}", arguments, chunks, "examples", counted, adds_up=True)


def _step_jobs() -> Iterator[Job]:
    """Attacks on the event loop of real processes; one fails if a bound does not hold."""
    command = ("-m", "tests.process.step_attack", "--bound", "--json", "--attack")
    for attack in step_attack.ATTACKS:
        arguments = (*command, attack)
        yield Job(
            f"process/steps-{attack}", arguments, 1, "events", r'"honest":(\d+)', measures=True
        )


def _spark_jobs() -> Iterator[Job]:
    """Kills of drivers, workers and brokers; clusters; an audit; sweeps of 200 simulations."""
    kills = ("-m", "tests.spark.kill_series", "--seed", "{seed}", "--rows", "150000", "--json")
    yield Job("spark/kills", kills, 2, "rows", r'"rows":(\d+)', adds_up=True)
    for name in "clusters", "archive_crashes", "detect":
        tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/spark/test_{name}.py")
        yield Job(f"spark/{name}", tests, 1, "tests", r"(\d+) passed")
    audit = ("-m", "evaluation", "spark-audit", "--rows", "10000000", "--json")
    yield Job("spark/audit", audit, 1, "rows", r'"rows":(\d+)', measures=True)
    for workload, events in ("mixed", "1000000"), ("stock", "10000000"):
        match = ("-m", "evaluation", "spark-match", "--workload", workload, "--json")
        size = ("--events", events, "--checked", "20000")
        name = f"spark/match-{workload}"
        yield Job(name, (*match, *size), 1, "events", r'"events":(\d+)', measures=True)
    for name in "conditions", "archive_tables":
        agreeing = _property_job(Path(f"tests/spark/test_{name}.py"))
        yield replace(agreeing, name=f"spark/{name}", chunks=10)
    sweep = ("-m", "evaluation", "sweep", ".soak/sweep-{seed}", "--again", "--json")
    grid = ("--routing", "tree", "--routing", "flood", "--seeds", "{seed}00..{seed}99")
    yield Job("spark/sweep", (*sweep, *grid), 10, "runs", r'"simulations":(\d+)', adds_up=True)


def _bench_jobs() -> Iterator[Job]:
    for workload in "stock", "mixed", "ranges":
        yield _bench_job("match", workload, 200_000)
        yield _bench_job("match", workload, 1_000_000)
    for workload in "text", "dnf", "wide":
        yield _bench_job("match", workload, 200_000)
    for workload in "ranges", "nested":
        yield _bench_job("cover", workload, 100_000)
    spark = ("-m", "evaluation", "spark", "--master", "local[2]", "--json")
    yield Job("bench/spark", spark, 1, "events", r'"events":\s*(\d+)', measures=True)


def _bench_job(command: str, workload: str, subscriptions: int) -> Job:
    options = ("--workload", workload, "--subscriptions", str(subscriptions), "--json")
    return Job(
        name=f"bench/{command}-{workload}-{subscriptions}",
        arguments=("-m", "evaluation", command, *options),
        chunks=1,
        unit="subscriptions",
        counted=r'"subscriptions":\s*(\d+)',
        measures=True,
    )
