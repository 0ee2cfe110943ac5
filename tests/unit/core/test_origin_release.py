"""Ticks are deleted when every edge is done with them and the catalog has what they told."""

import pytest

from anabranch.core import contract
from anabranch.core.options import Options
from anabranch.core.origin.origin import HOLDS_MAX
from anabranch.core.part_requests import CarryTo, RequestSync
from anabranch.model.errors import RemoteError
from anabranch.model.frame_parts import Hole
from anabranch.model.frames import Done, Held, Hold, Nack, NotKept
from tests.origin_parts import EDGES, Driver, body, emits_in, ticks_of


def filled(options: Options | None = None, count: int = 10) -> Driver:
    driver = Driver(options)
    driver.publish_synced(*(body(number) for number in range(1, count + 1)))
    return driver


def done(driver: Driver, **ticks: int) -> None:
    for edge, tick in ticks.items():
        driver.carry(Done(tick), edge)
    driver.wait(1.0)
    driver.sync_all()


def test_log_is_deleted_up_to_what_all_edges_are_done_with() -> None:
    driver = filled()
    done(driver, a=9, b=4)
    assert driver.forgotten == 0
    done(driver, c=6)
    assert (driver.forgotten, driver.origin.oldest, driver.disk.first_tick) == (4, 5, 5)
    done(driver, b=10)
    assert driver.forgotten == 6


def test_checkpoint_is_synced_before_anything_is_deleted() -> None:
    driver = filled()
    for edge in EDGES:
        driver.carry(Done(5), edge)
    asks = driver.wait(driver.options.done_every_s)
    tables = [ask.table for ask in asks if isinstance(ask, contract.Put)]
    assert tables == ["publishers", "done", "done", "done", "stream"]
    assert isinstance(asks[-1], RequestSync)
    assert contract.DeleteThrough(5) not in asks
    assert contract.DeleteThrough(5) in driver.sync()


def test_done_that_goes_back_is_ignored() -> None:
    driver = filled()
    for edge in EDGES:
        driver.carry(Done(5), edge)
    driver.carry(Done(2), "b")
    done(driver)
    assert driver.forgotten == 5


def test_done_for_what_was_never_sent_raises() -> None:
    driver = filled()
    driver.publish(body(11))
    with pytest.raises(RemoteError, match="done with tick 11"):
        driver.origin.carried(driver.now, "b", Done(11))


def test_deletion_is_repeated_after_a_crash_that_came_before_it() -> None:
    driver = filled()
    for edge in EDGES:
        driver.carry(Done(5), edge)
    driver.wait(1.0)
    ticket, tick, puts = driver.syncs.pop()
    driver.disk.sync(tick, puts)
    assert ticket == 2
    assert driver.disk.first_tick == 1
    asks = driver.crash()
    assert contract.DeleteThrough(5) in asks
    assert driver.origin.oldest == 6
    assert list(emits_in(driver.carry(Nack([(5, 5)])))[0].withheld) == [Hole(5, 5, "retention")]


def test_ticks_that_are_still_on_disk_but_given_up_stay_given_up() -> None:
    driver = filled()
    done(driver, a=5, b=5, c=5)
    # Whole segments only: the first ones are still there.
    driver.disk.records[:0] = [driver.disk.records[0]] * 5
    driver.disk.first_tick = 1
    driver.crash()
    assert driver.origin.oldest == 6
    assert ticks_of(driver.carry(Nack([(6, 7)]))) == [6, 7]


def test_edge_that_is_silent_after_a_restart_counts_with_what_the_catalog_knows() -> None:
    driver = filled()
    done(driver, a=3, b=7, c=9)
    driver.crash()
    done(driver, a=10)
    assert driver.forgotten == 7


def test_edge_that_was_never_heard_of_counts_as_the_beginning() -> None:
    driver = filled()
    done(driver, a=10, b=10)
    driver.crash()
    done(driver, a=10, b=10)
    assert driver.forgotten == 0


def test_everything_may_be_deleted_and_the_next_tick_follows() -> None:
    driver = filled()
    done(driver, a=10, b=10, c=10)
    assert driver.disk.records == []
    driver.crash()
    assert driver.origin.head == 10
    driver.publish_synced(body(11))
    assert driver.confirmations() == [("p", 1, 11)]
    assert driver.disk.last == 11


# -- holds --------------------------------------------------------------------------------------


def test_hold_is_granted_when_it_is_on_disk_and_lowers_what_the_edge_is_done_with() -> None:
    driver = filled()
    driver.carry(Done(8), "b")
    asks = driver.carry(Hold(1, 3))
    assert [type(ask) for ask in asks] == [contract.Put, RequestSync]
    assert CarryTo("b", Held(1, 10)) in driver.sync()
    done(driver, a=10, c=10)
    assert driver.forgotten == 3
    done(driver, b=9)
    assert driver.forgotten == 9


def test_hold_survives_a_crash() -> None:
    driver = filled()
    done(driver, a=1, b=8, c=10)
    assert driver.forgotten == 1
    driver.carry(Hold(1, 3))
    driver.sync_all()
    driver.crash()
    done(driver, a=10, c=10)
    assert driver.forgotten == 3


def test_hold_for_what_is_deleted_is_refused_with_the_oldest_tick() -> None:
    driver = filled()
    done(driver, a=5, b=5, c=5)
    driver.carry(Hold(1, 4))
    assert driver.carried == [("b", NotKept(1, 6))]
    driver.carry(Hold(2, 5))
    driver.sync_all()
    assert driver.carried[1:] == [("b", Held(2, 10))]


def test_hold_for_what_is_about_to_be_deleted_is_refused() -> None:
    driver = filled()
    for edge in EDGES:
        driver.carry(Done(5), edge)
    driver.wait(1.0)
    assert driver.syncs
    driver.carry(Hold(1, 4))
    assert driver.carried == [("b", NotKept(1, 6))]


def test_hold_for_a_tick_to_come_is_granted_at_the_head() -> None:
    driver = filled()
    driver.carry(Hold(1, 10**9))
    driver.sync_all()
    assert driver.carried == [("b", Held(1, 10))]
    driver.publish_synced(body(11))
    done(driver, a=11, c=11)
    assert driver.forgotten == 0


def test_done_from_before_a_hold_is_void_if_it_is_numbered() -> None:
    driver = filled()
    driver.carry(Hold(50, 3))
    driver.sync_all()
    driver.carry(Done(9, 49), "b")
    done(driver, a=10, c=10)
    assert driver.forgotten == 0
    driver.crash()
    driver.carry(Done(9, 49), "b")
    done(driver, a=10, c=10)
    assert driver.forgotten == 0
    driver.carry(Done(9, 50), "b")
    done(driver)
    assert driver.forgotten == 9


def test_repeated_hold_is_answered_once_per_sync_and_their_number_is_bounded() -> None:
    driver = filled()
    driver.publish(body(11))
    for _ in range(100):
        driver.carry(Hold(1, 3))
    for request in range(2, HOLDS_MAX + 50):
        driver.carry(Hold(request, 3))
    driver.sync_all()
    assert len(driver.carried) == HOLDS_MAX


# -- lossy retention ----------------------------------------------------------------------------


def test_lossy_log_forgets_its_oldest_part_and_says_so() -> None:
    driver = filled(Options(retention="lossy", log_ticks_max=16), 16)
    asks = driver.publish(body(17))
    assert driver.refusals() == []
    assert [ask.level for ask in asks if isinstance(ask, contract.Note)] == ["warning"]
    driver.sync_all()
    assert driver.forgotten == 2
    assert driver.confirmations()[-1] == ("p", 1, 17)
    (emit,) = emits_in(driver.carry(Nack([(1, 2)])))
    assert list(emit.withheld) == [Hole(1, 2, "retention")]
    driver.crash()
    assert driver.origin.oldest == 3
    assert driver.origin.head == 17


def test_lossy_log_forgets_nothing_that_is_not_synced() -> None:
    driver = Driver(Options(retention="lossy", log_ticks_max=4))
    driver.publish(*(body(number) for number in range(1, 7)))
    assert [refusal.sequence for refusal in driver.refusals()] == [5]
    driver.sync_all()
    driver.publish_synced(body(5), body(6))
    assert driver.confirmations()[-1] == ("p", 1, 6)


def test_lossy_log_on_a_full_disk_forgets_until_there_is_room() -> None:
    driver = filled(Options(retention="lossy"), 16)
    driver.do(driver.origin.log_full(driver.now, True))
    driver.sync_all()
    assert driver.forgotten == 2
    driver.publish(body(17))
    assert "the log is full" in driver.refusals()[0].reason
    driver.wait(driver.options.head_every_s)
    driver.sync_all()
    assert driver.forgotten > 2
    driver.do(driver.origin.log_full(driver.now, False))
    driver.publish_synced(body(17))
    assert driver.confirmations()[-1] == ("p", 1, 17)
