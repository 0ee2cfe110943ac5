"""A file system that is really full: a small one in memory, mounted for one child process alone."""

import subprocess
import sys
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("full_disk_child.py")
_MOUNT = 'mount -t tmpfs -o size=3m tmpfs "$1" && shift && exec "$@"'


def _in_small_file_system(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    line = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", str(folder), *command]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=300)


def test_publishing_waits_reading_goes_on_and_service_resumes_when_there_is_room(
    tmp_path: Path,
) -> None:
    try:
        allowed = _in_small_file_system(tmp_path, "true")
    except FileNotFoundError:
        pytest.skip("there is no unshare command to mount a small file system with")
    if allowed.returncode:
        pytest.skip(f"mounting is not permitted: {allowed.stderr.strip()}")
    done = _in_small_file_system(tmp_path, sys.executable, str(CHILD), str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["full", "readable", "room", "resumed", "complete"]
