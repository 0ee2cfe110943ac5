"""Events become ticks once, and are confirmed when they are on disk."""

import pytest

from anabranch.core import contract
from anabranch.core.options import Options
from anabranch.core.origin.log_tail import BlankRecord, decode_record
from anabranch.core.part_requests import ChangeAdvertisements, RequestSync
from anabranch.model.errors import RemoteError
from anabranch.model.event import INT_MAX, Control, utc_text
from anabranch.model.frames import Done
from anabranch.model.limits import Limits
from tests.event_parts import frame
from tests.origin_parts import EDGES, Driver, body, ticks_of


def test_event_is_confirmed_and_emitted_when_it_is_synced_and_not_before() -> None:
    driver = Driver()
    asks = driver.publish(body(1), body(2))
    assert [type(ask) for ask in asks] == [
        ChangeAdvertisements,
        contract.Append,
        contract.Append,
        RequestSync,
    ]
    asks = driver.sync()
    assert ticks_of(asks) == [1, 2]
    assert driver.confirmations() == [("p", 1, 2)]


def test_what_is_published_during_a_sync_goes_into_one_next_batch() -> None:
    driver = Driver()
    driver.publish(body(1))
    driver.publish(body(2))
    driver.publish(body(3))
    assert len(driver.syncs) == 1
    assert driver.disk.synced == 0
    asks = driver.sync()
    assert ticks_of(asks) == [1]
    assert driver.confirmations() == [("p", 1, 1)]
    driver.sync()
    assert driver.confirmations() == [("p", 1, 1), ("p", 1, 3)]
    assert driver.syncs == []


def test_ticket_of_an_old_sync_confirms_nothing() -> None:
    driver = Driver()
    driver.publish_synced(body(1))
    driver.publish(body(2))
    assert driver.do(driver.origin.synced(driver.now, 1)) == []
    assert driver.confirmations() == [("p", 1, 1)]


def test_event_sent_again_is_confirmed_again_and_not_appended_again() -> None:
    driver = Driver()
    driver.publish_synced(body(1), body(2))
    driver.publish(body(1), body(2), session=2)
    assert driver.confirmations(2) == [("p", 1, 2)]
    assert driver.disk.last == 2


def test_event_sent_again_before_the_sync_is_confirmed_to_both_sessions_after_it() -> None:
    driver = Driver()
    driver.publish(body(1))
    driver.publish(body(1), session=2)
    assert driver.confirmations(2) == []
    driver.sync_all()
    assert driver.confirmations(1) == driver.confirmations(2) == [("p", 1, 1)]
    assert driver.disk.last == 1


def test_confirmation_again_goes_only_up_to_what_is_synced() -> None:
    driver = Driver()
    driver.publish_synced(body(1))
    driver.publish(body(2))
    driver.publish(body(1), body(2), session=2)
    assert driver.confirmations(2) == [("p", 1, 1)]
    driver.sync_all()
    assert driver.confirmations(2) == [("p", 1, 1), ("p", 1, 2)]


def test_session_that_left_is_told_nothing() -> None:
    driver = Driver()
    driver.publish(body(1))
    driver.publish(body(1), session=2)
    driver.do(driver.origin.client_disconnected(driver.now, 1))
    driver.sync_all()
    assert driver.confirmations(1) == []
    assert driver.confirmations(2) == [("p", 1, 1)]


def test_gap_is_refused_with_the_expected_sequence_and_so_is_what_follows() -> None:
    driver = Driver()
    driver.publish_synced(body(1), body(3), body(4))
    (refusal,) = driver.refusals()
    assert (refusal.publisher, refusal.incarnation, refusal.sequence) == ("p", 1, 3)
    assert "sequence 2 is expected" in refusal.reason
    assert driver.confirmations() == [("p", 1, 1)]
    driver.publish_synced(body(2), body(3))
    assert driver.confirmations()[-1] == ("p", 1, 3)


def test_refusal_of_one_publisher_does_not_concern_another() -> None:
    driver = Driver()
    driver.publish(body(2), body(3))
    driver.publish_synced(body(1, "q"), client="q")
    assert [refusal.sequence for refusal in driver.refusals()] == [2]
    assert driver.confirmations() == [("q", 1, 1)]


def test_higher_incarnation_begins_at_one_and_ends_the_lower() -> None:
    driver = Driver()
    driver.publish_synced(body(1), body(2))
    driver.publish_synced(body(3, incarnation=5))
    assert "sequence 1 is expected" in driver.refusals()[-1].reason
    driver.publish_synced(body(3))
    assert driver.confirmations()[-1] == ("p", 1, 3)
    driver.publish_synced(body(1, incarnation=5))
    assert driver.confirmations()[-1] == ("p", 5, 1)
    driver.publish_synced(body(4))
    refusal = driver.refusals()[-1]
    assert "incarnation 1 is over" in refusal.reason
    assert refusal.begun == 5


def test_old_incarnation_is_confirmed_even_if_a_new_one_began_before_the_sync() -> None:
    driver = Driver()
    driver.publish(body(1))
    driver.publish(body(1, incarnation=2), session=2)
    driver.sync_all()
    assert driver.confirmations(1) == [("p", 1, 1)]
    assert driver.confirmations(2) == [("p", 2, 1)]


@pytest.mark.parametrize(
    "bad",
    [b"", b"\x94\x02", frame(payload=7), frame(attributes={"a": None}), body(0)],
    ids=["nothing", "version", "payload", "attribute", "sequence"],
)
def test_bytes_that_are_no_event_raise_and_nothing_of_the_frame_is_taken(bad: bytes) -> None:
    driver = Driver()
    with pytest.raises(RemoteError):
        driver.publish(body(1), bad)
    driver.publish_synced(body(1))
    assert driver.disk.last == 1
    assert driver.refusals() == []


def test_event_beyond_the_limits_is_refused_for_ever() -> None:
    driver = Driver(limits=Limits(payload_bytes_max=10))
    driver.publish_synced(body(1), body(2, payload=b"x" * 11), body(3))
    (refusal,) = driver.refusals()
    assert (refusal.sequence, refusal.is_final) == (2, True)
    assert "at most 10 are allowed" in refusal.reason
    assert driver.disk.last == 1


def test_known_event_is_confirmed_although_limits_are_narrower_now() -> None:
    driver = Driver()
    driver.publish_synced(body(1, payload=b"x" * 11))
    driver.limits = Limits(payload_bytes_max=10)
    driver.crash()
    driver.publish(body(1, payload=b"x" * 11))
    assert driver.confirmations() == [("p", 1, 1)]


def test_refusals_that_hold_for_ever_say_so_and_others_do_not() -> None:
    driver = Driver(Options(publishers_max=1, log_ticks_max=3, unsynced_ticks_max=2))
    driver.publish_synced(body(1, incarnation=2))
    driver.publish(body(2))
    driver.publish(body(1, "q"), client="q")
    driver.publish(body(4, incarnation=2))
    driver.publish(*(body(n, incarnation=2) for n in (2, 3, 4)))
    driver.sync_all()
    driver.publish(body(4, incarnation=2))
    driver.do(driver.origin.log_full(driver.now, True))
    driver.publish(body(4, incarnation=2))
    told = [(refusal.reason, refusal.is_final) for refusal in driver.refusals()]
    assert [is_final for _, is_final in told] == [True, True, False, False, False, False]
    words = ("is over", "publishers are", "is expected", "behind", "not released", "no space")
    assert all(word in reason for word, (reason, _) in zip(words, told, strict=True))


def test_full_disk_refuses_and_takes_again_when_there_is_room() -> None:
    driver = Driver()
    driver.publish_synced(body(1))
    driver.do(driver.origin.log_full(driver.now, True))
    driver.publish(body(2))
    assert driver.syncs == []
    assert "the log is full" in driver.refusals()[0].reason
    driver.publish(body(1), session=3)
    assert driver.confirmations(3) == [("p", 1, 1)]
    driver.do(driver.origin.log_full(driver.now, False))
    driver.publish_synced(body(2))
    assert driver.confirmations()[-1] == ("p", 1, 2)


def test_log_with_as_many_ticks_as_allowed_refuses_until_some_are_released() -> None:
    driver = Driver(Options(log_ticks_max=3))
    driver.publish_synced(*(body(n) for n in range(1, 6)))
    (refusal,) = driver.refusals()
    assert refusal.sequence == 4
    assert "3 ticks are not released" in refusal.reason
    for edge in EDGES:
        driver.carry(Done(2), edge)
    driver.wait(1.0)
    driver.sync_all()
    driver.publish_synced(body(4), body(5))
    assert driver.confirmations()[-1] == ("p", 1, 5)


def test_events_are_refused_while_too_many_wait_for_the_disk() -> None:
    driver = Driver(Options(unsynced_ticks_max=2))
    driver.publish(body(1), body(2), body(3))
    assert "the disk is behind" in driver.refusals()[0].reason
    driver.sync_all()
    driver.publish_synced(body(3))
    assert driver.confirmations()[-1] == ("p", 1, 3)


def test_events_are_refused_while_too_many_bytes_wait_for_the_disk() -> None:
    driver = Driver(Options(unsynced_bytes_max=1_000))
    driver.publish(body(1, payload=b"x" * 2_000), body(2))
    assert [refusal.sequence for refusal in driver.refusals()] == [2]
    driver.sync_all()
    driver.publish_synced(body(2))
    assert driver.confirmations()[-1] == ("p", 1, 2)


def test_publisher_beyond_the_limit_is_refused_and_nobody_is_forgotten() -> None:
    driver = Driver(Options(publishers_max=2))
    driver.publish(body(1))
    for name in ("q", "r"):
        driver.publish(body(1, name), client=name)
    driver.publish_synced(body(2))
    assert [refusal.publisher for refusal in driver.refusals()] == ["r"]
    assert "publishers are on record" in driver.refusals()[0].reason
    assert driver.confirmations() == [("p", 1, 1), ("q", 1, 1), ("p", 1, 2)]


def test_transient_event_is_sent_once_and_only_its_id_is_logged() -> None:
    driver = Driver()
    transient = body(1, control=Control(persistence="transient"))
    driver.publish(transient)
    record = decode_record(driver.disk.records[0])
    assert isinstance(record, BlankRecord)
    assert record.id == driver.events[1]
    asks = driver.sync()
    assert ticks_of(asks) == [1]
    assert driver.confirmations() == [("p", 1, 1)]
    driver.crash()
    driver.publish(transient)
    assert driver.disk.last == 1
    assert driver.confirmations() == [("p", 1, 1)]


def test_publishers_are_known_after_a_restart() -> None:
    driver = Driver()
    driver.publish_synced(body(1), body(2))
    driver.publish_synced(body(1, "q", 4), client="q")
    driver.crash()
    driver.publish(body(2))
    driver.publish(body(1, "q", 4), body(1, "q", 3), client="q")
    assert driver.confirmations() == [("p", 1, 2), ("q", 4, 1)]
    assert [refusal.incarnation for refusal in driver.refusals()] == [3]
    driver.publish_synced(body(3))
    assert driver.confirmations()[-1] == ("p", 1, 3)


def test_publishers_are_known_after_their_records_are_deleted() -> None:
    driver = Driver()
    driver.publish_synced(body(1), body(2))
    driver.publish_synced(body(1, "q", 4), client="q")
    for edge in EDGES:
        driver.carry(Done(3), edge)
    driver.wait(1.0)
    driver.sync_all()
    assert driver.disk.records == []
    driver.crash()
    driver.publish_synced(body(1), body(2))
    driver.publish_synced(body(1, "q", 4), body(2, "q", 4), client="q")
    assert driver.confirmations() == [("p", 1, 2), ("q", 4, 1), ("q", 4, 2)]
    assert driver.disk.last == 4


def test_checkpoint_does_not_run_ahead_of_the_log() -> None:
    # The put survives, the record that was appended before it does not.
    driver = Driver()
    driver.publish_synced(body(1))
    for edge in EDGES:
        driver.carry(Done(1), edge)
    driver.publish(body(2))
    driver.wait(1.0)
    assert driver.disk.unsynced_puts
    puts = len(driver.disk.unsynced_puts)
    del driver.disk.records[1:]
    driver.disk.sync(1, puts)
    driver.crash()
    driver.publish_synced(body(2))
    assert driver.confirmations() == [("p", 1, 2)]
    assert [event_id.sequence for event_id in driver.events.values()] == [1, 2]


# -- who publishes, and how far a number may leap --------------------------------------------------


def test_event_of_another_publisher_is_refused_for_ever_and_nothing_is_remembered() -> None:
    driver = Driver(Options(publishers_max=1))
    driver.publish_synced(body(1), body(2), client="forger")
    (refusal,) = driver.refusals()
    assert (refusal.publisher, refusal.sequence, refusal.is_final) == ("p", 1, True)
    assert "'p'" in refusal.reason
    assert "'forger'" in refusal.reason
    assert driver.disk.last == 0
    driver.publish_synced(body(1))
    assert driver.confirmations() == [("p", 1, 1)]


def test_event_that_is_known_is_not_confirmed_to_another_client() -> None:
    driver = Driver()
    driver.publish_synced(body(1))
    driver.publish_synced(body(1), session=2, client="forger")
    driver.publish(body(2))
    driver.publish(body(2), session=2, client="forger")
    driver.sync_all()
    assert driver.confirmations(2) == []
    assert [refusal.sequence for refusal in driver.refusals(2)] == [1, 2]
    assert driver.confirmations(1) == [("p", 1, 1), ("p", 1, 2)]


def lead_of(driver: Driver) -> int:
    """The highest incarnation that may begin now."""
    return int((driver.now + driver.options.incarnation_lead_s) * 1e9)


@pytest.mark.parametrize("lead_s", [86_400.0, 60.0])
def test_incarnation_beyond_the_lead_is_refused_for_now_and_names_both_clocks(
    lead_s: float,
) -> None:
    driver = Driver(Options(incarnation_lead_s=lead_s))
    ahead = lead_of(driver) + 1
    driver.publish_synced(body(1, incarnation=ahead), body(2, incarnation=ahead))
    (refusal,) = driver.refusals()
    assert (refusal.sequence, refusal.is_final, refusal.begun) == (1, False, 0)
    assert utc_text(ahead) in refusal.reason
    assert utc_text(int(driver.now * 1e9)) in refusal.reason
    assert driver.disk.last == 0
    driver.now += 1.0
    driver.publish_synced(body(1, incarnation=ahead))
    assert driver.confirmations() == [("p", ahead, 1)]


def test_highest_incarnation_of_all_does_not_end_its_publisher() -> None:
    driver = Driver()
    driver.publish_synced(body(1))
    driver.publish_synced(body(1, incarnation=INT_MAX))
    assert not driver.refusals()[-1].is_final
    driver.publish_synced(body(2))
    driver.publish_synced(body(1, incarnation=lead_of(driver)))
    assert driver.confirmations() == [("p", 1, 1), ("p", 1, 2), ("p", lead_of(driver), 1)]


def test_log_with_the_highest_incarnation_of_all_is_read_and_says_what_to_do() -> None:
    """One that was written before incarnations were bounded."""
    driver = Driver(Options(incarnation_lead_s=1e10))
    driver.publish_synced(body(1, incarnation=INT_MAX))
    driver.options = Options()
    driver.crash()
    driver.publish_synced(body(1, incarnation=INT_MAX), body(2, incarnation=INT_MAX))
    assert driver.confirmations() == [("p", INT_MAX, 1), ("p", INT_MAX, 2)]
    driver.publish_synced(body(1, incarnation=5))
    refusal = driver.refusals()[-1]
    assert (refusal.is_final, refusal.begun) == (True, INT_MAX)
    assert "take another name" in refusal.reason
    assert utc_text(INT_MAX) in refusal.reason


def test_clock_of_the_log_counts_where_that_of_the_machine_went_back() -> None:
    driver = Driver()
    driver.now = 1_700_000_000.0
    driver.publish_synced(body(1))
    driver.now = 1_000.0
    driver.crash()
    incarnation = int(1_700_000_100 * 1e9)
    driver.publish_synced(body(1, incarnation=incarnation))
    assert driver.confirmations() == [("p", incarnation, 1)]


# -- quotas -----------------------------------------------------------------------------------


def test_one_host_brings_a_limited_number_of_publishers() -> None:
    driver = Driver(Options(host_publishers_max=2))
    hosts = {1: "10.0.0.1", 2: "10.0.0.1", 3: "10.0.0.2"}
    driver.origin.set_session_lookups(lambda session: hosts.get(session, ""), lambda _: True)
    for name in ("p1", "p2", "p3"):
        driver.publish_synced(body(1, name), session=1, client=name)
    refused = driver.refusals()
    assert [(each.publisher, each.is_final) for each in refused] == [("p3", True)]
    assert "host 10.0.0.1 has added 2 names" in refused[0].reason
    assert "(host_publishers_max)" in refused[0].reason
    driver.publish_synced(body(2, "p1"), session=2, client="p1")
    driver.publish_synced(body(1, "p3"), session=3, client="p3")
    driver.publish_synced(body(1, "p4"), session=-1, client="p4")
    assert driver.refusals(2) == driver.refusals(3) == driver.refusals(-1) == []


def test_a_refused_event_does_not_count_as_a_name_that_was_brought() -> None:
    driver = Driver(Options(host_publishers_max=1))
    driver.origin.set_session_lookups(lambda _: "10.0.0.1", lambda _: True)
    driver.publish_synced(body(7, "early"), client="early")
    driver.publish_synced(body(1, "other"), client="other")
    assert [each.publisher for each in driver.refusals()] == ["early"]
