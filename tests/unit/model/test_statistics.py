"""Statistics as a document: what is written is read again, and what cannot be is refused."""

import msgspec
import pytest

from anabranch.model.statistics import (
    AttributeStatistics,
    NumberStatistics,
    Pair,
    Period,
    Statistics,
    StatisticsError,
    StatisticsLimits,
    StreamStatistics,
    TextStatistics,
    read_statistics,
    text_key,
    write_statistics,
)

PRICES = NumberStatistics(
    count=80, distinct=3, rank_error=0.0, bounds=(1.0, 2.0, 9.5), top=((1.0, 40), (2.0, 30))
)
SYMBOLS = TextStatistics(
    count=100, distinct=2, rank_error=0.01, bounds=(text_key("A"), text_key("Z")), top=(("A", 60),)
)
STREAM = StreamStatistics(
    stream="edge-1",
    filter="price IS NOT NULL OR symbol = 'A'",
    events=100,
    first_ns=1,
    last_ns=10**9,
    rate_per_s=100.0,
    periods=(Period(0, 100),),
    attributes={
        "price": AttributeStatistics(numbers=PRICES, nan=2),
        "symbol": AttributeStatistics(texts=SYMBOLS),
        "halted": AttributeStatistics(true=5, false=10),
    },
    pairs=(Pair("price", "symbol", 82),),
    paired=("price", "symbol"),
)
WHOLE = Statistics(made_ns=5, streams=(STREAM,))


def test_what_is_written_is_read_again() -> None:
    assert read_statistics(write_statistics(WHOLE)) == WHOLE
    assert STREAM.attributes["price"].present == 82
    assert STREAM.attributes["halted"].present == 15


def test_keys_of_texts_are_in_the_order_of_texts() -> None:
    texts = ["", "\0", "A", "AB", "B", "IBM", "IBN", "é", "名"]
    keys = list(map(text_key, texts))
    assert keys == sorted(keys)
    assert text_key("abcdefgh") == text_key("abcdef")


def changed(**fields: object) -> bytes:
    return msgspec.json.encode(
        {"format": WHOLE.format, "made_ns": 5, "streams": [{**plain(STREAM), **fields}]}
    )


def plain(value: object) -> dict[str, object]:
    found = msgspec.to_builtins(value)
    assert isinstance(found, dict)
    return found


def numbers(**fields: object) -> dict[str, object]:
    return {"price": {"numbers": {**plain(PRICES), **fields}}}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a valid anabranch-statistics-1"),
        (b"[]", "not a valid"),
        (b'{"format": "anabranch-statistics-9", "made_ns": 1, "streams": []}', "not a valid"),
        (changed(strange=1), "not a valid"),
        (changed(events=-1, attributes={}, pairs=[]), "the number of events is -1"),
        (changed(rate_per_s=-1), "the rate is -1"),
        (changed(periods=[[0, -5]]), "an hour has a negative number of events"),
        (changed(filter="price =>"), "invalid filter"),
        (changed(events=50), "'price' is in 82 of 50 events"),
        (changed(attributes=numbers(count=-1), pairs=[]), "'price' is in -1 of 100 events"),
        (changed(attributes=numbers(distinct=-1), pairs=[]), "'price': a count is negative"),
        (changed(attributes={"price": {"true": -5, "false": 9}}, pairs=[]), "a count is negative"),
        (changed(attributes=numbers(rank_error=2), pairs=[]), "the error of ranks is 2"),
        (changed(attributes=numbers(bounds=[1]), pairs=[]), "fewer than two bounds"),
        (changed(attributes=numbers(bounds=[2, 1]), pairs=[]), "do not ascend"),
        (
            changed(attributes=numbers(top=[[1, 99]]), pairs=[]),
            "higher count than all values together",
        ),
        (changed(pairs=[["price", "symbol", 101]]), "which cannot be"),
        (changed(pairs=[["price", "nothing", 1]]), "which cannot be"),
    ],
)
def test_what_cannot_be_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(StatisticsError) as caught:
        read_statistics(data)
    assert said in str(caught.value)


def test_bound_of_texts_that_is_no_key_is_refused() -> None:
    texts = {**plain(SYMBOLS), "bounds": [0, 2**48]}
    with pytest.raises(StatisticsError, match="a bound of texts is not a key"):
        read_statistics(changed(attributes={"symbol": {"texts": texts}}, pairs=[]))


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (StatisticsLimits(document_bytes_max=10), "at most 10 are read"),
        (StatisticsLimits(streams_max=0), "1 streams; at most 0"),
        (StatisticsLimits(attributes_max=2), "3 attributes; at most 2"),
        (StatisticsLimits(bounds_max=2), "3 bounds of a histogram; at most 2"),
        (StatisticsLimits(top_max=1), "2 most frequent values; at most 1"),
        (StatisticsLimits(pairs_max=0), "1 pairs of attributes; at most 0"),
        (StatisticsLimits(periods_max=0), "1 hours; at most 0"),
    ],
)
def test_more_than_the_limits_allow_is_refused(limits: StatisticsLimits, said: str) -> None:
    with pytest.raises(StatisticsError) as caught:
        read_statistics(write_statistics(WHOLE), limits)
    assert said in str(caught.value)
