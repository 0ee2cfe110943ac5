"""Survey of a network: its streams, and the readable ticks of each.

    survey = Survey(options)
    seen = survey.look()
    seen.extents["edge-1"].end

Any broker lists the streams; the origin of a stream reports how far it goes. Rules:

1. The first look fails unless the origin of every wanted stream answers. With
   `failOnDataLoss=false`, a stream whose origin does not answer is left out with a warning; so is,
   always, a stream that is not wanted.
2. Later looks skip a broker that does not answer and keep the last known extent of its stream,
   which stays valid for a log. A query therefore continues with the other streams while a broker
   restarts, or while a broker that is new in the network file has not started yet.
3. A stream that the network no longer lists has left; `SurveyResult` does not contain it.

Sampling streams before a read:

4. Attributes are taken from the newest matching events: from the last thousand ticks of each
   stream, or from more if these hold too few matches.
5. Alternatively they come from exported statistics, which include rare attributes and cover empty
   streams. Statistics do not distinguish integers from floats, so all numbers become floats.
6. The first tick logged at or after a time is found by binary search. The times of a log do not
   decrease unless the clock was set back; in that case any of the candidate ticks is returned.

State: connections, and the last survey. Losing it costs one more round of requests.
"""

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Self

import msgspec

from anabranch.client.errors import ConnectError
from anabranch.client.stream_reader import Fetcher
from anabranch.config.errors import ConfigError
from anabranch.config.statistics_file import load_statistics
from anabranch.model.client_frames import Described
from anabranch.model.encoding import decode_event, rows_in
from anabranch.model.event import Value
from anabranch.model.limits import STORED_LIMITS
from anabranch.spark.broker_access import fetcher
from anabranch.spark.options import OptionError, Options

#: How long brokers may take to answer the first look.
START_PATIENCE_S = 10.0
#: How long they may take later, while the query could do other work.
_LATER_PATIENCE_S = 0.2

log = logging.getLogger("anabranch.spark")


class Extent(msgspec.Struct, frozen=True):
    """Readable ticks of a stream: the oldest tick, and the one after the newest."""

    oldest: int
    end: int
    #: Log time of the newest tick in nanoseconds; 0 if there is none.
    newest_ns: int = 0


class SurveyResult(msgspec.Struct, frozen=True):
    """Survey of a network at one moment."""

    network: str
    #: All streams → client address of their origin, or "".
    origins: dict[str, str]
    #: Extents of the wanted streams.
    extents: dict[str, Extent]

    def addresses(self, stream: str) -> tuple[str, ...]:
        """Address of the origin of a stream, if known."""
        found = self.origins.get(stream, "")
        return (found,) if found else ()


class Survey:
    """Surveys a network. See the rules at the top of this module."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._guide: Fetcher | None = None
        self._fetchers: dict[str, Fetcher] = {}
        #: The last survey; None before the first.
        self._seen: SurveyResult | None = None

    @property
    def streams(self) -> Sequence[str]:
        """The wanted streams; empty means all."""
        return self._options.streams

    def look(self, *, everything: bool = False) -> SurveyResult:
        described = self._described()
        if described is None:
            assert self._seen is not None
            return self._seen if everything else self._only_wanted(self._seen)
        streams = self._wanted(described, everything)
        before = self._seen.extents if self._seen is not None else {}
        extents: dict[str, Extent] = {}
        for stream in streams:
            extent = self._extent(stream, described, before.get(stream))
            if extent is not None:
                extents[stream] = extent
        if self._seen is None:
            # These connections wait longer than later ones should.
            self.close()
        self._seen = SurveyResult(described.network, dict(described.origins), extents)
        return self._seen

    def stream(self, stream: str) -> Fetcher:
        """A connection to the origin of a surveyed stream."""
        assert self._seen is not None
        found = self._fetchers.get(stream)
        if found is None:
            found = self._connect(stream, self._seen.network, self._seen.addresses(stream))
        return found

    def close(self) -> None:
        for each in (self._guide, *self._fetchers.values()):
            if each is not None:
                each.close()
        self._guide = None
        self._fetchers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- requests -------------------------------------------------------------------------------

    def _described(self) -> Described | None:
        """Description from any broker; None if none answers now, but one did before."""
        for _ in range(2):
            guide = self._guide
            if guide is None:
                network = "" if self._seen is None else self._seen.network
                guide = fetcher(self._options, network=network, patience_s=self._patience_s)
            try:
                described = guide.describe()
            except ConnectError as error:
                # The guide retries only its own broker; a new one may connect to any.
                guide.close()
                had_one, self._guide = self._guide is not None, None
                if had_one:
                    continue
                if self._seen is None:
                    raise
                log.warning("No broker answers; the query waits for one: %s", error)
                return None
            self._guide = guide
            return described
        return None

    @property
    def _patience_s(self) -> float:
        longest_s = START_PATIENCE_S if self._seen is None else _LATER_PATIENCE_S
        return min(longest_s, self._options.patience_s)

    def _wanted(self, described: Described, everything: bool) -> Iterable[str]:
        streams = self._options.streams
        if everything or not streams:
            return sorted(described.origins)
        if self._seen is None:
            check_streams(streams, described.origins)
        return [stream for stream in streams if stream in described.origins]

    def _is_wanted(self, stream: str) -> bool:
        return not self._options.streams or stream in self._options.streams

    def _only_wanted(self, seen: SurveyResult) -> SurveyResult:
        """A survey reduced to the wanted streams."""
        extents = {s: extent for s, extent in seen.extents.items() if self._is_wanted(s)}
        return SurveyResult(seen.network, seen.origins, extents)

    def _extent(self, stream: str, guide: Described, before: Extent | None) -> Extent | None:
        try:
            described = guide
            if stream != guide.broker:
                origin = guide.origins[stream]
                described = self._describe_origin(
                    stream, guide.network, (origin,) if origin else ()
                )
        except ConnectError as error:
            is_needed = self._options.fail_on_data_loss and self._is_wanted(stream)
            if self._seen is None and is_needed:
                raise ConnectError(
                    f"the origin of stream {stream!r} does not answer ({error}); start it, add its"
                    " address to brokers, or list only the streams you need in streams"
                ) from error
            log.warning("The origin of stream %r does not answer: %s", stream, error)
            return before
        return Extent(described.oldest, described.head + 1, described.head_ns)

    def _describe_origin(self, stream: str, network: str, addresses: tuple[str, ...]) -> Described:
        connection = self._fetchers.get(stream) or self._connect(stream, network, addresses)
        try:
            return connection.describe()
        except ConnectError:
            # The next connection is created with the shorter timeout.
            self._fetchers.pop(stream).close()
            raise

    def _connect(self, stream: str, network: str, addresses: tuple[str, ...]) -> Fetcher:
        connection = self._fetchers[stream] = fetcher(
            self._options,
            stream,
            network=network,
            addresses=addresses,
            patience_s=self._patience_s,
        )
        return connection


def check_streams(streams: Iterable[str], available: Mapping[str, object]) -> None:
    """Raise `OptionError` if one of the streams does not exist."""
    for stream in streams:
        if stream not in available:
            known = ", ".join(sorted(available)) or "none"
            raise OptionError("streams", f"no stream {stream!r}; the streams are {known}")


# -- sampling --------------------------------------------------------------------------------------


#: Sampled events over all streams; and the number that suffices for one stream.
_EVENTS_MAX: Final = 4_000
_EVENTS_MIN: Final = 50
_TICKS: Final = (1_000, 30_000, 1_000_000)
_SAMPLE_BYTES: Final = 256 * 1024

Attributes = Mapping[str, Value]


def sample(survey: Survey, seen: SurveyResult, subscription: str) -> Iterator[Attributes]:
    """Attributes of some of the newest events of each stream."""
    count = max(_EVENTS_MAX // max(len(seen.extents), 1), _EVENTS_MIN)
    for stream, extent in seen.extents.items():
        yield from _newest(survey.stream(stream), extent, subscription, count)


def described(options: Options) -> Iterator[Attributes]:
    """Sample values of the kinds that the statistics list for the wanted streams."""
    try:
        known = load_statistics(Path(options.statistics))
    except ConfigError as error:
        raise OptionError("statistics", str(error)) from error
    for stream in known.streams:
        if options.streams and stream.stream not in options.streams:
            continue
        for name, each in stream.attributes.items():
            if each.numbers is not None or each.nan:
                yield {name: 0.0}
            if each.texts is not None:
                yield {name: ""}
            if each.true or each.false:
                yield {name: True}


def _newest(connection: Fetcher, extent: Extent, subscription: str, count: int) -> list[Attributes]:
    found: list[Attributes] = []
    for ticks in _TICKS:
        first = max(extent.end - ticks, extent.oldest)
        events = _events(connection, first, extent.end - 1, subscription)
        found = list(islice(events, count))
        events.close()
        if len(found) >= _EVENTS_MIN or first == extent.oldest:
            break
    return found


def _events(
    connection: Fetcher, first: int, last: int, subscription: str
) -> Generator[Attributes, None, None]:
    for fetched in connection.fetch(first, last, filter=subscription, bytes_max=_SAMPLE_BYTES):
        for _, _, body in rows_in(fetched.data):
            yield decode_event(body, STORED_LIMITS).attributes


def first_since(connection: Fetcher, extent: Extent, time_ns: int) -> int:
    """The first tick logged at or after a time; the end if there is none."""
    first, end = extent.oldest, extent.end
    while first < end:
        middle = (first + end) // 2
        found = _time_from(connection, middle, extent.end - 1)
        if found is None or found[1] >= time_ns:
            # Ticks between the middle and the event found are silent.
            end = middle
        else:
            first = found[0] + 1
    return first


def _time_from(connection: Fetcher, first: int, last: int) -> tuple[int, int] | None:
    """Tick and time of the first event at or after a tick; None if only silence follows."""
    pieces = connection.fetch(first, last, bytes_max=1)
    for fetched in pieces:
        for tick, time_ns, _ in rows_in(fetched.data):
            return tick, time_ns
    return None
