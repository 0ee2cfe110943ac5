"""TLS between real processes: with trial certificates a network works; whoever has wrong ones is
refused in words that say so, and an unfinished handshake is given up.
"""

import asyncio
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.client.client import connect
from anabranch.client.errors import ConnectError
from anabranch.client.options import ClientOptions
from anabranch.config.tls import client_context
from anabranch.node.settings import Address
from tests.broker_parts import Brokers, Honest, command, failing
from tests.node_parts import Stranger, greeting
from tests.process_parts import run, until_asked

pytestmark = pytest.mark.slow

PAIR = """
[network]
name = "pair"
[tree]
B1 = ["B2"]
[tls]
ca = "certificates/ca.pem"
certificate = "certificates/{broker}.pem"
key = "certificates/{broker}.key"
"""
#: They wait that long for an authority that never comes.
IMPATIENT = ClientOptions(connect_within_s=10.0)


def certified(folder: Path) -> Brokers:
    """A network whose files the command has made."""
    brokers = Brokers(folder, PAIR)
    made = command("network", "certificates", str(brokers.path))
    assert made.returncode == 0, made.stderr
    return brokers


def authority(brokers: Brokers) -> Path:
    return brokers.folder / "certificates" / "ca.pem"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with certified(tmp_path_factory.mktemp("tls")) as brokers:
        brokers.start("B1", "B2")
        yield brokers
        assert [brokers[name].end() for name in ("B1", "B2")] == [0, 0]


def test_events_travel_between_brokers_and_clients_that_trust_each_other(pair: Brokers) -> None:
    async def work() -> None:
        places = pair.address("B1"), pair.address("B2")
        honest = await Honest.at(*places, "trusting", tls=authority(pair))
        await honest.goes_on("trusting")
        await honest.close()

    run(work())


def test_a_client_with_another_authority_is_refused_in_words(pair: Brokers, tmp_path: Path) -> None:
    other = certified(tmp_path)

    async def work() -> None:
        with pytest.raises(ConnectError, match="certificate is not accepted"):
            await connect(pair.address("B1"), tls=authority(other), options=IMPATIENT)

    run(work())
    said = failing(
        "pub", pair.address("B1"), "n=1", "--ca", str(authority(other)), "--within", "10"
    )
    assert "certificate is not accepted" in said


def test_a_client_without_tls_is_told_that_it_is_needed(pair: Brokers) -> None:
    async def work() -> None:
        with pytest.raises(ConnectError, match="TLS"):
            await connect(pair.address("B1"), options=IMPATIENT)

    run(work())


def test_half_a_handshake_and_bytes_that_are_none_are_given_up(pair: Brokers) -> None:
    async def half(place: Address, cut: int) -> None:
        hello = ssl.MemoryBIO()
        side = client_context(authority(pair)).wrap_bio(ssl.MemoryBIO(), hello)
        with pytest.raises(ssl.SSLWantReadError):
            side.do_handshake()
        await spoken(place, hello.read()[:cut])

    async def spoken(place: Address, what: bytes) -> None:
        stranger = await Stranger.at(place)
        stranger.send(what)
        await stranger.end()
        await stranger.close()

    async def work() -> None:
        places = pair.address("B1"), pair.address("B2")
        honest = await Honest.at(*places, "besieged", tls=authority(pair))
        attacked = [pair["B2"].places[port] for port in ("clients", "links")]
        plain = greeting("link", "B1", network="pair")
        await asyncio.gather(
            *(half(place, cut) for place in attacked for cut in (0, 5, 100, -1, 5_000)),
            *(spoken(place, plain) for place in attacked),
            *(spoken(place, bytes(10_000)) for place in attacked),
        )
        await honest.goes_on("besieged")
        await honest.close()

    run(work())


def test_a_broker_with_the_certificate_of_another_one_gets_no_link(tmp_path: Path) -> None:
    with certified(tmp_path) as brokers:
        folder = authority(brokers).parent
        for kind in ("pem", "key"):
            shutil.copy(folder / f"B2.{kind}", folder / f"B1.{kind}")
        said = failing("broker", "B1", "--network", str(brokers.path))
        assert "B1.pem" in said
        assert "B2" in said


def test_a_broker_of_another_authority_gets_no_link(tmp_path: Path) -> None:
    async def is_refused() -> bool:
        link = (await brokers.status("B1")).links[0]
        return not link.is_up and "certificate is not accepted" in link.reason

    with certified(tmp_path) as brokers:
        brokers.start("B2")
        shutil.rmtree(authority(brokers).parent)
        assert command("network", "certificates", str(brokers.path)).returncode == 0
        brokers.start("B1")
        run(until_asked(is_refused, "the certificate is refused"))
        assert "TLS handshake" in brokers["B2"].said()
