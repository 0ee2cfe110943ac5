"""The driver: what the core hears, and when, if the loop itself was late."""

import asyncio
import selectors
import time
from pathlib import Path

import pytest

from anabranch.core.contract import Note
from anabranch.core.options import Options
from anabranch.model.frames import PROTOCOL_VERSION, Hello, Ping
from anabranch.node.core_driver import CoreDriver
from anabranch.node.meters import StepMeter
from anabranch.node.metrics import NodeCounters
from anabranch.node.node_log import NodeLog
from anabranch.wire.codec import encode_link
from anabranch.wire.framing import framed
from tests.node_parts import (
    CHAIN,
    NOWHERE,
    Stranger,
    address,
    config,
    greeting,
    running,
    until,
)

LIFE = 5


class Sleepy(selectors.DefaultSelector):
    """Stands still once, as long as it is told to, and then has seen nothing.

    So it is with a process that was stopped while it waited: it finds that its time is up, and has
    not looked at its sockets yet."""

    def __init__(self) -> None:
        super().__init__()
        self.still_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.still_s:
            time.sleep(self.still_s)
            self.still_s = 0.0
            return []
        return super().select(timeout)


def test_after_a_stop_of_its_own_a_broker_hears_its_neighbours_before_it_suspects_them(
    tmp_path: Path,
) -> None:
    selector = Sleepy()
    options = Options(heartbeat_s=0.1, dead_after_s=0.6)

    async def story() -> None:
        given = config("m", tmp_path, CHAIN, neighbours=NOWHERE, options=options)
        async with running(given) as node:
            stranger = await Stranger.at(address(node, "links"))
            hello = framed(encode_link(Hello(PROTOCOL_VERSION, "a", LIFE)))
            stranger.send(greeting("link", "a", life=LIFE) + hello)
            await stranger.greeting()
            link = next(link for link in node.links.all() if link.peer == "a")
            await until(lambda: link.frames_received == 1)
            # In the node's socket, but not read; then the process stands still for too long.
            stranger.send(framed(encode_link(Ping())))
            selector.still_s = 2 * options.dead_after_s
            await until(lambda: link.frames_received == 2 and selector.still_s == 0)
            sent = link.frames_sent
            # Time has passed for the core, too: it pings.
            await until(lambda: link.frames_sent > sent)
            assert link.times_up == 1
            assert link.connection is not None
            await stranger.close()

    def loop() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(selector)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(story())


def test_what_a_broken_network_makes_a_core_note_again_and_again_fills_no_disk(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        counters = NodeCounters()
        driver = CoreDriver(
            NodeLog("m"),
            counters,
            StepMeter(counters, NodeLog("m"), 1.0),
            fail=pytest.fail,
            restart=pytest.fail,
        )
        for _ in range(1_000):
            driver._note(Note("info", "a message is dropped"))
        driver._note(Note("warning", "this is worse"))

    with caplog.at_level("INFO", "anabranch.node"):
        asyncio.run(story())
    dropped = [text for text in caplog.messages if text.startswith("a message is dropped")]
    assert 10 <= len(dropped) <= 100
    assert "this is worse" in caplog.messages
