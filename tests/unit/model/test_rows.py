"""Rows: what is written is read, and what is none is refused."""

import pytest

from anabranch.model.encoding import ROW_HEAD_BYTES, encode_row, rows_in
from anabranch.model.errors import RemoteError

ROWS = [(1, 0, b"one"), (2**62, 2**63 - 1, b""), (2**62 + 1, 7, b"x" * 300)]


def test_rows_come_back_in_order() -> None:
    assert [*rows_in(b"".join(encode_row(*row) for row in ROWS))] == ROWS
    assert [*rows_in(b"")] == []


def test_numbers_are_little_endian() -> None:
    row = encode_row(1, 2, b"abc")
    assert row == bytes.fromhex("0100000000000000 0200000000000000 03000000") + b"abc"
    assert len(row) == ROW_HEAD_BYTES + 3


def test_rows_that_end_early_are_refused_wherever_they_are_cut() -> None:
    whole = b"".join(encode_row(*row) for row in ROWS)
    ends = {len(encode_row(*ROWS[0])), len(encode_row(*ROWS[0]) + encode_row(*ROWS[1]))}
    for size in range(1, len(whole)):
        if size not in ends:
            with pytest.raises(RemoteError, match=f"rows of {size} bytes end in"):
                [*rows_in(whole[:size])]
