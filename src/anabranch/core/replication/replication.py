"""Replication: the copies at one broker, of its own stream and of others, beside its other parts.

    broker's parts ── Append, Put, Sync ──► disk
                           │
                           ├─► rows ─► records of the own stream
                           └─► writer ─► keepers at other brokers ─► confirmed ─► Synced

Rules

1. Parts that serve clients learn that something is synced when it is confirmed: when `confirm`
   copies have every own tick that was appended before the sync was requested, rows included
   (*gate*). Without copies there is no gate, and everything is as the disk says.
2. Clients are served once a life of the own stream is confirmed. Before that the log is complete,
   and the neighbours have told what they know of the stream (`rollback`).
3. A step that is not finished sends nothing and requests no sync: its rows are not complete.

State: the parts own it. What waits at the gate is safe to lose, like everything unconfirmed.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from anabranch.core.catalog_recovery import rows as readable_rows
from anabranch.core.contract import (
    Append,
    ClientFrameReceived,
    CopyFull,
    DeleteThrough,
    Effect,
    LogRead,
    Put,
    Recovered,
    RowsRead,
    Stimulus,
)
from anabranch.core.options import Options
from anabranch.core.origin import ledger
from anabranch.core.part_requests import PartRequest
from anabranch.core.replication import copy_reads
from anabranch.core.replication.copy_reads import CopyReads
from anabranch.core.replication.keeper import TABLE, Keeper, read_row
from anabranch.core.replication.placement import keepers_of
from anabranch.core.replication.rows import WaitingRows, all_rows
from anabranch.core.replication.writer import FIRST_REQUEST, StreamWriter
from anabranch.model.errors import RemoteError
from anabranch.model.limits import Limits
from anabranch.model.network import Network
from anabranch.model.replication import ForKeeper, ForReplication, Row

#: Part, its ticket, and the own tick that must be confirmed first.
Gated = tuple[object, int, int]


class Replication:
    """See the rules at the top of this module."""

    __slots__ = ("_rows", "_sync_ticks", "gated", "keeper", "reads", "writer")

    def __init__(  # noqa: PLR0917 - what every part of a broker is built from
        self,
        name: str,
        network: Network,
        options: Options,
        limits: Limits,
        recovered: Recovered,
        life: int,
    ) -> None:
        rows = readable_rows(recovered, TABLE, read_row)
        self.keeper = Keeper(name, network.edges, recovered, rows, life)
        #: Answers edges from the copies.
        self.reads = CopyReads(self.keeper, network, options, limits)
        #: The writer of the own stream; None if it has no other copies, and never had.
        self.writer: StreamWriter | None = None
        was_copied = name in recovered.catalog.get(TABLE, {})
        if name in network.edges and (options.copies > 1 or was_copied):
            keepers = keepers_of(network, name, options.copies, options.keepers)
            self.writer = StreamWriter(
                name, keepers, network.brokers, options, recovered, rows.get(name), life
            )
        self._rows = WaitingRows(all_rows(recovered) if self.writer is not None else ())
        #: Consequences that wait until their tick is confirmed, oldest first.
        self.gated: deque[Gated] = deque()
        #: (number of a sync, the newest own tick that it covers).
        self._sync_ticks: deque[tuple[int, int]] = deque()

    def next_deadline(self) -> float | None:
        return None if self.writer is None else self.writer.next_deadline()

    # -- what the broker does -------------------------------------------------------------------

    def note(self, stimulus: Stimulus) -> None:
        """Something happened: does it matter for rows that wait?"""
        if isinstance(stimulus, ClientFrameReceived):
            self._rows.note_activity()

    def note_activity(self) -> None:
        self._rows.note_activity()

    def observe(self, effects: Sequence[Effect]) -> None:
        """The broker performs these effects."""
        writer = self.writer
        if writer is None or writer.state == "fetching":
            return
        for effect in effects:
            if isinstance(effect, Append):
                if not effect.stream:
                    self._rows.note_activity()
                    writer.appended(effect.tick, effect.record)
            elif isinstance(effect, Put):
                self._rows.add(effect)
                if (effect.table, effect.key) == (ledger.TABLE, ledger.KEY):
                    writer.beginning_put(effect.value or b"")
            elif isinstance(effect, DeleteThrough) and not effect.stream:
                writer.deleted(effect.tick)

    def rows_to_append(self) -> Iterable[list[Row]]:
        """Rows that go into the own stream now, a list for each record."""
        if self.writer is None or not self.writer.is_leading:
            return []
        return self._rows.take()

    # -- the disk -------------------------------------------------------------------------------

    @property
    def wants_sync(self) -> bool:
        """Whether own records wait for the disk and nobody asks for a sync.

        The origin does not: it has one sync in progress at a time, which may be waiting here."""
        writer = self.writer
        if writer is None or self._sync_ticks or writer.state == "fetching":
            return False
        return writer.last > writer.synced_tick

    def requested(self, number: int) -> None:
        """The broker requests this sync."""
        if self.writer is not None:
            self._sync_ticks.append((number, self.writer.last))

    def synced(self, now: float, number: int) -> list[PartRequest]:
        """The disk has done this sync."""
        tick = 0
        while self._sync_ticks and self._sync_ticks[0][0] <= number:
            tick = self._sync_ticks.popleft()[1]
        if self.writer is None or not tick or self.writer.state == "fetching":
            return []
        return self.writer.own_synced(now, tick)

    def gate(self, who: object, ticket: int, number: int) -> None:
        """A part's sync of this number is on the own disk: it waits for the copies."""
        tick = next((tick for each, tick in self._sync_ticks if each == number), 0)
        self.gated.append((who, ticket, tick))

    def released(self) -> Iterable[Gated]:
        """What waits no longer."""
        writer, gated = self.writer, self.gated
        while gated and writer is not None and writer.is_leading:
            if gated[0][2] > writer.confirmed:
                return
            yield gated.popleft()

    # -- stimuli --------------------------------------------------------------------------------

    def carried(self, now: float, source: str, content: ForReplication) -> list[PartRequest]:
        """Process a message about copies that is for the writer."""
        if isinstance(content, ForKeeper):
            return self.keeper.carried(source, content)
        if self.writer is None:
            raise RemoteError("this broker's stream has no copies")
        return self.writer.carried(now, source, content)

    def disk(
        self, now: float, stimulus: LogRead | RowsRead | CopyFull
    ) -> Sequence[PartRequest] | None:
        """Process what the disk reports; None if it is for another part."""
        if isinstance(stimulus, CopyFull):
            return self.keeper.copy_full(stimulus)
        is_own = self.writer is not None and stimulus.request > FIRST_REQUEST
        if isinstance(stimulus, RowsRead):
            if self.writer is not None and is_own:
                return self.writer.rows_read(now, stimulus)
            return self.keeper.rows_read(stimulus)
        if stimulus.stream and stimulus.request > copy_reads.FIRST_REQUEST:
            return self.reads.log_read(now, stimulus)
        if stimulus.stream:
            return self.keeper.log_read(stimulus)
        if self.writer is not None and is_own:
            return self.writer.log_read(now, stimulus)
        return None

    def time_passed(self, now: float) -> list[PartRequest]:
        return [] if self.writer is None else self.writer.time_passed(now)
