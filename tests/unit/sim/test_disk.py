"""The simulated disk keeps what was synced, and of the rest a beginning."""

from random import Random

from anabranch.core.contract import RecoveredCopy
from anabranch.sim.disk import Disk


def test_what_was_synced_survives_every_crash() -> None:
    for seed in range(50):
        disk = Disk()
        for tick in range(1, 131):
            disk.append(tick, b"record %d" % tick)
        disk.put("t", "k", b"old")
        disk.sync(disk.mark())
        for tick in range(131, 141):
            disk.append(tick, b"record %d" % tick)
        disk.put("t", "k", b"new")
        disk.put("t", "k", None)
        disk.crash(Random(seed))
        found = disk.recover()
        assert len(found.records) >= 130
        assert list(found.records) == [b"record %d" % t for t in range(1, len(found.records) + 1)]
        assert found.catalog["t"].get("k") in {b"old", b"new", None}


def test_crashes_do_lose_what_was_not_synced() -> None:
    kept = set()
    for seed in range(50):
        disk = Disk()
        for tick in range(1, 11):
            disk.append(tick, b"x" * 20)
        disk.crash(Random(seed))
        kept.add(len(disk.recover().records))
    assert min(kept) == 0
    assert len(kept) > 3


def test_a_log_goes_on_after_a_tear() -> None:
    disk = Disk()
    disk.append(1, b"one")
    disk.sync(disk.mark())
    disk.append(2, b"two")
    disk.crash(Random(3))
    head = len(disk.recover().records)
    disk.append(head + 1, b"again")
    disk.sync(disk.mark())
    disk.crash(Random(4))
    assert disk.recover().records[-1] == b"again"
    assert disk.head() == head + 1


def test_only_whole_segments_are_forgotten() -> None:
    disk = Disk()
    for tick in range(1, 201):
        disk.append(tick, b"x")
    disk.sync(disk.mark())
    disk.forget(100)
    found = disk.recover()
    assert found.first_tick == 65
    assert len(found.records) == 136


# -- copies


def kept(disk: Disk) -> Disk:
    """Ten synced records of a copy that begins with tick 7."""
    disk.open_copy("x", 7)
    append(disk, 7, 16)
    disk.sync(disk.mark())
    return disk


def append(disk: Disk, first: int, last: int) -> None:
    for tick in range(first, last + 1):
        disk.append(tick, b"copy %d" % tick, "x")


def test_each_log_keeps_what_was_synced_and_a_beginning_of_the_rest_by_itself() -> None:
    ends = set()
    for seed in range(80):
        disk = kept(Disk())
        for tick in range(1, 11):
            disk.append(tick, b"own %d" % tick)
        append(disk, 17, 90)
        disk.crash(Random(seed))
        found = disk.recover()
        assert found.lost_copies == ()
        copy = found.copies["x"]
        assert copy.first_tick == 7
        assert 16 <= copy.last_tick <= 90
        assert disk.read(7, 90, 10**9, "x") == tuple(
            b"copy %d" % tick for tick in range(7, copy.last_tick + 1)
        )
        ends.add((len(found.records), copy.last_tick))
    assert len({own for own, _ in ends}) > 3
    assert len({copy for _, copy in ends}) > 20
    assert len(ends) > 60


def test_openings_drops_and_puts_survive_as_a_beginning_of_their_sequence() -> None:
    seen = set()
    for seed in range(200):
        disk = kept(Disk())
        append(disk, 17, 18)
        disk.put("t", "k", b"1")
        disk.drop_copy("x")
        disk.put("t", "k", b"2")
        disk.open_copy("x", 100)
        append(disk, 100, 103)
        disk.put("t", "k", b"3")
        disk.crash(Random(seed))
        found = disk.recover()
        copy, put = found.copies.get("x"), found.catalog.get("t", {}).get("k", b"0")
        if copy is None:
            assert put in {b"1", b"2"}
        elif copy.first_tick == 7:
            assert copy.last_tick >= 16
            assert put in {b"0", b"1"}
        else:
            assert copy.first_tick == 100
            assert put in {b"2", b"3"}
        seen.add((put, None if copy is None else copy.first_tick))
    assert len(seen) == 6


def test_a_copy_that_was_dropped_and_synced_is_gone() -> None:
    disk = kept(Disk())
    disk.drop_copy("x")
    assert disk.read(7, 16, 10**9, "x") == ()
    disk.sync(disk.mark())
    disk.crash(Random(1))
    assert disk.recover().copies == {}


def test_a_damaged_copy_is_lost_until_it_is_dropped_or_opened() -> None:
    for seed in range(50):
        disk = kept(Disk())
        assert disk.damage_copy("x", Random(seed))
        for _ in range(2):
            disk.crash(Random(seed))
            found = disk.recover()
            assert (found.copies, found.lost_copies) == ({}, ("x",))
        if seed % 2:
            disk.drop_copy("x")
        disk.open_copy("x", 3)
        disk.sync(disk.mark())
        found = disk.recover()
        assert (found.copies, found.lost_copies) == ({"x": RecoveredCopy(3, 2)}, ())
    assert not disk.damage_copy("x", Random(1))


def test_a_disk_without_space_for_copies_refuses_until_the_broker_begins_again() -> None:
    disk = kept(Disk())
    disk.refuses_copies = True
    append(disk, 17, 19)
    disk.append(1, b"own")
    disk.sync(disk.mark())
    disk.refuses_copies = False
    # The broker does not know yet.
    append(disk, 20, 21)
    assert disk.refusals() == [("x", 16)]
    assert disk.refusals() == []
    append(disk, 17, 18)
    disk.sync(disk.mark())
    assert disk.refusals() == []
    disk.crash(Random(1))
    found = disk.recover()
    assert found.copies == {"x": RecoveredCopy(7, 18)}
    assert found.records == (b"own",)


def test_only_whole_segments_of_a_copy_are_forgotten() -> None:
    disk = kept(Disk())
    append(disk, 17, 200)
    disk.sync(disk.mark())
    disk.forget(100, "x")
    disk.forget(100, "nobody")
    assert disk.recover().copies == {"x": RecoveredCopy(71, 200)}


def test_an_old_copy_of_the_disk_has_its_old_copies() -> None:
    disk = kept(Disk())
    old = disk.copied(Random(1))
    append(disk, 17, 20)
    disk.open_copy("y", 1)
    disk.sync(disk.mark())
    both = {"x": RecoveredCopy(7, 20), "y": RecoveredCopy(1, 0)}
    assert disk.set_back(old, keeps_catalog=True).recover().copies == both
    assert disk.set_back(old, keeps_catalog=False).recover().copies == {"x": RecoveredCopy(7, 16)}


def test_a_lost_disk_is_as_new_and_what_it_had_is_still_known() -> None:
    disk = kept(Disk())
    disk.append(1, b"own")
    disk.put("t", "k", b"v")
    disk.sync(disk.mark())
    disk.lose()
    found = disk.recover()
    assert (found.catalog, found.records, found.copies) == ({}, (), {})
    assert disk.ever_synced == {1: b"own"}


def test_a_watch_is_told_of_every_synced_record_of_a_copy() -> None:
    told: list[tuple[str, int, bytes]] = []
    disk = Disk()
    disk.on_copy_synced = lambda *what: told.append(what)
    kept(disk)
    append(disk, 17, 17)
    assert told == [("x", tick, b"copy %d" % tick) for tick in range(7, 17)]
    assert disk.copied(Random(1)).on_copy_synced is disk.on_copy_synced


def test_a_cut_survives_as_a_part_of_the_sequence() -> None:
    seen = set()
    for seed in range(200):
        disk = kept(Disk())
        append(disk, 17, 90)
        disk.put("t", "k", b"1")
        disk.cut_copy("x", 12)
        assert disk.read(7, 90, 10**9, "x") == tuple(b"copy %d" % tick for tick in range(7, 13))
        disk.put("t", "k", b"2")
        disk.crash(Random(seed))
        found = disk.recover()
        copy, put = found.copies["x"], found.catalog.get("t", {}).get("k", b"0")
        assert copy.first_tick == 7
        if copy.last_tick == 12:
            assert put in {b"1", b"2"}
        else:
            assert 16 <= copy.last_tick <= 90
            assert put in {b"0", b"1"}
        seen.add((put, copy.last_tick == 12))
    assert len(seen) == 4


def test_a_copy_that_was_cut_continues_with_other_records() -> None:
    for tick in (6, 9, 70, 71, 89, 90):
        disk = kept(Disk())
        append(disk, 17, 90)
        before = disk.mark()
        disk.cut_copy("x", tick)
        disk.sync(disk.mark())
        for again in range(tick + 1, 100):
            disk.append(again, b"new", "x")
        # A sync that began before the cut says nothing about what came after it.
        disk.sync(before)
        disk.crash(Random(tick))
        assert disk.recover().copies["x"].last_tick >= tick
        disk.sync(disk.mark())
        found = disk.recover().copies["x"]
        assert found.first_tick == 7
        old = tuple(b"copy %d" % each for each in range(7, tick + 1))
        new = (b"new",) * (found.last_tick - tick)
        assert disk.read(7, 200, 10**9, "x") == old + new


def test_what_was_synced_before_a_cut_stays_if_the_sync_ends_after_it() -> None:
    disk = kept(Disk())
    append(disk, 17, 90)
    before = disk.mark()
    disk.cut_copy("x", 75)
    after = disk.mark()
    disk.sync(after)
    disk.append(76, b"new", "x")
    disk.sync(before)
    ends = set()
    for seed in range(20):
        image = disk._cloned()
        image.crash(Random(seed))
        ends.add(image.recover().copies["x"].last_tick)
    assert ends == {75, 76}


def test_the_own_log_begins_anew_or_stays_as_it_was() -> None:
    seen = set()
    for seed in range(200):
        disk = Disk()
        for tick in range(1, 101):
            disk.append(tick, b"old %d" % tick)
        disk.put("t", "k", b"1")
        disk.sync(disk.mark())
        disk.put("t", "k", b"2")
        disk.drop_copy("")
        disk.open_copy("", 201)
        disk.put("t", "k", b"3")
        for tick in range(201, 211):
            disk.append(tick, b"new %d" % tick)
        disk.crash(Random(seed))
        found = disk.recover()
        put = found.catalog["t"]["k"]
        if found.first_tick == 1:
            assert len(found.records) == 100
            assert put in {b"1", b"2"}
        else:
            assert found.first_tick == 201
            count = len(found.records)
            assert found.records == tuple(b"new %d" % tick for tick in range(201, 201 + count))
            assert put in {b"2", b"3"}
        seen.add((put, found.first_tick))
    assert len(seen) == 4


def test_rows_of_copies_are_read_when_they_are_needed_and_go_with_their_copy() -> None:
    disk = kept(Disk())
    for stream in ("w", "x", "y"):
        for key in ("1", "2", "3"):
            disk.put("copy_rows", f"{stream}\x1f{key}", key.encode())
    assert disk.read_rows("copy_rows", "x\x1f", "", 1) == ((), True)
    disk.sync(disk.mark())
    assert disk.recover().catalog == {}
    assert disk.read_rows("copy_rows", "x\x1f", "", 1) == ((("x\x1f1", b"1"),), False)
    rest = (("x\x1f2", b"2"), ("x\x1f3", b"3"))
    assert disk.read_rows("copy_rows", "x\x1f", "x\x1f1", 100) == (rest, True)
    disk.drop_copy("x")
    disk.put("copy_rows", "x\x1f9", b"9")
    disk.sync(disk.mark())
    assert disk.read_rows("copy_rows", "x\x1f", "", 100) == ((("x\x1f9", b"9"),), True)
    assert len(disk.read_rows("copy_rows", "", "", 100)[0]) == 7
