"""The example in the README runs, prints what the README shows, and is short."""

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def block(language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(found) == 1
    return str(found[0])


def test_example_prints_what_the_readme_shows() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block("python"), str(README), "exec"), {})
    assert printed.getvalue() == block("text")


def test_example_is_short() -> None:
    assert len(block("python").splitlines()) <= 12
