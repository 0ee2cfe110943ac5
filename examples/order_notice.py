"""The order of one publisher over two brokers, and the notice when it cannot be kept.

Each broker has a stream of its own. When a publisher moves to another broker, its events state what
they follow, and a subscriber's broker delivers that first. Here the earlier event cannot arrive:
the program pauses its broker, east, and the relay before it. After `order_within_s` of the network
file the subscriber's broker goes on, and the subscriber is told before the event. The earlier one
comes late; nothing is lost.

    anabranch up examples/network.toml      # in another terminal
    python examples/order_notice.py         # half a minute
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anabranch

NETWORK = Path(__file__).with_name("network.toml")


def brokers() -> dict[str, dict[str, Any]]:
    """What `anabranch status` knows about each broker."""
    command = [sys.executable, "-m", "anabranch", "status", "--network", str(NETWORK), "--json"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {each["broker"]: each for each in map(json.loads, printed.splitlines())}


@contextmanager
def paused(process: int) -> Iterator[None]:
    """Pause a process: to the others, it looks like a machine that is cut off."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


async def main() -> None:
    """Publish an event at east and one at west; receive them at north."""
    found = brokers()
    north, east, west = (found[name]["addresses"]["clients"] for name in ("north", "east", "west"))
    async with (
        anabranch.connect(north, name="reader") as reader,
        anabranch.connect(east, west, name="writer", address_order="given") as writer,
    ):
        steps = await reader.subscribe(
            "step > 0", on_order_not_kept=lambda notice: print("notice about", notice.publisher)
        )
        await steps.wait_started("east", "west")
        with paused(found["relay"]["pid"]):
            await writer.publish({"step": 1})
            with paused(found["east"]["pid"]):
                # The client notices that east is silent, and moves.
                while writer.broker == "east":  # noqa: ASYNC110 - nothing tells of a move
                    await asyncio.sleep(0.1)
                await writer.publish({"step": 2})
                print("received step", (await steps.get())["step"])
        print("received step", (await steps.get())["step"])


if __name__ == "__main__":
    asyncio.run(main())
