"""Publishers that stay away are forgotten, and none of their events is accepted twice for it."""

import random

import msgspec
import pytest

from anabranch.core.options import Options
from anabranch.core.origin.publishers import (
    FIRST_LOOKS_S,
    FLOOR,
    FLOOR_TABLE,
    LOOKS,
    LOOKS_PER_STEP,
    TABLE,
    Publishers,
)
from anabranch.core.origin.rollback import RollbackInquiry, StoredRollback
from anabranch.core.part_requests import PartRequest
from anabranch.model.client_frames import FORGOTTEN, Commit, PublishRefused, Stage
from anabranch.model.errors import LocalError
from anabranch.model.event import EventId
from anabranch.model.frames import Done
from anabranch.sim.mutants.catalog import planted
from tests.origin_parts import EDGES, Driver, body
from tests.staging_parts import draft

#: A look at each publisher every second.
KEEP_S = 8.0
OPTIONS = Options(publisher_keep_s=KEEP_S)
#: The longest time between the end of a publisher's presence and its end on record.
GONE_S = KEEP_S * (1 + 4 / LOOKS) + 1.0


class Away(Driver):
    """An origin, its disk and the clients that have a session now."""

    def __init__(self, options: Options = OPTIONS) -> None:
        self.present: set[str] = set()
        super().__init__(options)

    def start(self) -> list[PartRequest]:
        asked = super().start()
        self.origin.set_session_lookups(lambda _: "", self.present.__contains__)
        return asked

    def clock_ns(self) -> int:
        return int(self.now * 1e9)

    def opened(self, name: str = "p", events: int = 1) -> int:
        """A publisher publishes in a new incarnation; the incarnation."""
        incarnation = self.clock_ns()
        bodies = [body(number, name, incarnation) for number in range(1, events + 1)]
        self.publish_synced(*bodies, client=name)
        return incarnation

    def release(self) -> None:
        """All edges are done with everything, and the log deletes it."""
        for edge in EDGES:
            self.carry(Done(self.origin.head), edge)
        self.live(1.0)

    def live(self, seconds: float) -> None:
        """Let time pass, with a disk that syncs at once."""
        until = self.now + seconds
        while self.now < until:
            self.wait(min(0.25, until - self.now))
            self.sync_all()

    @property
    def recorded(self) -> set[str]:
        """The publishers in the catalog."""
        return set(self.disk.catalog.get(TABLE, {}))

    @property
    def floor(self) -> int:
        row = self.disk.catalog.get(FLOOR_TABLE, {}).get(FLOOR)
        return 0 if row is None else msgspec.msgpack.decode(row, type=int)

    def last_refusal(self) -> PublishRefused:
        return self.refusals()[-1]


# -- who is forgotten, and when --------------------------------------------------------------------


def test_a_publisher_that_stays_away_is_forgotten_in_memory_and_on_disk() -> None:
    driver = Away()
    incarnation = driver.opened()
    driver.release()
    assert driver.recorded == {"p"}
    driver.live(GONE_S)
    assert driver.recorded == set()
    assert driver.origin.publishers == 0
    assert driver.origin.publishers_forgotten == 1
    assert driver.floor == incarnation


def test_a_publisher_is_kept_as_long_as_the_log_has_one_of_its_events() -> None:
    driver = Away()
    driver.opened()
    driver.live(3 * GONE_S)
    driver.crash()
    driver.live(3 * GONE_S)
    assert driver.origin.publishers == 1
    driver.publish_synced(body(1, incarnation=int(100e9)))
    assert driver.confirmations() == [("p", int(100e9), 1)]
    driver.release()
    driver.live(GONE_S)
    assert driver.origin.publishers == 0


def test_events_that_wait_for_the_disk_keep_their_publisher() -> None:
    driver = Away()
    incarnation = driver.opened()
    driver.release()
    driver.publish(body(2, incarnation=incarnation))
    driver.wait(3 * GONE_S)
    assert driver.origin.publishers == 1
    driver.sync_all()
    assert driver.confirmations()[-1] == ("p", incarnation, 2)


def test_a_publisher_with_a_session_is_there_and_its_silence_begins_with_the_end_of_it() -> None:
    driver = Away()
    incarnation = driver.opened()
    driver.release()
    driver.present.add("p")
    driver.live(10 * GONE_S)
    driver.present.clear()
    driver.live(KEEP_S)
    driver.publish_synced(body(1, incarnation=incarnation), body(2, incarnation=incarnation))
    assert driver.confirmations()[-1] == ("p", incarnation, 2)
    assert driver.refusals() == []
    driver.release()
    driver.live(GONE_S)
    assert driver.origin.publishers == 0


@pytest.mark.parametrize("seed", range(25))
def test_nobody_is_forgotten_before_publisher_keep_s_whatever_crashes(seed: int) -> None:
    """And everybody soon after it."""
    chance = random.Random(seed)
    driver = Away(Options(publisher_keep_s=KEEP_S, checkpoint_ticks=chance.choice([2, 8_192])))
    incarnation = driver.opened()
    last_there, sequence = driver.now, 1
    for _ in range(60):
        kind = chance.random()
        if kind < 0.2:
            driver.present ^= {"p"}
        elif kind < 0.35:
            driver.sync_all()
            driver.crash(chance.randrange(1 << 30))
        elif kind < 0.5:
            sequence += 1
            driver.publish_synced(body(sequence, incarnation=incarnation))
            last_there = driver.now
        else:
            driver.live(chance.uniform(0.1, KEEP_S / 3))
        if chance.random() < 0.3:
            driver.release()
        if driver.present:
            last_there = driver.now
        if driver.now < last_there + KEEP_S:
            assert driver.origin.publishers == 1, "forgotten too early"
        if driver.origin.publishers == 0:
            break
    driver.present.clear()
    driver.release()
    driver.live(GONE_S)
    assert driver.origin.publishers == 0
    assert driver.recorded == set()


def test_an_incarnation_is_over_for_the_floor_only_when_it_began_long_ago() -> None:
    """A clock that is ahead does not raise the floor beyond others that are right."""
    driver = Away()
    ahead = driver.clock_ns() + int(4 * KEEP_S * 1e9)
    driver.publish_synced(body(1, "fast", ahead), client="fast")
    driver.release()
    while driver.origin.publishers:
        assert driver.floor == 0
        driver.live(1.0)
    assert driver.clock_ns() >= ahead + int(KEEP_S * 1e9)
    assert driver.floor == ahead


def test_a_starting_broker_lets_clients_reconnect_before_it_forgets() -> None:
    driver = Away(Options(publisher_keep_s=LOOKS * 2 * FIRST_LOOKS_S))
    driver.opened()
    driver.release()
    driver.now += 10 * driver.options.publisher_keep_s
    driver.crash()
    driver.live(FIRST_LOOKS_S)
    assert driver.origin.publishers == 1
    driver.live(FIRST_LOOKS_S)
    assert driver.origin.publishers == 0


def test_a_machine_that_wakes_up_lets_clients_reconnect_before_it_forgets() -> None:
    driver = Away()
    driver.opened("p")
    driver.opened("q")
    driver.release()
    # Nothing happens for long: no step, and so no look.
    driver.now += 10 * KEEP_S
    driver.wait(0.01)
    driver.present.add("p")
    driver.live(GONE_S)
    assert driver.recorded == {"p"}


def test_nobody_is_forgotten_while_it_is_unknown_whether_the_log_is_an_old_copy() -> None:
    driver = Away()
    driver.opened()
    driver.release()
    driver.options = msgspec.structs.replace(driver.options, start_alone_after_s=3 * GONE_S)
    inquiry = RollbackInquiry(
        "a", ["b"], driver.origin.newest, driver.options, StoredRollback(), is_first_life=False
    )
    driver.do(driver.origin.start_inquiry(driver.now, inquiry))
    driver.live(2 * GONE_S)
    assert driver.origin.publishers == 1
    driver.live(GONE_S + GONE_S)
    assert driver.origin.publishers == 0


# -- exactly once ----------------------------------------------------------------------------------


def test_an_event_of_a_forgotten_publisher_is_refused_and_never_appended_again() -> None:
    driver = Away()
    incarnation = driver.opened(events=2)
    driver.release()
    driver.live(GONE_S)
    head = driver.origin.head
    for _ in range(2):
        for first in (1, 2, 3):
            driver.publish_synced(body(first, incarnation=incarnation))
            refusal = driver.last_refusal()
            assert (refusal.is_final, refusal.code) == (True, FORGOTTEN)
            assert (refusal.sequence, refusal.begun) == (first, incarnation)
        driver.crash()
    assert driver.origin.head == head


def test_a_forgotten_publisher_comes_back_with_a_higher_incarnation() -> None:
    driver = Away()
    incarnation = driver.opened()
    driver.release()
    driver.live(GONE_S)
    driver.publish_synced(body(1, incarnation=incarnation + 1))
    assert driver.confirmations()[-1] == ("p", incarnation + 1, 1)
    assert driver.recorded == set()
    driver.crash()
    driver.publish_synced(body(1, incarnation=incarnation + 1))
    assert driver.confirmations()[-1] == ("p", incarnation + 1, 1)


def test_the_floor_does_not_concern_publishers_on_record() -> None:
    driver = Away()
    old = driver.opened("old")
    driver.now += 1.0
    driver.opened("young")
    driver.release()
    driver.present.add("old")
    driver.live(GONE_S)
    assert driver.recorded == {"old"}
    assert driver.floor > old
    driver.publish_synced(body(2, "old", old), client="old")
    assert driver.confirmations()[-1] == ("old", old, 2)


def _forgetting() -> Away:
    """An origin whose log has a publisher and a forgetting that is not synced."""
    driver = Away()
    driver.opened("p")
    driver.opened("q")
    driver.release()
    while not driver.origin.publishers_forgotten:
        driver.wait(0.25)
        if not driver.origin.publishers_forgotten:
            driver.sync_all()
    return driver


def test_whatever_puts_a_crash_keeps_no_event_is_accepted_twice() -> None:
    puts = len(_forgetting().disk.unsynced_puts)
    # The floor and the deletion of a row, at least.
    assert puts >= 2
    for kept in range(puts + 1):
        driver = _forgetting()
        disk = driver.disk
        disk.sync(disk.last, kept)
        disk.unsynced_puts.clear()
        driver.start()
        for name in ("p", "q"):
            driver.publish_synced(body(1, name, int(100e9)), client=name)
        driver.check_confirmed_are_there()
        assert len(driver.events) == 2


@pytest.mark.parametrize(
    "mutant", ["forgets-without-floor", "floor-not-on-disk", "row-before-floor"]
)
def test_mutants_of_the_floor_accept_an_event_twice(mutant: str) -> None:
    with planted(mutant), pytest.raises(AssertionError, match="in the log twice"):
        test_whatever_puts_a_crash_keeps_no_event_is_accepted_twice()


def test_mutant_that_forgets_with_events_in_the_log_is_found() -> None:
    with planted("forgets-unreleased"), pytest.raises(AssertionError):
        test_a_publisher_is_kept_as_long_as_the_log_has_one_of_its_events()


def test_a_clock_that_is_set_back_forgets_nobody_and_accepts_nothing_twice() -> None:
    driver = Away()
    incarnation = driver.opened()
    driver.opened("q")
    driver.release()
    driver.live(GONE_S)
    driver.publish_synced(body(1, "r", driver.clock_ns()), client="r")
    driver.now = 50.0
    driver.crash()
    driver.publish_synced(body(1, incarnation=incarnation))
    assert driver.last_refusal().code == FORGOTTEN
    driver.release()
    driver.live(GONE_S)
    # Its incarnation is in the future now.
    assert driver.recorded == {"r"}


# -- whom the floor does not concern ---------------------------------------------------------------


def test_a_sink_is_never_forgotten() -> None:
    driver = Away()
    _commit(driver, 1)
    driver.release()
    driver.live(3 * GONE_S)
    assert driver.recorded == {"sink/s"}
    _commit(driver, 1)
    _commit(driver, 2)
    assert [event_id.incarnation for event_id in driver.events.values()] == [1, 2]


def test_a_new_sink_is_not_refused_for_the_floor() -> None:
    """Its incarnations are no times."""
    driver = Away()
    driver.opened()
    driver.release()
    driver.live(GONE_S)
    assert driver.floor
    _commit(driver, 1)
    assert driver.events[driver.origin.head].publisher == "sink/s"


def _commit(driver: Away, batch: int) -> None:
    token = f"t{batch}-{driver.now}"
    for frame in (Stage(1, token, 0, [draft(1)], True), Commit(2, "s", "q", batch, (token,))):
        driver.do(driver.origin.client_frame(driver.now, 1, frame, "writer"))
        driver.sync_all()


def test_a_sink_of_version_0_1_is_never_forgotten_although_it_has_the_name_of_a_client() -> None:
    driver = Away()
    _commit(driver, 1)
    row = msgspec.msgpack.decode(driver.disk.catalog["sinks"]["s"])
    driver.disk.catalog["sinks"]["s"] = msgspec.msgpack.encode([*row[:-1], False])
    driver.release()
    rows = driver.disk.catalog[TABLE]
    rows["s"] = rows.pop("sink/s")
    driver.crash()
    driver.live(3 * GONE_S)
    assert driver.recorded == {"s"}


def test_a_join_point_is_forgotten_and_begins_again_with_the_number_it_has() -> None:
    driver = Away()
    driver.publish_synced(body(1, "pattern/rise", 3), session=-1, client="pattern/rise")
    driver.opened()
    driver.release()
    driver.present.add("pattern/rise")
    driver.live(GONE_S)
    assert driver.recorded == {"pattern/rise"}
    driver.present.clear()
    driver.live(GONE_S)
    assert driver.recorded == set()
    driver.publish_synced(body(1, "pattern/rise", 4), session=-1, client="pattern/rise")
    assert driver.confirmations(-1)[-1] == ("pattern/rise", 4, 1)


# -- rows and quotas -------------------------------------------------------------------------------


def test_rows_of_earlier_versions_are_read_and_count_as_seen_from_the_first_look() -> None:
    driver = Away()
    incarnation = driver.opened(events=3)
    driver.release()
    driver.disk.catalog[TABLE]["p"] = msgspec.msgpack.encode((incarnation, 3))
    driver.now += 100 * KEEP_S
    driver.crash()
    driver.publish_synced(body(3, incarnation=incarnation))
    assert driver.confirmations()[-1] == ("p", incarnation, 3)
    driver.live(KEEP_S / 2)
    # A later start knows when it was.
    driver.crash()
    driver.live(KEEP_S / 2)
    assert driver.origin.publishers == 1
    driver.live(GONE_S - KEEP_S / 2)
    assert driver.origin.publishers == 0


def test_a_full_table_takes_publishers_again_when_others_are_forgotten() -> None:
    driver = Away(msgspec.structs.replace(OPTIONS, publishers_max=2))
    for name in ("p", "q", "r"):
        driver.opened(name)
    assert "2 publishers are on record" in driver.last_refusal().reason
    driver.release()
    driver.live(GONE_S)
    driver.opened("r")
    assert driver.confirmations()[-1][0] == "r"


def test_a_host_may_add_as_many_publishers_as_were_forgotten() -> None:
    driver = Away(msgspec.structs.replace(OPTIONS, host_publishers_max=2))
    driver.origin.set_session_lookups(lambda _: "10.0.0.1", driver.present.__contains__)
    for name in ("p", "q", "r"):
        driver.opened(name)
    assert "host_publishers_max" in driver.last_refusal().reason
    driver.release()
    driver.present.add("q")
    driver.live(GONE_S)
    before = len(driver.refusals())
    driver.opened("r")
    assert len(driver.refusals()) == before
    driver.opened("s")
    assert len(driver.refusals()) == before + 1


def test_an_event_writes_nothing_for_its_publisher() -> None:
    driver = Away()
    incarnation = driver.opened()
    driver.present.add("p")
    for number in range(2, 50):
        driver.publish_synced(body(number, incarnation=incarnation))
        driver.live(0.1)
    assert driver.recorded == set()


def test_one_step_looks_at_a_bounded_number_of_publishers_and_all_get_their_turn() -> None:
    count = 3 * LOOKS_PER_STEP
    known = Publishers({}, OPTIONS, 1_000.0)
    for number in range(count):
        known.record_append(EventId(f"p{number}", 1, 1), number + 1, 1_000.0)
        known.record_sync((f"p{number}", 1), 1)
    now = 1_000.0
    steps: list[int] = []
    while (due := known.next_look()) is not None:
        assert due > now or not steps
        now = max(now, due)
        looked = known.look(now, count + 1, lambda _: False)
        steps.append(len(looked.forgotten))
        assert len(looked.puts) <= LOOKS_PER_STEP + 1
    assert max(steps) == LOOKS_PER_STEP
    assert sum(steps) == count
    assert len(known) == 0


def test_publisher_keep_s_must_be_positive() -> None:
    with pytest.raises(LocalError, match="publisher_keep_s is 0"):
        Options(publisher_keep_s=0.0)
