"""What clients leave behind or leave lying keeps no log from being forgotten, and makes no event
dear."""

import pytest

from anabranch.core.edge import delivery
from anabranch.core.edge.reorder_buffer import Run
from anabranch.model.client_frames import Refused
from anabranch.model.encoding import Envelope
from anabranch.model.filter import Filter
from anabranch.model.frames import Replay
from tests.edge_parts import Rig


def test_one_name_for_a_durable_and_another_subscription_at_once_leaves_nothing_behind() -> None:
    rig = Rig(syncs=False)
    rig.sync()
    session = rig.connect()
    rig.subscribe(session, "x", "zzz = 1", quality="durable", number=1)
    refused = rig.subscribe(session, "x", "zzz = 1", quality="reliable")
    rig.syncs = True
    rig.sync()
    assert [frame.request for frame in rig.taken(session, Refused)] == [refused]
    rig.unsubscribe(session, "x")
    rig.leave(session)
    for stream in "abc":
        rig.arrive(silent=[(1, 50)], stream=stream)
    rig.wait(5.0)
    assert rig.edge.filters() == {}
    assert rig.done("b") == 50


def test_a_new_durable_subscription_that_nobody_heard_of_is_taken_back() -> None:
    rig = Rig(syncs=False)
    rig.sync()
    for number in (1, 2):
        session = rig.connect()
        rig.subscribe(session, "d", "TRUE", quality="durable", number=number)
        rig.leave(session)
    rig.syncs = True
    rig.sync()
    rig.wait(1.0)
    assert rig.edge.durable() == []


def test_slow_durable_subscribers_cost_an_event_nothing_but_a_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    looked_for = delivery.is_match

    def counting(run: Run, envelope: Envelope, filter: Filter) -> bool:
        looks.append(run.first)
        return looked_for(run, envelope, filter)

    monkeypatch.setattr(delivery, "is_match", counting)
    rig = Rig()
    session = rig.connect()
    for place in range(20):
        rig.subscribe(session, f"d{place}", "TRUE", quality="durable", number=1, window=1)
    rig.arrive(silent=[(1, 1)])
    rig.arrive(2, 3)
    rig.frames[session] = []
    looks.clear()
    rig.arrive(4, 5, 6)
    assert looks == []
    assert rig.delivered(session) == []
    assert rig.asked(Replay) == []
    rig.ack(session, {"b": 2}, "d0")
    assert rig.delivered(session) == [3]
