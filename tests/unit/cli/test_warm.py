"""`anabranch warm` fills the cache of kernels, of all that is installed."""

import subprocess
import sys

import pytest

from anabranch.matching.kernel_compiler import is_compiled

pytestmark = pytest.mark.slow


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=1_800,
    )


def test_all_kernels_are_compiled_and_the_cache_says_so() -> None:
    done = run("-m", "anabranch", "warm")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.partition(": ready after ")[0] for line in done.stdout.splitlines()]
    assert lines == ["matching", "fetches", "pipeline"]
    assert is_compiled()


def test_without_numba_it_says_that_there_is_nothing_to_compile() -> None:
    blocked = "import sys; sys.modules['numba'] = sys.modules['llvmlite'] = None\n"
    done = run("-c", f"{blocked}from anabranch.cli.main import app; app(['warm'])")
    assert done.returncode == 2
    assert "numba is not installed" in done.stderr
