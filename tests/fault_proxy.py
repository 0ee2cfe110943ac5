"""A TCP proxy that spoils what goes through it: delay, cut, block, throttle.

It stands between a dialler and a target. Each direction is a `Course` with faults of its own:
`there` from the dialler to the target, `back` the other way. Rules:

1. Bytes are never changed, repeated or reordered: TCP would not do that either.
2. A blocked course holds what it gets; the connection stays open and silent. When it is freed, what
   was held goes on. At most `HELD_CHUNKS_MAX` are held, then the sender feels it.
3. `cut` resets all connections; `closed` resets new ones too, until it is taken back.
"""

import asyncio
import contextlib
import socket
import struct
from types import TracebackType

CHUNK_BYTES = 64 * 1024
HELD_CHUNKS_MAX = 256
#: Linger on, for no time: closing sends a reset, as a machine does that has lost its memory.
_RESET = struct.pack("ii", 1, 0)

_Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Course:
    """One direction, and what is wrong with it."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        #: 0: as fast as it goes.
        self.bytes_per_s = 0.0
        self.passed_bytes = 0
        self._free = asyncio.Event()
        self._free.set()

    def block(self) -> None:
        self._free.clear()

    def unblock(self) -> None:
        self._free.set()

    async def carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Carry bytes until there are no more."""
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD_CHUNKS_MAX)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take(source, held))
            group.create_task(self._give(held, target))

    async def _take(
        self, source: asyncio.StreamReader, held: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        clock = asyncio.get_running_loop().time
        chunk = b"-"
        while chunk:
            chunk = await source.read(CHUNK_BYTES)
            await held.put((clock() + self.delay_s, chunk))

    async def _give(
        self, held: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter
    ) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, chunk = await held.get()
            await asyncio.sleep(due - clock())
            await self._free.wait()
            if not chunk:
                target.write_eof()
                return
            target.write(chunk)
            await target.drain()
            self.passed_bytes += len(chunk)
            if self.bytes_per_s:
                await asyncio.sleep(len(chunk) / self.bytes_per_s)


class FaultProxy:
    """Between one target and whoever dials it. See the rules at the top of this module."""

    def __init__(self, target_port: int, host: str = "127.0.0.1") -> None:
        self.there = Course()
        self.back = Course()
        #: Whether new connections are reset at once.
        self.closed = False
        self.port = 0
        self._target = (host, target_port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "FaultProxy":
        self._server = await asyncio.start_server(self._serve, self._target[0], 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    @property
    def connections(self) -> int:
        return len(self._writers) // 2

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            _reset(writer)

    def block(self) -> None:
        """Let nothing through in either direction."""
        self.there.block()
        self.back.block()

    def unblock(self) -> None:
        """Let everything through again."""
        self.there.unblock()
        self.back.unblock()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.closed:
            _reset(writer)
            return
        with contextlib.suppress(OSError):
            onward = await asyncio.open_connection(*self._target)
            await self._join((reader, writer), onward)
        _reset(writer)

    async def _join(self, near: _Stream, far: _Stream) -> None:
        writers = {near[1], far[1]}
        self._writers |= writers
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.there.carry(near[0], far[1]))
                group.create_task(self.back.carry(far[0], near[1]))
        except* OSError:
            pass
        finally:
            self._writers -= writers
            for writer in writers:
                _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    plug = writer.get_extra_info("socket")
    if plug is not None and not writer.is_closing():
        with contextlib.suppress(OSError):
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
