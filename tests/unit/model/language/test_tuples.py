"""The tuple form gives the trees of the language proper."""

import pytest

from anabranch.model.errors import FilterError, FilterLimitError
from anabranch.model.language.parser import parse_expression
from anabranch.model.language.tuples import parse_tuples
from anabranch.model.limits import Limits


@pytest.mark.parametrize(
    ("tuples", "text"),
    [
        ("[class,eq,'STOCK'],[open,<,22]", "class = 'STOCK' AND open < 22"),
        ("[class,eq, 'STOCK'], [symbol,eq, 'YH00'];", "class = 'STOCK' AND symbol = 'YH00'"),
        (" [ class , eq , STOCK ] ", "class = 'STOCK'"),
        ("[a,neq,'x']", "a <> 'x'"),
        ("[a,<>,1],[a,!=,2]", "a <> 1 AND a <> 2"),
        ("[a,=,1.5],[b,eq,-2]", "a = 1.5 AND b = -2"),
        ("[a,>=,+1],[a,<=,1e3],[a,>,.5]", "a >= 1 AND a <= 1e3 AND a > .5"),
        ("[a,str-lt,'b'],[a,str-ge,c]", "a < 'b' AND a >= 'c'"),
        ("[a,str-gt,'b'],[a,str-le,c]", "a > 'b' AND a <= 'c'"),
        ("[a,str-prefix,'pad']", "a LIKE 'pad%'"),
        ("[a,str-postfix,'es'],[a,str-suffix,s]", "a LIKE '%es' AND a LIKE '%s'"),
        ("[a,str-contains,'50%']", r"a LIKE '%50\%%' ESCAPE '\'"),
        ("[a,isPresent],[b,isPresent,'x'],[c,isPresent,1]",
         "a IS NOT NULL AND b IS NOT NULL AND c IS NOT NULL"),
        ("[a,eq,TRUE],[b,neq,false],[c,eq,'true']", "a = TRUE AND b <> FALSE AND c = 'true'"),
        ("[and,eq,1]", "[and] = 1"),
        ("[urn:x/y-z,eq,a:b]", "[urn:x/y-z] = 'a:b'"),
        ("[größe,eq,\"it's\"]", "[größe] = 'it''s'"),
        ("[a,eq,'it''s [x], y']", "a = 'it''s [x], y'"),
        ("[at,>=,TIMESTAMP '2026-01-31T12:00:00Z']", "at >= 1769860800000000000"),
        ("[at,<,timestamp'2026-01-31 12:00Z' ]", "at < 1769860800000000000"),
        ("[timestamp,eq,timestamp]", "timestamp = 'timestamp'"),
    ],
)  # fmt: skip
def test_tuples_and_text_give_one_tree(tuples: str, text: str) -> None:
    assert parse_tuples(tuples) == parse_expression(text)


@pytest.mark.parametrize(
    ("text", "position", "message", "expected"),
    [
        ("", 0, "empty filter", "[attribute,operator,value]"),
        ("  ", 2, "empty filter", "[attribute,operator,value]"),
        ("a = 1", 0, "unexpected 'a'", "[ and a tuple"),
        ("[a,eq,1", 7, "ends too early", "]"),
        ("[a,eq,1],", 9, "ends too early", "a tuple"),
        ("[a,eq,1][b,eq,2]", 8, "unexpected '['", ", and another tuple"),
        ("[a,eq,1];[b,eq,2]", 9, "unexpected '['", "the end"),
        ("[,eq,1]", 1, "unexpected ','", "the name"),
        ("[5,eq,1]", 1, "unexpected '5'", "the name"),
        ("[a]", 2, "unexpected ']'", ", and an operator"),
        ("[a,==,1]", 3, "unexpected '=='", "eq, neq"),
        ("[a,like,'x']", 3, "unexpected 'like'", "str-prefix"),
        ("[a,EQ,1]", 3, "unexpected 'EQ'", "eq, neq"),
        ("[a,eq]", 5, "unexpected ']'", ", and a value"),
        ("[a,eq,]", 6, "unexpected ']'", "a string in quotes"),
        ("[a,eq,'x]", 6, "never closed", "closing '"),
        ("[a,eq,$S$X]", 6, "variable", "a constant"),
        ("[a,>,TIMESTAMP '2026-01-31T12:00']", 32, "without a time zone", "Z for UTC"),
        ("[a,eq,time 'x']", 11, "unexpected \"'x'\"", "]"),
        ("[a,eq,1 2]", 8, "unexpected '2'", "]"),
        ("[a,str-prefix,5]", 14, "unexpected '5'", "a string, which str-prefix compares"),
        ("[a,str-lt,TRUE]", 10, "unexpected 'TRUE'", "a string, which str-lt compares"),
        ("[a,eq,1.2.3]", 6, "malformed number", "a number such as"),
        ("[a,eq,99999999999999999999]", 6, "64 bits", "an integer"),
        ("{[a,eq,1]}&{[b,eq,2]}", 0, "unexpected '{'", "[ and a tuple"),
        ("[a,eq,'\ud800']", 7, "lone surrogate", ""),
    ],
)
def test_mistake_is_reported_with_its_place(
    text: str, position: int, message: str, expected: str
) -> None:
    with pytest.raises(FilterError) as caught:
        parse_tuples(text)
    assert caught.value.position == position
    assert message in caught.value.message
    assert expected in caught.value.expected
    assert caught.value.text == text


def test_limits_hold() -> None:
    with pytest.raises(FilterLimitError, match="10 bytes"):
        parse_tuples("[a,eq,100]", Limits(filter_bytes_max=9))
    with pytest.raises(FilterLimitError, match="at most 10 nodes"):
        parse_tuples(",".join(["[a,eq,1]"] * 20), Limits(filter_nodes_max=10))
    with pytest.raises(FilterError, match="not bytes"):
        parse_tuples(b"[a,eq,1]")  # type: ignore[arg-type]
