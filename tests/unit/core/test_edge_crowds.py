"""Many subscriptions on one stream: how, and how often, they hear that nothing was for them."""

from anabranch.core.edge.delivery import PROGRESS_CROWD, PROGRESS_TICKS_EACH
from anabranch.model.client_frames import Deliver
from tests.edge_parts import Rig


def crowd(rig: Rig, count: int) -> int:
    session = rig.connect()
    for number in range(count):
        rig.subscribe(session, f"s{number}", "price > 5")
    rig.arrive(silent=[(1, 1)])
    rig.wait(rig.options.done_every_s * 4)
    rig.frames[session] = []
    return session


def test_many_are_told_of_silence_in_proportion_to_the_ticks_there_were() -> None:
    rig = Rig()
    session = crowd(rig, 100)
    last = 1 + 100 * PROGRESS_TICKS_EACH
    for tick in range(2, last):
        rig.arrive(tick)
    assert rig.taken(session, Deliver) == []
    rig.arrive(last)
    told = rig.taken(session, Deliver)
    assert [frame.through for frame in told] == [last] * 100


def test_a_crowd_is_told_of_silence_some_at_a_time_and_everybody_in_the_end() -> None:
    rig = Rig()
    session = crowd(rig, 2 * PROGRESS_CROWD + 1)
    pause_s = rig.options.done_every_s
    rig.arrive(2)
    told: list[int] = []
    for _ in range(4):
        rig.wait(pause_s)
        told.append(len(rig.taken(session, Deliver)))
    assert told == [PROGRESS_CROWD, PROGRESS_CROWD, 1, 0]


def test_who_is_told_last_is_told_of_ticks_that_came_meanwhile() -> None:
    rig = Rig()
    session = crowd(rig, PROGRESS_CROWD + 1)
    rig.arrive(2)
    rig.wait(rig.options.done_every_s)
    assert {frame.through for frame in rig.taken(session, Deliver)} == {2}
    rig.arrive(3)
    rig.wait(rig.options.done_every_s)
    assert [frame.through for frame in rig.taken(session, Deliver)] == [3]
