"""Connections over real sockets: order, gathering, fullness, ends."""

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from anabranch.model.errors import LocalError, RemoteError
from anabranch.wire import transport
from anabranch.wire.framing import FrameReader, framed
from anabranch.wire.greeting import GREETING_BYTES_MAX
from anabranch.wire.transport import Connection

BOUND_S = 120.0


class Owner:
    """Takes down what it hears; greets by allowing large frames at once."""

    def __init__(self, allowed: int = 1_000_000) -> None:
        self.heard: list[tuple[str, object]] = []
        self.changed = asyncio.Event()
        self.allowed = allowed
        self.objects_to = b"\0"

    def opened(self, connection: Connection) -> None:
        self.note("opened", connection.is_open)

    def received(self, connection: Connection, frames: list[bytes]) -> None:
        self.note("received", frames)
        connection.allow(self.allowed)
        if self.objects_to in frames:
            raise RemoteError("not this")

    def full(self, connection: Connection, full: bool) -> None:
        self.note("full", full)

    def closed(self, connection: Connection, reason: str) -> None:
        self.note("closed", reason)

    def note(self, what: str, about: object) -> None:
        self.heard.append((what, about))
        self.changed.set()

    def of(self, what: str) -> list[object]:
        return [about for heard, about in self.heard if heard == what]

    def frames(self) -> list[object]:
        return [frame for frames in self.of("received") for frame in as_list(frames)]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(BOUND_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


def as_list(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


@asynccontextmanager
async def connected(
    owner: Owner, waiting_bytes_max: int = 1_000_000
) -> AsyncIterator[tuple[Connection, socket.socket]]:
    """A connection, and the bare socket at its other end."""
    here, there = socket.socketpair()
    there.setblocking(False)
    here.setblocking(False)
    connection = Connection(owner, waiting_bytes_max)
    loop = asyncio.get_running_loop()
    await loop.connect_accepted_socket(lambda: connection, here)
    try:
        yield connection, there
    finally:
        there.close()
        connection.cut("over")
        await owner.until(lambda: owner.of("closed"))


async def read(plug: socket.socket, size: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    async with asyncio.timeout(BOUND_S):
        while len(data) < size:
            chunk = await loop.sock_recv(plug, size - len(data))
            if not chunk:
                break
            data += chunk
    return data


async def write(plug: socket.socket, data: bytes) -> None:
    async with asyncio.timeout(BOUND_S):
        await asyncio.get_running_loop().sock_sendall(plug, data)


async def unheard(condition: Callable[[], bool]) -> None:
    """Wait for something that no owner hears of."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


def test_frames_are_heard_in_order_and_the_first_one_alone() -> None:
    async def story() -> None:
        owner = Owner()
        async with connected(owner) as (_, plug):
            await write(plug, framed(b"hello") + framed(b"one") + framed(b"two"))
            await owner.until(lambda: len(owner.frames()) == 3)
            assert owner.of("received") == [[b"hello"], [b"one", b"two"]]

    asyncio.run(story())


def test_a_first_frame_that_is_too_large_cuts_the_connection() -> None:
    async def story() -> None:
        owner = Owner()
        async with connected(owner) as (_, plug):
            await write(plug, framed(bytes(GREETING_BYTES_MAX + 1))[:100])
            await owner.until(lambda: owner.of("closed"))
            assert owner.of("received") == []
            assert "received the length of a frame" in str(owner.of("closed")[0])

    asyncio.run(story())


def test_a_large_frame_behind_the_greeting_is_heard() -> None:
    async def story() -> None:
        owner = Owner()
        large = bytes(range(256)) * 3_000
        async with connected(owner) as (_, plug):
            await write(plug, framed(b"hello") + framed(large))
            await owner.until(lambda: len(owner.frames()) == 2)
            assert owner.frames()[1] == large

    asyncio.run(story())


def test_what_is_sent_in_one_turn_leaves_in_one_write() -> None:
    async def story() -> None:
        owner = Owner()
        async with connected(owner) as (connection, plug):
            connection.allow(100)
            connection.send(b"a")
            connection.send(b"b")
            with pytest.raises(BlockingIOError):
                plug.recv(100)
            expected = framed(b"a") + framed(b"b")
            assert await read(plug, len(expected)) == expected
            assert connection.sent_bytes == len(expected)

    asyncio.run(story())


def test_a_frame_beyond_the_agreed_size_is_our_mistake() -> None:
    async def story() -> None:
        owner = Owner()
        async with connected(owner) as (connection, _):
            connection.allow(5_000)
            with pytest.raises(LocalError, match="the limit is 5000"):
                connection.send(bytes(5_001))

    asyncio.run(story())


def test_more_than_the_bound_waiting_is_told_and_so_is_the_end_of_it() -> None:
    async def story() -> None:
        owner = Owner()
        async with connected(owner, waiting_bytes_max=50_000) as (connection, plug):
            connection.allow(1_000_000)
            connection.send(bytes(900_000))
            await owner.until(lambda: owner.of("full") == [True])
            assert connection.waiting_bytes > 50_000
            assert len(await read(plug, 900_004)) == 900_004
            await owner.until(lambda: owner.of("full") == [True, False])

    asyncio.run(story())


def test_hanging_up_lets_through_what_was_sent_before() -> None:
    async def story() -> None:
        owner = Owner()
        async with connected(owner) as (connection, plug):
            connection.send(b"farewell")
            connection.hang_up("done")
            connection.send(b"too late")
            assert await read(plug, 100) == framed(b"farewell")
            await owner.until(lambda: owner.of("closed") == ["done"])
            assert not connection.is_open

    asyncio.run(story())


def test_hanging_up_on_somebody_who_does_not_listen_ends_nevertheless(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "LINGER_S", 0.01)

    async def story() -> None:
        owner = Owner()
        async with connected(owner) as (connection, _):
            connection.allow(10_000_000)
            connection.send(bytes(5_000_000))
            connection.hang_up("done")
            await owner.until(lambda: owner.of("closed") == ["done"])

    asyncio.run(story())


def test_after_a_cut_nothing_more_is_heard_but_the_end() -> None:
    async def story() -> None:
        owner = Owner()
        async with connected(owner) as (connection, plug):
            await write(plug, framed(b"hello"))
            await owner.until(owner.frames)
            await write(plug, framed(b"unheard"))
            connection.cut("enough")
            await owner.until(lambda: owner.of("closed") == ["enough"])
            assert owner.frames() == [b"hello"]

    asyncio.run(story())


def test_what_the_owner_objects_to_cuts_the_connection_with_its_reason() -> None:
    async def story() -> None:
        owner = Owner()
        async with connected(owner) as (_, plug):
            await write(plug, framed(b"hello") + framed(b"\0"))
            await owner.until(lambda: owner.of("closed") == ["not this"])

    asyncio.run(story())


def test_the_other_side_may_end_it() -> None:
    async def story() -> None:
        owner = Owner()
        async with connected(owner) as (_, plug):
            plug.close()
            await owner.until(lambda: owner.of("closed"))
            assert owner.of("closed") == ["the peer closed the connection"]

    asyncio.run(story())


def test_a_connection_that_is_handed_over_is_heard_by_the_new_owner() -> None:
    async def story() -> None:
        first, second = Owner(), Owner()
        async with connected(second) as (connection, plug):
            connection.hand_over(first)
            await write(plug, framed(b"one"))
            await first.until(first.frames)
            connection.hand_over(second)
            await write(plug, framed(b"two"))
            await second.until(second.frames)
            assert (first.frames(), second.frames()) == ([b"one"], [b"two"])

    asyncio.run(story())


def test_a_deaf_connection_hears_nothing_and_still_speaks() -> None:
    async def story() -> None:
        owner = Owner()
        async with connected(owner) as (connection, plug):
            connection.deafen()
            await write(plug, framed(b"hello"))
            connection.send(b"still here")
            assert await read(plug, 14) == framed(b"still here")
            assert owner.frames() == []

    asyncio.run(story())


class KeepingOwner(Owner):
    """Knows its connection, as a session does."""

    def opened(self, connection: Connection) -> None:
        self.connection = connection
        super().opened(connection)


class Meter:
    def __init__(self) -> None:
        self.bytes = 0

    def changed(self, by: int) -> None:
        self.bytes += by


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only what nobody refers to is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("end", ["there", "cut", "hung up"])
def test_a_closed_connection_is_freed_without_the_collector(end: str) -> None:
    async def connection_that_ends() -> weakref.ref[FrameReader]:
        owner = KeepingOwner()
        async with connected(owner) as (connection, plug):
            await write(plug, framed(b"hello") + framed(bytes(100_000))[:-1])
            await unheard(lambda: connection.pending_bytes > 100_000)
            found = weakref.ref(connection._reader)
            if end == "there":
                plug.close()
            elif end == "cut":
                connection.cut("enough")
            else:
                connection.hang_up("enough")
            await owner.until(lambda: owner.of("closed"))
        return found

    async def story() -> None:
        reader = await connection_that_ends()
        # The loop lets go of the handle that it runs last.
        await asyncio.sleep(0)
        assert reader() is None

    asyncio.run(story())


def test_what_arrives_stays_as_small_as_a_greeting_until_it_is_allowed() -> None:
    class Careful(Owner):
        def received(self, connection: Connection, frames: list[bytes]) -> None:
            self.note("received", frames)
            if frames == [b"hello"]:
                connection.restrict(1_000_000)
            else:
                connection.allow(connection.frame_bytes_max)

    async def story() -> None:
        large = bytes(10_000)
        owner = Careful()
        async with connected(owner) as (connection, plug):
            await write(plug, framed(b"hello") + framed(b"me") + framed(large))
            await owner.until(lambda: len(owner.frames()) == 3)
            connection.send(bytes(500_000))
        hasty = Careful()
        async with connected(hasty) as (_, plug):
            await write(plug, framed(b"hello") + framed(large))
            await hasty.until(lambda: hasty.of("closed"))
            assert hasty.frames() == [b"hello"]
            assert f"1 to {GREETING_BYTES_MAX} are allowed" in str(hasty.of("closed")[0])

    asyncio.run(story())


def test_a_meter_counts_what_arrives_and_what_waits() -> None:
    async def story() -> None:
        owner, meter = Owner(), Meter()
        async with connected(owner) as (connection, plug):
            await write(plug, framed(b"hello"))
            await owner.until(owner.frames)
            connection.meter(meter)
            await write(plug, framed(bytes(50_000))[:-1])
            await unheard(lambda: connection.pending_bytes == 50_003)
            assert meter.bytes == 50_003
            await write(plug, b"\0")
            await owner.until(lambda: len(owner.frames()) == 2)
            await unheard(lambda: meter.bytes == 0)
            connection.allow(1_000_000)
            connection.send(bytes(900_000))
            assert meter.bytes == connection.waiting_bytes > 100_000
            assert len(await read(plug, 900_004)) == 900_004
            connection.measure()
            assert meter.bytes == 0
            connection.send(bytes(900_000))
            connection.cut("enough")
            await owner.until(lambda: owner.of("closed"))
            assert meter.bytes == 0

    asyncio.run(story())


def test_much_that_is_sent_in_one_turn_is_written_before_it_ends() -> None:
    async def story() -> None:
        owner = Owner()
        async with connected(owner) as (connection, plug):
            connection.allow(1_000_000)
            connection.send(bytes(transport.GATHERED_BYTES_MAX))
            assert plug.recv(4) == transport.GATHERED_BYTES_MAX.to_bytes(4)

    asyncio.run(story())
