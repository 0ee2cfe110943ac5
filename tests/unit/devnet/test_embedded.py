"""A network inside the process keeps the same promises, and leaves nothing behind."""

import asyncio
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from anabranch import connect_blocking, embedded
from anabranch.config.network_file import load
from anabranch.model.errors import LocalError

BOUND_S = 180.0


def test_a_blocking_client_publishes_and_gets_what_matches() -> None:
    with embedded() as network, network.connect_blocking(name="till") as client:
        subscription = client.subscribe("price > 10", since="beginning")
        client.publish({"price": 5})
        client.publish({"price": 12})
        received = subscription.get(timeout=BOUND_S)
        assert received["price"] == 12


def test_a_small_network_carries_events_from_edge_to_edge() -> None:
    async def work() -> None:
        async with embedded("pair") as network:
            assert len(network.addresses) == 2
            async with await network.connect(name="reader") as reader:
                subscription = await reader.subscribe("n > 0")
                await subscription.wait_started(reader.broker)
                async with await network.connect(name="writer") as writer:
                    await writer.publish({"n": 1})
                    assert (await subscription.get())["n"] == 1
            assert network.failures == {}

    asyncio.run(asyncio.wait_for(work(), BOUND_S))


def test_edges_with_copies_of_their_streams_serve_when_they_are_up(tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text(
        "[network]\nname = 'trio'\n[tree]\nm = ['a', 'b']\n"
        "[replication]\ncopies = 2\n"
        "[brokers.m]\n[brokers.a]\ncopies = 3\n[brokers.b]\n"
    )
    with (
        embedded(file, tmp_path / "state") as network,
        network.connect_blocking(name="till") as client,
    ):
        subscription = client.subscribe("n > 0")
        client.publish({"n": 1})
        assert subscription.get(timeout=BOUND_S)["n"] == 1
        assert network.failures == {}
        kept = {path.name.split(".")[0] for path in (network.state / "b" / "copies").iterdir()}
        assert "a" in kept


@pytest.mark.slow
def test_an_edge_whose_state_is_lost_fetches_its_stream_from_a_copy(tmp_path: Path) -> None:
    file = tmp_path / "network.toml"
    file.write_text("[network]\nname = 'trio'\n[tree]\nm = ['a', 'b']\n[replication]\ncopies = 2\n")
    place = load(file).network.edges.index("a")
    with embedded(file, tmp_path / "state") as network:
        at = network.addresses[place]
        with connect_blocking(at, name="late") as client:
            client.subscribe("n > 0", durable="all")
        with connect_blocking(at, name="till") as client:
            client.publish({"n": 1})
    shutil.rmtree(tmp_path / "state" / "a")
    with embedded(file, tmp_path / "state") as network:
        with connect_blocking(network.addresses[place], name="late") as client:
            subscription = client.subscribe("n > 0", durable="all")
            assert subscription.get(timeout=BOUND_S)["n"] == 1
        assert network.failures == {}


def test_a_given_state_directory_is_gone_on_with(tmp_path: Path) -> None:
    with embedded(state=tmp_path) as network, network.connect_blocking(name="one") as client:
        client.publish({"n": 1})
    with embedded(state=tmp_path) as network, network.connect_blocking(name="two") as client:
        received = client.subscribe("n > 0", since="beginning").get(timeout=BOUND_S)
        assert received["n"] == 1


def test_temporary_state_and_threads_are_gone_at_the_end() -> None:
    before = set(threading.enumerate())
    with embedded() as network:
        state = network.state
        assert state.is_dir()
    assert not state.exists()
    # Threads of an earlier test may end meanwhile.
    assert set(threading.enumerate()) <= before


def test_a_state_directory_in_use_is_an_error_that_says_so(tmp_path: Path) -> None:
    with embedded(state=tmp_path), pytest.raises(LocalError, match="in use"):
        embedded(state=tmp_path).start()


def test_an_unknown_network_is_an_error_that_names_the_shapes() -> None:
    with pytest.raises(LocalError, match=r"the shapes are .*redundant"):
        embedded("no-such-thing")


QUIET = """
import logging, sys
from anabranch import embedded

if sys.argv[1] == "written":
    logging.basicConfig(level=logging.WARNING)
with embedded("pair"):
    pass
logging.getLogger("anabranch.node").warning("look here")
"""


@pytest.mark.parametrize("lines", ["left", "written"])
def test_lines_of_its_log_are_written_only_where_the_program_wants_them(lines: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", QUIET, lines], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert ("look here" in done.stderr) == (lines == "written")
    assert (done.stderr == "") == (lines == "left")
