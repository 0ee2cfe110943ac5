"""Conditions of Spark as filters: no row is lost; and why this is not done unless asked for."""

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import datasource as conditions

import anabranch
from anabranch.model.event import INT_MAX, INT_MIN, Value
from anabranch.model.filter import Filter
from anabranch.spark.column_types import Kind, Wanted, as_kind
from anabranch.spark.options import read_options
from anabranch.spark.pushdown import converted, pushed
from anabranch.spark.reader import BatchReader, PushingReader, batch_reader
from anabranch.spark.schema import schema_of
from tests.spark_parts import network_of, scanned

KINDS: tuple[Kind, ...] = ("text", "integer", "float", "truth")
#: A column of each kind; several of one attribute, so that values meet columns of other kinds.
COLUMNS = [Wanted(f"attributes.{kind}", kind) for kind in KINDS]
values: list[Value] = [
    0, 1, -1, 5, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 0.0, -0.0, 0.5, 5.0, 2.0**53, 1e300,
    math.inf, -math.inf, math.nan, "", "a", "ab", "abc", "%", "a_b", "a!b", "é", "\uffee",
    "\U0001f600", True, False,
]  # fmt: skip
comparisons = [
    conditions.EqualTo,
    conditions.EqualNullSafe,
    conditions.LessThan,
    conditions.LessThanOrEqual,
    conditions.GreaterThan,
    conditions.GreaterThanOrEqual,
]
patterns = [conditions.StringStartsWith, conditions.StringEndsWith, conditions.StringContains]


def plain_conditions() -> Iterator[conditions.Filter]:
    """Every condition that Spark may hand over: literals have the type of their column."""
    types: dict[Kind, type] = {"text": str, "integer": int, "float": float, "truth": bool}
    for kind in KINDS:
        path = (f"attributes.{kind}",)
        literals = [None, *(value for value in values if type(value) is types[kind])]
        for literal in literals:
            yield from (comparison(path, literal) for comparison in comparisons)
        yield from (conditions.In(path, pair) for pair in product(literals, literals))
        yield conditions.In(path, ())
        yield conditions.IsNull(path)
        yield conditions.IsNotNull(path)
    for text in ("", "a", "b", "%", "_", "!", "a!", "é", "\U0001f600"):
        yield from (pattern(("attributes.text",), text) for pattern in patterns)


def order_key(value: Value) -> tuple[bool, float] | str | Value:
    """To Spark NaN is greater than everything, and equal to itself; texts compare by bytes."""
    if isinstance(value, float):
        return (True, 0.0) if math.isnan(value) else (False, value)
    return value


def spark_says(condition: conditions.Filter, value: Value | None) -> bool | None:
    """What Spark makes of a condition on a column with this value."""
    if isinstance(condition, conditions.Not):
        said = spark_says(condition.child, value)
        return None if said is None else not said
    if isinstance(condition, conditions.IsNull):
        return value is None
    if isinstance(condition, conditions.IsNotNull):
        return value is not None
    if isinstance(condition, conditions.In):
        said_of_each = [
            spark_says(conditions.EqualTo(condition.attribute, each), value)
            for each in condition.value
        ]
        if any(said_of_each):
            return True
        return None if None in said_of_each else False
    literal = getattr(condition, "value")  # noqa: B009 - the base has none
    if isinstance(condition, conditions.EqualNullSafe) and (value is None or literal is None):
        return value is None and literal is None
    if value is None or literal is None:
        return None
    if isinstance(condition, conditions.StringStartsWith):
        return str(value).startswith(literal)
    if isinstance(condition, conditions.StringEndsWith):
        return str(value).endswith(literal)
    if isinstance(condition, conditions.StringContains):
        return literal in str(value)
    one, other = order_key(value), order_key(float(literal) if type(value) is float else literal)
    return {
        conditions.EqualTo: one == other,
        conditions.EqualNullSafe: one == other,
        conditions.LessThan: one < other,  # type: ignore[operator]
        conditions.LessThanOrEqual: one <= other,  # type: ignore[operator]
        conditions.GreaterThan: one > other,  # type: ignore[operator]
        conditions.GreaterThanOrEqual: one >= other,  # type: ignore[operator]
    }[type(condition)]


def test_what_is_handed_over_loses_no_row_that_spark_would_keep() -> None:
    columns = {each.name: each for each in COLUMNS}
    taken = kept = 0
    for condition in plain_conditions():
        column = columns[getattr(condition, "attribute")[0]]  # noqa: B009 - the base has none
        assert column.single is not None
        for whole in (condition, conditions.Not(condition)):
            expression = converted(whole, columns)
            if expression is None:
                continue
            taken += 1
            filter = Filter(expression)
            for value in (None, *values):
                attributes = {} if value is None else {column.attribute: value}
                if spark_says(whole, as_kind(column.single, value)):
                    kept += 1
                    assert filter.matches(attributes), (whole, value)
    assert taken > 300
    assert kept > 1_000


def test_what_can_be_handed_over_is() -> None:
    columns = [Wanted("n", "integer"), Wanted("price", "float"), Wanted("symbol", "text")]
    every = [
        conditions.IsNotNull(("n",)),
        conditions.GreaterThan(("n",), 5),
        conditions.Not(conditions.EqualTo(("n",), 7)),
        conditions.LessThanOrEqual(("price",), 9.5),
        conditions.StringStartsWith(("symbol",), "A_"),
        conditions.In(("symbol",), ("A_1", "A_2")),
    ]
    left = [
        conditions.GreaterThan(("price",), 1.5),
        conditions.IsNull(("n",)),
        conditions.EqualTo(("tick",), 3),
        conditions.EqualTo(("price",), 2.0**60),
    ]
    text, taken = pushed([*every, *left], columns, "halted = FALSE")
    assert taken == every
    assert text == (
        "halted = FALSE AND n IS NOT NULL AND n > 5 AND NOT n = 7 AND price <= 9.5"
        " AND symbol LIKE 'A!_%' ESCAPE '!' AND symbol IN ('A_1', 'A_2')"
    )
    assert pushed(left, columns, "halted = FALSE") == ("halted = FALSE", [])


def test_literals_that_filters_do_not_have_are_left_to_spark() -> None:
    columns = {each.name: each for each in COLUMNS}
    for kind in KINDS:
        for literal in (Decimal("1.5"), date(2026, 1, 1), b"x", [1]):
            condition = conditions.EqualTo((f"attributes.{kind}",), literal)
            assert converted(condition, columns) is None
    nested = conditions.EqualTo(("attributes.text", "inner"), "a")
    assert converted(nested, columns) is None


def test_conditions_beyond_the_limits_of_filters_are_left_to_spark() -> None:
    many = conditions.In(("n",), tuple(range(60_000)))
    assert pushed([many], [Wanted("n", "integer")], "") == ("", [])


def test_a_reader_takes_conditions_only_if_it_was_asked_to() -> None:
    given_options = {"brokers": "127.0.0.1:1"}
    schema = schema_of([Wanted("n", "integer")])
    default = batch_reader(read_options(given_options), schema)
    assert type(default) is BatchReader
    assert "pushFilters" not in vars(BatchReader)
    asked = batch_reader(read_options({**given_options, "pushdown": "true"}), schema)
    assert isinstance(asked, PushingReader)
    condition = conditions.GreaterThan(("n",), 5)
    # Spark evaluates it once more.
    assert [*asked.pushFilters([condition])] == [condition]


# -- timestamps

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Microseconds around 1970 and around the ends of 64-bit nanoseconds.
microseconds = st.one_of(
    st.integers(-3, 3),
    *(st.integers(end // 1_000 - 3, end // 1_000 + 3) for end in (INT_MIN, INT_MAX)),
    st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999),
)
AT = {"at": Wanted("at", "timestamp")}


def moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


@st.composite
def near_times(draw: st.DrawFn) -> tuple[list[int], int]:
    """Microseconds of literals, and nanoseconds close to one of them."""
    literals = draw(st.lists(microseconds, min_size=1, max_size=3))
    near = draw(st.sampled_from(literals)) * 1_000 + draw(st.integers(-2_000, 2_000))
    return literals, min(max(near, INT_MIN), INT_MAX)


@given(near_times(), st.sampled_from([*comparisons, conditions.In]), st.booleans())
def test_conditions_on_timestamps_keep_exactly_the_rows_that_spark_keeps(
    times: tuple[list[int], int], comparison: type[conditions.Filter], is_negated: bool
) -> None:
    literals, nanoseconds = times
    shown = moment(nanoseconds // 1_000)
    given = [moment(each) for each in literals]
    if comparison is conditions.In:
        condition: conditions.Filter = conditions.In(("at",), tuple(given))
        says = shown in given
    else:
        condition = comparison(("at",), given[0])  # type: ignore[call-arg]  # the base has none
        says = bool(spark_says_of_times(condition, shown, given[0]))
    if is_negated:
        condition, says = conditions.Not(condition), not says
    expression = converted(condition, AT)
    has_integers = all(us * 1_000 + 999 >= INT_MIN and us * 1_000 <= INT_MAX for us in literals)
    if expression is None:
        is_beyond = not has_integers
        assert is_beyond or (is_negated and comparison is conditions.EqualNullSafe)
        return
    assert Filter(expression).matches({"at": nanoseconds}) == says


def spark_says_of_times(condition: conditions.Filter, shown: datetime, literal: datetime) -> bool:
    return {
        conditions.EqualTo: shown == literal,
        conditions.EqualNullSafe: shown == literal,
        conditions.LessThan: shown < literal,
        conditions.LessThanOrEqual: shown <= literal,
        conditions.GreaterThan: shown > literal,
        conditions.GreaterThanOrEqual: shown >= literal,
    }[type(condition)]


def test_conditions_on_timestamps_are_ranges_of_integers() -> None:
    at = [Wanted("at", "timestamp")]
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    text, _ = pushed([conditions.GreaterThan(("at",), noon)], at, "")
    assert text == "at > 1769860800000000999"
    text, _ = pushed([conditions.In(("at",), (noon, EPOCH))], at, "")
    assert text == (
        "at >= 1769860800000000000 AND at <= 1769860800000000999 OR at >= 0 AND at <= 999"
    )
    for literal in (noon.replace(tzinfo=None), date(2026, 1, 31), 5, None):
        assert pushed([conditions.EqualTo(("at",), literal)], at, "") == ("", [])
        assert pushed([conditions.In(("at",), (noon, literal))], at, "x = 1")[1] == (
            [] if literal is not None else [conditions.In(("at",), (noon, literal))]
        )


@pytest.fixture(scope="module")
def times(tmp_path_factory: pytest.TempPathFactory) -> Iterator[anabranch.Embedded]:
    """Events a nanosecond around three microseconds: after and before 1970, and at its begin."""
    with network_of(tmp_path_factory.mktemp("times")) as running:
        with running.connect_blocking(name="feed") as client:
            client.publish_many(
                {"at": us * 1_000 + ns} for us in MOMENTS_US for ns in (-1, 0, 1, 999, 1_000)
            )
        yield running


MOMENTS_US = (1_769_860_800_123_456, 0, -1_769_860_800_123_456)


@pytest.mark.parametrize("order", ["=", "<>", "<", "<=", ">", ">=", "IN", "NOT IN"])
def test_spark_and_the_broker_agree_about_timestamps(
    spark: SparkSession, times: anabranch.Embedded, order: str
) -> None:
    literals = [f"timestamp_micros({us})" for us in MOMENTS_US]
    texts = [f"TIMESTAMP '{moment(us).isoformat()}'" for us in MOMENTS_US]
    chosen = [f"({', '.join(literals[:2])})"] if "IN" in order else [literals[0], texts[2]]

    def rows(pushdown: str, condition: str) -> tuple[list[object], int]:
        reader = spark.read.format("anabranch").option("brokers", times.addresses[0])
        options = {"pushdown": pushdown, "streams": "a"}
        frame = reader.options(**options).schema("tick BIGINT, at TIMESTAMP").load()
        wanted = frame.where(condition)
        return sorted(row["tick"] for row in wanted.collect()), scanned(wanted)

    for literal in chosen:
        kept, all_rows = rows("false", f"at {order} {literal}")
        pushed_down, sent_rows = rows("true", f"at {order} {literal}")
        assert kept == pushed_down
        assert kept
        assert (all_rows, sent_rows) == (15, len(kept))


# -- the leak


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[anabranch.Embedded]:
    with network_of(tmp_path_factory.mktemp("pushed")) as running:
        with running.connect_blocking(name="feed") as client:
            client.publish_many({"n": n} for n in range(100))
        yield running


def counts(spark: SparkSession, network: anabranch.Embedded, **given_options: str) -> list[int]:
    """A frame that is loaded once, counted as a whole, in part, and as a whole again."""
    reader = spark.read.format("anabranch").option("brokers", network.addresses[0])
    frame = reader.options(**given_options).schema("n BIGINT").load()
    return [frame.count(), frame.where("n < 10").count(), frame.count()]


def test_spark_leaks_pushed_conditions_so_pushdown_is_off_unless_asked_for(
    spark: SparkSession, network: anabranch.Embedded
) -> None:
    """If the second line fails with a later Spark, the leak is mended; then
    docs/how-to/read-with-spark.md and the default of `pushdown` may change."""
    assert counts(spark, network) == [100, 10, 100]
    assert counts(spark, network, pushdown="true") == [100, 10, 10]


def test_one_load_for_each_query_is_right_with_pushdown(
    spark: SparkSession, network: anabranch.Embedded
) -> None:
    def load() -> int:
        reader = spark.read.format("anabranch").option("brokers", network.addresses[0])
        frame = reader.option("pushdown", "true").schema("n BIGINT, price DOUBLE").load()
        return frame.where("n < 10 AND n <> 3 AND price IS NULL").count()

    assert load() == 9
