"""Join point records: their catalog tables, their validation, and parsed patterns.

    patterns        id → record
    patterns_gone   id → number of moves when it left, and until when that is remembered

The second table is a safeguard: a delayed message that moves a join point here may arrive after it
has moved on, and must not create it a second time.

A record comes from a client's definition, from another broker, or from the disk. `check_record`
validates it in each case; nothing is stored that would not pass after a restart. Records on disk
that do not pass are set aside (`catalog_recovery`).

A join point subscribes to the events that its parts match and to its own notifications, which tell
it after a crash or a move what not to report again.

`PlacementFacts` and `BrokerQueries` are the queries of join points to routing and to the
broker. They change nothing; effects are returned (`core.part_requests`).

State: see above.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from anabranch.core.catalog_recovery import rows
from anabranch.core.contract import Put, Recovered
from anabranch.core.patterns.join_points.placement_cost import BrokerBusyness
from anabranch.core.patterns.scheme import PatternScheme
from anabranch.model.errors import EventError, FilterError
from anabranch.model.event import Count, Value
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from anabranch.model.names import JOIN_POINT_PREFIX, check_pattern_id
from anabranch.model.network import Network
from anabranch.model.normal.memory_cost import FilterCost
from anabranch.model.pattern.match import PointRecord, subscription_to
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.read_ahead import FAILURE_BYTES, ReadAhead, Reading
from anabranch.model.statistics import StreamStatistics
from anabranch.model.version import Version


def name_of(pattern_id: str) -> str:
    """The name of the client, and of the subscription, of a join point."""
    return JOIN_POINT_PREFIX + pattern_id


def parts_filter(scheme: PatternScheme) -> str:
    """The filter that matches all events of the parts of a pattern."""
    return " OR ".join(dict.fromkeys(f"({part.filter})" for part in scheme.pattern.parts))


def wanted_filter(scheme: PatternScheme) -> str:
    """The subscription of a join point: all events of its parts, and its own notifications."""
    return f"{parts_filter(scheme)} OR {subscription_to(scheme.pattern_id)}"


#: Memory of a pattern besides its filter, per event slot in one of its alternatives, and per byte
#: of its text; and the number of copies of its filter: in the subscription, and in the parts.
_PATTERN_BYTES = 12_288
_SLOT_BYTES = 768
_TEXT_BYTES = 24
_FILTERS = 2


def _pattern_cost(scheme: PatternScheme, cost: FilterCost) -> FilterCost:
    """Approximate memory of a pattern, including the subscription of its join point, whose filter
    costs `cost`."""
    slots = sum(len(layout.alternative.later) for layout in scheme.layouts)
    own = _PATTERN_BYTES + _TEXT_BYTES * len(scheme.text) + _SLOT_BYTES * slots
    return cost._replace(bytes=own + _FILTERS * cost.bytes)


TABLE = "patterns"
GONE_TABLE = "patterns_gone"
#: Starts and moves of one join point. Other numbers with their own bounds derive from these.
COUNT_MAX = 1 << 40


class GoneJoinPoint(msgspec.Struct, frozen=True, array_like=True):
    """A join point that was here, or was refused."""

    moves: Count
    until: float


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PointRecord)
_gone_decoder = msgspec.msgpack.Decoder(GoneJoinPoint)


def put(record: PointRecord) -> Put:
    return Put(TABLE, record.id, _encoder.encode(record))


def forget(pattern_id: str) -> Put:
    return Put(TABLE, pattern_id, None)


def put_gone(pattern_id: str, gone: GoneJoinPoint | None) -> Put:
    """Remember that a join point was here, or forget that."""
    return Put(GONE_TABLE, pattern_id, None if gone is None else _encoder.encode(gone))


class ParsedPattern(NamedTuple):
    """A parsed pattern: its detection scheme, and the subscription of its join point."""

    text: str
    scheme: PatternScheme
    #: The subscription of the join point, as text and as a filter; `parse` finds the filter by this
    #: text while it is in use.
    subscribed: str
    wanted: Filter
    #: The filter of its parts, without its own notifications.
    of_parts: Filter
    #: Approximate memory that it occupies at a broker.
    cost: FilterCost


_Key = tuple[str, str, Limits]
#: Keyed by id, text and limits.
_read_ahead: ReadAhead[_Key, ParsedPattern | FilterError] = ReadAhead("pattern")


def _read(pattern_id: str, text: str, limits: Limits) -> ParsedPattern:
    scheme = PatternScheme(Pattern.parse(text, limits), pattern_id, limits)
    subscribed = wanted_filter(scheme)
    wanted = Filter.parse(subscribed, limits)
    of_parts = Filter.parse(parts_filter(scheme), limits)
    # Compute the normal forms now: they may exceed the limits.
    _ = wanted.conjunctions, of_parts.conjunctions
    wanted.remember(subscribed)
    cost = _pattern_cost(scheme, wanted.cost(subscribed))
    return ParsedPattern(text, scheme, subscribed, wanted, of_parts, cost)


def read_pattern(pattern_id: str, text: str, limits: Limits) -> ParsedPattern:
    """Parse a pattern; `PatternError` or `FilterError` if it cannot be detected."""
    found = _read_ahead.find((pattern_id, text, limits))
    if isinstance(found, FilterError):
        raise found.with_traceback(None)
    return found or _read(pattern_id, text, limits)


def pattern_reading(
    pattern_id: str, text: str, limits: Limits
) -> Reading[_Key, ParsedPattern | FilterError]:
    """Parse a pattern ahead of time: `read_pattern` then returns the result or its error."""

    def make() -> tuple[ParsedPattern | FilterError, int]:
        try:
            made = read_pattern(pattern_id, text, limits)
        except FilterError as error:
            return error.with_traceback(None), len(text) + FAILURE_BYTES
        return made, made.cost.bytes

    return Reading(_read_ahead, (pattern_id, text, limits), text, make)


def check_record(record: PointRecord, limits: Limits) -> ParsedPattern:
    """Validate a record; `EventError`, `PatternError` or `FilterError` if it is invalid."""
    check_pattern_id(record.id, limits.name_bytes_max)
    for count, what in ((record.incarnation, "starts"), (record.moves, "moves")):
        if count > COUNT_MAX:
            raise EventError(f"pattern {record.id!r} has {count} {what}, more than {COUNT_MAX}")
    return read_pattern(record.id, record.text, limits)


class StoredJoinPoint(NamedTuple):
    """A join point in the catalog, with its parsed pattern."""

    record: PointRecord
    pattern: ParsedPattern


def stored_records(
    recovered: Recovered, own: str, edges: Collection[str], limits: Limits
) -> dict[str, StoredJoinPoint]:
    """Id → join point in the catalog."""

    def read(key: str, value: bytes) -> StoredJoinPoint:
        record = _decoder.decode(value)
        if record.id != key:
            raise ValueError(f"the record belongs to pattern {record.id!r}")
        if record.goes_to and (record.goes_to == own or record.goes_to not in edges):
            raise ValueError(f"the join point moves to {record.goes_to!r}, which cannot take it")
        pattern = check_record(record, limits)
        # If the giver has left the network, nothing is left to settle.
        if record.came_from not in edges:
            record = replace(record, came_from="")
        return StoredJoinPoint(record, pattern)

    return rows(recovered, TABLE, read)


def stored_gone(recovered: Recovered) -> dict[str, GoneJoinPoint]:
    """Id → join point that was here."""

    def read(key: str, value: bytes) -> GoneJoinPoint:
        del key
        gone = _gone_decoder.decode(value)
        if not isfinite(gone.until):
            raise ValueError("the entry would never expire")
        return gone

    return rows(recovered, GONE_TABLE, read)


#: Origin → its statistics, if any.
Sources = Mapping[str, tuple[StreamStatistics, ...]]


class PlacementFacts(Protocol):
    """Queries of join points about placement: publishers, delays and interested edges.

    Only routing with advertisements and known routes can answer. Otherwise there is no such object,
    and patterns stay where they were defined. Answers hold for this moment.
    """

    @property
    def load(self) -> BrokerBusyness:
        """The load of this broker."""

    def come_s(self, edge: str) -> float | None:
        """Delay from an edge to this broker in seconds; None if there is no route."""

    def go_s(self, edge: str) -> float | None:
        """Delay from this broker to an edge, including processing there; None if no route."""

    def sources(self, filter: Filter) -> Sources:
        """The origins that may publish matching events."""

    def wanting(self, attributes: Mapping[str, Value]) -> Sequence[str]:
        """The other edges that are known to want such an event of this broker's stream."""


#: Stream → (tick up to which nothing is missing, time before which no more events will arrive).
Progress = Mapping[str, tuple[int, int]]


class BrokerQueries(NamedTuple):
    """The broker around a join point, as far as the join point needs it."""

    name: str
    #: The streams of the network.
    streams: tuple[str, ...]
    #: The reach of a subscription.
    progress: Callable[[str], Progress]
    #: The versions of interest at the newest tick of this broker's origin.
    vector: Callable[[], Mapping[str, Version]]
    #: The newest tick of this broker's stream.
    head: Callable[[], int]
    #: Whether a client of the broker, other than the named one, wants such an event.
    wants: Callable[[Mapping[str, Value], str], bool]
    network: Network
    life: int
    #: None if routing cannot answer questions about placement.
    placement_facts: PlacementFacts | None = None
