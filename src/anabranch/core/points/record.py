"""Join points in the catalog.

    patterns        id → record
    patterns_gone   id → how often it had been moved when it left, and until when that is remembered

The second is a defence: a message that moves a join point here may come late, after it has moved
on, and must not make it a second time.

State: see above.
"""

from typing import TypeVar

import msgspec

from anabranch.core.contract import Put
from anabranch.model.errors import LocalError
from anabranch.model.pattern.record import PointRecord

TABLE = "patterns"
GONE_TABLE = "patterns_gone"
Catalog = dict[str, dict[str, bytes]]
Row = TypeVar("Row")


class Gone(msgspec.Struct, frozen=True, array_like=True):
    """A join point that was here, or that was refused."""

    moves: int
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


def stored_records(catalog: Catalog) -> list[PointRecord]:
    """The join points that the catalog has."""
    return [_decoded(_decoder, key, row) for key, row in catalog.get(TABLE, {}).items()]


def stored_gone(catalog: Catalog) -> dict[str, Gone]:
    """Those that were here."""
    rows = catalog.get(GONE_TABLE, {})
    return {key: _decoded(_gone_decoder, key, row) for key, row in rows.items()}


def _decoded(decoder: msgspec.msgpack.Decoder[Row], key: str, row: bytes) -> Row:
    try:
        return decoder.decode(row)
    except msgspec.DecodeError as error:
        raise LocalError(
            f"the catalog's pattern {key!r} cannot be read ({error}); restore it from a copy"
        ) from error
