"""Moves of cursors: written together, in few rows however long it goes on, right after a crash."""

from random import Random

from anabranch.core.edge.cursors import KEPT_MIN, MOVES
from anabranch.model.client_frames import Ack, Subscribed
from anabranch.model.frames import Held, Hold
from tests.edge_parts import Rig

PLENTY = 60_000


def subscribed(rig: Rig, session: int, *names: str) -> None:
    """Durable subscriptions that are live on stream b, from tick 1 on."""
    for name in names:
        rig.subscribe(session, name, quality="durable", number=1, window=PLENTY)
    rig.arrive(silent=[(1, 1)])


def crowd(rig: Rig, count: int) -> tuple[int, list[str]]:
    session = rig.connect()
    names = [f"s{number}" for number in range(count)]
    subscribed(rig, session, *names)
    return session, names


def ack(rig: Rig, session: int, tick: int, *names: str) -> None:
    rig.client(session, Ack({"b": dict.fromkeys(names, tick)}))


def stands_at(rig: Rig, *names: str) -> list[int]:
    """Where these stand on stream b in the next life."""
    reborn = rig.crash()
    session = reborn.connect()
    for name in names:
        reborn.subscribe(session, name, quality="durable", start="resume", number=99)
    return [frame.ticks["b"] for frame in reborn.taken(session, Subscribed)]


def test_what_moves_together_is_one_row() -> None:
    rig = Rig()
    session, names = crowd(rig, 50)
    rig.arrive(2, 3)
    ack(rig, session, 2, *names[:20])
    ack(rig, session, 3, *names[10:])
    rig.wait(1.0)
    assert list(rig.catalog[MOVES]) == ["1"]
    assert stands_at(rig, *names) == [2] * 10 + [3] * 40


def test_of_several_moves_the_last_counts() -> None:
    rig = Rig()
    session, names = crowd(rig, 2)
    for tick in (2, 3, 4):
        rig.arrive(tick)
        ack(rig, session, tick, names[0])
        rig.wait(1.0)
    assert list(rig.catalog[MOVES]) == ["1", "2", "3"]
    assert stands_at(rig, *names) == [4, 0]


def test_rows_are_few_however_long_it_goes_on_and_who_rests_stays_where_it_is() -> None:
    rig = Rig()
    session, names = crowd(rig, 5)
    rig.arrive(2)
    ack(rig, session, 2, "s0")
    for tick in range(3, 10 * KEPT_MIN):
        rig.arrive(tick)
        ack(rig, session, tick, "s1", "s2")
        rig.wait(1.0)
    assert len(rig.catalog[MOVES]) <= KEPT_MIN + 2 * len(names)
    assert stands_at(rig, "s0", "s1", "s2") == [2, tick, tick]


def test_moves_go_on_counting_when_no_row_is_left_to_count_from() -> None:
    rig = Rig()
    session, (name,) = crowd(rig, 1)
    number = 1
    for tick in range(2, 6):
        rig.arrive(tick)
        ack(rig, session, tick, name)
        rig.wait(1.0)
        for _ in range(2):
            # Coming back puts the cursor itself: its moves are void, and swept in the next life.
            rig = rig.crash()
            rig.arrive(silent=[(1, tick)])
            session = rig.connect()
            number += 1
            rig.subscribe(session, name, quality="durable", number=number, window=PLENTY)
        assert rig.catalog[MOVES] == {}
        assert stands_at(rig, name) == [tick]


def test_a_subscription_made_anew_does_not_inherit_where_the_former_one_stood() -> None:
    rig = Rig()
    session, (name,) = crowd(rig, 1)
    rig.arrive(*range(2, 10))
    ack(rig, session, 9, name)
    rig.wait(1.0)
    rig.unsubscribe(session, name)
    rig.subscribe(session, name, quality="durable", number=1, start="tick", ticks={"b": 4})
    rig.say("b", Held(rig.asked(Hold, "b")[-1].request, 9))
    assert rig.catalog[MOVES] != {}
    assert stands_at(rig, name) == [4]


def test_whatever_of_it_reaches_the_disk_no_cursor_goes_back_or_too_far() -> None:
    draw = Random(7)
    rig = Rig()
    session, names = crowd(rig, 12)
    safe = dict.fromkeys(names, 0)
    acked = dict.fromkeys(names, 1)
    rig.syncs = False
    for tick in range(2, 120):
        rig.arrive(tick)
        moving = draw.sample(names, draw.randrange(1, 7))
        ack(rig, session, tick, *moving)
        acked |= dict.fromkeys(moving, tick)
        rig.wait(rig.options.done_every_s * 1.5)
        rig.write(draw.randrange(len(rig.unsynced) + 1))
        found = dict(zip(names, stands_at(rig, *names), strict=True))
        assert all(safe[name] <= found[name] <= acked[name] for name in names)
        if draw.random() < 0.5:
            rig.sync()
            safe = dict(zip(names, stands_at(rig, *names), strict=True))
    assert max(map(int, rig.catalog[MOVES])) > len(rig.catalog[MOVES])


def test_a_row_that_cannot_be_read_moves_its_cursors_back() -> None:
    rig = Rig()
    session, (name,) = crowd(rig, 1)
    rig.arrive(2)
    (before,) = stands_at(rig, name)
    ack(rig, session, 2, name)
    rig.wait(1.0)
    assert stands_at(rig, name) == [2]
    rig.catalog[MOVES]["1"] = b"\xc1"
    assert stands_at(rig, name) == [before]
    assert before < 2
