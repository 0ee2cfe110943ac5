"""Schemas: what is offered, what may be declared, and what is wrong with the rest."""

import logging

import pytest
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from anabranch.model.errors import LocalError
from anabranch.model.event import Value
from anabranch.spark.column_types import ENVELOPE, Wanted
from anabranch.spark.options import OptionError
from anabranch.spark.schema import (
    check_asked,
    check_silence,
    inferred,
    offered,
    schema_of,
    wanted_of,
)

OWN = [*map(Wanted, ENVELOPE)]


TEXTS = MapType(StringType(), StringType())


def of(*columns: tuple[str, DataType]) -> list[Wanted]:
    return wanted_of(StructType([StructField(name, kind) for name, kind in columns]))


def test_what_is_offered_can_be_asked_for() -> None:
    wanted = [
        *OWN,
        Wanted("symbol", "text"),
        Wanted("price", "float"),
        Wanted("n", "integer"),
        Wanted("ok", "truth"),
        Wanted("at", "timestamp"),
    ]
    for whole in ("map", "variant"):
        every = [*wanted, Wanted("attributes", whole)]
        assert wanted_of(schema_of(every)) == every


def test_a_declared_schema_is_a_choice_of_columns() -> None:
    assert of(("price", DoubleType()), ("tick", LongType()), ("ok", BooleanType())) == [
        Wanted("price", "float"),
        Wanted("tick"),
        Wanted("ok", "truth"),
    ]
    assert of(("at", TimestampType())) == [Wanted("at", "timestamp")]
    assert of(("attributes", TEXTS)) == [Wanted("attributes", "map")]
    assert of(("attributes", VariantType())) == [Wanted("attributes", "variant")]
    assert of(("attributes.tick", StringType())) == [Wanted("attributes.tick", "text")]


def test_parts_of_the_envelope_may_be_declared_as_never_null_and_attributes_may_not() -> None:
    field = StructField("tick", LongType(), nullable=False)
    assert wanted_of(StructType([field])) == [Wanted("tick")]
    field = StructField("price", DoubleType(), nullable=False)
    with pytest.raises(LocalError, match="'price' is NOT NULL, but events may lack"):
        wanted_of(StructType([field]))


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    [
        (
            "price",
            FloatType(),
            "'price' is float; attributes are string, bigint, double, boolean or timestamp",
        ),
        ("price", IntegerType(), "'price' is int"),
        ("at", TimestampNTZType(), "'at' is timestamp_ntz; .* read it as one of these, then cast"),
        ("price", StringType("UTF8_LCASE"), "'price' is string collate UTF8_LCASE"),
        ("price", StructType(), "'price' is struct"),
        ("tick", IntegerType(), "'tick' is an envelope field of type bigint, not int"),
        ("timestamp", LongType(), "'timestamp' is an envelope field of type timestamp"),
        ("attributes", StringType(), "'attributes' is string; a column of all attributes is map"),
        ("attributes", MapType(StringType(), LongType()), "all attributes is map<string,string>"),
    ],
)
def test_a_column_that_cannot_be_had_is_an_error_that_names_it(
    name: str, kind: DataType, problem: str
) -> None:
    with pytest.raises(LocalError, match=problem):
        of((name, kind))


def test_a_column_that_is_declared_twice_is_an_error() -> None:
    with pytest.raises(LocalError, match="'a' is requested twice"):
        of(("a", StringType()), ("a", LongType()))


def test_types_are_inferred_from_all_events_of_a_sample() -> None:
    events: list[dict[str, Value]] = [
        {"price": 1, "symbol": "A", "n": 3, "flag": True, "odd": "text"},
        {"price": 1.5, "odd": 3, "late": False},
        {"n": 4, "mixed": True},
        {"mixed": 1},
    ]
    assert inferred(events)[len(OWN) :] == [
        Wanted("flag", "truth"),
        Wanted("late", "truth"),
        Wanted("mixed", "text"),
        Wanted("n", "integer"),
        Wanted("odd", "text"),
        Wanted("price", "float"),
        Wanted("symbol", "text"),
    ]


def test_attributes_called_like_other_columns_have_a_prefix() -> None:
    found = inferred([{"Tick": 1, "attributes": 2, "attributes.x": 3, "x": 4}])[len(OWN) :]
    assert [each.name for each in found] == [
        "attributes.Tick",
        "attributes.attributes",
        "attributes.attributes.x",
        "x",
    ]
    assert [each.attribute for each in found] == ["Tick", "attributes", "attributes.x", "x"]


def test_names_that_spark_cannot_tell_apart_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = inferred([{"price": 1, "Price": 2}])[len(OWN) :]
    assert found == [Wanted("Price", "integer")]
    assert "'Price' and 'price' are the same column for Spark" in caplog.text


def test_no_events_are_the_envelope_alone() -> None:
    assert inferred([]) == OWN


def test_all_attributes_are_offered_in_one_column_if_asked_for() -> None:
    assert offered("map", []) == [*OWN, Wanted("attributes", "map")]
    assert offered("variant", []) == [*OWN, Wanted("attributes", "variant")]


def test_silence_cannot_fill_a_column_that_is_never_null() -> None:
    tick = StructField("tick", LongType(), nullable=False)
    check_silence(StructType([tick, StructField("publisher", StringType())]))
    publisher = StructField("publisher", StringType(), nullable=False)
    with pytest.raises(OptionError, match="option 'silenceRows': column 'publisher' is NOT NULL"):
        check_silence(StructType([tick, publisher]))


def test_a_schema_without_the_column_that_an_option_asks_for_is_an_error() -> None:
    check_asked(of(("attributes", VariantType())), "variant")
    check_asked(of(("price", DoubleType())), "columns")
    with pytest.raises(OptionError, match="set to variant, but the schema has no column"):
        check_asked(of(("attributes", TEXTS)), "variant")
