"""A broker takes over the log that an earlier version of this program left, and goes on in it."""

from pathlib import Path

import pytest

from anabranch.client.client import connect
from tests.broker_parts import Brokers, command
from tests.old_logs import rewrite_in_format_1
from tests.process_parts import BRISK, run
from tests.store_parts import segments_of

pytestmark = pytest.mark.slow

ONE = '[network]\nname = "one"\n[options]\nkeep_s = 86_400\n[tree]\na = []\n'
EVENTS = 50
READ_BEFORE = 20


async def publish(brokers: Brokers, first: int) -> None:
    client = await connect(brokers.address("a"), options=BRISK)
    await client.publish_many({"n": first + place} for place in range(EVENTS))
    await client.close()


async def read(brokers: Brokers, first: int, count: int) -> None:
    """Go on with the durable subscription: the next events are these."""
    client = await connect(brokers.address("a"), name="reader", options=BRISK)
    found = await client.subscribe("n >= 0", durable="numbers")
    for number in range(first, first + count):
        received = await found.get()
        assert received.event.attributes["n"] == number
    await found.ack()
    await client.close()


async def replay(brokers: Brokers) -> None:
    """The log has everything from its beginning on."""
    client = await connect(brokers.address("a"), options=BRISK)
    found = await client.subscribe("n >= 0", since="beginning")
    for number in range(2 * EVENTS):
        assert (await found.get()).event.attributes["n"] == number
    await client.close()


def test_a_log_of_format_1_keeps_its_events_its_readers_and_its_ticks(tmp_path: Path) -> None:
    with Brokers(tmp_path, ONE) as brokers:
        brokers.start("a")
        run(read(brokers, 0, 0))
        run(publish(brokers, 0))
        run(read(brokers, 0, READ_BEFORE))
        assert brokers["a"].end() == 0
        state = brokers.file.broker("a").state
        segments = segments_of(state)
        assert segments
        for path in segments:
            rewrite_in_format_1(path)
            path.with_suffix(".index").unlink(missing_ok=True)
        verified = command("log", "verify", str(state))
        assert verified.returncode == 0, verified.stderr

        brokers.start("a")
        run(publish(brokers, EVENTS))
        run(read(brokers, READ_BEFORE, 2 * EVENTS - READ_BEFORE))
        run(replay(brokers))
        assert brokers["a"].end() == 0
