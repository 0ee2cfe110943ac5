"""Durable subscriptions at one edge: starts on disk, cursors, crashes, coming back, Done."""

from itertools import pairwise
from typing import Any

from anabranch.core.options import Options
from anabranch.model.client_frames import Cut, Deliver, Refused, StartsAt, Subscribed, Unsubscribed
from anabranch.model.frames import Done, Held, Hold, Replay
from anabranch.model.version import NOTHING
from tests.edge_parts import ALONE, Rig, datum


def durable(rig: Rig, session: int, **rest: Any) -> int:
    return rig.subscribe(session, "s", **{"quality": "durable", "number": 1, **rest})


def started(rig: Rig, **rest: Any) -> int:
    """A session with a durable subscription that is live on stream b, at tick 1."""
    session = rig.connect()
    durable(rig, session, **rest)
    rig.arrive(silent=[(1, 1)])
    rig.frames[session] = []
    return session


def comes_back(rig: Rig, number: int, ticks: dict[str, int], **rest: Any) -> int:
    """A new session that resumes the subscription."""
    session = rig.connect()
    durable(rig, session, start="resume", number=number, ticks=ticks, **rest)
    return session


# -- standing and starting


def test_durable_subscription_stands_only_when_it_is_on_disk() -> None:
    rig = Rig(network=ALONE, syncs=False)
    rig.sync()
    session = rig.connect()
    request = durable(rig, session)
    assert rig.frames.get(session, []) == []
    assert rig.interest == {}
    rig.sync()
    assert rig.frames[session] == [Subscribed(request, "s", 1, {})]
    assert list(rig.interest) == ["s"]
    assert list(rig.crash().interest) == ["s"]


def test_start_and_first_delivery_wait_until_the_cursor_is_on_disk() -> None:
    rig = Rig()
    session = rig.connect()
    durable(rig, session)
    rig.syncs = False
    rig.arrive(5)
    rig.arrive(6)
    assert rig.taken(session, StartsAt) == []
    assert rig.taken(session, Deliver) == []
    rig.sync()
    assert rig.taken(session, StartsAt) == [StartsAt("s", "b", 5)]
    assert rig.delivered(session) == [5, 6]
    assert rig.asked(Replay) == []
    rig.arrive(7)
    assert rig.delivered(session) == [7]


def test_start_that_was_not_synced_is_forgotten_by_a_crash_and_comes_later() -> None:
    rig = Rig()
    session = rig.connect()
    durable(rig, session)
    rig.syncs = False
    rig.arrive(5)
    rig = rig.crash()
    session = comes_back(rig, 2, {})
    rig.arrive(9)
    assert rig.taken(session, StartsAt) == [StartsAt("s", "b", 9)]


def test_start_on_disk_is_kept_by_a_crash_and_told_to_the_client() -> None:
    rig = Rig()
    session = rig.connect()
    durable(rig, session)
    rig.syncs = False
    rig.arrive(5)
    rig.write(len(rig.unsynced))
    rig = rig.crash()
    session = comes_back(rig, 2, {})
    assert rig.taken(session, StartsAt) == [StartsAt("s", "b", 5)]
    assert [each.first for each in rig.asked(Replay)] == [5]


def test_durable_subscription_starts_on_streams_while_its_client_is_away() -> None:
    rig = Rig()
    session = started(rig)
    rig.leave(session)
    rig.arrive(8, stream="c")
    rig.arrive(9, stream="c")
    session = comes_back(rig, 2, {"b": 0})
    assert rig.taken(session, StartsAt) == [StartsAt("s", "c", 8)]
    assert rig.delivered(session, "c") == [8, 9]


# -- coming back


def test_client_that_comes_back_gets_what_it_missed_and_nothing_twice() -> None:
    rig = Rig()
    session = started(rig)
    rig.arrive(2, 3)
    assert rig.delivered(session) == [2, 3]
    rig.ack(session, {"b": 2})
    rig.leave(session)
    rig.arrive(4)
    session = comes_back(rig, 2, {"b": 3})
    subscribed = rig.taken(session, Subscribed)
    assert [(each.number, each.ticks) for each in subscribed] == [(2, {"b": 3})]
    assert rig.delivered(session) == [4]


def test_own_cursor_counts_if_the_client_remembers_less() -> None:
    rig = Rig()
    session = started(rig)
    rig.arrive(2, 3)
    rig.ack(session, {"b": 3})
    rig.leave(session)
    session = comes_back(rig, 2, {"b": 1})
    assert [each.ticks for each in rig.taken(session, Subscribed)] == [{"b": 3}]


def test_client_that_died_with_events_in_hand_gets_them_again() -> None:
    rig = Rig()
    session = started(rig)
    rig.arrive(2, 3, 4)
    rig.ack(session, {"b": 2})
    rig.leave(session)
    session = comes_back(rig, 2, {"b": 2})
    assert rig.delivered(session) == [3, 4]


def test_repeated_loss_of_the_client_between_events_repeats_nothing() -> None:
    rig = Rig()
    session = started(rig)
    for tick in range(2, 30):
        rig.arrive(tick)
        assert rig.delivered(session) == [tick]
        rig.ack(session, {"b": tick})
        rig.leave(session)
        session = comes_back(rig, tick, {"b": tick})
    assert rig.asked(Replay) == []


def test_stale_number_is_refused() -> None:
    rig = Rig()
    session = started(rig, number=5)
    rig.leave(session)
    session = comes_back(rig, 4, {})
    assert len(rig.taken(session, Refused)) == 1
    assert rig.taken(session, Subscribed) == []


def test_same_number_is_accepted_again() -> None:
    rig = Rig()
    session = started(rig, number=5)
    rig.leave(session)
    session = comes_back(rig, 5, {})
    assert [each.number for each in rig.taken(session, Subscribed)] == [5]


def test_asking_for_a_known_one_anew_resumes_it() -> None:
    rig = Rig()
    session = started(rig)
    rig.arrive(2)
    rig.leave(session)
    session = rig.connect()
    durable(rig, session, start="now", number=2)
    assert rig.taken(session, StartsAt) == [StartsAt("s", "b", 1)]
    assert rig.delivered(session) == [2]


# -- crashes


def test_crash_keeps_subscription_and_cursor_and_replays_from_there() -> None:
    rig = Rig()
    session = started(rig)
    rig.arrive(2, 3)
    rig.ack(session, {"b": 2})
    rig.wait(1.0)
    rig = rig.crash()
    assert list(rig.interest) == ["s"]
    rig.arrive(20)
    session = comes_back(rig, 2, {"b": 2})
    replay = rig.asked(Replay, "b")[0]
    assert (replay.first, replay.filters) == (3, ["TRUE"])


def test_acks_of_a_client_that_has_left_are_written_at_once() -> None:
    rig = Rig()
    session = started(rig)
    rig.arrive(2, 3, 4)
    rig.ack(session, {"b": 2})
    rig.syncs = False
    rig.wait(1.0)
    rig.ack(session, {"b": 3})
    # A write is on its way to the disk: the next one waits for it.
    rig.leave(session)
    rig.sync()
    rig.sync()
    rig = rig.crash()
    comes_back(rig, 2, {})
    assert [each.first for each in rig.asked(Replay)] == [4]


def test_acks_that_were_not_written_are_made_good_by_the_client() -> None:
    rig = Rig()
    session = started(rig)
    rig.arrive(2, 3)
    rig.ack(session, {"b": 3})
    rig = rig.crash()
    session = comes_back(rig, 2, {"b": 3})
    assert [each.ticks for each in rig.taken(session, Subscribed)] == [{"b": 3}]
    assert [each.first for each in rig.asked(Replay)] == [4]


def test_every_beginning_of_what_was_put_recovers_to_something_whole() -> None:
    rig = Rig(syncs=False)
    rig.sync()
    session = rig.connect()
    durable(rig, session, start="tick", ticks={"b": 5, "c": 7}, number=3)
    assert rig.unsynced == []
    for stream in ("b", "c"):
        rig.say(stream, Held(rig.asked(Hold, stream)[-1].request, 100))
    count = len(rig.unsynced)
    assert count == 3
    for kept in range(count + 1):
        twin = Rig(catalog=rig.catalog, syncs=False)
        for put in rig.unsynced[:kept]:
            twin.catalog.setdefault(put.table, {})[put.key] = put.value or b""
        reborn = twin.crash()
        assert list(reborn.interest) == (["s"] if kept == count else [])
        assert len(reborn.catalog.get("cursors", {})) == (2 if kept == count else 0)


# -- slow


def test_durable_subscription_with_a_full_window_falls_behind_and_catches_up() -> None:
    rig = Rig()
    session = started(rig, window=2)
    rig.arrive(2, 3, 4, 5)
    assert rig.delivered(session) == [2, 3]
    assert rig.taken(session, Cut) == []
    rig.arrive(6)
    rig.ack(session, {"b": 3})
    assert rig.delivered(session) == [4, 5]
    rig.ack(session, {"b": 5})
    rig.arrive(7)
    assert rig.delivered(session) == [6, 7]


def test_durable_subscription_of_a_full_session_waits_until_it_is_not() -> None:
    rig = Rig()
    session = started(rig)
    rig.do(rig.edge.client_full(rig.now, session, True))
    rig.arrive(2)
    assert rig.delivered(session) == []
    rig.do(rig.edge.client_full(rig.now, session, False))
    assert rig.delivered(session) == [2]


# -- ending


def test_unsubscribed_is_told_when_the_disk_has_forgotten_and_then_the_interest_shrinks() -> None:
    rig = Rig(network=ALONE)
    session = rig.connect()
    durable(rig, session)
    rig.arrive(1, stream="a")
    rig.syncs = False
    request = rig.unsubscribe(session)
    assert rig.taken(session, Unsubscribed) == []
    assert list(rig.interest) == ["s"]
    rig.arrive(2, stream="a")
    rig.sync()
    assert rig.taken(session, Unsubscribed) == [Unsubscribed(request, "s", {"a": 1})]
    assert rig.interest == {}
    assert rig.catalog["subscriptions"] == {}
    assert rig.catalog["cursors"] == {}


def test_name_that_is_being_forgotten_can_be_asked_for_at_once() -> None:
    rig = Rig(network=ALONE)
    session = rig.connect()
    durable(rig, session, filter="price > 1")
    rig.arrive(datum(1, 2), stream="a")
    rig.syncs = False
    rig.unsubscribe(session)
    request = durable(rig, session, number=2)
    assert rig.taken(session, Refused) == []
    rig.syncs = True
    rig.sync()
    assert [each.request for each in rig.taken(session, Subscribed)][-1] == request
    assert list(rig.interest) == ["s"]


# -- Done


def test_done_is_the_position_where_there_is_no_subscription() -> None:
    rig = Rig()
    rig.arrive(silent=[(1, 7)])
    assert rig.done("b") == 7
    assert rig.done("c") is None


def test_done_is_what_the_slowest_subscription_has_acknowledged() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, "one")
    rig.subscribe(session, "two")
    rig.subscribe(session, "three", quality="best-effort")
    rig.arrive(1, 2, 3)
    rig.ack(session, {"b": 3}, "one")
    rig.ack(session, {"b": 2}, "two")
    assert rig.done() == 2


def test_done_of_a_durable_subscription_is_what_the_disk_has() -> None:
    rig = Rig()
    session = started(rig)
    rig.arrive(2, 3)
    assert rig.done() == 0
    rig.syncs = False
    rig.ack(session, {"b": 3})
    rig.wait(2.0)
    assert [each.tick for each in rig.asked(Done, "b") if each.tick > 0] == []
    rig.sync()
    assert [each.tick for each in rig.asked(Done, "b")] == [3]


def test_done_stays_at_the_cursor_while_the_client_is_away() -> None:
    rig = Rig()
    session = started(rig)
    rig.arrive(2)
    rig.ack(session, {"b": 2})
    assert rig.done() == 2
    rig.leave(session)
    rig.arrive(silent=[(3, 50)])
    rig.wait(5.0)
    assert all(each.tick == 2 for each in rig.asked(Done, "b"))


def test_done_never_passes_what_exists_whatever_a_client_claims() -> None:
    rig = Rig()
    session = started(rig)
    rig.leave(session)
    comes_back(rig, 2, {"b": 1_000_000})
    rig.arrive(silent=[(2, 9)])
    assert rig.done() == 9


def test_done_is_repeated_less_and_less_often() -> None:
    rig = Rig(options=Options(done_every_s=1.0))
    rig.arrive(silent=[(1, 7)])
    times = []
    for _ in range(300):
        rig.wait(1.0)
        if rig.asked(Done, "b"):
            times.append(round(rig.now))
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == [8, 16, 32, 64, 64, 64]


def test_done_of_an_active_stream_does_not_keep_others_from_being_repeated() -> None:
    rig = Rig(options=Options(done_every_s=1.0))
    rig.arrive(silent=[(1, 7)], stream="c")
    rig.wait(3.0)
    rig.asked(Done)
    for tick in range(1, 20):
        rig.arrive(tick)
        rig.wait(1.0)
    assert [each.tick for each in rig.asked(Done, "c")] == [7]


def test_start_holds_done_back() -> None:
    rig = Rig()
    rig.arrive(silent=[(1, 9)], version=NOTHING)
    assert rig.done() == 9
    session = rig.connect()
    durable(rig, session)
    rig.syncs = False
    rig.arrive(10, 11)
    rig.wait(3.0)
    assert all(each.tick <= 9 for each in rig.asked(Done, "b"))
