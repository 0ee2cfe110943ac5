"""Join points in the catalog.

    patterns        id → record
    patterns_gone   id → how often it had been moved when it left, and until when that is remembered

The second is a defence: a message that moves a join point here may come late, after it has moved
on, and must not make it a second time.

A record comes from a client's definition, from another broker, or from the disk. `check_record` is
what it has to be in each case; nothing is stored that would not pass it after a restart. What is on
disk and does not pass is set aside (`catalog_recovery`).

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
from anabranch.model.names import JOIN_POINT_PREFIX, check_name
from anabranch.model.network import Network
from anabranch.model.normal.memory_cost import FilterCost
from anabranch.model.pattern.match import PointRecord, subscription_to
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.read_ahead import FAILURE_BYTES, ReadAhead, Reading
from anabranch.model.statistics import StreamStatistics
from anabranch.model.version import Version


def name_of(pattern_id: str) -> str:
    """The client, and the subscription, of a join point."""
    return JOIN_POINT_PREFIX + pattern_id


def check_pattern_id(pattern_id: str, limits: Limits) -> None:
    """What a pattern may be called, so that its join point has a name; `EventError` otherwise."""
    check_name(pattern_id, "the id of a pattern", limits.name_bytes_max - len(JOIN_POINT_PREFIX))


# What a join point subscribes to: the events that its parts match, and what it has reported, since
# that tells it after a crash or a move what not to report again.


def parts_filter(scheme: PatternScheme) -> str:
    """All that the parts of a pattern match."""
    return " OR ".join(dict.fromkeys(f"({part.filter})" for part in scheme.pattern.parts))


def wanted_filter(scheme: PatternScheme) -> str:
    """What a join point subscribes to: all that its parts match, and its own notifications."""
    return f"{parts_filter(scheme)} OR {subscription_to(scheme.pattern_id)}"


#: What a pattern takes beside its filter, for each place of an event in one of the ways to match,
#: and for each byte of its text; and how often it has its filter: for the subscription, and parts.
_PATTERN_BYTES = 12_288
_SLOT_BYTES = 768
_TEXT_BYTES = 24
_FILTERS = 2


def _pattern_cost(scheme: PatternScheme, cost: FilterCost) -> FilterCost:
    """What a pattern costs in memory, about, with the subscription of its join point, whose filter
    costs this."""
    slots = sum(len(layout.alternative.later) for layout in scheme.layouts)
    own = _PATTERN_BYTES + _TEXT_BYTES * len(scheme.text) + _SLOT_BYTES * slots
    return cost._replace(bytes=own + _FILTERS * cost.bytes)


TABLE = "patterns"
GONE_TABLE = "patterns_gone"
#: Starts and moves of one join point. Numbers are made of these, which have bounds of their own.
COUNT_MAX = 1 << 40


class GoneJoinPoint(msgspec.Struct, frozen=True, array_like=True):
    """A join point that was here, or that was refused."""

    moves: Count
    until: float


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PointRecord)
_gone_decoder = msgspec.msgpack.Decoder(GoneJoinPoint)


def put(record: PointRecord) -> Put:
    """Remember it."""
    return Put(TABLE, record.id, _encoder.encode(record))


def forget(pattern_id: str) -> Put:
    """Remember it no more."""
    return Put(TABLE, pattern_id, None)


def put_gone(pattern_id: str, gone: GoneJoinPoint | None) -> Put:
    """Remember that it was here, or no more."""
    return Put(GONE_TABLE, pattern_id, None if gone is None else _encoder.encode(gone))


class ReadPattern(NamedTuple):
    """A pattern that can be detected: how, and what its join point subscribes to."""

    text: str
    scheme: PatternScheme
    #: What the join point subscribes to, as text; and as a filter, which `parse` finds by this text
    #: as long as somebody has it.
    subscribed: str
    wanted: Filter
    #: What its parts match, without its own notifications.
    of_parts: Filter
    #: What it makes a broker hold, about.
    cost: FilterCost


_Key = tuple[str, str, Limits]
#: By id, text and limits.
_read_ahead: ReadAhead[_Key, ReadPattern | FilterError] = ReadAhead("pattern")


def _read(pattern_id: str, text: str, limits: Limits) -> ReadPattern:
    scheme = PatternScheme(Pattern.parse(text, limits), pattern_id, limits)
    subscribed = wanted_filter(scheme)
    wanted = Filter.parse(subscribed, limits)
    of_parts = Filter.parse(parts_filter(scheme), limits)
    # Whether a normal form is within the limits shows only when it is made.
    _ = wanted.conjunctions, of_parts.conjunctions
    wanted.remember(subscribed)
    cost = _pattern_cost(scheme, wanted.cost(subscribed))
    return ReadPattern(text, scheme, subscribed, wanted, of_parts, cost)


def read_pattern(pattern_id: str, text: str, limits: Limits) -> ReadPattern:
    """How a pattern is detected; `PatternError` or `FilterError` if it cannot be."""
    found = _read_ahead.find((pattern_id, text, limits))
    if isinstance(found, FilterError):
        raise found.with_traceback(None)
    return found or _read(pattern_id, text, limits)


def pattern_reading(
    pattern_id: str, text: str, limits: Limits
) -> Reading[_Key, ReadPattern | FilterError]:
    """To read a pattern ahead: `read_pattern` finds it made then, or what is wrong with it."""

    def make() -> tuple[ReadPattern | FilterError, int]:
        try:
            made = read_pattern(pattern_id, text, limits)
        except FilterError as error:
            return error.with_traceback(None), len(text) + FAILURE_BYTES
        return made, made.cost.bytes

    return Reading(_read_ahead, (pattern_id, text, limits), text, make)


def check_record(record: PointRecord, limits: Limits) -> ReadPattern:
    """How it is detected; `EventError`, `PatternError` or `FilterError` if it cannot be."""
    check_pattern_id(record.id, limits)
    for count, what in ((record.incarnation, "starts"), (record.moves, "moves")):
        if count > COUNT_MAX:
            raise EventError(f"pattern {record.id!r} has {count} {what}; it never had so many")
    return read_pattern(record.id, record.text, limits)


class StoredJoinPoint(NamedTuple):
    """What the catalog has of a join point, and its pattern, which was read."""

    record: PointRecord
    pattern: ReadPattern


def stored_records(
    recovered: Recovered, own: str, edges: Collection[str], limits: Limits
) -> dict[str, StoredJoinPoint]:
    """Id → the join points that the catalog has."""

    def read(key: str, value: bytes) -> StoredJoinPoint:
        record = _decoder.decode(value)
        if record.id != key:
            raise ValueError(f"it is that of pattern {record.id!r}")
        if record.goes_to and (record.goes_to == own or record.goes_to not in edges):
            raise ValueError(f"it goes to {record.goes_to!r}, which cannot take it")
        pattern = check_record(record, limits)
        # A giver that has left the network has nothing to settle.
        if record.came_from not in edges:
            record = replace(record, came_from="")
        return StoredJoinPoint(record, pattern)

    return rows(recovered, TABLE, read)


def stored_gone(recovered: Recovered) -> dict[str, GoneJoinPoint]:
    """Those that were here."""

    def read(key: str, value: bytes) -> GoneJoinPoint:
        del key
        gone = _gone_decoder.decode(value)
        if not isfinite(gone.until):
            raise ValueError("it is remembered for ever")
        return gone

    return rows(recovered, GONE_TABLE, read)


# What a join point may ask of routing about places: who publishes, how far that is, who listens.
#
# Only routing that has advertisements and knows ways can answer; elsewhere there is no scout, and
# patterns stay where they were defined.


#: Origin → what its statistics say, if it has any.
Sources = Mapping[str, tuple[StreamStatistics, ...]]


class PlacementFacts(Protocol):
    """Asked by join points. All answers are of this moment, and change nothing."""

    @property
    def load(self) -> BrokerBusyness:
        """How busy this broker is."""

    def come_s(self, edge: str) -> float | None:
        """Seconds of the way from an edge to this broker; None if there is none."""

    def go_s(self, edge: str) -> float | None:
        """The same to an edge, until what comes there is dealt with."""

    def sources(self, filter: Filter) -> Sources:
        """The origins where something may be published that matches."""

    def wanting(self, attributes: Mapping[str, Value]) -> Sequence[str]:
        """The other edges that are known to want an event like this of the own stream."""


# What a join point may ask of its broker: who is there, how far streams have come, and who wants
# what. These are questions only; whatever is to be done is returned (`core.part_requests`).


#: Stream → the tick up to which nothing is missing, and the time up to which nothing will come.
Reach = Mapping[str, tuple[int, int]]


class JoinPointSurroundings(NamedTuple):
    """The broker around a join point, as far as that needs it."""

    name: str
    #: The streams of the network.
    streams: tuple[str, ...]
    #: Of a subscription.
    reach: Callable[[str], Reach]
    #: The versions of interest that the own origin's newest tick has.
    vector: Callable[[], Mapping[str, Version]]
    #: The newest tick of the own stream.
    head: Callable[[], int]
    #: Whether a client of the broker wants such an event, other than the one with this name.
    wants: Callable[[Mapping[str, Value], str], bool]
    network: Network
    life: int
    #: None where routing cannot tell places apart.
    scout: PlacementFacts | None = None
