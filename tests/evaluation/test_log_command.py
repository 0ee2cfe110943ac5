"""`scripts/evaluate log` on a small scale: complete, and loud when something is wrong."""

import io
import sqlite3

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from evaluation import log
from evaluation.__main__ import app
from evaluation.log import Group, LogReport, Replay, _sqlite_pass, print_report


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "GROUPS", {1: 3, 64: 2, 1_024: 1})
    monkeypatch.setattr(log, "WARM_RECORDS", 10)


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["log", "--passes", "2", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_json_is_one_object_with_every_figure() -> None:
    code, output, _ = run("--json", "--record-bytes", "50")
    assert code == 0
    report = msgspec.json.decode(output)
    assert [group["in_flight"] for group in report["groups"]] == [1, 64, 1_024]
    assert [group["records"] for group in report["groups"]] == [3, 128, 1_024]
    assert all(group["store_per_s"] > 0 < group["sqlite_per_s"] for group in report["groups"])
    assert report["replay"]["store_per_s"] > 0 < report["replay"]["sqlite_per_s"]
    assert (report["record_bytes"], report["passes"]) == (50, 2)
    assert report["sqlite"] == sqlite3.sqlite_version
    assert [bar["limit"] for bar in report["bars"]] == [1.2, 1.2]


def test_tables_show_both_and_the_bars() -> None:
    code, output, _ = run()
    assert code == 0
    for word in ("in flight", "sqlite", "opening the store", "times sqlite, 1,024"):
        assert word in output


def test_records_that_do_not_come_back_end_the_run_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log, "_rate", lambda _count, _work: 1.0)
    monkeypatch.setattr(log, "_store_pass", _sqlite_pass)
    code, output, complaint = run()
    assert (code, output) == (1, "")
    assert complaint == "evaluate: error: sqlite gave 0 records back, 10 were written\n"


def test_the_quickest_pass_counts() -> None:
    replay = Replay(store_per_s=5, sqlite_per_s=6)
    assert replay.better(0, 9) == Replay(store_per_s=9, sqlite_per_s=6)
    assert replay.better(1, 4) == replay
    assert Group(64, 128, 30.0, 20.0).ratio == 1.5


@pytest.mark.parametrize(("passes", "text"), [(1, "best of 1 pass"), (2, "best of 2 passes")])
def test_a_bench_of_one_pass_says_so(passes: int, text: str) -> None:
    replay = Replay(store_per_s=1.0, sqlite_per_s=1.0)
    report = LogReport(
        record_bytes=100,
        passes=passes,
        sqlite="3",
        system="here",
        groups=[],
        replay=replay,
        bars=[],
    )
    out = io.StringIO()
    print_report(report, Console(file=out, width=120))
    assert text in {line.strip().rpartition(", ")[2] for line in out.getvalue().splitlines()}
