"""What `test_full_disk` runs in a file system of 3 MiB: fill it up, make room, go on."""

import os
import sys
from pathlib import Path

from anabranch.store.log import LogOptions
from anabranch.store.store import Store, StoreOptions, WriterOptions

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.store_parts import Ears

RECORD = bytes(range(256)) * 16
BATCH = 8
OPTIONS = StoreOptions(
    log=LogOptions(segment_bytes=300_000, reserve_bytes=200_000),
    writer=WriterOptions(retry_s=0.02),
)


def opened(path: Path, ears: Ears) -> Store:
    return Store.open(
        path, network="n", broker="b", options=OPTIONS, listener=ears, time_of=lambda _record: 0
    )


def wait_for_word(ears: Ears, number: int) -> None:
    ears.wait_for(lambda: bool(ears.errors or ears.fulls) or number in ears.numbers)
    assert not ears.errors, ears.errors


def main(folder: Path) -> None:
    ballast = folder / "ballast"
    ballast.write_bytes(os.urandom(1_000_000))
    ears = Ears()
    store = opened(folder / "s", ears)
    tick = confirmed = 0
    while not ears.fulls:
        for _ in range(BATCH):
            tick += 1
            store.append(tick, RECORD)
        store.put("t", "newest", str(tick).encode())
        store.sync(tick)
        wait_for_word(ears, tick)
        confirmed = ears.numbers[-1] if ears.numbers else 0
    assert ears.fulls == [True]
    sys.stdout.write("full\n")
    store.read(1, confirmed - 3, confirmed, 10**9)
    ears.wait_for(lambda: 1 in ears.reads)
    assert ears.reads[1].records == (RECORD,) * 4
    sys.stdout.write("readable\n")
    # Far more than the reserve holds: it has to wait.
    for _ in range(100):
        tick += 1
        store.append(tick, RECORD)
    store.sync(tick)
    ballast.unlink()
    ears.wait_for(lambda: bool(ears.errors) or ears.fulls[-1] is False)
    sys.stdout.write("room\n")
    ears.wait_synced(tick)
    sys.stdout.write("resumed\n")
    store.close()
    store = opened(folder / "s", Ears())
    assert store.recovered.records == (RECORD,) * tick
    store.close()
    sys.stdout.write("complete\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
