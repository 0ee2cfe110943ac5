from datetime import UTC, datetime

import pytest

from anabranch import AttributeTypeError, Event, PartEvent, Received

EVENT = Event({"symbol": "IBM", "count": 3, "price": 12.5, "is_new": True})
RECEIVED = Received(EVENT, "a", 1, 0, None)  # type: ignore[arg-type]
PART = PartEvent(part="low", stream="a", tick=1, time_ns=0, event=EVENT)


@pytest.mark.parametrize("event", [RECEIVED, PART], ids=["received", "part"])
def test_attributes_of_the_wanted_type_are_returned(event: Received | PartEvent) -> None:
    assert event.text("symbol") == "IBM"
    assert event.int("count") == 3
    assert event.float("price") == 12.5
    assert event.bool("is_new") is True


def test_an_integer_is_a_float_where_one_is_wanted() -> None:
    value = RECEIVED.float("count")
    assert (value, type(value)) == (3.0, float)


def test_another_type_is_an_error_that_names_both() -> None:
    with pytest.raises(AttributeTypeError, match=r"'symbol' is text \('IBM'\); float was wanted"):
        RECEIVED.float("symbol")
    with pytest.raises(AttributeTypeError, match=r"'is_new' is boolean \(True\); integer was"):
        RECEIVED.int("is_new")
    with pytest.raises(AttributeTypeError, match=r"'is_new' is boolean \(True\); float was"):
        RECEIVED.float("is_new")
    with pytest.raises(AttributeTypeError, match=r"'price' is float \(12.5\); integer was"):
        RECEIVED.int("price")
    with pytest.raises(TypeError, match=r"'count' is integer \(3\); text was wanted"):
        RECEIVED.text("count")


def test_an_integer_is_a_datetime_where_one_is_wanted() -> None:
    noon = datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=UTC)
    event = Event({"at": noon, "finer": 1_769_860_800_123_456_789, "early": -1, "price": 12.5})
    received = Received(event, "a", 1, 0, None)  # type: ignore[arg-type]
    assert received.datetime("at") == received.datetime("finer") == noon
    assert received.datetime("at").tzinfo is UTC
    assert received.int("finer") == 1_769_860_800_123_456_789
    assert received.datetime("early") == datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert received.datetime("absent", None) is None
    wanted = "integer of nanoseconds since 1970 was wanted"
    with pytest.raises(AttributeTypeError, match=rf"'price' is float \(12.5\); {wanted}"):
        received.datetime("price", None)
    with pytest.raises(AttributeTypeError, match=f"there is no attribute 'absent'; {wanted}"):
        received.datetime("absent")


def test_an_absent_attribute_is_an_error_unless_there_is_a_default() -> None:
    with pytest.raises(AttributeTypeError, match="there is no attribute 'prcie'; float was wanted"):
        RECEIVED.float("prcie")
    assert RECEIVED.float("absent", 1.5) == 1.5
    assert RECEIVED.text("absent", None) is None
    assert RECEIVED.bool("absent", False) is False
    assert RECEIVED.int("absent", default=7) == 7


def test_a_default_does_not_hide_another_type() -> None:
    with pytest.raises(AttributeTypeError, match="'symbol' is text"):
        RECEIVED.int("symbol", 0)
