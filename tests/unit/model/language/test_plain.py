"""The short cut recognises what it should, and keeps its hands off everything else."""

import pytest

from anabranch.model.language.parser import Parser
from anabranch.model.language.plain import parse_plain
from anabranch.model.limits import DEFAULT_LIMITS

PLAIN = [
    "symbol = 'S0123' AND price >= 12345 AND volume BETWEEN 100 AND 90000 AND high < 5.5",
    "a = 1",
    "a='x'",
    "a != -1 or b <> +.5",
    "a BETWEEN 5 AND 1",
    "a between 'a' and 'b'",
    "a = 57. AND b = 1e3",
    "a = TRUE AND b <> false",
    "a LIKE 'x%' AND b NOT LIKE '_'",
    "a IN ('x', 2, 3.5, TRUE) AND b not in (1)",
    "a IS NULL OR b IS NOT NULL AND c is null",
    "(a = 1 AND b = 2) OR (c = 3)",
    "(a = 1) AND (b = 2 AND c = 3)",
    "a = ''",
    "a LIKE ''",
    "a = '-- AND b = 1'",
    "a > 1769860800000000000 AND b = -9223372036854775808",
    "a <= 9223372036854775807",
    "timestamp > 5 AND contains = 'x'",
]
NOT_PLAIN = [
    "",
    "a",
    "NOT a = 1",
    "not = 1",
    "a == 1",
    "a = 1 AND ",
    "a = 1 AND",
    "AND a = 1",
    "a = 1AND b = 2",
    "a = 1 ANDb = 2",
    "aIS NULL",
    "aLIKE 'x'",
    "a = b",
    "a = 1 + 1",
    "a = 1-1",
    "a = TRUEX",
    "a = 'it''s'",
    "a = 'x",
    "a IN ()",
    "a IN (1,)",
    "a IN (1 2)",
    "a IN (b)",
    "a IN (')')",
    "(a = 1 OR b = 2) AND c = 3",
    "(a = 1",
    "a = 1)",
    "((a = 1))",
    "(a = 1 AND (b = 2))",
    "a = 1) AND (b = 2",
    "a = 1e999",
    "a BETWEEN 1 AND 1e999",
    "a IN (1e999)",
    "a = 9223372036854775808",
    "a = 000000000000000000001",
    "a > TIMESTAMP '2026-01-31T12:00Z'",
    "a IN (TIMESTAMP '2026-01-31T12:00Z')",
    "a contains 'x'",
    "a LIKE 'x' ESCAPE '!'",
    "a LIKE '" + "_" * 300 + "'",
    "a = 0x48",
    "a = 10L",
]


@pytest.mark.parametrize("text", PLAIN)
def test_plain_text_gives_the_tree_of_the_parser(text: str) -> None:
    assert repr(parse_plain(text)) == repr(Parser(text, DEFAULT_LIMITS).parse())


@pytest.mark.parametrize("text", NOT_PLAIN)
def test_everything_else_is_left_to_the_parser(text: str) -> None:
    assert parse_plain(text) is None
