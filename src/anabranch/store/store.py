"""The durable store of a broker: log, catalog and state directory behind one interface.

    store = Store.open(directory, network=…, broker=…, …)
    store.recovered                        the state that the broker finds when it starts
    store.append(…), put(…), sync(…)       called by the core; `listener.synced` answers

All methods except `pieces` are called by the event loop's thread. They only queue work and never
block: a writer and a reader thread do the work and notify the listener. Rules:

1. `listener.synced(n)` is called when everything before `sync(n)` is on disk, and not earlier.
2. Operations that were not synced may survive a crash, as any prefix of the appends and any prefix
   of the puts (`core.contract`, rule 3).
3. After `listener.failed` nothing more is written. The owner of the store ends this life; the next
   one examines what is on disk.
4. Opening verifies the whole log (`log.Examination`) and changes nothing if it is corrupt.
5. All of this holds for the copies of other streams too (`copies`), except that a damaged copy does
   not prevent the start, and that a copy without space refuses records instead of waiting.
6. The own log is replaced by an empty one in two commits: the first one says that it will be, and
   has the puts around that; the second one, before anything is appended, that it was. A start that
   finds only the first one deletes the old log itself.

State: all durable state of a broker is in its directory (`files.StateDirectory`).
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

from anabranch.core.contract import (
    COPY_ROWS,
    SEPARATOR,
    LogRead,
    Read,
    ReadRows,
    Recovered,
    RowsRead,
)
from anabranch.core.origin.ledger import first_needed
from anabranch.model.errors import AnabranchError, LocalError
from anabranch.store.catalog import (
    Catalog,
    CatalogFullError,
    CatalogReader,
    DeleteRows,
    LogFacts,
    PutRow,
)
from anabranch.store.copies import Copies, CopyOptions, CopyWork, CutFullError, Refusal
from anabranch.store.files import CATALOG, LOG, DiskFile, OpenFile, StateDirectory, free_bytes
from anabranch.store.log import (
    LogOptions,
    Piece,
    SegmentedLog,
    delete_log,
    read_records,
    record_time_ns,
    records_after,
)
from anabranch.store.log_repair import check_renewed
from anabranch.store.segment import BODY_BYTES_MAX, ENTRY_OVERHEAD_BYTES, TimeOf, segment_owner

#: Returns the readable pieces of a copy, or of the own stream ("").
PiecesOf = Callable[[str], Sequence[Piece]]


class ReaderListener(Protocol):
    """Receives the results of the reader, in the reader's thread."""

    def log_read(self, read: LogRead) -> None:
        """Receive the result of one read."""

    def rows_read(self, read: RowsRead) -> None:
        """Receive the result of reading rows."""

    def failed(self, error: Exception) -> None:
        """Handle an error, after which nothing more is read."""


class Reader:
    """A thread that reads the log, the copies and rows, one request after the other.

    Reading shares only the table of segments with writing, so a full disk or a slow sync does not
    delay readers. Rules:

    1. Results are in the order of the requests.
    2. Written records can be read, queued ones cannot. Synced records are written.
    3. If the log cannot be read, it is corrupt or its disk is failing. The error is reported once,
       and nothing is read after it. A damaged row is a result.

    State: the pending requests. Safe to lose.
    """

    def __init__(self, pieces_of: PiecesOf, catalog: Path, listener: ReaderListener) -> None:
        self._pieces_of = pieces_of
        self._rows = CatalogReader(catalog)
        self._listener = listener
        #: None stops the thread.
        self._requests: queue.SimpleQueue[Read | ReadRows | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="anabranch-reader", daemon=True)
        self._thread.start()

    def ask(self, read: Read | ReadRows) -> None:
        """Queue a read."""
        self._requests.put(read)

    def close(self) -> None:
        """Finish the queued reads and stop."""
        self._requests.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (read := self._requests.get()) is not None:
                if isinstance(read, ReadRows):
                    self._listener.rows_read(self._rows.read(read))
                    continue
                pieces = self._pieces_of(read.stream)
                records = read_records(pieces, read.first, read.last, read.bytes_max)
                self._listener.log_read(LogRead(read.request, read.first, records, read.stream))
        except (OSError, AnabranchError) as error:
            self._listener.failed(error)
        finally:
            self._rows.close()


class WriterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a group commit."""

    window_records: int = 1_024
    window_bytes: int = 2**20
    #: The delay before retrying when the disk is full.
    retry_s: float = 0.5


class WriterListener(Protocol):
    """Receives the results of the writer, in the writer's thread."""

    def synced(self, number: int) -> None:
        """Everything up to this sync is on disk."""

    def log_full(self, full: bool) -> None:
        """There is no space for further records, or there is again."""

    def copy_full(self, refusal: Refusal) -> None:
        """A copy refused appends; this precedes the sync that would have covered them."""

    def failed(self, error: Exception) -> None:
        """Handle an error, after which nothing more is written."""


class Batch:
    """Operations that are made durable together."""

    __slots__ = ("copies", "forget_tick", "number", "puts", "records", "reset_tick")

    def __init__(self) -> None:
        #: Records of consecutive ticks; the first follows the previous batch.
        self.records: list[bytes] = []
        self.puts: list[PutRow] = []
        #: The sync at the end of the batch; 0 if none.
        self.number = 0
        #: Records up to this tick may be deleted; 0 if none.
        self.forget_tick = 0
        #: The first tick of the log that replaces the present one before the records are appended;
        #: 0 if none does.
        self.reset_tick = 0
        #: Stream → the work on its copy; None if there is none.
        self.copies: dict[str, CopyWork] | None = None

    @property
    def size(self) -> int:
        """The bytes that the records take in the log, seal included."""
        return sum(map(len, self.records)) + (len(self.records) + 1) * ENTRY_OVERHEAD_BYTES

    @property
    def load(self) -> tuple[int, int]:
        """The number of all records, and the bytes that they take."""
        count, size = len(self.records), self.size
        for work in (self.copies or {}).values():
            count += len(work.records)
            size += work.size
        return count, size

    def copy(self, stream: str) -> CopyWork:
        """Return the work on a copy, to be extended."""
        if self.copies is None:
            self.copies = {}
        return self.copies.setdefault(stream, CopyWork())

    def reset(self, first_tick: int) -> None:
        """Replace the log."""
        self.reset_tick = first_tick
        self.records, self.forget_tick = [], 0

    def take_in(self, later: "Batch") -> None:
        """Merge a later batch into this one."""
        if later.reset_tick:
            self.reset(later.reset_tick)
        self.records += later.records
        self.puts += later.puts
        self.number = later.number or self.number
        self.forget_tick = max(self.forget_tick, later.forget_tick)
        for stream, work in (later.copies or {}).items():
            self.copy(stream).take_in(work)


#: The errors of the writer, apart from bugs.
_FAILURES = (OSError, sqlite3.Error, AnabranchError)


class Writer:
    """A thread that makes operations durable with group commit.

    The event loop's thread hands over batches. The writer merges all waiting batches, up to a
    window, and then reserves space, writes once, calls fdatasync once, writes the seal, does the
    same for every copy with new records, commits one catalog transaction if there are puts, and
    notifies the listener. Meanwhile the next batches accumulate. Rules:

    1. Operations happen in the order in which they were handed over. Only deletion may go first if
       there is no space: it frees some, and concerns only synced records.
    2. A full log is reported at once, while there is still space in the reserve. A batch that does
       not fit there waits, unsynced, and is retried periodically and after every deletion.
    3. If there is no space for the catalog, the log returns half of its reserve.
    4. Nothing waits for space for a copy. A refusal is reported before the sync that would have
       covered it (rule 6 of `copies`).
    5. Any other error is reported once, and nothing is written after it.

    State: batches that are not synced. Safe to lose: they were not confirmed.
    """

    def __init__(
        self,
        log: SegmentedLog,
        copies: Copies,
        catalog: Catalog,
        listener: WriterListener,
        options: WriterOptions,
    ) -> None:
        self._log = log
        self._copies = copies
        self._catalog = catalog
        self._listener = listener
        self._options = options
        self._waiting: deque[Batch] = deque()
        #: Guards the queue; the bell wakes the thread when it sleeps.
        self._lock = threading.Lock()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._is_asleep = False
        self._is_closing = False
        self._is_full = False
        self._thread = threading.Thread(target=self._run, name="anabranch-writer", daemon=True)
        self._thread.start()

    # -- the event loop's side ------------------------------------------------------------------

    def hand_over(self, batch: Batch) -> None:
        """Make a batch durable, after all earlier ones."""
        with self._lock:
            self._waiting.append(batch)
            self._wake()

    def close(self) -> None:
        """Finish the queued batches, if there is space, and stop."""
        with self._lock:
            self._is_closing = True
            self._wake()
        self._thread.join()

    def _wake(self) -> None:
        """Wake the thread once per sleep; the lock is held."""
        if self._is_asleep:
            self._is_asleep = False
            self._bell.put(None)

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (batch := self._next()) is not None and self._perform(batch):
                pass
            self._copies.close()
            self._log.close()
            self._record_log_end()
        except _FAILURES as error:
            self._log.abandon()
            self._copies.abandon()
            self._listener.failed(error)

    def _next(self) -> Batch | None:
        """Merge the waiting batches up to the window; return None to stop."""
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
            is_retrying = self._is_full or self._copies.wants_commit
            if not self._sleep(self._options.retry_s if is_retrying else None):
                return Batch()

    def _sleep(self, longest_s: float | None) -> bool:
        """Wait for the bell; return False on timeout. `_is_asleep` was set under the lock."""
        try:
            self._bell.get(timeout=longest_s)
        except Empty:
            with self._lock:
                if self._is_asleep:
                    self._is_asleep = False
                    return False
            # The bell rang at this moment.
            self._bell.get()
        return True

    def _fits(self, batch: Batch, later: Batch) -> bool:
        if batch.copies or later.copies:
            (count, size), (more, added) = batch.load, later.load
        else:
            count, more = len(batch.records), len(later.records)
            size, added = batch.size, later.size
        options = self._options
        return count + more <= options.window_records and size + added <= options.window_bytes

    def _perform(self, batch: Batch) -> bool:
        """Make a batch durable and report it; return False if the writer stops before there is
        space.
        """
        log, copies = self._log, self._copies
        if batch.reset_tick and not self._reset(batch):
            return False
        if batch.records:
            if not self._wait_for_space(batch):
                return False
            log.append(batch.records)
            log.sync()
        elif self._is_full:
            log.reserve(0)
        if not self._write_copies(batch):
            return False
        if (batch.puts or copies.must_commit) and not self._commit(batch):
            return False
        if copies.wants_commit:
            self._record_log_end()
        if batch.number:
            self._listener.synced(batch.number)
        if batch.forget_tick:
            log.forget(batch.forget_tick)
        if log.rotate():
            self._record_log_end()
        self._report_full(log.is_full)
        return True

    def _write_copies(self, batch: Batch) -> bool:
        """Do the work on copies; return False if the writer stops before there is space for a
        cut.
        """
        works = batch.copies
        if works:
            if not self._when_space(batch, lambda: self._copies.cut(works)):
                return False
            for refusal in self._copies.write(works, is_tight=self._log.is_full):
                self._listener.copy_full(refusal)
        return True

    def _reset(self, batch: Batch) -> bool:
        """Replace the log by an empty one, with the puts and copies of a batch (rule 6 of this
        module); return False if the writer stops before there is space.
        """
        if not (self._write_copies(batch) and self._commit(batch)):
            return False
        batch.copies = None
        batch.puts = []
        self._log.reset(batch.reset_tick)
        batch.reset_tick = 0
        return self._commit(batch)

    def _record_log_end(self) -> None:
        """Record the ends of the logs in the catalog; skip it if there is no space."""
        with contextlib.suppress(CatalogFullError):
            self._commit_once([])

    def _commit_once(self, puts: Sequence[PutRow], reset_tick: int = 0) -> None:
        rows = self._copies.rows()
        facts = LogFacts(self._log.last_tick, self._log.begun_tick)
        self._catalog.commit(puts, facts, rows, reset_tick)
        if rows:
            self._copies.settle()

    def _commit(self, batch: Batch) -> bool:
        """Commit the puts to the catalog; return False if the writer stops before there is
        space.
        """
        return self._when_space(batch, lambda: self._commit_once(batch.puts, batch.reset_tick))

    def _when_space(self, batch: Batch, write: Callable[[], None]) -> bool:
        """Write until there is space for it; return False if the writer stops before."""
        while True:
            try:
                write()
            except (CatalogFullError, CutFullError):
                self._log.give_back()
                self._report_full(True)
                if not self._pause(batch):
                    return False
            else:
                return True

    def _wait_for_space(self, batch: Batch) -> bool:
        """Wait until a batch can be appended; return False if the writer stops before."""
        while not self._log.reserve(batch.size):
            self._report_full(True)
            if not self._pause(batch):
                return False
        self._report_full(self._log.is_full)
        return True

    def _pause(self, batch: Batch) -> bool:
        """Wait for the retry delay or a deletion; return False if the writer stops."""
        with self._lock:
            forget_tick = self._take_forget(batch)
            is_sleeping = not self._is_closing and not forget_tick
            self._is_asleep = is_sleeping
        if is_sleeping:
            self._sleep(self._options.retry_s)
        if forget_tick:
            self._log.forget(forget_tick)
        return not self._is_closing

    def _take_forget(self, current: Batch) -> int:
        """Return the tick up to which records may be deleted out of turn, or 0 (rule 1)."""
        batches = (current, *self._waiting)
        tick = max(batch.forget_tick for batch in batches)
        for batch in batches:
            batch.forget_tick = 0
        return tick

    def _report_full(self, full: bool) -> None:
        if full != self._is_full:
            self._is_full = full
            self._listener.log_full(full)


_ANY_BYTES = 1 << 62
#: The size of older records, before the last segment, that a start loads into memory.
_EAGER_BYTES = 256 * 1024 * 1024

#: Catalog tables → the first tick whose record the broker needs.
NeededFrom = Callable[[Mapping[str, Mapping[str, bytes]]], int]


class StoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a store; the defaults suit a broker on a current disk."""

    log: LogOptions = LogOptions()
    writer: WriterOptions = WriterOptions()
    copies: CopyOptions = CopyOptions()


class Listener(Protocol):
    """Receives the results of the store, in its threads."""

    def synced(self, number: int) -> None:
        """Everything up to this sync is on disk."""

    def log_read(self, read: LogRead) -> None:
        """Receive the result of a read."""

    def rows_read(self, read: RowsRead) -> None:
        """Receive the result of reading rows."""

    def log_full(self, full: bool) -> None:
        """There is no space for further appends, or there is again."""

    def copy_full(self, refusal: Refusal) -> None:
        """A copy refused appends. `Store.learn` must be called before the core hears of it."""

    def failed(self, error: Exception) -> None:
        """Handle an error, after which the store is unusable."""


class Store:
    """The durable state of one broker. See the rules at the top of this module."""

    def __init__(
        self,
        directory: StateDirectory,
        catalog: Catalog,
        log: SegmentedLog,
        copies: Copies,
        *,
        options: StoreOptions,
        needed_from: NeededFrom,
        listener: Listener,
    ) -> None:
        self._directory = directory
        self._catalog = catalog
        self._log = log
        self._options = options
        self._copies = copies
        self.notes = [*log.notes, *copies.notes]
        self.recovered = _recovered(catalog, log, copies, needed_from)
        #: Streams whose copies are lost, and neither dropped nor opened since.
        self._lost = set(self.recovered.lost_copies)
        #: Stream → number and next tick of its copy.
        self._kept = copies.numbered()
        self._next_number = copies.next_number
        # The broker has the recovered state now; from here on the catalog is only written.
        catalog.tables = {}
        catalog.damaged = []
        catalog.copies = {}
        self._next_tick = log.last_tick + 1
        self._batch = Batch()
        self._writer = Writer(log, copies, catalog, listener, options.writer)
        self._reader = Reader(self.pieces, directory.path / CATALOG, listener)

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
        look: Callable[[Path], int] = free_bytes,
    ) -> "Store":
        """Lock and verify the directory, and start the threads."""
        with contextlib.ExitStack() as undo:
            held = StateDirectory(directory, network, broker)
            undo.callback(held.release)
            catalog = Catalog(directory / CATALOG)
            undo.callback(catalog.close)
            held.establish(network, broker)
            check_renewed(catalog, directory)
            reset_tick, facts = catalog.reset_tick, catalog.facts
            if reset_tick:
                # Rule 6: it was interrupted.
                delete_log(directory / LOG)
                facts = LogFacts()
            log = SegmentedLog(
                directory / LOG,
                owner=segment_owner(network, broker),
                facts=facts,
                options=options.log,
                time_of=time_of,
                open_file=open_file,
                first_tick=reset_tick or 1,
            )
            undo.callback(log.abandon)
            copies = Copies(
                directory,
                catalog,
                network,
                options=options.copies,
                time_of=time_of,
                open_file=open_file,
                look=look,
            )
            catalog.commit([], LogFacts(log.last_tick, log.begun_tick), copies.rows(), 0)
            copies.settle()
            store = cls(
                held,
                catalog,
                log,
                copies,
                options=options,
                needed_from=needed_from,
                listener=listener,
            )
            undo.pop_all()
        return store

    # -- called by the core ---------------------------------------------------------------------

    def append(self, tick: int, record: bytes, stream: str = "") -> None:
        """Append a record to the log, or to a copy, unsynced."""
        if stream:
            self._append_copy(tick, record, stream)
            return
        if tick != self._next_tick or len(record) > BODY_BYTES_MAX:
            raise LocalError(
                f"tick {tick} of {len(record)} bytes cannot be appended: the next tick is"
                f" {self._next_tick}, with at most {BODY_BYTES_MAX} bytes"
            )
        self._next_tick = tick + 1
        if len(self._batch.records) >= self._options.writer.window_records:
            self._hand_over()
        self._batch.records.append(record)

    def _append_copy(self, tick: int, record: bytes, stream: str) -> None:
        number, next_tick = self._kept.get(stream, (0, 0))
        if not number or tick != next_tick or len(record) > BODY_BYTES_MAX:
            raise LocalError(
                f"tick {tick} of {len(record)} bytes cannot be appended to the copy of {stream!r}:"
                f" the next tick is {next_tick}, with at most {BODY_BYTES_MAX} bytes; 0 means that"
                " there is no copy"
            )
        self._kept[stream] = (number, tick + 1)
        work = self._batch.copy(stream)
        if len(work.records) >= self._options.writer.window_records:
            self._hand_over()
            work = self._batch.copy(stream)
        work.append(tick, [record])

    def open_copy(self, stream: str, first_tick: int) -> int:
        """Create an empty copy of a stream, whose first record will have this tick; return its
        number.
        """
        if not stream or stream in self._kept or first_tick < 1:
            raise LocalError(f"a copy of {stream!r} from tick {first_tick} on cannot be opened")
        self._lost.discard(stream)
        self._delete_rows(stream)
        self._kept[stream] = (self._next_number, first_tick)
        work = self._batch.copy(stream)
        work.open_first, work.number = first_tick, self._next_number
        self._next_number += 1
        return work.number

    def cut_copy(self, stream: str, last_tick: int) -> None:
        """Cut off the records of a copy after this tick. Nothing may be appended to it until that
        is synced.
        """
        number, next_tick = self._kept.get(stream, (0, 0))
        if not number or last_tick >= next_tick:
            raise LocalError(f"the copy of {stream!r} cannot be cut after tick {last_tick}")
        self._kept[stream] = (number, last_tick + 1)
        self._batch.copy(stream).cut(last_tick, self._next_number)
        self._next_number += 1

    def reset(self, first_tick: int) -> None:
        """Replace the own log by an empty one, whose first record will have this tick."""
        if first_tick < 1:
            raise LocalError(f"the log cannot begin with tick {first_tick}")
        self._next_tick = first_tick
        self._batch.reset(first_tick)

    def _delete_rows(self, stream: str) -> None:
        """Delete the rows of a copy."""
        self._batch.puts.append(DeleteRows(COPY_ROWS, stream + SEPARATOR))

    def drop_copy(self, stream: str) -> None:
        """Delete a copy, everything in it, and its rows."""
        if self._kept.pop(stream, None) is None and stream not in self._lost:
            raise LocalError(f"there is no copy of {stream!r} to drop")
        self._lost.discard(stream)
        self._delete_rows(stream)
        drop = CopyWork()
        drop.is_dropped = True
        self._batch.copy(stream).take_in(drop)

    def learn(self, refusal: Refusal) -> bool:
        """Continue a copy after its last tick, as the core will once it hears of the refusal.

        Return False if the copy was dropped meanwhile, or cut before that tick, and the core must
        not hear of it.
        """
        number, next_tick = self._kept.get(refusal.stream, (0, 0))
        if number != refusal.number or refusal.last_tick + 1 > next_tick:
            return False
        self._kept[refusal.stream] = (number, refusal.last_tick + 1)
        return True

    def put(self, table: str, key: str, value: bytes | None) -> None:
        """Set a value in the catalog, unsynced; None deletes it."""
        self._batch.puts.append((table, key, value))

    def sync(self, number: int) -> None:
        """Make everything so far durable, then notify the listener."""
        self._batch.number = number
        self._hand_over()

    def read(self, request: int, first: int, last: int, bytes_max: int, stream: str = "") -> None:
        """Read records from `first` to `last`, or fewer, and pass them to the listener."""
        if stream:
            # What is to be cut off may still be there.
            last = min(last, self._kept.get(stream, (0, 1))[1] - 1)
        self._reader.ask(Read(request, first, last, bytes_max, stream))

    def read_rows(self, request: int, table: str, prefix: str, after: str, bytes_max: int) -> None:
        """Read committed rows of a table, and pass them to the listener."""
        self._reader.ask(ReadRows(request, table, prefix, after, bytes_max))

    def pieces(self, stream: str = "") -> Sequence[Piece]:
        """Return the readable segments at this moment, for another thread (`bulk`).

        They include unsynced records. A copy that does not exist has none.
        """
        return self._copies.pieces(stream) if stream else self._log.pieces

    @property
    def unused_bytes(self) -> int:
        """The free space in the catalog file, as of the last sync."""
        return self._catalog.unused_bytes

    def forget(self, tick: int, stream: str = "") -> None:
        """Allow the deletion of records up to this tick; all of them are synced."""
        if stream:
            self._batch.copy(stream).forget_tick = tick
        else:
            self._batch.forget_tick = tick
        self._hand_over()

    def _hand_over(self) -> None:
        batch, self._batch = self._batch, Batch()
        self._writer.hand_over(batch)

    # -- closing --------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish the queued operations, if there is space, and release the directory.

        This waits for the disk. Nothing may be called after it.
        """
        self._hand_over()
        self._writer.close()
        self._reader.close()
        self._catalog.close()
        self._directory.release()


class LogRecords(Sequence[bytes]):
    """Records of a log that are read lazily: a long log need not fit in memory."""

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


def _recovered(
    catalog: Catalog, log: SegmentedLog, copies: Copies, needed_from: NeededFrom
) -> Recovered:
    first, last = log.first_tick, log.last_tick
    # A damaged row may have contained something that only the log can provide now.
    needed = first if catalog.damaged else needed_from(catalog.tables)
    wanted = min(max(needed, first), last + 1)
    # The last segment has just been read completely.
    recent_first, recent = log.take_recent()
    older = read_records(log.pieces, wanted, recent_first - 1, _EAGER_BYTES)
    if wanted + len(older) < recent_first:
        records: Sequence[bytes] = LogRecords(log.pieces, wanted, last)
    else:
        records = older + tuple(recent[max(wanted - recent_first, 0) :])
    return Recovered(
        catalog.tables,
        first,
        records,
        wanted,
        tuple(catalog.damaged),
        copies=copies.recovered(),
        lost_copies=tuple(sorted(copies.lost)),
    )
