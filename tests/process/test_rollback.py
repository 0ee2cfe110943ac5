"""A broker process that starts with an old copy of its disk notices, and the command renews it."""

import asyncio
import shutil
from pathlib import Path

import pytest

from anabranch.client.client import Client, connect
from anabranch.client.errors import PublishRefusedError, PublishUnknownError
from anabranch.client.subscription import Subscription, Withheld
from tests.broker_parts import Brokers, command
from tests.process_parts import BRISK, PAIR, run, until_asked

pytestmark = pytest.mark.slow

BEFORE, LOST, AFTER = 50, 200, 20
#: The machine may be busy, and many brokers are started here.
TEST_BOUND_S = 900.0


async def publish(client: Client, found: Subscription, first: int, count: int) -> None:
    """Some events, which arrive."""
    await client.publish_many({"n": first + place} for place in range(count))
    for number in range(first, first + count):
        assert (await found.get()).event.attributes["n"] == number


async def is_rolled_back(brokers: Brokers) -> bool:
    log = (await brokers.status("B1")).log
    return log is not None and log.state == "rolled-back"


def test_an_old_copy_confirms_nothing_and_goes_on_when_it_is_renewed(tmp_path: Path) -> None:
    async def scene() -> None:
        with Brokers(tmp_path, PAIR) as brokers:
            brokers.start("B1", "B2")
            feed = await connect(brokers.address("B1"), name="feed", options=BRISK)
            reader = await connect(brokers.address("B2"), name="reader", options=BRISK)
            withheld: list[Withheld] = []
            found = await reader.subscribe(
                "TRUE", durable="all", new=True, on_withheld=withheld.append
            )
            await found.wait_started("B1")
            await publish(feed, found, 0, BEFORE)
            set_back = await old_copy(brokers, feed, found)
            await refuses(brokers)
            done = command("log", "renew", str(set_back), "--yes")
            assert done.returncode == 0, done.stderr
            assert "the stream continues after tick" in done.stdout
            brokers.start("B1")
            # One who published into the lost part is told so, begins again, and is served.
            with pytest.raises((PublishRefusedError, PublishUnknownError)):
                await feed.publish({"n": -1})
            await publish(feed, found, BEFORE + LOST, AFTER)
            assert {each.reason for each in withheld} == {"lost"}
            await feed.close()
            await reader.close()

    run(scene(), TEST_BOUND_S)


async def old_copy(brokers: Brokers, feed: Client, found: Subscription) -> Path:
    """B1 goes on after its directory was copied, and gets the copy in its place."""
    state, copy = brokers.file.broker("B1").state, brokers.folder / "copy"
    assert brokers["B1"].end() == 0
    shutil.copytree(state, copy)
    brokers.start("B1")
    await publish(feed, found, BEFORE, LOST)
    assert brokers["B1"].end() == 0
    shutil.rmtree(state)
    shutil.copytree(copy, state)
    return state


async def refuses(brokers: Brokers) -> None:
    """B1 starts, confirms nothing, says why, and is stopped."""
    brokers.start("B1")
    await until_asked(lambda: is_rolled_back(brokers), "B1 notices that its log is an old copy")
    other = await connect(brokers.address("B1"), name="other", options=BRISK)
    waiting = asyncio.create_task(other.publish({"n": -2}))

    async def is_refused() -> bool:
        return (await brokers.status("B1")).counters["publishes_refused"] > 0

    await until_asked(is_refused, "events are refused")
    assert not waiting.done()
    assert (await brokers.status("B1")).counters["ticks_appended"] == 0
    waiting.cancel()
    await other.close()
    assert brokers["B1"].end() == 0
    said = [line for line in brokers["B1"].said().splitlines() if " error " in line]
    assert "anabranch log renew" in said[0]
