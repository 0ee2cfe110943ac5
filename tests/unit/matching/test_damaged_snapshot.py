"""A snapshot that is damaged in any way is refused, by an error that names the file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from anabranch.matching.index import MatchIndex
from anabranch.matching.snapshot import SnapshotError


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    index = MatchIndex(engine="numba")
    for number in range(700):
        index.add(number, f"s = 'k' AND x > {number % 50}", destination=number % 3)
    index.add("residue", "x > y OR s LIKE 'ab%c_'")
    place = tmp_path_factory.mktemp("sound") / "snapshot"
    index.save(place)
    return place


@pytest.fixture
def place(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "copy"))


def refused(place: Path, *, verify: bool = True) -> str:
    with pytest.raises(SnapshotError) as caught:
        MatchIndex.load(place, verify=verify)
    return str(caught.value)


def array_names(place: Path) -> list[str]:
    return sorted(file.name for file in place.glob("*.npy"))


def test_copy_of_a_sound_snapshot_is_sound(place: Path) -> None:
    assert MatchIndex.load(place).match({"s": "k", "x": 0, "y": -1}) == ["residue"]


@pytest.mark.parametrize("verify", [True, False])
def test_missing_array_is_named(place: Path, verify: bool) -> None:
    for name in array_names(place):
        content = (place / name).read_bytes()
        (place / name).unlink()
        assert name in refused(place, verify=verify)
        (place / name).write_bytes(content)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:40],
        lambda content: content[:-8],
        lambda content: b"not an array",
        lambda content: b"\0" * len(content),
    ],
    ids=["empty", "header cut", "end cut", "garbage", "zeros"],
)
def test_cut_array_is_named(place: Path, damage: Callable[[bytes], bytes], verify: bool) -> None:
    for name in array_names(place):
        content = (place / name).read_bytes()
        if len(np.load(place / name)) == 0 and damage(content) == content[:-8]:
            continue
        (place / name).write_bytes(damage(content))
        assert name in refused(place, verify=verify)
        (place / name).write_bytes(content)


def test_flipped_bit_is_found_by_the_checksum(place: Path) -> None:
    for name in array_names(place):
        content = bytearray((place / name).read_bytes())
        content[-1] ^= 1
        (place / name).write_bytes(content)
        assert refused(place) == f"{place / name} is damaged: its checksum differs"
        content[-1] ^= 1
        (place / name).write_bytes(content)


@pytest.mark.parametrize("change", [np.int64, np.float64, np.uint8])
def test_array_of_another_type_is_named(place: Path, change: type) -> None:
    for name in array_names(place):
        array = np.load(place / name)
        if array.dtype == change or len(array) == 0:
            continue
        np.save(place / name, array.astype(change))
        assert name in refused(place, verify=False)
        np.save(place / name, array)


def test_longer_array_is_named(place: Path) -> None:
    for name in array_names(place):
        array = np.load(place / name)
        np.save(place / name, np.concatenate((array, array[:1], np.zeros(1, array.dtype))))
        said = refused(place, verify=False)
        assert name in said or "another version" in said
        np.save(place / name, array)


def test_missing_contents_are_named(place: Path) -> None:
    (place / "index.json").unlink()
    assert "index.json" in refused(place)


def test_missing_directory_is_named(tmp_path: Path) -> None:
    assert "nowhere" in refused(tmp_path / "nowhere")


def test_file_is_no_snapshot(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    assert "file" in refused(tmp_path / "file")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "7", '"text"', "{}", '{"format": null}', "\ud7ff", "[" * 9_999]
)
def test_contents_that_are_none_are_named(place: Path, text: str) -> None:
    (place / "index.json").write_text(text, encoding="utf-8")
    assert str(place) in refused(place)


def test_contents_that_are_no_text_are_named(place: Path) -> None:
    (place / "index.json").write_bytes(b"\xff\xfe\0")
    assert str(place) in refused(place)


def test_other_format_is_refused(place: Path) -> None:
    contents = json.loads((place / "index.json").read_text())
    contents["format"] = "anabranch-match-index-0"
    (place / "index.json").write_text(json.dumps(contents))
    said = refused(place)
    assert str(place) in said
    assert "anabranch-match-index" in said


@pytest.mark.parametrize("key", ["names", "axes", "texts", "ids", "doubts", "groups", "checksums"])
@pytest.mark.parametrize("wrong", ["missing", 7, "text", [7], [["a", "b", "c"]]])
def test_wrong_part_of_the_contents_is_refused(place: Path, key: str, wrong: object) -> None:
    contents = json.loads((place / "index.json").read_text())
    if wrong == "missing":
        del contents[key]
    else:
        contents[key] = wrong
    (place / "index.json").write_text(json.dumps(contents))
    for verify in (True, False):
        assert str(place) in refused(place, verify=verify)


@pytest.mark.parametrize(
    ("old", "new"), [('"residue"', '"Residue"'), ("[5, 5]", "[5, 6]"), ('"k"', '"j"')]
)
def test_changed_contents_are_found_by_the_checksum(place: Path, old: str, new: str) -> None:
    text = (place / "index.json").read_text()
    assert text.count(old) >= 1
    (place / "index.json").write_text(text.replace(old, new))
    assert "index.json" in refused(place)
