"""Commands that run until they are interrupted: SIGINT and SIGTERM end them with exit code 0.

`up`, `sub` and `top` do, and `pipeline history --follow`; `broker` has signal handlers of its own
(`node.process`), and streaming queries of Spark end with the session (`pipeline.spark_io`).
"""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

#: Bytes of keys that are read at once.
_KEYS_MAX = 1_024


def call_when_stopped(action: Callable[[], object]) -> None:
    """Call `action` in the running event loop when SIGINT or SIGTERM arrives."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, action)


async def until_stopped(work: Awaitable[None]) -> None:
    """Do the work; SIGINT or SIGTERM cancels it, and the return is normal."""
    task = asyncio.ensure_future(work)
    call_when_stopped(task.cancel)
    with suppress(asyncio.CancelledError):
        await task


@contextmanager
def key_presses(on_key: Callable[[str], None]) -> Iterator[None]:
    """Report each key in the running event loop, if stdin is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(file)
    tty.setcbreak(file)

    def read() -> None:
        # All at once, and past the buffer of `sys.stdin`: what stays in it wakes no loop.
        keys = os.read(file, _KEYS_MAX).decode(errors="replace")
        if not keys:
            loop.remove_reader(file)
        for key in keys:
            on_key(key)

    loop.add_reader(file, read)
    try:
        yield
    finally:
        loop.remove_reader(file)
        termios.tcsetattr(file, termios.TCSADRAIN, before)
