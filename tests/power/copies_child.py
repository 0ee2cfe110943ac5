"""What is recorded for copies: a store that is driven without a broker, and tells what it is told.

    python -m tests.power.copies_child STATE SEED ROUNDS

It opens, cuts, drops, appends to, and deletes from copies of three streams, appends to the own log
and begins it anew, and puts a counter into the catalog, as chance decides. Sometimes there is no
space for copies. Over a connection to itself, which the recorder listens to, it sends every `Step`
before it takes it, and what the store reports. So steps, reports and calls to the disk are in one
row.
"""

import queue
import socket
import sys
from pathlib import Path
from random import Random

import msgspec

from anabranch.core.contract import LogRead, RecoveredCopy, RowsRead
from anabranch.store.copies import CopyOptions, Refusal
from anabranch.store.log import LogOptions, read_records
from anabranch.store.store import Store, StoreOptions, WriterOptions
from tests.power.broker_child import checkpoint_often

STREAMS = ("x", "y", "Ÿ z")
OPTIONS = StoreOptions(
    log=LogOptions(segment_bytes=2_000, reserve_bytes=2_048, blank_bytes=512, stride_bytes=300),
    writer=WriterOptions(window_records=16, retry_s=0.01),
    copies=CopyOptions(
        log=LogOptions(segment_bytes=700, reserve_bytes=256, blank_bytes=128, stride_bytes=300),
        open_max=2,
        margin_bytes=0,
    ),
)


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that is asked of the store, or reported by it."""

    #: open, cut, drop, append, put, forget, reset; synced, refused.
    what: str
    stream: str = ""
    #: The first tick of a copy; the first of the appended ticks; the last one of others; a counter.
    tick: int = 0
    count: int = 0
    #: Distinguishes copies of the same stream, and what was appended before and after a cut. Of a
    #: refusal: what the copy was opened with, or had at the end when the life began.
    copy: int = 0
    #: Steps before this one are synced.
    steps: int = 0


def body(stream: str, copy: int, tick: int) -> bytes:
    """The record of a tick; the content tells which copy it belongs to."""
    padding = Random(f"{stream} {copy} {tick}").randbytes((tick * 37) % 200)
    return msgspec.msgpack.encode((stream, copy, tick, padding))


def copy_of(record: bytes) -> int:
    found: int = msgspec.msgpack.decode(record)[1]
    return found


def no_time(_record: bytes) -> int:
    return 0


class Reports:
    """A listener that queues what it hears."""

    def __init__(self) -> None:
        self.heard: queue.SimpleQueue[int | Refusal] = queue.SimpleQueue()

    def synced(self, number: int) -> None:
        self.heard.put(number)

    def copy_full(self, refusal: Refusal) -> None:
        self.heard.put(refusal)

    def log_read(self, read: LogRead) -> None:
        raise AssertionError(read)

    def rows_read(self, read: RowsRead) -> None:
        raise AssertionError(read)

    def log_full(self, full: bool) -> None:
        raise AssertionError(full)

    def failed(self, error: Exception) -> None:
        raise error


class Speaker:
    """Sends steps over an accepted connection of this process."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._hearing = socket.create_connection(server.getsockname())
            self._speaking, _ = server.accept()
        self.count = 0

    def say(self, step: Step) -> None:
        data = msgspec.json.encode(step)
        self._speaking.sendall(data + b"\n")
        self.count += 1
        while not self._hearing.recv(65_536).endswith(b"\n"):
            pass


class Work:
    """A store and what chance does to it."""

    def __init__(self, state: Path, draw: Random) -> None:
        self._draw = draw
        self._speaker = Speaker()
        self._reports = Reports()
        self._has_space = True
        self._store = Store.open(
            state,
            network="n",
            broker="b",
            options=OPTIONS,
            listener=self._reports,
            time_of=no_time,
            look=lambda _path: 10**9 * self._has_space,
        )
        recovered = self._store.recovered
        self._own = recovered.last_tick
        self._own_copy = 0
        if recovered.records:
            self._own_copy = copy_of(recovered.records[-1])
        #: Stream → number, next tick.
        self._copies: dict[str, tuple[int, int]] = {}
        #: Stream → the oldest tick that was not deleted.
        self._firsts = {stream: copy.first_tick for stream, copy in recovered.copies.items()}
        #: The store's number of a copy → ours.
        self._numbers: dict[int, int] = {}
        self._next_copy = draw.getrandbits(30)
        self._number = 0
        self._put = 0
        #: Number of a sync → steps before it.
        self._covered: dict[int, int] = {}
        for stream, copy in recovered.copies.items():
            self._find(stream, copy)
        for stream in recovered.lost_copies:
            raise AssertionError(f"lost {stream}")

    def _find(self, stream: str, copy: RecoveredCopy) -> None:
        """Go on with a copy, whose number is in its records; drop it if it has none."""
        pieces = self._store.pieces(stream)
        if copy.last_tick < copy.first_tick:
            self._say(Step("drop", stream))
            self._store.drop_copy(stream)
            return
        (record,) = read_records(pieces, copy.last_tick, copy.last_tick, 1)
        self._copies[stream] = (copy_of(record), copy.last_tick + 1)
        self._numbers[self._store._kept[stream][0]] = copy_of(record)

    def _say(self, step: Step) -> None:
        self._speaker.say(step)

    # -- steps ----------------------------------------------------------------------------------

    def do(self) -> None:
        """Take a few steps."""
        draw = self._draw
        stream = draw.choice(STREAMS)
        choice = draw.random()
        if draw.random() < 0.15:
            self._reset()
        if stream not in self._copies:
            self._open(stream)
        elif draw.random() < 0.2:
            self._cut(stream)
        elif choice < 0.16:
            self._say(Step("drop", stream))
            self._store.drop_copy(stream)
            del self._copies[stream]
            if draw.random() < 0.5:
                self._open(stream)
        elif choice < 0.4:
            self._forget(stream)
        if choice > 0.1:
            for each in self._copies:
                if draw.random() < 0.7:
                    self._append(each, draw.choice((1, 1, 2, 6)))
        if draw.random() < 0.5:
            count = draw.choice((1, 2, 5))
            self._say(Step("append", "", self._own + 1, count, self._own_copy))
            for tick in range(self._own + 1, self._own + count + 1):
                self._store.append(tick, body("", self._own_copy, tick))
            self._own += count
        if draw.random() < 0.6:
            self._put += 1
            self._say(Step("put", tick=self._put))
            self._store.put("t", "n", str(self._put).encode())
        self._has_space = draw.random() < 0.6

    def _open(self, stream: str) -> None:
        self._next_copy += 1
        first = self._draw.randint(1, 40)
        self._say(Step("open", stream, first, copy=self._next_copy))
        self._numbers[self._store.open_copy(stream, first)] = self._next_copy
        self._copies[stream] = (self._next_copy, first)
        self._firsts[stream] = first

    def _cut(self, stream: str) -> None:
        if self._draw.random() < 0.5:
            self.sync(wait=True)
        _, tick = self._copies[stream]
        last = max(tick - self._draw.choice((1, 2, 4, 8, 40)), self._firsts[stream] - 1)
        self._next_copy += 1
        self._say(Step("cut", stream, last, copy=self._next_copy))
        self._store.cut_copy(stream, last)
        self._copies[stream] = (self._next_copy, last + 1)
        self.sync(wait=True)

    def _reset(self) -> None:
        self._next_copy += 1
        first = self._draw.randint(1, 2 * self._own + 2)
        self._say(Step("reset", "", first, copy=self._next_copy))
        self._store.reset(first)
        self._own, self._own_copy = first - 1, self._next_copy

    def _append(self, stream: str, count: int) -> None:
        copy, tick = self._copies[stream]
        self._say(Step("append", stream, tick, count, copy))
        for each in range(tick, tick + count):
            self._store.append(each, body(stream, copy, each), stream)
        self._copies[stream] = (copy, tick + count)

    def _forget(self, stream: str) -> None:
        self.sync(wait=True)
        copy, tick = self._copies[stream]
        through = tick - self._draw.randint(1, 8)
        self._say(Step("forget", stream, through, copy=copy))
        self._store.forget(through, stream)
        self._firsts[stream] = max(self._firsts[stream], through + 1)

    def sync(self, *, wait: bool) -> None:
        self._number += 1
        self._covered[self._number] = self._speaker.count
        self._store.sync(self._number)
        while self._number in self._covered and (wait or not self._reports.heard.empty()):
            self._hear(self._reports.heard.get())

    def _hear(self, report: int | Refusal) -> None:
        if isinstance(report, int):
            self._say(Step("synced", steps=self._covered[report]))
            for number in [each for each in self._covered if each <= report]:
                del self._covered[number]
        else:
            copy = self._numbers[report.number]
            self._say(Step("refused", report.stream, report.last_tick, copy=copy))
            if self._store.learn(report):
                copy, _ = self._copies[report.stream]
                self._copies[report.stream] = (copy, report.last_tick + 1)

    def close(self) -> None:
        self._store.close()


def main(state: Path, seed: str, rounds: int) -> None:
    draw = Random(seed)
    work = Work(state, draw)
    for _ in range(rounds):
        work.do()
        work.sync(wait=draw.random() < 0.5)
    work.sync(wait=True)
    if draw.random() < 0.7:
        work.close()


if __name__ == "__main__":
    checkpoint_often()
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
