"""One child process: started, watched, signalled; it never outlives this process.

`Child` is a program with a name. Rules:

1. What it prints is appended to its log file; its input is empty.
2. It is in a session of its own: Ctrl-C in a terminal reaches this process, not the child. It dies
   with this process all the same (`parent_watch`).
3. Its death is heard through a file descriptor of the kernel, so no thread waits for it and nobody
   else's children are touched. Signals go to this child by its id, and only while it is there.

State kept: the process. It must be used from one event loop, in a thread that stays.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

_PARENT_WATCH = str(Path(__file__).with_name("parent_watch.py"))


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What to run, and how to see that it serves."""

    name: str
    command: tuple[str, ...]
    log: Path
    #: Whether the process of this id serves; asked again and again until it does.
    is_ready: Callable[[int], Awaitable[bool]]
    environment: Mapping[str, str] = {}
    #: Programs of a higher rank are started later and stopped earlier.
    rank: int = 0


class Child:
    """A running program. See the rules at the top of this module."""

    def __init__(self, program: Program) -> None:
        self.program = program
        loop = asyncio.get_running_loop()
        #: The exit code; negative for a signal.
        self.ended: asyncio.Future[int] = loop.create_future()
        #: What others before it printed.
        self._log_bytes_before = program.log.stat().st_size if program.log.exists() else 0
        self._process = _start(program)
        self.pid = self._process.pid
        self._descriptor = os.pidfd_open(self.pid)
        loop.add_reader(self._descriptor, self._hear_end)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process is there."""
        if not self.ended.done():
            # A zombie keeps its id until it is waited for, so this cannot reach anybody else.
            self._process.send_signal(number)

    def _hear_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        code = self._process.wait()
        if not self.ended.done():
            self.ended.set_result(code)

    async def stop(self, bound_s: float) -> int:
        """Ask it to end; after `bound_s`, end it. The exit code."""
        self.send(signal.SIGTERM)
        try:
            return await asyncio.wait_for(asyncio.shield(self.ended), bound_s)
        except TimeoutError:
            self.send(signal.SIGKILL)
            return await asyncio.shield(self.ended)

    def last_words(self, lines: int = 5, bytes_max: int = 4_096) -> str:
        """The end of what it printed, in its own life."""
        with self.program.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_bytes_before, end - bytes_max))
            text = log.read().decode(errors="replace")
        return "\n".join(text.strip().splitlines()[-lines:])


def _start(program: Program) -> subprocess.Popen[bytes]:
    program.log.parent.mkdir(parents=True, exist_ok=True)
    watched = (sys.executable, "-I", "-S", _PARENT_WATCH, str(os.getpid()))
    with program.log.open("ab") as log:
        return subprocess.Popen(
            [*watched, *program.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **program.environment},
            start_new_session=True,
        )
