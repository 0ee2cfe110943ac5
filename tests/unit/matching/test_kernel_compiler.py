"""Kernels are compiled by a child process, once for all that share a cache."""

import fcntl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from anabranch.matching import kernel_compiler, kernel_state
from anabranch.matching.engine import numba_is_here
from anabranch.matching.kernel_compiler import KernelCompiler, is_compiled, mark_compiled

BOUND_S = 180.0

pytestmark = pytest.mark.skipif(not numba_is_here(), reason="there are no kernels without numba")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, for those who ask where it is; the kernels themselves know another one."""
    monkeypatch.setattr(kernel_compiler, "_cache", lambda: tmp_path)
    monkeypatch.setattr(kernel_state, "loaded", threading.Event())
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of children; each child waits until it is killed."""
    commands: list[list[str]] = []
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return popen([command[0], "-c", "import signal; signal.pause()"], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    return commands


def in_thread(compiler: KernelCompiler) -> threading.Thread:
    thread = threading.Thread(target=compiler.load)
    thread.start()
    return thread


def until_started(commands: list[list[str]]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not commands:
        assert time.monotonic() < deadline, "no child was started"
        time.sleep(0.005)


def test_a_cache_that_is_complete_starts_no_child(cache: Path, started: list[list[str]]) -> None:
    assert not is_compiled()
    mark_compiled()
    assert is_compiled()
    KernelCompiler().load()
    assert started == []
    assert kernel_state.loaded.is_set()


def test_an_empty_cache_starts_a_child_and_close_ends_it_without_loading(
    cache: Path, started: list[list[str]]
) -> None:
    compiler = KernelCompiler()
    thread = in_thread(compiler)
    until_started(started)
    assert started[0][1:] == ["-m", "anabranch.matching.kernel_compiler"]
    compiler.close()
    thread.join(BOUND_S)
    assert not thread.is_alive()
    assert not kernel_state.loaded.is_set()
    assert not is_compiled()


def test_while_another_process_compiles_no_child_is_started(
    cache: Path, started: list[list[str]]
) -> None:
    with (cache / "compiling").open("a") as other:
        fcntl.flock(other.fileno(), fcntl.LOCK_EX)
        compiler = KernelCompiler()
        thread = in_thread(compiler)
        # The other process is done: its kernels are loaded, and nothing is compiled.
        mark_compiled()
        fcntl.flock(other.fileno(), fcntl.LOCK_UN)
        thread.join(BOUND_S)
    assert not thread.is_alive()
    assert kernel_state.loaded.is_set()
    assert started == []


def test_of_two_brokers_in_one_process_one_compiles(cache: Path, started: list[list[str]]) -> None:
    first, second = KernelCompiler(), KernelCompiler()
    threads = [in_thread(first)]
    until_started(started)
    threads.append(in_thread(second))
    second.close()
    threads[1].join(BOUND_S)
    assert not threads[1].is_alive()
    assert len(started) == 1
    first.close()
    threads[0].join(BOUND_S)
    assert not threads[0].is_alive()


def test_after_close_nothing_is_started(cache: Path, started: list[list[str]]) -> None:
    compiler = KernelCompiler()
    compiler.close()
    compiler.load()
    assert started == []
    assert not kernel_state.loaded.is_set()
