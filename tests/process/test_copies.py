"""A network of processes whose streams have copies: it starts as a whole, and shows its copies."""

import asyncio
import json
import shutil
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

import anabranch
from anabranch.cli.main import app
from anabranch.config.network_file import NetworkFile, loads
from anabranch.devnet.network import LocalNetwork
from tests.process_parts import BRISK, run, status, until_asked

pytestmark = pytest.mark.slow

PAIR = """
[network]
name = "pair"
[tree]
a = ["b"]
[replication]
copies = 2
"""


def pair(directory: Path) -> NetworkFile:
    return loads(PAIR, directory / "network.toml")


def show(network: LocalNetwork, *options: str) -> Result:
    words = ["replication", "show", "--network", str(network.path), *options]
    return CliRunner().invoke(app, words)


def test_edges_that_keep_each_others_streams_start_together_and_again(tmp_path: Path) -> None:
    async def story() -> None:
        for n in (1, 2):
            async with LocalNetwork(pair(tmp_path), tmp_path / "state") as network:
                assert await network.waiting() == []
                address = network.addresses["a"]
                async with await anabranch.connect(address, name="till", options=BRISK) as client:
                    await client.publish({"n": n})
                whole = await asyncio.to_thread(show, network, "--json")
                assert whole.exit_code == 0, whole.output
                told = {each["stream"]: each for each in map(json.loads, whole.stdout.splitlines())}
                assert {name: each["present"] for name, each in told.items()} == {"a": 2, "b": 2}
                await network.kill("b")
                broken = await asyncio.to_thread(show, network)
                assert broken.exit_code == 1, broken.output
                assert "  stream a has 1 of 2 copies: b is down" in broken.stdout.splitlines()

    run(story())


def test_an_edge_whose_state_is_lost_serves_again_by_itself(tmp_path: Path) -> None:
    async def story() -> None:
        async with LocalNetwork(pair(tmp_path), tmp_path / "state") as network:
            address = network.addresses["a"]
            async with await anabranch.connect(address, name="late", options=BRISK) as client:
                await client.subscribe("n > 0", durable="all")
            async with await anabranch.connect(address, name="till", options=BRISK) as client:
                await client.publish({"n": 1})
            await network.kill("a")
            shutil.rmtree(network.state_directory("a"))
            await network.revive("a")
            async with await anabranch.connect(address, name="late", options=BRISK) as client:
                subscription = await client.subscribe("n > 0", durable="all")
                assert (await subscription.get())["n"] == 1
            assert (await status(network, "a")).counters["restarts"] >= 1

            async def is_whole() -> bool:
                return (await asyncio.to_thread(show, network)).exit_code == 0

            await until_asked(is_whole, "both streams have both copies again")

    run(story())


def test_an_edge_that_starts_alone_waits_and_clients_learn_why(tmp_path: Path) -> None:
    reason = "it waits for copies of its stream at 'b'"

    async def story() -> None:
        async with LocalNetwork(pair(tmp_path), tmp_path / "state") as network:
            await network.kill("a", "b")
            # It has started, although it does not serve clients yet.
            await network.revive("a")
            assert await network.waiting() == ["a"]
            found = await asyncio.to_thread(show, network)
            assert found.exit_code == 1, found.output
            assert f"  a: {reason}" in found.stdout.splitlines()
            address = network.addresses["a"]
            hasty = msgspec.structs.replace(BRISK, connect_within_s=1.0)
            with pytest.raises(anabranch.ConnectError, match=reason):
                await anabranch.connect(address, name="till", options=hasty)
            await network.revive("b")
            async with await anabranch.connect(address, name="till", options=BRISK) as client:
                await client.publish({"n": 1})

    run(story())
