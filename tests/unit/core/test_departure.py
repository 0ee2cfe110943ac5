"""A broker leaves its network: it takes nothing new, and says when nobody needs it any more."""

from collections.abc import Mapping

from anabranch.core import contract
from anabranch.core.broker import Broker, BrokerConfig
from anabranch.core.client_services import Departure
from anabranch.core.options import Options
from anabranch.model.client_frames import (
    DEPARTING,
    Commit,
    Connect,
    Cut,
    Publish,
    PublishRefused,
    Stage,
)
from anabranch.model.frames import PROTOCOL_VERSION, Claim, Done, Hold, NotKept, Yield
from anabranch.model.network import Network
from tests.edge_parts import Rig
from tests.origin_parts import EDGES, Driver, body
from tests.staging_parts import draft

ALONE = Network({"a": ["a"]})
NOW = 100.0
Rows = dict[str, dict[str, bytes]]


class Alone:
    """A broker without neighbours, and its disk."""

    def __init__(self, catalog: Mapping[str, dict[str, bytes]], revision: int = 1) -> None:
        self.catalog: Rows = {table: dict(rows) for table, rows in catalog.items()}
        self.puts: list[contract.Put] = []
        self.syncs: list[int] = []
        self.said: list[contract.Effect] = []
        self.now = NOW
        recovered = contract.Recovered({table: dict(rows) for table, rows in self.catalog.items()})
        config = BrokerConfig("a", ALONE, options=Options(), revision=revision)
        self.broker = Broker(config, recovered, NOW)
        self.tell(contract.Started())
        self.sync()

    def tell(self, stimulus: contract.Stimulus) -> None:
        for effect in self.broker.handle(self.now, stimulus):
            self.said.append(effect)
            if isinstance(effect, contract.Put):
                self.puts.append(effect)
            elif isinstance(effect, contract.Sync):
                self.syncs.append(effect.number)

    def sync(self) -> None:
        while self.syncs:
            for put in self.puts:
                rows = self.catalog.setdefault(put.table, {})
                if put.value is None:
                    rows.pop(put.key, None)
                else:
                    rows[put.key] = put.value
            self.puts.clear()
            self.tell(contract.Synced(self.syncs.pop(0)))


# -- the broker ----------------------------------------------------------------------------------


def test_a_broker_without_events_is_drained_when_the_disk_knows_that_it_departs() -> None:
    alone = Alone({})
    assert not alone.broker.is_drained
    alone.tell(contract.Depart())
    assert not alone.broker.is_drained
    alone.sync()
    assert alone.broker.is_drained


def test_a_departure_outlives_a_crash() -> None:
    before = Alone({})
    before.tell(contract.Depart())
    before.sync()
    after = Alone(before.catalog)
    assert after.broker.is_drained
    after.tell(contract.ClientConnected(1))
    after.tell(contract.ClientFrameReceived(1, Connect(PROTOCOL_VERSION, "p")))
    after.tell(contract.ClientFrameReceived(1, Publish([body(1)])))
    sent = [effect.frame for effect in after.said if isinstance(effect, contract.SendClient)]
    assert sent == [PublishRefused("p", 1, 1, contract.DEPARTURE_REASON, True, code=DEPARTING)]


def test_a_later_network_with_the_broker_in_it_ends_its_departure() -> None:
    before = Alone({})
    before.tell(contract.Depart())
    before.sync()
    after = Alone(before.catalog, revision=2)
    assert after.broker.departure is None
    assert "departing" not in after.catalog["broker"]


def test_a_broker_that_departs_writes_the_batch_that_it_intends_to_write_and_waits_for_it() -> None:
    alone = Alone({})
    alone.tell(contract.ClientConnected(1))
    alone.tell(contract.ClientFrameReceived(1, Connect(PROTOCOL_VERSION, "driver")))
    alone.tell(contract.ClientFrameReceived(1, Stage(1, "t", 0, [draft(1), draft(2)], True)))
    alone.sync()
    alone.tell(contract.ClientFrameReceived(1, Commit(2, "sink", "q", 0, ("t",))))
    alone.tell(contract.Depart())
    assert alone.broker.departure == Departure(1, 0)
    alone.sync()
    assert alone.broker.last_needed_tick == 2
    drained = []
    for _ in range(20):
        drained.append(alone.broker.is_drained)
        alone.now += 0.5
        alone.tell(contract.TimePassed())
        alone.sync()
    assert (drained[0], drained[-1]) == (False, True)
    assert [effect.tick for effect in alone.said if isinstance(effect, contract.Append)] == [1, 2]
    assert alone.broker.origin is not None
    assert alone.broker.origin.oldest == 3


# -- its origin ----------------------------------------------------------------------------------


def test_a_departing_origin_refuses_new_events_for_good_and_confirms_those_it_has() -> None:
    driver = Driver()
    driver.publish_synced(body(1))
    driver.origin.depart(driver.now)
    driver.publish(body(1), body(2), session=2)
    assert driver.confirmations(session=2) == [("p", 1, 1)]
    assert driver.refusals(session=2) == [
        PublishRefused("p", 1, 2, contract.DEPARTURE_REASON, True, code=DEPARTING)
    ]


def test_a_departing_origin_keeps_nothing_that_nobody_needs() -> None:
    driver = Driver(Options(keep_s=3_600.0))
    driver.publish_synced(body(1))
    for edge in EDGES:
        driver.carry(Done(1), edge)
    driver.wait(10.0)
    assert driver.origin.oldest == 1
    driver.origin.depart(driver.now)
    driver.wait(10.0)
    assert driver.origin.oldest == 2


def test_edges_that_are_not_done_are_named_and_forgotten_ticks_are_not_held_again() -> None:
    driver = Driver()
    driver.publish_synced(body(1))
    driver.origin.depart(driver.now)
    driver.carry(Done(1), "a")
    assert driver.origin.edges_needing(1) == ["b", "c"]
    for edge in ("b", "c"):
        driver.carry(Done(1), edge)
    driver.wait(10.0)
    driver.sync_all()
    driver.carry(Hold(7, 0), "b")
    assert driver.carried[-1] == ("b", NotKept(7, 2))
    assert driver.origin.edges_needing(1) == []


# -- its edge ------------------------------------------------------------------------------------


def test_sessions_are_cut_and_so_is_whoever_subscribes_later() -> None:
    rig = Rig()
    first = rig.connect("one")
    rig.do(rig.edge.depart(rig.now))
    assert rig.taken(first, Cut) == [Cut("", contract.DEPARTURE_REASON)]
    second = rig.connect("two")
    assert [cut.session for cut in rig.cuts] == [first]
    rig.subscribe(second)
    assert [cut.session for cut in rig.cuts] == [first, second]


def test_a_durable_subscription_is_kept_until_another_edge_has_it() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, "orders", quality="durable")
    rig.do(rig.edge.depart(rig.now))
    assert rig.edge.kept() == ["orders"]
    rig.say("b", Claim("orders", 2))
    assert rig.edge.kept() == []


def test_one_that_ended_is_kept_until_all_others_know() -> None:
    rig = Rig()
    session = rig.connect()
    rig.subscribe(session, "orders", quality="durable")
    rig.unsubscribe(session, "orders")
    assert rig.edge.kept() == ["orders"]
    for edge in ("b", "c"):
        rig.say(edge, Yield("orders", 1))
    assert rig.edge.kept() == []
