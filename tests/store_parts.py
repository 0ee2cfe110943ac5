"""Stores on real disks, listened to, copied as a crash would leave them, and damaged."""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from anabranch.core.contract import LogRead, RowsRead
from anabranch.core.origin.ledger import first_needed
from anabranch.store.copies import CopyOptions, Refusal
from anabranch.store.files import DiskFile, OpenFile, free_bytes
from anabranch.store.log import LogOptions
from anabranch.store.store import NeededFrom, Store, StoreOptions, WriterOptions

#: No test waits this long unless something is broken.
PATIENCE_S = 120.0
#: Segments of two or three short records, so that a small log has several.
SMALL = StoreOptions(
    log=LogOptions(segment_bytes=90, reserve_bytes=128, stride_bytes=30),
    writer=WriterOptions(retry_s=0.01),
    copies=CopyOptions(
        log=LogOptions(segment_bytes=90, reserve_bytes=128, stride_bytes=30),
        open_max=2,
        margin_bytes=0,
    ),
)


@contextmanager
def quick_directory() -> Iterator[Path]:
    """A directory where a sync costs nothing, if there is one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def body_of(tick: int) -> bytes:
    return b"body" + tick.to_bytes(4)


def time_of(record: bytes) -> int:
    """Ten nanoseconds for each tick of `body_of`."""
    return 10 * int.from_bytes(record[4:8])


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that nobody tells."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.001)


class Ears:
    """A listener that remembers, and lets a test wait for what it should hear."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self.numbers: list[int] = []
        self.reads: dict[int, LogRead] = {}
        self.rows: dict[int, RowsRead] = {}
        self.fulls: list[bool] = []
        self.refusals: list[Refusal] = []
        self.errors: list[Exception] = []
        #: All of it in order, apart from what was read.
        self.heard: list[object] = []

    def synced(self, number: int) -> None:
        self._hear(self.numbers.append, number)

    def log_read(self, read: LogRead) -> None:
        with self._news:
            self.reads[read.request] = read
            self._news.notify_all()

    def rows_read(self, read: RowsRead) -> None:
        with self._news:
            self.rows[read.request] = read
            self._news.notify_all()

    def log_full(self, full: bool) -> None:
        self._hear(self.fulls.append, full)

    def copy_full(self, refusal: Refusal) -> None:
        self._hear(self.refusals.append, refusal)

    def failed(self, error: Exception) -> None:
        self._hear(self.errors.append, error)

    def _hear(self, remember: Callable[..., None], news: object) -> None:
        with self._news:
            remember(news)
            self.heard.append(news)
            self._news.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(condition, PATIENCE_S), "nothing came"

    def wait_synced(self, number: int) -> None:
        self.wait_for(lambda: bool(self.errors) or number in self.numbers)
        assert not self.errors

    def wait_failed(self) -> Exception:
        self.wait_for(lambda: bool(self.errors))
        return self.errors[0]


class Bench:
    """A store, its ears, and the next tick."""

    def __init__(
        self,
        directory: Path,
        *,
        options: StoreOptions = SMALL,
        needed_from: NeededFrom = first_needed,
        broker: str = "b",
        network: str = "n",
        open_file: OpenFile = DiskFile,
        look: Callable[[Path], int] = free_bytes,
    ) -> None:
        self.ears = Ears()
        self.store = Store.open(
            directory,
            network=network,
            broker=broker,
            options=options,
            needed_from=needed_from,
            listener=self.ears,
            time_of=time_of,
            open_file=open_file,
            look=look,
        )
        recovered = self.store.recovered
        self.tick = (recovered.records_first or recovered.first_tick) + len(recovered.records) - 1
        self._request = 0
        self._number = 0

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.tick += 1
            self.store.append(self.tick, body_of(self.tick))

    def append_copy(self, stream: str, first: int, last: int) -> None:
        for tick in range(first, last + 1):
            self.store.append(tick, body_of(tick), stream)

    def write_copy(self, stream: str, first: int, last: int) -> None:
        """Append to a copy and wait until the records are durable."""
        self.append_copy(stream, first, last)
        self.ears.wait_synced(self.sync())

    def sync(self) -> int:
        self._number += 1
        self.store.sync(self._number)
        return self._number

    def write(self, count: int = 1) -> None:
        """Append so many records and wait until they are durable."""
        self.append(count)
        self.ears.wait_synced(self.sync())

    def read(
        self, first: int, last: int, bytes_max: int = 10**9, stream: str = ""
    ) -> tuple[bytes, ...]:
        self._request += 1
        self.store.read(self._request, first, last, bytes_max, stream)
        request = self._request
        self.ears.wait_for(lambda: request in self.ears.reads)
        assert self.ears.reads[request].stream == stream
        return self.ears.reads[request].records

    def read_rows(
        self, prefix: str, after: str = "", bytes_max: int = 10**9, table: str = "copy_rows"
    ) -> RowsRead:
        self._request += 1
        self.store.read_rows(self._request, table, prefix, after, bytes_max)
        request = self._request
        self.ears.wait_for(lambda: request in self.ears.rows or bool(self.ears.errors))
        return self.ears.rows[request]

    def reset(self, first_tick: int) -> None:
        """Replace the log by an empty one."""
        self.store.reset(first_tick)
        self.tick = first_tick - 1

    def forget(self, tick: int) -> None:
        self.store.forget(tick)
        self.settle()

    def settle(self) -> None:
        """Wait for what follows the word of a batch too: deletion, and new segments."""
        self.ears.wait_synced(self.sync())
        self.ears.wait_synced(self.sync())


def reopened(directory: Path, options: StoreOptions = SMALL) -> tuple[list[bytes], list[str]]:
    """The records and notes of a store that is opened and closed."""
    bench = Bench(directory, options=options)
    bench.store.close()
    assert not bench.ears.errors
    return [*bench.store.recovered.records], bench.store.notes


def crash_image(directory: Path, image: Path) -> Path:
    """What a crash would leave of a directory that is in use."""
    return Path(shutil.copytree(directory, image))


def segments_of(directory: Path) -> list[Path]:
    return sorted((directory / "log").glob("*.segment"))
