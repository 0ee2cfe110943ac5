"""`scripts/evaluate routing` on a small scale: complete, the same every time, with a page."""

import sys
from pathlib import Path

import msgspec
import pytest
from rich.progress import Progress
from typer.testing import CliRunner

from anabranch.cli.screen import Steps
from evaluation.__main__ import app
from evaluation.routing.command import evaluate
from evaluation.routing.tree import RoutingReport, Size, grids, write_page
from evaluation.routing.tree_model import Shape

TINY = Size(
    scale=0.005,
    seconds=1.0,
    publishers=(2_000, 6_000),
    edges=(1, 3),
    events_per_change=100,
    changes=1,
    seed=1,
)


@pytest.fixture(scope="module")
def report() -> RoutingReport:
    return evaluate(TINY, "all", Steps(Progress(disable=True)))


@pytest.mark.slow
def test_every_workload_and_the_model_are_in_the_report(report: RoutingReport) -> None:
    assert len(report.selective) == 4 * 2
    assert len(report.growing) == 5 * 2
    assert [run.variant for run in report.crashing] == ["tree", "flood"]
    assert len(report.nested) == 3
    assert len(report.fits) == 5
    assert {shape.workload for shape in report.shapes} == {
        "selective",
        "growing",
        "crashing",
        "nested",
    }


@pytest.mark.slow
def test_shapes_of_traffic_agree_at_any_size(report: RoutingReport) -> None:
    traffic = [shape for shape in report.shapes if shape.name.startswith("events into the edge")]
    assert [shape.agrees for shape in traffic] == [True, True]
    assert [round(shape.measured) for shape in traffic] == [1, 3]


@pytest.mark.slow
def test_a_shape_outside_of_its_range_differs() -> None:
    assert Shape("w", "flat", 1.05, 0.9, 1.1).agrees
    assert not Shape("w", "flat", 1.2, 0.9, 1.1).agrees


@pytest.mark.slow
def test_all_rows_of_a_grid_have_all_columns(report: RoutingReport) -> None:
    for grid in grids(report):
        assert {len(row) for row in grid.rows} == {len(grid.heads)} == {len(grid.numbers())}


@pytest.mark.slow
def test_page_has_all_grids_and_a_picture(report: RoutingReport, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "EVALUATION.md"
    lines = write_page(report, path)
    text = path.read_text()
    picture = tmp_path / "evaluation" / "routing.svg"
    assert lines == [f"wrote {path} and {picture}"]
    assert "(evaluation/routing.svg)" in text
    assert all(f"## {grid.title}\n" in text for grid in grids(report))
    assert picture.read_text().startswith("<?xml")


@pytest.mark.slow
def test_page_is_the_same_every_time(report: RoutingReport, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pages = [tmp_path / name / "EVALUATION.md" for name in ("one", "other")]
    for page in pages:
        write_page(report, page)
    pictures = [page.parent / "evaluation" / "routing.svg" for page in pages]
    assert pages[0].read_bytes() == pages[1].read_bytes()
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


@pytest.mark.slow
def test_page_without_matplotlib_has_tables_only_and_says_so(
    report: RoutingReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "evaluation.routing.plots", raising=False)
    path = tmp_path / "EVALUATION.md"
    lines = write_page(report, path)
    assert "matplotlib is not installed" in lines[0]
    assert "![" not in path.read_text()
    assert not (tmp_path / "evaluation").exists()


@pytest.mark.slow
def test_command_prints_one_json_object() -> None:
    words = ["routing", "--workload", "nested", "--scale", "0.005", "--seconds", "1", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    found = msgspec.json.decode(result.stdout, type=RoutingReport)
    assert found.workload == "nested"
    assert [point.variant for point in found.nested] == ["tree", "tree, no covering", "flood"]
    assert found.selective == []


@pytest.mark.slow
def test_command_prints_tables(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    words = ["routing", "--workload", "nested", "--scale", "0.005", "--write", str(page)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    assert "Nested interest" in result.stdout
    assert "--workload nested --scale 0.005" in page.read_text()
