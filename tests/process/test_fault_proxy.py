"""The proxy between brokers spoils connections the way it is told, and no other way."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.fault_proxy import CHUNK_BYTES, FaultProxy
from tests.process_parts import until

BOUND_S = 120.0
_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def echo_behind_proxy() -> AsyncIterator[FaultProxy]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with FaultProxy(server.sockets[0].getsockname()[1]) as proxy:
        yield proxy
    server.close()


def run(work: Callable[[FaultProxy, _Stream], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(BOUND_S), echo_behind_proxy() as proxy:
            stream = await asyncio.open_connection("127.0.0.1", proxy.port)
            await work(proxy, stream)
            stream[1].transport.abort()

    asyncio.run(main())


async def says(stream: _Stream, data: bytes) -> bytes:
    stream[1].write(data)
    return await stream[0].readexactly(len(data))


def test_bytes_pass_unchanged_and_in_order() -> None:
    async def work(proxy: FaultProxy, stream: _Stream) -> None:
        data = bytes(range(256)) * 2_000
        assert await says(stream, data) == data
        assert proxy.there.passed_bytes == proxy.back.passed_bytes == len(data)

    run(work)


def test_delay_holds_every_byte_back_at_least_so_long() -> None:
    async def work(proxy: FaultProxy, stream: _Stream) -> None:
        clock = asyncio.get_running_loop().time
        proxy.there.delay_s, proxy.back.delay_s = 0.05, 0.1
        begin = clock()
        assert await says(stream, b"hello") == b"hello"
        assert clock() - begin >= 0.15

    run(work)


def test_a_blocked_course_holds_and_then_passes_everything() -> None:
    async def work(proxy: FaultProxy, stream: _Stream) -> None:
        proxy.back.block()
        stream[1].write(b"first")
        await until(lambda: proxy.there.passed_bytes == 5, "the bytes have passed on the way there")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream[0].readexactly(1), 0.2)
        assert (proxy.there.passed_bytes, proxy.back.passed_bytes) == (5, 0)
        proxy.unblock()
        assert await stream[0].readexactly(5) == b"first"

    run(work)


def test_throttle_takes_at_least_as_long_as_the_rate_says() -> None:
    async def work(proxy: FaultProxy, stream: _Stream) -> None:
        proxy.there.bytes_per_s = 1_000_000
        clock = asyncio.get_running_loop().time
        begin = clock()
        await says(stream, bytes(2 * CHUNK_BYTES))
        await says(stream, b"after")
        assert clock() - begin >= 2 * CHUNK_BYTES / 1_000_000

    run(work)


def test_cut_resets_and_closed_lets_nobody_in() -> None:
    async def work(proxy: FaultProxy, stream: _Stream) -> None:
        await says(stream, b"hello")
        proxy.closed = True
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            await stream[0].readexactly(1)
        again = await asyncio.open_connection("127.0.0.1", proxy.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await says(again, b"hello")
        again[1].transport.abort()
        proxy.closed = False
        third = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await says(third, b"hello") == b"hello"
        third[1].transport.abort()

    run(work)
