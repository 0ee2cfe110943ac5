"""What `test_kill` runs and kills: appends and puts, and says what was synced."""

import sys
import threading
from pathlib import Path
from random import Random

from anabranch.core.contract import LogRead, RowsRead
from anabranch.store.copies import Refusal
from anabranch.store.log import LogOptions
from anabranch.store.store import Store, StoreOptions

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.store_parts import body_of, time_of

OPTIONS = StoreOptions(log=LogOptions(segment_bytes=20_000, reserve_bytes=8_192))


class Mouth:
    """Says what was synced as soon as it hears it."""

    def __init__(self) -> None:
        #: Batches that may be under way.
        self.free = threading.Semaphore(4)

    def synced(self, number: int) -> None:
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        # One word may be for several batches; the writer does not wait for long.
        self.free.release()

    def log_read(self, read: LogRead) -> None:
        raise AssertionError(read)

    def rows_read(self, read: RowsRead) -> None:
        raise AssertionError(read)

    def log_full(self, full: bool) -> None:
        raise AssertionError(full)

    def copy_full(self, refusal: Refusal) -> None:
        raise AssertionError(refusal)

    def failed(self, error: Exception) -> None:
        raise error


def main(state: Path) -> None:
    mouth = Mouth()
    store = Store.open(
        state, network="n", broker="b", options=OPTIONS, listener=mouth, time_of=time_of
    )
    tick = len(store.recovered.records)
    rng = Random(tick)
    while True:
        mouth.free.acquire(timeout=0.01)
        for _ in range(rng.randint(1, 40)):
            tick += 1
            store.append(tick, body_of(tick))
        store.put("t", "k", str(tick).encode())
        store.sync(tick)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
