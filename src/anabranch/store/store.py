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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, overload

import msgspec

from anabranch.core.contract import LogRead, Read, Recovered
from anabranch.core.ledger import first_needed
from anabranch.model.errors import LocalError
from anabranch.store.catalog import Catalog, LogFacts
from anabranch.store.directory import CATALOG, LOG, StateDirectory
from anabranch.store.files import DiskFile, OpenFile
from anabranch.store.index import TimeOf
from anabranch.store.log import LogOptions, SegmentedLog, record_time_ns
from anabranch.store.reader import Reader
from anabranch.store.reading import Piece, read_records, records_after
from anabranch.store.renew import check_renewed
from anabranch.store.segment import BODY_BYTES_MAX, segment_owner
from anabranch.store.writer import Batch, Writer, WriterOptions

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
