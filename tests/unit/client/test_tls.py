"""A client over TLS, at a real broker with certificates of its own authority."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from anabranch import ClientOptions, ConnectError, connect
from anabranch.config.certificates import make_certificates
from anabranch.config.network_file import NetworkFile, loads
from anabranch.config.tls import clients_server_context
from anabranch.node.settings import Tls
from tests.client_parts import run
from tests.node_parts import address, config, running

HURRY = ClientOptions(connect_within_s=1.0, dial_within_s=0.8, pause_first_s=9.0)
TEXT = """
[network]
name = "shop"
[sites.a]
brokers = ["a"]
[tls]
ca = "ca.pem"
certificate = "{broker}.pem"
key = "{broker}.key"
"""


def network_file(directory: Path) -> NetworkFile:
    directory.mkdir()
    file = loads(TEXT, directory / "network.toml")
    make_certificates(file)
    return file


@asynccontextmanager
async def broker(file: NetworkFile, state: Path) -> AsyncIterator[str]:
    """Where a broker listens that speaks TLS only."""
    assert file.tls is not None
    tls = Tls(clients=clients_server_context(file.tls, "a"))
    async with running(config("a", state, tls=tls)) as node:
        yield str(address(node, "clients"))


def test_a_client_publishes_and_reads_over_tls(tmp_path: Path) -> None:
    file = network_file(tmp_path / "own")

    async def story() -> None:
        assert file.tls is not None
        async with (
            broker(file, tmp_path) as place,
            await connect(place, tls=file.tls.ca) as client,
        ):
            subscription = await client.subscribe("n > 0")
            await subscription.wait_started("a")
            await client.publish_many({"n": n} for n in range(100))
            got = [(await subscription.get())["n"] for _ in range(99)]
            assert got == list(range(1, 100))

    run(story)


def test_a_broker_of_another_authority_is_not_trusted(tmp_path: Path) -> None:
    file, other = network_file(tmp_path / "own"), network_file(tmp_path / "other")

    async def story() -> None:
        assert other.tls is not None
        async with broker(file, tmp_path) as place:
            with pytest.raises(ConnectError, match=f"{place}: its certificate is not accepted"):
                await connect(place, tls=other.tls.ca, options=HURRY)

    run(story)


def test_plaintext_gets_no_answer_from_a_broker_with_tls(tmp_path: Path) -> None:
    file = network_file(tmp_path / "own")

    async def story() -> None:
        async with broker(file, tmp_path) as place:
            with pytest.raises(ConnectError, match=place):
                await connect(place, options=HURRY)

    run(story)
