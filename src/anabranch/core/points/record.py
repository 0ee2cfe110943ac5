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

from collections.abc import Collection
from math import isfinite

import msgspec
from msgspec.structs import replace

from anabranch.core.catalog_recovery import rows
from anabranch.core.contract import Put, Recovered
from anabranch.core.patterns.scheme import Scheme
from anabranch.core.points.names import check_pattern_id
from anabranch.core.points.wanting import wanted_filter
from anabranch.model.errors import EventError
from anabranch.model.event import Count
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from anabranch.model.pattern.match import PointRecord
from anabranch.model.pattern.pattern import Pattern

TABLE = "patterns"
GONE_TABLE = "patterns_gone"
#: Starts and moves of one join point. Numbers are made of these, which have bounds of their own.
COUNT_MAX = 1 << 40


class Gone(msgspec.Struct, frozen=True, array_like=True):
    """A join point that was here, or that was refused."""

    moves: Count
    until: float


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(PointRecord)
_gone_decoder = msgspec.msgpack.Decoder(Gone)


def put(record: PointRecord) -> Put:
    """Remember it."""
    return Put(TABLE, record.id, _encoder.encode(record))


def forget(pattern_id: str) -> Put:
    """Remember it no more."""
    return Put(TABLE, pattern_id, None)


def put_gone(pattern_id: str, gone: Gone | None) -> Put:
    """Remember that it was here, or no more."""
    return Put(GONE_TABLE, pattern_id, None if gone is None else _encoder.encode(gone))


def check_record(record: PointRecord, limits: Limits) -> Scheme:
    """How it is detected; `EventError`, `PatternError` or `FilterError` if it cannot be."""
    check_pattern_id(record.id, limits)
    for count, what in ((record.incarnation, "starts"), (record.moves, "moves")):
        if count > COUNT_MAX:
            raise EventError(f"pattern {record.id!r} has {count} {what}; it never had so many")
    scheme = Scheme(Pattern.parse(record.text, limits), record.id, limits)
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


def stored_gone(recovered: Recovered) -> dict[str, Gone]:
    """Those that were here."""

    def read(key: str, value: bytes) -> Gone:
        del key
        gone = _gone_decoder.decode(value)
        if not isfinite(gone.until):
            raise ValueError("it is remembered for ever")
        return gone

    return rows(recovered, GONE_TABLE, read)
