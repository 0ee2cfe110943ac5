"""The store: everything of one broker that survives, behind one door.

    store = Store.open(directory, network=…, broker=…, …)
    store.recovered                        what the broker finds when it starts
    store.append(…), put(…), sync(…)       as the core says; `listener.synced` answers

All methods but `pieces` are for the event loop's thread. They only take note, and never wait: a
writer and a reader thread do the work and tell the listener. Rules:

1. `listener.synced(n)` is said when everything before `sync(n)` is on disk, and not earlier.
2. What was neither synced nor lost may be there after a crash, as any beginning of the appends and
   any beginning of the puts (`core.contract`, rule 3).
3. After `listener.failed` nothing is written any more. Whoever owns the store ends this
   life; the next one finds out what is there.
4. Opening verifies the whole log (`recovery`) and changes nothing if something is wrong with it.

State: everything durable of a broker is in its directory (`directory`).
"""

import contextlib
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol, overload

import msgspec

from anabranch.core.contract import LogRead, Read, Recovered
from anabranch.core.origin.ledger import first_needed
from anabranch.model.errors import AnabranchError, LocalError
from anabranch.store.catalog import Catalog, CatalogFullError, LogFacts, PutRow
from anabranch.store.files import CATALOG, LOG, DiskFile, OpenFile, StateDirectory
from anabranch.store.log import (
    LogOptions,
    Piece,
    SegmentedLog,
    read_records,
    record_time_ns,
    records_after,
)
from anabranch.store.log_repair import check_renewed
from anabranch.store.segment import BODY_BYTES_MAX, ENTRY_OVERHEAD_BYTES, TimeOf, segment_owner


class ReaderListener(Protocol):
    """Is told what was read, by the reader's thread."""

    def log_read(self, read: LogRead) -> None:
        """The answer to one question."""

    def failed(self, error: Exception) -> None:
        """Nothing more will be read."""


class Reader:
    """The reader: one thread that reads the log for those who ask, one after the other.

    Reading shares nothing with writing but the table of segments, so a full disk or a slow sync
    holds nobody up who wants to read. Rules:

    1. Answers come in the order of the questions.
    2. What was written can be read; what is still waiting to be written cannot. What is synced was
       written.
    3. A log that cannot be read any more is corrupt, or its disk is failing: that is told as the
       error it is, once, and nothing is read after it.

    State: the questions that are not answered yet. Safe to lose.
    """

    def __init__(self, log: SegmentedLog, listener: ReaderListener) -> None:
        self._log = log
        self._listener = listener
        #: None means the end.
        self._questions: queue.SimpleQueue[Read | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="anabranch-reader", daemon=True)
        self._thread.start()

    def ask(self, question: Read) -> None:
        """Read this, after what was asked before."""
        self._questions.put(question)

    def close(self) -> None:
        """Answer what was asked, and stop."""
        self._questions.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (asked := self._questions.get()) is not None:
                records = read_records(self._log.pieces, asked.first, asked.last, asked.bytes_max)
                self._listener.log_read(LogRead(asked.request, asked.first, records))
        except (OSError, AnabranchError) as error:
            self._listener.failed(error)


class WriterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much is made durable at once."""

    window_records: int = 1_024
    window_bytes: int = 2**20
    #: How long to wait for room before trying again.
    retry_s: float = 0.5


class WriterListener(Protocol):
    """Is told what comes of it, by the writer's thread."""

    def synced(self, number: int) -> None:
        """Everything up to this sync is on disk."""

    def log_full(self, full: bool) -> None:
        """There is no room for further records; or there is again."""

    def failed(self, error: Exception) -> None:
        """Nothing more will be written."""


class Batch:
    """What is handed over at once."""

    __slots__ = ("forget_tick", "number", "puts", "records")

    def __init__(self) -> None:
        #: Of consecutive ticks, the first of which follows the batch before.
        self.records: list[bytes] = []
        self.puts: list[PutRow] = []
        #: The sync that this ends with; 0 if none.
        self.number = 0
        #: Records up to this tick may go; 0 if none.
        self.forget_tick = 0

    @property
    def size(self) -> int:
        """Bytes that the records will take in the log, seal included."""
        return sum(map(len, self.records)) + (len(self.records) + 1) * ENTRY_OVERHEAD_BYTES

    def take_in(self, later: "Batch") -> None:
        """Make one batch of two."""
        self.records += later.records
        self.puts += later.puts
        self.number = later.number or self.number
        self.forget_tick = max(self.forget_tick, later.forget_tick)


#: What can go wrong in the writer, beside mistakes of this program.
_FAILURES = (OSError, sqlite3.Error, AnabranchError)


class Writer:
    """The writer: one thread that makes things durable, many of them at a time.

    The event loop's thread hands over batches; the writer takes all that wait as one, up to a
    window, and does: reserve room, one write, one fdatasync, the seal, one transaction of the
    catalog if something was put, and then the word. While it is at it, the next batches gather:
    group commit. Rules:

    1. Things happen in the order they were handed over. Only deletion does not wait where there is
       no room: it makes some, and concerns nothing but what is synced.
    2. A log that is full is said to be so at once, while there is still room in the reserve. What
       does not even fit there waits, unsynced, and is tried again after a while, and after every
       deletion.
    3. If the catalog has no room, the log gives half of its reserve back.
    4. Any other error is told once, and is the last thing that happens. Nothing is written after
       it.

    State: what was handed over and is not synced. Safe to lose: nobody was told that it is.
    """

    def __init__(
        self, log: SegmentedLog, catalog: Catalog, listener: WriterListener, options: WriterOptions
    ) -> None:
        self._log = log
        self._catalog = catalog
        self._listener = listener
        self._options = options
        self._waiting: deque[Batch] = deque()
        #: Guards the row of what waits; the bell wakes the thread when it sleeps.
        self._lock = threading.Lock()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._is_asleep = False
        self._is_closing = False
        self._is_full = False
        self._thread = threading.Thread(target=self._run, name="anabranch-writer", daemon=True)
        self._thread.start()

    # -- the event loop's side ------------------------------------------------------------------

    def hand_over(self, batch: Batch) -> None:
        """Make this durable, after everything before."""
        with self._lock:
            self._waiting.append(batch)
            self._wake()

    def close(self) -> None:
        """Finish what was handed over, if there is room for it, and stop."""
        with self._lock:
            self._is_closing = True
            self._wake()
        self._thread.join()

    def _wake(self) -> None:
        """Ring once for every sleep; the lock is held."""
        if self._is_asleep:
            self._is_asleep = False
            self._bell.put(None)

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (batch := self._next()) is not None and self._perform(batch):
                pass
            self._log.close()
            self._remember()
        except _FAILURES as error:
            self._log.abandon()
            self._listener.failed(error)

    def _next(self) -> Batch | None:
        """All that waits, up to the window; None when it is time to stop."""
        while True:
            with self._lock:
                if self._waiting:
                    batch = self._waiting.popleft()
                    while self._waiting and self._fits(batch, self._waiting[0]):
                        batch.take_in(self._waiting.popleft())
                    return batch
                if self._is_closing:
                    return None
                self._is_asleep = True
            if not self._sleep(self._options.retry_s if self._is_full else None):
                return Batch()

    def _sleep(self, longest_s: float | None) -> bool:
        """Wait for the bell; False if that took too long. `_is_asleep` was set, under the lock."""
        try:
            self._bell.get(timeout=longest_s)
        except Empty:
            with self._lock:
                if self._is_asleep:
                    self._is_asleep = False
                    return False
            # It was rung in this very moment.
            self._bell.get()
        return True

    def _fits(self, batch: Batch, later: Batch) -> bool:
        return (
            len(batch.records) + len(later.records) <= self._options.window_records
            and batch.size + later.size <= self._options.window_bytes
        )

    def _perform(self, batch: Batch) -> bool:
        """Make a batch durable and say so; False if this life ends before there is room."""
        log = self._log
        if batch.records:
            if not self._wait_for_room(batch):
                return False
            log.append(batch.records)
            log.sync()
        elif self._is_full:
            log.reserve(0)
        if batch.puts and not self._commit(batch):
            return False
        if batch.number:
            self._listener.synced(batch.number)
        if batch.forget_tick:
            log.forget(batch.forget_tick)
        if log.rotate():
            self._remember()
        self._tell(log.is_full)
        return True

    def _remember(self) -> None:
        """Have in the catalog how far the log is; it does without, if there is no room."""
        with contextlib.suppress(CatalogFullError):
            self._catalog.commit([], LogFacts(self._log.last_tick, self._log.begun_tick))

    def _commit(self, batch: Batch) -> bool:
        """Have this in the catalog; False if this life ends before there is room."""
        while True:
            try:
                facts = LogFacts(self._log.last_tick, self._log.begun_tick)
                self._catalog.commit(batch.puts, facts)
            except CatalogFullError:
                self._log.give_back()
                self._tell(True)
                if not self._pause(batch):
                    return False
            else:
                return True

    def _wait_for_room(self, batch: Batch) -> bool:
        """True when a batch can be appended; False if this life ends before."""
        while not self._log.reserve(batch.size):
            self._tell(True)
            if not self._pause(batch):
                return False
        self._tell(self._log.is_full)
        return True

    def _pause(self, batch: Batch) -> bool:
        """Wait a while, or for a deletion; False if there is no time left."""
        with self._lock:
            forget_tick = self._take_forget(batch)
            sleeps = not self._is_closing and not forget_tick
            self._is_asleep = sleeps
        if sleeps:
            self._sleep(self._options.retry_s)
        if forget_tick:
            self._log.forget(forget_tick)
        return not self._is_closing

    def _take_forget(self, current: Batch) -> int:
        """What may be deleted ahead of its turn, or 0; rule 1."""
        batches = (current, *self._waiting)
        tick = max(batch.forget_tick for batch in batches)
        for batch in batches:
            batch.forget_tick = 0
        return tick

    def _tell(self, full: bool) -> None:
        if full != self._is_full:
            self._is_full = full
            self._listener.log_full(full)


_ANY_BYTES = 1 << 62
#: Records before those of the last segment that a start has in memory at once.
_EAGER_BYTES = 256 * 1024 * 1024

#: Catalog, first and last tick of the log → the first tick whose record the broker wants to see.
NeededFrom = Callable[[Mapping[str, Mapping[str, bytes]]], int]


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a store works; the defaults are for a broker on a disk of today."""

    log: LogOptions = LogOptions()
    writer: WriterOptions = WriterOptions()


class Listener(Protocol):
    """Is told what the store did, by its threads."""

    def synced(self, number: int) -> None:
        """Everything up to this sync is on disk."""

    def log_read(self, read: LogRead) -> None:
        """What a read asked for."""

    def log_full(self, full: bool) -> None:
        """There is no room for further appends; or there is again."""

    def failed(self, error: Exception) -> None:
        """The store has come to its end."""


class Store:
    """The durable state of one broker. See the rules at the top of this module."""

    def __init__(
        self,
        directory: StateDirectory,
        catalog: Catalog,
        log: SegmentedLog,
        *,
        options: StoreOptions,
        needed_from: NeededFrom,
        listener: Listener,
    ) -> None:
        self._directory = directory
        self._catalog = catalog
        self._log = log
        self._options = options
        self.notes = [*log.notes]
        self.recovered = _recovered(catalog, log, needed_from)
        # What was found is in the broker's hands now; from here on the catalog only writes.
        catalog.tables = {}
        catalog.damaged = []
        self._next_tick = log.last_tick + 1
        self._batch = Batch()
        self._writer = Writer(log, catalog, listener, options.writer)
        self._reader = Reader(log, listener)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        network: str,
        broker: str,
        options: StoreOptions = StoreOptions(),  # noqa: B008 - frozen
        needed_from: NeededFrom = first_needed,
        listener: Listener,
        time_of: TimeOf = record_time_ns,
        open_file: OpenFile = DiskFile,
    ) -> "Store":
        """Take the directory, make sure that all is well in it, and start."""
        with contextlib.ExitStack() as undo:
            held = StateDirectory(directory, network, broker)
            undo.callback(held.release)
            catalog = Catalog(directory / CATALOG)
            undo.callback(catalog.close)
            held.establish(network, broker)
            check_renewed(catalog, directory)
            log = SegmentedLog(
                directory / LOG,
                owner=segment_owner(network, broker),
                facts=catalog.facts,
                options=options.log,
                time_of=time_of,
                open_file=open_file,
            )
            undo.callback(log.abandon)
            catalog.commit([], LogFacts(log.last_tick, log.begun_tick))
            store = cls(
                held, catalog, log, options=options, needed_from=needed_from, listener=listener
            )
            undo.pop_all()
        return store

    # -- what the core says ---------------------------------------------------------------------

    def append(self, tick: int, record: bytes) -> None:
        """Add a record to the log, unsynced."""
        if tick != self._next_tick or len(record) > BODY_BYTES_MAX:
            raise LocalError(
                f"tick {tick} of {len(record)} bytes cannot be appended: the next one is"
                f" {self._next_tick}, and it has at most {BODY_BYTES_MAX} bytes"
            )
        self._next_tick = tick + 1
        if len(self._batch.records) >= self._options.writer.window_records:
            self._hand_over()
        self._batch.records.append(record)

    def put(self, table: str, key: str, value: bytes | None) -> None:
        """Remember a value in the catalog, unsynced; None forgets it."""
        self._batch.puts.append((table, key, value))

    def sync(self, number: int) -> None:
        """Make everything so far durable, then say so."""
        self._batch.number = number
        self._hand_over()

    def read(self, request: int, first: int, last: int, bytes_max: int) -> None:
        """Read records from `first` on up to `last` or fewer, then tell them."""
        self._reader.ask(Read(request, first, last, bytes_max))

    def pieces(self) -> Sequence[Piece]:
        """What there is to read at this moment, for a thread of somebody else's (`bulk`).

        What is not synced is among it."""
        return self._log.pieces

    @property
    def unused_bytes(self) -> int:
        """What can be put into the catalog before its file grows, by the last sync."""
        return self._catalog.unused_bytes

    def forget(self, tick: int) -> None:
        """Records up to this tick may be deleted; all of them are synced."""
        self._batch.forget_tick = tick
        self._hand_over()

    def _hand_over(self) -> None:
        batch, self._batch = self._batch, Batch()
        self._writer.hand_over(batch)

    # -- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish what was begun, as far as there is room for it, and let the directory go.

        This waits for the disk; nothing may be called after it."""
        self._hand_over()
        self._writer.close()
        self._reader.close()
        self._catalog.close()
        self._directory.release()


class LogRecords(Sequence[bytes]):
    """Records of a log that are read when they are looked at: a long log need not fit in memory."""

    __slots__ = ("_first", "_last", "_pieces")

    def __init__(self, pieces: Sequence[Piece], first: int, last: int) -> None:
        self._pieces = pieces
        self._first = first
        self._last = last

    def __len__(self) -> int:
        return max(self._last + 1 - self._first, 0)

    def __iter__(self) -> Iterator[bytes]:
        return (
            record
            for tick, record in records_after(self._pieces, self._first)
            if tick <= self._last
        )

    @overload
    def __getitem__(self, place: int) -> bytes: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[bytes, ...]: ...

    def __getitem__(self, place: int | slice) -> bytes | tuple[bytes, ...]:
        if isinstance(place, slice):
            return tuple(self)[place]
        tick = self._first + range(len(self))[place]
        return read_records(self._pieces, tick, tick, _ANY_BYTES)[0]


def _recovered(catalog: Catalog, log: SegmentedLog, needed_from: NeededFrom) -> Recovered:
    first, last = log.first_tick, log.last_tick
    # A row that is damaged may have said something that only the log can tell now.
    needed = first if catalog.damaged else needed_from(catalog.tables)
    wanted = min(max(needed, first), last + 1)
    # The last segment has just been read as a whole.
    recent_first, recent = log.take_recent()
    older = read_records(log.pieces, wanted, recent_first - 1, _EAGER_BYTES)
    if wanted + len(older) < recent_first:
        records: Sequence[bytes] = LogRecords(log.pieces, wanted, last)
    else:
        records = older + tuple(recent[max(wanted - recent_first, 0) :])
    return Recovered(catalog.tables, first, records, wanted, tuple(catalog.damaged))
