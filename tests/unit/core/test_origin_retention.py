"""Limits of age and bytes: a lossy log forgets its oldest ticks for them, any other one refuses."""

import random

import pytest

from anabranch.core import contract
from anabranch.core.options import Options
from anabranch.core.origin.retention import LogSections
from anabranch.model.client_frames import PublishRefused
from anabranch.model.errors import LocalError
from anabranch.model.frame_parts import Hole
from anabranch.model.frames import Done, Hold, Nack, NotKept, Replay
from tests.origin_parts import EDGES, Driver, body, emits_in, ticks_of

AGE_S = 640.0
AGED = Options(retention="lossy", log_age_s_max=AGE_S)


def published(driver: Driver, first: int, last: int, *, every_s: float = 0.0) -> None:
    for sequence in range(first, last + 1):
        driver.publish_synced(body(sequence))
        driver.wait(every_s)
        driver.sync_all()


# -- age ------------------------------------------------------------------------------------------


def test_an_age_limit_without_lossy_retention_is_refused_when_options_are_made() -> None:
    with pytest.raises(LocalError, match="set retention to 'lossy', or log_age_s_max to None"):
        Options(log_age_s_max=60.0)


@pytest.mark.parametrize("age", [0.0, -1.0, float("nan")])
def test_an_age_limit_that_is_no_time_is_refused(age: float) -> None:
    with pytest.raises(LocalError, match="must be positive"):
        Options(retention="lossy", log_age_s_max=age)


def test_ticks_are_forgotten_when_they_are_old_and_not_before() -> None:
    driver = Driver(AGED)
    published(driver, 1, 3)
    driver.wait(100.0)
    published(driver, 4, 5)
    driver.wait(AGE_S - 100.1)
    driver.sync_all()
    assert driver.forgotten == 0
    asks = driver.wait(0.2)
    driver.sync_all()
    assert (driver.forgotten, driver.origin.oldest) == (3, 4)
    notes = [ask.text for ask in asks if isinstance(ask, contract.Note)]
    assert notes == ["ticks 1–3 are deleted: they are older than 640.0 s, and retention is lossy"]
    driver.wait(100.0)
    driver.sync_all()
    assert driver.origin.oldest == 6


def test_what_is_old_is_withheld_from_whoever_asks() -> None:
    driver = Driver(AGED)
    published(driver, 1, 3)
    driver.wait(AGE_S)
    driver.sync_all()
    published(driver, 4, 4)
    emits = emits_in(driver.carry(Nack([(1, 4)])))
    assert [hole for emit in emits for hole in emit.withheld] == [Hole(1, 3, "retention")]
    assert ticks_of(emits) == [4]
    driver.carry(Hold(7, 1), "b")
    driver.carry(Replay(8, 2, 0, ["TRUE"], 10, 1_000), "c")
    assert driver.carried[-2:] == [("b", NotKept(7, 4)), ("c", NotKept(8, 4))]


def test_old_ticks_that_wait_for_the_disk_are_forgotten_when_it_has_them() -> None:
    driver = Driver(AGED)
    driver.publish(body(1))
    driver.wait(2 * AGE_S)
    assert driver.origin.oldest == 1
    driver.sync_all()
    driver.wait(0.0)
    assert driver.origin.oldest == 2


def test_age_counts_over_a_restart() -> None:
    driver = Driver(AGED)
    published(driver, 1, 3)
    driver.now += AGE_S - 1.0
    driver.crash()
    driver.wait(0.5)
    assert driver.origin.oldest == 1
    driver.wait(0.6)
    assert driver.origin.oldest == 4


def test_a_clock_that_went_back_forgets_nothing_early_and_not_much_late() -> None:
    driver = Driver(AGED)
    driver.now = 1_000_000.0
    published(driver, 1, 3)
    driver.now = 50.0
    driver.crash()
    published(driver, 4, 4)
    driver.wait(AGE_S - 0.1)
    driver.sync_all()
    assert driver.origin.oldest == 1
    driver.wait(0.2)
    assert driver.origin.oldest == 5


def test_a_tick_is_forgotten_at_most_a_64th_late() -> None:
    driver = Driver(AGED)
    published(driver, 1, 400, every_s=1.0)
    published(driver, 401, 1_000, every_s=1.0)
    made_at = 100.0 + driver.origin.oldest - 1
    assert AGE_S - 1.0 <= driver.now - made_at <= AGE_S + AGE_S / 64 + 1.0


def test_what_is_remembered_does_not_grow_with_the_log() -> None:
    sections = LogSections(100.0, 1_000_000)
    chance = random.Random(1)
    now, longest = 0.0, 0
    for tick in range(1, 20_001):
        now += chance.expovariate(10.0)
        sections.add(tick, chance.randint(10, 1_000), now)
        sections.delete_through(max(sections.too_old(now, tick), sections.beyond(1_000_000)))
        longest = max(longest, len(sections))
    assert longest <= 130
    assert sections.size <= 1_000_000


# -- bytes ----------------------------------------------------------------------------------------


def test_a_log_with_too_many_bytes_refuses_events_until_edges_are_done() -> None:
    driver = Driver(Options(log_bytes_max=400))
    published(driver, 1, 12)
    refusal = driver.refusals()[0]
    assert isinstance(refusal, PublishRefused)
    assert "bytes are not released by all edges; send again later" in refusal.reason
    taken = driver.origin.head
    assert 0 < taken < 12
    assert 400 <= sum(map(len, driver.disk.records)) < 500
    for edge in EDGES:
        driver.carry(Done(taken), edge)
    driver.wait(1.0)
    driver.sync_all()
    published(driver, taken + 1, taken + 1)
    assert driver.origin.head == taken + 1


def test_a_lossy_log_with_too_many_bytes_forgets_its_oldest_ticks() -> None:
    driver = Driver(Options(log_bytes_max=800, retention="lossy"))
    published(driver, 1, 100)
    assert driver.refusals() == []
    assert 500 <= sum(map(len, driver.disk.records)) <= 900
    assert driver.origin.oldest > 50


def test_bytes_are_counted_again_after_a_restart() -> None:
    driver = Driver(Options(log_bytes_max=400))
    published(driver, 1, 12)
    taken = driver.origin.head
    driver.crash()
    published(driver, taken + 1, taken + 1)
    assert "bytes are not released" in driver.refusals()[0].reason


def test_a_log_that_is_full_of_bytes_still_takes_marks() -> None:
    driver = Driver(Options(log_bytes_max=400))
    published(driver, 1, 12)
    head = driver.origin.head
    assert driver.mark(b=1) == head + 1


# -- keeping ------------------------------------------------------------------------------------


def _all_done(driver: Driver, tick: int) -> None:
    for edge in EDGES:
        driver.carry(Done(tick), edge)


def test_released_ticks_are_kept_for_a_while() -> None:
    driver = Driver(Options(keep_s=60.0))
    driver.publish_synced(body(1), body(2))
    _all_done(driver, 2)
    driver.wait(55.0)
    driver.sync_all()
    assert driver.origin.oldest == 1
    driver.wait(10.0)
    driver.sync_all()
    assert driver.origin.oldest == 3


def test_kept_ticks_go_one_after_the_other_as_they_age() -> None:
    driver = Driver(Options(keep_s=64.0))
    for number in range(1, 101):
        driver.publish_synced(body(number))
        driver.wait(1.0)
    _all_done(driver, 100)
    driver.wait(2.0)
    driver.sync_all()
    assert 30 <= driver.origin.oldest <= 40
    driver.wait(30.0)
    driver.sync_all()
    assert 60 <= driver.origin.oldest <= 70


def test_ticks_that_somebody_needs_are_kept_however_old() -> None:
    driver = Driver(Options(keep_s=5.0))
    driver.publish_synced(body(1), body(2))
    driver.wait(100.0)
    driver.sync_all()
    assert driver.origin.oldest == 1


def test_a_full_log_gives_up_what_it_keeps_for_nobody() -> None:
    driver = Driver(Options(keep_s=1_000.0, log_ticks_max=5))
    driver.publish_synced(*map(body, range(1, 6)))
    _all_done(driver, 5)
    driver.publish_synced(body(6))
    assert driver.refusals() == []
    assert driver.origin.head == 6


# -- bytes held back ------------------------------------------------------------------------------


def _held_back(driver: Driver, last: int) -> None:
    """Publish while edge c is never done."""
    for sequence in range(1, last + 1):
        driver.publish_synced(body(sequence))
        for edge in ("a", "b"):
            driver.carry(Done(driver.origin.head), edge)
        driver.wait(1.0)
        driver.sync_all()


def test_a_subscription_cannot_hold_back_more_of_a_log_than_its_quota() -> None:
    driver = Driver(Options(held_back_bytes_max=800))
    _held_back(driver, 100)
    assert driver.refusals() == []
    assert 700 <= sum(map(len, driver.disk.records)) <= 900
    assert driver.origin.oldest > 50


def test_what_is_no_longer_held_is_named_and_answered_as_not_kept() -> None:
    driver = Driver(Options(held_back_bytes_max=800))
    _held_back(driver, 100)
    assert driver.notes
    for note in driver.notes:
        assert "at 'c': they hold back more than 800 bytes (held_back_bytes_max)" in note
    driver.carry(Replay(7, 1, 0, ["TRUE"], 10, 10_000), "c")
    assert driver.carried[-1] == ("c", NotKept(7, driver.origin.oldest))


def test_a_hold_below_the_quota_is_refused_once_the_ticks_are_gone() -> None:
    driver = Driver(Options(held_back_bytes_max=800))
    _held_back(driver, 100)
    driver.carry(Hold(9, 3), "c")
    assert driver.carried[-1] == ("c", NotKept(9, driver.origin.oldest))


def test_a_log_within_the_quota_keeps_everything_for_a_slow_edge() -> None:
    driver = Driver(Options(held_back_bytes_max=100_000))
    _held_back(driver, 100)
    assert driver.origin.oldest == 1


def test_kept_ticks_stay_although_a_quota_no_longer_holds_them() -> None:
    driver = Driver(Options(held_back_bytes_max=800, keep_s=10_000.0))
    _held_back(driver, 100)
    assert driver.origin.oldest == 1
