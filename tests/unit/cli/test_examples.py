"""Help: the whole command on one screen, and an example for every command that it understands."""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from anabranch.cli.examples import EXAMPLES
from anabranch.cli.main import app

LINES_MAX = 40
SHELL = {"<", ">", "|", "&&"}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that is not a group, by its words."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


ALL = dict(commands(get_command(app)))


def examples_of(path: tuple[str, ...]) -> list[list[str]]:
    """The examples in a command's help, as words behind those of the command."""
    command = ALL[path]
    lines = [line.strip() for line in f"{command.help}\n{command.epilog}".splitlines()]
    words = [shlex.split(line) for line in lines if line.startswith("anabranch ")]
    start = ["anabranch", *path]
    return [each[len(start) :] for each in words if each[: len(start)] == start]


def test_help_fits_on_a_screen_of_80_columns() -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["--help"])
    lines = result.stdout.splitlines()
    assert len(lines) <= LINES_MAX
    assert all(len(line) <= 80 for line in lines)
    listed = [line.split()[1] for line in lines if line.startswith("│ ") and "--" not in line]
    # A command that needs a second line would make its first word look like a command here.
    assert listed == list(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_an_example_with_options_that_it_knows(path: tuple[str, ...]) -> None:
    examples = examples_of(path)
    assert examples, f"add an example of '{' '.join(path)}' to cli/examples.py"
    command = ALL[path]
    known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    required = {each.name for each in command.params if each.required}
    for words in examples:
        end = next((place for place, word in enumerate(words) if word in SHELL), len(words))
        options = {word for word in words[:end] if word.startswith("-") and word != "-"}
        assert options <= known
        given, _, _ = command.make_parser(command.context_class(command)).parse_args(words[:end])
        assert all(given.get(name) for name in required), f"{words} lacks one of {required}"


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_of_every_command_shows_its_example(path: tuple[str, ...]) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert f"anabranch {' '.join(path)}" in result.stdout.partition("Usage:")[2].partition("\n")[2]


#: Commands that print no data.
WITHOUT_JSON = {
    "broker",  # logs, with --log-format json
    "completion",  # a script
    "network new",  # a network file
    "network add-broker",  # the names of files, on stderr
    "network add-link",
    "network add-site",
    "network remove-broker",
    "network remove-link",
    "network remove-site",
}


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_that_prints_data_prints_json(path: tuple[str, ...]) -> None:
    has_json = any("--json" in each.opts for each in ALL[path].params)
    assert has_json == (" ".join(path) not in WITHOUT_JSON)


def test_no_example_is_left_of_a_command_that_is_gone() -> None:
    assert {tuple(path.split()) for path in EXAMPLES} <= set(ALL)
