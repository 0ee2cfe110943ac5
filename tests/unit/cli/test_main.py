"""The command as a whole: help, version, and what a real process does."""

import subprocess
import sys
from contextlib import suppress

import pytest
from typer.testing import CliRunner

import anabranch
from anabranch.cli.main import app


def run_process(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "anabranch", *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_version_is_that_of_the_package() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"anabranch {anabranch.__version__}\n")


def test_help_names_every_command_and_shows_an_example() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for word in (
        "anabranch up ",
        "anabranch pub ",
        "anabranch sub ",
        "filter",
        "bench",
        "demo",
        "--version",
        "--debug",
        "Exit codes",
    ):
        assert word in result.stdout


def test_help_of_sub_explains_filters_and_patterns() -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["sub", "--help"])
    assert result.exit_code == 0
    for word in ("symbol IN ('IBM', 'MSFT')", "UNKNOWN", "THEN high:{price > 30}"):
        assert word in result.stdout


@pytest.mark.parametrize("command", ["check", "match", "covers"])
def test_every_filter_command_has_help_and_json(command: str) -> None:
    result = CliRunner().invoke(app, ["filter", command, "--help"])
    assert result.exit_code == 0
    assert "--json" in result.stdout


def test_no_command_shows_the_help_and_exits_with_2() -> None:
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 2
    assert "Usage:" in result.stdout
    assert result.stderr == ""


def read_a_little(*arguments: str, text: bytes = b"") -> tuple[bytes, bytes, int]:
    """The first line of the output, after which nobody reads; what is said to that; the code."""
    with subprocess.Popen(
        [sys.executable, "-m", "anabranch", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(text)
        process.stdin.flush()
        first = process.stdout.readline()
        process.stdout.close()
        with suppress(BrokenPipeError):
            process.stdin.write(text)
            process.stdin.close()
        return first, process.stderr.read(), process.wait(60)


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    lines = b'{"price": 51}\n' * 1_000
    ended = read_a_little("filter", "match", "price > 50", text=lines)
    assert ended == (b'{"price": 51}\n', b"", 141)


def test_process_prints_matching_lines() -> None:
    ended = run_process("filter", "match", "price > 50", text='{"price": 51}\n{"price": 50}\n')
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, '{"price": 51}\n', "")


def test_process_fails_in_one_line_with_exit_code_2() -> None:
    ended = run_process("filter", "check", "price >")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("anabranch: error: ")
    assert ended.stderr.count("\n") == 1
