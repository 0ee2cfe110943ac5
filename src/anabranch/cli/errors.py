"""How the command fails: one line that says what was wrong, and an exit code.

    anabranch: error: unknown operator '=>' at position 6; expected a comparison

Rules:

1. Whatever the user can mend (wrong usage, an invalid filter or event, a file that cannot be read)
   is one line on stderr and exit code 2.
2. Anything else is our mistake: one line, exit code 1, and the advice to run again with `--debug`,
   which shows the traceback instead.
3. A group that is given no command shows its help, and exits with 2 like any wrong usage.
4. An interrupt exits with 130 and says nothing. So does, with 141, a reader of the output that
   went away, as `head` does: these are the codes of programs that a signal ended.
5. The rule belongs to the group of commands, so it holds however the group is started.
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
EXIT_USAGE = 2
EXIT_UNEXPECTED = 1
#: As if SIGPIPE had ended the process.
EXIT_NO_READER = 141
#: Characters of a filter shown on either side of the place where it is wrong.
EXCERPT_CHARACTERS = 20


class CommandError(LocalError):
    """What the command was given cannot be used."""


class UnexpectedError(Exception):
    """A mistake of this program, met while running a command."""


class CommandGroup(TyperGroup):
    """A group of commands whose every failure is one line."""

    #: What the line of a failure begins with.
    program = PROGRAM

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: ARG002 - given, but how to fail is ours
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and exit."""
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
            _say(self.program, f"{error}; run again with --debug to see the traceback")
            sys.exit(EXIT_UNEXPECTED)
        except (typer.TyperException, typer.Abort, AnabranchError, OSError) as error:
            _say(self.program, explanation(error))
            sys.exit(EXIT_USAGE)
        sys.exit(code if isinstance(code, int) else 0)

    def make_context(self, *arguments: Any, **extra: Any) -> Any:
        """Read the arguments; help is printed while that is done."""
        with _until_nobody_reads():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, and tell our mistakes from everybody else's."""
        try:
            with _until_nobody_reads():
                return super().invoke(ctx)
        except (typer.TyperException, typer.Abort, typer.Exit, AnabranchError, OSError, EOFError):
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            raise UnexpectedError(f"unexpected {type(error).__name__}: {error}") from error


@contextmanager
def _until_nobody_reads() -> Iterator[None]:
    try:
        yield
    except (BrokenPipeError, SystemExit) as error:
        # What draws tables has its own way of ending when nobody reads them.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        with suppress(OSError, ValueError):
            # What is still in the buffer goes nowhere when the process ends, without a complaint.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_NO_READER) from None


def explanation(error: Exception) -> str:
    """What was wrong, as the user should read it."""
    if isinstance(error, FilterError):
        return _filter_explanation(error)
    if isinstance(error, typer.TyperException):
        return error.format_message()
    if isinstance(error, typer.Abort):
        return "no answer was given, so nothing was done"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def _filter_explanation(error: FilterError) -> str:
    """The error without its picture of the place, but with the words around it."""
    summary = str(error).split("\n", 1)[0]
    if error.position < 0 or not error.text:
        return summary
    start = max(0, error.position - EXCERPT_CHARACTERS)
    excerpt = error.text[start : error.position + EXCERPT_CHARACTERS]
    return f"{summary}; near: {excerpt}"


def _say(program: str, text: str) -> None:
    # A group that has just shown its help raises an error that has nothing to add.
    if text:
        typer.echo(f"{program}: error: {' '.join(text.split())}", err=True)
