"""Clients with TLS: they count from the first moment, and what TLS costs is bounded and freed."""

import asyncio
import gc
import ssl
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.config.tls import TlsFiles, client_context, clients_server_context
from anabranch.model.client_frames import Connect
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.model.limits import Limits
from anabranch.node.node import Node
from anabranch.node.prometheus import exposition
from anabranch.node.settings import NodeConfig, Timing, Tls
from anabranch.wire.codec import encode_client
from anabranch.wire.framing import FrameReader, framed
from anabranch.wire.tls_transport import TLS_BYTES, TlsTransport
from tests.node_parts import Stranger, address, config, greeting, running, samples_of, until
from tests.tls_parts import certified

PATIENT = Timing(greeting_s=60.0)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return certified(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def secure(files: TlsFiles, folder: Path, limits: Limits | None = None) -> NodeConfig:
    tls = Tls(clients=clients_server_context(files, "a"))
    return config("a", folder, limits=limits or Limits(), timing=PATIENT, tls=tls)


def trusting(files: TlsFiles) -> ssl.SSLContext:
    context = client_context(files.ca)
    context.check_hostname = False
    return context


async def known(node: Node, files: TlsFiles, name: str) -> Stranger:
    """Somebody who has begun a session."""
    found = await Stranger.at(address(node, "clients"), trusting(files))
    found.send(greeting(name=name) + framed(encode_client(Connect(PROTOCOL_VERSION, name))))
    await found.greeting()
    await until(lambda: any(each.client == name for each in node.sessions._sessions.values()))
    return found


def test_of_too_many_in_a_tls_handshake_the_oldest_is_cut(tmp_path: Path, files: TlsFiles) -> None:
    async def story() -> None:
        async with running(secure(files, tmp_path, Limits(greetings_max=3))) as node:
            place = address(node, "clients")
            silent = [await Stranger.at(place) for _ in range(3)]
            await until(lambda: len(node.strangers) == 3)
            honest = await known(node, files, "honest")
            await silent[0].end()
            assert len(node.strangers) <= 3
            more = [await Stranger.at(place) for _ in range(3)]
            for each in silent[1:]:
                await each.end()
            # Who is known is not cut for those who are not.
            await until(lambda: node.connections == 4)
            assert [each.client for each in node.sessions._sessions.values()] == ["honest"]
            for each in (*silent, *more, honest):
                await each.close()

    asyncio.run(story())


def test_beyond_the_share_for_tls_a_client_is_refused_and_told(
    tmp_path: Path, files: TlsFiles
) -> None:
    async def story() -> None:
        limits = Limits(memory_bytes_max=8 * TLS_BYTES)
        async with running(secure(files, tmp_path, limits)) as node:
            first, second = [await known(node, files, name) for name in ("first", "second")]
            memory = node.status().memory
            assert memory is not None
            assert memory.tls == memory.tls_max == 2 * TLS_BYTES
            assert memory.clients == 0
            samples = samples_of(exposition(node.status(), node.counters))
            assert samples['anabranch_memory_bytes{use="tls"}'] == 2 * TLS_BYTES
            third = await Stranger.at(address(node, "clients"), trusting(files))
            third.send(greeting())
            reason = await third.refusal()
            assert "has 2 clients with TLS" in reason
            assert "memory_bytes_max" in reason
            assert len(node.sessions) == 2
            await first.close()
            await until(lambda: node.memory.tls_bytes == TLS_BYTES)
            fourth = await known(node, files, "fourth")
            for each in (second, third, fourth):
                await each.close()
            await until(lambda: node.memory.tls_bytes == 0)

    asyncio.run(story())


@pytest.mark.usefixtures("no_collector")
def test_what_tls_took_is_freed_without_the_collector(tmp_path: Path, files: TlsFiles) -> None:
    async def story() -> None:
        async with running(secure(files, tmp_path)) as node:
            place = address(node, "clients")
            silent = [await Stranger.at(place) for _ in range(2)]
            await until(lambda: len(node.strangers) == 2)
            parts: list[object] = [each._transport for each in node.strangers._waiting]
            brief = await known(node, files, "brief")
            brief.send((16 << 20).to_bytes(4) + bytes(200_000))
            await until(lambda: node.memory.used_bytes == 200_004)
            (session,) = node.sessions._sessions.values()
            parts += [session.connection._transport, session.connection._reader]
            assert [type(each) for each in parts] == [TlsTransport] * 3 + [FrameReader]
            found = [weakref.ref(part) for part in parts]
            del session, parts
            for each in (*silent, brief):
                await each.close()
            await until(lambda: all(each() is None for each in found))
            assert node.memory.used_bytes == 0

    asyncio.run(story())
