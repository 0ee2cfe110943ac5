"""Options: every mistake is an error that names the option, and says what would be right."""

import pickle
from collections.abc import Mapping

import pytest

from anabranch.spark.options import (
    NAMES,
    OptionError,
    Options,
    Use,
    read_options,
    table_options,
    with_table_options,
)

BROKERS = {"brokers": "127.0.0.1:4100"}


def read(use: Use | None = None, **given: str) -> Options:
    return read_options({**BROKERS, **given}, use)


def test_names_are_known_in_any_case() -> None:
    found = read_options({"BROKERS": "a:1, b:2", "STARTINGOFFSETS": "Earliest"})
    assert found.brokers == ("a:1", "b:2")
    assert found.starting_offsets == "earliest"


def test_what_is_not_said_has_a_default() -> None:
    assert read() == Options(brokers=("127.0.0.1:4100",))
    assert read().fail_on_data_loss
    assert read().attributes == "columns"
    assert not read().pushdown


def test_everything_that_can_be_said_is_read() -> None:
    found = read(
        subscription="price > 10",
        streams="edge-1, edge-2",
        startingOffsets='{"edge-1": 7}',
        endingOffsets='{"edge-1": 9}',
        failOnDataLoss="FALSE",
        maxOffsetsPerTrigger="1000",
        minPartitions="4",
        statistics="known.json",
        durableSubscription="cursor",
        attributes="variant",
        pushdown="true",
        silenceRows="true",
        ca="ca.pem",
        certificate="own.pem",
        key="own.key",
        client="etl",
        sinkId="sink",
        transactionId="2026-01-01",
    )
    assert found == Options(
        brokers=("127.0.0.1:4100",),
        subscription="price > 10",
        streams=("edge-1", "edge-2"),
        starting_offsets={"edge-1": 7},
        ending_offsets={"edge-1": 9},
        fail_on_data_loss=False,
        offsets_per_trigger_max=1000,
        partitions_min=4,
        statistics="known.json",
        durable_subscription="cursor",
        attributes="variant",
        pushdown=True,
        silence_rows=True,
        ca="ca.pem",
        certificate="own.pem",
        key="own.key",
        client="etl",
        sink_id="sink",
        transaction_id="2026-01-01",
    )


@pytest.mark.parametrize(
    ("given", "name", "problem"),
    [
        ({"brokers": ""}, "brokers", "set the address of a broker"),
        ({"brokers": "host"}, "brokers", "has no port"),
        ({"brokers": "host:70000"}, "brokers", "no port between 1 and 65535"),
        ({"brokers": "a:1,a:1"}, "brokers", "duplicate"),
        ({"subscription": "price >"}, "subscription", "position"),
        ({"subscription": "price = 1 AN symbol = 2"}, "subscription", "position"),
        ({"streams": "a,a"}, "streams", "duplicate"),
        ({"streams": "a,b\u0007"}, "streams", "control character"),
        ({"startingOffsets": "newest"}, "startingOffsets", "not earliest, latest or JSON"),
        ({"startingOffsets": '{"a": "b"}'}, "startingOffsets", "not earliest, latest or"),
        ({"startingOffsets": '{"a": -1}'}, "startingOffsets", "'a': invalid tick -1"),
        ({"endingOffsets": "earliest"}, "endingOffsets", "cannot end at earliest"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp", "is not a time"),
        (
            {"startingTimestamp": "1700000000000"},
            "startingTimestamp",
            "plausible time in nanoseconds",
        ),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss", "neither true nor false"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger", "not a number from 1"),
        ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger", "not a number from 1"),
        ({"minPartitions": "-3"}, "minPartitions", "not a number from 1"),
        ({"minPartitions": "99999999999"}, "minPartitions", "not a number from 1"),
        ({"attributes": "json"}, "attributes", "not one of columns, map, variant"),
        ({"pushdown": "1"}, "pushdown", "neither true nor false"),
        ({"key": "k"}, "key", "needs its certificate"),
        ({"certificate": "c"}, "certificate", "needs a trusted authority"),
        ({"plaintext": "true", "ca": "c"}, "plaintext", "conflicts with ca"),
        ({"client": "x" * 230}, "client", "230 bytes"),
        (
            {"startingOffsets": '{"a": 9, "b": 1}', "endingOffsets": '{"b": 1, "a": 8}'},
            "endingOffsets",
            "'a' starts at 9, after 8",
        ),
        ({"path": "quotes"}, "path", "a network has no path"),
        ({"filtre": "n = 1"}, "filtre", "did you mean filter?"),
        ({"startingOffset": "earliest"}, "startingoffset", "did you mean startingOffsets?"),
        ({"kafka.bootstrap.servers": "a:1"}, "kafka.bootstrap.servers", "known options: brokers"),
    ],
)
def test_a_mistake_is_an_error_that_names_the_option(
    given: Mapping[str, str], name: str, problem: str
) -> None:
    with pytest.raises(OptionError) as caught:
        read_options({**BROKERS, **given})
    assert caught.value.name == name
    assert str(caught.value).startswith(f"option {name!r}: ")
    assert problem in str(caught.value)


def test_two_ways_to_say_where_to_begin_are_one_too_many() -> None:
    with pytest.raises(OptionError, match="conflicts with startingOffsets"):
        read(startingOffsets="latest", startingTimestamp="2026-01-01")


@pytest.mark.parametrize(
    ("use", "option", "fit"),
    [
        ("batch read", "sinkId", "batch writes, streaming writes"),
        ("read", "transactionId", "batch writes"),
        ("batch read", "maxOffsetsPerTrigger", "streaming reads"),
        ("batch read", "durableSubscription", "streaming reads"),
        ("batch read", "silenceRows", "streaming reads"),
        ("stream read", "endingOffsets", "batch reads"),
        ("stream read", "pushdown", "batch reads"),
        ("batch write", "subscription", "reads"),
        ("stream write", "startingOffsets", "reads"),
        ("stream write", "failOnDataLoss", "reads"),
    ],
)
def test_an_option_in_the_wrong_place_is_an_error(use: Use, option: str, fit: str) -> None:
    with pytest.raises(OptionError, match=f"option '{option}': not applicable to .*{fit}"):
        read(use, **{option: "true"})


def test_what_spark_itself_is_told_is_no_mistake() -> None:
    assert read("stream write", checkpointLocation="here") == read()


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("2026-01-02T03:04:05.000006", 1_767_323_045_000_006_000),
        ("2026-01-02T03:04:05.000006+00:00", 1_767_323_045_000_006_000),
        ("2026-01-02T04:04:05.000006+01:00", 1_767_323_045_000_006_000),
        ("1767323045000006789", 1_767_323_045_000_006_789),
        ("1969-01-01", 0),
    ],
)
def test_a_time_without_a_zone_is_utc_and_none_is_rounded(text: str, time_ns: int) -> None:
    assert read(startingTimestamp=text).starting_time_ns == time_ns


def test_errors_come_back_from_other_processes_as_they_were() -> None:
    again = pickle.loads(pickle.dumps(OptionError("key", "it is wrong")))
    assert isinstance(again, OptionError)
    assert (again.name, str(again)) == ("key", "option 'key': it is wrong")


def test_every_option_is_documented() -> None:
    assert read_options.__module__ == "anabranch.spark.options"
    from anabranch.spark import options

    for name in NAMES:
        assert name in (options.__doc__ or "")


def test_filter_is_a_synonym_of_subscription() -> None:
    assert read(filter="x = 1").subscription == "x = 1"
    assert read(filter="x = 1", subscription="x = 1 ").subscription == "x = 1 ".strip()
    with pytest.raises(OptionError, match="option 'filter': differs from subscription"):
        read(filter="x = 1", subscription="x = 2")


PROPERTIES = {
    "owner": "me",
    "provider": "anabranch",
    "comment": "quotes",
    "option.brokers": "a:1",
    "brokers": "a:1",
    "option.filter": "x = 1",
    "filter": "x = 1",
}


def test_options_of_a_table_are_found_among_its_properties() -> None:
    assert table_options(PROPERTIES) == {"brokers": "a:1", "filter": "x = 1"}
    assert table_options({"owner": "me", "provider": "anabranch"}) == {}
    assert table_options({"brokers": "a:1", "owner": "me"}) is None


def test_a_query_of_a_table_takes_the_options_that_apply() -> None:
    kept = {"brokers": "a:1", "filter": "x = 1", "sinkId": "s"}
    assert with_table_options({}, kept, "batch read") == {"brokers": "a:1", "subscription": "x = 1"}
    assert with_table_options({"Subscription": "y = 1"}, kept, "batch read") == {
        "brokers": "a:1",
        "subscription": "y = 1",
    }
    assert with_table_options({"transactionId": "7"}, kept, "batch write") == {
        "brokers": "a:1",
        "sinkid": "s",
        "transactionid": "7",
        "ignoreenvelope": "true",
    }
    assert with_table_options({"brokers": "b:1"}, kept, "batch read") == {"brokers": "b:1"}
    assert with_table_options({"filter": "x = 1"}, None, "read") == {"subscription": "x = 1"}
