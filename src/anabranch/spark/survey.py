"""What streams a network has, and what of each of them can be read.

    survey = Survey(options)
    seen = survey.look()
    seen.extents["edge-1"].end

Any broker says which streams there are; how far each goes is said by its own origin. Rules:

1. The first look needs an answer from the origin of every stream that is wanted, or it fails. With
   `failOnDataLoss=false` a stream without an answer is left out, with a warning; and so is always
   one that is not wanted.
2. Later a broker that does not answer is passed over, and its stream is as far as it was: what is
   known of a log stays true. So a query goes on with the others while one broker restarts, or one
   that is new in the network file has not started yet.
3. A stream that is not among those of the network any more has left; `seen` does not have it.

State: connections, and what was seen last. Losing it costs asking again.
"""

import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
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

#: How long brokers may take to answer for the first time.
START_PATIENCE_S = 10.0
#: ... and later, when a query has something else to do meanwhile.
_LATER_PATIENCE_S = 0.2

log = logging.getLogger("anabranch.spark")


class Extent(msgspec.Struct, frozen=True):
    """What there is of a stream: its oldest tick, and the one after its newest."""

    oldest: int
    end: int
    #: When the newest was made, in nanoseconds; 0 if there is none.
    newest_ns: int = 0


class Seen(msgspec.Struct, frozen=True):
    """A network at one moment."""

    network: str
    #: All its streams → where clients reach their origins, or "".
    origins: dict[str, str]
    #: Of the streams that are wanted.
    extents: dict[str, Extent]

    def addresses(self, stream: str) -> tuple[str, ...]:
        """Where the origin of a stream is, as far as it is known."""
        found = self.origins.get(stream, "")
        return (found,) if found else ()


class Survey:
    """Looks at a network. See the rules at the top of this module."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._guide: Fetcher | None = None
        self._fetchers: dict[str, Fetcher] = {}
        #: The last look; None before the first.
        self._seen: Seen | None = None

    @property
    def streams(self) -> Sequence[str]:
        """The streams that are wanted; none: all there are."""
        return self._options.streams

    def look(self, *, everything: bool = False) -> Seen:
        """What there is now, of the streams that are wanted or of all."""
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
            # These connections are patient; later ones are not.
            self.close()
        self._seen = Seen(described.network, dict(described.origins), extents)
        return self._seen

    def stream(self, stream: str) -> Fetcher:
        """A connection to the origin of a stream that was seen."""
        assert self._seen is not None
        found = self._fetchers.get(stream)
        if found is None:
            found = self._made(stream, self._seen.network, self._seen.addresses(stream))
        return found

    def close(self) -> None:
        """Leave all brokers."""
        for each in (self._guide, *self._fetchers.values()):
            if each is not None:
                each.close()
        self._guide = None
        self._fetchers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- asking ---------------------------------------------------------------------------------

    def _described(self) -> Described | None:
        """What any broker says; None if nobody answers, and somebody did before."""
        for _ in range(2):
            guide = self._guide
            if guide is None:
                network = "" if self._seen is None else self._seen.network
                guide = fetcher(self._options, network=network, patience_s=self._patience_s)
            try:
                described = guide.describe()
            except ConnectError as error:
                # It asks for the one broker that it met; the next one may be any.
                guide.close()
                had_one, self._guide = self._guide is not None, None
                if had_one:
                    continue
                if self._seen is None:
                    raise
                log.warning("no broker answers, and the query waits for one: %s", error)
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

    def _only_wanted(self, seen: Seen) -> Seen:
        """What was seen, without what a look at everything has found beside."""
        extents = {s: extent for s, extent in seen.extents.items() if self._is_wanted(s)}
        return Seen(seen.network, seen.origins, extents)

    def _extent(self, stream: str, guide: Described, before: Extent | None) -> Extent | None:
        try:
            described = guide
            if stream != guide.broker:
                origin = guide.origins[stream]
                described = self._asked(stream, guide.network, (origin,) if origin else ())
        except ConnectError as error:
            is_needed = self._options.fail_on_data_loss and self._is_wanted(stream)
            if self._seen is None and is_needed:
                raise ConnectError(
                    f"the origin of stream {stream!r} does not answer ({error}); start it, give its"
                    " address in brokers, or name the streams you want in streams"
                ) from error
            log.warning("the origin of stream %r does not answer: %s", stream, error)
            return before
        return Extent(described.oldest, described.head + 1, described.head_ns)

    def _asked(self, stream: str, network: str, addresses: tuple[str, ...]) -> Described:
        asked = self._fetchers.get(stream) or self._made(stream, network, addresses)
        try:
            return asked.describe()
        except ConnectError:
            # The next one waits no longer than it has to.
            self._fetchers.pop(stream).close()
            raise

    def _made(self, stream: str, network: str, addresses: tuple[str, ...]) -> Fetcher:
        made = self._fetchers[stream] = fetcher(
            self._options,
            stream,
            network=network,
            addresses=addresses,
            patience_s=self._patience_s,
        )
        return made


def check_streams(streams: Iterable[str], there: Mapping[str, object]) -> None:
    """`OptionError` if one of the streams is not there."""
    for stream in streams:
        if stream not in there:
            known = ", ".join(sorted(there)) or "none"
            raise OptionError("streams", f"there is no {stream!r}; there is {known}")


# Looking into streams before they are read: what attributes there are, and when a time was.
#
# 1. Attributes are those of some of the newest events that match: of the last thousand ticks of
#    each stream, or of more of them where these have too few.
# 2. Or they are those of exported statistics, which know rare ones too, and streams that are empty.
#    They do not tell integers from floats: numbers are floats then.
# 3. A time is looked for by halving: the first tick that was logged then or later. A log's times do
#    not go back, but by a clock that was set; then any tick that may be meant is as good as
#    another.
#
# This module keeps no state.


#: Events that are looked at, of all streams together; and those that are enough of one stream.
_EVENTS_MAX: Final = 4_000
_EVENTS_MIN: Final = 50
_TICKS: Final = (1_000, 30_000, 1_000_000)
_SAMPLE_BYTES: Final = 256 * 1024

Attributes = Mapping[str, Value]


def sample(survey: Survey, seen: Seen, subscription: str) -> Iterator[Attributes]:
    """The attributes of some of the newest events of every stream."""
    count = max(_EVENTS_MAX // max(len(seen.extents), 1), _EVENTS_MIN)
    for stream, extent in seen.extents.items():
        yield from _newest(survey.stream(stream), extent, subscription, count)


def described(options: Options) -> Iterator[Attributes]:
    """Values of the kinds that attributes have by statistics, of the streams that are wanted."""
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
    """The first tick that was logged at that time or later; the end if there is none."""
    first, end = extent.oldest, extent.end
    while first < end:
        middle = (first + end) // 2
        found = _time_from(connection, middle, extent.end - 1)
        if found is None or found[1] >= time_ns:
            # What is before the event that was found, from the middle on, is silence.
            end = middle
        else:
            first = found[0] + 1
    return first


def _time_from(connection: Fetcher, first: int, last: int) -> tuple[int, int] | None:
    """Tick and time of the first event from a tick on; None if only silence follows."""
    pieces = connection.fetch(first, last, bytes_max=1)
    for fetched in pieces:
        for tick, time_ns, _ in rows_in(fetched.data):
            return tick, time_ns
    return None
