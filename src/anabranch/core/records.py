"""Records: what stands in the log of a broker, one for each tick of its stream.

    EventRecord   an event, as the bytes it was published in
    BlankRecord   an event that was sent once and is not kept, only its id is; or one that is lost
    MarkRecord    no event, but the versions of interest that all ticks up to the next mark carry

A record is a MessagePack array: tag, time, content. Rules:

1. Every record has the origin's clock of when it was made, so "from time t on" finds its tick.
2. A record does not hold its own tick: the log knows the place of each, and says so where it frames
   and checks them (`store`).
3. Bytes that come out of a log have passed its checksums. If they cannot be read nevertheless, a
   newer or a broken program wrote them; that is an error of this side, and tells what was wrong.

This module keeps no state.
"""

import msgspec

from anabranch.model.errors import LocalError
from anabranch.model.event import EventId
from anabranch.model.frame_parts import Nanoseconds
from anabranch.model.version import Vector

#: Who is named as the publisher of events that the log has lost: they were in ticks that a repair
#: gave up, or that a renewal left out.
LOST_PUBLISHER = "anabranch-log-repair"


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One tick in the log."""

    #: The origin's clock when the tick was made.
    time_ns: Nanoseconds


class EventRecord(Record, frozen=True, tag=1):
    """A tick with an event."""

    #: The encoded event.
    body: bytes


class BlankRecord(Record, frozen=True, tag=2):
    """A tick whose event was transient: its body was in memory only, and not for long."""

    id: EventId


class MarkRecord(Record, frozen=True, tag=3):
    """A tick without an event: the versions of interest that later ticks carry."""

    vector: Vector


AnyRecord = EventRecord | BlankRecord | MarkRecord

#: Everything that reading unknown bytes can raise.
_FAILURES = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
    OverflowError,
    MemoryError,
)
_COMPLAINT_CHARACTERS_MAX = 200

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)


def encode_record(record: AnyRecord) -> bytes:
    """The bytes that stand for `record` in the log."""
    return _encoder.encode(record)


def decode_record(data: bytes) -> AnyRecord:
    """The record that `data` stands for."""
    try:
        return _decoder.decode(data)
    except _FAILURES as error:
        raise LocalError(
            f"a record of {len(data)} bytes in the log is none that this version can read"
            f" ({str(error)[:_COMPLAINT_CHARACTERS_MAX]}); start the version that wrote the log"
        ) from error
