"""The diamond: an origin, an edge, and two relays between them of which either may die."""

from pathlib import Path

import pytest

from anabranch.devnet.drill import Trial
from tests.process_parts import (
    BRISK,
    DIAMOND,
    MESH_DIAMOND,
    drilling,
    judged,
    published,
    run,
    status,
)

pytestmark = pytest.mark.slow

RELAYS = ("B2", "B3")


async def forwarded(drill: Trial) -> dict[str, int]:
    """Events that each relay has passed on, as it says itself."""
    found = {relay: await status(drill.network, relay) for relay in RELAYS}
    return {relay: told.counters["events_forwarded"] for relay, told in found.items()}


async def by_use(drill: Trial, events: int) -> tuple[str, str]:
    """The relay that most of the next events pass, and the other one."""
    before = await forwarded(drill)
    await published(drill, events)
    after = await forwarded(drill)
    in_use, other = sorted(RELAYS, key=lambda relay: before[relay] - after[relay])
    assert after[in_use] > before[in_use]
    return in_use, other


@pytest.mark.parametrize("text", [DIAMOND, MESH_DIAMOND], ids=["tree", "mesh"])
def test_either_relay_may_die_while_events_are_published(tmp_path: Path, text: str) -> None:
    async def work() -> None:
        async with drilling(tmp_path, text) as drill:
            network = drill.network
            await drill.add_subscriber("cheap", "price < 100", "B4", options=BRISK)
            await drill.add_subscriber("acme", "symbol = 'ACME'", "B4", durable=True, options=BRISK)
            await drill.add_publisher("ticker", "B1", rate=300, options=BRISK)
            in_use, other = await by_use(drill, 200)
            await network.kill(in_use)
            await published(drill, 300)
            await network.revive(in_use)
            await published(drill, 100)
            await network.kill(other)
            await published(drill, 300)
            await network.revive(other)
            verdict = await judged(drill)
            assert [account.quality for account in verdict.accounts] == ["reliable", "durable"]
            assert all(a.matching == a.delivered for a in verdict.accounts)
            for broker in network.brokers:
                counters = (await status(network, broker)).routing_counters
                assert counters.get("hop_bound_fired", 0) == 0

    run(work())
