"""Statistics of a stream: event rates and distributions of attribute values.

Placement decisions (which broker joins the parts of a pattern, which filter is evaluated first)
depend on the share of events that a filter matches. `selectivity` estimates it from a summary of
past events. This module defines the summary: a JSON document, written by `anabranch pipeline stats
--export`, of which an excerpt travels with advertisements. Rules:

1. All counts are of one period and one advertisement: events of `stream` that match `filter` (""
   for all).
2. Values are counted by kind: numbers (NaN apart), texts, TRUE, FALSE. Absent attributes are not
   counted; their number is the difference to `events`.
3. A histogram has buckets of equal depth: `bounds` are the smallest value, those at 1/n, 2/n, …,
   and the largest. The rank of each bound is off by at most `rank_error`, as a share of the values,
   with a probability of 99 %.
4. Numbers are ordered numerically. Texts are ordered by the number that their first six bytes in
   UTF-8 form, padded with zeros; a bound is such a number (`text_key`).
5. `top` are the most frequent values with their counts, most frequent first. A count is never too
   small, and too large by at most `top_error`. Any other value occurs at most `rest_max` times.
6. JSON has no infinity: infinite values are represented by the largest float of their sign.
7. Input is checked, because it comes from a file or a neighbour: sizes by `StatisticsLimits`, and
   the consistency of counts, ranks and orders. Errors name the location.

A full document may have megabytes; every broker keeps an excerpt of every origin. Excerpts:

8. An excerpt has the statistics of one stream: those of all its events if available, otherwise
   those of its advertisements, at most `STREAMS_MAX`.
9. It contains the attributes that most events have, at most `ATTRIBUTES_MAX`, with coarser
   histograms and fewer frequent values, and no hourly counts. It is correct but less exact: a value
   that is no longer among the frequent ones counts into `rest_max`.
10. It has at most `EXCERPT_BYTES_MAX` bytes, and is coarsened until it fits.
11. An excerpt comes from another broker and is checked like a document. Its rates are finite.

Prior art: histograms and rates of advertisements, spec PADRES section 4.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isfinite
from typing import Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from anabranch.model.errors import FilterError, LocalError, RemoteError
from anabranch.model.filter import Filter

FORMAT: Final = "anabranch-statistics-1"
#: The number of bytes of a text in its key.
KEY_BYTES: Final = 6
KEY_MAX: Final = 2 ** (8 * KEY_BYTES) - 1


class StatisticsError(LocalError):
    """Statistics are invalid; the text names the location."""


class StatisticsLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Upper limits of input, all inclusive."""

    document_bytes_max: int = 64 * 1024 * 1024
    streams_max: int = 10_000
    attributes_max: int = 1_024
    bounds_max: int = 1_025
    top_max: int = 1_000
    pairs_max: int = 65_536
    periods_max: int = 100_000


DEFAULT_STATISTICS_LIMITS = StatisticsLimits()


class _Values(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The common part of numbers and texts."""

    count: int
    #: The estimated number of different values.
    distinct: int
    rank_error: float
    top_error: int = 0
    rest_max: int = 0


class NumberStatistics(_Values, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The numbers of an attribute. See rules 3, 5 and 6."""

    bounds: tuple[float, ...] = ()
    top: tuple[tuple[float, int], ...] = ()


class TextStatistics(_Values, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The texts of an attribute. See rules 3 to 5."""

    bounds: tuple[int, ...] = ()
    top: tuple[tuple[str, int], ...] = ()


class AttributeStatistics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The values of one attribute, by kind. See rule 2."""

    numbers: NumberStatistics | None = None
    texts: TextStatistics | None = None
    true: int = 0
    false: int = 0
    nan: int = 0

    @property
    def present(self) -> int:
        counts = [kind.count for kind in (self.numbers, self.texts) if kind is not None]
        return sum(counts) + self.true + self.false + self.nan


class Pair(msgspec.Struct, frozen=True, array_like=True):
    """The number of events with both of two attributes."""

    one: str
    other: str
    events: int


class Period(msgspec.Struct, frozen=True, array_like=True):
    """The number of events in the hour that begins at `start_s`, in seconds since 1970."""

    start_s: int
    events: int


class StreamStatistics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The events of one advertisement. See rule 1."""

    stream: str
    filter: str = ""
    events: int
    #: The times of the first and last event, in nanoseconds since 1970; None if unknown.
    first_ns: int | None = None
    last_ns: int | None = None
    #: Events per second between those times; None if undefined.
    rate_per_s: float | None = None
    periods: tuple[Period, ...] = ()
    attributes: dict[str, AttributeStatistics] = {}
    #: Counts of pairs of attributes. A pair of attributes in `paired` that is not listed never
    #: occurred together.
    pairs: tuple[Pair, ...] = ()
    paired: tuple[str, ...] = ()


class Statistics(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A statistics document."""

    format: Literal["anabranch-statistics-1"] = FORMAT
    made_ns: int
    streams: tuple[StreamStatistics, ...]


def text_key(text: str) -> int:
    """Return the number by which texts are ordered in histograms."""
    return int.from_bytes(text.encode()[:KEY_BYTES].ljust(KEY_BYTES, b"\0"), "big")


def write_statistics(statistics: Statistics) -> bytes:
    return msgspec.json.encode(statistics)


def read_statistics(
    data: bytes, limits: StatisticsLimits = DEFAULT_STATISTICS_LIMITS
) -> Statistics:
    """Decode and check a document; raise `StatisticsError` if it is invalid."""
    if len(data) > limits.document_bytes_max:
        raise StatisticsError(f"{len(data)} bytes; at most {limits.document_bytes_max} are read")
    try:
        found = msgspec.json.decode(data, type=Statistics)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StatisticsError(f"not a valid {FORMAT} document: {error}") from error
    _check_size(len(found.streams), limits.streams_max, "streams")
    for stream in found.streams:
        check_stream(stream, limits)
    return found


def check_stream(stream: StreamStatistics, limits: StatisticsLimits) -> None:
    for problem in _problems(stream, limits):
        raise StatisticsError(f"stream {stream.stream!r}: {problem}")


def _check_size(size: int, size_max: int, what: str) -> None:
    if size > size_max:
        raise StatisticsError(f"there are {size} {what}; at most {size_max} are read")


def _problems(stream: StreamStatistics, limits: StatisticsLimits) -> Iterator[str]:
    _check_size(len(stream.attributes), limits.attributes_max, "attributes")
    _check_size(len(stream.pairs), limits.pairs_max, "pairs of attributes")
    _check_size(len(stream.periods), limits.periods_max, "hours")
    if stream.events < 0:
        yield f"the number of events is {stream.events}"
    if stream.rate_per_s is not None and not stream.rate_per_s >= 0:
        yield f"the rate is {stream.rate_per_s}"
    if any(period.events < 0 for period in stream.periods):
        yield "an hour has a negative number of events"
    if stream.filter:
        yield from _filter_problems(stream.filter)
    for name, attribute in stream.attributes.items():
        if not 0 <= attribute.present <= stream.events:
            yield f"{name!r} is in {attribute.present} of {stream.events} events"
        if min(attribute.true, attribute.false, attribute.nan) < 0:
            yield f"{name!r}: a count is negative"
        for values in (attribute.numbers, attribute.texts):
            if values is not None:
                yield from (f"{name!r}: {problem}" for problem in _value_problems(values, limits))
    for pair in stream.pairs:
        yield from _pair_problems(pair, stream)


def _filter_problems(text: str) -> Iterator[str]:
    try:
        Filter.parse(text)
    except FilterError as error:
        yield f"invalid filter: {str(error).splitlines()[0]}"


def _value_problems(
    values: NumberStatistics | TextStatistics, limits: StatisticsLimits
) -> Iterator[str]:
    _check_size(len(values.bounds), limits.bounds_max, "bounds of a histogram")
    _check_size(len(values.top), limits.top_max, "most frequent values")
    if min(values.count, values.distinct, values.top_error, values.rest_max) < 0:
        yield "a count is negative"
    if not 0 <= values.rank_error <= 1:
        yield f"the error of ranks is {values.rank_error}"
    if values.count and len(values.bounds) < 2:
        yield "the histogram has fewer than two bounds"
    if any(one > other for one, other in pairwise(values.bounds)):
        yield "the bounds of the histogram do not ascend"
    if isinstance(values, TextStatistics):
        if any(not 0 <= bound <= KEY_MAX for bound in values.bounds):
            yield "a bound of texts is not a key"
    elif not all(map(isfinite, values.bounds)):
        yield "a bound is not finite"
    if any(not 0 <= count <= values.count + values.top_error for _, count in values.top):
        yield "a value has a higher count than all values together"


def _pair_problems(pair: Pair, stream: StreamStatistics) -> Iterator[str]:
    for name in (pair.one, pair.other):
        known = stream.attributes.get(name)
        if known is None or not 0 <= pair.events <= known.present:
            yield f"{pair.events} events have {pair.one!r} and {pair.other!r}, which cannot be"
            return


EXCERPT_BYTES_MAX: Final = 16_384
STREAMS_MAX: Final = 8
ATTRIBUTES_MAX: Final = 16
BUCKETS_MAX: Final = 32
TOP_MAX: Final = 16
#: Characters of a frequent value in an excerpt; longer ones are left out.
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
    """Return the excerpt of one stream; b"" if there are no statistics of it."""
    known = [candidate for candidate in statistics.streams if candidate.stream == stream]
    chosen = [candidate for candidate in known if not candidate.filter][:1] or known[:STREAMS_MAX]
    if not chosen:
        return b""
    attributes, buckets, top = ATTRIBUTES_MAX, BUCKETS_MAX, TOP_MAX
    while True:
        data = _encoder.encode(
            [_coarser(candidate, attributes, buckets, top) for candidate in chosen]
        )
        if len(data) <= EXCERPT_BYTES_MAX:
            return data
        if buckets > 4:
            buckets, top = buckets // 2, top // 2
        elif attributes:
            attributes //= 2
        else:
            # The filters are too long for several advertisements.
            chosen = chosen[: len(chosen) // 2]
            if not chosen:
                return b""


def read_excerpt(data: bytes) -> tuple[StreamStatistics, ...]:
    """Decode and check an excerpt; raise `RemoteError` if it is invalid."""
    if not data:
        return ()
    if len(data) > EXCERPT_BYTES_MAX:
        raise RemoteError(
            f"statistics of {len(data)} bytes arrived; at most {EXCERPT_BYTES_MAX} are allowed"
        )
    try:
        found = _decoder.decode(data)
        if len(found) > STREAMS_MAX:
            raise RemoteError(f"statistics of {len(found)} advertisements; at most {STREAMS_MAX}")
        for candidate in found:
            check_stream(candidate, _LIMITS)
            if candidate.rate_per_s is not None and not isfinite(candidate.rate_per_s):
                raise RemoteError("statistics with a rate that is not finite")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, StatisticsError) as error:
        raise RemoteError(f"invalid statistics arrived: {error}") from error
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
        pairs=tuple(pair for pair in stream.pairs if pair.one in kept and pair.other in kept),
        paired=tuple(name for name in stream.paired if name in kept),
    )


def _coarser_attribute(known: AttributeStatistics, buckets: int, top: int) -> AttributeStatistics:
    numbers = None if known.numbers is None else _coarser_values(known.numbers, buckets, top)
    texts = None if known.texts is None else _coarser_values(known.texts, buckets, top)
    return replace(known, numbers=numbers, texts=texts)


def _coarser_values(known: Values, buckets: int, top: int) -> Values:
    included = [entry for entry in known.top if len(str(entry[0])) <= _TEXT_MAX][:top]
    excluded: list[int] = [entry[1] for entry in known.top if entry not in included]
    bounds, error = _fewer(known.bounds, buckets)
    return replace(
        known,
        bounds=bounds,
        top=tuple(included),
        rest_max=max([known.rest_max, *excluded]),
        rank_error=min(1.0, known.rank_error + error),
    )


def _fewer(
    bounds: Sequence[float] | Sequence[int], buckets: int
) -> tuple[tuple[float, ...] | tuple[int, ...], float]:
    """Reduce a histogram to `buckets` buckets; return the bounds and the additional error of
    ranks.
    """
    before = len(bounds) - 1
    if before <= buckets:
        return tuple(bounds), 0.0
    places = [round(number * before / buckets) for number in range(buckets + 1)]
    error = max(abs(place / before - number / buckets) for number, place in enumerate(places))
    return tuple(bounds[place] for place in places), error
