"""A running network gains and loses brokers, and every promise is kept."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.cli.main import app
from anabranch.config import network_edit
from anabranch.config.network_edit import At
from anabranch.config.network_file import load
from anabranch.devnet.control_channel import serve
from anabranch.devnet.drill import Trial
from anabranch.devnet.resize import change
from anabranch.model.errors import LocalError
from tests.process_parts import (
    BRISK,
    DIAMOND,
    DOUBLE,
    drilling,
    judged,
    network_file,
    published,
    run,
    status,
    until_asked,
)

pytestmark = pytest.mark.slow

BOUND_S = 180.0


async def revisions(drill: Trial) -> set[int]:
    return {(await status(drill.network, name)).revision for name in drill.network.brokers}


async def all_started(drill: Trial, stream: str, *edges: str) -> None:
    """Wait until every subscription at some edges has started on a stream; there is one at least.

    A subscriber that knows several edges is at any of them, after they have restarted.
    """

    async def is_so() -> bool:
        everything = [(await status(drill.network, edge)).streams for edge in edges]
        found = [each for streams in everything for each in streams if each.stream == stream]
        return any(each.live for each in found) and not any(each.waiting for each in found)

    await until_asked(is_so, f"{' or '.join(edges)} follows {stream}", bound_s=60.0)


def test_a_relay_and_an_edge_join_and_a_relay_goes(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling(tmp_path, DIAMOND) as drill:
            network = drill.network
            await drill.add_subscriber("acme", "symbol = 'ACME'", "B4", durable=True, options=BRISK)
            await drill.add_publisher("ticker", "B1", rate=200, options=BRISK)
            await published(drill, 100)
            file = network_edit.add_relay(network_file(DIAMOND), "B5", "relays", At())
            await change(network, file)
            await published(drill, 100)
            file = network_edit.add_edge(file, "B6", "relays", At())
            await change(network, file)
            await drill.add_subscriber("late", "price < 100", "B6", durable=True, options=BRISK)
            await all_started(drill, "B6", "B4")
            await drill.add_publisher("newcomer", "B6", rate=100, options=BRISK)
            await published(drill, 200)
            file = network_edit.remove_broker(file, "B2")
            await change(network, file)
            assert set(network.brokers) == {"B1", "B3", "B4", "B5", "B6"}
            assert await revisions(drill) == {4}
            await published(drill, 100)
            verdict = await judged(drill)
            assert verdict.anomalies["lost"] == verdict.anomalies["duplicate"] == 0

    run(work())


def test_an_edge_goes_when_its_clients_and_its_events_are_elsewhere(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling(tmp_path, DOUBLE) as drill:
            network = drill.network
            await drill.add_subscriber(
                "acme", "symbol = 'ACME'", "e2", "e3", durable=True, options=BRISK
            )
            await drill.add_subscriber("cheap", "price < 60", "e1", durable=True, options=BRISK)
            await drill.add_publisher("west", "e2", "e1", rate=200, options=BRISK)
            await drill.add_publisher("east", "e3", rate=100, options=BRISK)
            await published(drill, 200)
            drill.follow_logs()
            file = network_edit.remove_broker(network_file(DOUBLE), "e2")
            said: list[str] = []
            await change(network, file, tell=said.append)
            assert network.edges == ("e1", "e3")
            assert any(text.startswith("draining e2: ") for text in said)
            await published(drill, 200)
            verdict = await judged(drill)
            speakers = drill.publishers.values()
            assert verdict.confirmed == sum(each.published for each in speakers)
            assert [each.failed for each in speakers] == [0, 0]

    run(work())


def test_an_edge_whose_durable_subscriber_is_away_stays(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling(tmp_path, DOUBLE) as drill:
            client = await drill.connect("away", "e2", options=BRISK)
            await client.subscribe("price > 10", durable="orders", new=True)
            await client.close()
            file = network_edit.remove_broker(network_file(DOUBLE), "e2")
            with pytest.raises(LocalError, match=r"e2 has durable subscriptions.*orders"):
                await change(drill.network, file)
            assert list(drill.network.edges) == ["e1", "e2", "e3"]
            assert await revisions(drill) == {1}
            await change(drill.network, file, abandon=True)
            assert list(drill.network.edges) == ["e1", "e3"]

    run(work())


SHOP = """[network]
name = "shop"
[sites.core]
brokers = ["a", "m"]
joins = ["a", "z"]
[sites.a]
brokers = ["a"]
[sites.z]
brokers = ["z"]
"""


def test_an_edge_that_is_given_up_stays_as_the_relay_that_it_also_is(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling(tmp_path, SHOP) as drill:
            client = await drill.connect("away", "a", options=BRISK)
            for number in range(30):
                await client.subscribe("price > 10", durable=f"orders{number}", new=True)
            await client.close()
            file = network_edit.remove_site(network_file(SHOP), "a")
            with pytest.raises(LocalError, match=r"a has durable .* orders0, .* and 20 more"):
                await change(drill.network, file)
            await change(drill.network, file, abandon=True)
            assert drill.network.edges == ("z",)
            assert await revisions(drill) == {2}
            links = {name: (await status(drill.network, name)).links for name in ("a", "m", "z")}
            assert all(len(each) == 2 for each in links.values())

    run(work())


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "anabranch", *words]


def finished(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), capture_output=True, text=True, timeout=BOUND_S, check=False
    )


def test_the_commands_change_a_network_that_is_up(tmp_path: Path) -> None:
    file, state = tmp_path / "pair.toml", tmp_path / "state"
    file.write_text('[network]\nname = "pair"\n[tree]\na = ["b"]\n')
    up = command("up", str(file), "--state", str(state), "--json")
    with subprocess.Popen(up, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            for line in running.stdout:
                if "addresses" in json.loads(line):
                    break
            apply = ("network", "apply", str(file), "--state", str(state))
            assert finished("network", "add-broker", str(file), "c", "--below", "b").returncode == 0
            done = finished(*apply)
            assert done.returncode == 0, done.stderr
            assert done.stdout.splitlines()[-1] == "all 3 brokers have revision 2"
            assert finished("network", "remove-broker", str(file), "a").returncode == 0
            done = finished(*apply)
            assert done.returncode == 0, done.stderr
            left = load(state / "network.toml")
            assert (left.network.edges, left.left, left.revision) == (("b", "c"), ("a",), 3)
            assert finished(*apply).returncode == 0
        finally:
            running.terminate()
            running.wait(BOUND_S)


#: Two edges and a relay between them.
CHAIN = """
[network]
name = "chain"
[sites]
core = { brokers = ["r1"], joins = ["e1", "e2"] }
e1 = { brokers = ["e1"] }
e2 = { brokers = ["e2"] }
"""


async def do(*words: str) -> None:
    """A command, typed while the network runs."""
    done = await asyncio.to_thread(CliRunner().invoke, app, ["network", *words])
    assert done.exit_code == 0, done.output


def test_sites_join_and_leave_by_command_and_nothing_is_lost(tmp_path: Path) -> None:
    """A relay and an edge behind it come and go; a publisher and a durable subscriber are there."""
    file, folder = str(tmp_path / "chain.toml"), tmp_path / "up"
    Path(file).write_text(CHAIN)
    apply = ("apply", file, "--state", str(folder))

    async def work() -> None:
        async with drilling(folder, CHAIN) as drill:
            serving = asyncio.create_task(serve(drill.network))
            await drill.add_subscriber("acme", "symbol = 'ACME'", "e2", durable=True, options=BRISK)
            await drill.add_publisher("ticker", "e1", rate=200, options=BRISK)
            await published(drill, 50)
            await do("add-site", file, "south", "--broker", "s1", "--join", "core")
            await do("add-site", file, "e3", "--broker", "e3", "--join", "south")
            await do(*apply)
            assert await revisions(drill) == {3}
            await all_started(drill, "e3", "e2")
            await drill.add_publisher("newcomer", "e3", "e1", rate=100, options=BRISK)
            await drill.add_subscriber(
                "late", "price < 60", "e3", "e1", durable=True, options=BRISK
            )
            await published(drill, 100)
            drill.follow_logs()
            await do("remove-site", file, "e3")
            await do("remove-site", file, "south")
            await do(*apply)
            assert set(drill.network.brokers) == {"r1", "e1", "e2"}
            assert await revisions(drill) == {5}
            await published(drill, 50)
            verdict = await judged(drill)
            speakers = drill.publishers.values()
            assert verdict.confirmed == sum(each.published for each in speakers)
            assert [each.failed for each in speakers] == [0, 0]
            serving.cancel()

    run(work())


#: A ring of three edges and a relay.
RING = """
[network]
name = "ring"
[mesh]
links = [["e1", "e2"], ["e2", "e3"], ["e3", "m1"], ["m1", "e1"]]
relays = ["m1"]
"""


async def links(drill: Trial, broker: str) -> set[str]:
    """The neighbours that a broker has links to."""
    return {link.peer for link in (await status(drill.network, broker)).links}


def test_links_and_brokers_of_a_mesh_come_and_go_by_command_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    """A publisher and a durable subscriber are there all the time, and roam if they have to."""
    file, folder = str(tmp_path / "ring.toml"), tmp_path / "up"
    Path(file).write_text(RING)
    apply = ("apply", file, "--state", str(folder))

    async def work() -> None:
        async with drilling(folder, RING) as drill:
            serving = asyncio.create_task(serve(drill.network))
            await drill.add_subscriber(
                "acme", "symbol = 'ACME'", "e3", "e1", durable=True, options=BRISK
            )
            await drill.add_publisher("ticker", "e1", rate=200, options=BRISK)
            await published(drill, 50)
            await do("add-link", file, "e1", "e3")
            await do(*apply)
            assert await links(drill, "e1") == {"e2", "e3", "m1"}
            await published(drill, 50)
            await do("remove-link", file, "e1", "m1")
            await do("remove-link", file, "e2", "e3")
            await do("add-broker", file, "e4", "--link-to", "m1", "--link-to", "e2")
            await do(*apply)
            assert await revisions(drill) == {5}
            assert await links(drill, "e4") == {"m1", "e2"}
            await all_started(drill, "e4", "e3", "e1")
            await drill.add_publisher("newcomer", "e4", "e1", rate=100, options=BRISK)
            await drill.add_subscriber(
                "late", "price < 60", "e4", "e2", durable=True, options=BRISK
            )
            await published(drill, 100)
            drill.follow_logs()
            await do("remove-broker", file, "m1")
            await do("remove-broker", file, "e4")
            await do(*apply)
            assert set(drill.network.brokers) == {"e1", "e2", "e3"}
            assert await links(drill, "e1") == {"e2", "e3"}
            await published(drill, 50)
            verdict = await judged(drill)
            speakers = drill.publishers.values()
            assert verdict.confirmed == sum(each.published for each in speakers)
            assert [each.failed for each in speakers] == [0, 0]
            serving.cancel()

    run(work())


def test_a_network_that_nobody_runs_cannot_be_changed(tmp_path: Path) -> None:
    file = tmp_path / "pair.toml"
    file.write_text('[network]\nname = "pair"\n[tree]\na = ["b"]\n')
    done = finished("network", "apply", str(file), "--state", str(tmp_path))
    assert done.returncode == 2
    assert "no network is running in" in done.stderr
