"""Commands that run until they are interrupted: SIGINT and SIGTERM end them with exit code 0.

`up`, `sub` and `top` do, and `pipeline history --follow`; `broker` has signal handlers of its own
(`node.process`), and streaming queries of Spark end with the session (`pipeline.spark_io`).

They also end when stdout is a pipe and nobody reads it any more, as after `head`: at once, not with
the next line that they print, which may never come.
"""

import asyncio
import os
import signal
import stat
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
    """Do the work; SIGINT or SIGTERM cancels it, and the return is normal.

    Raises `BrokenPipeError` if the reader of stdout is gone.
    """
    task = asyncio.ensure_future(work)
    call_when_stopped(task.cancel)
    is_unread = asyncio.Event()

    def end() -> None:
        is_unread.set()
        task.cancel()

    with suppress(asyncio.CancelledError), _call_when_unread(end):
        await task
    if is_unread.is_set():
        raise BrokenPipeError


@contextmanager
def _call_when_unread(action: Callable[[], object]) -> Iterator[None]:
    """Call `action` in the running event loop when nobody can read stdout, if that is a pipe."""
    try:
        file = sys.stdout.fileno()
        is_pipe = stat.S_ISFIFO(os.fstat(file).st_mode)
    except (OSError, ValueError):
        is_pipe = False
    if not is_pipe:
        yield
        return
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(file)
        action()

    # The writing end of a pipe has nothing to read: it is ready when the other end is closed.
    loop.add_reader(file, end)
    try:
        yield
    finally:
        loop.remove_reader(file)


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
