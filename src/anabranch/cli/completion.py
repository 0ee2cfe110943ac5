"""`anabranch completion`: print a script that completes commands and options in a shell.

The script calls the command with `_ANABRANCH_COMPLETE` set; the command then prints completions.
"""

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from anabranch.cli.errors import COMPLETE_VARIABLE, PROGRAM


class Shell(StrEnum):
    """A shell that can complete commands."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"
    powershell = "powershell"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", show_default=False)],
) -> None:
    """Print a completion script for a shell.

    SHELL is bash, zsh, fish or powershell. For this session of bash:

    source <(anabranch completion bash)

    To keep it, write the script to ~/.local/share/bash-completion/completions/anabranch; for zsh to
    _anabranch in a directory of $fpath; for fish to ~/.config/fish/completions/anabranch.fish.
    """
    script = get_completion_script(
        prog_name=PROGRAM, complete_var=COMPLETE_VARIABLE, shell=shell.value
    )
    typer.echo(script)
