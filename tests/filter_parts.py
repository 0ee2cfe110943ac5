"""What filters are made of, for Hypothesis: names, literals, trees and events.

Small pools are mixed in on purpose: two random strings never meet, and comparisons that are always
false test little.
"""

from hypothesis import strategies as st

from anabranch.model.event import INT_MAX, INT_MIN
from anabranch.model.language.expression import (
    Arithmetic,
    Attribute,
    Binary,
    Comparison,
    Expression,
    In,
    Integer,
    IsNull,
    Like,
    Negative,
    Positive,
    Real,
    Text,
    Truth,
    conjunction_of,
    disjunction_of,
    negation_of,
)
from anabranch.model.language.like import escape_literal

ODD_NAMES = [
    "AND", "or", "Null", "x y", "[x]", "a]", "[", "naïve", "日本", "a.b", "a.", "$x", "1a", "-",
    "'", "\n", "li\u212ae", "a--b", "$",
]  # fmt: skip
SHORT_NAMES = ["a", "b", "c"]
POOL_NUMBERS = [0, 1, -1, 2, 5, 2**53, 2**53 + 1, INT_MAX, INT_MIN]
POOL_FLOATS = [0.0, -0.0, 0.5, 1.0, 2.5, -1.5, float(2**53), 1e300, 5e-324]
POOL_TEXTS = ["", "a", "ab", "aXb", "a%b", "a_b", "it's", "\\", "ä", "\U0001f600"]

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.sampled_from(SHORT_NAMES * 4 + ODD_NAMES) | any_text.filter(bool)
integers = st.sampled_from(POOL_NUMBERS) | st.integers(INT_MIN, INT_MAX)
finite_floats = st.sampled_from(POOL_FLOATS) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.sampled_from(POOL_TEXTS) | any_text

literals: st.SearchStrategy[Expression] = st.one_of(
    st.builds(Integer, integers),
    st.builds(Real, finite_floats),
    st.builds(Text, texts),
    st.builds(Truth, st.booleans()),
    st.builds(Binary, st.binary(min_size=1, max_size=4)),
)
orders = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
operators = st.sampled_from(["+", "-", "*", "/", "%"])


def _larger_values(smaller: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.one_of(
        st.builds(Negative, smaller),
        st.builds(Positive, smaller),
        st.builds(Arithmetic, operators, smaller, smaller),
    )


@st.composite
def patterns(draw: st.DrawFn) -> tuple[str, str]:
    """A pattern and its escape character, or none."""
    literal = draw(texts)
    pattern, escape = escape_literal(literal) if draw(st.booleans()) else (literal, "")
    before = draw(st.sampled_from(["", "%", "_", "%_"]))
    behind = draw(st.sampled_from(["", "%", "_", "_%", "%%"]))
    if not escape and draw(st.booleans()):
        escape = draw(st.sampled_from(["!", "'", "%", "_"]).filter(lambda e: e not in pattern))
        pattern = pattern.replace(escape, "")
        before, behind = before.replace(escape, ""), behind.replace(escape, "")
    return before + pattern + behind, escape


@st.composite
def likes(draw: st.DrawFn, operands: st.SearchStrategy[Expression]) -> Expression:
    pattern, escape = draw(patterns())
    return Like(draw(operands), pattern, escape)


def values_over(attribute_names: st.SearchStrategy[str]) -> st.SearchStrategy[Expression]:
    """Literals, attributes and arithmetic."""
    leaves = literals | st.builds(Attribute, attribute_names)
    return st.recursive(leaves, _larger_values, max_leaves=4)


def conditions_over(attribute_names: st.SearchStrategy[str]) -> st.SearchStrategy[Expression]:
    """Whole filters."""
    values = values_over(attribute_names)
    tests = st.one_of(
        st.builds(Comparison, orders, values, values),
        st.builds(In, values, st.lists(values, min_size=1, max_size=4).map(tuple)),
        likes(values),
        st.builds(IsNull, values),
        values,
    )
    return st.recursive(
        tests,
        lambda smaller: st.one_of(
            st.lists(smaller, min_size=2, max_size=3).map(conjunction_of),
            st.lists(smaller, min_size=2, max_size=3).map(disjunction_of),
            smaller.map(negation_of),
        ),
        max_leaves=8,
    )


conditions = conditions_over(names)
#: Conditions over three attributes, which events over the same three do meet.
meeting_conditions = conditions_over(st.sampled_from(SHORT_NAMES))
event_values = (
    st.sampled_from(POOL_NUMBERS)
    | st.sampled_from(POOL_FLOATS)
    | st.floats()
    | st.booleans()
    | texts
)
events = st.dictionaries(st.sampled_from(SHORT_NAMES), event_values, max_size=3)
