"""`anabranch sim`: what it prints, and how it ends."""

import json
import re

import pytest
from typer.testing import CliRunner

from anabranch.cli.main import app
from anabranch.sim.mutants.catalog import MUTANTS
from anabranch.sim.runner import Order, run_seed

runner = CliRunner()


def test_clean_seeds_end_well_and_are_added_up() -> None:
    done = runner.invoke(app, ["sim", "--seeds", "0..1", "--processes", "1", "--json"])
    assert done.exit_code == 0
    summary = json.loads(done.stdout)
    assert summary["seeds"] == 2
    assert summary["failed"] == []
    assert summary["deliveries"] > 0


@pytest.mark.slow
def test_the_digest_of_a_seed_and_of_several_can_be_compared() -> None:
    def digest(*arguments: str) -> str:
        done = runner.invoke(app, ["sim", *arguments, "--processes", "1", "--json"])
        found = json.loads(done.stdout)["digest"]
        assert isinstance(found, str)
        return found

    own = run_seed(Order(), 1).verdict.digest
    assert digest("--seed", "1") == own
    table = runner.invoke(app, ["sim", "--seed", "1", "--processes", "1"]).stdout
    assert re.search(rf"digest .*{own}", table)
    several = digest("--seeds", "0..1")
    assert several == digest("--seeds", "0..1")
    assert several not in {own, digest("--seeds", "0..0")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name for name, each in MUTANTS.items() if each.found_by.startswith("tests/unit/core")],
)
def test_a_mutant_that_seeds_seldom_show_can_be_planted_and_is_said_to_be_one(name: str) -> None:
    done = runner.invoke(app, ["sim", "--seed", "0", "--plant", name, "--processes", "1"])
    assert f"note: seeds rarely find {name}; {MUTANTS[name].found_by} finds it" in done.stderr
    assert done.exit_code == 1


def test_a_planted_bug_is_found_told_and_can_be_repeated() -> None:
    done = runner.invoke(app, ["sim", "--plant", "skip-gap", "--processes", "1"])
    assert done.exit_code == 0
    found = re.search(r"^seed (\d+): (?:gap|lost): ", done.stdout, re.MULTILINE)
    assert found is not None
    repeat = f"repeat: anabranch sim --routing tree --seed {found[1]} --plant skip-gap"
    assert repeat in done.stdout


def test_a_planted_bug_that_is_not_found_is_a_failure() -> None:
    done = runner.invoke(app, ["sim", "--seed", "0", "--plant", "no-yield", "--processes", "1"])
    assert done.exit_code == 1


@pytest.mark.slow
def test_the_command_to_repeat_a_seed_has_everything_that_was_asked_for() -> None:
    asked = ["--shape", "pair", "--brokers", "9", "--faults", "kill=1.5,cut"]
    plant = ["--plant", "no-dedup", "--processes", "1"]
    done = runner.invoke(app, ["sim", *asked, *plant])
    assert done.exit_code == 0
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("repeat: anabranch "))
    assert line.endswith("--shape pair --brokers 9 --faults kill=1.5,cut --plant no-dedup")
    words = line.removeprefix("repeat: anabranch ").split()
    again = runner.invoke(app, [*words, "--processes", "1"])
    assert again.exit_code == 0
    told = done.stdout[done.stdout.index("seed ", done.stdout.index("anomalies")) :]
    assert told in again.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--faults", "kill,quake"], "unknown kind of fault 'quake'; choose from kill, kill-site,"),
        (["--faults", "kill=often"], "has 'often'; give it a number"),
        (["--faults", "kill=-1"], "has '-1'; give it a number from 0 to 100"),
        (["--faults", "repeat=2"], "a number from 0 to 1,"),
        (["--faults", "kill,kill"], "there twice"),
        (["--faults", "none,kill"], "unknown kind of fault 'none'"),
        (["--seeds", "5..x"], "invalid range of seeds"),
        (["--seeds", "9..3"], "invalid range of seeds"),
        (["--plant", "nonsense"], "unknown mutant 'nonsense'"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], complaint: str) -> None:
    done = runner.invoke(app, ["sim", *arguments])
    assert done.exit_code == 2
    assert complaint in done.stderr
