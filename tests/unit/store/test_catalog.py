"""The catalog: what large values take on disk and leave when they are gone; damaged rows."""

import sqlite3
from pathlib import Path
from zlib import crc32

import pytest

from anabranch.model.errors import LocalError
from anabranch.store.catalog import Catalog, LogFacts

_ROW = bytes(100_000)
_COUNT = 60


def journal_bytes(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


def test_forgetting_large_values_takes_no_room_and_what_they_leave_is_counted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "catalog.sqlite"
    catalog = Catalog(path)
    for number in range(_COUNT):
        catalog.commit([("stage", f"t{number}", _ROW)], LogFacts())
    assert catalog.unused_bytes < len(_ROW)
    before = journal_bytes(path)
    catalog.commit([("stage", f"t{number}", None) for number in range(_COUNT)], LogFacts())
    assert journal_bytes(path) - before < len(_ROW) * _COUNT // 4
    left = catalog.unused_bytes
    assert left > len(_ROW) * _COUNT * 9 // 10
    catalog.close()
    size = path.stat().st_size
    again = Catalog(path)
    assert again.unused_bytes == left
    again.commit([("stage", f"u{number}", _ROW) for number in range(_COUNT // 2)], LogFacts())
    assert again.unused_bytes < left
    again.close()
    assert path.stat().st_size == size


# -- damage

#: name, key, value, crc as sqlite is told; and what the catalog says of it.
ODD_ROWS = [
    ("'t'", "'k'", "'text'", "0", ("t", "k", b"text", "type")),
    ("'t'", "'k'", "7", "0", ("t", "k", b"7", "type")),
    ("'t'", "x'6b'", "x'00'", "0", ("t", "k", b"\0", "type")),
    ("x'ff'", "'k'", "x'00'", "0", ("\\xff", "k", b"\0", "type")),
    ("'t'", "CAST(x'ff' AS TEXT)", "x'00'", "0", ("t", "\\xff", b"\0", "not text")),
    ("'t'", "'k'", "x'00'", "'crc'", ("t", "k", b"\0", "was changed")),
    ("'t'", "'k'", "x'00'", "1", ("t", "k", b"\0", "was changed")),
]


@pytest.mark.parametrize("row", ODD_ROWS)
def test_a_damaged_row_is_told_apart_and_can_be_deleted_or_replaced(
    tmp_path: Path, row: tuple[str, str, str, str, tuple[str, str, bytes, str]]
) -> None:
    *parts, told = row
    path = tmp_path / "catalog.sqlite"
    catalog = Catalog(path)
    catalog.commit([("t", "good", b"value")], LogFacts())
    catalog.close()
    for instead in (None, b"instead"):
        connection = sqlite3.connect(path)
        connection.execute(f"INSERT INTO entry VALUES ({', '.join(map(str, parts))})")
        connection.commit()
        connection.close()
        found = Catalog(path)
        assert found.tables == {"t": {"good": b"value"}}
        (damaged,) = found.damaged
        assert (damaged.table, damaged.key, damaged.value) == tuple(told[:3])
        assert str(told[3]) in damaged.reason
        found.commit([(damaged.table, damaged.key, instead)], LogFacts())
        found.close()
        again = Catalog(path)
        assert again.damaged == []
        rest = {} if instead is None else {(damaged.table, damaged.key): instead}
        rows = {(t, k): v for t, keys in again.tables.items() for k, v in keys.items()}
        assert rows == {("t", "good"): b"value", **rest}
        again.close()


def test_two_damaged_rows_that_read_alike_are_two(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    Catalog(path).close()
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO entry VALUES ('t', 'k', x'00', 1), ('t', x'6b', x'01', 1)")
    connection.commit()
    connection.close()
    catalog = Catalog(path)
    assert {(each.key, each.value) for each in catalog.damaged} in (
        {("k", b"\0"), ("k'", b"\1")},
        {("k'", b"\0"), ("k", b"\1")},
    )
    catalog.commit([(each.table, each.key, None) for each in catalog.damaged], LogFacts())
    catalog.close()
    again = Catalog(path)
    assert (again.tables, again.damaged) == ({}, [])
    again.close()


@pytest.mark.parametrize("value", ["'text'", "-1", "x'00'"])
def test_facts_about_the_log_that_are_no_numbers_are_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "catalog.sqlite"
    Catalog(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE log SET synced = {value}")
    connection.commit()
    connection.close()
    with pytest.raises(LocalError, match="is corrupt: its facts about the log"):
        Catalog(path)


def test_a_page_that_sqlite_cannot_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    catalog = Catalog(path)
    catalog.commit([("t", f"k{number}", bytes(500)) for number in range(100)], LogFacts())
    catalog.close()
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 100] = b"\xff" * 100
    path.write_bytes(data)
    with pytest.raises(LocalError, match=r"cannot be read: .*; put a good copy in its place"):
        Catalog(path)


def test_a_row_as_it_was_written_is_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    catalog = Catalog(path)
    catalog.commit([("t", "a\0ü\u20ac", b"\xff")], LogFacts())
    catalog.close()
    crc = crc32(b"\xff", crc32("t\0a\0ü\u20ac".encode()))
    row = sqlite3.connect(path).execute("SELECT crc FROM entry").fetchone()
    assert row == (crc,)
    again = Catalog(path)
    assert (again.tables, again.damaged) == ({"t": {"a\0ü\u20ac": b"\xff"}}, [])
    again.close()
