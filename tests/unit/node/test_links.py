"""Links: which connection counts, when there could be several, and with whom."""

import asyncio
import gc
import ssl
from pathlib import Path

import pytest

from anabranch.config.certificates import make_certificates
from anabranch.config.network_file import loads
from anabranch.config.tls import TlsFiles, links_client_context, links_server_context
from anabranch.core.options import Options
from anabranch.model.frames import PROTOCOL_VERSION, Hello, Ping
from anabranch.model.limits import Limits
from anabranch.node.handshake import OutgoingHandshake
from anabranch.node.links import NodeLink
from anabranch.node.node import Node
from anabranch.node.settings import Timing, Tls
from anabranch.wire.codec import decode_link, encode_link
from anabranch.wire.framing import framed
from anabranch.wire.greeting import Greeting
from anabranch.wire.transport import Connection
from tests.node_parts import (
    CHAIN,
    NOWHERE,
    RawClient,
    Stranger,
    address,
    config,
    greeting,
    is_linked,
    running,
    until,
)

#: The certificates of three brokers; a has that of z, too.
NETWORK_FILE = """[network]
name = "shop"
[sites]
a = { brokers = ["a"], joins = ["middle"] }
middle = { brokers = ["m"], joins = ["z"] }
z = { brokers = ["z"] }
[tls]
ca = "pki/ca.pem"
certificate = "pki/{broker}.pem"
key = "pki/{broker}.key"
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    file = loads(NETWORK_FILE, tmp_path_factory.mktemp("tls") / "shop.toml")
    make_certificates(file)
    assert file.tls is not None
    return file.tls


def tls_of(files: TlsFiles, name: str) -> Tls:
    return Tls(links=links_server_context(files, name), dialling=links_client_context(files, name))


def link_to(node: Node, peer: str) -> NodeLink:
    return next(link for link in node.links.all() if link.peer == peer)


async def neighbour(node: Node, life: int, name: str = "a") -> Stranger:
    """Somebody who greets like a broker."""
    stranger = await Stranger.at(address(node, "links"))
    stranger.send(greeting("link", name, life=life))
    return stranger


def test_a_second_connection_of_a_neighbour_takes_the_place_of_the_first(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("m", tmp_path, CHAIN, neighbours=NOWHERE)) as node:
            first = await neighbour(node, 5)
            await first.greeting()
            assert isinstance(decode_link(await first.frame()), Hello)
            second = await neighbour(node, 5)
            await second.greeting()
            await first.end()
            assert isinstance(decode_link(await second.frame()), Hello)
            link = link_to(node, "a")
            assert link.connection is not None
            assert link.times_up == 2
            for stranger in (first, second):
                await stranger.close()

    asyncio.run(story())


def test_of_two_brokers_with_one_name_the_younger_stays(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("m", tmp_path, CHAIN, neighbours=NOWHERE)) as node:
            younger = await neighbour(node, 5)
            await younger.greeting()
            older = await neighbour(node, 4)
            assert "two processes have this name" in await older.refusal()
            assert link_to(node, "a").connection is not None
            for stranger in (younger, older):
                await stranger.close()

    asyncio.run(story())


def test_a_neighbour_that_breaks_the_protocol_loses_the_link_only(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("m", tmp_path, CHAIN, neighbours=NOWHERE)) as node:
            for bad in (b"\xc1", encode_link(Hello(PROTOCOL_VERSION, "q", 5))):
                stranger = await neighbour(node, 5)
                await stranger.greeting()
                stranger.send(framed(bad))
                await stranger.end()
                await stranger.close()
                await until(lambda: link_to(node, "a").connection is None)
            assert node.state == "ready"

    asyncio.run(story())


def test_frames_behind_the_greeting_are_heard(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("m", tmp_path, CHAIN, neighbours=NOWHERE)) as node:
            stranger = await Stranger.at(address(node, "links"))
            hello = framed(encode_link(Hello(PROTOCOL_VERSION, "a", 7)))
            stranger.send(greeting("link", "a", life=7) + hello + framed(encode_link(Ping())))
            await stranger.greeting()
            await until(lambda: link_to(node, "a").frames_received == 2)
            await stranger.close()

    asyncio.run(story())


def test_a_neighbour_that_does_not_read_fills_its_link_and_holds_up_nobody(tmp_path: Path) -> None:
    few = Limits(link_waiting_bytes_max=100_000)
    # It says nothing, either.
    patient = Options(dead_after_s=3_600.0)
    text = "x" * 50_000

    async def story() -> None:
        given = config("z", tmp_path, CHAIN, routing="flood", limits=few, options=patient)
        async with running(given) as node:
            stranger = await neighbour(node, 5, "m")
            await stranger.greeting()
            stranger.send(framed(encode_link(Hello(PROTOCOL_VERSION, "m", 5))))
            link = link_to(node, "m")
            await until(lambda: link.frames_received == 1)
            stranger.pause()
            client = await RawClient.at(node, "publisher")
            sent = 0
            while not link.is_full:
                sent += 1
                client.publish({"text": text})
                await until(lambda: client.confirmed() == sent)  # noqa: B023 - not longer than this
            # From now on its events are left out: the queue does not grow.
            assert link.connection is not None
            waiting_bytes = link.connection.waiting_bytes
            for _ in range(20):
                client.publish({"text": text})
            await until(lambda: client.confirmed() == sent + 20)
            assert link.connection.waiting_bytes < waiting_bytes + 5 * len(text)
            stranger.resume()
            reading = asyncio.create_task(stranger.end())
            await until(lambda: not link.is_full)
            assert link.times_up == 1
            stranger.reset()
            reading.cancel()
            await client.close()

    asyncio.run(story())


def test_who_answers_with_another_name_is_not_taken_for_the_neighbour(tmp_path: Path) -> None:
    async def story() -> None:
        # z dials nobody; whoever dials m reaches z instead.
        async with running(config("z", tmp_path, CHAIN)) as z:
            wrong = {"m": address(z, "links")}
            async with running(config("a", tmp_path, CHAIN, neighbours=wrong)) as a:
                link = link_to(a, "m")
                await until(lambda: "not a neighbour of 'z'" in link.down_because)
                assert not is_linked(a)

    asyncio.run(story())


def test_brokers_link_over_tls_and_know_each_other_by_certificate(
    tmp_path: Path, files: TlsFiles
) -> None:
    async def story() -> None:
        async with running(config("m", tmp_path, CHAIN, **_secure(files, "m"))) as m:
            place = {"m": address(m, "links")}
            secure = {**_secure(files, "a"), "neighbours": place}
            async with running(config("a", tmp_path, CHAIN, **secure)) as a:
                await until(lambda: is_linked(a))
                connection = link_to(m, "a").connection
                assert connection is not None
                assert connection.tls is not None
                assert connection.tls.version() == "TLSv1.3"

    asyncio.run(story())


def test_a_certificate_of_another_broker_is_refused(tmp_path: Path, files: TlsFiles) -> None:
    async def story() -> None:
        async with running(config("m", tmp_path, CHAIN, **_secure(files, "m"))) as m:
            place = {"m": address(m, "links")}
            secure = {**_secure(files, "z"), "neighbours": place}
            async with running(config("a", tmp_path, CHAIN, **secure)) as a:
                link = link_to(a, "m")
                await until(lambda: "issued to" in link.down_because)
                assert "not to broker 'a'" in link.down_because

    asyncio.run(story())


def test_a_tls_handshake_that_is_never_finished_is_given_up(
    tmp_path: Path, files: TlsFiles
) -> None:
    async def story() -> None:
        secure = _secure(files, "m")
        async with running(
            config("m", tmp_path, CHAIN, timing=Timing(greeting_s=0.05), **secure)
        ) as m:
            place = address(m, "links")
            silent, halfway = await Stranger.at(place), await Stranger.at(place)
            hello = ssl.MemoryBIO()
            side = links_client_context(files, "a").wrap_bio(ssl.MemoryBIO(), hello)
            with pytest.raises(ssl.SSLWantReadError):
                side.do_handshake()
            halfway.send(hello.read()[:-10])
            for stranger in (silent, halfway):
                await stranger.end()
                await stranger.close()
            await until(lambda: m.connections == 0)

    asyncio.run(story())


def _secure(files: TlsFiles, name: str) -> dict[str, object]:
    return {"tls": tls_of(files, name), "neighbours": NOWHERE}


def test_a_call_that_nobody_waits_for_any_more_ends_in_silence(tmp_path: Path) -> None:
    """Python complains about failures that nobody has looked at."""
    complaints: list[object] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: complaints.append(context["message"]))
        async with running(config("a", tmp_path, CHAIN, neighbours=NOWHERE)) as node:
            ours = Greeting(kind="link", network="shop", name="a", frame_bytes_max=1, life=1)
            caller = OutgoingHandshake(ours, node.links)
            caller.closed(Connection(caller), "the broker is stopping")
            del caller
            gc.collect()

    asyncio.run(story())
    assert complaints == []
