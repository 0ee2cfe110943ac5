"""Snapshots: a saved index answers elsewhere as it did, and refuses to be changed."""

import subprocess
import sys
from collections.abc import Hashable
from pathlib import Path

import numpy as np
import pytest

from anabranch.matching.index import MatchIndex
from anabranch.matching.snapshot import SnapshotError
from anabranch.model.errors import LocalError
from anabranch.model.event import Value
from anabranch.model.limits import Limits
from tests.crowd_parts import STYLES, Crowd
from tests.matching_parts import VALUES, Watched

EVENT: dict[str, Value] = {"symbol": "IBM", "price": 49.5, "volume": 10}


def saved(index: MatchIndex, path: Path, *, verify: bool = True) -> MatchIndex:
    index.save(path)
    return MatchIndex.load(path, verify=verify)


def small_index() -> MatchIndex:
    index = MatchIndex(engine="numba")
    index.add(1, "symbol = 'IBM' AND price < 50", destination="east")
    index.add(2, "price > volume", destination="west")
    index.add(3, "symbol LIKE '%B%' OR price = 1")
    index.add(4, "x > 1 AND x < 1")
    return index


# -- the same answers


@pytest.mark.parametrize("verify", [True, False])
def test_loaded_index_answers_like_the_saved_one(tmp_path: Path, verify: bool) -> None:
    loaded = saved(small_index(), tmp_path / "snapshot", verify=verify)
    assert loaded.match(EVENT) == small_index().match(EVENT)
    assert loaded.match_batch([EVENT, {}]) == small_index().match_batch([EVENT, {}])
    assert list(loaded.match_batch(loaded.encode([EVENT]))) == [loaded.match(EVENT)]
    assert loaded.destinations(EVENT) == {"east", "west"}
    assert len(loaded) == 4
    assert 4 in loaded
    assert 5 not in loaded
    assert loaded.engine == "numba"


def test_empty_index_can_be_saved(tmp_path: Path) -> None:
    loaded = saved(MatchIndex(engine="numba"), tmp_path / "snapshot")
    assert loaded.match(EVENT) == []
    assert len(loaded) == 0


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_loaded_crowd_is_matched_exactly(tmp_path: Path, style: str) -> None:
    watched = Watched(["numba"])
    crowd = Crowd(style, seed=11, watched=watched)
    crowd.grow(1_500)
    crowd.shrink(700)
    crowd.grow(100)
    watched.indexes.append(saved(watched.indexes[0], tmp_path / "snapshot"))
    assert crowd.check()


def test_loaded_index_knows_every_kind_of_value(tmp_path: Path) -> None:
    watched = Watched(["numba"])
    forms = ["{} > 1", "{} = 9007199254740993", "{} <> 'a'", "{} LIKE 'abcdefgh%'", "{}"]
    forms += ["{} IS NULL", "{} > 'abcdefgh'", "{} + 1 > 2", "{} LIKE '%b'", "{} IN ('a', 2)"]
    for number, form in enumerate(forms):
        watched.add(number, form.format("p"), destination=number % 4)
        watched.add(f"text {number}", form.format("q"))
    watched.indexes.append(saved(watched.indexes[0], tmp_path / "snapshot"))
    assert watched.check([{"p": value} for value in VALUES] + [{"q": value} for value in VALUES])


def test_ids_come_back_wherever_their_entries_lie(tmp_path: Path) -> None:
    index = MatchIndex(engine="numba")
    index.add_many((number, "x = 1") for number in range(5_000))
    for number in range(4_990):
        index.remove(number)
    loaded = saved(index, tmp_path / "snapshot")
    assert sorted(loaded.match({"x": 1})) == list(range(4_990, 5_000))  # type: ignore[type-var]


def test_integer_and_text_ids_come_back_as_they_were(tmp_path: Path) -> None:
    ids: list[Hashable] = [0, -(2**63), 2**63 - 1, "", "é", "a\0b", "\ud800"]
    index = MatchIndex(engine="numba")
    for identity in ids:
        index.add(identity, "x = 1", destination=identity)
    loaded = saved(index, tmp_path / "snapshot")
    assert set(loaded.match({"x": 1})) == set(ids)
    assert loaded.destinations({"x": 1}) == set(ids)


def test_integer_ids_stay_an_array_of_integers(tmp_path: Path) -> None:
    index = MatchIndex(engine="numba")
    index.add_many((number, "x = 1") for number in range(9))
    assert saved(index, tmp_path / "snapshot").match_batch([{"x": 1}]).ids.dtype == np.int64


def test_filters_beyond_the_default_limits_come_back(tmp_path: Path) -> None:
    index = MatchIndex(engine="numba", limits=Limits(filter_depth_max=400, name_bytes_max=999))
    sum_of_many = "a" + " + b" * 200
    name = "n" * 600
    index.add(1, f"{sum_of_many} > 1")
    index.add(2, f"a < {name}")
    loaded = saved(index, tmp_path / "snapshot")
    assert loaded.match({"a": 1, "b": 1}) == [1]
    assert index.match({"a": 1, name: 2}) == [2]
    assert loaded.match({"a": 1, name: 2}) == [2]


def test_other_process_maps_the_snapshot_and_matches(tmp_path: Path) -> None:
    crowd = Crowd("equality", seed=3, watched=Watched(["numba"]))
    crowd.grow(1_000)
    index = crowd.watched.indexes[0]
    index.add("residue", "price > volume", destination="link")
    index.save(tmp_path / "snapshot")
    event: dict[str, Value] = {"symbol": "S1", "price": 20, "volume": 10.5}
    program = f"""
from anabranch.matching.index import MatchIndex
index = MatchIndex.load({str(tmp_path / "snapshot")!r})
print(index.match({event!r}))
print(sorted(map(str, index.destinations({event!r}))))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    links = sorted(map(str, index.destinations(event)))
    assert run.stdout.splitlines() == [str(index.match(event)), str(links)]
    assert "residue" in index.match(event)


def test_saved_index_goes_on_and_its_copy_does_not(tmp_path: Path) -> None:
    index = small_index()
    loaded = saved(index, tmp_path / "snapshot")
    index.add(5, "symbol = 'IBM'")
    index.remove(1)
    assert set(index.match(EVENT)) == {2, 3, 5}
    assert set(loaded.match(EVENT)) == {1, 2, 3}


# -- what is refused


def test_loaded_index_refuses_changes(tmp_path: Path) -> None:
    loaded = saved(small_index(), tmp_path / "snapshot")
    with pytest.raises(LocalError, match="is a snapshot of another one and cannot be changed"):
        loaded.add(9, "x = 1")
    with pytest.raises(LocalError, match="cannot be changed"):
        loaded.remove(1)
    assert len(loaded) == 4
    assert set(loaded.match(EVENT)) == {1, 2, 3}


def test_index_without_kernels_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="only an index with the numba engine"):
        MatchIndex(engine="numpy").save(tmp_path / "snapshot")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("identity", [("a", 1), 1.5, None, True, 2**63, b"bytes"])
def test_id_that_cannot_be_stored_is_refused(tmp_path: Path, identity: Hashable) -> None:
    index = MatchIndex(engine="numba")
    index.add(identity, "x = 1")
    with pytest.raises(SnapshotError, match="cannot be stored in a snapshot; use texts or int"):
        index.save(tmp_path / "snapshot")
    assert list(tmp_path.iterdir()) == []
    assert index.match({"x": 1}) == [identity]


def test_destination_that_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    index = MatchIndex(engine="numba")
    index.add(1, "x = 1", destination=("a", 1))
    with pytest.raises(SnapshotError, match="use texts or integers"):
        index.save(tmp_path / "snapshot")
    assert list(tmp_path.iterdir()) == []


# -- places


def test_snapshot_replaces_the_one_before(tmp_path: Path) -> None:
    small_index().save(tmp_path / "snapshot")
    other = MatchIndex(engine="numba")
    other.add("only", "price > 1")
    loaded = saved(other, tmp_path / "snapshot")
    assert loaded.match(EVENT) == ["only"]
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot"]


def test_reader_of_a_replaced_snapshot_goes_on(tmp_path: Path) -> None:
    first = saved(small_index(), tmp_path / "snapshot")
    MatchIndex(engine="numba").save(tmp_path / "snapshot")
    assert set(first.match(EVENT)) == {1, 2, 3}


def test_missing_parents_are_made(tmp_path: Path) -> None:
    assert saved(small_index(), tmp_path / "a" / "b" / "snapshot").match(EVENT)


def test_path_may_be_a_text(tmp_path: Path) -> None:
    small_index().save(str(tmp_path / "snapshot"))
    assert len(MatchIndex.load(str(tmp_path / "snapshot"))) == 4


def test_directory_in_the_place_of_a_snapshot_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "documents"
    place.mkdir()
    (place / "precious.txt").write_text("precious")
    with pytest.raises(SnapshotError, match="documents exists and is not a snapshot"):
        small_index().save(place)
    assert (place / "precious.txt").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["documents"]


def test_file_in_the_place_of_a_snapshot_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(SnapshotError, match="file exists and is not a snapshot"):
        small_index().save(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"


def test_snapshot_can_be_saved_again(tmp_path: Path) -> None:
    index = small_index()
    index.add("text", "volume = 10")
    once = saved(index, tmp_path / "once")
    once.save(tmp_path / "twice")
    assert set(MatchIndex.load(tmp_path / "twice").match(EVENT)) == {1, 2, 3, "text"}


def test_arrays_of_a_snapshot_are_mapped_and_not_copied(tmp_path: Path) -> None:
    index = MatchIndex(engine="numba")
    index.add_many((number, f"x = {number} AND y > 1") for number in range(2_000))
    loaded = saved(index, tmp_path / "snapshot")
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert str(tmp_path / "snapshot") in maps
    assert loaded.match({"x": 7, "y": 2}) == [7]


def test_one_conjunction_of_a_filter_in_doubt_is_decided_alone(tmp_path: Path) -> None:
    index = MatchIndex(engine="numba")
    index.add(1, "a + b > 3 AND c = 1 OR d = 1", place=0)
    events: list[dict[str, Value]] = [
        {"a": 1, "b": 1, "c": 1, "d": 1},
        {"a": 2, "b": 2, "c": 1, "d": 0},
    ]
    loaded = saved(index, tmp_path / "snapshot")
    for event in events:
        assert loaded.match(event) == index.match(event)
    places = {index.match(event) == [1] for event in events}
    assert places == {True, False}
