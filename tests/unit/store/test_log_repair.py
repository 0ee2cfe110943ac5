"""Repairing a corrupt log: what is before the damage stays, no byte goes, no tick comes twice."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.core.origin.log_tail import (
    BlankRecord,
    EventRecord,
    decode_record,
    encode_record,
)
from anabranch.model.errors import LocalError
from anabranch.store.log import LogOptions
from anabranch.store.log_repair import Repair, RepairPlan
from anabranch.store.segment import CorruptError, scan
from anabranch.store.store import Store, StoreOptions
from tests.store_parts import Ears, quick_directory, segments_of

TICKS = 7
OPTIONS = StoreOptions(log=LogOptions(segment_bytes=110, reserve_bytes=128))


def record_of(tick: int) -> bytes:
    return encode_record(EventRecord(tick * 1_000, b"body" * 5))


def opened(state: Path) -> Store:
    return Store.open(state, network="n", broker="b", options=OPTIONS, listener=Ears())


@pytest.fixture
def state() -> Iterator[Path]:
    with quick_directory() as place:
        path = place / "s"
        ears = Ears()
        store = Store.open(path, network="n", broker="b", options=OPTIONS, listener=ears)
        for tick in range(1, TICKS + 1):
            store.append(tick, record_of(tick))
            store.sync(tick)
            ears.wait_synced(tick)
        store.close()
        assert [int(segment.stem) for segment in segments_of(path)] == [1, 3, 5, 7]
        yield path


def damage(path: Path, offset: int) -> bytes:
    """Change a byte; what the file held before."""
    data = path.read_bytes()
    path.write_bytes(data[:offset] + bytes([data[offset] ^ 0x40]) + data[offset + 1 :])
    return data


def repaired(path: Path) -> tuple[RepairPlan, list[Path]]:
    work = Repair(path)
    try:
        plan = work.plan()
        assert plan is not None
        return plan, work.perform(plan)
    finally:
        work.close()


def check_reopened(state: Path, kept: int, last: int = TICKS) -> None:
    """Ticks up to `kept` are as they were, later ones up to `last` are given up."""
    store = opened(state)
    records = [decode_record(record) for record in store.recovered.records]
    store.close()
    assert store.notes == []
    assert len(records) == last
    for tick, record in enumerate(records, 1):
        if tick <= kept:
            assert encode_record(record) == record_of(tick)
        else:
            assert isinstance(record, BlankRecord)
    times = [record.time_ns for record in records]
    assert times == sorted(times)


def test_a_good_log_needs_no_repair(state: Path) -> None:
    work = Repair(state)
    assert work.plan() is None
    work.close()
    check_reopened(state, TICKS)


@pytest.mark.parametrize("tick", range(1, TICKS + 1))
def test_damage_of_any_record_gives_up_its_tick_and_all_later_ones(state: Path, tick: int) -> None:
    path = segments_of(state)[(tick - 1) // 2]
    offset = scan(path.read_bytes(), int(path.stem)).offsets[(tick - 1) % 2]
    before = {each: each.read_bytes() for each in segments_of(state)}
    damage(path, offset + 20)
    damaged = path.read_bytes()
    with pytest.raises(CorruptError) as caught:
        opened(state)
    plan, kept = repaired(Path(caught.value.path))
    assert (plan.path, plan.offset, plan.tick) == (path, offset, tick)
    assert (plan.last_tick, plan.lost_ticks) == (TICKS, TICKS - tick + 1)
    assert plan.later == [each for each in before if each > path]
    assert [each.read_bytes() for each in kept] == [
        damaged[offset:],
        *(before[each] for each in plan.later),
    ]
    check_reopened(state, tick - 1)


def test_a_damaged_header_gives_up_the_segment_and_all_later_ones(state: Path) -> None:
    for number, path in reversed([*enumerate(segments_of(state))]):
        damage(path, 12)
        plan, _ = repaired(state)
        assert (plan.offset, plan.tick) == (0, 2 * number + 1)
        check_reopened(state, 2 * number)


def test_damage_behind_the_last_record_of_a_full_segment_costs_nothing(state: Path) -> None:
    path = segments_of(state)[1]
    damage(path, path.stat().st_size - 1)
    plan, kept = repaired(path)
    assert (plan.lost_ticks, plan.later, len(kept)) == (0, [], 1)
    store = opened(state)
    assert store.recovered.records == tuple(record_of(tick) for tick in range(1, TICKS + 1))
    store.close()


@pytest.mark.parametrize("number", [1, 3])
def test_a_missing_segment_gives_up_what_it_held(state: Path, number: int) -> None:
    path = segments_of(state)[number]
    path.unlink()
    with pytest.raises(CorruptError) as caught:
        opened(state)
    repaired(Path(caught.value.path))
    check_reopened(state, 2 * number)


def test_a_missing_end_that_the_catalog_knows_is_given_up(state: Path) -> None:
    path = segments_of(state)[-1]
    data = path.read_bytes()
    path.write_bytes(data[:35])
    plan, _ = repaired(path)
    assert (plan.tick, plan.last_tick) == (TICKS, TICKS)
    check_reopened(state, TICKS - 1)


def test_a_repair_that_was_interrupted_can_be_done_again(state: Path) -> None:
    path = segments_of(state)[0]
    damage(path, 80)
    work = Repair(path)
    plan = work.plan()
    assert plan is not None
    # It ends when the first of the later segments cannot be moved.
    (gone,) = [each for each in plan.later if int(each.stem) == 5]
    gone.rename(gone.with_suffix(".elsewhere"))
    with pytest.raises(FileNotFoundError):
        work.perform(plan)
    work.close()
    plan, _ = repaired(state)
    assert plan.last_tick == TICKS
    check_reopened(state, 1)


def test_repairing_twice_overwrites_nothing(state: Path) -> None:
    path = segments_of(state)[0]
    kept = []
    for offset in (110, 80):
        damage(path, offset)
        kept += repaired(path)[1]
    assert len({*kept}) == len(kept)
    assert all(each.exists() for each in kept)


def test_a_log_in_use_is_not_repaired(state: Path) -> None:
    store = opened(state)
    with pytest.raises(LocalError, match="is in use by process"):
        Repair(state)
    store.close()


def test_a_segment_that_is_not_the_first_damaged_one_is_refused(state: Path) -> None:
    first, second, *_ = segments_of(state)
    for path in (first, second):
        damage(path, 60)
    work = Repair(second)
    with pytest.raises(LocalError, match=f"the first damage is not in {second}, but in {first}"):
        work.plan()
    work.close()


def test_a_path_outside_a_state_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="is not in a state directory"):
        Repair(tmp_path / "x" / "y.segment")
