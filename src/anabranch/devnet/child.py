"""A child process that never outlives this process.

Rules

1. The output of the child is appended to its log file; its input is empty.
2. The child has its own session, so that Ctrl-C in a terminal reaches this process and not the
   child. It still dies with this process (`parent_watch`).
3. A pidfd reports the exit of the child, so that no thread has to wait for it and other children
   are not affected. Signals are sent by process id, and only while the process exists.

State: the process. Use a `Child` from one event loop, in a thread that outlives the child.
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
    """A command, and how to tell that it is ready."""

    name: str
    command: tuple[str, ...]
    log: Path
    #: Whether the process with this id is ready; polled until it is.
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
        #: Bytes that earlier processes wrote to the log.
        self._log_bytes_before = program.log.stat().st_size if program.log.exists() else 0
        self._process = _start(program)
        self.pid = self._process.pid
        self._descriptor = os.pidfd_open(self.pid)
        loop.add_reader(self._descriptor, self._on_exit)

    def send(self, number: signal.Signals) -> None:
        """Send a signal if the process exists."""
        if not self.ended.done():
            # A zombie keeps its id until it is reaped, so this cannot reach another process.
            self._process.send_signal(number)

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        code = self._process.wait()
        if not self.ended.done():
            self.ended.set_result(code)

    async def stop(self, bound_s: float) -> int:
        """Terminate the process, and kill it after `bound_s`; returns the exit code."""
        self.send(signal.SIGTERM)
        try:
            return await asyncio.wait_for(asyncio.shield(self.ended), bound_s)
        except TimeoutError:
            self.send(signal.SIGKILL)
            return await asyncio.shield(self.ended)

    def last_words(self, lines: int = 5, bytes_max: int = 4_096) -> str:
        """The last lines that this process printed."""
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
