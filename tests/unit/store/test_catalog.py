"""The catalog: what large values take on disk, and what they leave when they are gone."""

from pathlib import Path

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
