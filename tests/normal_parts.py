"""What normal forms are tried on: few values that meet often, with every boundary among them.

A domain is small enough to try all events over two attributes. `probes_of` finds the values at
which a set can change its mind: the ends of its ranges and their neighbours on either side.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import product

from hypothesis import strategies as st

from anabranch.model.event import (
    INFINITY,
    INT_MAX,
    INT_MIN,
    Number,
    Value,
    number_after,
    number_before,
    text_after,
)
from anabranch.model.language.expression import (
    Attribute,
    Binary,
    Comparison,
    Expression,
    In,
    Integer,
    IsNull,
    Like,
    Real,
    Text,
    Truth,
    conjunction_of,
    disjunction_of,
    negation_of,
)
from anabranch.model.normal.conjunction import Conjunction, conjunction_from
from anabranch.model.normal.value_set import (
    ABSENT,
    NOTHING,
    ONLY_FALSE,
    ONLY_TRUE,
    ValueSet,
    point,
    prefixed,
    union_of,
)
from tests.filter_parts import orders, values_over

NUMBERS: list[Number] = [
    0, -0.0, 5e-324, 1, 1.0, number_after(1), number_before(1), 1.5, 2, -3,
    2**53 - 1, 2**53, 2**53 + 1, float(2**53 + 2), -(2**53) - 1,
    INT_MAX, INT_MAX - 1, 2.0**63, INT_MIN, number_before(INT_MIN), 1e300,
]  # fmt: skip
INFINITIES = [INFINITY, -INFINITY]
TEXTS = ["", "\0", "a", "a\0", "ab", "abc", "b", "\ud7ff", "\ue000", "\U0010ffff", "\U0010ffffa"]
#: All that an attribute is tried with; None is absence.
DOMAIN: list[Value | None] = [*NUMBERS, *INFINITIES, math.nan, *TEXTS, True, False, None]
PATTERNS = [
    "",
    "%",
    "_",
    "_%",
    "%_",
    "a",
    "a%",
    "a_",
    "a_%",
    "a%_",
    "a%c",
    "%b",
    "%a%",
    "__",
    "\ud7ff%",
]
NAMES = ["a", "b"]

Event = dict[str, Value]

numbers = st.sampled_from(NUMBERS)
texts = st.sampled_from(TEXTS)
literals: st.SearchStrategy[Expression] = st.one_of(
    numbers.map(lambda number: Integer(number) if isinstance(number, int) else Real(number)),
    texts.map(Text),
    st.booleans().map(Truth),
    st.just(Binary(b"a")),
)
attributes = st.sampled_from(NAMES).map(Attribute)
item_tuples = st.lists(literals, min_size=1, max_size=4).map(tuple)
comparisons = st.builds(Comparison, orders, attributes, literals)
atoms: st.SearchStrategy[Expression] = st.one_of(
    comparisons,
    comparisons,
    st.builds(Comparison, orders, literals, attributes),
    st.builds(Comparison, orders, attributes, attributes),
    st.builds(In, attributes, item_tuples),
    st.builds(Like, attributes, st.sampled_from(PATTERNS)),
    st.builds(IsNull, attributes),
    attributes,
)
mixed_values = values_over(st.sampled_from(NAMES))
residues: st.SearchStrategy[Expression] = st.one_of(
    st.builds(Comparison, orders, mixed_values, mixed_values),
    st.builds(In, mixed_values, st.lists(mixed_values, min_size=1, max_size=3).map(tuple)),
    st.builds(Like, mixed_values, st.sampled_from(PATTERNS)),
    st.builds(IsNull, mixed_values),
    mixed_values,
)


def trees_of(leaves: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    """AND, OR and NOT of these."""
    return st.recursive(
        leaves,
        lambda smaller: st.one_of(
            st.lists(smaller, min_size=2, max_size=3).map(conjunction_of),
            st.lists(smaller, min_size=2, max_size=3).map(disjunction_of),
            smaller.map(negation_of),
        ),
        max_leaves=7,
    )


atom_trees = trees_of(atoms)
mixed_trees = trees_of(atoms | residues)
simple: st.SearchStrategy[Expression] = st.one_of(
    st.builds(In, attributes, item_tuples),
    st.builds(Like, attributes, st.sampled_from(PATTERNS)),
    st.builds(IsNull, attributes),
)
#: AND of simple conditions on an attribute, and single ones.
plain_trees = st.lists(
    st.one_of(comparisons, comparisons, simple, simple.map(negation_of)), min_size=1, max_size=5
).map(conjunction_of)


def _number_set(ends: tuple[Number, Number]) -> ValueSet:
    return ValueSet(((min(ends) + 0, max(ends) + 0),))  # −0.0 + 0 is 0.0


def _text_set(ends: tuple[str, str]) -> ValueSet:
    return NOTHING if ends[0] == ends[1] else ValueSet(texts=((min(ends), max(ends)),))


pieces: st.SearchStrategy[ValueSet] = st.one_of(
    st.tuples(st.sampled_from([*NUMBERS, *INFINITIES]), numbers).map(_number_set),
    st.tuples(texts, texts).map(_text_set),
    texts.map(lambda text: ValueSet(texts=((text, None),))),
    st.sampled_from(DOMAIN).map(point),
    texts.map(prefixed),
    st.sampled_from([ABSENT, ONLY_FALSE, ONLY_TRUE, point(math.nan)]),
)
value_sets = st.lists(pieces, max_size=4).map(union_of)
constrained = value_sets.filter(lambda values: not values.is_empty())
boxes: st.SearchStrategy[Conjunction] = st.dictionaries(
    st.sampled_from(NAMES), constrained, max_size=2
).map(conjunction_from)


def probes_of(sets: Iterable[ValueSet]) -> list[Value | None]:
    """A value from each piece into which these sets cut all that an attribute can be."""
    found: list[Value | None] = [None, math.nan, True, False, "", 0, *INFINITIES]
    for values in sets:
        for ends in values.numbers:
            found += [near for end in ends for near in _near_number(end)]
        for start, end in values.texts:
            found += [start, text_after(start)]
            found += [] if end is None else [end, text_after(end)]
    return found


def _near_number(number: Number) -> Iterator[Number]:
    yield number
    if number != INFINITY:
        yield number_after(number)
    if number != -INFINITY:
        yield number_before(number)


def events_over(domains: dict[str, list[Value | None]]) -> Iterator[Event]:
    """Every event over these attributes."""
    for values in product(*domains.values()):
        pairs = zip(domains, values, strict=True)
        yield {name: value for name, value in pairs if value is not None}


ALL_EVENTS = list(events_over(dict.fromkeys(NAMES, DOMAIN)))


def deciding_events(conjunctions: Iterable[Conjunction]) -> Iterator[Event]:
    """Events among which there is one from every cell into which these boxes cut the world."""
    sets: dict[str, list[ValueSet]] = {}
    for conjunction in conjunctions:
        for name, values in conjunction.constraints:
            sets.setdefault(name, []).append(values)
    return events_over({name: _distinct(probes_of(sets[name])) for name in sets})


def _distinct(values: list[Value | None]) -> list[Value | None]:
    return list({(type(value), repr(value)): value for value in values}.values())
