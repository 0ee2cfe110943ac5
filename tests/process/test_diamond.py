"""The diamond: an origin, an edge, and two relays between them of which either may die."""

from pathlib import Path

import pytest

from anabranch.local.network import LocalNetwork
from tests.process_parts import BRISK, DIAMOND, drilling, judged, published, run, status

pytestmark = pytest.mark.slow


async def received_bytes(network: LocalNetwork) -> dict[str, int]:
    links = (await status(network, "B4")).links
    return {link.peer: link.received_bytes for link in links}


def test_either_relay_may_die_while_events_are_published(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling(tmp_path, DIAMOND) as drill:
            network = drill.network
            await drill.listen("cheap", "price < 100", "B4", options=BRISK)
            await drill.listen("acme", "symbol = 'ACME'", "B4", durable=True, options=BRISK)
            await drill.speak("ticker", "B1", rate=300, options=BRISK)
            before = await received_bytes(network)
            await published(drill, 200)
            after = await received_bytes(network)
            in_use, other = sorted(after, key=lambda relay: before[relay] - after[relay])
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

    run(work())
