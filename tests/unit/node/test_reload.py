"""What a new network file means for a node that runs."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.config.network_file import NetworkFile, loads
from anabranch.model.errors import LocalError
from anabranch.node.node import Node
from anabranch.node.reload import next_step
from anabranch.node.settings import NodeConfig, config_of
from tests.node_parts import RawClient, running, until

ALONE = '[network]\nname = "shop"\nrevision = {revision}\n[tree]\na = []\n'


def alone(revision: int = 1) -> NetworkFile:
    return loads(ALONE.format(revision=revision), Path("shop.toml"))


def with_core(revision: int, *, a_is_edge: bool = True) -> NetworkFile:
    sites = '[sites.z]\nbrokers = ["z"]\n' + ('[sites.a]\nbrokers = ["a"]\n' if a_is_edge else "")
    joins = '["a", "z"]' if a_is_edge else '["z"]'
    core = f'[sites.core]\nbrokers = ["a", "m"]\njoins = {joins}\n'
    head = f'[network]\nname = "shop"\nrevision = {revision}\n'
    ports = {(name, "links"): 1 + place for place, name in enumerate("amz")}
    return loads(head + core + sites, Path("shop.toml")).with_ports(ports)  # type: ignore[arg-type]


def judged(tmp_path: Path, work: Callable[[Node], None]) -> None:
    async def story() -> None:
        async with running(config_of(alone(), "a", tmp_path / "a")) as node:
            work(node)

    asyncio.run(story())


def test_only_a_higher_revision_of_the_same_network_counts(tmp_path: Path) -> None:
    def work(node: Node) -> None:
        assert next_step(node, alone(1)) == "nothing"
        with pytest.raises(LocalError, match="belongs to network 'other'"):
            next_step(node, replace(alone(2), name="other"))
        following = next_step(node, alone(2))
        assert isinstance(following, NodeConfig)
        assert (following.revision, following.state) == (2, tmp_path / "a")

    judged(tmp_path, work)


def test_an_edge_that_is_none_any_more_departs_first(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config_of(alone(), "a", tmp_path / "a")) as node:
            client = await RawClient.at(node, "c")
            client.publish({"x": 1})
            await until(lambda: client.confirmed() == 1)
            relay = with_core(2, a_is_edge=False)
            assert next_step(node, relay) == "depart"
            node.depart()
            await until(lambda: client.end)
            await until(lambda: node.is_drained)
            departure = node.status().departure
            assert departure is not None
            assert (departure.head, departure.kept, departure.needed_by) == (1, (), ())
            following = next_step(node, relay)
            assert isinstance(following, NodeConfig)
            assert following.clients is None

    asyncio.run(story())


def test_a_broker_that_is_not_in_the_file_ends_when_it_may(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config_of(alone(), "a", tmp_path / "a")) as node:
            gone = loads(ALONE.format(revision=2).replace("a = []", "b = []"), Path("shop.toml"))
            assert next_step(node, gone) == "depart"
            node.depart()
            await until(lambda: node.is_drained)
            assert next_step(node, gone) == "end"

    asyncio.run(story())
