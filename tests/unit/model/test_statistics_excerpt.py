"""Excerpts of statistics: small, right, and checked."""

import msgspec
import pytest
from msgspec.structs import replace

from anabranch.model.errors import RemoteError
from anabranch.model.filter import Filter
from anabranch.model.selectivity import selectivity
from anabranch.model.statistics import (
    ATTRIBUTES_MAX,
    EXCERPT_BYTES_MAX,
    TOP_MAX,
    AttributeStatistics,
    NumberStatistics,
    Pair,
    Period,
    Statistics,
    StreamStatistics,
    TextStatistics,
    excerpt_of,
    read_excerpt,
    text_key,
)

PRICES = NumberStatistics(
    count=100_000,
    distinct=1_000,
    rank_error=0.001,
    bounds=tuple(float(number) for number in range(101)),
    top=tuple((float(number), 1_000 - number) for number in range(100)),
)
SYMBOLS = TextStatistics(
    count=100_000,
    distinct=3,
    rank_error=0.0,
    bounds=(text_key("A"), text_key("Z")),
    top=(("x" * 100, 50_000), ("IBM", 30_000), ("SUN", 20_000)),
)
STREAM = StreamStatistics(
    stream="e1",
    events=100_000,
    rate_per_s=7.5,
    periods=(Period(0, 100_000),),
    attributes={
        "price": AttributeStatistics(numbers=PRICES),
        "symbol": AttributeStatistics(texts=SYMBOLS),
    },
    pairs=(Pair("price", "symbol", 100_000),),
    paired=("price", "symbol"),
)


def whole(*streams: StreamStatistics) -> Statistics:
    return Statistics(made_ns=0, streams=streams)


def test_an_excerpt_says_about_the_same_of_a_filter() -> None:
    (read,) = read_excerpt(excerpt_of(whole(STREAM), "e1"))
    assert read.rate_per_s == 7.5
    for text in ("price < 30", "symbol = 'IBM'", "price > 70 AND symbol = 'SUN'"):
        filter = Filter.parse(text)
        exact, coarse = selectivity(STREAM, filter), selectivity(read, filter)
        assert coarse.share == pytest.approx(exact.share, abs=0.02), text
        assert coarse.low <= exact.share <= coarse.high


def test_frequent_values_that_do_not_travel_count_into_the_rest() -> None:
    (read,) = read_excerpt(excerpt_of(whole(STREAM), "e1"))
    price, symbol = read.attributes["price"].numbers, read.attributes["symbol"].texts
    assert price is not None
    assert symbol is not None
    assert len(price.top) == TOP_MAX
    assert price.rest_max == 1_000 - TOP_MAX
    assert symbol.top == (("IBM", 30_000), ("SUN", 20_000))
    assert symbol.rest_max == 50_000


def test_all_events_of_a_stream_go_before_those_of_its_advertisements() -> None:
    some = replace(STREAM, filter="price > 3")
    other = replace(STREAM, stream="e2")
    assert [each.filter for each in read_excerpt(excerpt_of(whole(some, STREAM), "e1"))] == [""]
    assert len(read_excerpt(excerpt_of(whole(some, some, other), "e1"))) == 2
    assert excerpt_of(whole(other), "e1") == b""
    assert read_excerpt(b"") == ()


def test_what_is_too_much_becomes_coarser_until_it_fits() -> None:
    wide = AttributeStatistics(
        texts=replace(SYMBOLS, top=tuple((f"{'é' * 60}{n:02}", 1) for n in range(99))),
        numbers=None,
    )
    many = replace(STREAM, attributes={f"a{number}": wide for number in range(200)}, pairs=())
    data = excerpt_of(whole(*[replace(many, filter="price > 3")] * 20), "e1")
    assert 0 < len(data) <= EXCERPT_BYTES_MAX
    assert all(len(each.attributes) <= ATTRIBUTES_MAX for each in read_excerpt(data))
    endless = replace(many, filter=f"price = {'1' * EXCERPT_BYTES_MAX}")
    assert excerpt_of(whole(endless), "e1") == b""


def test_what_is_no_excerpt_is_refused() -> None:
    plain = replace(STREAM, periods=(), attributes={}, pairs=())
    negative = msgspec.msgpack.encode([replace(plain, events=-1)])
    endless = msgspec.msgpack.encode([replace(plain, rate_per_s=float("inf"))])
    for data in (b"\x00", b"\xc1", b"x" * (EXCERPT_BYTES_MAX + 1), negative, endless):
        with pytest.raises(RemoteError, match="statistics"):
            read_excerpt(data)
