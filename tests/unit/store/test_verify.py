"""Verifying and viewing a log from outside: everything is looked at, nothing is changed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.model.errors import LocalError
from anabranch.store.log import read_records, records_after, tick_at_time
from anabranch.store.log_repair import verify
from anabranch.store.log_view import locate, segments
from anabranch.store.segment import CorruptError, decode_index, encode_index
from tests.store_parts import Bench, body_of, quick_directory, segments_of, time_of

TICKS = 9


@pytest.fixture
def state() -> Iterator[Path]:
    with quick_directory() as place:
        bench = Bench(place / "s")
        for _ in range(TICKS):
            bench.write()
        bench.store.close()
        yield place / "s"


def test_a_good_log_is_good_with_its_catalog_and_as_a_plain_copy(state: Path) -> None:
    for path in (state, state / "log"):
        found = verify(locate(path), time_of)
        assert (found.records, found.first_tick, found.last_tick) == (TICKS, 1, TICKS)
        assert found.findings == []
        assert found.segments == len(segments_of(state))
    copy = state.parent / "copy"
    copy.mkdir()
    for path in segments_of(state)[1:]:
        (copy / path.name).write_bytes(path.read_bytes())
    assert locate(copy).state_directory is None
    assert verify(locate(copy), time_of).records == TICKS - 2


def test_the_log_of_a_running_broker_can_be_seen_and_verified(state: Path) -> None:
    bench = Bench(state)
    for count in range(1, 20):
        bench.write()
        pieces = [piece for _, piece in segments(locate(state), time_of)]
        assert [*records_after(pieces, 1)] == [
            (tick, body_of(tick)) for tick in range(1, TICKS + count + 1)
        ]
        assert verify(locate(state), time_of).last_tick == TICKS + count
    bench.store.close()


def test_every_changed_byte_is_corrupt_with_its_place(state: Path) -> None:
    for path in segments_of(state):
        data = path.read_bytes()
        for place in range(len(data)):
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with pytest.raises(CorruptError) as caught:
                verify(locate(state), time_of)
            assert caught.value.path == str(path)
            assert caught.value.offset <= place
        path.write_bytes(data)


def test_missing_and_cut_segments_are_corrupt(state: Path) -> None:
    *_, last = segments_of(state)
    for path in segments_of(state)[1:]:
        data = path.read_bytes()
        path.unlink()
        with pytest.raises(CorruptError):
            verify(locate(state), time_of)
        for cut in (0, 40, len(data) - (23 if path == last else 22)):
            path.write_bytes(data[:cut])
            with pytest.raises(CorruptError):
                verify(locate(state), time_of)
        path.write_bytes(data)


def test_an_interrupted_write_at_the_end_is_a_finding(state: Path) -> None:
    path = segments_of(state)[-1]
    data = path.read_bytes()
    path.write_bytes(data + b"\xa6\0\0")
    assert verify(locate(state), time_of).findings == [
        f"{path}: an interrupted write at byte {len(data)}"
    ]


def test_an_index_that_does_not_agree_is_a_finding(state: Path) -> None:
    path, other, *_ = sorted((state / "log").glob("*.index"))
    data = path.read_bytes()
    index = decode_index(data)
    assert index is not None
    first, second = index.points
    wrong = {
        b"": "missing or damaged",
        data[:-1]: "missing or damaged",
        other.read_bytes(): "of another segment",
    }
    changes: dict[str, dict[str, object]] = {
        "of another segment": {"crc": index.crc ^ 1},
        "is not at byte": {"points": [first, type(first)(2, 99, 20)]},
        "has another time": {"points": [first, type(second)(2, second.offset, 21)]},
        "not in order": {"points": [first, first]},
    }
    for complaint, change in changes.items():
        fields = {name: getattr(index, name) for name in index.__struct_fields__}
        wrong[encode_index(type(index)(**{**fields, **change}))] = complaint
    for content, complaint in wrong.items():
        path.write_bytes(content)
        (finding,) = verify(locate(state), time_of).findings
        assert complaint in finding
        assert finding.startswith(str(path))


def test_a_time_is_found_in_the_segment_it_falls_in(state: Path) -> None:
    pieces = [piece for _, piece in segments(locate(state), time_of)]
    for time_ns in range(-5, 10 * TICKS + 15):
        expected = next((t for t in range(1, TICKS + 1) if 10 * t >= time_ns), TICKS + 1)
        assert tick_at_time(pieces, time_ns, time_of) == expected
    assert read_records(pieces, 3, 4, 10**6) == (body_of(3), body_of(4))


def test_what_is_no_log_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "half" / "log").mkdir(parents=True)
    for name, complaint in (
        ("file", "is not a directory"),
        ("missing", "is not a directory"),
        ("empty", "contains no log"),
        ("half", "is not a state directory"),
    ):
        with pytest.raises(LocalError, match=complaint):
            locate(tmp_path / name)
