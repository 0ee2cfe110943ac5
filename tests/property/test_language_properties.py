"""The filter language against its own definition, on filters nobody would think of writing."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from anabranch.model.errors import FilterError
from anabranch.model.event import Value
from anabranch.model.language.evaluate import compile_condition, evaluate
from anabranch.model.language.expression import Expression, check_expression
from anabranch.model.language.like import escape_literal, matcher_of, pattern_of
from anabranch.model.language.parser import Parser, check_text, parse_expression
from anabranch.model.language.plain import parse_plain
from anabranch.model.language.tokens import expression_text
from anabranch.model.language.tuples import parse_tuples
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.normal.normal_form import normalise
from anabranch.model.normal.plain_normal_form import conjunction_of, read_plain
from tests.filter_parts import any_text, conditions, events, meeting_conditions

# -- texts that look like plain filters, some of which are

SPACES = st.sampled_from([" ", " ", " ", "  ", "\t", "\n", "\r\f", ""])
WORDS = st.sampled_from(
    [
        "a",
        "b",
        "price",
        "_x",
        "x1",
        "$y",
        "a.b",
        "AND",
        "or",
        "Not",
        "nULL",
        "like",
        "é",
        "[a]",
        "TRUE",
        "timestamp",
        "TIMESTAMP",
        "contains",
    ]
)
NUMBERS = st.sampled_from(
    [
        "7",
        "-7",
        "+7",
        "007",
        "57.",
        ".5",
        "-.5",
        "7E3",
        "7e-3",
        "1.5e+3",
        "1.5E3",
        "57.e2",
        "0",
        "-0",
        "-0.0",
        "1e400",
        "1e-400",
        "10L",
        "1.5f",
        "0x48",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "TIMESTAMP '2026-01-31T12:00:00Z'",
        "timestamp '2026-01-31 12:00:00.5+01:00'",
        "TIMESTAMP'noon'",
        "999999999999999999",
        "1000000000000000000",
        "1234567890123456789012",
        "1e",
        "1.2.3",
        "-",
        "1_000",
    ]
)
STRINGS = st.sampled_from(
    ["'x'", "''", "'it''s'", "'AND'", "' = 1 AND b = 2'", '"x"', '"it""s"', "'(", "'é'", "'%a_'"]
)
LITERALS = NUMBERS | STRINGS | st.sampled_from(["TRUE", "false", "True", "a", "NULL"])
ORDERS = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">=", "==", "=>", "!"])
JOINTS = st.sampled_from(["AND", "AND", "and", "And", "OR", "or", "XOR", "&"])


@st.composite
def loose_predicates(draw: st.DrawFn) -> str:
    space = draw(st.lists(SPACES, min_size=6, max_size=6))
    name, literal = draw(WORDS), draw(LITERALS)
    form = draw(st.integers(0, 6))
    negation = draw(st.sampled_from(["", "", "NOT", "not"]))
    if form <= 2:
        return f"{name}{space[0]}{draw(ORDERS)}{space[1]}{literal}"
    if form == 3:
        joint, high = draw(st.sampled_from(["AND", "and", "OR"])), draw(LITERALS)
        bounds = f"{literal}{space[2]}{joint}{space[3]}{high}"
        return f"{name}{space[0]}BETWEEN{space[1]}{bounds}"
    if form == 4:
        return f"{name}{space[0]}{negation}{space[1]}LIKE{space[2]}{draw(STRINGS)}"
    if form == 5:
        items = f"{space[3]},{space[4]}".join(draw(st.lists(LITERALS, max_size=3)))
        return f"{name}{space[0]}{negation}{space[1]}in{space[2]}({items})"
    return f"{name}{space[0]}is{space[1]}{negation}{space[2]}null"


@st.composite
def loose_texts(draw: st.DrawFn) -> str:
    parts = [draw(SPACES)]
    for index in range(draw(st.integers(1, 4))):
        if index:
            parts += [draw(SPACES), draw(JOINTS), draw(SPACES)]
        predicate = draw(loose_predicates())
        opening = draw(st.sampled_from(["", "", "", "(", "( "]))
        closing = draw(st.sampled_from(["", ")" if opening else "", ")" if opening else ""]))
        parts.append(opening + predicate + closing)
    return "".join(parts) + draw(SPACES)


@st.composite
def damaged_texts(draw: st.DrawFn) -> str:
    """The text of a filter with something cut out and something put in."""
    text = expression_text(draw(conditions))
    start = draw(st.integers(0, len(text)))
    end = min(len(text), start + draw(st.integers(0, 3)))
    noise = draw(st.text("()[]'\"=<>!+-*/%,. \nA0exNOT&|\\é\0", max_size=3))
    return text[:start] + noise + text[end:]


def attempt(parse: Callable[[str], Expression], text: str) -> Expression | FilterError:
    """The tree, or the error instead of it."""
    try:
        return parse(text)
    except FilterError as error:
        return error


def general(text: str) -> Expression:
    """What the parser proper makes of `text`, without the short cut."""
    check_text(text, DEFAULT_LIMITS)
    return Parser(text, DEFAULT_LIMITS).parse()


def is_well_reported(error: FilterError, text: str) -> bool:
    return error.text == text and 0 <= error.position <= len(text) and bool(error.message)


# -- parsing and printing


@given(conditions)
def test_printed_filter_parses_back_to_the_same_tree(expression: Expression) -> None:
    text = expression_text(expression)
    assert repr(parse_expression(text)) == repr(expression)


@given(conditions)
def test_generated_trees_are_valid(expression: Expression) -> None:
    check_expression(expression)


@given(loose_texts())
def test_plain_and_general_parser_agree(text: str) -> None:
    plain = parse_plain(text)
    if plain is not None:
        assert repr(plain) == repr(attempt(general, text))


@given(loose_texts())
def test_plain_demands_are_the_normal_form_of_the_tree(text: str) -> None:
    plain = read_plain(text, DEFAULT_LIMITS)
    if plain is not None:
        assert tuple(map(conjunction_of, plain)) == normalise(general(text))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "price", "_x1"]),
            st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="]),
            st.sampled_from(["7", "-7", "+7", "57.", ".5", "7E3", "-1.5e-3", "'x'", "''", "TRUE"]),
            st.sampled_from([" AND ", " OR ", " and ", "  or  "]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_plain_filters_are_recognised(parts: list[tuple[str, str, str, str]]) -> None:
    text = "".join(f"{name} {order} {literal}{joint}" for name, order, literal, joint in parts)
    text = text.rstrip().removesuffix("AND").removesuffix("OR").removesuffix("and")
    text = text.removesuffix("or").rstrip()
    plain = parse_plain(text)
    assert plain is not None
    assert repr(plain) == repr(general(text))


@given(damaged_texts() | loose_texts() | st.text(max_size=12))
def test_any_text_parses_or_is_a_filter_error_with_its_place(text: str) -> None:
    outcome = attempt(parse_expression, text)
    assert repr(outcome) == repr(attempt(general, text))
    if isinstance(outcome, FilterError):
        assert is_well_reported(outcome, text)
    else:
        check_expression(outcome)
        assert repr(parse_expression(expression_text(outcome))) == repr(outcome)


@given(st.text("[],;'\" eqnstr-prefixcontainsisPresent<>=aB1.5$é", max_size=30))
def test_any_tuple_text_parses_or_is_a_filter_error_with_its_place(text: str) -> None:
    outcome = attempt(parse_tuples, text)
    if isinstance(outcome, FilterError):
        assert is_well_reported(outcome, text)
    else:
        check_expression(outcome)


# -- meaning


@given(meeting_conditions, events)
def test_compiled_condition_agrees_with_the_definition(
    expression: Expression, event: dict[str, Value]
) -> None:
    value = evaluate(expression, event)
    truth = value if isinstance(value, bool) else None
    assert compile_condition(expression)(event) is truth


@given(meeting_conditions, events)
def test_printing_and_parsing_keep_the_meaning(
    expression: Expression, event: dict[str, Value]
) -> None:
    parsed = parse_expression(expression_text(expression))
    assert compile_condition(parsed)(event) is compile_condition(expression)(event)


# -- LIKE


def like_by_definition(pattern: str, text: str) -> bool:
    """Tries everything; without an escape character."""
    reachable = {0}
    for character in pattern:
        if character == "%":
            reachable = set(range(min(reachable, default=len(text) + 1), len(text) + 1))
        else:
            reachable = {
                place + 1
                for place in reachable
                if place < len(text) and character in ("_", text[place])
            }
    return len(text) in reachable


@given(st.text("ab_%", max_size=10), st.text("ab_%\n", max_size=14))
def test_like_agrees_with_trying_everything(pattern: str, text: str) -> None:
    assert matcher_of(pattern_of(pattern))(text) is like_by_definition(pattern, text)


@given(st.text("a%_\\", max_size=8), st.text("a%_\\", max_size=8))
def test_escaped_literal_matches_itself_alone(literal: str, text: str) -> None:
    matches = matcher_of(pattern_of(*escape_literal(literal)))
    assert matches(literal)
    assert matches(text) is (text == literal)


@given(any_text, st.sampled_from("%_!\\x"), any_text)
def test_escape_needs_something_to_escape(before: str, escape: str, behind: str) -> None:
    start = before.replace(escape, "") + escape
    pattern = start + behind[:1] + behind[1:].replace(escape, "")
    try:
        pattern_of(pattern, escape)
    except FilterError as error:
        position = error.position
    else:
        position = -1
    escapes_something = behind.startswith(("%", "_", escape))
    assert position == (-1 if escapes_something else len(start) - 1)
