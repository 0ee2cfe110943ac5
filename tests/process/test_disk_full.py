"""A full disk: publishing is refused in so many words, and goes on when there is room."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.process_parts import BRISK, PAIR, drilling, judged, run, until

pytestmark = pytest.mark.slow

DISK_BYTES = 24 * 2**20


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A file system of its own in this directory; the test is skipped where that is forbidden."""
    path.mkdir(parents=True)
    options = f"size={DISK_BYTES}"
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(path)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(path: Path) -> None:
    """Take all the room that is left."""
    with path.open("wb", buffering=0) as file:
        for size in (2**16, 2**12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    async def work() -> None:
        async with drilling(tmp_path, PAIR) as drill:
            ballast = tmp_path / "state" / "B1" / "ballast"
            await drill.add_subscriber("all", "price > 0", "B2", durable=True, options=BRISK)
            speaker = await drill.add_publisher("ticker", "B1", rate=300, options=BRISK)
            await until(lambda: speaker.confirmed > 100, "events are confirmed")
            fill(ballast)
            for _ in range(300):
                await speaker.publish({"price": 1.0, "note": "x" * 30_000})
            await until(lambda: speaker.client.refusal != "", "the origin refuses")
            assert drill.network.supervisor.restarts("B1") == 0
            ballast.unlink()
            await until(lambda: speaker.client.refusal == "", "the origin takes events again")
            await judged(drill)
            assert drill.network.supervisor.restarts("B1") == 0

    with small_disk(tmp_path / "state" / "B1"):
        run(work())
