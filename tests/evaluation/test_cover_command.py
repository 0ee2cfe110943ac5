"""`scripts/evaluate cover` on a small scale: complete, right, and loud when something is wrong."""

import msgspec
import pytest
from typer.testing import CliRunner

from anabranch.matching.covering import CoveringTable
from evaluation.__main__ import app


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["cover", "--subscriptions", "400", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("name", ["ranges", "nested", "stock"])
def test_json_is_one_object_with_every_figure(name: str) -> None:
    code, output, _ = run("--workload", name, "--json")
    assert code == 0
    report = msgspec.json.decode(output)
    assert report["workload"] == name
    assert 0 < report["roots"] <= 400
    assert report["table"]["held"] == report["dag"]["held"] == 400
    assert report["table"]["queries"]["grouped_p50_us"] > 0
    assert report["table"]["removes"]["max_us"] > 0
    assert report["bars"] == []


def test_tables_name_the_figures_and_say_that_no_bar_binds() -> None:
    code, output, _ = run()
    assert code == 0
    assert "is it covered?" in output
    assert "none binds here" in output


def test_wrong_roots_end_the_run_with_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CoveringTable, "roots", lambda _self: [])
    code, output, complaint = run("--json")
    assert code == 1
    assert output == ""
    assert complaint.count("\n") == 1
    assert "is not a root but nothing covers it" in complaint
