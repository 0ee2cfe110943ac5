"""The log as bytes: cuts are torn or whole, changed bits are noticed, nothing is invented."""

from collections.abc import Iterator

import pytest

from anabranch.model.errors import LocalError
from anabranch.store.segment import (
    ENTRY_OVERHEAD_BYTES,
    HEADER_BYTES,
    SECTOR_BYTES,
    CorruptError,
    Scan,
    encode_entry,
    encode_seal,
    newest_tick,
    scan,
    segment_header,
    segment_owner,
)

FIRST = 5
SALT = 0xC0FFEE
BODIES = [b"one", b"", b"\0\0\0", b"four\0"]
HEADER = segment_header(FIRST, SALT)
RECORDS = [encode_entry(FIRST + place, body, SALT) for place, body in enumerate(BODIES)]
LONG = encode_entry(FIRST, b"x" * 2_000, SALT)
#: Two were synced and sealed, then two more were written.
UNSEALED = [HEADER, RECORDS[0], RECORDS[1], encode_seal(6, SALT), RECORDS[2], RECORDS[3]]
SEALED = [*UNSEALED, encode_seal(8, SALT)]
LOGS = [
    pytest.param(UNSEALED, id="unsealed"),
    pytest.param(SEALED, id="sealed"),
    pytest.param([HEADER, *RECORDS], id="without-seals"),
    pytest.param([HEADER, RECORDS[0]], id="one-record"),
    pytest.param([HEADER], id="empty"),
]
Log = list[bytes]


def boundaries(log: Log) -> dict[int, int]:
    """Offset → records before it, for every place where an entry begins or the last one ends."""
    found, offset, records = {}, 0, 0
    for part in log:
        offset += len(part)
        records += part in RECORDS
        found[offset] = records
    return found


def flips(data: bytes) -> Iterator[bytes]:
    """The data with each of its bits changed, one at a time."""
    for place in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            yield bytes(changed)


def corrupt(data: bytes, first_tick: int = FIRST, **more: int) -> CorruptError:
    with pytest.raises(CorruptError) as caught:
        scan(data, first_tick, confirmed_tick=more.get("confirmed_tick", 0))
    return caught.value


def prefix_or_corrupt(data: bytes) -> Scan | None:
    """What a scan of damaged data finds: a beginning of the records, or None for corrupt."""
    try:
        found = scan(data, FIRST)
    except CorruptError:
        return None
    assert found.records == BODIES[: len(found.records)]
    return found


# -- what was written comes back


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("room", [0, 1, 16, 17, 600, 5_000])
def test_a_whole_log_comes_back_and_reserved_room_is_no_damage(log: Log, room: int) -> None:
    data = b"".join(log)
    found = scan(data + bytes(room), FIRST)
    assert found.records == BODIES[: boundaries(log)[len(data)]]
    assert (found.state, found.end_offset) == ("whole", len(data))
    assert (found.first_tick, found.salt) == (FIRST, SALT)
    assert found.last_tick == FIRST - 1 + len(found.records)


def test_the_scan_tells_what_is_sealed() -> None:
    ends = [*boundaries(SEALED)]
    data = b"".join(SEALED)
    assert [scan(data[:end], FIRST).sealed_tick for end in ends] == [4, 4, 4, 6, 6, 6, 8]


def test_a_seal_may_speak_of_fewer_ticks_than_there_are() -> None:
    found = scan(b"".join([*UNSEALED, encode_seal(7, SALT)]), FIRST)
    assert (found.sealed_tick, found.last_tick, found.state) == (7, 8, "whole")


def test_the_format_is_what_it_was() -> None:
    header = b"anabrlog" + bytes.fromhex("0002 00000000 0000000000000001 00000000 f69a3db7 e7")
    head = bytes.fromhex("a6 00000002 0000000000000002 7c7dbe17")
    seal = bytes.fromhex("59 00000000 0000000000000002 6f651a37 6f651a37 e7")
    assert segment_header(1) == header
    assert encode_entry(2, b"ab") == head + b"ab" + bytes.fromhex("b7d92e0d e7")
    assert encode_seal(2) == seal
    assert len(segment_header(1)) == HEADER_BYTES
    assert len(encode_entry(1, b"")) == len(encode_seal(1)) == ENTRY_OVERHEAD_BYTES


def test_a_segment_of_format_1_is_read_and_gone_on_with() -> None:
    header = b"anabrlog" + bytes.fromhex("0001 00000000 0000000000000001 f629dee8 e7")
    entries = encode_entry(1, b"one") + encode_seal(1) + encode_entry(2, b"two")
    found = scan(header + entries, 1, owner=segment_owner("n", "b"))
    assert (found.records, found.version, found.state) == ([b"one", b"two"], 1, "whole")
    assert found.offsets == [27, 27 + 2 * ENTRY_OVERHEAD_BYTES + 3]
    more = encode_entry(3, b"three", found.salt)
    assert scan(header + entries + more, 1).records == [b"one", b"two", b"three"]


def test_every_cut_and_every_changed_bit_of_format_1_is_noticed() -> None:
    header = b"anabrlog" + bytes.fromhex("0001 00000000 0000000000000001 f629dee8 e7")
    data = header + encode_entry(1, b"one") + encode_seal(1)
    for changed in flips(data):
        corrupt(changed, first_tick=1)
    for cut in range(len(data)):
        found = scan(data[:cut], 1)
        assert found.end_offset in (0, 27, 27 + ENTRY_OVERHEAD_BYTES + 3)
        assert found.end_offset <= cut


def test_a_segment_of_another_owner_is_corrupt_and_of_nobody_is_not() -> None:
    mine, other = segment_owner("n", "b"), segment_owner("n", "c")
    assert mine != other
    assert scan(segment_header(FIRST, SALT, mine), FIRST, owner=mine).state == "whole"
    assert scan(segment_header(FIRST, SALT), FIRST, owner=mine).state == "whole"
    assert scan(segment_header(FIRST, SALT, other), FIRST).state == "whole"
    with pytest.raises(CorruptError, match="belongs to the log of another broker"):
        scan(segment_header(FIRST, SALT, other), FIRST, owner=mine)


def test_the_newest_tick_is_found_in_what_cannot_be_read_in_order() -> None:
    data = bytearray(b"".join(SEALED))
    data[HEADER_BYTES] ^= 0xFF
    assert newest_tick(bytes(data), HEADER_BYTES, FIRST) == 8
    assert newest_tick(bytes(data[:-45]), HEADER_BYTES, FIRST) == 7
    assert newest_tick(bytes(data), HEADER_BYTES, 9) == 0
    assert newest_tick(b"", 0, 1) == 0


# -- interrupted writes


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("fill", [False, True], ids=["cut", "zeros"])
def test_every_cut_leaves_exactly_the_complete_records(log: Log, fill: bool) -> None:
    data = b"".join(log)
    ends = {0: 0, **boundaries(log)}
    for cut in range(len(data)):
        left = data[:cut] + bytes(len(data) - cut if fill else 0)
        found = scan(left, FIRST)
        end = max(offset for offset in ends if offset <= cut)
        assert found.records == BODIES[: ends[end]]
        assert found.end_offset == end
        assert found.state == ("whole" if cut == end > 0 else "torn")


def test_a_torn_log_goes_on_where_it_was_cut() -> None:
    data = b"".join(UNSEALED)[:-3]
    torn = scan(data, FIRST)
    again = data[: torn.end_offset] + encode_entry(torn.last_tick + 1, b"new", torn.salt)
    found = scan(again, FIRST)
    assert (found.records, found.state) == ([*BODIES[:3], b"new"], "whole")


def test_a_sector_that_was_not_written_is_torn_though_later_ones_were() -> None:
    log = [HEADER, *(encode_entry(FIRST + n, b"x" * 200, SALT) for n in range(10))]
    data = b"".join(log)
    for sector in range(1, len(data) // SECTOR_BYTES):
        start = sector * SECTOR_BYTES
        found = scan(data[:start] + bytes(SECTOR_BYTES) + data[start + SECTOR_BYTES :], FIRST)
        assert found.state == "torn"
        assert len(found.records) == (start - HEADER_BYTES) // len(log[1])


def test_the_same_sector_is_corrupt_once_a_seal_proves_that_it_was_written() -> None:
    log = [HEADER, *(encode_entry(FIRST + n, b"x" * 200, SALT) for n in range(10))]
    data = b"".join(log) + encode_seal(FIRST + 9, SALT)
    error = corrupt(data[:SECTOR_BYTES] + bytes(SECTOR_BYTES) + data[2 * SECTOR_BYTES :])
    assert (error.offset, error.tick) == (HEADER_BYTES + 2 * len(log[1]), FIRST + 2)
    assert "ticks up to 14 were synced" in error.reason


# -- changed bits


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("room", [0, 600])
def test_every_changed_bit_makes_the_log_corrupt(log: Log, room: int) -> None:
    data = b"".join(log)
    for place, changed in enumerate(flips(data)):
        error = corrupt(changed + bytes(room))
        starts = [0, *boundaries(log)]
        assert error.offset == max(start for start in starts if start <= place // 8)


@pytest.mark.parametrize("log", LOGS)
def test_a_changed_bit_in_reserved_room_costs_no_record(log: Log) -> None:
    data = b"".join(log)
    for changed in flips(bytes(2 * SECTOR_BYTES)):
        found = prefix_or_corrupt(data + changed)
        assert found is None or found.end_offset == len(data)


@pytest.mark.parametrize("log", LOGS)
def test_no_changed_byte_makes_a_wrong_record(log: Log) -> None:
    data = b"".join(log)
    for place in range(len(data)):
        for byte in (0x00, 0xFF, 0x59, 0xA6, 0xE7, data[place] ^ 0x11):
            prefix_or_corrupt(data[:place] + bytes([byte]) + data[place + 1 :])


def test_a_changed_bit_and_a_cut_make_no_wrong_record() -> None:
    data = b"".join(SEALED[:4])
    for changed in flips(data):
        for cut in range(0, len(data), 3):
            prefix_or_corrupt(changed[:cut])


def test_a_changed_bit_in_a_sealed_record_of_zeros_is_corrupt() -> None:
    zeros = encode_entry(FIRST, bytes(3 * SECTOR_BYTES), SALT)
    data = bytearray(HEADER + zeros + encode_seal(FIRST, SALT))
    data[HEADER_BYTES + 1_000] ^= 1
    assert "were synced" in corrupt(bytes(data)).reason


def test_an_unsealed_record_of_zeros_with_a_changed_bit_counts_as_torn() -> None:
    # The stated exception: it cannot be told from a sector that was not written.
    zeros = encode_entry(FIRST, bytes(3 * SECTOR_BYTES), SALT)
    data = bytearray(HEADER + zeros)
    data[HEADER_BYTES + 100] ^= 1
    assert scan(bytes(data), FIRST).state == "torn"
    with pytest.raises(CorruptError):
        scan(bytes(data), FIRST, confirmed_tick=FIRST)


# -- entries that are good, in the wrong place


@pytest.mark.parametrize(
    ("log", "tick", "reason"),
    [
        ([HEADER, RECORDS[1]], 5, "tick 6 is in its place"),
        ([HEADER, RECORDS[0], RECORDS[0]], 6, "tick 5 is in its place"),
        ([HEADER, RECORDS[0], RECORDS[2], RECORDS[3]], 6, "tick 7 is in its place"),
        ([HEADER, encode_seal(5, SALT)], 5, "up to 5 were confirmed, and it is missing"),
        ([HEADER, RECORDS[0], encode_seal(9, SALT)], 6, "up to 9 were confirmed"),
        ([HEADER, RECORDS[0], encode_entry(6, b"x", SALT + 1)], 6, "changed after it was"),
        ([HEADER, RECORDS[0][:18], RECORDS[1]], 5, "changed after it was written"),
        ([HEADER, LONG[:90], RECORDS[1], RECORDS[2]], 5, "missing between it and tick 6"),
        ([HEADER, LONG[:90], RECORDS[1], bytes(900)], 5, "missing between it and tick 6"),
        ([HEADER, RECORDS[0], HEADER, RECORDS[1]], 6, "changed after it was written"),
        ([RECORDS[0]], 5, "not a segment of a log"),
        ([b"anabrlo_"], 5, "not a segment of a log"),
        ([bytes(HEADER_BYTES), *RECORDS], 5, "not a segment of a log"),
        ([HEADER[:12], bytes(HEADER_BYTES - 12), *RECORDS], 5, "the header of the segment"),
    ],
)
def test_what_cannot_be_is_corrupt(log: Log, tick: int, reason: str) -> None:
    error = corrupt(b"".join(log))
    assert error.tick == tick
    assert reason in error.reason


def test_a_segment_of_other_ticks_is_corrupt() -> None:
    assert "begins with tick 5" in corrupt(b"".join(SEALED), first_tick=4).reason


def test_a_later_format_is_refused_and_not_called_corrupt() -> None:
    from anabranch.store import segment

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "FORMAT_VERSION", 3)
        later = segment_header(FIRST)
    with pytest.raises(
        LocalError, match="segment has format 3, this program supports only formats up to 2"
    ) as caught:
        scan(later, FIRST)
    assert not isinstance(caught.value, CorruptError)


# -- what is known from elsewhere


@pytest.mark.parametrize("log", LOGS)
def test_confirmed_ticks_that_are_missing_make_any_cut_corrupt(log: Log) -> None:
    data = b"".join(log)
    confirmed = FIRST - 1 + boundaries(log)[len(data)]
    assert scan(data, FIRST, confirmed_tick=confirmed).state == "whole"
    for cut in range(len(data)):
        left = prefix_or_corrupt(data[:cut])
        assert left is not None
        if left.last_tick < confirmed:
            assert corrupt(data[:cut], confirmed_tick=confirmed).tick == left.last_tick + 1


def test_the_error_says_where_and_what_to_do() -> None:
    data = bytearray(b"".join(SEALED))
    data[HEADER_BYTES + 20] ^= 1
    with pytest.raises(CorruptError) as caught:
        scan(bytes(data), FIRST, path="log/5.segment")
    assert str(caught.value) == (
        "the log is corrupt: log/5.segment, byte 31, tick 5: it cannot be read, though ticks up"
        " to 8 were synced. The file was left as it is. Put a good copy in its place; or give"
        " up this tick and all later ones with `anabranch log repair log/5.segment`"
    )


# -- bodies that look like a log


def test_a_torn_body_that_holds_foreign_entries_is_torn() -> None:
    forged = b"".join([encode_entry(6, b"x"), encode_seal(6), segment_header(6)]) * 20
    past = b"".join([HEADER, RECORDS[0], encode_seal(5, SALT)]) * 20
    log = [HEADER, RECORDS[0], encode_seal(5, SALT), encode_entry(6, forged + past, SALT)]
    data = b"".join(log)
    cut = sum(map(len, log[:3]))
    for end in range(cut + 1, len(data)):
        found = scan(data[:end], FIRST)
        assert (found.state, found.end_offset) == ("torn", cut)
    hole = 3 * SECTOR_BYTES
    holed = data[: hole - SECTOR_BYTES] + bytes(SECTOR_BYTES) + data[hole:]
    assert scan(holed, FIRST).end_offset == cut


def test_a_record_without_bound_is_refused() -> None:
    class Endless(bytes):
        def __len__(self) -> int:
            return 2**32

    with pytest.raises(LocalError, match="a record of 4294967296 bytes is too large"):
        encode_entry(1, Endless())
