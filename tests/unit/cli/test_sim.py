"""`anabranch sim`: what it prints, and how it ends."""

import json

import pytest
from typer.testing import CliRunner

from anabranch.cli.main import app

runner = CliRunner()


def test_clean_seeds_end_well_and_are_added_up() -> None:
    done = runner.invoke(app, ["sim", "--seeds", "0..1", "--processes", "1", "--json"])
    assert done.exit_code == 0
    summary = json.loads(done.stdout)
    assert summary["seeds"] == 2
    assert summary["failed"] == []
    assert summary["deliveries"] > 0


def test_a_planted_bug_is_found_told_and_can_be_repeated() -> None:
    done = runner.invoke(app, ["sim", "--plant", "skip-gap", "--processes", "1"])
    assert done.exit_code == 0
    assert "seed 2: gap" in done.stdout
    assert "repeat: anabranch sim --routing tree --seed 2 --plant skip-gap" in done.stdout


def test_a_planted_bug_that_is_not_found_is_a_failure() -> None:
    done = runner.invoke(app, ["sim", "--seed", "0", "--plant", "no-yield", "--processes", "1"])
    assert done.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seeds", "5..x"], "no range of seeds"),
        (["--seeds", "9..3"], "no range of seeds"),
        (["--plant", "nonsense"], "no planted bug 'nonsense'"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], complaint: str) -> None:
    done = runner.invoke(app, ["sim", *arguments])
    assert done.exit_code == 2
    assert complaint in done.stderr
