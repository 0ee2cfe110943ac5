"""Error reporting of the command line: one line on stderr and an exit code.

    anabranch: error: unknown operator '=>' at position 6; expected a comparison
      price => 5
            ^

Rules

1. Errors that the user can fix (wrong usage, an invalid filter or event, an unreadable file) print
   one line on stderr and exit with code 2. If the position of a mistake in a filter or pattern is
   known, the text follows, with a caret under the mistake.
2. Any other exception is a bug: one line, exit code 1, and the advice to run again with `--debug`,
   which prints the traceback instead.
3. A group without a command prints its help and exits with code 2, like any wrong usage.
4. An interrupt exits with code 130 and prints nothing, or one line that says what was done and how
   to continue. A command that runs until it is interrupted (`up`, `broker`, `sub`, `top`, …) exits
   with code 0. A closed stdout, as after `head`, exits with code 141 and prints nothing. 130 and
   141 are the codes of processes killed by SIGINT and SIGPIPE.
5. The command group applies these rules, so they hold no matter how the group is started.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import typer
from typer.core import TyperGroup

from anabranch.model.errors import AnabranchError, FilterError, LocalError

PROGRAM = "anabranch"
#: Set by the completion script of a shell when it calls the command.
COMPLETE_VARIABLE = "_ANABRANCH_COMPLETE"
EXIT_USAGE = 2
EXIT_UNEXPECTED = 1
#: The exit codes of a process killed by SIGINT and by SIGPIPE.
EXIT_INTERRUPTED = 130
EXIT_NO_READER = 141
#: Characters of a filter shown on either side of the error position.
EXCERPT_CHARACTERS = 20


class CommandError(LocalError):
    """The arguments or input of a command are invalid."""


class InterruptedCommandError(CommandError):
    """An interrupt ended a command before its work was done; the message says what was done."""


class UnexpectedError(Exception):
    """A bug in this program, found while running a command."""


class CommandGroup(TyperGroup):
    """A command group that reports every failure as one line."""

    #: The prefix of an error line.
    program = PROGRAM

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002 - part of the signature
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        try:
            code = super().main(
                args,
                prog_name=prog_name or self.program,
                complete_var=complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                **extra,
            )
        except UnexpectedError as error:
            self._print_error(f"{error}; run again with --debug to see the traceback")
            sys.exit(EXIT_UNEXPECTED)
        except InterruptedCommandError as error:
            typer.echo(f"{self.program}: interrupted: {error}", err=True)
            sys.exit(EXIT_INTERRUPTED)
        except (typer.TyperException, typer.Abort, AnabranchError, OSError) as error:
            if isinstance(error, FilterError):
                typer.echo(f"{self.program}: error: {error}", err=True)
            else:
                self._print_error(explanation(error))
            sys.exit(EXIT_USAGE)
        sys.exit(code if isinstance(code, int) else 0)

    def _print_error(self, text: str) -> None:
        # A group that has just printed its help raises an error without a message.
        if text:
            typer.echo(f"{self.program}: error: {' '.join(text.split())}", err=True)

    def make_context(self, *arguments: Any, **extra: Any) -> Any:
        # Parsing prints the help.
        with _exit_on_broken_pipe():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _exit_on_broken_pipe():
                return super().invoke(ctx)
        except (typer.TyperException, typer.Abort, typer.Exit, AnabranchError, OSError, EOFError):
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            raise UnexpectedError(f"unexpected {type(error).__name__}: {error}") from error


@contextmanager
def _exit_on_broken_pipe() -> Iterator[None]:
    try:
        yield
    except (BrokenPipeError, SystemExit) as error:
        # Rich raises SystemExit when it meets a broken pipe.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        with suppress(OSError, ValueError):
            # Discard the rest of the buffer, so that the interpreter's final flush does not fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_NO_READER) from None


def explanation(error: Exception) -> str:
    """The error message for the user, on one line."""
    if isinstance(error, FilterError):
        return _filter_explanation(error)
    if isinstance(error, typer.TyperException):
        # pydantic, which checks values for typer, writes this before its reason.
        return error.format_message().replace(" Value error, ", " ")
    if isinstance(error, typer.Abort):
        return "aborted: no answer was given; nothing was changed"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _filter_explanation(error: FilterError) -> str:
    """The error on one line: an excerpt around the position in place of the marker below it."""
    summary = str(error).split("\n", 1)[0]
    if error.position < 0 or not error.text:
        return summary
    start = max(0, error.position - EXCERPT_CHARACTERS)
    excerpt = error.text[start : error.position + EXCERPT_CHARACTERS]
    return f"{summary}; near: {excerpt}"
