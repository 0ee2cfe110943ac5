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
from anabranch.model.errors import EventError
from anabranch.model.event import Count, Value
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from anabranch.model.names import JOIN_POINT_PREFIX, check_name
from anabranch.model.network import Network
from anabranch.model.normal.memory_cost import FilterCost
from anabranch.model.pattern.match import PointRecord, subscription_to
from anabranch.model.pattern.pattern import Pattern
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


def pattern_cost(scheme: PatternScheme) -> FilterCost:
    """What a pattern costs in memory, about, with the subscription of its join point."""
    wanted = wanted_filter(scheme)
    cost = Filter.parse(wanted, scheme.limits).cost(wanted)
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


def check_record(record: PointRecord, limits: Limits) -> PatternScheme:
    """How it is detected; `EventError`, `PatternError` or `FilterError` if it cannot be."""
    check_pattern_id(record.id, limits)
    for count, what in ((record.incarnation, "starts"), (record.moves, "moves")):
        if count > COUNT_MAX:
            raise EventError(f"pattern {record.id!r} has {count} {what}; it never had so many")
    scheme = PatternScheme(Pattern.parse(record.text, limits), record.id, limits)
    # Whether its normal form is within the limits shows only when it is made.
    _ = Filter.parse(wanted_filter(scheme), limits).conjunctions
    return scheme


def stored_records(
    recovered: Recovered, own: str, edges: Collection[str], limits: Limits
) -> dict[str, PointRecord]:
    """Id → the join points that the catalog has."""

    def read(key: str, value: bytes) -> PointRecord:
        record = _decoder.decode(value)
        if record.id != key:
            raise ValueError(f"it is that of pattern {record.id!r}")
        if record.goes_to and (record.goes_to == own or record.goes_to not in edges):
            raise ValueError(f"it goes to {record.goes_to!r}, which cannot take it")
        check_record(record, limits)
        # A giver that has left the network has nothing to settle.
        return record if record.came_from in edges else replace(record, came_from="")

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
