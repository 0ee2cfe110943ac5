"""Fetching: a broker gets what its disk lacks of its own stream from a copy (ADR 0030, rule 9).

    put the own row ─► rows, page by page ─► records, in portions ─► row: complete ─► restart

Rules

1. If the own log is the beginning of the copy, only the missing records are fetched; the rows that
   they carry come with them. Otherwise the log and the catalog are deleted, and everything is
   fetched under a new identity; only a copy with all rows serves for that.
2. Until everything is on disk, the own row says that there is nothing here: a start in between
   begins anew. The row about deleted ticks is put last: until then the log begins with its first
   record.
3. Ticks that this log knows to be confirmed are never deleted, unless the copy has deleted them.
4. A request that is not answered is repeated; after `_TRIES` of them the broker restarts, and asks
   all copies again.

State: how far it is; safe to lose.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from msgspec.structs import replace

from anabranch.core.contract import Append, DropCopy, Note, OpenCopy, Put, Restart
from anabranch.core.part_requests import CarryTo, PartRequest, RequestSync
from anabranch.core.replication.keeper import CopyRow, pruned, row_put
from anabranch.core.replication.remote_checks import checked_rows
from anabranch.core.replication.rows import check_rows
from anabranch.model.replication import (
    FetchedRows,
    FetchedTicks,
    FetchRows,
    FetchTicks,
    Life,
    LifeAnswer,
    common_end,
)

#: A request that brings nothing is repeated so many times.
_TRIES = 20

#: What a sync is for: some of it, the last of it, the row that says so.
FetchPurpose = Literal["fetched", "all fetched", "complete"]


def obstacle(row: CopyRow, last: int, best: LifeAnswer) -> str:
    """Why a copy cannot serve to complete the own log, which ends with this tick; "" if it can."""
    same = common_end(row.starts, last, best.starts, best.last)
    # What a copy has deleted was confirmed.
    if row.is_open and max(same, best.first - 1) < row.confirmed:
        return (
            f"this log has confirmed ticks up to {row.confirmed} of which the copies at other"
            f" brokers lack those after {same}: more disks are lost than 'confirm' allows for"
        )
    if not _is_beginning(row, last, best) and not best.has_rows:
        return "no copy that was reached has the catalog rows of this stream; waiting for one"
    return ""


def _is_beginning(row: CopyRow, last: int, best: LifeAnswer) -> bool:
    """Whether the own log is the beginning of a copy, and continues where the copy does."""
    same = common_end(row.starts, last, best.starts, best.last)
    return row.is_open and 0 < last == same and best.first <= last + 1


class StreamFetch:
    """One fetch of the own stream. See the rules at the top of this module."""

    def __init__(  # noqa: PLR0917 - what is fetched, for whom, and from where
        self,
        stream: str,
        life: Life,
        best: LifeAnswer,
        row: CopyRow,
        last: int,
        again_s: float,
        sync: Callable[[FetchPurpose], RequestSync],
    ) -> None:
        self.source = best
        self.row = row
        #: The newest record here.
        self.last = last
        self._stream = stream
        self._life = life
        self._again_s = again_s
        self._sync = sync
        #: The key after which rows are fetched; None: there are no more.
        self._rows_after: str | None = None
        self._beginning = b""
        #: When to repeat the request; None: nothing is asked for.
        self.again_at: float | None = None
        self._tries = 0
        #: The first tick to fetch.
        self.first = last + 1

    def begin(self, now: float, catalog: Sequence[tuple[str, str]]) -> list[PartRequest]:
        """Prepare the disk. `catalog` are the replicated rows that it has."""
        best, row = self.source, self.row
        requests: list[PartRequest]
        if _is_beginning(row, self.last, best):
            what = f"ticks {self.last + 1} to {best.last}"
            self.row = replace(row, starts=pruned(best.starts, row.first))
            requests = [row_put(self._stream, self.row)]
        else:
            what = f"all ticks, up to {best.last}"
            self._rows_after = ""
            self.last = best.first - 1
            self.row = replace(
                row,
                number=max(self._life.number, row.number + 1),
                is_open=False,
                first=best.first,
                starts=pruned(best.starts, best.first),
                confirmed=0,
            )
            # The row goes first, so that no crash leaves a copy that claims to be whole.
            requests = [row_put(self._stream, self.row)]
            requests += [Put(table, key, None) for table, key in catalog]
            requests += [Put("stream", "checkpoint", None), Put("stream", "beginning", None)]
            requests += [DropCopy(""), OpenCopy("", best.first)]
        self.first = self.last + 1
        self.again_at = now + self._again_s
        text = f"fetching {what} from the copy at {best.copy.broker!r}: this disk lacks them"
        return [Note("warning", text), *requests, self._sync("fetched")]

    @property
    def fetched(self) -> int:
        """How many ticks are here."""
        return self.last + 1 - self.first

    def _ask(self, now: float) -> list[PartRequest]:
        """Ask for the next rows or records."""
        copy = self.source.copy
        self.again_at = now + self._again_s
        frame: FetchRows | FetchTicks
        if self._rows_after is not None:
            frame = FetchRows(self._stream, copy, self._life, self._rows_after)
        else:
            frame = FetchTicks(self._stream, copy, self._life, self.last + 1)
        return [CarryTo(copy.broker, frame)]

    def rows(self, now: float, frame: FetchedRows) -> list[PartRequest]:
        """A page of rows arrived; `RemoteError` if it is invalid."""
        if frame.life != self._life or frame.after != self._rows_after:
            return []
        check_rows(frame.rows)
        self._tries = 0
        requests: list[PartRequest] = [Put(*row) for row in frame.rows]
        self._rows_after = frame.following or None
        self._beginning = frame.beginning
        if self._rows_after is None and self.last == self.source.last:
            # All ticks are deleted.
            self.again_at = None
            return [*requests, self._sync("all fetched")]
        return requests + self._ask(now)

    def ticks(self, frame: FetchedTicks) -> list[PartRequest]:
        """Records arrived; `RemoteError` if they are invalid."""
        is_wanted = frame.life == self._life and frame.first == self.last + 1
        records = frame.records[: self.source.last - self.last]
        if not is_wanted or not records or self.again_at is None or self._rows_after is not None:
            return []
        rows = [checked_rows(record) for record in records]
        self.again_at = None
        self._tries = 0
        requests: list[PartRequest] = []
        for record, carried in zip(records, rows, strict=True):
            self.last += 1
            requests.append(Append(self.last, record))
            requests += [Put(*row) for row in carried]
        is_all = self.last == self.source.last
        return [*requests, self._sync("all fetched" if is_all else "fetched")]

    def synced(self, now: float, purpose: FetchPurpose) -> list[PartRequest]:
        """What was fetched is on disk."""
        if purpose == "fetched":
            return self._ask(now)
        if purpose == "complete":
            return [Restart(f"stream {self._stream!r} was fetched from a copy")]
        self.row = replace(self.row, is_open=True, has_rows=True)
        puts = [Put("stream", "beginning", self._beginning)] if self._beginning else []
        return [*puts, row_put(self._stream, self.row), self._sync("complete")]

    def time_passed(self, now: float) -> list[PartRequest]:
        if self.again_at is None or self.again_at > now:
            return []
        self._tries += 1
        if self._tries < _TRIES:
            return self._ask(now)
        self.again_at = None
        return [Restart(f"the copy that stream {self._stream!r} is fetched from does not answer")]
