"""Patterns that make many matches of few events, in real processes: nobody else is disturbed."""

import asyncio
from math import comb
from pathlib import Path

import pytest

from anabranch.client.client import Client, connect
from anabranch.client.subscription import Subscription
from anabranch.devnet.network import LocalNetwork
from anabranch.model.encoding import rows_in
from tests.process_parts import BRISK, PAIR, network_file, run, status, until_asked

pytestmark = pytest.mark.slow

BOMB = "a:{n > 0} THEN b:{n > 0} THEN c:{n > 0} WITHIN 1 h"
EVENTS = 100


def matches_of(bound: int) -> int:
    """How many matches are reported: of the pairs before each event the first `bound`."""
    return sum(min(comb(before, 2), bound) for before in range(EVENTS))


async def honest(publisher: Client, subscription: Subscription, bombed: asyncio.Event) -> int:
    """One event after the other, each of which has to come before the next one is published."""
    count = 0
    while not bombed.is_set():
        await publisher.publish({"honest": count})
        assert (await subscription.get()).event["honest"] == count
        count += 1
    return count


@pytest.mark.parametrize(("patterns", "bound"), [(5, 20), (20, 5)])
def test_bombs_are_bounded_and_an_honest_pair_beside_them_goes_on(
    tmp_path: Path, patterns: int, bound: int
) -> None:
    limits = f"[limits]\npattern_matches_max = {bound}\n[options]\nkeep_s = 600.0\n"
    expected = patterns * matches_of(bound)

    async def work() -> None:
        async with (
            LocalNetwork(network_file(PAIR + limits), tmp_path) as network,
            await connect(network.address("B1"), name="bomber", options=BRISK) as bomber,
            await connect(network.address("B1"), name="publisher", options=BRISK) as publisher,
            await connect(network.address("B2"), name="reader", options=BRISK) as reader,
        ):
            subscription = await reader.subscribe("honest >= 0", durable="honest")
            await subscription.wait_started("B1")
            for number in range(patterns):
                await bomber.define_pattern(f"bomb {number}", BOMB)

            async def is_reported() -> bool:
                told = (await status(network, "B1")).patterns
                assert told is not None
                assert told.reported <= expected
                return told.reported == expected

            bombed = asyncio.Event()
            going = asyncio.create_task(honest(publisher, subscription, bombed))
            await asyncio.gather(*[bomber.publish({"n": n}) for n in range(1, EVENTS + 1)])
            await until_asked(is_reported, f"{expected:,} matches are reported", 90.0)
            bombed.set()
            exchanged = await going
            assert exchanged > 0
            log = await logged_by(bomber)
            # Every match is one event of the log, and so are the events themselves.
            assert log == expected + EVENTS + exchanged
            for name in ("B1", "B2"):
                told = await status(network, name)
                assert [link.times_up for link in told.links] == [1]
            told = await status(network, "B1")
            assert told.patterns is not None
            cut = sum(comb(before, 2) > bound for before in range(EVENTS))
            assert told.patterns.left_out == patterns * cut
            assert told.patterns.overflows == 0

    run(work())


async def logged_by(client: Client) -> int:
    """How many events the log of a client's broker has."""
    described = await client.describe()
    pieces = [each async for each in client.fetch(described.oldest, described.head)]
    return sum(1 for piece in pieces for _ in rows_in(piece.data))
