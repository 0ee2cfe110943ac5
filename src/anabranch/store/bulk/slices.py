"""Slices: bulk reads of a range of ticks, with the wanted events as rows.

A bulk reader takes a `Wanted` and returns a `Slice`: its rows are exactly the wanted events from
its first tick up to `through`. Two readers give the same results: `compiled` uses kernels, and
`read_plainly` works without numba. Rules for both:

1. The caller guarantees the range: `last` is synced, and `first` is not after it.
2. A slice ends before the row that would make it larger than `bytes_max`, unless that is its first;
   and, regardless of matches, after `SCAN_BYTES_MAX` of the log or the maximum number of records
   evaluated by Python (`Effort`), so that a filter without matches does not occupy a thread
   indefinitely. It always advances by at least one tick.
3. Expired events, events addressed only to other clients, and events that do not match the filter
   are not wanted. Transient events and marks are not events of the log (`core.edge.delivery`).
4. `NotKeptError` if the log no longer contains the first tick. Deletions further on only end the
   slice.
5. Unreadable data is corrupt, and a record or event that this version does not understand is an
   error that names its tick. Nothing is skipped silently.

This module keeps no state, except for the cached filters of `Slicer`.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from anabranch.core.origin.log_tail import EventRecord, decode_record
from anabranch.matching.engine import numba_is_here
from anabranch.model.encoding import Envelope, decode_envelope, encode_row
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.filter import Filter
from anabranch.model.limits import STORED_LIMITS, Limits
from anabranch.store.log import Piece, records_after

if TYPE_CHECKING:
    from anabranch.matching.sieve import Sieve
    from anabranch.store.bulk.compiled import BulkReader


#: The number of bytes of the log that are read for one slice.
SCAN_BYTES_MAX = 32 * 2**20
#: Space before the rows of a slice, so that they can be sent without a copy.
FRONT_BYTES = 64


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The requested ticks and events."""

    first: int
    last: int
    #: The requesting client: events may be addressed.
    client: str
    #: The broker's clock: events may expire.
    now_ns: int
    #: The maximum size of the rows.
    bytes_max: int


class Slice(msgspec.Struct, frozen=True):
    """A range of ticks, and the rows of the wanted events."""

    first: int
    through: int
    count: int
    #: The rows, after `FRONT_BYTES` for the sender; the slice owns this memory.
    buffer: memoryview

    @property
    def rows(self) -> memoryview:
        return self.buffer[FRONT_BYTES:]


class NotKeptError(LocalError):
    """The log no longer contains the requested tick."""

    def __init__(self, first: int, oldest: int) -> None:
        super().__init__(
            f"tick {first} is no longer in the log: the oldest one is {oldest}; begin there"
        )
        self.oldest = oldest


def judged(
    tick: int, record: bytes, wanted: Wanted, filter: Filter | None
) -> tuple[int, bytes] | None:
    """Return time and event of a record if it is wanted; the reference implementation of the
    rules.
    """
    try:
        found = decode_record(record)
    except LocalError as error:
        raise LocalError(f"tick {tick} cannot be read: {error}") from error
    if not isinstance(found, EventRecord):
        return None
    envelope = _envelope(tick, found.body)
    control = envelope.control
    limit_ns = control.time_limit_ns
    if limit_ns is not None and wanted.now_ns - found.time_ns > limit_ns:
        return None
    if control.destinations and wanted.client not in control.destinations:
        return None
    if filter is not None and not _is_match(tick, envelope, filter):
        return None
    return found.time_ns, found.body


def is_match(tick: int, body: bytes, filter: Filter) -> bool:
    return _is_match(tick, _envelope(tick, body), filter)


def _envelope(tick: int, body: bytes) -> Envelope:
    try:
        return decode_envelope(body, STORED_LIMITS)
    except RemoteError as error:
        raise _unreadable(tick, error) from error


def _is_match(tick: int, envelope: Envelope, filter: Filter) -> bool:
    try:
        return filter.matches(envelope.attributes())
    except RemoteError as error:
        raise _unreadable(tick, error) from error


def _unreadable(tick: int, error: RemoteError) -> LocalError:
    return LocalError(
        f"the event of tick {tick} in the log cannot be read by this version ({error});"
        " start the version that wrote the log"
    )


#: The number of records per slice that Python evaluates, at about 10 µs each.
JUDGED_MAX = 4_000
_YIELD_EVERY = 64
_YIELD_S = 0.00005


def _yield_interpreter() -> None:
    time.sleep(_YIELD_S)


class Effort:
    """The budget of one slice for work that holds the interpreter lock.

    Kernels run without the interpreter lock; a record that Python evaluates does not. A filter that
    no kernel supports makes that every record, for seconds, while the event loop waits. Rules:

    1. A slice ends before the record that would exceed `JUDGED_MAX`, so that sessions take turns
       and a stopping broker does not wait.
    2. Every few records the thread sleeps briefly, so that waiting threads run first. Without that,
       the event loop would wait for milliseconds at each step, because the interpreter does not
       release its lock sooner.

    State: the rest of the budget.
    """

    __slots__ = ("_yield_interpreter", "left")

    def __init__(
        self,
        judged_max: int = JUDGED_MAX,
        yield_interpreter: Callable[[], None] = _yield_interpreter,
    ) -> None:
        #: The number of records that may still be evaluated.
        self.left = judged_max
        self._yield_interpreter = yield_interpreter

    def spend(self) -> None:
        self.left -= 1
        if self.left % _YIELD_EVERY == 0:
            self._yield_interpreter()


def read_plainly(
    pieces: Sequence[Piece],
    wanted: Wanted,
    filter: Filter | None,
    scan_bytes_max: int = SCAN_BYTES_MAX,
    judged_max: int = JUDGED_MAX,
) -> Slice:
    """Read the next slice without kernels, record by record.

    For machines without numba, and as the reference for tests of the kernels.
    """
    rows: list[bytes] = []
    size = scanned = 0
    through = wanted.first - 1
    effort = Effort(judged_max)
    for tick, record in records_after(pieces, wanted.first):
        scanned += len(record)
        effort.spend()
        found = judged(tick, record, wanted, filter)
        if found is not None:
            row = encode_row(tick, *found)
            if rows and size + len(row) > wanted.bytes_max:
                break
            rows.append(row)
            size += len(row)
        through = tick
        if tick == wanted.last or scanned >= scan_bytes_max or not effort.left:
            break
    if through < wanted.first:
        raise NotKeptError(wanted.first, max(pieces[0].first_tick, wanted.first + 1))
    buffer = memoryview(bytearray(FRONT_BYTES) + b"".join(rows))
    return Slice(wanted.first, through, len(rows), buffer)


#: The number of cached filters, each of which takes half a megabyte,
FILTERS_MAX = 32
#: and of their characters, each of which takes about fifty bytes.
TEXT_CHARACTERS_MAX = 262_144


class Slicer:
    """Reads slices of a log for many sessions, from any thread.

    It chooses the reader, gives each thread its own, and caches the filters of sessions. Rules:

    1. A filter is compiled once for each session that uses it. The most recently used ones are
       kept, up to `FILTERS_MAX` and `TEXT_CHARACTERS_MAX`, and none of a closed session.
    2. A session reads one slice at a time, so its filters are not used concurrently.
    3. The first thread that reads loads the kernels, which takes about a second (several more the
       first time on a machine).
    4. A filter that matches everything costs nothing.

    State: compiled filters and buffers. Safe to lose.
    """

    def __init__(
        self,
        limits: Limits,
        filters_max: int = FILTERS_MAX,
        text_characters_max: int = TEXT_CHARACTERS_MAX,
    ) -> None:
        self._limits = limits
        self._filters_max = filters_max
        self._text_characters_max = text_characters_max
        self._has_kernels = numba_is_here()
        self._thread_local = threading.local()
        #: (session, text) → the filter, and its sieve if there are kernels; least recently used
        #: first.
        self._filters: OrderedDict[tuple[int, str], tuple[Filter, Sieve | None]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, pieces: Sequence[Piece], wanted: Wanted, session: int, text: str) -> Slice:
        """Read the next slice for a session; raise `FilterError` if its filter is invalid."""
        filter, sieve = self._filter(session, text) if text else (None, None)
        if self._has_kernels:
            return self._reader().read(pieces, wanted, sieve)
        return read_plainly(pieces, wanted, filter)

    def forget(self, session: int) -> None:
        with self._lock:
            for key in [key for key in self._filters if key[0] == session]:
                del self._filters[key]

    def __len__(self) -> int:
        return len(self._filters)

    def _reader(self) -> "BulkReader":
        from anabranch.store.bulk.compiled import BulkReader  # noqa: PLC0415 - needs numba

        reader: BulkReader | None = getattr(self._thread_local, "reader", None)
        if reader is None:
            reader = self._thread_local.reader = BulkReader()
        return reader

    def _filter(self, session: int, text: str) -> "tuple[Filter | None, Sieve | None]":
        key = (session, text)
        with self._lock:
            cached = self._filters.get(key)
            if cached is not None:
                self._filters.move_to_end(key)
                return cached
        filter = Filter.parse(text, self._limits)
        if filter == Filter.everything():
            return None, None
        compiled = filter, self._sieve(filter)
        with self._lock:
            self._filters[key] = compiled
            while self._has_too_many():
                self._filters.popitem(last=False)
        return compiled

    def _has_too_many(self) -> bool:
        characters = sum(len(text) for _, text in self._filters)
        return len(self._filters) > self._filters_max or characters > self._text_characters_max

    def _sieve(self, filter: Filter) -> "Sieve | None":
        # Also without kernels, a filter without a normal form is refused.
        _ = filter.conjunctions
        if not self._has_kernels:
            return None
        from anabranch.matching.sieve import Sieve  # noqa: PLC0415 - needs numba

        return Sieve(filter, self._limits)
