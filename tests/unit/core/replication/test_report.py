"""What a broker reports of copies: who has them, how far they are behind, what it waits for."""

from random import Random

import pytest

from anabranch.core.broker import BrokerConfig
from anabranch.core.contract import ClientConnected, CutClient, Recovered
from anabranch.core.options import Options
from anabranch.core.part_requests import RequestSync
from anabranch.core.replication.keeper import CopyRow, row_put
from anabranch.core.replication.replication import Replication
from anabranch.core.replication.report import (
    CopyReport,
    OwnCopiesReport,
    ReplicationReport,
    replication_report,
)
from anabranch.core.report import report
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.network import Network
from anabranch.model.replication import CopyId, CopySet, Life, LifeAnswer, LifeStart
from anabranch.sim.world import Weather, World

NETWORK = Network({"a": ["a"], "middle": ["m"], "b": ["b"]}, [("a", "middle"), ("middle", "b")])
OPTIONS = Options(copies=2, confirm=2)
LONG_S = 30.0


def world(options: Options = OPTIONS) -> World:
    """Two edges whose streams the relay between them keeps."""
    return World([BrokerConfig(n, NETWORK, options=options) for n in "amb"], Random(1), Weather())


def replication_of(network: World, name: str) -> ReplicationReport:
    broker = network.hosts[name].broker
    assert broker is not None
    return report(broker).replication


def own(network: World, name: str) -> OwnCopiesReport:
    found = replication_of(network, name).own
    assert found is not None
    return found


def states(found: OwnCopiesReport) -> dict[str, str]:
    return {copy.broker: copy.state for copy in found.copies}


def started(*names: str) -> World:
    network = world()
    for name in names:
        network.start(name)
    network.run_until(LONG_S)
    return network


def test_origin_and_keeper_report_the_same_copy() -> None:
    network = started("m", "a", "b")
    found = own(network, "a")
    assert (found.state, found.waits_for, found.is_below) == ("leading", "", False)
    assert (found.configured, found.present, found.confirm) == (2, 2, 2)
    assert found.confirmed == found.newest > 0
    assert (found.unconfirmed, found.lives_begun) == (0, 1)
    assert states(found) == {"a": "member", "m": "member"}
    assert {(copy.lag, copy.since) for copy in found.copies} == {(0, found.life)}
    keeper = replication_of(network, "m")
    assert keeper.own is None
    assert keeper.kept_copies == 2
    kept = {copy.stream: copy for copy in keeper.kept}
    assert (kept["a"].last, kept["a"].confirmed) == (found.newest, found.confirmed)
    assert kept["a"].promised == found.life
    assert keeper.kept_ticks == kept["a"].ticks + kept["b"].ticks


def test_a_broker_that_waits_names_the_copies_and_tells_clients() -> None:
    network = started("a")
    found = own(network, "a")
    assert found.state == "asking"
    assert found.waits_for == "it waits for copies of its stream at 'm'"
    assert (found.is_below, found.present) == (True, 0)
    assert found.copies[1] == CopyReport(
        broker="m", state="silent", is_configured=True, acked=None, lag=None
    )
    cuts: list[str] = []
    network.listener = lambda _now, _name, what: (
        cuts.append(what.reason) if isinstance(what, CutClient) else None
    )
    network.stimulate("a", ClientConnected(1))
    assert cuts == ["the broker is starting: it waits for copies of its stream at 'm'"]


def test_a_keeper_that_lost_its_disk_is_filled_and_counts_from_a_later_life() -> None:
    network = started("m", "a", "b")
    first = own(network, "a").life
    network.kill("m")
    network.hosts["m"].disk.lose()
    network.start("m")
    network.run_until(2 * LONG_S)
    found = own(network, "a")
    assert states(found) == {"a": "member", "m": "member"}
    assert found.copies[1].since == found.life > first
    assert found.lives_begun == 2


def test_a_stream_without_copies_reports_none() -> None:
    network = world(Options())
    network.start("a")
    network.run_until(LONG_S)
    assert replication_of(network, "a") == ReplicationReport()


# -- a writer alone --------------------------------------------------------------------------------


A, M, B = CopyId("a", 1), CopyId("m", 2), CopyId("b", 3)
FIRST = LifeStart(1, Life(1, "a"), CopySet((A, M, B), 2))


def asking() -> Replication:
    """The replication of broker a, which has lost its disk and asks m and b."""
    options = Options(copies=3, confirm=2)
    replication = Replication("a", NETWORK, options, DEFAULT_LIMITS, Recovered(), 7)
    writer = replication.writer
    assert writer is not None
    tickets = [each.ticket for each in writer.started(0.0) if isinstance(each, RequestSync)]
    for ticket in tickets:
        writer.synced(0.0, ticket)
    return replication


def answer(replication: Replication, copy: CopyId, last: int) -> None:
    assert replication.writer is not None
    life = replication.writer.life
    question = replication.writer.peers[copy.broker].question
    told = LifeAnswer("a", life, life, copy, False, 1, last, (FIRST,), last, True, question)
    replication.writer.carried(1.0, copy.broker, told)


def own_of(replication: Replication) -> OwnCopiesReport:
    found = replication_report(replication).own
    assert found is not None
    return found


def test_an_answer_tells_which_copy_is_lost_and_what_is_confirmed() -> None:
    replication = asking()
    answer(replication, M, 100)
    found = own_of(replication)
    assert found.waits_for == "it waits for copies of its stream at 'b'"
    assert states(found) == {"a": "lost", "m": "member", "b": "silent"}
    assert (found.confirmed, found.present, found.confirm) == (100, 1, 2)
    assert {copy.broker: copy.acked for copy in found.copies} == {"a": 0, "m": 100, "b": None}


def test_a_stream_that_is_fetched_reports_its_progress() -> None:
    replication = asking()
    answer(replication, M, 100)
    answer(replication, B, 90)
    found = own_of(replication)
    assert found.state == "fetching"
    assert found.fetching is not None
    assert (found.fetching.source, found.fetching.done, found.fetching.total) == ("m", 0, 100)
    assert found.waits_for == "it fetches its stream from the copy at 'm' (0 of 100 ticks)"
    assert found.is_below


def test_a_copy_that_was_fetched_counts_from_the_next_life() -> None:
    options = Options(copies=3, confirm=2)
    row = row_put("a", CopyRow(9, starts=(FIRST,), is_open=True))
    assert row.value is not None
    recovered = Recovered({row.table: {row.key: row.value}}, records=[b""] * 100)
    writer = Replication("a", NETWORK, options, DEFAULT_LIMITS, recovered, 7)
    assert states(own_of(writer)) == {"a": "learner", "m": "silent", "b": "silent"}


@pytest.mark.parametrize("is_promised", [False, True])
def test_a_broker_waits_for_its_disk_before_it_waits_for_others(is_promised: bool) -> None:
    replication = Replication("a", NETWORK, OPTIONS, DEFAULT_LIMITS, Recovered(), 7)
    writer = replication.writer
    assert writer is not None
    requests = writer.started(0.0)
    for each in requests:
        if isinstance(each, RequestSync) and is_promised:
            writer.synced(0.0, each.ticket)
    waits = own_of(replication).waits_for
    assert ("its disk" in waits) is not is_promised
    assert ("at 'm'" in waits) is is_promised
