"""TLS under connections, over real sockets: chunks, fullness, failures, ends, and what is freed."""

import asyncio
import contextlib
import gc
import random
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from anabranch.config.tls import TlsFiles, client_context, clients_server_context
from anabranch.wire.framing import framed
from anabranch.wire.tls_transport import RECORD_BYTES, TlsTransport
from anabranch.wire.transport import Connection
from tests.tls_parts import certified
from tests.unit.wire.test_transport import BOUND_S, KeepingOwner, Owner, read, unheard, write

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return certified(tmp_path_factory.mktemp("tls"))


class Peer:
    """The other side: TLS by hand, so that its bytes can be cut anywhere."""

    def __init__(self, plug: socket.socket, files: TlsFiles) -> None:
        self._plug = plug
        context = client_context(files.ca)
        context.check_hostname = False
        self._incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self.outgoing)

    async def shake_hands(self, piece_bytes: int = 1 << 20) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.flush(piece_bytes)
                await self._more()
            else:
                break
        await self.flush(piece_bytes)

    async def say_hello(self, owner: Owner) -> None:
        """Shake hands and send a frame, until it is heard."""
        await self.shake_hands()
        await self.send(framed(b"hello"))
        await owner.until(owner.frames)

    async def send(self, data: bytes, piece_bytes: int = 1 << 20) -> None:
        self._tls.write(data)
        await self.flush(piece_bytes)

    async def flush(self, piece_bytes: int = 1 << 20) -> None:
        data = self.outgoing.read()
        for start in range(0, len(data), piece_bytes):
            await write(self._plug, data[start : start + piece_bytes])
            # The other side reads what is there.
            await asyncio.sleep(0)

    async def hear(self, size: int) -> bytes:
        """The next bytes; fewer if the other side says that it has ended."""
        found = bytearray()
        while len(found) < size:
            try:
                data = self._tls.read(size - len(found))
            except ssl.SSLWantReadError:
                await self._more()
                continue
            if not data:
                break
            found += data
        return bytes(found)

    async def _more(self) -> None:
        async with asyncio.timeout(BOUND_S):
            data = await asyncio.get_running_loop().sock_recv(self._plug, 65_536)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def goodbye(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()


@asynccontextmanager
async def secured(
    owner: Owner, files: TlsFiles, waiting_bytes_max: int = MIB
) -> AsyncIterator[tuple[Connection, socket.socket, Peer]]:
    """A connection with TLS, and the socket at its other end, before the handshake."""
    here, there = socket.socketpair()
    there.setblocking(False)
    here.setblocking(False)
    connection = Connection(owner, waiting_bytes_max)
    context = clients_server_context(files, "a")
    loop = asyncio.get_running_loop()
    await loop.connect_accepted_socket(lambda: TlsTransport(context, connection), here)
    try:
        yield connection, there, Peer(there, files)
    finally:
        there.close()
        connection.cut("over")
        await owner.until(lambda: owner.of("closed"))


@pytest.mark.parametrize("piece_bytes", [7, 1_000, 16_384, 1 << 20])
def test_frames_come_out_however_the_encrypted_bytes_are_cut(
    files: TlsFiles, piece_bytes: int
) -> None:
    async def story() -> None:
        owner = Owner()
        sizes = [1, 100, RECORD_BYTES, 40_000] if piece_bytes < 100 else [5, 200_000, 1, 300_000]
        sent = [b"hello", *(random.Random(1).randbytes(size) for size in sizes)]
        async with secured(owner, files) as (connection, _, peer):
            await peer.shake_hands(piece_bytes)
            await peer.send(b"".join(map(framed, sent)), piece_bytes)
            await owner.until(lambda: len(owner.frames()) == len(sent))
            assert owner.frames() == sent
            assert connection.tls is not None
            assert connection.tls.version() == "TLSv1.3"
            for data in sent:
                connection.send(data)
            answer = b"".join(map(framed, sent))
            assert await peer.hear(len(answer)) == answer

    asyncio.run(story())


def test_the_owner_hears_of_a_connection_before_its_handshake(files: TlsFiles) -> None:
    async def story() -> None:
        owner = Owner()
        async with secured(owner, files) as (connection, plug, _):
            assert owner.of("opened") == [True]
            connection.cut("too slow")
            await owner.until(lambda: owner.of("closed"))
            assert owner.of("closed") == ["too slow"]
            assert await read(plug, 1) == b""

    asyncio.run(story())


def test_what_waits_counts_wherever_it_waits_and_fullness_is_told(files: TlsFiles) -> None:
    async def story() -> None:
        owner = Owner(allowed=4 * MIB)
        async with secured(owner, files, waiting_bytes_max=MIB) as (connection, plug, peer):
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            await peer.say_hello(owner)
            data = bytes(3 * MIB)
            connection.send_framed(memoryview(framed(data)))
            assert owner.of("full") == [True]
            # The kernel has taken some.
            assert connection.waiting_bytes > 2 * MIB
            assert await peer.hear(4) == len(data).to_bytes(4)
            assert await peer.hear(len(data)) == data
            await owner.until(lambda: owner.of("full") == [True, False])
            await unheard(lambda: connection.waiting_bytes == 0)

    asyncio.run(story())


@pytest.mark.parametrize("waiting_bytes_max", [0, 1, 100, 20_000])
def test_small_bounds_of_what_may_wait_do_not_stall(
    files: TlsFiles, waiting_bytes_max: int
) -> None:
    async def story() -> None:
        owner = Owner()
        bound = waiting_bytes_max
        async with secured(owner, files, waiting_bytes_max=bound) as (connection, plug, peer):
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            await peer.say_hello(owner)
            connection.send(bytes(900_000))
            await owner.until(lambda: owner.of("full") == [True])
            assert len(await peer.hear(900_004)) == 900_004
            await owner.until(lambda: owner.of("full") == [True, False])

    asyncio.run(story())


def test_what_was_sent_before_hanging_up_arrives_and_then_the_end(files: TlsFiles) -> None:
    async def story() -> None:
        owner = Owner()
        async with secured(owner, files) as (connection, _, peer):
            await peer.say_hello(owner)
            connection.send(bytes(500_000))
            connection.hang_up("enough")
            assert len(await peer.hear(1_000_000)) == 500_004
            await owner.until(lambda: owner.of("closed"))
            assert owner.of("closed") == ["enough"]

    asyncio.run(story())


def test_a_deaf_connection_hears_later_what_came_meanwhile(files: TlsFiles) -> None:
    async def story() -> None:
        owner = Owner()
        async with secured(owner, files) as (connection, _, peer):
            await peer.say_hello(owner)
            connection.deafen()
            await peer.send(framed(b"later") * 10)
            connection.send(b"still here")
            assert await peer.hear(14) == framed(b"still here")
            assert len(owner.frames()) == 1
            connection.listen()
            await owner.until(lambda: len(owner.frames()) == 11)

    asyncio.run(story())


def test_the_end_that_the_other_side_says_is_heard_after_its_frames(files: TlsFiles) -> None:
    async def story() -> None:
        owner = Owner()
        async with secured(owner, files) as (_, _plug, peer):
            await peer.shake_hands()
            await peer.send(framed(b"hello"))
            peer.goodbye()
            await peer.flush()
            await owner.until(lambda: owner.of("closed"))
            assert owner.frames() == [b"hello"]
            assert owner.of("closed") == ["the peer closed the connection"]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("what", "alert"),
    # OpenSSL answers only those who seem to know TLS.
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600), b"\x15\x03"),
        (framed(b"hello"), b""),
        (b"GET / HTTP/1.1\r\n\r\n", b""),
    ],
)
def test_a_handshake_that_fails_ends_with_the_reason_and_an_alert(
    files: TlsFiles, what: bytes, alert: bytes
) -> None:
    async def story() -> None:
        owner = Owner()
        async with secured(owner, files) as (_, plug, _peer):
            await write(plug, what)
            assert (await read(plug, 100))[:2] == alert
            await owner.until(lambda: owner.of("closed"))
            (reason,) = owner.of("closed")
            assert str(reason).startswith("the TLS handshake failed: ")

    asyncio.run(story())


def test_a_forged_record_ends_the_connection_with_the_reason(files: TlsFiles) -> None:
    async def story() -> None:
        owner = Owner()
        async with secured(owner, files) as (_, plug, peer):
            await peer.say_hello(owner)
            await write(plug, b"\x17\x03\x03\x00\x40" + bytes(64))
            await owner.until(lambda: owner.of("closed"))
            assert owner.of("closed") == ["TLS failed: decryption failed or bad record mac"]
            assert owner.frames() == [b"hello"]

    asyncio.run(story())


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only what nobody refers to is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


Ending = Callable[[Connection, socket.socket], object]
ENDINGS: dict[str, Ending] = {
    "there": lambda _connection, plug: plug.close(),
    "cut": lambda connection, _plug: connection.cut("enough"),
    "hung up": lambda connection, _plug: connection.hang_up("enough"),
    "no TLS": lambda _connection, plug: plug.send(bytes(100)),
}


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("end", ENDINGS)
@pytest.mark.parametrize("stage", ["silent", "hello", "open"])
def test_all_of_a_closed_connection_is_freed_without_the_collector(
    files: TlsFiles, stage: str, end: str
) -> None:
    async def connection_that_ends() -> list[weakref.ref[object]]:
        owner = KeepingOwner()
        async with secured(owner, files) as (connection, plug, peer):
            if stage == "hello":
                with contextlib.suppress(ssl.SSLWantReadError):
                    peer._tls.do_handshake()
                await write(plug, peer.outgoing.read()[:-10])
            elif stage == "open":
                await peer.shake_hands()
                await peer.send(framed(b"hello") + framed(bytes(100_000))[:-1])
                await unheard(lambda: connection.pending_bytes > 100_000)
            tls = connection._transport
            assert isinstance(tls, TlsTransport)
            parts: list[object] = [tls, tls._tls, connection._reader]
            found = [weakref.ref(part) for part in parts]
            del tls, parts
            ENDINGS[end](connection, plug)
            await owner.until(lambda: owner.of("closed"))
        return found

    async def story() -> None:
        found = await connection_that_ends()
        # The loop lets go of the handles that it runs last.
        await unheard(lambda: all(each() is None for each in found))

    asyncio.run(story())
