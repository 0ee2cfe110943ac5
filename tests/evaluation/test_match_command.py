"""`scripts/evaluate match` on a small scale: complete, right, and loud when something is wrong."""

from collections.abc import Callable, Sequence

import msgspec
import pytest
from typer.testing import CliRunner

from evaluation import match
from evaluation.__main__ import app
from evaluation.match import StartUp
from evaluation.measurement import least_pass_ns, least_slices_ns
from evaluation.workloads import IntervalWorkload

SMALL = ["match", "--subscriptions", "300", "--events", "12"]


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every measurement as short as it can be; starting processes is left out."""

    def few_passes(work: Callable[[], object], *, budget_s: float = 0) -> int:
        return least_pass_ns(work, budget_s=0 * budget_s)

    def few_slices(works: Sequence[Callable[[], object]]) -> int:
        return least_slices_ns(works, budget_s=0, passes_min=1)

    monkeypatch.setattr(match, "least_pass_ns", few_passes)
    monkeypatch.setattr(match, "least_slices_ns", few_slices)
    monkeypatch.setattr(match, "least_pass_ns", few_passes)
    monkeypatch.setattr(match, "PHASE_S", 0.01)
    monkeypatch.setattr(match, "CHUNK_UPDATES", 50)
    monkeypatch.setattr(match, "measure_start_up", lambda: StartUp(cold_s=1.0, cached_s=0.5))


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stock", "text", "dnf"])
def test_json_is_one_object_with_every_figure(name: str) -> None:
    code, output, _ = run(*SMALL, "--workload", name, "--json")
    assert code == 0
    report = msgspec.json.decode(output)
    assert report["workload"] == name
    assert report["subscriptions"] == 300
    assert report["matching"]["batch_us_per_event"] > 0
    assert report["build"]["index_bytes_per_subscription"] > 0
    assert report["update_rates"]["adds"]["median_per_s"] > 0
    assert report["slowdown"]["updates"] > 0
    assert report["naive_loop"]["ratio"] > 0
    assert report["numpy_fallback"]["ratio"] > 0
    assert (report["mixed_ratio"] is None) == (name == "stock")
    assert report["bars"] == []


def test_tables_name_the_figures_and_say_that_no_bar_binds() -> None:
    code, output, _ = run(*SMALL, "--no-rivals", "--no-start-up")
    assert code == 0
    assert "µs/event" in output
    assert "naive loop" not in output
    assert "start-up" not in output
    assert "none binds here" in output


def test_wrong_answers_end_the_run_with_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        IntervalWorkload, "matching", lambda _self, events, _start, _stop: [[-1] for _ in events]
    )
    code, output, complaint = run(*SMALL, "--json")
    assert code == 1
    assert output == ""
    assert complaint.count("\n") == 1
    assert "instead of 1" in complaint


def test_unknown_workload_is_refused() -> None:
    code, _, complaint = run("match", "--workload", "bonds")
    assert code == 2
    assert "bonds" in complaint


def test_help_names_both_commands() -> None:
    code, output, _ = run("--help")
    assert code == 0
    assert "match" in output
    assert "cover" in output
