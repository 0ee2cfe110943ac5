"""The meter of a broker's load: what it tells the core is what was counted."""

import asyncio
from pathlib import Path

from anabranch.core import contract as say
from anabranch.node.load_meter import LoadMeter
from anabranch.node.node import Node
from tests.node_parts import config, running


def test_a_look_tells_what_happened_since_the_last_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("a", tmp_path)) as node:
            assert isinstance(node, Node)
            told: list[say.Stimulus] = []
            meter = LoadMeter(node.links, node.counters, told.append)
            node.counters.events_published += 30
            node.counters.step_s.add(0.25)
            node.counters.step_s.add(0.5)
            meter.look()
            meter.look()
            first, second = told
            assert isinstance(first, say.BrokerLoad)
            assert isinstance(second, say.BrokerLoad)
            assert (first.messages, first.busy_s) == (30, 0.75)
            assert (second.messages, second.busy_s) == (0, 0.0)
            assert first.for_s >= 0

    asyncio.run(story())
