"""An excerpt of statistics: as much of a stream's as travels with its advertisements.

What `anabranch pipeline stats` exports may have megabytes; every broker of a network keeps an
excerpt of every origin. Rules:

1. It has the statistics of one stream: those of all its events, if there are any, otherwise those
   of its advertisements, `STREAMS_MAX` of them at most.
2. Of each, the attributes that most events have, `ATTRIBUTES_MAX` of them, with coarser histograms
   and fewer frequent values; hours are left out. What is left is right, only less exact: a value
   that is not among the frequent ones any more counts into `rest_max`.
3. It is `EXCERPT_BYTES_MAX` bytes at most. Where it would be more, it becomes coarser until it is
   not.
4. What is read comes from another broker, and is checked as a whole document would be. Its rates
   are finite.

These are functions; they keep no state.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from anabranch.model.errors import RemoteError
from anabranch.model.statistics import (
    AttributeStatistics,
    NumberStatistics,
    Statistics,
    StatisticsError,
    StatisticsLimits,
    StreamStatistics,
    TextStatistics,
    check_stream,
)

EXCERPT_BYTES_MAX: Final = 16_384
STREAMS_MAX: Final = 8
ATTRIBUTES_MAX: Final = 16
BUCKETS_MAX: Final = 32
TOP_MAX: Final = 16
#: Letters of a frequent value; longer ones do not travel.
_TEXT_MAX: Final = 64
_LIMITS: Final = StatisticsLimits(
    document_bytes_max=EXCERPT_BYTES_MAX,
    streams_max=STREAMS_MAX,
    attributes_max=ATTRIBUTES_MAX,
    bounds_max=BUCKETS_MAX + 1,
    top_max=TOP_MAX,
    pairs_max=ATTRIBUTES_MAX**2,
    periods_max=0,
)

Values = TypeVar("Values", NumberStatistics, TextStatistics)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[StreamStatistics, ...])


def excerpt_of(statistics: Statistics, stream: str) -> bytes:
    """What travels of one stream; b"" if nothing is known of it."""
    known = [each for each in statistics.streams if each.stream == stream]
    chosen = [each for each in known if not each.filter][:1] or known[:STREAMS_MAX]
    if not chosen:
        return b""
    attributes, buckets, top = ATTRIBUTES_MAX, BUCKETS_MAX, TOP_MAX
    while True:
        data = _encoder.encode([_coarser(each, attributes, buckets, top) for each in chosen])
        if len(data) <= EXCERPT_BYTES_MAX:
            return data
        if buckets > 4:
            buckets, top = buckets // 2, top // 2
        elif attributes:
            attributes //= 2
        else:
            # Filters as long as this leave no room for several of them.
            chosen = chosen[: len(chosen) // 2]
            if not chosen:
                return b""


def read_excerpt(data: bytes) -> tuple[StreamStatistics, ...]:
    """The statistics of an excerpt; `RemoteError` if it is none."""
    if not data:
        return ()
    if len(data) > EXCERPT_BYTES_MAX:
        raise RemoteError(f"statistics of {len(data)} bytes; at most {EXCERPT_BYTES_MAX} travel")
    try:
        found = _decoder.decode(data)
        if len(found) > STREAMS_MAX:
            raise RemoteError(f"statistics of {len(found)} advertisements; at most {STREAMS_MAX}")
        for each in found:
            check_stream(each, _LIMITS)
            if each.rate_per_s is not None and not isfinite(each.rate_per_s):
                raise RemoteError("statistics with a rate that is not finite")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, StatisticsError) as error:
        raise RemoteError(f"statistics that are none: {error}") from error
    return found


def _coarser(stream: StreamStatistics, attributes: int, buckets: int, top: int) -> StreamStatistics:
    by_presence = sorted(stream.attributes, key=lambda name: -stream.attributes[name].present)
    kept = {
        name: _coarser_attribute(stream.attributes[name], buckets, top)
        for name in by_presence[:attributes]
    }
    return replace(
        stream,
        periods=(),
        attributes=kept,
        pairs=tuple(each for each in stream.pairs if each.one in kept and each.other in kept),
        paired=tuple(name for name in stream.paired if name in kept),
    )


def _coarser_attribute(known: AttributeStatistics, buckets: int, top: int) -> AttributeStatistics:
    numbers = None if known.numbers is None else _coarser_values(known.numbers, buckets, top)
    texts = None if known.texts is None else _coarser_values(known.texts, buckets, top)
    return replace(known, numbers=numbers, texts=texts)


def _coarser_values(known: Values, buckets: int, top: int) -> Values:
    travels = [each for each in known.top if len(str(each[0])) <= _TEXT_MAX][:top]
    left: list[int] = [each[1] for each in known.top if each not in travels]
    bounds, error = _fewer(known.bounds, buckets)
    return replace(
        known,
        bounds=bounds,
        top=tuple(travels),
        rest_max=max([known.rest_max, *left]),
        rank_error=min(1.0, known.rank_error + error),
    )


def _fewer(
    bounds: Sequence[float] | Sequence[int], buckets: int
) -> tuple[tuple[float, ...] | tuple[int, ...], float]:
    """So many buckets of as many values each, and by how much a rank is off more than before."""
    before = len(bounds) - 1
    if before <= buckets:
        return tuple(bounds), 0.0
    places = [round(number * before / buckets) for number in range(buckets + 1)]
    error = max(abs(place / before - number / buckets) for number, place in enumerate(places))
    return tuple(bounds[place] for place in places), error
