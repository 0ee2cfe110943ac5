"""Keeper: the copies of other brokers' streams that this broker keeps.

A writer asks for a promise, sends records, and is told when they are synced (ADR 0030, rules 1 to
6). The writer decides everything; a keeper only refuses what its promise forbids.

    AskLife ──► put the promise, sync ──► LifeAnswer: what is here
    KeepTicks ──► append, sync ──► TicksKept

Rules

1. Order of writes. The row of a copy names the lives of its records. A row that adds a life, and
   the cut before it, are on disk before the first record of that life is appended: so the lives in
   the row are true after every crash.
2. Frames wait. While such a row is on its way to the disk, the frame that caused it waits, and so
   do the next ones, up to `PENDING_MAX`; the writer repeats what is dropped.
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
from itertools import takewhile

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
from anabranch.core.part_requests import CarryTo, PartRequest, RequestSync
from anabranch.core.replication.remote_checks import check_frame, check_starts, is_ascending
from anabranch.core.replication.rows import check_rows, rows_in
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
    KeepRows,
    KeepTicks,
    Life,
    LifeAnswer,
    LifeStart,
    Row,
    RowsKept,
    Starts,
    StoredRow,
    TicksKept,
    life_at,
)

TABLE = "copies"
#: Stream SEPARATOR table SEPARATOR key → value.
ROWS_TABLE = COPY_ROWS
#: Bytes of one answer to a fetch.
FETCH_BYTES_MAX = 1 << 20
FETCH_TICKS_MAX = 8_192
#: Records that are examined for rows at a time after a restart.
_EXAMINE_TICKS = 4_096
#: Frames that wait for a row of their copy: more than a writer sends ahead.
PENDING_MAX = 16

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
    #: Whether the rows of all records before its first one are in `copy_rows`.
    has_rows: bool = False
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
    if not is_ascending([each.tick for each in row.starts], [each.life for each in row.starts]):
        raise ValueError("the lives of its records are not in order")
    return row


def row_put(stream: str, row: CopyRow) -> Put:
    return Put(TABLE, stream, _encoder.encode(row))


def pruned(starts: Sequence[LifeStart], first: int) -> Starts:
    """The lives that records from `first - 1` on have, at most the newest `STARTS_MAX`: copies that
    have all up to there are continued, not begun anew."""
    found = tuple(starts[-STARTS_MAX:])
    while len(found) > 1 and found[1].tick < first:
        found = found[1:]
    return found


class KeptCopy:
    """One copy. Only `Keeper` and this class write its attributes."""

    __slots__ = (
        "asked",
        "confirmed",
        "examined_last",
        "examining",
        "is_full",
        "is_row_pending",
        "last",
        "page",
        "pending",
        "reading",
        "row",
        "stored_confirmed",
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
        #: Whether the disk had no space for the records after `last`.
        self.is_full = False
        #: Whether the row is on its way to the disk.
        self.is_row_pending = False
        #: The question to answer when it is there,
        self.asked: tuple[str, AskLife] | None = None
        #: and the records that wait for it, with their sender.
        self.pending: list[tuple[str, KeepTicks]] = []
        #: Tick → rows that are not confirmed yet.
        self.unapplied: dict[int, list[Row]] = {}
        #: The next tick whose record is examined for rows after a restart; 0 if all were.
        self.examining = row.applied + 1 if row.applied < last else 0
        #: The last one of these: later records are looked at when they arrive.
        self.examined_last = last
        #: The number of the read in progress for its writer; 0 if there is none.
        self.reading = 0
        #: The page of rows that is on its way to the disk, and who sent it.
        self.page: tuple[str, int] | None = None
        #: The confirmed tick in its row on disk.
        self.stored_confirmed = row.confirmed
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
        # Also if the clock went back between two lives.
        self._next_number = max([self._next_number, *(row.number for row in found.values())])
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
            elif isinstance(content, KeepRows):
                requests = self._keep_rows(copy, source, content)
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
        copy.pending = []
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
            row.has_rows,
            ask.question,
            row.promised_before,
        )
        return CarryTo(source, answer)

    # -- records ----------------------------------------------------------------------------------

    def _keep(self, copy: KeptCopy, source: str, frame: KeepTicks) -> list[PartRequest]:
        row = copy.row
        if frame.life < row.promised:
            return [self._answer(copy, source, AskLife(copy.stream, frame.life))]
        if frame.life > row.promised:
            return []
        # Before anything waits for the disk: then it is too late to refuse.
        check_frame(frame)
        rows = [rows_in(record) for record in frame.records]
        if copy.is_row_pending:
            if len(copy.pending) < PENDING_MAX:
                copy.pending.append((source, frame))
            return []
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
        if same < min(end, copy.last) or _has_other_lives(row.starts, frame.starts, end, copy.last):
            return self._change_lives(copy, source, frame, same)
        return self._append(copy, frame, rows)

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
        copy.pending.insert(0, (source, frame))
        end = frame.first + len(frame.records) - 1
        changed = msgspec.structs.replace(
            row,
            is_open=True,
            has_rows=not frame.needs_rows,
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
        starts = [start for start in copy.row.starts if start.tick <= kept]
        starts += [start for start in frame.starts if kept < start.tick <= end]
        check_starts(source, tuple(starts[-STARTS_MAX:]), frame.life)
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
            copy.examined_last = min(copy.examined_last, kept)
            if copy.examining > kept:
                copy.examining = 0
        copy.pending.insert(0, (source, frame))
        changed = msgspec.structs.replace(copy.row, starts=pruned(starts, copy.row.first))
        return requests + self._put(copy, changed)

    def _append(
        self, copy: KeptCopy, frame: KeepTicks, rows: Sequence[list[Row]]
    ) -> list[PartRequest]:
        requests: list[PartRequest] = []
        verified = frame.first + len(frame.records) - 1
        copy.verified = max(copy.verified, verified)
        for tick, record in enumerate(frame.records, frame.first):
            if tick <= copy.last:
                continue
            if rows[tick - frame.first] and tick > copy.row.applied:
                copy.unapplied[tick] = rows[tick - frame.first]
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
        self._next_sync.setdefault(copy.stream, copy.last)
        self._is_dirty = True
        return [copy.set_row(msgspec.structs.replace(row, confirmed=copy.confirmed))]

    def _keep_rows(self, copy: KeptCopy, source: str, frame: KeepRows) -> list[PartRequest]:
        """Take rows that no record of this copy carries."""
        check_rows(frame.rows)
        row = copy.row
        if frame.life != row.promised or copy.is_row_pending or not row.is_open or row.has_rows:
            return []
        requests: list[PartRequest] = []
        for table, key, value in frame.rows:
            place = SEPARATOR.join((copy.stream, table, key))
            requests.append(Put(ROWS_TABLE, place, value))
        if frame.is_last:
            requests.append(copy.set_row(msgspec.structs.replace(row, has_rows=True)))
        copy.page = (source, frame.page)
        self._next_sync.setdefault(copy.stream, copy.last)
        self._is_dirty = True
        return requests

    def _apply_rows(self, copy: KeptCopy) -> list[PartRequest]:
        """Put confirmed rows into the catalog (rule 3)."""
        if copy.examining or copy.confirmed <= copy.row.applied:
            return []
        ticks = list(takewhile(copy.confirmed.__ge__, copy.unapplied))
        if not ticks and copy.confirmed - copy.row.applied < _EXAMINE_TICKS:
            # A start examines the records after the newest applied one: let it not be all of them.
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
            copy.stored_confirmed,
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
        row = copy.row
        if fetch.life != row.promised or copy.is_row_pending or copy.examining or not row.has_rows:
            return []
        if copy.reading:
            # One read at a time: the writer repeats its question.
            return []
        if isinstance(fetch, FetchTicks) and not copy.row.first <= fetch.first <= copy.synced:
            return []
        self._request += 1
        copy.reading = self._request
        self._reads[self._request] = (source, fetch)
        if isinstance(fetch, FetchTicks):
            last = min(copy.synced, fetch.first + FETCH_TICKS_MAX - 1)
            read = Read(self._request, fetch.first, last, FETCH_BYTES_MAX, copy.stream)
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
        copy = self._copies.get(fetch.stream)
        if copy is None or copy.reading != read.request or not isinstance(fetch, FetchTicks):
            return []
        copy.reading = 0
        found = FetchedTicks(fetch.stream, fetch.life, fetch.first, list(read.records))
        return [CarryTo(source, found)]

    def rows_read(self, read: RowsRead) -> list[PartRequest]:
        """Rows of a stream were read."""
        purpose = self._reads.pop(read.request, None)
        if not isinstance(purpose, tuple):
            return []
        source, fetch = purpose
        copy = self._copies.get(fetch.stream)
        if copy is None or copy.reading != read.request or not isinstance(fetch, FetchRows):
            return []
        copy.reading = 0
        if read.is_damaged:
            return self._lose(copy, "has a damaged row") + self._sync()
        rows: list[StoredRow] = []
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
        last = min(copy.examined_last, copy.examining + _EXAMINE_TICKS - 1)
        return [Read(self._request, copy.examining, last, FETCH_BYTES_MAX, copy.stream)]

    def _examined(self, copy: KeptCopy, read: LogRead) -> list[PartRequest]:
        if self._copies.get(copy.stream) is not copy or read.first != copy.examining:
            return []
        if not read.records:
            return self._lose(copy, f"has no record {read.first}")
        try:
            found = [rows_in(record) for record in read.records]
        except RemoteError:
            return self._lose(copy, "has a record that cannot be read")
        for tick, rows in enumerate(found, read.first):
            if rows and tick <= copy.examined_last:
                copy.unapplied.setdefault(tick, rows)
        copy.unapplied = dict(sorted(copy.unapplied.items()))
        copy.examining = read.first + len(read.records)
        if copy.examining > copy.examined_last:
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
            if stream not in self._next_sync:
                copy.stored_confirmed = copy.row.confirmed
                requests += self._page_kept(copy)
            if copy.synced < min(last, copy.last):
                copy.synced = min(last, copy.last)
                copy.is_full = False
            if copy.is_row_pending and stream not in self._next_sync:
                copy.is_row_pending = False
                requests += self._continue(copy)
            elif not copy.is_row_pending:
                if copy.asked is not None and stream not in self._next_sync:
                    requests += self._continue(copy)
                elif copy.told:
                    requests.append(self._kept(copy))
        return requests + self._sync()

    def _page_kept(self, copy: KeptCopy) -> list[PartRequest]:
        if copy.page is None:
            return []
        (source, page), copy.page = copy.page, None
        kept = RowsKept(copy.stream, copy.row.promised, copy.id_at(self._name), page)
        return [CarryTo(source, kept)]

    def _continue(self, copy: KeptCopy) -> list[PartRequest]:
        """The row is on disk: answer the question, and append the records that waited for it."""
        requests: list[PartRequest] = []
        if copy.asked is not None:
            source, ask = copy.asked
            copy.asked = None
            requests.append(self._answer(copy, source, ask))
        while copy.pending and not copy.is_row_pending:
            source, frame = copy.pending.pop(0)
            requests += self._keep(copy, source, frame)
        return requests

    def copy_full(self, full: CopyFull) -> list[PartRequest]:
        """Appends of a copy were dropped, because the disk has no space."""
        copy = self._copies.get(full.stream)
        if copy is None or full.last_tick >= copy.last:
            return []
        copy.is_full = True
        copy.last = full.last_tick
        copy.synced = min(copy.synced, copy.last)
        copy.unapplied = {tick: rows for tick, rows in copy.unapplied.items() if tick <= copy.last}
        for group in (self._in_sync, self._next_sync):
            if full.stream in group:
                group[full.stream] = min(group[full.stream], copy.last)
        text = f"the disk has no space for the copy of stream {full.stream!r} after {copy.last}"
        return [Note("warning", text)]


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


def _has_other_lives(
    starts: Sequence[LifeStart], other: Sequence[LifeStart], end: int, last: int
) -> bool:
    """Whether other lives than those on record begin after `last`, up to `end`.

    A life on record may have none: a crash, or a full disk, can take its first record alone."""
    known = [start for start in starts if last < start.tick <= end]
    return known != [start for start in other if last < start.tick <= end]
