"""Slices: ranges of ticks of a log with the events that somebody wants, as rows.

Whoever reads a log in bulk says what is `Wanted` and gets a `Slice`: from its first tick up to
`through`, everything wanted is in its rows, and there is nothing else. There are two readers, which
give the same: `compiled` with kernels, and `plain` where there is no numba. Rules for both:

1. Read is what the caller says is there: `last` is synced, and `first` is not after it.
2. A slice ends before the row that would make it larger than `bytes_max`, unless that is its first;
   and, wanted or not, when `SCAN_BYTES_MAX` of the log were looked at, or as many records judged by
   Python as may be (`effort`), so that a filter that wants nothing does not keep a thread for ever.
   It always gets further by one tick.
3. An event that is expired, or addressed to other clients only, is not wanted; nor is one whose
   filter it does not match. Transient events and marks are none (`core.edge.delivery`).
4. `NotKeptError` if the log does not have the first tick any more. Other ends of what was deleted
   meanwhile just end the slice.
5. What cannot be read is corrupt, and a record or event that this version does not understand is an
   error that names its tick. Nothing is passed over silently.

This module keeps no state.
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


#: Bytes of the log that are looked at for one slice.
SCAN_BYTES_MAX = 32 * 2**20
#: Room before the rows of a slice, so that they need not be copied to be sent.
FRONT_BYTES = 64


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which events of which ticks."""

    first: int
    last: int
    #: Who wants them: events may be addressed.
    client: str
    #: The broker's clock: events may expire.
    now_ns: int
    #: Of the rows.
    bytes_max: int


class Slice(msgspec.Struct, frozen=True):
    """Some ticks, and the rows of those that are wanted."""

    first: int
    through: int
    count: int
    #: The rows, and `FRONT_BYTES` before them for whoever sends them; nobody else has this memory.
    buffer: memoryview

    @property
    def rows(self) -> memoryview:
        """The rows alone."""
        return self.buffer[FRONT_BYTES:]


class NotKeptError(LocalError):
    """The log begins later."""

    def __init__(self, first: int, oldest: int) -> None:
        super().__init__(
            f"tick {first} is not in the log any more: the oldest one is {oldest}; begin there"
        )
        self.oldest = oldest


def judged(
    tick: int, record: bytes, wanted: Wanted, filter: Filter | None
) -> tuple[int, bytes] | None:
    """Time and event of a record, if they are wanted: the rules, one record at a time."""
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
    """Whether the event of a tick matches a filter."""
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
        f"the event of tick {tick} in the log is none that this version can read ({error});"
        " start the version that wrote the log"
    )


#: Records of one slice that Python judges, at some 10 µs each.
JUDGED_MAX = 4_000
_BREATH_EVERY = 64
_BREATH_S = 0.00005


def _breathe() -> None:
    time.sleep(_BREATH_S)


class Effort:
    """Effort: what one slice may cost the interpreter, which the event loop waits for.

    Kernels do without the interpreter; a record that Python judges does not. A filter that no
    kernel decides makes that every record, for seconds. Rules:

    1. A slice ends before the record that would be one too many (`JUDGED_MAX`), so that sessions
       take turns, and a broker that ends does not wait.
    2. Every few records the thread sleeps for a moment, and whoever waits goes first. Without that,
       the loop would wait for milliseconds at each of its steps: nobody gives the interpreter up
       sooner.

    State: how much is left of one slice.
    """

    __slots__ = ("_breathe", "left")

    def __init__(
        self, judged_max: int = JUDGED_MAX, breathe: Callable[[], None] = _breathe
    ) -> None:
        #: Records that may still be judged.
        self.left = judged_max
        self._breathe = breathe

    def spend(self) -> None:
        """One more record is judged."""
        self.left -= 1
        if self.left % _BREATH_EVERY == 0:
            self._breathe()


# Reading a log in bulk without kernels: every record by itself. The rules are in `slices`.
#
# This is for machines without numba, and for tests, which hold the kernels against it. It keeps no
# state.


def read_plainly(
    pieces: Sequence[Piece],
    wanted: Wanted,
    filter: Filter | None,
    scan_bytes_max: int = SCAN_BYTES_MAX,
    judged_max: int = JUDGED_MAX,
) -> Slice:
    """The next slice of what is wanted."""
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


#: Each takes half a megabyte,
FILTERS_MAX = 32
#: and a long one some fifty bytes for each character.
TEXT_CHARACTERS_MAX = 262_144


class Slicer:
    """The slicer: reads slices of a log for many sessions, from any thread.

    It chooses the reader, gives each thread its own, and keeps the filters of sessions. Rules:

    1. A filter is compiled once for each session that uses it. Those that were used last are kept,
       up to `FILTERS_MAX` and `TEXT_CHARACTERS_MAX`, and none of a session that is forgotten.
    2. A session reads one slice at a time; so nobody else uses its filters meanwhile.
    3. Kernels are loaded by the first thread that reads, which takes about a second (the first time
       on a machine, several more), and by none before.
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
        self._own = threading.local()
        #: (session, text) → the filter, and its sieve where there are kernels; the last used last.
        self._filters: OrderedDict[tuple[int, str], tuple[Filter, Sieve | None]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, pieces: Sequence[Piece], wanted: Wanted, session: int, text: str) -> Slice:
        """The next slice of what a session wants; `FilterError` if its filter is none."""
        filter, sieve = self._filter(session, text) if text else (None, None)
        if self._has_kernels:
            return self._reader().read(pieces, wanted, sieve)
        return read_plainly(pieces, wanted, filter)

    def forget(self, session: int) -> None:
        """A session is over."""
        with self._lock:
            for key in [key for key in self._filters if key[0] == session]:
                del self._filters[key]

    def __len__(self) -> int:
        """The filters it keeps."""
        return len(self._filters)

    def _reader(self) -> "BulkReader":
        from anabranch.store.bulk.compiled import BulkReader  # noqa: PLC0415 - needs numba

        reader: BulkReader | None = getattr(self._own, "reader", None)
        if reader is None:
            reader = self._own.reader = BulkReader()
        return reader

    def _filter(self, session: int, text: str) -> "tuple[Filter | None, Sieve | None]":
        key = (session, text)
        with self._lock:
            known = self._filters.get(key)
            if known is not None:
                self._filters.move_to_end(key)
                return known
        filter = Filter.parse(text, self._limits)
        if filter == Filter.everything():
            return None, None
        made = filter, self._sieve(filter)
        with self._lock:
            self._filters[key] = made
            while self._has_too_many():
                self._filters.popitem(last=False)
        return made

    def _has_too_many(self) -> bool:
        characters = sum(len(text) for _, text in self._filters)
        return len(self._filters) > self._filters_max or characters > self._text_characters_max

    def _sieve(self, filter: Filter) -> "Sieve | None":
        # Where there are no kernels a filter is refused for the same reasons: no normal form.
        _ = filter.conjunctions
        if not self._has_kernels:
            return None
        from anabranch.matching.sieve import Sieve  # noqa: PLC0415 - needs numba

        return Sieve(filter, self._limits)
