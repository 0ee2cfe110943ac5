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
   filter it does not match. Transient events and marks are none (`core.edge.reading`).
4. `NotKeptError` if the log does not have the first tick any more. Other ends of what was deleted
   meanwhile just end the slice.
5. What cannot be read is corrupt, and a record or event that this version does not understand is an
   error that names its tick. Nothing is passed over silently.

This module keeps no state.
"""

import msgspec

from anabranch.core.records import EventRecord, decode_record
from anabranch.core.tail import STORED_LIMITS
from anabranch.model.encoding import Envelope, decode_envelope
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.filter import Filter

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
