"""Logs as earlier versions of this program wrote them."""

import struct
from pathlib import Path
from zlib import crc32

from anabranch.store.segment import encode_entry, encode_seal, scan

_header_1 = struct.Struct(">8sHIQ")


def header_1(first_tick: int, salt: int) -> bytes:
    """The header of a segment in format 1: without an owner."""
    fields = _header_1.pack(b"anabrlog", 1, salt, first_tick)
    return fields + struct.pack(">IB", crc32(fields), 0xE7)


def segment_1(first_tick: int, records: list[bytes], salt: int = 77) -> bytes:
    """A segment in format 1, all of it sealed."""
    entries = [encode_entry(tick, body, salt) for tick, body in enumerate(records, first_tick)]
    seal = encode_seal(first_tick + len(records) - 1, salt) if records else b""
    return header_1(first_tick, salt) + b"".join(entries) + seal


def rewrite_in_format_1(path: Path) -> None:
    """Make the segment in this file one of format 1."""
    found = scan(path.read_bytes(), int(path.stem))
    path.write_bytes(segment_1(found.first_tick, found.records))
