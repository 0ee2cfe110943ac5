"""Lines of stdin, for a command that has an event loop to keep going.

A blocking read would stop everything else: what was published would not be sent before the next
line arrives. So a thread reads, and the loop gets whole lines as they come. The thread waits when
the loop is behind, and does not keep the process alive.
"""

import asyncio
import io
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TextIO

_CHUNK_BYTES = 65_536
_CHUNKS_MAX = 4


async def piped_lines() -> AsyncIterator[bytes]:
    """The lines of stdin, without their ends."""
    loop = asyncio.get_running_loop()
    source = sys.stdin
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_MAX)

    def read() -> None:
        # The loop may be gone, or stdin be closed, before stdin ends.
        with suppress(RuntimeError, ValueError, OSError):
            while True:
                room.acquire()
                chunk = _read_some(source)
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
                if not chunk:
                    return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        room.release()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def _read_some(source: TextIO) -> bytes:
    try:
        file = source.fileno()
    except io.UnsupportedOperation:
        return source.buffer.read(_CHUNK_BYTES)
    # Not through the buffer: its lock would be held when the interpreter ends.
    return os.read(file, _CHUNK_BYTES)
