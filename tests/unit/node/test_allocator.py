"""Large blocks that were freed are not kept. Tried in processes of their own: it is set for all."""

import json
import subprocess
import sys

import pytest

from anabranch.node.memory_tuning import LARGE_BYTES, give_back

#: Large blocks with small ones between them, as frames and what they leave behind. Prints what is
#: resident at the end, beyond the beginning.
_PROGRAM = """
import json, sys
from pathlib import Path
from anabranch.node.memory_tuning import return_large_blocks

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

is_set = sys.argv[1] == "set" and return_large_blocks()
# The allocator learns that large blocks are freed soon.
for _ in range(3):
    block = bytes(b"x" * 20_000_000)
    del block
before, kept = resident(), []
for _ in range(20):
    block = b"x" * int(sys.argv[2])
    kept.append(b"y" * 100_000)
    held = [block, b"z" * 100_000]
    kept.append(held)
for held in kept[1::2]:
    held.clear()
print(json.dumps([is_set, resident() - before]))
"""


def resident_after(setting: str) -> tuple[bool, int]:
    arguments = [sys.executable, "-c", _PROGRAM, setting, str(2 * LARGE_BYTES)]
    done = subprocess.run(arguments, capture_output=True, check=True, timeout=300)
    is_set, size = json.loads(done.stdout)
    return bool(is_set), int(size)


def test_large_blocks_go_back_to_the_system_when_they_are_freed() -> None:
    is_set, size = resident_after("set")
    if not is_set:
        pytest.skip("the C library is not glibc")
    # Twenty blocks of 8 MiB are gone; the small ones between them are not.
    assert size < 20 * 1024 * 1024
    # Otherwise they stay, so this can fail.
    assert resident_after("leave")[1] > 100 * 1024 * 1024


def test_giving_back_is_possible_at_any_time() -> None:
    give_back()
    give_back()
