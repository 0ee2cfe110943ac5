"""Compiles the kernels in a child process, then loads them into this one.

Compiling takes a minute or two. In a thread it would slow down the event loop all that time, and
the process could not exit before it finished, because an interrupted compiler crashes. Therefore a
child process compiles into the cache on disk (`kernels.machine`), and this process loads the result
in about a second.

Rules

1. A marker in the cache records that it has all kernels that a broker needs, for this version of
   Python and numba, this processor and these sources. If it exists, no child is started.
2. Of all processes that share a cache, one compiles and the others wait; within a process, one
   thread does. So a network of ten brokers on a new machine compiles once.
3. `close` ends the child. Kernels that it has finished stay in the cache.
4. If the child fails, this process compiles the kernels itself and logs the problem.

State: the child. The mark and a lock file are in the cache directory, and safe to delete.
"""

import fcntl
import hashlib
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from anabranch.matching import kernel_state
from anabranch.matching.engine import numba_is_here
from anabranch.matching.warm import warm_for_broker

_LOOK_S = 0.2
_one_at_a_time = threading.Lock()


class KernelCompiler:
    """Compiles and loads the kernels, once. See the rules at the top of this module."""

    def __init__(self) -> None:
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def load(self) -> None:
        """Return when the kernels are loaded, or after `close`. It may take minutes."""
        while not _one_at_a_time.acquire(timeout=_LOOK_S):
            if self._closed.is_set():
                return
        try:
            if numba_is_here() and not kernel_state.loaded.is_set():
                if _has_interpreter() and not is_compiled():
                    self._compile()
                if not self._closed.is_set():
                    warm_for_broker()
                    mark_compiled()
        finally:
            _one_at_a_time.release()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            if self._child is not None:
                self._child.kill()

    def _compile(self) -> None:
        with self._alone() as is_alone:
            if not is_alone or is_compiled():
                return
            with self._lock:
                if self._closed.is_set():
                    return
                self._child = subprocess.Popen(
                    [sys.executable, "-m", "anabranch.matching.kernel_compiler"],
                    env=_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            self._child.wait()

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Whether no other process compiles now; False after `close`."""
        with (_cache() / "compiling").open("a") as file:
            while not _take(file.fileno()):
                if self._closed.wait(_LOOK_S):
                    yield False
                    return
            yield True


def is_compiled() -> bool:
    return _mark().exists()


def mark_compiled() -> None:
    """All kernels that a broker needs have run in this process, and are in the cache."""
    with suppress(OSError):  # the next process compiles what is there already: nothing
        _mark().touch()


def _mark() -> Path:
    """Numba keeps machine code by these, too."""
    import numba  # noqa: PLC0415 - loaded for an index only
    from llvmlite import binding  # noqa: PLC0415

    state = hashlib.sha256()
    for source in sorted((Path(__file__).parent / "kernels").glob("*.py")):
        state.update(f"{source.name} {source.stat().st_mtime_ns} ".encode())
    versions = (platform.python_version(), numba.__version__, binding.get_host_cpu_name())
    state.update(" ".join(versions).encode())
    return _cache() / f"compiled-{state.hexdigest()[:16]}"


def _cache() -> Path:
    from anabranch.matching.kernels.machine import cache_directory  # noqa: PLC0415 - needs numba

    return cache_directory()


def _take(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _has_interpreter() -> bool:
    """Whether there is a Python to start; a frozen program would start itself."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def _environment() -> dict[str, str]:
    """That of this process, with this package where Python looks first."""
    package = str(Path(__file__).parents[2])
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{known}" if known else package}


if __name__ == "__main__":  # the child: what brokers do comes first
    os.nice(5)
    warm_for_broker()
    mark_compiled()
