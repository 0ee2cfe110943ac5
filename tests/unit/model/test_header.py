"""Ids, control information and timestamps."""

import numpy
import pytest

from anabranch.model.errors import EventError
from anabranch.model.event import Control, Event, EventId
from tests.event_parts import refused

# -- ids


def test_ids_order_by_publisher_then_incarnation_then_sequence() -> None:
    ids = [
        EventId("a", 0, 0),
        EventId("a", 0, 1),
        EventId("a", 1, 0),
        EventId("a", 2**63 - 1, 0),
        EventId("aa", 0, 0),
        EventId("b", 0, 0),
        EventId("é", 0, 0),
    ]
    descending = ids[::-1]
    assert sorted(descending) == ids
    assert len(set(ids)) == len(ids)


def test_a_new_incarnation_may_repeat_a_sequence() -> None:
    assert EventId("a", 1, 5) != EventId("a", 2, 5)


def test_an_id_prints_its_parts() -> None:
    assert str(EventId("feed-1", 3, 17)) == "feed-1:3:17"


@pytest.mark.parametrize(
    ("event_id", "complaint"),
    [
        ("feed-1:3:17", "must be an EventId"),
        (("feed-1", 3, 17), "must be an EventId"),
        (EventId("", 3, 17), "publisher is empty"),
        (EventId("a\n", 3, 17), "control character"),
        (EventId("a" * 256, 3, 17), "publisher 'a+'… has 256 bytes"),
        (EventId(None, 3, 17), "publisher is of type NoneType"),  # type: ignore[arg-type]
        (EventId("a", -1, 17), "incarnation is outside"),
        (EventId("a", 3, 2**63), "sequence is outside"),
        (EventId("a", 3, 10**100_000), "sequence is outside"),
        (EventId("a", 3, True), "sequence is of type bool"),
        (EventId("a", 3.0, 1), "incarnation is of type float"),  # type: ignore[arg-type]
    ],
)
def test_a_bad_id_is_refused(event_id: object, complaint: str) -> None:
    with pytest.raises(EventError, match=complaint):
        Event(id=event_id)  # type: ignore[arg-type]


# -- control information and timestamp


def test_control_information_has_stated_defaults() -> None:
    control = Event().control
    assert (control.persistence, control.priority) == ("persistent", 4)
    assert (control.time_limit_ns, control.hop_limit, control.level_limit) == (None, None, None)
    assert (control.correlation_id, control.destinations) == ("", ())


def test_a_limit_of_zero_is_not_no_limit() -> None:
    control = Control(time_limit_ns=0, hop_limit=0, level_limit=0)
    assert Event(control=control).control.hop_limit == 0


@pytest.mark.parametrize("name", ["time_limit_ns", "hop_limit", "level_limit", "priority"])
@pytest.mark.parametrize("value", [-1, 2**63, 1.0, "1", True, numpy.int64(1)])
def test_a_bad_number_in_control_information_is_refused(name: str, value: object) -> None:
    assert name in refused(control=Control(**{name: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1, 10, None])
def test_priorities_are_from_0_to_9(value: int) -> None:
    for good in (0, 9):
        assert Event(control=Control(priority=good)).control.priority == good
    assert "priority" in refused(control=Control(priority=value))


@pytest.mark.parametrize("value", ["", "durable", None, 1, ["persistent"]])
def test_an_unknown_persistence_is_refused(value: object) -> None:
    complaint = refused(control=Control(persistence=value))  # type: ignore[arg-type]
    assert "'transient' or 'persistent'" in complaint
    assert Event(control=Control(persistence="transient")).control.persistence == "transient"


@pytest.mark.parametrize(
    ("destinations", "complaint"),
    [
        (["a"], "tuple of names"),
        ("a", "tuple of names"),
        (None, "tuple of names"),
        ((1,), "destination is of type int"),
        (("",), "destination is empty"),
        (("a\n",), "control character"),
        (("a", "b", "a"), "duplicate destination 'a'"),
    ],
)
def test_bad_destinations_are_refused(destinations: object, complaint: str) -> None:
    control = Control(destinations=destinations)  # type: ignore[arg-type]
    assert complaint in refused(control=control)


def test_a_bad_correlation_id_is_refused() -> None:
    assert "correlation_id is of type int" in refused(
        control=Control(correlation_id=1)  # type: ignore[arg-type]
    )
    assert "correlation id 'a\\n' has" in refused(control=Control(correlation_id="a\n"))


@pytest.mark.parametrize("control", [None, {}, "persistent"])
def test_control_that_is_no_control_is_refused(control: object) -> None:
    assert "must be a Control" in refused(control=control)


@pytest.mark.parametrize("timestamp", [2**63, -(2**63) - 1, 1.5, None, True])
def test_a_bad_timestamp_is_refused(timestamp: object) -> None:
    assert "timestamp_ns is" in refused(timestamp_ns=timestamp)
    assert Event(timestamp_ns=-1).timestamp_ns == -1
