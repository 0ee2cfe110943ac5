"""Many subscriptions on one stream: how, and how often, they hear that nothing was for them."""

from random import Random

from anabranch.core.edge.delivery import PROGRESS_POSITIONS_MAX, PROGRESS_TICKS_EACH
from anabranch.core.edge.reorder_buffer import ReorderBuffer
from anabranch.core.edge.subscriptions import EdgeStream, EdgeSubscription, StreamPosition
from anabranch.model.client_frames import Quality
from anabranch.model.filter import Filter
from anabranch.model.version import NOTHING, Version
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
    assert rig.matches(session) == []
    rig.arrive(last)
    assert [each.through for each in rig.matches(session)] == [last] * 100


def test_a_crowd_is_told_of_silence_some_at_a_time_and_everybody_in_the_end() -> None:
    rig = Rig()
    session = crowd(rig, 2 * PROGRESS_POSITIONS_MAX + 1)
    pause_s = rig.options.done_every_s
    rig.arrive(2)
    told: list[int] = []
    for _ in range(4):
        rig.wait(pause_s)
        told.append(len(rig.matches(session)))
    assert told == [PROGRESS_POSITIONS_MAX, PROGRESS_POSITIONS_MAX, 1, 0]


def test_who_is_told_last_is_told_of_ticks_that_came_meanwhile() -> None:
    rig = Rig()
    session = crowd(rig, PROGRESS_POSITIONS_MAX + 1)
    rig.arrive(2)
    rig.wait(rig.options.done_every_s)
    assert {each.through for each in rig.matches(session)} == {2}
    rig.arrive(3)
    rig.wait(rig.options.done_every_s)
    assert [each.through for each in rig.matches(session)] == [3]


def test_the_floor_is_the_highest_version_that_anybody_live_needs() -> None:
    stream = EdgeStream("b", ReorderBuffer(16, 1_000, 1_000), 1)
    random = Random(7)
    live: list[StreamPosition] = []
    for number in range(2_000):
        if live and random.random() < 0.45:
            stream.suspend(live.pop(random.randrange(len(live))))
        else:
            quality: Quality = random.choice(("reliable", "best-effort"))
            every = Filter.parse("TRUE")
            who = EdgeSubscription(f"s{number}", "s", "c", every, quality=quality, number=1)
            who.set_version(Version(1, random.randrange(50)))
            live.append(who.start(stream, 1))
            stream.go_live(live[-1])
        needs = [
            position.required_version
            for position in live
            if position.subscription.quality == "reliable"
        ]
        assert stream.required_version() == max(needs, default=NOTHING)
        assert stream.lossless_count == len(needs)
