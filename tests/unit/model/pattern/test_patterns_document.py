"""The examples of docs/reference/patterns.md are patterns, and its program runs."""

import re
from pathlib import Path

import pytest

from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.pattern.tokens import RESERVED

DOCUMENT = (Path(__file__).parents[4] / "docs/reference/patterns.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found
    return found


@pytest.mark.parametrize("text", "".join(blocks("pattern")).splitlines())
def test_pattern_in_the_document_is_canonical_but_for_spaces(text: str) -> None:
    assert str(Pattern.parse(text)) == text


def test_program_in_the_document_runs() -> None:
    for source in blocks("python"):
        exec(source, {})


def test_document_names_every_reserved_word() -> None:
    line = next(line for line in DOCUMENT.splitlines() if line.startswith("Reserved: "))
    assert set(line.split("`")[1].split()) == set(RESERVED.values())


@pytest.mark.parametrize(
    "name", [name for name in DEFAULT_LIMITS.__struct_fields__ if name.startswith("pattern_")]
)
def test_document_names_every_limit_and_its_default(name: str) -> None:
    assert f"| `{name}` | {getattr(DEFAULT_LIMITS, name):,}" in DOCUMENT
