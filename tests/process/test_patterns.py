"""Patterns in networks of real processes: the broker of the join point is killed and comes back."""

import asyncio
from pathlib import Path

import pytest

from anabranch.check.detections import Detection, LoggedEvent, check_detection
from anabranch.client.client import Client, connect
from anabranch.client.patterns import Matched, PatternSubscription
from anabranch.devnet.network import LocalNetwork
from anabranch.model.encoding import decode_envelope, rows_in
from anabranch.model.event import INT_MIN
from anabranch.model.pattern.match import Start
from tests.process_parts import (
    BRISK,
    DIAMOND,
    MESH_DIAMOND,
    network_file,
    run,
    status,
    until,
    until_asked,
)

pytestmark = pytest.mark.slow

TEXT = "low:{price < 20} THEN high:{price > 30} WHERE low.symbol = high.symbol WITHIN 1 min"
#: The reference reads the logs, which keep what they have.
KEEPING = "[options]\nkeep_s = 600.0\n"
EDGES = ("B1", "B4")


async def counts_everywhere(network: LocalNetwork) -> bool:
    """Whether the join point has started on all streams."""
    told = (await status(network, "B1")).patterns
    return told is not None and any(each.started == len(EDGES) for each in told.points)


async def read(subscription: PatternSubscription, found: list[Matched]) -> None:
    while True:
        found.append(await subscription.get())


async def logged(client: Client) -> list[LoggedEvent]:
    """Everything that is in the log of a client's broker."""
    described = await client.describe()
    pieces = [each async for each in client.fetch(described.oldest, described.head)]
    return [
        LoggedEvent(described.broker, tick, time_ns, decode_envelope(body))
        for piece in pieces
        for tick, time_ns, body in rows_in(piece.data)
    ]


def reported(events: list[LoggedEvent]) -> list[LoggedEvent]:
    return [each for each in events if "anabranch.pattern" in each.envelope.attributes()]


async def swing(low: Client, high: Client, symbols: range) -> None:
    """A low price, and then a high one of the same symbol, at two brokers."""
    for symbol in symbols:
        await low.publish({"symbol": symbol, "price": 10})
        await high.publish({"symbol": symbol, "price": 40})


@pytest.mark.parametrize("text", [DIAMOND, MESH_DIAMOND], ids=["tree", "mesh"])
def test_every_match_once_although_the_broker_of_the_join_point_is_killed(
    tmp_path: Path, text: str
) -> None:
    async def work() -> None:
        async with (
            LocalNetwork(network_file(text + KEEPING), tmp_path) as network,
            await connect(network.address("B1"), name="here", options=BRISK) as here,
            await connect(network.address("B4"), name="there", options=BRISK) as there,
            await connect(network.address("B4"), name="reader", options=BRISK) as reader,
        ):
            found: list[Matched] = []
            matches = await reader.matches("swing")
            reading = asyncio.create_task(read(matches, found))
            await here.define_pattern("swing", TEXT)
            await until_asked(lambda: counts_everywhere(network), "the pattern counts everywhere")
            # Matches are reported at B1, and count for the reader from its start there.
            await matches.wait_started("B1")
            await swing(here, there, range(20))
            await swing(there, here, range(20, 40))
            await network.kill("B1")
            waiting = [
                await here.publish_soon({"symbol": symbol, "price": 10}) for symbol in range(40, 50)
            ]
            await swing(there, there, range(50, 60))
            await network.revive("B1")
            await asyncio.gather(*waiting)
            await swing(there, here, range(40, 60))
            # Low prices come twice for some symbols, and each of them is in a match of its own.
            await until(lambda: len(found) >= 90, "all matches come", 60.0)
            events = await logged(here) + await logged(there)
            starts = {edge: Start(1, INT_MIN) for edge in EDGES}
            assert check_detection(Detection("swing", TEXT, starts), events) == []
            told = [each.identity for each in found]
            assert len(set(told)) == len(told) == len(reported(events)) == 90
            assert {each["low"].stream for each in found} == set(EDGES)
            await there.drop_pattern("swing")
            reading.cancel()

    run(work())
