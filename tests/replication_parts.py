"""A keeper on a simulated disk, a writer without one, and what they say to each other.

    kept = KeeperOnDisk("k")
    answer = kept.say(AskLife("a", life(5)))[0]

`say` lets the disk sync everything at once; `tell` does not, and `sync` does it later.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from anabranch.core import contract
from anabranch.core.contract import Recovered
from anabranch.core.options import Options
from anabranch.core.origin.log_tail import BlankRecord, RowsRecord, encode_record
from anabranch.core.part_requests import AppendLife, CarryTo, PartRequest, RequestSync
from anabranch.core.replication.keeper import TABLE, CopyRow, Keeper, KeptCopy, read_row
from anabranch.core.replication.writer import StreamWriter
from anabranch.model.event import EventId
from anabranch.model.replication import (
    CopyId,
    CopySet,
    ForKeeper,
    ForReplication,
    ForWriter,
    KeepTicks,
    Life,
    LifeAnswer,
    LifeStart,
    Row,
)
from anabranch.sim.disk import Disk

STREAM = "a"
RECORD = encode_record(BlankRecord(1, EventId("p", 1, 1)))


def life(number: int, process: int = 0) -> Life:
    return Life(number, STREAM, process or number)


def copy_set(*members: CopyId, confirm: int = 1) -> CopySet:
    return CopySet(members or (CopyId(STREAM, 1),), confirm)


def start(tick: int, number: int, copies: CopySet | None = None) -> LifeStart:
    return LifeStart(tick, life(number), copies or copy_set())


def rows_record(*rows: Row) -> bytes:
    return encode_record(RowsRecord(1, list(rows)))


class KeeperOnDisk:
    """The keeper at a broker, whose disk may crash and be lost."""

    def __init__(self, name: str = "k", streams: Iterable[str] = (STREAM,)) -> None:
        self.name = name
        self.streams = tuple(streams)
        self.disk = Disk()
        self.life = 100
        self.notes: list[str] = []
        #: Everything that it asked of the disk.
        self.effects: list[PartRequest] = []
        self.reads: list[contract.Read | contract.ReadRows] = []
        self._tickets: list[tuple[int, object]] = []
        self.keeper: Keeper
        self.start()

    def start(self) -> list[ForReplication]:
        """Start from the disk."""
        recovered = self.disk.recover()
        rows: dict[str, CopyRow] = {}
        for stream, value in recovered.catalog.get(TABLE, {}).items():
            rows[stream] = read_row(stream, value)
        self.life += 100
        self._tickets.clear()
        self.reads.clear()
        self.keeper = Keeper(self.name, self.streams, recovered, rows, self.life)
        said = self._done(self.keeper.started())
        return said + self.settle()

    def crash(self, keep: int = 0) -> None:
        """Lose what is not synced, but the first writes."""
        self.disk.crash(_Keeping(keep))
        self.start()

    def copy(self, stream: str = STREAM) -> KeptCopy:
        return next(each for each in self.keeper.copies if each.stream == stream)

    def id(self, stream: str = STREAM) -> CopyId:
        return self.copy(stream).id_at(self.name)

    def tell(self, content: ForKeeper, source: str = STREAM) -> list[ForReplication]:
        """Say something, and sync nothing yet."""
        return self._done(self.keeper.carried(source, content))

    def say(self, content: ForKeeper, source: str = STREAM) -> list[ForReplication]:
        """Say something, and let the disk do everything."""
        return self.tell(content, source) + self.settle()

    def sync(self) -> list[ForReplication]:
        """Finish the sync in progress."""
        ticket, mark = self._tickets.pop(0)
        self.disk.sync(mark)  # type: ignore[arg-type]
        return self._done(self.keeper.synced(ticket))

    def settle(self) -> list[ForReplication]:
        """Finish all syncs and reads."""
        said: list[ForReplication] = []
        for _ in range(1_000):
            if self._tickets:
                said += self.sync()
            elif self.reads:
                said += self.read()
            else:
                return said
        raise AssertionError("the keeper never comes to rest")

    def read(self) -> list[ForReplication]:
        """Finish the oldest read."""
        read = self.reads.pop(0)
        if isinstance(read, contract.ReadRows):
            found = self.disk.read_rows(read.table, read.prefix, read.after, read.bytes_max)
            return self._done(self.keeper.rows_read(contract.RowsRead(read.request, *found)))
        records = self.disk.read(read.first, read.last, read.bytes_max, read.stream)
        answer = contract.LogRead(read.request, read.first, records, read.stream)
        return self._done(self.keeper.log_read(answer))

    def _done(self, requests: Sequence[PartRequest]) -> list[ForReplication]:
        said: list[ForReplication] = []
        self.effects += requests
        for request in requests:
            match request:
                case CarryTo(_, content):
                    said.append(content)  # type: ignore[arg-type]
                case RequestSync(ticket):
                    self._tickets.append((ticket, self.disk.mark()))
                case contract.Append(tick, record, stream):
                    self.disk.append(tick, record, stream)
                case contract.Put(table, key, value):
                    self.disk.put(table, key, value)
                case contract.OpenCopy(stream, first):
                    self.disk.open_copy(stream, first)
                case contract.CutCopy(stream, last):
                    self.disk.cut_copy(stream, last)
                case contract.DropCopy(stream):
                    self.disk.drop_copy(stream)
                case contract.DeleteThrough(tick, stream):
                    self.disk.forget(tick, stream)
                case contract.Read() | contract.ReadRows():
                    self.reads.append(request)
                case contract.Note(_, text):
                    self.notes.append(text)
                case _:
                    raise AssertionError(f"a keeper does not ask for {request!r}")
        return said

    def keep(
        self,
        number: int,
        first: int,
        records: Sequence[bytes],
        *starts: LifeStart,
        confirmed: int = 0,
        oldest: int = 1,
        stream: str = STREAM,
    ) -> KeepTicks:
        """A frame of the writer of this life."""
        copy = self.id(stream)
        return KeepTicks(
            stream, life(number), copy, starts, first, list(records), confirmed, oldest
        )


class _Keeping(Random):
    """Decides what a crash keeps of the writes: so many of them, and no unsynced records."""

    def __init__(self, writes: int) -> None:
        super().__init__(0)
        self._writes = writes

    def randint(self, first: int, last: int) -> int:
        return max(first, min(last, self._writes))

    def randrange(self, *_: object, **__: object) -> int:
        return 0

    def random(self) -> float:
        return 0.0


class WriterAlone:
    """The writer of stream "a", and keepers that are played by a test."""

    def __init__(
        self,
        *keepers: str,
        confirm: int = 1,
        row: CopyRow | None = None,
        last: int = 0,
        life_number: int = 1_000,
        others: tuple[str, ...] = (),
    ) -> None:
        self.options = Options(copies=len(keepers) + 1, confirm=confirm)
        self.now = 10.0
        recovered = Recovered({}, 1, (), last + 1) if last else Recovered({}, 1, (), 1)
        self.writer = StreamWriter(
            STREAM, keepers, (STREAM, *keepers, *others), self.options, recovered, row, life_number
        )
        self.said: list[tuple[str, ForReplication]] = []
        self.effects: list[PartRequest] = []
        self.take(self.writer.started(self.now))

    def take(self, requests: Iterable[PartRequest]) -> list[PartRequest]:
        """Perform requests: every sync is done at once, and a life record is appended."""
        done = list(requests)
        self.effects += done
        for request in done:
            if isinstance(request, CarryTo):
                self.said.append((request.target, request.content))  # type: ignore[arg-type]
            elif isinstance(request, RequestSync):
                self.take(self.writer.synced(self.now, request.ticket))
            elif isinstance(request, AppendLife):
                self.append()
            elif isinstance(request, contract.ReadRows):
                nothing = contract.RowsRead(request.request, (), is_last=True)
                self.take(self.writer.rows_read(self.now, nothing))
        return done

    def append(self, record: bytes = RECORD) -> None:
        """Append a record, sync it here, and send it."""
        self.writer.appended(self.writer.last + 1, record)
        self.take(self.writer.flush(self.now))
        self.take(self.writer.own_synced(self.now, self.writer.last))

    def hear(self, source: str, content: ForWriter) -> list[ForReplication]:
        """A copy says something; what is said in return."""
        before = len(self.said)
        self.take(self.writer.carried(self.now, source, content))
        self.take(self.writer.flush(self.now))
        if self.writer.state == "complete":
            self.take(self.writer.begin())
        return [content for _, content in self.said[before:]]

    def wait(self, seconds: float) -> list[ForReplication]:
        """Let time pass, with every deadline on the way."""
        before, end = len(self.said), self.now + seconds
        for _ in range(10_000):
            due = self.writer.next_deadline()
            if due is None or due > end:
                self.now = end
                return [content for _, content in self.said[before:]]
            self.now = max(self.now, due)
            self.take(self.writer.time_passed(self.now))
        raise AssertionError("the writer is busy for ever")

    def answer(self, source: str, number: int = 1, **more: Any) -> LifeAnswer:
        """The promise of a copy that has nothing, unless it is said otherwise."""
        asked = self.writer.life
        peer = self.writer.peers.get(source)
        fields: dict[str, Any] = {
            "promised": asked,
            "copy": CopyId(source, number),
            "has_rows": True,
            "question": 0 if peer is None else peer.question,
            **more,
        }
        return LifeAnswer(STREAM, asked, **fields)
