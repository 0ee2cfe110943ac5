"""One filter tree, three targets: the condition on columns, the index and the filter itself agree.

Many filters are asked about many events in one query: each filter is two columns, where it is TRUE
and where its negation is, so all three truth values are seen.
"""

import math
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, DataFrame, SparkSession

from anabranch.matching.index import MatchIndex
from anabranch.model.errors import FilterLimitError, LocalError
from anabranch.model.event import INT_MAX, INT_MIN, Event, Value
from anabranch.model.filter import Filter
from anabranch.model.language.evaluate import evaluate
from anabranch.model.language.expression import Expression
from anabranch.spark.archive.columns import ARROW, KINDS, OWN, kind_of
from anabranch.spark.archive.files import parquet_writer
from anabranch.spark.filter_columns import Columns, columns_of, condition
from tests.filter_parts import events as strange_events
from tests.filter_parts import meeting_conditions
from tests.matching_parts import events as usual_events
from tests.matching_parts import filters as usual_filters

Attributes = dict[str, Value]
#: A query takes seconds, and holds many examples.
FEW = max(settings().max_examples // 150, 1)
AT_ONCE = 12
NAMES = ("a", "b", "c", "p", "q", "r", "s", "t")
#: Every attribute may be of every kind.
COLUMNS: Columns = {name: {kind: f"{name}__{kind}" for kind in KINDS} for name in NAMES}


def table_of(events: list[Attributes]) -> pa.Table:
    columns = {"number": pa.array(range(len(events)), pa.int64())}
    for name, kinds in COLUMNS.items():
        for kind in KINDS:
            column = kinds[kind]
            values = [event.get(name) for event in events]
            fitting = [v if v is not None and kind_of(v) == kind else None for v in values]
            columns[column] = pa.array(fitting, ARROW[kind])
    return pa.table(columns)


def truths(
    spark: SparkSession, filters: list[Filter], events: list[Attributes]
) -> list[list[bool | None]]:
    """For each filter and event: TRUE, FALSE or UNKNOWN, as Spark sees it."""
    frame = spark.createDataFrame(table_of(events))
    found: list[list[bool | None]] = []
    # What Spark has to think about grows faster than the number of columns.
    for first in range(0, len(filters), AT_ONCE):
        some = filters[first : first + AT_ONCE]
        asked: list[Column] = []
        for number, each in enumerate(some):
            asked.append(condition(each, COLUMNS).alias(f"true{number}"))
            asked.append(condition(~each, COLUMNS).alias(f"false{number}"))
        rows = frame.select("number", *asked).toArrow().to_pylist()
        rows.sort(key=lambda row: row["number"])
        assert len(rows) == len(events)
        found += [
            [True if row[f"true{n}"] else False if row[f"false{n}"] else None for row in rows]
            for n in range(len(some))
        ]
    return found


def expected(filters: list[Filter], events: list[Attributes]) -> list[list[bool | None]]:
    return [[_truth(each.expression, event) for event in events] for each in filters]


def _truth(expression: Expression, event: Attributes) -> bool | None:
    found = evaluate(expression, event)
    return found if isinstance(found, bool) else None


def check(spark: SparkSession, filters: list[Filter], events: list[Attributes]) -> None:
    """Column, evaluation and index say the same."""
    wanted = expected(filters, events)
    found = truths(spark, filters, events)
    for each, one, other in zip(filters, found, wanted, strict=True):
        for event, seen, known in zip(events, one, other, strict=True):
            assert seen is known, f"{each} of {event}: Spark says {seen}, the filter {known}"
    check_index(filters, events, wanted)


def check_index(
    filters: list[Filter], events: list[Attributes], wanted: list[list[bool | None]]
) -> None:
    index = MatchIndex()
    there = set()
    for number, each in enumerate(filters):
        with suppress(FilterLimitError):
            index.add(number, each)
            there.add(number)
    for place, event in enumerate(events):
        found = set(index.match(Event(event)))
        assert found == {n for n in there if wanted[n][place] is True}


@settings(max_examples=FEW)
@given(st.data())
def test_column_index_and_evaluation_agree_on_any_filter(
    spark: SparkSession, data: st.DataObject
) -> None:
    strange = data.draw(st.lists(meeting_conditions, min_size=12, max_size=16))
    usual = data.draw(st.lists(usual_filters, min_size=12, max_size=16))
    events = data.draw(st.lists(strange_events, min_size=20, max_size=30))
    events += data.draw(st.lists(usual_events, min_size=20, max_size=30))
    check(spark, [*map(Filter, strange), *usual], events)


#: Where data bases, or programs of floats, would answer otherwise.
HARD = """
    a = 9007199254740993 ; a < 9007199254740993 ; a > 9007199254740992.0 ; a >= 9007199254740993
    a <> 9007199254740993 ; a = b ; a < b ; a <= b ; a > b ; a >= b ; a <> b ; a = 0 ; a > -0.0
    a >= 0 ; a IN (0, 1, 'x') ; a NOT IN (0, 1) ; a IN (9007199254740993) ; a BETWEEN 0 AND 2.5
    a NOT IN (-0.0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11) ; a IN (0.0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    a < 9223372036854775807.0 ; a > 1e300 ; a <= -9223372036854775808 ; a IS NULL ; a / 0 IS NULL
    a ; NOT a ; a = TRUE ; a <> 'x' ; a LIKE 'x%' ; a LIKE '%' ; a LIKE '_' ; a < 'é'
    a LIKE 'a!_b' ESCAPE '!' ; a LIKE '%x%y%z' ; a NOT LIKE '%\\%' ; a LIKE 'aa%aa'
    a LIKE '%a_c%e' ; a > 'abc' AND a < 'abd' ; a + b > 0 ; a - b = 0 ; a * b > 1 ; a / b = 0.5
    a / b = 2 ; a % b = -1 ; -a < b ; +a = b ; a + 1 IS NULL ; a / b < 1
    (a + b) * (a - b) / (b % 3) > a ; a / 3 > 3074457345618258602 ; 9223372036854775807 / a < 3.1
    a / b > 0.99999999999999988 ; a + b IN (1, b) ; a IN (b, 'x') ; NOT (a < b OR a > b)
"""
VALUES: list[Value] = [
    *(0, 1, -1, 2, 3, 7, 2**53, 2**53 + 1, -(2**53) - 1, INT_MAX, INT_MAX - 1, INT_MIN),
    *(INT_MIN + 1, 0.0, -0.0, 0.5, 2.5, -1.5, 1.0, 2.0**53, 2.0**63, -(2.0**63), 1e300, 5e-324),
    *(math.inf, -math.inf, math.nan, True, False, "", "x", "xyz", "xayaz", "a_b", "aXb", "\\"),
    *("é", "e\u0301", "abc", "aaa", "aaaa", "zabcde", "a\nc e", "\U0001f600", "\uffff"),
]


def test_numbers_beyond_floats_nan_signs_of_zero_kinds_and_patterns_are_exact(
    spark: SparkSession,
) -> None:
    pairs: list[Attributes] = [
        {"a": value, "b": VALUES[(3 * place + 5) % len(VALUES)]}
        for place, value in enumerate(VALUES)
    ]
    near: list[Value] = [2**53 + 1, 2.0**53, INT_MAX, 2.0**63, 3, 7, INT_MIN, 0.5, math.nan]
    pairs += [{"a": one, "b": other} for one in near for other in near]
    texts = [text for line in HARD.strip().splitlines() for text in line.split(";")]
    check(spark, [Filter.parse(text) for text in texts], [{}, {"b": 1}, *pairs])


@pytest.fixture(scope="module")
def files(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Events in files as archives have them, in several groups of rows."""
    place = tmp_path_factory.mktemp("files") / "events.parquet"
    table = table_of([{"a": value, "b": -0.0 if n % 2 else n} for n, value in enumerate(VALUES)])
    for name, form in OWN.items():
        table = table.append_column(name, pa.nulls(len(table), form))
    with place.open("wb") as sink, parquet_writer(sink, table.schema) as writer:
        writer.write_table(table, row_group_size=9)
    return spark.read.parquet(str(place))


@pytest.mark.parametrize(
    "text",
    [
        "a = 0",
        "a >= 0",
        "a > 2.5",
        "b = 0",
        "a NOT IN (1, 2)",
        "a = 9007199254740993",
        "a LIKE 'x%'",
    ],
)
def test_statistics_of_files_pass_over_nothing_that_matches(files: DataFrame, text: str) -> None:
    found = files.where(condition(text, COLUMNS)).select("number").toArrow()
    rows = [{"a": value, "b": -0.0 if n % 2 else n} for n, value in enumerate(VALUES)]
    matching = [n for n, row in enumerate(rows) if Filter.parse(text).matches(row)]
    assert sorted(found.column("number").to_pylist()) == matching
    assert matching


def test_simple_conditions_are_pushed_down_to_files(spark: SparkSession, files: DataFrame) -> None:
    columns: Columns = {"a": {"float": "a__float"}, "c": {"text": "c__text"}}
    wanted = files.where(condition("a > 5 AND c LIKE 'x%'", columns))
    spark.conf.set("spark.sql.maxMetadataStringLength", "10000")
    try:
        plan = wanted._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.unset("spark.sql.maxMetadataStringLength")
    assert "GreaterThan(a__float,5.0)" in plan
    assert "StringStartsWith(c__text,x)" in plan


def test_long_lists_and_long_sums_are_no_trouble(spark: SparkSession) -> None:
    many = ", ".join(str(7 * n) for n in range(200))
    terms = " + ".join("abc"[n % 3] for n in range(40))
    chain = " OR ".join(f"a = {n} AND b > {n}" for n in range(30))
    texts = [f"a IN ({many}, 0.5)", f"NOT a IN ({many})", f"{terms} > 5", chain]
    events: list[Attributes] = [
        {"a": 7, "b": 0.5, "c": 1}, {"a": 0.5, "b": 2**60, "c": 2}, {"a": 8, "b": 9}, {"a": "x"},
    ]  # fmt: skip
    check(spark, [Filter.parse(text) for text in texts], events)


def test_a_plain_frame_needs_no_list_of_columns(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [("IBM", 60.0, 1), ("HPQ", 60.0, 2), (None, 10.0, 3)],
        "symbol string, price double, n bigint",
    )
    wanted = condition(
        "symbol <> 'HPQ' AND price > 50 AND absent IS NULL", columns_of(frame.schema)
    )
    assert [row["n"] for row in frame.where(wanted).collect()] == [1]


def test_columns_of_fewer_bits_are_the_attributes_they_hold(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(1, 7, 7, 0.5), (2, 2**31 - 1, 8, 1.5)], "n bigint, a int, b smallint, c float"
    )
    columns = columns_of(frame.schema)
    for text, numbers in (("a = 7 AND b = 7 AND c = 0.5", [1]), ("a + 1 > 9 AND c > 1", [2])):
        assert [row["n"] for row in frame.where(condition(text, columns)).collect()] == numbers


def test_a_column_that_no_attribute_can_be_is_an_error_if_the_filter_names_it(
    spark: SparkSession,
) -> None:
    columns = columns_of(spark.sql("SELECT 1L AS n, DATE '2026-01-31' AS day").schema)
    with pytest.raises(LocalError, match="column 'day' has a type that attributes do not have"):
        condition("n > 0 AND day > 'x'", columns)
    condition("n > 0", columns)


# -- timestamps

#: Microseconds around literals, 1970, and the ends of 64-bit nanoseconds and of Spark's times.
MOMENTS_US = [
    *(-1, 0, 1, 1_769_860_800_000_000, 1_769_860_800_000_001),
    *(INT_MIN // 1_000, INT_MIN // 1_000 + 1, INT_MAX // 1_000, INT_MAX // 1_000 + 1),
    *(-62_135_596_800_000_000, 253_402_300_799_999_999),
]


@pytest.mark.parametrize("order", ["=", "<>", "<", "<=", ">", ">="])
def test_a_column_of_timestamps_is_compared_as_the_integers_that_it_is_written_as(
    spark: SparkSession, order: str
) -> None:
    moments = pa.array([*MOMENTS_US, None], pa.timestamp("us", tz="UTC"))
    table = pa.table({"number": pa.array(range(len(moments)), pa.int64()), "at": moments})
    frame = spark.createDataFrame(table)
    events: list[Attributes] = [
        {"at": us * 1_000} if INT_MIN <= us * 1_000 <= INT_MAX else {} for us in MOMENTS_US
    ]
    for literal in ("1970-01-01T00:00:00Z", "2026-01-31T13:00:00.000000001+01:00"):
        filter = Filter.parse(f"at {order} TIMESTAMP '{literal}'")
        for each in (filter, ~filter):
            found = frame.where(condition(each, columns_of(frame.schema))).collect()
            matching = [n for n, event in enumerate(events) if each.matches(event)]
            assert sorted(row["number"] for row in found) == matching
            assert matching or order in ("=", "<>")
