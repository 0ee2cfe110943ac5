"""Networks of real processes for tests: started, spoilt, settled and judged.

Every wait has a bound and says what it waited for. Processes end with the test, by their own ids;
those of a test process that dies end with it.
"""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from anabranch.client.options import ClientOptions
from anabranch.config.addresses import BrokerSettings
from anabranch.config.network_file import NetworkFile, dump, loads
from anabranch.devnet.drill import Trial
from anabranch.devnet.network import LocalNetwork
from anabranch.devnet.verdict import RunVerdict
from anabranch.node.status import Status

#: More than anything here should take on a slow machine that is busy with something else: one test,
#: one wait, and the rest of a trial. A bound that is too large costs time only where a test fails.
TEST_BOUND_S = 900.0
WAIT_BOUND_S = 180.0
SETTLE_BOUND_S = 240.0
#: Tests do not wait for pauses that suit people. But a broker that gets no processor is not dead,
#: and what is slow today is not an error.
BRISK = ClientOptions(
    connect_within_s=WAIT_BOUND_S,
    dial_within_s=30.0,
    start_within_s=WAIT_BOUND_S,
    pattern_within_s=WAIT_BOUND_S,
    batch_within_s=WAIT_BOUND_S,
    pause_last_s=0.5,
    dead_after_s=60.0,
)

PAIR = """
[network]
name = "pair"
[tree]
B1 = ["B2"]
"""
#: Origin B1, relays B2 and B3 as one site, edge B4.
DIAMOND = """
[network]
name = "diamond"
[sites]
relays = { brokers = ["B2", "B3"], joins = ["B1", "B4"] }
B1 = { brokers = ["B1"] }
B4 = { brokers = ["B4"] }
"""
#: The same as a mesh, in which the relays know nothing of each other.
MESH_DIAMOND = """
[network]
name = "diamond"
[mesh]
links = [["B1", "B2"], ["B1", "B3"], ["B2", "B4"], ["B3", "B4"]]
relays = ["B2", "B3"]
"""
#: Three edges round two sites of two.
DOUBLE = """
[network]
name = "double"
[sites]
west = { brokers = ["w1", "w2"], joins = ["east", "e1", "e2"] }
east = { brokers = ["x1", "x2"], joins = ["e3"] }
e1 = { brokers = ["e1"] }
e2 = { brokers = ["e2"] }
e3 = { brokers = ["e3"] }
"""


def run(work: Coroutine[None, None, None], bound_s: float = TEST_BOUND_S) -> None:
    """Run a test to its end, or say that it took too long.

    What other tests left in this process is cleared away first, and what stays is left out of
    further collections. Hypothesis leaves millions of objects, and to look at them takes seconds:
    brokers would believe that the clients of this test are dead.
    """
    gc.collect()
    gc.freeze()

    async def bounded() -> None:
        try:
            async with asyncio.timeout(bound_s):
                await work
        except TimeoutError:
            raise AssertionError(f"the test took longer than {bound_s:.0f} s") from None

    try:
        asyncio.run(bounded())
    finally:
        gc.unfreeze()


def network_file(text: str) -> NetworkFile:
    return loads(text, Path("test.toml"))


@asynccontextmanager
async def drilling(
    folder: Path, text: str, files: Mapping[str, Path] | None = None, seed: int = 0
) -> AsyncIterator[Trial]:
    """A running network, and applications to come."""
    async with LocalNetwork(network_file(text), folder, files=files) as network:
        drill = Trial(network, folder / "traces", seed)
        try:
            yield drill
        finally:
            await drill.close()


async def judged(drill: Trial, *, expect_missing: str = "") -> RunVerdict:
    """Let everything arrive, and demand that every promise was kept."""
    drill.healed()
    missing = await drill.settle(SETTLE_BOUND_S)
    verdict = await drill.verdict()
    where = f"see {drill.directory.parent}"
    assert verdict.clean, f"{verdict.anomalies}: {verdict.examples}; {where}"
    assert missing == expect_missing, f"missing after {SETTLE_BOUND_S:.0f} s: {missing}; {where}"
    assert verdict.published > 0
    assert verdict.delivered > 0
    return verdict


async def until(is_so: Callable[[], bool], what: str, bound_s: float = WAIT_BOUND_S) -> None:
    """Wait for something, or say that it did not happen."""
    await until_asked(_answering(is_so), what, bound_s)


def _answering(is_so: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def answer() -> bool:
        return is_so()

    return answer


async def until_asked(
    is_so: Callable[[], Awaitable[bool]], what: str, bound_s: float = WAIT_BOUND_S
) -> None:
    """The same, where asking takes a while."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + bound_s
    while not await is_so():
        assert clock() < deadline, f"not within {bound_s:.0f} s: {what}"
        await asyncio.sleep(0.02)


async def published(drill: Trial, count: int) -> None:
    """Wait until so many more events were published."""
    enough = count + sum(each.published for each in drill.publishers.values())
    await until(
        lambda: sum(each.published for each in drill.publishers.values()) >= enough,
        f"{count} more events are published",
    )


async def status(network: LocalNetwork, broker: str) -> Status:
    """What a broker says about itself, once it finds the time."""
    data = b""

    async def is_answered() -> bool:
        nonlocal data
        data = await network.status(broker)
        return bool(data)

    await until_asked(is_answered, f"{broker} says something")
    return msgspec.json.decode(data, type=Status)


def proxied(
    folder: Path,
    text: str,
    ports: Mapping[str, Mapping[str, int]],
    brokers: Mapping[str, BrokerSettings],
) -> dict[str, Path]:
    """Network files in which some brokers see others elsewhere: broker → peer → port."""
    common = replace(network_file(text), brokers=dict(brokers))
    (folder / "network.toml").write_text(dump(common))
    files = {}
    for broker, seen in ports.items():
        own = common.with_ports({(peer, "links"): port for peer, port in seen.items()})
        files[broker] = folder / f"{broker}.toml"
        files[broker].write_text(dump(own))
    return files
