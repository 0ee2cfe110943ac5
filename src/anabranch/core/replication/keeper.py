"""Keeper: the copies of other brokers' streams that this broker keeps.

A writer asks for a promise, sends records, and is told when they are synced (ADR 0030, rules 1 to
6). The writer decides everything; a keeper only refuses what its promise forbids.

    AskLife ──► put the promise, sync ──► LifeAnswer: what is here
    KeepTicks ──► append, sync ──► TicksKept

Rules

1. Order of writes. The row of a copy names the lives of its records. A row that adds a life, and
   the cut before it, are on disk before the first record of that life is appended: so the lives in
   the row are true after every crash.
2. One frame at a time. While such a row is on its way to the disk, the frame that caused it waits,
   and further ones are dropped; the writer repeats them.
3. Rows. Catalog rows that the stream carries (`RowsRecord`) are put into the table `copy_rows` once
   they are confirmed. Records are deleted only after that. After a restart, the records after the
   newest applied one are read again for their rows.
4. An id is never used twice, even by a copy that is deleted and created again in one life.
5. A copy that lost its storage, its row, or records that its row requires, is lost: what is left of
   it is deleted, and the next question founds a copy with another id.
6. Only the origin of a stream, an edge of this network, writes it.

State: table `copies` (stream → `CopyRow`) and `copy_rows`, and the logs of the copies. What is
known to be confirmed is told again by the writer; safe to lose.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from anabranch.core.contract import (
    COPY_ROWS,
    SEPARATOR,
    Append,
    CopyFull,
    CutCopy,
    DeleteThrough,
    DropCopy,
    LogRead,
    Note,
    OpenCopy,
    Put,
    Read,
    ReadRows,
    Recovered,
    RowsRead,
)
from anabranch.core.origin.log_tail import RowsRecord, decode_record
from anabranch.core.part_requests import CarryTo, PartRequest, RequestSync
from anabranch.model.errors import RemoteError
from anabranch.model.event import Count
from anabranch.model.frame_parts import Position, Tick
from anabranch.model.replication import (
    NO_LIFE,
    STARTS_MAX,
    AskLife,
    CopyId,
    FetchedRows,
    FetchedTicks,
    FetchRows,
    FetchTicks,
    ForgetCopy,
    ForKeeper,
    KeepTicks,
    Life,
    LifeAnswer,
    LifeStart,
    Row,
    Starts,
    TicksKept,
    life_at,
)

TABLE = "copies"
#: Stream SEPARATOR table SEPARATOR key → value.
ROWS_TABLE = COPY_ROWS
#: Bytes of one answer to a fetch.
FETCH_BYTES_MAX = 1 << 20
#: Records that are examined for rows at a time after a restart.
_EXAMINE_TICKS = 4_096
#: The tag of a `RowsRecord`, the second byte of its encoding.
_ROWS_TAG = 5

_encoder = msgspec.msgpack.Encoder()


class CopyRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of the table `copies`."""

    #: The copy's number (`CopyId`).
    number: Count
    promised: Life = NO_LIFE
    promised_before: Life = NO_LIFE
    starts: Starts = ()
    #: Whether its log was created; the first tick that it keeps.
    is_open: bool = False
    first: Tick = 1
    #: The rows of the records up to this tick are in `copy_rows`.
    applied: Position = 0
    #: The writer's row about deleted ticks.
    beginning: bytes = b""
    #: Up to this tick the stream was confirmed when this row was written.
    confirmed: Position = 0


_decoder = msgspec.msgpack.Decoder(CopyRow)


def read_row(_stream: str, value: bytes) -> CopyRow:
    """Decode a row of `copies`; `ValueError` if its content is impossible."""
    row = _decoder.decode(value)
    ticks = [start.tick for start in row.starts]
    lives = [start.life for start in row.starts]
    if ticks != sorted(set(ticks)) or lives != sorted(set(lives)):
        raise ValueError("the lives of its records are not in order")
    return row


def row_put(stream: str, row: CopyRow) -> Put:
    return Put(TABLE, stream, _encoder.encode(row))


def pruned(starts: Sequence[LifeStart], first: int) -> Starts:
    """The lives that records from `first` on have, at most the newest `STARTS_MAX`."""
    found = tuple(starts[-STARTS_MAX:])
    while len(found) > 1 and found[1].tick <= first:
        found = found[1:]
    return found


def rows_in(record: bytes) -> list[Row]:
    """The catalog rows that a record carries."""
    if len(record) < 2 or record[1] != _ROWS_TAG:
        return []
    decoded = decode_record(record)
    return decoded.rows if isinstance(decoded, RowsRecord) else []


class KeptCopy:
    """One copy. Only `Keeper` and this class write its attributes."""

    __slots__ = (
        "asked",
        "confirmed",
        "examining",
        "is_row_pending",
        "last",
        "pending",
        "row",
        "stream",
        "synced",
        "told",
        "unapplied",
        "verified",
    )

    def __init__(self, stream: str, row: CopyRow, last: int) -> None:
        self.stream = stream
        self.row = row
        #: The newest record, synced or not; and the newest synced one.
        self.last = self.synced = last
        #: Invariant: never above what a writer told.
        self.confirmed = min(row.confirmed, last)
        #: Whether the row is on its way to the disk.
        self.is_row_pending = False
        #: The question to answer when it is there,
        self.asked: tuple[str, AskLife] | None = None
        #: and the records that wait for it, with their sender.
        self.pending: tuple[str, KeepTicks] | None = None
        #: Tick → rows that are not confirmed yet.
        self.unapplied: dict[int, list[Row]] = {}
        #: The next tick whose record is examined for rows after a restart; 0 if all were.
        self.examining = row.applied + 1 if row.applied < last else 0
        #: Whom to tell what is synced,
        self.told = ""
        #: and up to where these records are those of the promised life's writer.
        self.verified = 0

    def id_at(self, broker: str) -> CopyId:
        return CopyId(broker, self.row.number)

    def set_row(self, row: CopyRow) -> Put:
        self.row = row
        return row_put(self.stream, row)


class Keeper:
    """All copies at one broker. See the rules at the top of this module."""

    def __init__(
        self,
        name: str,
        streams: Iterable[str],
        recovered: Recovered,
        rows: Mapping[str, CopyRow],
        life: int,
    ) -> None:
        self._name = name
        self._streams = frozenset(streams) - {name}
        self._next_number = life
        self._copies: dict[str, KeptCopy] = {}
        #: Lost copies, whose remains are deleted when the life begins.
        self._lost: list[str] = []
        self._ticket = 0
        self._is_dirty = False
        self._is_syncing = False
        #: Copies with writes in the sync in progress, and in the next one.
        self._in_sync: dict[str, int] = {}
        self._next_sync: dict[str, int] = {}
        self._request = 0
        #: Reads in progress: who asked for what; None: to examine records for rows.
        self._reads: dict[int, tuple[str, FetchTicks | FetchRows] | KeptCopy] = {}
        self._recover(recovered, rows)

    def _recover(self, recovered: Recovered, found: Mapping[str, CopyRow]) -> None:
        for stream, row in found.items():
            if stream == self._name:
                continue
            stored = recovered.copies.get(stream)
            is_lost = row.is_open and (stored is None or stored.first_tick > row.first)
            if is_lost or stream not in self._streams:
                self._lost.append(stream)
                continue
            last = row.first - 1 if stored is None or not row.is_open else stored.last_tick
            self._copies[stream] = KeptCopy(stream, row, last)
        damaged = {record.key for record in recovered.damaged if record.table == TABLE}
        for stream in (*recovered.copies, *recovered.lost_copies, *damaged):
            known = self._copies.get(stream)
            if stream != self._name and (known is None or not known.row.is_open):
                self._lost.append(stream)
        self._stored = frozenset((*recovered.copies, *recovered.lost_copies))

    @property
    def copies(self) -> Iterable[KeptCopy]:
        return self._copies.values()

    def copy_of(self, stream: str) -> KeptCopy | None:
        """The copy of a stream; None if there is none."""
        return self._copies.get(stream)

    # -- life -------------------------------------------------------------------------------------

    def started(self) -> list[PartRequest]:
        """The life is on disk: delete lost copies, and examine the others for rows."""
        requests: list[PartRequest] = []
        for stream in dict.fromkeys(self._lost):
            self._copies.pop(stream, None)
            requests.append(Put(TABLE, stream, None))
            if stream in self._stored:
                requests.append(DropCopy(stream))
            text = f"the copy of stream {stream!r} is lost or not needed; it was deleted"
            requests.append(Note("warning", text))
            self._is_dirty = True
        for copy in self._copies.values():
            requests += self._examine(copy)
        return requests + self._sync()

    def carried(self, source: str, content: ForKeeper) -> list[PartRequest]:
        """Process a writer's message; `RemoteError` if it is invalid."""
        stream = content.stream
        if stream not in self._streams or source != stream:
            raise RemoteError(f"{source!r} is not the origin of a stream {stream!r} to keep")
        if isinstance(content, AskLife):
            requests = self._ask(source, content)
        else:
            copy = self._copies.get(stream)
            if copy is None or copy.id_at(self._name) != content.copy:
                # The writer learns the present id when it asks again.
                return []
            if isinstance(content, KeepTicks):
                requests = self._keep(copy, source, content)
            elif isinstance(content, ForgetCopy):
                requests = self._forget(copy, content)
            else:
                requests = self._fetch(copy, source, content)
        return requests + self._sync()

    # -- promises ---------------------------------------------------------------------------------

    def _ask(self, source: str, ask: AskLife) -> list[PartRequest]:
        if ask.life.broker != source:
            raise RemoteError(f"{source!r} asks for a life of {ask.life.broker!r}")
        copy = self._copies.get(ask.stream)
        if copy is None:
            self._next_number += 1
            copy = KeptCopy(ask.stream, CopyRow(self._next_number), 0)
            self._copies[ask.stream] = copy
        row = copy.row
        if ask.life < row.promised:
            return [self._answer(copy, source, ask)]
        if ask.life == row.promised and not self._is_writing(copy):
            return [self._answer(copy, source, ask)]
        copy.asked = (source, ask)
        if ask.life == row.promised:
            return []
        copy.pending = None
        copy.verified = 0
        changed = msgspec.structs.replace(row, promised=ask.life, promised_before=row.promised)
        return self._put(copy, changed)

    def _is_writing(self, copy: KeptCopy) -> bool:
        """Whether anything about a copy is on its way to the disk."""
        return copy.stream in self._in_sync or copy.stream in self._next_sync

    def _answer(self, copy: KeptCopy, source: str, ask: AskLife) -> PartRequest:
        row = copy.row
        answer = LifeAnswer(
            copy.stream,
            ask.life,
            row.promised,
            copy.id_at(self._name),
            not row.is_open,
            row.first,
            copy.synced,
            row.starts,
            copy.confirmed,
            row.promised_before,
        )
        return CarryTo(source, answer)

    # -- records ----------------------------------------------------------------------------------

    def _keep(self, copy: KeptCopy, source: str, frame: KeepTicks) -> list[PartRequest]:
        row = copy.row
        if frame.life < row.promised:
            return [self._answer(copy, source, AskLife(copy.stream, frame.life))]
        if frame.life > row.promised or copy.is_row_pending:
            return []
        _check_frame(frame)
        copy.told = source
        if not row.is_open:
            if frame.first != frame.oldest:
                return [self._kept(copy, is_lacking=True)]
            return self._open(copy, source, frame)
        if frame.first > copy.last + 1:
            if frame.first == frame.oldest:
                # Everything here is deleted at the origin.
                return [DropCopy(copy.stream), *self._open(copy, source, frame)]
            return [self._kept(copy, is_lacking=True)]
        if frame.first < row.first:
            return self._keep_rest(copy, source, frame)
        before = frame.first - 1
        if before >= row.first and life_at(row.starts, before) != life_at(frame.starts, before):
            return [self._kept(copy, is_lacking=True)]
        end = before + len(frame.records)
        same = _same_until(row.starts, frame.starts, frame.first, min(end, copy.last))
        if same < min(end, copy.last) or _adds_life(row.starts, frame.starts, end, copy.last):
            return self._change_lives(copy, source, frame, same)
        return self._append(copy, frame)

    def _keep_rest(self, copy: KeptCopy, source: str, frame: KeepTicks) -> list[PartRequest]:
        """Ignore the records of a frame that were deleted here."""
        skipped = copy.row.first - frame.first
        if skipped > len(frame.records):
            return []
        rest = msgspec.structs.replace(frame, first=copy.row.first, records=frame.records[skipped:])
        return self._keep(copy, source, rest)

    def _open(self, copy: KeptCopy, source: str, frame: KeepTicks) -> list[PartRequest]:
        """Create the log of a copy; its records follow when that is on disk (rule 1)."""
        row = copy.row
        copy.last = copy.synced = copy.confirmed = frame.first - 1
        copy.unapplied, copy.examining = {}, 0
        copy.pending = (source, frame)
        end = frame.first + len(frame.records) - 1
        changed = msgspec.structs.replace(
            row,
            is_open=True,
            first=frame.first,
            applied=frame.first - 1,
            starts=tuple(start for start in frame.starts if start.tick <= end),
            beginning=frame.beginning,
        )
        return [OpenCopy(copy.stream, frame.first), *self._put(copy, changed)]

    def _change_lives(
        self, copy: KeptCopy, source: str, frame: KeepTicks, same: int
    ) -> list[PartRequest]:
        """Cut off what is not in the writer's stream, and record the lives of what follows."""
        end = frame.first + len(frame.records) - 1
        requests: list[PartRequest] = []
        kept = min(same, copy.last) if same < min(end, copy.last) else copy.last
        if kept < copy.last:
            if kept < copy.confirmed:
                text = (
                    f"the writer of stream {copy.stream!r} has other records after tick {kept} than"
                    f" this copy, which knows them to be confirmed up to {copy.confirmed}: the"
                    " writer's log is an old copy; nothing was changed here"
                )
                return [Note("error", text)]
            requests.append(CutCopy(copy.stream, kept))
            copy.unapplied = {tick: rows for tick, rows in copy.unapplied.items() if tick <= kept}
            copy.last = kept
            copy.synced = min(copy.synced, kept)
            if copy.examining > kept:
                copy.examining = 0
        starts = [start for start in copy.row.starts if start.tick <= kept]
        starts += [start for start in frame.starts if kept < start.tick <= end]
        copy.pending = (source, frame)
        changed = msgspec.structs.replace(copy.row, starts=pruned(starts, copy.row.first))
        return requests + self._put(copy, changed)

    def _append(self, copy: KeptCopy, frame: KeepTicks) -> list[PartRequest]:
        requests: list[PartRequest] = []
        verified = frame.first + len(frame.records) - 1
        copy.verified = max(copy.verified, verified)
        for tick, record in enumerate(frame.records, frame.first):
            if tick <= copy.last:
                continue
            rows = rows_in(record)
            if rows:
                copy.unapplied[tick] = rows
            requests.append(Append(tick, record, copy.stream))
            copy.last = tick
        if requests:
            self._next_sync[copy.stream] = copy.last
            self._is_dirty = True
        elif not self._is_writing(copy):
            requests.append(self._kept(copy))
        copy.confirmed = max(copy.confirmed, min(frame.confirmed, verified, copy.last))
        requests += self._apply_rows(copy) + self._delete(copy, frame)
        return requests + self._note_confirmed(copy)

    def _note_confirmed(self, copy: KeptCopy) -> list[PartRequest]:
        """Record that the newest life is confirmed: then older copy sets do not matter any more."""
        row = copy.row
        if not row.starts or not row.confirmed < row.starts[-1].tick <= copy.confirmed:
            return []
        self._is_dirty = True
        return [copy.set_row(msgspec.structs.replace(row, confirmed=copy.confirmed))]

    def _apply_rows(self, copy: KeptCopy) -> list[PartRequest]:
        """Put confirmed rows into the catalog (rule 3)."""
        if copy.examining or copy.confirmed <= copy.row.applied:
            return []
        ticks = [tick for tick in copy.unapplied if tick <= copy.confirmed]
        if not ticks:
            return []
        requests: list[PartRequest] = []
        for tick in ticks:
            for table, key, value in copy.unapplied.pop(tick):
                place = SEPARATOR.join((copy.stream, table, key))
                requests.append(Put(ROWS_TABLE, place, value))
        changed = msgspec.structs.replace(
            copy.row, applied=copy.confirmed, confirmed=copy.confirmed
        )
        self._is_dirty = True
        return [*requests, copy.set_row(changed)]

    def _delete(self, copy: KeptCopy, frame: KeepTicks) -> list[PartRequest]:
        """Delete what the writer has deleted."""
        row, first = copy.row, frame.oldest
        if first <= row.first or copy.examining or first - 1 > min(copy.confirmed, copy.synced):
            return []
        assert all(tick >= first for tick in copy.unapplied), (first, copy.unapplied)
        changed = msgspec.structs.replace(
            row,
            first=first,
            starts=pruned(row.starts, first),
            applied=max(row.applied, first - 1),
            beginning=frame.beginning,
            confirmed=copy.confirmed,
        )
        self._is_dirty = True
        # The row goes first: a crash may lose the deletion, which is repeated.
        return [copy.set_row(changed), DeleteThrough(first - 1, copy.stream)]

    def _kept(self, copy: KeptCopy, *, is_lacking: bool = False) -> PartRequest:
        row = copy.row
        kept = TicksKept(
            copy.stream,
            row.promised,
            copy.id_at(self._name),
            min(copy.synced, copy.verified) if not is_lacking else copy.last,
            is_lacking,
        )
        return CarryTo(copy.told, kept)

    def _forget(self, copy: KeptCopy, frame: ForgetCopy) -> list[PartRequest]:
        if frame.life != copy.row.promised:
            return []
        return self._lose(copy, "is lost, says its writer")

    def _lose(self, copy: KeptCopy, why: str) -> list[PartRequest]:
        """Delete what is left of a copy (rule 5)."""
        del self._copies[copy.stream]
        self._in_sync.pop(copy.stream, None)
        self._next_sync.pop(copy.stream, None)
        self._is_dirty = True
        requests: list[PartRequest] = [Put(TABLE, copy.stream, None)]
        if copy.row.is_open:
            requests.append(DropCopy(copy.stream))
        return [*requests, Note("warning", f"the copy of stream {copy.stream!r} {why}: deleted")]

    # -- reads ------------------------------------------------------------------------------------

    def _fetch(
        self, copy: KeptCopy, source: str, fetch: FetchTicks | FetchRows
    ) -> list[PartRequest]:
        if fetch.life != copy.row.promised or copy.is_row_pending or copy.examining:
            return []
        if any(isinstance(each, tuple) and each[1] == fetch for each in self._reads.values()):
            return []
        self._request += 1
        self._reads[self._request] = (source, fetch)
        if isinstance(fetch, FetchTicks):
            read = Read(self._request, fetch.first, copy.synced, FETCH_BYTES_MAX, copy.stream)
            return [read]
        prefix = copy.stream + SEPARATOR
        return [ReadRows(self._request, ROWS_TABLE, prefix, fetch.after, FETCH_BYTES_MAX)]

    def log_read(self, read: LogRead) -> list[PartRequest]:
        """Records of a copy were read."""
        purpose = self._reads.pop(read.request, None)
        if isinstance(purpose, KeptCopy):
            return self._examined(purpose, read) + self._sync()
        if purpose is None:
            return []
        source, fetch = purpose
        if not isinstance(fetch, FetchTicks):
            return []
        found = FetchedTicks(fetch.stream, fetch.life, fetch.first, list(read.records))
        return [CarryTo(source, found)]

    def rows_read(self, read: RowsRead) -> list[PartRequest]:
        """Rows of a stream were read."""
        purpose = self._reads.pop(read.request, None)
        if not isinstance(purpose, tuple):
            return []
        source, fetch = purpose
        copy = self._copies.get(fetch.stream)
        if copy is None or not isinstance(fetch, FetchRows):
            return []
        if read.is_damaged:
            return self._lose(copy, "has a damaged row") + self._sync()
        rows: list[Row] = []
        for place, value in read.rows:
            _, table, key = place.split(SEPARATOR, 2)
            rows.append((table, key, value))
        following = "" if read.is_last else read.rows[-1][0]
        beginning = copy.row.beginning
        found = FetchedRows(fetch.stream, fetch.life, fetch.after, rows, following, beginning)
        return [CarryTo(source, found)]

    def _examine(self, copy: KeptCopy) -> list[PartRequest]:
        """Read the next records that may carry rows (rule 3)."""
        if not copy.examining:
            return []
        self._request += 1
        self._reads[self._request] = copy
        last = min(copy.last, copy.examining + _EXAMINE_TICKS - 1)
        return [Read(self._request, copy.examining, last, FETCH_BYTES_MAX, copy.stream)]

    def _examined(self, copy: KeptCopy, read: LogRead) -> list[PartRequest]:
        if self._copies.get(copy.stream) is not copy or read.first != copy.examining:
            return []
        if not read.records:
            return self._lose(copy, f"has no record {read.first}")
        for tick, record in enumerate(read.records, read.first):
            rows = rows_in(record)
            if rows and tick <= copy.last:
                copy.unapplied.setdefault(tick, rows)
        copy.unapplied = dict(sorted(copy.unapplied.items()))
        copy.examining = read.first + len(read.records)
        if copy.examining > copy.last:
            copy.examining = 0
            return self._apply_rows(copy)
        return self._examine(copy)

    # -- disk -------------------------------------------------------------------------------------

    def _put(self, copy: KeptCopy, row: CopyRow) -> list[PartRequest]:
        """Put a row that must be on disk before anything else happens to the copy."""
        copy.is_row_pending = True
        self._next_sync[copy.stream] = copy.last
        self._is_dirty = True
        return [copy.set_row(row)]

    def _sync(self) -> list[PartRequest]:
        if self._is_syncing or not self._is_dirty:
            return []
        self._is_syncing, self._is_dirty = True, False
        self._in_sync, self._next_sync = self._next_sync, {}
        self._ticket += 1
        return [RequestSync(self._ticket)]

    def synced(self, ticket: int) -> list[PartRequest]:
        """Everything put and appended before this ticket is on disk."""
        if ticket != self._ticket or not self._is_syncing:
            return []
        self._is_syncing = False
        done, self._in_sync = self._in_sync, {}
        requests: list[PartRequest] = []
        for stream, last in done.items():
            copy = self._copies.get(stream)
            if copy is None:
                continue
            copy.synced = max(copy.synced, min(last, copy.last))
            if copy.is_row_pending and stream not in self._next_sync:
                copy.is_row_pending = False
                requests += self._continue(copy)
            elif not copy.is_row_pending:
                if copy.asked is not None and stream not in self._next_sync:
                    requests += self._continue(copy)
                elif copy.told:
                    requests.append(self._kept(copy))
        return requests + self._sync()

    def _continue(self, copy: KeptCopy) -> list[PartRequest]:
        """The row is on disk: answer the question, and append the records that waited for it."""
        requests: list[PartRequest] = []
        if copy.asked is not None:
            source, ask = copy.asked
            copy.asked = None
            requests.append(self._answer(copy, source, ask))
        if copy.pending is not None:
            source, frame = copy.pending
            copy.pending = None
            requests += self._keep(copy, source, frame)
        return requests

    def copy_full(self, full: CopyFull) -> list[PartRequest]:
        """Appends of a copy were dropped, because the disk has no space."""
        copy = self._copies.get(full.stream)
        if copy is None or full.last_tick >= copy.last:
            return []
        copy.last = full.last_tick
        copy.synced = min(copy.synced, copy.last)
        copy.unapplied = {tick: rows for tick, rows in copy.unapplied.items() if tick <= copy.last}
        for group in (self._in_sync, self._next_sync):
            if full.stream in group:
                group[full.stream] = min(group[full.stream], copy.last)
        text = f"the disk has no space for the copy of stream {full.stream!r} after {copy.last}"
        return [Note("warning", text)]


def _check_frame(frame: KeepTicks) -> None:
    ticks = [start.tick for start in frame.starts]
    if ticks != sorted(set(ticks)):
        raise RemoteError(f"the lives of stream {frame.stream!r} are not in order")
    if frame.starts and frame.starts[-1].life > frame.life:
        raise RemoteError(f"a record of {frame.stream!r} has a life after {frame.life}")
    if frame.oldest > frame.first + len(frame.records):
        raise RemoteError(f"{frame.stream!r} sends records that it has deleted")


def _same_until(
    starts: Sequence[LifeStart], other: Sequence[LifeStart], first: int, last: int
) -> int:
    """The last tick from `first` to `last` up to which the lives are equal; before `first` if none
    is."""
    ticks = [start.tick for start in (*starts, *other) if first < start.tick <= last]
    for tick in sorted({first, *ticks}):
        if tick <= last and life_at(starts, tick) != life_at(other, tick):
            return tick - 1
    return last


def _adds_life(
    starts: Sequence[LifeStart], other: Sequence[LifeStart], end: int, last: int
) -> bool:
    """Whether records after `last` up to `end` begin lives that are not on record."""
    known = {start.tick for start in starts}
    return any(last < start.tick <= end and start.tick not in known for start in other)
