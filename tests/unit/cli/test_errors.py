"""Every failure is one line on stderr and an exit code; only our own mistakes exit with 1."""

from collections.abc import Callable

import pytest
import typer
from typer.testing import CliRunner, Result

from anabranch.cli.errors import CommandError, CommandGroup, explanation
from anabranch.model.errors import FilterError


def run(action: Callable[[], object], *arguments: str) -> Result:
    app = typer.Typer(cls=CommandGroup, pretty_exceptions_enable=False, no_args_is_help=True)

    @app.callback()
    def options(debug: bool = False) -> None:
        pass

    @app.command()
    def act(count: int = 1) -> None:
        action()

    return CliRunner().invoke(app, list(arguments) or ["act"])


def failing(error: BaseException) -> Callable[[], object]:
    def fail() -> object:
        raise error

    return fail


def test_success_exits_with_zero_and_says_nothing() -> None:
    result = run(lambda: 1)
    assert (result.exit_code, result.output) == (0, "")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (CommandError("no\nsuch  thing"), "no such thing"),
        (FileNotFoundError(2, "No such file", "x.txt"), "x.txt: No such file"),
        (OSError("disk on fire"), "disk on fire"),
        (
            FilterError("bad word", text="a ! b", position=2),
            "bad word at position 2\n  a ! b\n    ^",
        ),
        (FilterError("too large"), "too large"),
        (typer.BadParameter("not that one"), "Invalid value: not that one"),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_exit_code_2(error: Exception, line: str) -> None:
    result = run(failing(error))
    assert result.exit_code == 2
    assert result.stderr == f"anabranch: error: {line}\n"
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["act", "--nonsense"], "--nonsense"),
        (["acr"], "acr"),
        (["act", "--count", "many"], "--count"),
        (["act", "superfluous"], "superfluous"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: list[str], word: str) -> None:
    result = run(lambda: 1, *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("anabranch: error: ")
    assert result.stderr.count("\n") == 1
    assert word in result.stderr


def test_our_mistake_is_one_line_with_advice_and_exit_code_1() -> None:
    result = run(failing(ZeroDivisionError("by zero")))
    assert result.exit_code == 1
    assert result.stderr == (
        "anabranch: error: unexpected ZeroDivisionError: by zero;"
        " run again with --debug to see the traceback\n"
    )


def test_debug_lets_our_mistake_through() -> None:
    result = run(failing(ZeroDivisionError("by zero")), "--debug", "act")
    assert isinstance(result.exception, ZeroDivisionError)


def test_debug_does_not_change_how_mistakes_of_the_user_are_told() -> None:
    result = run(failing(CommandError("no")), "--debug", "act")
    assert (result.exit_code, result.stderr) == (2, "anabranch: error: no\n")


def test_exit_code_of_a_command_is_kept() -> None:
    assert run(failing(typer.Exit(7))).exit_code == 7


def test_interrupt_exits_with_130_and_says_nothing() -> None:
    result = run(failing(KeyboardInterrupt()))
    assert (result.exit_code, result.output) == (130, "")


@pytest.mark.parametrize("end", [BrokenPipeError(32, "Broken pipe"), SystemExit(1)])
def test_a_reader_that_went_away_exits_with_141_and_says_nothing(end: BaseException) -> None:
    end.__context__ = BrokenPipeError(32, "Broken pipe")
    result = run(failing(end))
    assert (result.exit_code, result.output) == (141, "")


def test_a_question_that_nobody_answers_is_told_in_words() -> None:
    result = run(lambda: typer.confirm("Sure?"))
    assert (result.exit_code, "no answer was given" in result.stderr) == (2, True)


def test_no_command_shows_the_help() -> None:
    app = typer.Typer(cls=CommandGroup, no_args_is_help=True)
    app.command("one")(lambda: None)
    app.command("two")(lambda: None)
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 2
    assert "Usage:" in result.stdout
    assert result.stderr == ""


def test_explanation_shows_only_the_words_around_the_fault() -> None:
    text = "a = 1 AND " * 50 + "!" + " OR b = 2" * 50
    line = explanation(FilterError("bad word", text=text, position=text.index("!")))
    assert "!" in line
    assert len(line) < 100


def test_explanation_of_a_silent_error_names_its_type() -> None:
    assert explanation(CommandError()) == "CommandError"
