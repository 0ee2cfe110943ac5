"""The command as a whole: help, version, and what a real process does."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import anabranch
from anabranch.cli.completion import Shell
from anabranch.cli.errors import COMPLETE_VARIABLE
from anabranch.cli.main import COMMANDS, app
from anabranch.cli.network import example


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


def test_an_interrupted_command_exits_with_130_and_says_nothing() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "anabranch", "filter", "match", "price > 50"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # More than a buffer, so that the first line arrives while the command reads on.
        process.stdin.write(b'{"price": 51}\n' * 2_000)
        process.stdin.flush()
        assert process.stdout.readline() == b'{"price": 51}\n'
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
        assert (process.returncode, told) == (130, b"")


def test_process_prints_matching_lines() -> None:
    ended = run_process("filter", "match", "price > 50", text='{"price": 51}\n{"price": 50}\n')
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, '{"price": 51}\n', "")


def test_process_fails_in_one_line_with_exit_code_2() -> None:
    ended = run_process("filter", "check", "--file", "gone.txt")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "anabranch: error: gone.txt: No such file or directory\n"


def test_a_wrong_filter_is_shown_with_a_caret_under_the_mistake() -> None:
    ended = run_process("filter", "check", "price => 5")
    assert (ended.returncode, ended.stdout) == (2, "")
    first, text, caret = ended.stderr.splitlines()
    assert first.startswith(
        "anabranch: error: unknown operator '=>' at position 6; expected one of"
    )
    assert text == "  price => 5"
    assert caret == "        ^"


def test_help_lines_of_the_table_are_those_of_the_commands() -> None:
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        assert COMMANDS[name].help == " ".join(command.help.split("\n\n")[0].split()), name


#: Loaded by no command that needs only filters, files or a connection.
SLOW = {"matplotlib", "numba", "numpy", "pandas", "prometheus_client", "pyarrow", "pyspark"}


@pytest.mark.parametrize(
    ("words", "unloaded"),
    [
        ("--version", SLOW | {"rich", "asyncio", "ssl", "anabranch.client", "anabranch.core"}),
        ("--help", SLOW | {"asyncio", "ssl", "anabranch.client", "anabranch.core"}),
        ("filter check x=1", SLOW | {"rich", "asyncio", "ssl", "anabranch.client"}),
        ("pub 127.0.0.1:1 x=1 --within 0", SLOW | {"rich", "anabranch.core.broker"}),
        ("sub 127.0.0.1:1 TRUE --within 0", SLOW | {"anabranch.core.broker"}),
        ("pub --network {file} x=1 --within 0", SLOW | {"rich", "anabranch.core.broker"}),
    ],
)
def test_command_loads_only_what_it_needs(words: str, unloaded: set[str], tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text(example("single"))
    program = (
        "import atexit, sys; from anabranch.cli.main import main;"
        " atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
    )
    arguments = words.format(file=file).split()
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == (2 if "--within" in arguments else 0), ended.stderr
    loaded = ended.stderr.splitlines()[-1].split()
    assert "anabranch.cli.main" in loaded
    assert unloaded.isdisjoint(loaded)


def complete(*words: str) -> list[str]:
    """The completions of the last word in bash."""
    ended = subprocess.run(
        [sys.executable, "-m", "anabranch"],
        env={
            **os.environ,
            COMPLETE_VARIABLE: "complete_bash",
            "COMP_WORDS": "\n".join(("anabranch", *words)),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return ended.stdout.split()


def test_commands_and_options_are_completed() -> None:
    assert complete("p") == ["pub", "pattern", "pipeline"]
    assert complete("pub", "--j") == ["--json-lines", "--json"]
    assert set(complete("network", "add-")) == {"add-broker", "add-site", "add-link"}


@pytest.mark.parametrize("shell", Shell)
def test_completion_scripts_call_the_command(shell: Shell) -> None:
    result = CliRunner().invoke(app, ["completion", shell])
    assert result.exit_code == 0
    assert COMPLETE_VARIABLE in result.stdout


def test_help_shows_no_value_for_a_flag() -> None:
    for words in ([], ["pub"], ["network", "check"], ["pipeline", "archive", "write"]):
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, "--help"])
        assert "--help" in result.stdout
        assert "<bool>" not in result.stdout
