"""Checkpoints: a start reads little, and knows as much as if it had read everything."""

import pytest

from anabranch.core.contract import Recovered
from anabranch.core.options import Options
from anabranch.core.origin.ledger import first_needed
from anabranch.core.origin.origin import Origin
from anabranch.model.errors import LocalError
from anabranch.model.frames import Answer, Done, Nack, Replay
from anabranch.model.limits import Limits
from tests.origin_parts import NETWORK, Driver, body


def _filled(log_bytes_max: int = 1 << 40) -> Driver:
    options = Options(checkpoint_ticks=8, recent_ticks_max=4, log_bytes_max=log_bytes_max)
    driver = Driver(options)
    for number in range(1, 41):
        driver.publish_synced(body(number))
        if number % 10 == 0:
            driver.mark(b=number)
    return driver


def test_a_start_reads_only_what_came_after_the_checkpoint() -> None:
    driver = _filled()
    recovered = driver.disk.recovered()
    assert recovered.first_tick == 1
    assert driver.disk.last - recovered.records_first < 8
    assert len(recovered.records) < 8 < driver.disk.last


def test_without_a_checkpoint_everything_is_needed() -> None:
    assert first_needed({}) == 1


def test_publishers_from_before_the_checkpoint_are_known() -> None:
    driver = _filled()
    driver.crash()
    head = driver.origin.head
    driver.publish_synced(body(1), body(40))
    assert driver.origin.head == head
    driver.publish_synced(body(41))
    assert driver.origin.head == head + 1


def test_marks_from_before_the_checkpoint_are_known() -> None:
    driver = _filled()
    before = driver.origin.vector
    driver.crash()
    assert driver.origin.vector == before
    assert driver.told_marks == list(driver.vectors)


def test_old_ticks_are_resent_from_the_log_with_their_marks() -> None:
    driver = _filled()
    driver.crash()
    driver.emits.clear()
    driver.carry(Nack([(9, 14)]))
    driver.read_all()
    assert [datum.tick for emit in driver.emits for datum in emit.data] == [9, 10, 12, 13, 14]
    assert {emit.mark for emit in driver.emits} == {0, 11}


def test_old_ticks_are_replayed_from_the_log() -> None:
    driver = _filled()
    driver.crash()
    driver.carry(Replay(1, 1, 0, ["n < 4"], 100, 100_000))
    driver.read_all()
    (edge, answer), *others = driver.carried
    assert edge == "b"
    assert isinstance(answer, Answer)
    assert [datum.tick for datum in answer.data] == [1, 2, 3]
    assert not others


def test_bytes_from_before_the_checkpoint_are_counted() -> None:
    driver = _filled(log_bytes_max=10_000)
    counted = driver.origin.log_bytes
    driver.crash()
    assert driver.origin.log_bytes == counted


def test_a_log_that_ends_before_its_checkpoint_is_an_error() -> None:
    driver = _filled()
    found = driver.disk.recovered()
    short = Recovered(found.catalog, 1, (), 20)
    with pytest.raises(LocalError, match="do not belong together"):
        Origin("a", NETWORK, Options(), Limits(), short, 200.0)


def test_forgotten_marks_leave_the_catalog() -> None:
    driver = _filled()
    for edge in ("a", "b", "c"):
        driver.carry(Done(30), edge)
    driver.wait(1.0)
    driver.sync_all()
    for number in range(41, 60):
        driver.publish_synced(body(number))
    assert min(map(int, driver.disk.catalog["marks"])) > 20
    driver.crash()
    assert driver.origin.vector
