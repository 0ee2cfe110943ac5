"""Records of the log: they come back as they were, and say what is wrong when they cannot."""

import msgspec
import pytest

from anabranch.core.origin.log_tail import (
    AnyRecord,
    BlankRecord,
    EventRecord,
    MarkRecord,
    decode_record,
    encode_record,
)
from anabranch.model.errors import LocalError
from anabranch.model.event import EventId
from anabranch.model.version import Version

EVENT = EventRecord(1_700_000_000_000_000_000, b"\0\xff body")
BLANK = BlankRecord(0, EventId("feed-1", 3, 17))
MARK = MarkRecord(5, {"edge-1": Version(7, 2), "edge-2": Version(2**63 - 1, 0)})
RECORDS: list[AnyRecord] = [EVENT, EventRecord(0, b""), BLANK, MARK, MarkRecord(1, {})]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_comes_back_as_it_was(record: AnyRecord) -> None:
    again = decode_record(encode_record(record))
    assert type(again) is type(record)
    assert again == record


def test_a_record_is_a_tag_a_time_and_its_content() -> None:
    assert [msgspec.msgpack.decode(encode_record(record)) for record in RECORDS] == [
        [1, 1_700_000_000_000_000_000, b"\0\xff body"],
        [1, 0, b""],
        [2, 0, ["feed-1", 3, 17]],
        [3, 5, {"edge-1": [7, 2], "edge-2": [2**63 - 1, 0]}],
        [3, 1, {}],
    ]


@pytest.mark.parametrize("record", RECORDS)
def test_a_truncated_record_is_a_local_error(record: AnyRecord) -> None:
    data = encode_record(record)
    for length in range(len(data)):
        with pytest.raises(LocalError, match=f"a record of {length} bytes in the log"):
            decode_record(data[:length])


@pytest.mark.parametrize(
    "data",
    [
        b"\x93\x04\x00\xc4\x00",
        b"\x94\x01\x00\xc4\x00\x00",
        b"\x93\x01\xff\xc4\x00",
        b"\x93\x01\x00\xa1a",
        b"\x93\x03\x00\x81\xa1\xff\x92\x00\x00",
        b"\x93\x03\x00\xdf\xff\xff\xff\xff",
        b"\x91" * 100_000,
        encode_record(EVENT) + b"\0",
    ],
)
def test_bytes_that_are_no_record_are_a_local_error(data: bytes) -> None:
    with pytest.raises(LocalError, match="cannot be read by this version") as caught:
        decode_record(data)
    assert len(str(caught.value)) < 400
