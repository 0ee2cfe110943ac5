"""The writer: one thread that makes things durable, many of them at a time.

The event loop's thread hands over batches; the writer takes all that wait as one, up to a window,
and does: reserve room, one write, one fdatasync, the seal, one transaction of the catalog if
something was put, and then the word. While it is at it, the next batches gather: group commit.
Rules:

1. Things happen in the order they were handed over. Only deletion does not wait where there is no
   room: it makes some, and concerns nothing but what is synced.
2. A log that is full is said to be so at once, while there is still room in the reserve. What does
   not even fit there waits, unsynced, and is tried again after a while, and after every deletion.
3. If the catalog has no room, the log gives half of its reserve back.
4. Any other error is told once, and is the last thing that happens. Nothing is written after it.

State: what was handed over and is not synced. Safe to lose: nobody was told that it is.
"""

import contextlib
import sqlite3
import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import Protocol

import msgspec

from anabranch.model.errors import AnabranchError
from anabranch.store.catalog import Catalog, CatalogFullError, LogFacts, PutRow
from anabranch.store.log import SegmentedLog
from anabranch.store.segment import ENTRY_OVERHEAD_BYTES


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
    """The thread. See the rules at the top of this module."""

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
