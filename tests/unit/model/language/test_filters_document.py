"""The examples of docs/reference/filters.md are filters."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from anabranch.model.language.builder import Condition, all_of, any_of, attr
from anabranch.model.language.parser import parse_expression
from anabranch.model.language.tokens import RESERVED
from anabranch.model.language.tuples import parse_tuples

DOCUMENT = (Path(__file__).parents[4] / "docs/reference/filters.md").read_text()


def examples(language: str) -> list[str]:
    blocks = re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert lines
    return [line for line in lines if line and not line.startswith("from ")]


@pytest.mark.parametrize("text", examples("sql"))
def test_filter_in_the_document_parses(text: str) -> None:
    parse_expression(text)


@pytest.mark.parametrize("text", examples("tuples"))
def test_tuples_in_the_document_parse(text: str) -> None:
    parse_tuples(text)


@pytest.mark.parametrize("source", examples("python"))
def test_python_in_the_document_builds_a_filter(source: str) -> None:
    names = {"attr": attr, "all_of": all_of, "any_of": any_of, "UTC": UTC, "datetime": datetime}
    built = eval(source, names)
    assert isinstance(built, Condition)
    assert parse_expression(str(built)) == built.expression


def test_document_names_every_reserved_word() -> None:
    line = next(line for line in DOCUMENT.splitlines() if line.startswith("Reserved: "))
    assert set(line.split("`")[1].split()) == set(RESERVED.values())
