"""Sweeps: grids, rows, and what is not run again."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from anabranch.model.errors import LocalError
from anabranch.sim.runner import Order, run_seed
from evaluation.__main__ import app
from evaluation.routing.tree_workloads import TREE
from evaluation.spark.sweep import (
    Run,
    combined,
    evaluation_runs,
    read_grids,
    results,
    simulate,
    sweep,
)
from evaluation.spark.sweep_command import routing_report

GRID = """
[[grid]]
routing = ["tree", "flood"]
shape = "pair"
faults = "none"
subscriptions = [0, 12]
seeds = "3..4"

[[grid]]
workload = "nested"
variant = "tree"
scale = 0.01
seconds = 0.5
"""


def test_a_grid_is_all_combinations_each_once(tmp_path: Path) -> None:
    path = tmp_path / "grid.toml"
    path.write_text(GRID + GRID)
    runs = read_grids(path)
    assert len(runs) == 2 * 2 * 2 + 1
    assert len({run.key for run in runs}) == len(runs)
    assert runs[0] == Run(routing="tree", shape="pair", faults="none", seed=3)


def test_the_key_of_a_run_is_that_of_its_parameters_alone() -> None:
    assert Run(seed=1).key == Run(seed=1, variant="flood", scale=0.7).key
    assert Run(seed=1).key != Run(seed=2).key
    assert Run(seed=1).key == "ce149d64a9e9bee9f8a6"


@pytest.mark.parametrize(
    ("grid", "problem"),
    [
        ({"routng": "tree"}, "did you mean routing"),
        ({"routing": "sideways"}, "'sideways'"),
        ({"shape": "round"}, "unknown shape 'round'"),
        ({"faults": "rain"}, "'rain'"),
        ({"seeds": "many"}, "invalid seeds"),
        ({"seeds": "5..3"}, "invalid seeds"),
        ({"shape": []}, "shape is an empty list"),
        ({"brokers": -1}, "brokers is -1"),
        ({"workload": "idle"}, "unknown workload 'idle'"),
        ({"workload": "nested", "shape": "star"}, "no parameter 'shape'"),
        ({"workload": "nested", "variant": "none"}, "no variant 'none'"),
        ({"workload": "nested", "scale": 7.0}, "the scale is 7.0"),
    ],
)
def test_what_a_grid_gets_wrong_is_named(grid: dict[str, object], problem: str) -> None:
    with pytest.raises(LocalError, match=problem):
        combined(grid)


def test_a_row_has_what_the_simulation_itself_says() -> None:
    outcome = simulate(Run(shape="pair", seed=5))
    verdict = run_seed(Order(shape="pair"), 5).verdict
    assert outcome.error == ""
    assert outcome.digest == verdict.digest
    assert outcome.deliveries == verdict.deliveries
    assert outcome.frames
    assert outcome.traffic_bytes
    assert outcome.traffic_bytes > (outcome.event_bytes or 0)


def test_more_subscriptions_bring_more_deliveries() -> None:
    few, many = (
        simulate(Run(shape="pair", faults="none", subscriptions=count, seed=6))
        for count in (2, 300)
    )
    assert not few.error
    assert not many.error
    assert (few.deliveries or 0) * 4 < (many.deliveries or 0)


def test_a_simulation_that_cannot_be_run_is_a_row_with_its_error() -> None:
    outcome = simulate(Run(workload="nested", variant="none"))
    assert outcome.error.startswith("StopIteration in sweep.py")


def test_a_sweep_goes_on_where_it_stopped(spark: SparkSession, tmp_path: Path) -> None:
    path, to = tmp_path / "grid.toml", tmp_path / "results"
    path.write_text(GRID)
    runs = read_grids(path)
    assert sweep(spark, runs[:2], to).count() == 2
    kept = {file: file.stat().st_mtime_ns for file in to.glob("*.parquet")}
    # A task that was killed leaves this.
    (to / f".{runs[2].key}.0badcafe").write_bytes(b"half a file")
    found = {row["run"]: row for row in sweep(spark, runs, to).collect()}
    assert set(found) == {run.key for run in runs}
    assert all(file.stat().st_mtime_ns == then for file, then in kept.items())
    first = found[runs[0].key]
    assert (first["routing"], first["seed"], first["variant"]) == ("tree", 3, None)
    assert first["deliveries"] == simulate(runs[0]).deliveries
    assert {row["error"] for row in found.values()} == {""}
    point = json.loads(found[runs[-1].key]["point"])
    assert point["variant"] == TREE.name


def test_what_failed_is_run_again_if_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    bad = Run(workload="nested", variant="none")
    failed = sweep(spark, [bad], tmp_path).collect()
    assert [bool(row["error"]) for row in failed] == [True]
    file = next(tmp_path.glob("*.parquet"))
    before = file.stat().st_mtime_ns
    sweep(spark, [bad], tmp_path)
    assert file.stat().st_mtime_ns == before
    sweep(spark, [bad], tmp_path, retry=True)
    assert file.stat().st_mtime_ns > before
    assert results(spark, tmp_path).count() == 1


def test_the_command_runs_reports_and_ends_well(spark: SparkSession, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    words = ["--routing", "tree", "--shape", "pair", "--seeds", "0..1", "--json"]
    words += ["--master", "local[2]"]
    to = str(tmp_path / "results")
    done = CliRunner().invoke(app, ["sweep", to, *words, "--report", str(report)])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["simulations"], told["fresh"], told["failed"]) == (2, 2, 0)
    assert told["deliveries"] > 0
    assert "no anomaly" in report.read_text()
    done = CliRunner().invoke(app, ["sweep", to, "--seeds", "1", "--grid", "x.toml"])
    assert done.exit_code == 2
    assert "give --grid, or --evaluation, or parameters" in done.stderr


def test_the_page_of_the_evaluation_comes_from_rows(tmp_path: Path) -> None:
    """One cheap point of each workload stands for all of its rows."""
    measured: dict[str, dict[str, object]] = {}
    rows: list[dict[str, object]] = []
    for run in evaluation_runs(scale=0.004, seconds=0.5, changes=1, events_per_change=20):
        if run.workload not in measured:
            outcome = simulate(run)
            assert outcome.error == ""
            measured[run.workload] = json.loads(outcome.point)
        parameters: dict[str, object] = {**run.parameters}
        point = measured[run.workload]
        own = {name: value for name, value in parameters.items() if name in point}
        text = json.dumps(point | own)
        rows.append({"publishers": None, "edges": None} | parameters | {"point": text})
    report = routing_report(rows[::-1])
    assert [point.publishers for point in report.selective[:3]] == [2_000, 4_000, 6_000]
    assert [point.edges for point in report.growing[:3]] == [1, 2, 3]
    assert report.crashing[0].variant == TREE.name
    assert report.size.scale == 0.004
    assert len(report.shapes) > 8


def test_files_of_a_sweep_are_plain_parquet(spark: SparkSession, tmp_path: Path) -> None:
    sweep(spark, [Run(shape="single", faults="none", seed=1)], tmp_path)
    row = pq.read_table(tmp_path).to_pylist()[0]
    assert row["workload"] == "swarm"
    assert row["cpu_s"] > 0
