"""The meter of a broker's load: what it tells the core is what was counted."""

import asyncio

from anabranch.core import contract
from anabranch.node.meters import LoadMeter
from anabranch.node.metrics import NodeCounters


def test_a_look_tells_what_happened_since_the_last_one() -> None:
    async def story() -> None:
        counters = NodeCounters()
        told: list[contract.Stimulus] = []
        meter = LoadMeter(counters, told.append)
        counters.events_published += 30
        counters.stepped(0.25, has_events=True)
        counters.stepped(0.5, 3)
        counters.stepped(8.0)
        meter.look()
        meter.look()
        first, second = told
        assert isinstance(first, contract.BrokerLoad)
        assert isinstance(second, contract.BrokerLoad)
        assert (first.events, first.busy_s) == (33, 0.75)
        assert (second.events, second.busy_s) == (0, 0.0)
        assert first.period_s >= 0

    asyncio.run(story())
