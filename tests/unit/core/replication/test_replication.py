"""Replication beside the other parts of a broker: the gate, the rows, and who is concerned."""

import random
from collections.abc import Iterable

import pytest

from anabranch.core import contract
from anabranch.core.broker import BrokerConfig
from anabranch.core.contract import Append, Put, Recovered
from anabranch.core.options import Options
from anabranch.core.replication.replication import Replication
from anabranch.core.replication.writer import StreamWriter
from anabranch.model.errors import RemoteError
from anabranch.model.frames import Carry
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.network import graph_of_brokers, tree_of_brokers
from anabranch.model.replication import AskLife, ForReplication, LifeAnswer, TicksKept
from anabranch.sim.world import Weather, World
from anabranch.wire.codec import encode_link
from tests.frame_parts import CLIENT_TYPES
from tests.replication_parts import RECORD, STREAM, life
from tests.unit.core.replication.test_writer import K, L, founded

NETWORK = graph_of_brokers([("a", "k"), ("k", "l"), ("a", "l")])


def beside(writer: StreamWriter) -> Replication:
    """The replication of a broker with this writer."""
    replication = Replication(
        "a", NETWORK, Options(copies=3, confirm=2), DEFAULT_LIMITS, Recovered({}, 1, (), 1), 7
    )
    replication.writer = writer
    return replication


def released(replication: Replication) -> list[object]:
    return [who for who, _, _ in replication.released()]


# -- the gate --------------------------------------------------------------------------------------


def test_a_sync_is_done_when_its_ticks_are_confirmed() -> None:
    alone = founded(confirm=2)
    replication = beside(alone.writer)
    replication.observe([Append(2, RECORD)])
    alone.take(alone.writer.flush(alone.now))
    replication.requested(1)
    replication.gate("origin", 5, 1)
    alone.take(replication.synced(alone.now, 1))
    assert released(replication) == []
    alone.hear("k", TicksKept(STREAM, alone.writer.life, K, 2))
    assert released(replication) == ["origin"]


def test_syncs_are_done_in_their_order() -> None:
    alone = founded(confirm=2)
    replication = beside(alone.writer)
    for number, tick in ((1, 2), (2, 3)):
        replication.observe([Append(tick, RECORD)])
        replication.requested(number)
        replication.gate(number, 5, number)
    alone.take(alone.writer.flush(alone.now))
    alone.take(replication.synced(alone.now, 2))
    alone.hear("l", TicksKept(STREAM, alone.writer.life, L, 2))
    assert released(replication) == [1]
    alone.hear("l", TicksKept(STREAM, alone.writer.life, L, 3))
    assert released(replication) == [2]


# -- rows ------------------------------------------------------------------------------------------


def test_rows_of_a_step_are_carried_in_the_stream() -> None:
    replication = beside(founded(confirm=2).writer)
    replication.observe([Put("sinks", "s", b"1"), Put("marks", "m", b"2")])
    assert list(replication.rows_to_append()) == [[("sinks", "s", b"1")]]


def test_rows_wait_until_a_life_is_confirmed() -> None:
    alone = founded(confirm=2)
    replication = beside(alone.writer)
    alone.writer.state = "beginning"
    replication.observe([Put("sinks", "s", b"1")])
    assert not list(replication.rows_to_append())
    alone.writer.state = "leading"
    assert list(replication.rows_to_append()) == [[("sinks", "s", b"1")]]


# -- who is concerned ------------------------------------------------------------------------------


def test_a_broker_without_copies_has_no_writer_and_refuses_messages_for_one() -> None:
    replication = Replication("a", NETWORK, Options(), DEFAULT_LIMITS, Recovered({}, 1, (), 1), 7)
    assert replication.writer is None
    with pytest.raises(RemoteError, match="has no copies"):
        replication.carried(1.0, "k", TicksKept(STREAM, life(5), K, 1))


def test_no_frame_of_a_client_contains_a_message_about_copies() -> None:
    names = {kind.__name__ for kind in CLIENT_TYPES}
    for kind in (AskLife, LifeAnswer, TicksKept):
        assert kind.__name__ not in names
        assert not any(issubclass(each, kind) for each in CLIENT_TYPES)


# -- whole brokers ---------------------------------------------------------------------------------


def running(copies: int, confirm: int) -> World:
    """Three brokers in a row, "a", "b" and "c", whose streams have copies."""
    network = tree_of_brokers({"a": ["b"], "b": ["c"]})
    options = Options(copies=copies, confirm=confirm, ask_again_s=0.2, start_alone_after_s=0.5)
    configs = [BrokerConfig(name, network, options=options) for name in network.brokers]
    world = World(configs, random.Random(1), Weather())
    for name in network.brokers:
        world.start(name)
    world.run_until(3.0)
    return world


def say(world: World, source: str, target: str, content: ForReplication) -> None:
    """Somebody next to a broker says something in the name of another one."""
    peer = "b" if target != "b" else source
    frame = Carry(source, target, 5, content)
    encode_link(frame)
    world.stimulate(target, contract.FrameReceived(peer, frame))


def leading(world: World) -> Iterable[bool]:
    for host in world.hosts.values():
        assert host.broker is not None
        writer = host.broker.replication.writer
        assert writer is not None
        yield writer.is_leading and host.broker.is_serving


def test_brokers_serve_clients_when_their_streams_have_copies() -> None:
    assert all(leading(running(3, 2)))


def test_false_messages_about_copies_are_noted_and_cut_no_link() -> None:
    world = running(2, 2)
    notes: list[str] = []
    world.listener = lambda _now, _name, effect: (
        notes.append(effect.text) if isinstance(effect, contract.Note) else None
    )
    broker = world.hosts["a"].broker
    assert broker is not None
    writer = broker.replication.writer
    assert writer is not None
    copy = writer.copies.members[1] if writer.copies else K
    say(world, copy.broker, "a", TicksKept("a", writer.life, copy, 1 << 40))
    say(world, "c", "a", AskLife("c", life(5)))
    assert any("which does not exist" in note for note in notes)
    assert any("asks for a life of 'a'" in note for note in notes)
    assert not world.count.breaches
    world.run_until(world.now + 3.0)
    assert all(leading(world))


def test_a_keeper_that_claims_a_higher_life_costs_a_new_life_and_nothing_else() -> None:
    world = running(2, 2)
    broker = world.hosts["a"].broker
    assert broker is not None
    writer = broker.replication.writer
    assert writer is not None
    assert writer.copies is not None
    copy, before = writer.copies.members[1], writer.life
    higher = life(before.number + 1_000)
    say(world, copy.broker, "a", LifeAnswer("a", before, higher, copy))
    world.run_until(world.now + 3.0)
    assert all(leading(world))
    assert writer.life > higher
