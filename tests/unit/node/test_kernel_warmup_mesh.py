"""In a mesh only origins need an index, and only of edges that want something."""

import asyncio
import subprocess
import sys
from pathlib import Path

from anabranch.node.kernel_warmup import MARK
from tests.node_parts import RawClient, chain, until


def test_edges_of_a_mesh_that_want_nothing_tell_each_other_so_without_a_compiler() -> None:
    program = """
import sys
from collections import deque
from anabranch.core.broker import Broker, BrokerConfig
from anabranch.core.contract import FrameReceived, LinkUp, Recovered, Send, Started, Sync, Synced
from anabranch.core.contract import TimePassed
from anabranch.model.network import Network

network = Network({"a": ["a"], "b": ["b"]}, [("a", "b")])
brokers = {n: Broker(BrokerConfig(n, network, "mesh"), Recovered({}), 1.0) for n in "ab"}
now, pending = 1.0, deque((n, said) for said in (Started(), LinkUp("")) for n in "ab")
kinds = set()
while now < 3.0:
    while pending:
        name, said = pending.popleft()
        other = "b" if name == "a" else "a"
        said = LinkUp(other) if isinstance(said, LinkUp) else said
        for effect in brokers[name].handle(now, said):
            if isinstance(effect, Send):
                kinds.add(type(effect.frame).__name__)
                pending.append((other, FrameReceived(name, effect.frame)))
            elif isinstance(effect, Sync):
                pending.append((name, Synced(effect.number)))
    now += 0.01
    pending.extend((name, TimePassed()) for name in "ab")
print("Bind" in kinds, "numba" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "False"]


def test_a_relay_of_a_mesh_passes_interest_on_and_loads_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with chain(tmp_path, routing="mesh") as (a, m, z):
            client = await RawClient.at(z, "c")
            await client.subscribe("dear", "price > 10", streams=2)
            publisher = await RawClient.at(a, "p")
            publisher.publish({"price": 11}, {"price": 9})
            await until(lambda: client.events() == [{"price": 11}])
            await until(lambda: a.warm_up.is_over)
            assert not m.warm_up.is_over
            assert not (m.config.state / MARK).exists()
            await client.close()
            await publisher.close()

    asyncio.run(story())
