"""The simulated disk keeps what was synced, and of the rest a beginning."""

from random import Random

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
