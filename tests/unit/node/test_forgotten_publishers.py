"""A broker with a real disk forgets publishers that stay away, and what it forgot is on disk."""

import asyncio
from pathlib import Path

from anabranch.core.options import Options
from anabranch.core.origin.publishers import FLOOR, FLOOR_TABLE, TABLE
from anabranch.core.report import LogReport, report
from anabranch.core.session.effects import EventsRefused
from anabranch.model.client_frames import FORGOTTEN
from anabranch.node.node import Node
from anabranch.store.catalog import Catalog
from anabranch.store.files import CATALOG
from tests.node_parts import RawClient, config, running, until
from tests.unit.node.test_observe_port import get

FORGETFUL = Options(publisher_keep_s=0.1, done_every_s=0.01)


def log_of(node: Node) -> LogReport:
    log = report(node.broker).log
    assert log is not None
    return log


async def published(node: Node, name: str, incarnation: int) -> None:
    """One event of a publisher that leaves afterwards."""
    client = await RawClient.at(node, name, incarnation)
    client.publish({"n": 1})
    await until(client.confirmed)
    await client.close()


async def refused(node: Node, name: str, incarnation: int) -> EventsRefused:
    client = await RawClient.at(node, name, incarnation)
    client.publish({"n": 1})
    await until(lambda: client.of("EventsRefused"))
    await client.close()
    (found,) = client.of("EventsRefused")
    assert isinstance(found, EventsRefused)
    return found


def test_many_short_lives_leave_one_number_on_disk_and_none_of_their_events_is_taken_again(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path, options=FORGETFUL)) as node:
            for number in range(1, 11):
                await published(node, f"run-{number}", number)
            await until(lambda: log_of(node).publishers_forgotten == 10)
            assert log_of(node).publishers == 0
            head = log_of(node).head
            page = await get(node, "/metrics")
            assert "\nanabranch_publishers 0.0\n" in page
            assert "\nanabranch_publishers_forgotten_total 10.0\n" in page
        catalog = Catalog(tmp_path / "a" / CATALOG)
        tables = catalog.tables
        catalog.close()
        assert not tables.get(TABLE)
        assert tables[FLOOR_TABLE] == {FLOOR: bytes([10])}
        async with running(config("a", tmp_path, options=FORGETFUL)) as node:
            for number in (1, 10):
                why = await refused(node, f"run-{number}", number)
                assert (why.final, why.begun, why.code) == (True, 10, FORGOTTEN)
            assert log_of(node).head == head
            await published(node, "run-1", 11)

    asyncio.run(story())
