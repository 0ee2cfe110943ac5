"""A broker that went on alone meets a neighbour: it tells nothing until its disk knows."""

import pytest
from msgspec.structs import replace

from anabranch.core import contract
from anabranch.core.broker import Broker, BrokerConfig
from anabranch.core.contract import Recovered
from anabranch.core.options import Options
from anabranch.core.origin.rollback import ALONE, TABLE
from anabranch.model.client_frames import Connect, Publish
from anabranch.model.encoding import encode_event
from anabranch.model.event import Event, EventId
from anabranch.model.frames import PROTOCOL_VERSION, Carry, Hello, Nack, Ping
from anabranch.model.network import tree_of_brokers

OPTIONS = Options(start_alone_after_s=1.0)
ASKING = Carry("B2", "B1", 3, Nack([(1, 5)]))


class Rig:
    """The edge B1 of B1 - B2, whose syncs end when the test says so."""

    def __init__(self, recovered: Recovered | None = None, now: float = 0.0) -> None:
        config = BrokerConfig("B1", tree_of_brokers({"B1": ["B2"]}), "tree", OPTIONS)
        self.broker = Broker(config, recovered or Recovered(), now)
        self.now = now
        self.effects: list[contract.Effect] = []
        #: What is on disk, and what is on its way there.
        self.recovered = recovered or Recovered()
        self._written: list[contract.Append | contract.Put] = []
        self._syncs: list[tuple[int, int]] = []
        self.handle(contract.Started())
        self.sync()

    def handle(self, stimulus: contract.Stimulus) -> list[contract.Effect]:
        found = list(self.broker.handle(self.now, stimulus))
        for effect in found:
            if isinstance(effect, contract.Append | contract.Put):
                self._written.append(effect)
            elif isinstance(effect, contract.Sync):
                self._syncs.append((effect.number, len(self._written)))
        self.effects += found
        return found

    def sync(self) -> None:
        """All that the broker wants on disk gets there."""
        while self._syncs:
            number, count = self._syncs.pop(0)
            catalog = {table: dict(rows) for table, rows in self.recovered.catalog.items()}
            records = list(self.recovered.records)
            for written in self._written[:count]:
                if isinstance(written, contract.Append):
                    records.append(written.record)
                elif written.value is None:
                    catalog.get(written.table, {}).pop(written.key, None)
                else:
                    catalog.setdefault(written.table, {})[written.key] = written.value
            del self._written[:count]
            self._syncs = [(later, left - count) for later, left in self._syncs]
            self.recovered = replace(self.recovered, catalog=catalog, records=records)
            self.handle(contract.Synced(number))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.handle(contract.TimePassed())
        self.sync()

    def publish(self, count: int) -> None:
        self.handle(contract.ClientConnected(1))
        self.handle(contract.ClientFrameReceived(1, Connect(PROTOCOL_VERSION, "c")))
        events = [Event({"n": n}).stamped(EventId("c", 1, n), 1) for n in range(1, count + 1)]
        self.handle(
            contract.ClientFrameReceived(1, Publish([encode_event(each) for each in events]))
        )
        self.sync()

    def greet(self, newest: int, life: int = 1) -> list[str]:
        """B2 greets; the kinds of frames that it is sent for that."""
        self.effects = []
        self.handle(contract.LinkUp("B2"))
        self.handle(contract.FrameReceived("B2", Hello(PROTOCOL_VERSION, "B2", life, newest)))
        return self.sent()

    def sent(self) -> list[str]:
        frames = [effect.frame for effect in self.effects if isinstance(effect, contract.Send)]
        return [type(frame).__name__ for frame in frames if not isinstance(frame, Ping)]


def alone() -> Rig:
    """It has published five events, and no neighbour has heard of them."""
    rig = Rig()
    rig.wait(1.0)
    assert rig.recovered.catalog[TABLE][ALONE] == b"0"
    rig.publish(5)
    assert rig.broker.origin is not None
    assert rig.broker.origin.head == 5
    return rig


def test_a_neighbour_is_told_of_the_stream_when_the_disk_knows_that_it_may() -> None:
    rig = alone()
    assert rig.greet(0) == ["Hello"]
    assert rig.recovered.catalog[TABLE] == {ALONE: b"0"}
    rig.sync()
    assert rig.recovered.catalog[TABLE] == {}
    assert len(rig.sent()) > 1


def test_a_crash_before_that_leaves_a_log_that_nobody_refutes() -> None:
    rig = alone()
    rig.greet(0)
    again = Rig(rig.recovered, rig.now + 1.0)
    told = 5 if len(rig.sent()) > 1 else 0
    again.greet(told)
    again.sync()
    assert again.broker.origin is not None
    assert again.broker.origin.inquiry is not None
    assert again.broker.origin.inquiry.state == "asking"
    again.wait(1.0)
    assert again.broker.origin.inquiry.state == "open"


def test_what_the_neighbour_says_meanwhile_is_heard_afterwards() -> None:
    answers = []
    for asks in (False, True):
        rig = alone()
        rig.greet(0)
        if asks:
            rig.handle(contract.FrameReceived("B2", ASKING))
            assert rig.sent() == ["Hello"]
        rig.sync()
        answers.append(rig.sent().count("Knowledge"))
        assert not [effect for effect in rig.effects if isinstance(effect, contract.CutLink)]
    assert answers[1] == answers[0] + 1


def test_a_neighbour_that_goes_meanwhile_is_forgotten() -> None:
    rig = alone()
    rig.greet(0)
    rig.handle(contract.FrameReceived("B2", ASKING))
    rig.handle(contract.LinkDown("B2"))
    rig.effects = []
    rig.sync()
    assert rig.sent() == []
    assert len(rig.greet(0, life=2)) > 1


def test_a_neighbour_that_says_too_much_meanwhile_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.core.broker._WAITING_FRAMES_MAX", 3)
    rig = alone()
    rig.greet(0)
    for _ in range(4):
        rig.handle(contract.FrameReceived("B2", ASKING))
    (cut,) = [effect for effect in rig.effects if isinstance(effect, contract.CutLink)]
    assert "waits for its disk" in cut.reason
