"""The selector cases of another broker's test suite, run against this one."""

import json
from pathlib import Path
from typing import TypedDict

import pytest

from anabranch.model.event import Value
from anabranch.model.language.evaluate import compile_condition, evaluate
from anabranch.model.language.parser import parse_expression
from anabranch.model.language.tokens import expression_text

CASES_PATH = Path(__file__).parents[3] / "data" / "selectors.json"


class Case(TypedDict):
    selector: str
    event: int
    expect: bool


class Cases(TypedDict):
    events: list[dict[str, Value]]
    cases: list[Case]
    notice: str


CASES: Cases = json.loads(CASES_PATH.read_text(encoding="utf-8"))


def test_all_cases_and_their_notice_are_here() -> None:
    assert len(CASES["cases"]) == 149
    assert "Mozilla Public License 2.0" in CASES["notice"]


@pytest.mark.parametrize("case", CASES["cases"], ids=lambda case: case["selector"])
def test_selector_gives_the_expected_answer(case: Case) -> None:
    expression = parse_expression(case["selector"])
    event = CASES["events"][case["event"]]
    assert (evaluate(expression, event) is True) is case["expect"]
    assert (compile_condition(expression)(event) is True) is case["expect"]
    assert parse_expression(expression_text(expression)) == expression
