"""A snapshot that is damaged in any way is refused, by an error that says what is wrong with it."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from anabranch.matching.index import MatchIndex
from anabranch.matching.snapshot import FORMAT, Contents, SnapshotError

HEAD_BYTES = 40


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    index = MatchIndex(engine="numba")
    for number in range(700):
        index.add(number, f"s = 'k' AND x > {number % 50}", destination=number % 3)
    index.add("residue", "x > y OR s LIKE 'ab%c_'")
    place = tmp_path_factory.mktemp("sound") / "snapshot"
    index.save(place)
    return place.read_bytes()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "copy"


def refused(place: Path, content: bytes, *, verify: bool = True) -> str:
    place.write_bytes(content)
    with pytest.raises(SnapshotError) as caught:
        MatchIndex.load(place, verify=verify)
    said = str(caught.value)
    assert str(place) in said
    return said


def contents_of(content: bytes) -> Contents:
    length = struct.unpack_from("<I", content, 20)[0]
    return msgspec.json.decode(content[HEAD_BYTES : HEAD_BYTES + length], type=Contents)


def with_contents(content: bytes, told: object) -> bytes:
    """The file with other contents, no longer than before, and the right checksums."""
    length = struct.unpack_from("<I", content, 20)[0]
    text = msgspec.json.encode(told)
    assert len(text) <= length
    head = content[:20] + struct.pack("<I", len(text)) + content[24:32]
    head += struct.pack("<I", zlib.crc32(text))
    behind = content[HEAD_BYTES + length :]
    return head + struct.pack("<I", zlib.crc32(head)) + text.ljust(length, b"\0") + behind


def test_copy_of_a_sound_snapshot_is_sound(place: Path, sound: bytes) -> None:
    place.write_bytes(sound)
    assert MatchIndex.load(place).match({"s": "k", "x": 0, "y": -1}) == ["residue"]
    place.write_bytes(with_contents(sound, contents_of(sound)))
    assert len(MatchIndex.load(place)) == 701


@pytest.mark.parametrize("verify", [True, False])
def test_file_that_is_cut_off_is_refused(place: Path, sound: bytes, verify: bool) -> None:
    for size in (HEAD_BYTES, HEAD_BYTES + 100, len(sound) // 2, len(sound) - 1):
        assert "it is not whole" in refused(place, sound[:size], verify=verify)
    assert "it is not whole" in refused(place, sound + b"\0", verify=verify)


@pytest.mark.parametrize("content", [b"", b"text", b"\0" * 4_096, b"anabranch index\n", b"{}" * 99])
def test_file_that_is_no_snapshot_is_refused(place: Path, content: bytes) -> None:
    assert "is not a snapshot of an index" in refused(place, content)


def test_every_flipped_bit_is_found_by_a_checksum(place: Path, sound: bytes) -> None:
    parts = contents_of(sound).parts
    for part in parts:
        if part.count:
            spot = part.first + 1
            said = refused(place, sound[:spot] + bytes([sound[spot] ^ 4]) + sound[spot + 1 :])
            assert f"the checksum of part {part.name} differs" in said
    assert len(parts) > 30


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("spot", [24, 30, 33, 37, HEAD_BYTES, HEAD_BYTES + 200])
def test_flipped_bit_of_the_head_or_the_contents_is_found_always(
    place: Path, sound: bytes, spot: int, verify: bool
) -> None:
    said = refused(
        place, sound[:spot] + bytes([sound[spot] ^ 4]) + sound[spot + 1 :], verify=verify
    )
    assert "is damaged" in said


def test_other_format_is_refused_and_says_what_to_do(place: Path, sound: bytes) -> None:
    said = refused(place, sound[:16] + struct.pack("<I", FORMAT + 1) + sound[20:])
    assert f"of format {FORMAT + 1}" in said
    assert f"reads format {FORMAT}" in said
    assert "write it again" in said


@pytest.mark.parametrize(
    "change",
    [
        lambda part: msgspec.structs.replace(part, count=part.count + 1),
        lambda part: msgspec.structs.replace(part, count=-1),
        lambda part: msgspec.structs.replace(part, count=1 << 40),
        lambda part: msgspec.structs.replace(part, first=part.first + 8),
        lambda part: msgspec.structs.replace(part, first=-64),
        lambda part: msgspec.structs.replace(part, type="f8"),
        lambda part: msgspec.structs.replace(part, type="u8"),
    ],
    ids=["longer", "negative", "huge", "askew", "before", "unknown type", "other type"],
)
def test_part_that_is_described_wrongly_is_refused(
    place: Path, sound: bytes, change: Callable[[object], object]
) -> None:
    told = contents_of(sound)
    for number in range(2):
        parts = [change(part) if i == number else part for i, part in enumerate(told.parts)]
        content = with_contents(
            sound, {**msgspec.structs.asdict(told), "parts": parts, "names": []}
        )
        said = refused(place, content, verify=False)
        assert "damaged" in said or "another version" in said


def test_missing_part_is_named(place: Path, sound: bytes) -> None:
    told = contents_of(sound)
    for part in told.parts:
        rest = [each for each in told.parts if each is not part]
        said = refused(place, with_contents(sound, msgspec.structs.replace(told, parts=rest)))
        assert part.name in said


@pytest.mark.parametrize("told", [[], 7, {}, {"parts": 7}, {"names": [], "parts": [[]]}])
def test_contents_that_are_none_are_refused(place: Path, sound: bytes, told: object) -> None:
    assert "its contents say nothing" in refused(place, with_contents(sound, told))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="nowhere cannot be read"):
        MatchIndex.load(tmp_path / "nowhere")


def test_directory_is_no_snapshot(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="is a directory; a snapshot is one file"):
        MatchIndex.load(tmp_path)
