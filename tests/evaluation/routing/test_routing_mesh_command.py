"""`scripts/evaluate routing --routing mesh` on a small scale: tables, JSON, a section of a page."""

import sys
from pathlib import Path

import msgspec
import pytest
from rich.progress import Progress
from typer.testing import CliRunner

from anabranch.cli.screen import Steps
from evaluation.__main__ import app
from evaluation.routing.mesh import (
    MeshReport,
    evaluate_mesh,
    mesh_grids,
    relay_grid,
    write_mesh_page,
)
from evaluation.routing.mesh_printed import ROUTINGS
from evaluation.routing.mesh_relays import KINDS, TOGETHER, Relayed, Way
from evaluation.routing.tree import MESH_BEGIN, MESH_END, mesh_section

TINY = 0.01


@pytest.fixture(scope="module")
def report() -> MeshReport:
    """Two parts of an evaluation."""
    steps = Steps(Progress(disable=True))
    model = evaluate_mesh("model", TINY, 1, steps)
    burst = evaluate_mesh("burst", TINY, 1, steps)
    return msgspec.structs.replace(model, delays=burst.delays, claims=burst.claims)


@pytest.mark.slow
def test_every_way_to_choose_paths_is_in_the_report(report: MeshReport) -> None:
    assert [tally.routing for tally in report.model] == list(ROUTINGS)
    assert {delays.scene.way for delays in report.delays} == {
        "fixed",
        "dynamic",
        "dynamic, waiting",
    }
    assert [claim.test.split(":")[0] for claim in report.claims] == ["burst", "burst"]


@pytest.mark.slow
def test_all_rows_of_a_grid_have_all_columns(report: MeshReport) -> None:
    titles = []
    for grid in mesh_grids(report):
        titles.append(grid.title)
        assert {len(row) for row in grid.rows} == {len(grid.heads)}
    assert titles == ["Ours and the source's", "The printed algorithm in a model", "A burst"]


@pytest.mark.slow
def test_section_is_added_to_a_page_and_replaced_the_next_time(
    report: MeshReport, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "EVALUATION.md"
    path.write_text("# Does routing pay?\n")
    write_mesh_page(report, path)
    first = path.read_text()
    lines = write_mesh_page(report, path)
    assert path.read_text() == first
    assert first.startswith("# Does routing pay?\n\n" + MESH_BEGIN)
    assert first.count(MESH_BEGIN) == first.count(MESH_END) == 1
    folder = tmp_path / "evaluation"
    assert lines == [f"wrote {path}, {folder / 'mesh.md'} and {folder / 'mesh.svg'}"]
    assert "(evaluation/mesh.md)" in first
    assert "(evaluation/mesh.svg)" in first
    details = (folder / "mesh.md").read_text()
    assert all(f"## {grid.title}\n" in details for grid in mesh_grids(report))
    assert (folder / "mesh.svg").read_text().startswith("<?xml")


@pytest.mark.slow
def test_section_outlives_a_new_page_about_trees(report: MeshReport, tmp_path: Path) -> None:
    path = tmp_path / "EVALUATION.md"
    write_mesh_page(report, path)
    section = mesh_section(path.read_text())
    words = ["routing", "--workload", "nested", "--scale", "0.005", "--write", str(path)]
    assert CliRunner().invoke(app, words).exit_code == 0
    text = path.read_text()
    assert text.startswith("# Does routing pay?")
    assert text.endswith(section)


@pytest.mark.slow
def test_section_without_matplotlib_has_tables_only_and_says_so(
    report: MeshReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "evaluation.routing.plots", raising=False)
    path = tmp_path / "EVALUATION.md"
    lines = write_mesh_page(report, path)
    assert "matplotlib is not installed" in lines[0]
    assert "![" not in path.read_text()


@pytest.mark.slow
def test_text_without_marks_has_no_section() -> None:
    assert mesh_section("# Does routing pay?\n") == ""
    assert mesh_section(f"{MESH_END}\n{MESH_BEGIN}\n") == ""


@pytest.mark.slow
def test_command_prints_one_json_object() -> None:
    words = ["routing", "--routing", "mesh", "--part", "hops", "--scale", "0.01", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    found = msgspec.json.decode(result.stdout, type=MeshReport)
    assert (found.part, found.model) == ("hops", [])
    assert [list(delays.by_hops) for delays in found.delays] == [["6"]] * 4


@pytest.mark.slow
def test_relays_and_changes_have_grids_of_their_own() -> None:
    steps = Steps(Progress(disable=True))
    relays = evaluate_mesh("matching", TINY, 1, steps)
    changes = evaluate_mesh("changes", TINY, 1, steps)
    titles = [grid.title for report in (relays, changes) for grid in mesh_grids(report)]
    assert titles == [
        "Ours and the source's",
        "Matching at the ends",
        "An event at a relay",
        "A look-up at an origin",
        "What a change costs",
        "Memory of routing tables",
        "When a broker dies",
    ]
    for report in (relays, changes):
        for grid in mesh_grids(report):
            assert {len(row) for row in grid.rows} == {len(grid.heads)}


@pytest.mark.slow
def test_grid_of_relays_says_where_matching_once_is_cheaper() -> None:
    ways: dict[Way, float] = {"mesh": 5.0, "flood": 1.0, "tree": 0.0, "look-up": 2.0}
    found = [
        Relayed(
            way=way,
            kind=kind,
            subscriptions=size,
            targets=1,
            together=together,
            event_us=us or (4.0 if kind == "symbol" else size / 100 + 5.0 - 2.0 * (size == 100)),
            event_bytes=90.0,
        )
        for way, us in ways.items()
        for kind in KINDS
        for size in (100, 1_000)
        for together in TOGETHER
    ]
    rows = relay_grid(found).rows
    assert [row[-1] for row in rows] == ["1,000, range"] * 2
    assert rows[0][2:4] == ("5.0", "90")
    for us, said in ((0.1, "everywhere"), (99.0, "nowhere")):
        others = [each for each in found if each.way != "mesh"]
        mesh = [msgspec.structs.replace(e, event_us=us) for e in found if e.way == "mesh"]
        assert {row[-1] for row in relay_grid([*others, *mesh]).rows} == {said}


@pytest.mark.slow
def test_command_prints_tables() -> None:
    words = ["routing", "--routing", "mesh", "--part", "model", "--scale", "0.01"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0
    assert "The printed algorithm in a model" in result.stdout
