"""Normal forms of filters that can be read, and of filters that must be refused."""

import pytest

from anabranch.model.errors import FilterLimitError
from anabranch.model.language.expression import (
    And,
    Arithmetic,
    Attribute,
    Comparison,
    Expression,
    Integer,
    Not,
    Or,
)
from anabranch.model.language.parser import parse_expression
from anabranch.model.language.tokens import expression_text
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.normal.conjunction import EVERY_EVENT, Conjunction
from anabranch.model.normal.normal_form import normalise
from anabranch.model.normal.value_set import NUMBERS, TEXTS, point, prefixed


def normal_form(text: str) -> tuple[Conjunction, ...]:
    return normalise(parse_expression(text))


def attributes_of(conjunctions: tuple[Conjunction, ...]) -> list[list[str]]:
    return [[name for name, _ in conjunction.constraints] for conjunction in conjunctions]


def test_comparisons_of_one_attribute_are_intersected() -> None:
    (conjunction,) = normal_form("x >= 1 AND y = 'a' AND x <= 5")
    assert conjunction.constraints[0][1].numbers == ((1, 5),)
    assert conjunction.constraints[1] == ("y", point("a"))


@pytest.mark.parametrize(
    "text",
    [
        "x < 1 AND x > 2",
        "x BETWEEN 5 AND 1",
        "x = 1 AND x = 'a'",
        "x < ''",
        "x = 'a' AND x LIKE 'b%'",
        "x IS NULL AND x > 1",
        "x AND NOT x",
        "a < b AND b <= a",
        "a < b AND NOT a < b",
        "a + 1 = 'x'",
        "x > 1 / 0",
        "NOT x > 1 / 0",
        "FALSE",
        "1",
        "NOT 'a'",
        "x = 1 AND 2 < 1",
        "x LIKE '%s' AND x > 1",
        "a < b AND a IS NULL",
        "x < TRUE OR x = 0x61",
    ],
)
def test_contradictions_vanish(text: str) -> None:
    assert normal_form(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "TRUE",
        "NOT FALSE",
        "1 < 2",
        "x IS NULL OR x IS NOT NULL",
        "x = 1 OR TRUE",
        "1 + 1 = 2 OR a < b",
        "(x IS NULL OR y = 1) OR (x IS NOT NULL OR y = 2)",
        "x IS NULL AND y IS NULL OR x IS NULL AND y IS NOT NULL OR x IS NOT NULL",
    ],
)
def test_tautologies_are_recognised(text: str) -> None:
    assert normal_form(text) == (EVERY_EVENT,)


def test_law_of_the_excluded_middle_does_not_hold() -> None:
    (conjunction,) = normal_form("x > 1 OR NOT x > 1")
    assert conjunction.constraints == (("x", NUMBERS),)


def test_alternatives_of_one_attribute_are_one_set() -> None:
    assert normal_form("x = 1 OR x = 2 OR x = 3") == normal_form("x IN (1, 2, 3)")
    assert normal_form("(x > 1 AND x < 5) OR (x >= 4 AND x < 9)") == normal_form("x > 1 AND x < 9")


def test_alternatives_of_one_attribute_are_united_before_they_are_multiplied() -> None:
    many = " AND ".join(f"(x{n} = 1 OR x{n} = 2 OR x{n} = 3)" for n in range(100))
    (conjunction,) = normal_form(many)
    assert len(conjunction.constraints) == 100


def test_covered_conjunctions_are_absorbed() -> None:
    assert normal_form("x > 1 OR x > 2 AND y = 1") == normal_form("x > 1")
    assert normal_form("x LIKE 'a%' OR x LIKE 'ab%' AND y = 1") == normal_form("x LIKE 'a%'")
    assert normal_form("x = 'a' OR x = 'a' AND y = 1") == normal_form("x = 'a'")
    assert normal_form("a < b AND x > 1 OR x > 1") == normal_form("x > 1")
    assert normal_form("(a = 1 OR b = 1) AND (a = 1 OR c = 1)") == normal_form(
        "a = 1 OR b = 1 AND c = 1"
    )


def test_conjunctions_that_differ_in_one_attribute_are_merged() -> None:
    assert normal_form("x = 1 AND y = 3 OR x = 2 AND y = 3") == normal_form("x IN (1, 2) AND y = 3")


def test_merging_goes_on_while_it_finds_something() -> None:
    cells = [f"x = {x} AND y = {y} AND z = {z}" for x in (1, 2) for y in (1, 2) for z in (1, 2)]
    assert normal_form(" OR ".join(cells)) == normal_form(
        "x IN (1,2) AND y IN (1,2) AND z IN (1,2)"
    )


def test_equal_residues_do_not_hinder_merging() -> None:
    (conjunction,) = normal_form("a < b AND x = 1 OR b > a AND x = 2")
    assert conjunction.constraints[2] == ("x", point(1).union(point(2)))
    assert [expression_text(part) for part in conjunction.residue] == ["a < b"]


def test_residue_brings_what_it_implies() -> None:
    (conjunction,) = normal_form("a + b > 5 AND x LIKE '%s'")
    assert conjunction.constraints == (("a", NUMBERS), ("b", NUMBERS), ("x", TEXTS))
    assert [expression_text(part) for part in conjunction.residue] == ["a + b > 5", "x LIKE '%s'"]


def test_pattern_with_a_beginning_is_bounded_by_it() -> None:
    (conjunction,) = normal_form("x LIKE 'ab%c'")
    assert conjunction.constraints == (("x", prefixed("ab")),)
    assert len(conjunction.residue) == 1


def test_constant_arithmetic_is_calculated() -> None:
    assert normal_form("x > 2 * 25") == normal_form("x > 50")
    assert normal_form("5 / 2 < x") == normal_form("x > 2.5")
    assert normal_form("x IN (1 + 1, 3)") == normal_form("x IN (2, 3)")
    assert normal_form("1 + 1 IN (x)") == normal_form("x = 2")


def test_membership_among_attributes_is_the_or_of_equalities() -> None:
    assert normal_form("x IN (1, y, 2)") == normal_form("x IN (1, 2) OR x = y")
    assert normal_form("3 IN (x, y)") == normal_form("x = 3 OR y = 3")
    assert normal_form("x NOT IN (1, y)") == normal_form("x <> 1 AND x <> y")


def test_not_is_pushed_down_to_the_conditions() -> None:
    assert normal_form("NOT (x > 1 AND y = 2)") == normal_form("x <= 1 OR y <> 2")
    assert normal_form("NOT (x > 1 OR y = 2)") == normal_form("x <= 1 AND y <> 2")


def test_constraints_ascend_by_name() -> None:
    assert attributes_of(normal_form("c = 1 AND a = 1 AND b = 1")) == [["a", "b", "c"]]
    assert attributes_of(normal_form("c = 1 AND a = 1 AND b IS NULL")) == [["a", "b", "c"]]


def test_product_of_alternatives_is_refused_with_the_numbers() -> None:
    explosive = " AND ".join(f"(a{n} = 1 OR b{n} = 1)" for n in range(30))
    with pytest.raises(FilterLimitError, match=r"at most 1024 .*conjunctions_max"):
        normal_form(explosive)


def test_negated_disjunction_of_conjunctions_is_refused() -> None:
    inner = " OR ".join(f"(a{n} = 1 AND b{n} = 1 AND c{n} = 1)" for n in range(40))
    with pytest.raises(FilterLimitError):
        normal_form(f"NOT ({inner})")


def test_many_alternatives_of_different_attributes_are_refused() -> None:
    with pytest.raises(FilterLimitError, match="conjunctions_max"):
        normal_form(" OR ".join(f"a{n} = 1" for n in range(3_000)))


def test_many_alternatives_of_one_attribute_are_one_conjunction() -> None:
    (conjunction,) = normal_form(" OR ".join(f"x = {2 * n}" for n in range(10_000)))
    assert len(conjunction.constraints[0][1].numbers) == 10_000


def test_many_alternatives_that_merge_are_one_conjunction() -> None:
    (conjunction,) = normal_form(" OR ".join(f"y = 1 AND x = {2 * n}" for n in range(3_000)))
    assert len(conjunction.constraints) == 2


def test_many_exclusions_from_one_attribute_are_one_set() -> None:
    chain = normal_form(" AND ".join(f"x <> {2 * n}" for n in range(10_000)))
    assert chain == normal_form(f"x NOT IN ({', '.join(str(2 * n) for n in range(10_000))})")


def test_too_many_predicates_are_refused_on_either_way() -> None:
    limits = Limits(predicates_max=3)
    plain = parse_expression("a = 1 AND b = 1 AND c = 1 AND d = 1")
    other = parse_expression("a = 1 AND b = 1 AND c = 1 AND d IS NULL")
    for expression in (plain, other):
        with pytest.raises(FilterLimitError, match=r"4 predicates .* at most 3 .*predicates_max"):
            normalise(expression, limits)


def test_filter_at_the_limits_is_accepted() -> None:
    limits = Limits(conjunctions_max=3, predicates_max=3)
    assert len(normalise(parse_expression("a = 1 OR b = 1 OR c = 1"), limits)) == 3
    with pytest.raises(FilterLimitError):
        normalise(parse_expression("a = 1 OR b = 1 OR c = 1 OR d = 1"), limits)


def test_combinations_that_all_contradict_are_bounded_too() -> None:
    left = " OR ".join(f"x = {n} AND a = {n} AND l{n} = 1" for n in range(1_000))
    right = " OR ".join(f"x = {n} AND a = {n + 1} AND r{n} = 1" for n in range(1_000))
    with pytest.raises(FilterLimitError, match="too many combinations"):
        normal_form(f"({left}) AND ({right})")


def alternating(depth: int) -> Expression:
    """NOT, AND and OR in turns, `depth` high and a little."""
    tree: Expression = Comparison("=", Attribute("x"), Integer(1))
    for level in range(depth):
        other = Comparison("=", Attribute(f"a{level}"), Integer(1))
        tree = And((tree, other)) if level % 2 else Or((tree, other))
    return tree


def test_tree_as_high_as_the_limit_is_safe() -> None:
    height_max = DEFAULT_LIMITS.filter_depth_max
    assert normalise(alternating(height_max - 2))


@pytest.mark.parametrize("depth", [100, 100_000])
def test_tree_above_the_limit_is_refused(depth: int) -> None:
    with pytest.raises(FilterLimitError, match="filter_depth_max"):
        normalise(alternating(depth))


def test_deep_arithmetic_is_refused() -> None:
    tree: Expression = Attribute("x")
    for _ in range(100_000):
        tree = Arithmetic("+", tree, Integer(1))
    with pytest.raises(FilterLimitError, match="filter_depth_max"):
        normalise(Comparison(">", tree, Integer(1)))


def test_deep_not_is_refused() -> None:
    tree: Expression = Attribute("x")
    for _ in range(100_000):
        tree = Not(tree)
    with pytest.raises(FilterLimitError, match="filter_depth_max"):
        normalise(tree)


def test_searches_that_are_too_expensive_together_are_refused() -> None:
    plain = [f"t LIKE '%w{n}%'" for n in range(512)]
    assert len(normal_form(" AND ".join(plain))) == 1
    with pytest.raises(FilterLimitError, match=r"weight of 513; at most 512 .*search_weight_max"):
        normal_form(" AND ".join([*plain, "t LIKE '%more%'"]))
    with pytest.raises(FilterLimitError, match="search_weight_max"):
        normal_form("(" + " OR ".join([*plain, "t LIKE '%more%'"]) + ") OR TRUE")
    holed = [f"t LIKE '%{'a_' * 100}{n}%'" for n in range(11)]
    with pytest.raises(FilterLimitError, match="search_weight_max"):
        normal_form(" OR ".join(holed))


def test_comparisons_of_the_ends_of_texts_weigh_nothing() -> None:
    normal_form(" OR ".join(f"t LIKE '%w{n}'" for n in range(600)))
