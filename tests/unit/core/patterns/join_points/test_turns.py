"""Turns: who waits longest is next, and nothing is left of who waits no more."""

from anabranch.core.patterns.join_points.join_point import FairQueue, TimerQueue


def test_who_waits_longest_is_next_though_others_want_one_again() -> None:
    turns = FairQueue()
    for number in range(5):
        turns.schedule(f"p{number}", number)
    taken = []
    for now in range(10, 20):
        key = turns.pop(now)
        assert key is not None
        taken.append(key)
        turns.schedule(key, now + 1)
    assert taken == ["p0", "p1", "p2", "p3", "p4"] * 2


def test_the_last_time_that_was_said_counts() -> None:
    turns = FairQueue()
    turns.schedule("a", 1.0)
    turns.schedule("a", 5.0)
    turns.schedule("b", 7.0)
    turns.schedule("b", 3.0)
    assert turns.pop(2.0) is None
    assert turns.next_at() == 3.0
    assert turns.pop(4.0) == "b"
    assert turns.pop(4.0) is None
    assert turns.next_at() == 5.0
    assert turns.pop(8.0) == "a"
    assert turns.pop(8.0) is None
    assert turns.next_at() is None


def test_one_that_waits_may_want_it_later_or_no_more() -> None:
    turns = FairQueue()
    for key in ("a", "b", "c"):
        turns.schedule(key, 1.0)
    assert turns.pop(2.0) == "a"
    turns.schedule("b", 9.0)
    turns.remove("c")
    assert turns.pop(3.0) is None
    assert turns.next_at() == 9.0


def test_keys_that_were_taken_off_leave_nothing_behind() -> None:
    agenda = TimerQueue()
    agenda.add("stays", 2e9)
    for number in range(10_000):
        agenda.add(f"p{number}", 1e9 + number)
        agenda.remove(f"p{number}")
    assert len(agenda) < 100
    assert agenda.next_at() == 2e9
