"""Writer: how an origin begins a life of its stream, and when a tick of it is confirmed.

The rules are those of ADR 0030; their numbers are given where they are followed.

    asking ──► complete ──► beginning ──► leading
       │                                    │
       ▼                                    ▼ the copy set changes, or a copy has promised more
    fetching ──► restart                  asking again, while leading

*Asking*: every copy is asked for a promise, this broker's own one included. *Fetching*: a copy has
records that this log lacks; they are fetched, with the catalog rows that the stream carries, and
the broker restarts from its disk. *Complete*: this log has everything that may be confirmed.
*Beginning*: the life record is on its way to the copies. *Leading*: it is confirmed.

Records go to the copies at the end of each step of the broker, while the own disk syncs them too.
What was sent and is not acknowledged for a while is not sent again blindly: the copy is asked
again, and its answer says where to continue. The newest records are in memory, older ones are read
from the log.

`Synced` of the disk is not what the parts of the broker wait for, but `confirmed`: it covers every
own tick that was appended before the sync was requested, the rows of that step included.

State: the row of the own copy in the table `copies`. The rest is learned again from the copies.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from anabranch.core.contract import (
    LogRead,
    Note,
    Read,
    ReadRows,
    Recovered,
    Restart,
    RowsRead,
    earliest,
)
from anabranch.core.options import Options
from anabranch.core.part_requests import AppendLife, CarryTo, PartRequest, RequestSync
from anabranch.core.replication.fetching import FetchPurpose, StreamFetch, obstacle
from anabranch.core.replication.keeper import CopyRow, pruned, row_put
from anabranch.core.replication.peers import FRAME_BYTES, FRAME_TICKS, Peer, RecentRecords
from anabranch.core.replication.remote_checks import check_answer
from anabranch.core.replication.rows import REPLICATED_TABLES, is_replicated
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.replication import (
    NO_LIFE,
    AskLife,
    CopyId,
    CopySet,
    FetchedRows,
    ForgetCopy,
    ForWriter,
    KeepRows,
    KeepTicks,
    Life,
    LifeAnswer,
    LifeStart,
    RowsKept,
    TicksKept,
    common_end,
    life_at,
)

#: Read requests of the writer have these numbers and higher ones; those of the origin are lower.
FIRST_REQUEST = 1 << 50
#: Bytes that may be on their way to one copy.
WINDOW_BYTES = 4 << 20
#: What is confirmed is told to idle copies after this long.
_TELL_AFTER_S = 0.05
#: What a record adds to its bytes on the way.
_RECORD_OVERHEAD = 64
#: Two processes that outrank each other wait so many times `ask_again_s`, at most, between tries;
#: they are over it after so many seconds.
_OUTRANKED_MAX = 64
_OUTRANKED_CALM_S = 60.0

State = Literal["asking", "fetching", "complete", "beginning", "leading"]
#: What a sync is for: a promise of the own copy, the start of a life, fetched records, the last of
#: them, the row that says that they are complete.
_Purpose = Literal["promise", "start", "confirmed"] | FetchPurpose


class StreamWriter:
    """The writer of this broker's stream. See the rules at the top of this module."""

    def __init__(  # noqa: PLR0917 - what a writer must be told
        self,
        name: str,
        keepers: Sequence[str],
        brokers: Iterable[str],
        options: Options,
        recovered: Recovered,
        row: CopyRow | None,
        life: int,
    ) -> None:
        self._name = name
        self._options = options
        self._keepers = tuple(keepers)
        #: All brokers of the network. Copies at others are lost: the operator has removed them.
        self._brokers = frozenset(brokers)
        first, last = recovered.first_tick, recovered.last_tick
        row = row or CopyRow(life, is_open=last > 0)
        #: The own copy. Its log begins at `row.first`.
        self._row = replace(row, first=first)
        self._last = self._own_synced = last
        self._beginning = recovered.catalog.get("stream", {}).get("beginning", b"")
        self._catalog_keys = [
            (table, key)
            for table, keys in recovered.catalog.items()
            if is_replicated(table)
            for key in keys
        ]
        self.state: State = "asking"
        #: The life that is asked for, or has begun.
        self._process = life
        self.life = self._life(max(life, row.promised.number + 1))
        #: Whether the own copy has promised it, and its first tick: 0 before it has begun.
        self._is_promised = False
        self._life_tick = 0
        #: Everything up to here is confirmed, as far as this process has seen.
        self.confirmed = 0
        self._recent = RecentRecords(last + 1)
        self._peers: dict[str, Peer] = {}
        #: Copies that will never answer again.
        self._lost: set[CopyId] = set()
        #: Older copy sets whose members must have this life's first record (rule 11).
        self._older_sets: list[CopySet] = []
        #: Whether all members must have it, because nothing is known to be confirmed (rule 11).
        self._needs_all = False
        #: The copy set that the next life is to have; None: that depends on the answers.
        self._planned: CopySet | None = None
        #: The highest life that a copy has promised to somebody else, until when this broker does
        #: not try to outrank it, and the back-off of that.
        self._higher = NO_LIFE
        self._outranked_until = 0.0
        self._outranked_factor = 1
        #: Until when to wait for answers that are not necessary.
        self._wait_until: float | None = None
        #: The fetch in progress; None unless the state is `fetching`.
        self.fetch: StreamFetch | None = None
        #: Lives that this process began.
        self.lives_begun = 0
        self._request = FIRST_REQUEST
        self._ticket = 0
        #: The ticket of the newest promise or start.
        self._awaited_ticket = 0
        #: The confirmed tick in the own row on disk.
        self._stored_confirmed = row.confirmed
        self._purposes: dict[int, _Purpose] = {}
        self._note_removed(self._own_sets())
        self._meet((*self._keepers, *_brokers_of(self._own_sets())))
        if not self._row.starts and not last:
            # This disk knows nothing. The network file may have changed since it did: any broker
            # may have a copy (rule 8).
            self._meet(sorted(self._brokers))

    # -- what others see ------------------------------------------------------------------------

    @property
    def copies(self) -> CopySet | None:
        """The copy set of the newest life in the own log."""
        return self._row.starts[-1].copies if self._row.starts else None

    @property
    def own_id(self) -> CopyId:
        return CopyId(self._name, self._row.number)

    @property
    def is_leading(self) -> bool:
        """Whether a life of this process was confirmed, so that the broker may serve clients."""
        return self.state == "leading"

    @property
    def stream(self) -> str:
        return self._name

    @property
    def is_settled(self) -> bool:
        """Whether no change of the copy set is under way."""
        return self._life_tick > 0 and not self._older_sets and self.confirmed >= self._life_tick

    @property
    def knows_confirmed(self) -> bool:
        """Whether a copy knows of a confirmed tick: the stream is not being founded."""
        return self._confirmed_life() != NO_LIFE

    @property
    def last(self) -> int:
        """The newest tick of the own log, synced or not."""
        return self._last

    @property
    def synced_tick(self) -> int:
        """The newest tick of the own log that is on its disk."""
        return self._own_synced

    @property
    def peers(self) -> Mapping[str, Peer]:
        return self._peers

    def is_member(self, broker: str) -> bool:
        """Whether the copy at another broker counts."""
        return self.copies is not None and self._peers[broker].copy in self.copies.members

    # -- asking -----------------------------------------------------------------------------------

    def _life(self, number: int) -> Life:
        return Life(number, self._name, self._process)

    def started(self, now: float) -> list[PartRequest]:
        """The life of the broker is on disk: ask all copies."""
        return self._ask_for(now, self.life)

    def _ask_for(self, now: float, life: Life) -> list[PartRequest]:
        if self.state != "leading":
            self.state = "asking"
        self._planned = self._next_set() if self._row.starts else None
        self.life = life
        self._is_promised = False
        self._life_tick = 0
        self._wait_until = None
        for peer in self._peers.values():
            peer.begin_life()
        self._row = replace(
            self._row,
            promised=life,
            promised_before=self._row.promised,
            confirmed=max(self.confirmed, self._row.confirmed),
        )
        return [*self._put_row("promise"), *self._ask_due(now)]

    def _put_row(self, purpose: _Purpose) -> list[PartRequest]:
        return [row_put(self._name, self._row), self._sync(purpose)]

    def _sync(self, purpose: _Purpose) -> RequestSync:
        self._ticket += 1
        self._purposes[self._ticket] = purpose
        if purpose in {"promise", "start"}:
            self._awaited_ticket = self._ticket
        return RequestSync(self._ticket)

    def _ask_due(self, now: float) -> list[PartRequest]:
        """Ask the copies that have not answered, or have not acknowledged for a while."""
        if self.state == "fetching":
            return []
        requests: list[PartRequest] = []
        for broker, peer in self._peers.items():
            if peer.again_at is not None and peer.again_at <= now:
                peer.asked(now, self._options.ask_again_s)
                requests.append(CarryTo(broker, AskLife(self._name, self.life, peer.question)))
        return requests

    def neighbour_up(self, now: float, broker: str) -> list[PartRequest]:
        """A neighbour has greeted: do not wait to ask it."""
        peer = self._peers.get(broker)
        if peer is None:
            return []
        peer.ask_now()
        return self._ask_due(now)

    def _answered(self, now: float, source: str, answer: LifeAnswer) -> list[PartRequest]:
        check_answer(source, answer)
        if answer.life != self.life or self.state == "fetching":
            return []
        if answer.promised > self.life:
            return self._outranked(now, answer.promised)
        peer = self._peers[source]
        is_asked = peer.is_asked and answer.question == peer.question
        if answer.promised != self.life or not is_asked:
            return []
        if answer.copy in self._lost or peer.has_lost_records(answer):
            return self._make_again(now, source, peer, answer.copy, "has lost records")
        self._note_lost(answer.copy, peer.copy)
        peer.answered(answer)
        sets = self._sets()
        for known in self._answers():
            for copies in sets:
                self._note_lost(known.copy, copies.of(known.copy.broker))
        self._note_removed(sets)
        self._meet(_brokers_of(sets))
        if self._life_tick:
            return self._prepare(now, source, peer) + self._look(now)
        return self._evaluate(now)

    def _outranked(self, now: float, life: Life) -> list[PartRequest]:
        """Another process of this broker's name writes, or wrote (rule 13): begin a higher life.

        If that goes on, two processes outrank each other, or a copy lies: wait longer each time."""
        self._higher = max(self._higher, life)
        if now < self._outranked_until:
            return []
        is_calm = now > self._outranked_until + _OUTRANKED_CALM_S
        self._outranked_factor = 1 if is_calm else min(2 * self._outranked_factor, _OUTRANKED_MAX)
        self._outranked_until = now + self._options.ask_again_s * self._outranked_factor
        return self._ask_for(now, self._life(self._higher.number + 1))

    def _note_lost(self, copy: CopyId, known: CopyId | None) -> None:
        """A broker has another copy than the known one, which is lost."""
        if known is not None and known != copy:
            self._lost.add(known)

    def _note_removed(self, sets: Iterable[CopySet]) -> None:
        for copies in sets:
            self._lost |= {each for each in copies.members if each.broker not in self._brokers}

    def _make_again(
        self, now: float, broker: str, peer: Peer, copy: CopyId, why: str
    ) -> list[PartRequest]:
        """A copy is of no use any more: it is lost, and made again (rule 12)."""
        self._lost.add(copy)
        peer.lose()
        peer.asked(now, self._options.ask_again_s)
        text = f"the copy of this stream at {broker!r} {why}; it is made again"
        return [CarryTo(broker, ForgetCopy(self._name, self.life, copy)), Note("warning", text)]

    def _meet(self, brokers: Iterable[str]) -> None:
        for broker in brokers:
            if broker != self._name and broker in self._brokers and broker not in self._peers:
                self._peers[broker] = Peer()

    # -- quorums ----------------------------------------------------------------------------------

    def _own_answer(self) -> LifeAnswer:
        row = self._row
        return LifeAnswer(
            self._name,
            self.life,
            self.life,
            self.own_id,
            not row.is_open,
            row.first,
            self._last,
            row.starts,
            row.confirmed,
            row.has_rows,
            0,
            row.promised_before,
        )

    def _answers(self) -> list[LifeAnswer]:
        """All answers in this life, the own copy's first."""
        found = [peer.answer for peer in self._peers.values() if peer.answer is not None]
        return [self._own_answer(), *found]

    def _confirmed_life(self) -> Life:
        """The newest life that a copy knows to be confirmed; `NO_LIFE` if none does."""
        return max(life_at(each.starts, each.confirmed) for each in self._answers())

    def _sets(self) -> list[CopySet]:
        """The copy sets that bind a life: of the newest confirmed life, and of all later ones."""
        confirmed = self._confirmed_life()
        starts = [start for each in self._answers() for start in each.starts]
        starts.sort(key=_life_of, reverse=True)
        return list(dict.fromkeys(start.copies for start in starts if start.life >= confirmed))

    def _own_sets(self) -> list[CopySet]:
        row = self._row
        confirmed = life_at(row.starts, row.confirmed)
        return [start.copies for start in row.starts if start.life >= confirmed]

    def _whole(self, copies: CopySet) -> int:
        """How many members are not lost."""
        return len(copies.members) - copies.count(self._lost)

    def _has_quorum(self, copies: CopySet) -> bool:
        """Whether so many members have promised that a life may begin (rule 7)."""
        promised = {each.copy for each in self._answers()} - self._lost
        if not self._row.is_open:
            promised.discard(self.own_id)
        is_own = self.own_id in promised and self.own_id in copies.members
        if copies.confirm == 1 and is_own:
            return True
        wanted = max(copies.start_quorum, min(copies.confirm, self._whole(copies)))
        return copies.count(promised) >= wanted

    def _evaluate(self, now: float) -> list[PartRequest]:
        """Decide whether enough copies have answered, and what follows."""
        has_begun = _newest_life(self._row.starts) == self.life
        if not self._is_promised or has_begun or self.state in {"fetching", "complete"}:
            return []
        sets = self._sets()
        silent = [name for name, peer in self._peers.items() if peer.answer is None]
        if self._confirmed_life() == NO_LIFE and any(name in self._keepers for name in silent):
            # Rule 8: nothing is known to be confirmed. All keepers must have answered.
            self._wait_until = None
            return []
        if not sets and silent:
            return []
        if not sets:
            return self._complete(now)
        if not all(map(self._has_quorum, sets)):
            self._wait_until = None
            return []
        if silent and self._wait_until is None:
            self._wait_until = now + self._options.ask_again_s
        if silent and now < (self._wait_until or 0.0):
            return []
        self._wait_until = None
        members = {member for copies in sets for member in copies.members} - self._lost
        found = [each for each in self._answers() if each.copy in members and not each.is_empty]
        best = max(found, key=_end, default=self._own_answer())
        # Any copy that ends there will do; only one with all rows can restore a lost disk.
        best = next((each for each in found if each.end == best.end and each.has_rows), best)
        if self._row.is_open and self._own_answer().end == best.end:
            return self._complete(now)
        if self.is_leading:
            return [Restart(f"another writer has added records to stream {self._name!r}")]
        return self._fetch(now, best)

    def _complete(self, now: float) -> list[PartRequest]:
        """This log has everything that may be confirmed (rule 9)."""
        self._older_sets = self._sets()
        self._needs_all = self._confirmed_life() == NO_LIFE
        if self.is_leading:
            return self.begin()
        del now
        self.state = "complete"
        return []

    def _fetch(self, now: float, best: LifeAnswer) -> list[PartRequest]:
        """Fetch what this log lacks from the best copy (rule 9)."""
        why = obstacle(self._row, self._last, best)
        if why:
            return [Note("error", why)]
        self.state = "fetching"
        again_s = self._options.ask_again_s
        where = (self._name, self.life, best, self._row, self._last, again_s)
        self.fetch = StreamFetch(*where, self._sync)
        return self.fetch.begin(now, self._catalog_keys)

    # -- beginning --------------------------------------------------------------------------------

    def begin(self) -> list[PartRequest]:
        """Begin the life: its start goes to disk, then its record is appended (rule 10)."""
        start = LifeStart(self._last + 1, self.life, self._planned or self._next_set())
        earlier = [each for each in self._row.starts if each.tick <= self._last]
        starts = pruned([*earlier, start], self._row.first)
        self._row = replace(self._row, is_open=True, starts=starts)
        # Others were asked for what they know of a new stream, and get no copy.
        needed = {*self._keepers, *_brokers_of((start.copies, *self._older_sets))}
        self._peers = {name: peer for name, peer in self._peers.items() if name in needed}
        if not self.is_leading:
            self.state = "beginning"
        return self._put_row("start")

    def _next_set(self) -> CopySet:
        """The copy set that the next life begins with (rules 8 and 16)."""
        options, copies, peers = self._options, self.copies, self._peers
        if copies is None:
            founders = [peers[keeper].copy for keeper in self._keepers] if not self._last else []
            # A stream that had no copies yet begins alone, and its copies are filled.
            members = (self.own_id, *(copy for copy in founders if copy is not None))
            return CopySet(members, min(options.confirm, len(members)))
        wanted = [self.own_id]
        for keeper in self._keepers:
            member, peer = copies.of(keeper), peers[keeper]
            if member is not None and member not in self._lost:
                wanted.append(member)
            elif peer.copy is not None and self._is_filled(peer):
                wanted.append(peer.copy)
        brokers = {copy.broker for copy in wanted}
        # Lost and unwanted copies keep their place until others take it.
        rest = [member for member in copies.members if member.broker not in brokers]
        rest.sort(key=self._lost.__contains__)
        wanted += rest[: max(options.copies - len(wanted), 0)]
        return CopySet(tuple(wanted), min(options.confirm, len(wanted)))

    def _is_filled(self, peer: Peer) -> bool:
        """Whether a copy has everything that is confirmed, and the first record of this life."""
        has_rows = peer.rows_at is None
        return has_rows and 0 < max(self.confirmed, self._life_tick) <= peer.acked

    # -- records ----------------------------------------------------------------------------------

    def appended(self, tick: int, record: bytes) -> None:
        """The broker appended a record to its own log."""
        assert tick == self._last + 1, (tick, self._last)
        self._last = tick
        self._recent.append(record)

    def beginning_put(self, value: bytes) -> None:
        """The broker put the row about its deleted ticks."""
        self._beginning = value

    def deleted(self, tick: int) -> None:
        """The broker deletes its records up to this tick."""
        self._row = replace(self._row, first=max(self._row.first, tick + 1))

    def flush(self, now: float) -> list[PartRequest]:
        """Send the copies what they lack. Called at the end of each step of the broker."""
        requests: list[PartRequest] = []
        if self._life_tick:
            for broker, peer in self._peers.items():
                if peer.answer is not None:
                    requests += self._send(now, broker, peer)
        return requests

    def _prepare(self, now: float, broker: str, peer: Peer) -> list[PartRequest]:
        """A copy has promised: find where to continue, and send."""
        answer, oldest = peer.answer, self._row.first
        assert answer is not None
        same = common_end(self._row.starts, self._last, answer.starts, answer.last)
        if answer.is_empty or same + 1 < max(oldest, answer.first):
            # It begins anew. What it lacks was confirmed without it.
            peer.continue_at(oldest, needs_rows=self._needs_rows)
            return [self._probe(now, broker, peer), *self._send(now, broker, peer)]
        peer.continue_at(same + 1, needs_rows=not answer.has_rows)
        return self._send(now, broker, peer) or [self._probe(now, broker, peer)]

    def _probe(self, now: float, broker: str, peer: Peer) -> PartRequest:
        """A frame without records: it asks up to where those of the copy are the stream's."""
        frame = self._frame(now, broker, peer, [])
        peer.expect(now + 2 * self._options.ask_again_s)
        return frame

    @property
    def _needs_rows(self) -> bool:
        """Whether the records in the log do not carry all rows: older ones are deleted, or are from
        before the stream had copies."""
        starts = self._row.starts
        return self._row.first > 1 or not starts or starts[0].tick > 1

    def _send(self, now: float, broker: str, peer: Peer) -> list[PartRequest]:
        requests: list[PartRequest] = []
        if peer.rows_at is not None:
            return self._read_rows(peer)
        while peer.next <= self._last and not peer.reading and peer.window_bytes < WINDOW_BYTES:
            if peer.next < self._row.first:
                peer.continue_at(self._row.first)
            elif peer.next < self._recent.first:
                requests.append(self._read(peer))
            else:
                records = self._recent.portion(peer.next)
                requests.append(self._frame(now, broker, peer, records))
        if self.confirmed > peer.told and peer.tell_at is None:
            peer.tell_later(now + _TELL_AFTER_S)
        return requests

    def _read_rows(self, peer: Peer) -> list[PartRequest]:
        """Read the next page of rows for a new copy, unless one is read or on its way."""
        if peer.reading or peer.page_is_due:
            return []
        assert peer.rows_at is not None
        table, after = peer.rows_at
        self._request += 1
        peer.read(self._request)
        return [ReadRows(self._request, REPLICATED_TABLES[table], "", after, FRAME_BYTES)]

    def rows_read(self, now: float, read: RowsRead) -> list[PartRequest]:
        """Rows of the own catalog were read, for a new copy."""
        for broker, peer in self._peers.items():
            if peer.reading != read.request:
                continue
            peer.read(0)
            if peer.answer is None or peer.rows_at is None or not self._life_tick:
                return []
            if read.is_damaged:
                raise LocalError("the catalog has rows that cannot be read: no copy can be made")
            number = peer.rows_at[0]
            table = REPLICATED_TABLES[number]
            is_last = read.is_last and number == len(REPLICATED_TABLES) - 1
            following = (number + 1, "") if read.is_last else (number, read.rows[-1][0])
            rows = [(table, key, value) for key, value in read.rows]
            again_at = now + 4 * self._options.ask_again_s
            page = peer.send_page(following, again_at, is_last=is_last)
            frame = KeepRows(self._name, self.life, peer.answer.copy, rows, page, is_last)
            return [CarryTo(broker, frame)]
        return []

    def _rows_kept(self, now: float, source: str, kept: RowsKept) -> list[PartRequest]:
        peer = self._peers[source]
        if kept.life != self.life or peer.copy != kept.copy or kept.page != peer.page:
            return []
        peer.page_kept()
        return self._send(now, source, peer)

    def _read(self, peer: Peer) -> PartRequest:
        self._request += 1
        peer.read(self._request)
        last = min(peer.next + FRAME_TICKS, self._recent.first) - 1
        return Read(self._request, peer.next, last, FRAME_BYTES)

    def _frame(self, now: float, broker: str, peer: Peer, records: list[bytes]) -> PartRequest:
        assert peer.copy is not None
        first = peer.next
        last = first + len(records) - 1
        starts = [start for start in self._row.starts if start.tick <= last]
        frame = KeepTicks(
            self._name,
            self.life,
            peer.copy,
            pruned(starts, first),
            first,
            records,
            self.confirmed,
            self._row.first,
            self._beginning,
            peer.rows_at is not None,
        )
        size = sum(map(len, records)) + _RECORD_OVERHEAD * len(records)
        peer.sent(now, last, size, self.confirmed, 2 * self._options.ask_again_s)
        return CarryTo(broker, frame)

    def log_read(self, now: float, read: LogRead) -> list[PartRequest]:
        """Records of the own log were read, for a copy that is behind."""
        for broker, peer in self._peers.items():
            if peer.reading == read.request:
                peer.read(0)
                if not self._life_tick or peer.answer is None or read.first != peer.next:
                    return []
                if read.records and peer.next >= self._row.first:
                    sent = self._frame(now, broker, peer, list(read.records))
                    return [sent, *self._send(now, broker, peer)]
                return self._send(now, broker, peer) if peer.next < self._row.first else []
        return []

    # -- confirming -------------------------------------------------------------------------------

    def _kept(self, now: float, source: str, kept: TicksKept) -> list[PartRequest]:
        peer = self._peers[source]
        if kept.life != self.life or peer.copy != kept.copy or not self._life_tick:
            return []
        if kept.is_lacking:
            peer.lacks(now, self._options.ask_again_s)
            return self._ask_due(now)
        if kept.tick > self._last:
            raise RemoteError(f"{source!r} acknowledges tick {kept.tick}, which does not exist")
        peer.has_confirmed(kept.confirmed)
        peer.kept(now, kept.life, kept.tick, 2 * self._options.ask_again_s)
        return self._look(now)

    def own_synced(self, now: float, tick: int) -> list[PartRequest]:
        """The own log is on disk up to this tick."""
        self._own_synced = max(self._own_synced, tick)
        self._recent.trim(self._own_synced)
        return self._look(now)

    def _look(self, now: float) -> list[PartRequest]:
        """Find what is confirmed now (rule 11), and whether the copy set can change."""
        copies = self.copies
        if not self._life_tick or copies is None:
            return []
        tick = min(self._tick_at(copies, copies.confirm), self._own_synced)
        requests: list[PartRequest] = []
        if tick >= self._life_tick and all(map(self._knows_life, (copies, *self._older_sets))):
            self.confirmed = max(self.confirmed, tick)
            if self._row.confirmed < self._life_tick:
                # From now on, older copy sets do not matter.
                self._row = replace(self._row, confirmed=tick)
                requests = self._put_row("confirmed")
                for peer in self._peers.values():
                    peer.tell_later(now)
            self._older_sets, self._needs_all = [], False
            self.state = "leading"
        if _is_same_set(self._next_set(), copies):
            return requests + self._forget_unwanted(copies)
        return requests + self._ask_for(now, self._life(self.life.number + 1))

    def _forget_unwanted(self, copies: CopySet) -> list[PartRequest]:
        """Delete the copies of brokers that neither have nor should have one that counts.

        Not before enough members know on disk that this life is confirmed: until then the older
        set, which may need these copies, could bind another start."""
        if not self.is_settled or self._stored_confirmed < self._life_tick:
            return []
        knowing = {self.own_id}
        for peer in self._peers.values():
            if peer.copy is not None and peer.confirmed >= self._life_tick:
                knowing.add(peer.copy)
        if copies.count(knowing) < copies.start_quorum:
            return []
        wanted = {*self._keepers, *(member.broker for member in copies.members)}
        requests: list[PartRequest] = []
        for broker, peer in list(self._peers.items()):
            if broker not in wanted and peer.answer is not None:
                requests.append(
                    CarryTo(broker, ForgetCopy(self._name, self.life, peer.answer.copy))
                )
                del self._peers[broker]
        return requests

    def _knows_life(self, copies: CopySet) -> bool:
        """Whether enough members have the first record of this life (rule 11)."""
        if not self._older_sets and not self._needs_all:
            return True
        whole = self._whole(copies)
        wanted = whole if self._needs_all else min(copies.confirm, whole)
        return self._tick_at(copies, wanted) >= self._life_tick

    def _tick_at(self, copies: CopySet, count: int) -> int:
        """The tick that so many members have."""
        if count <= 0:
            return self._last
        return sorted(map(self._acked, copies.members), reverse=True)[count - 1]

    def _acked(self, member: CopyId) -> int:
        if member == self.own_id:
            return self._own_synced
        peer = self._peers.get(member.broker)
        return peer.acked if peer is not None and peer.copy == member else 0

    # -- messages, disk and time ------------------------------------------------------------------

    def carried(self, now: float, source: str, content: ForWriter) -> list[PartRequest]:
        """Process a message of a copy; `RemoteError` if it is invalid."""
        if content.stream != self._name:
            raise RemoteError(f"{source!r} has no copy of stream {content.stream!r}")
        if source not in self._peers:
            # Its copy is not wanted any more.
            return []
        if isinstance(content, LifeAnswer):
            return self._answered(now, source, content)
        if isinstance(content, TicksKept):
            return self._kept(now, source, content)
        if isinstance(content, RowsKept):
            return self._rows_kept(now, source, content)
        fetch = self.fetch
        if fetch is None or fetch.source.copy.broker != source:
            return []
        return (
            fetch.rows(now, content) if isinstance(content, FetchedRows) else fetch.ticks(content)
        )

    def synced(self, now: float, ticket: int) -> list[PartRequest]:
        """What was put before this ticket is on disk."""
        purpose = self._purposes.pop(ticket)
        if purpose in {"promise", "start"} and ticket != self._awaited_ticket:
            # Another life is asked for by now.
            return []
        if purpose == "promise":
            self._is_promised = True
            return self._evaluate(now)
        if purpose == "start":
            starts = self._row.starts
            self._life_tick = starts[-1].tick
            self.lives_begun += 1
            requests: list[PartRequest] = [AppendLife(self.life, starts[-1].copies)]
            for broker, peer in self._peers.items():
                if peer.answer is not None:
                    requests += self._prepare(now, broker, peer)
            return requests
        if purpose == "confirmed":
            self._stored_confirmed = self._row.confirmed
            return []
        assert self.fetch is not None
        return self.fetch.synced(now, purpose)

    def next_deadline(self) -> float | None:
        if self.fetch is not None:
            return self.fetch.again_at
        peers = self._peers.values()
        return earliest(
            self._wait_until,
            self._outranked_until if self._higher > self.life else None,
            *(peer.again_at for peer in peers),
            *(peer.tell_at for peer in peers if self._life_tick),
        )

    def time_passed(self, now: float) -> list[PartRequest]:
        if self.fetch is not None:
            return self.fetch.time_passed(now)
        if self._higher > self.life and self._outranked_until <= now:
            return self._outranked(now, self._higher)
        requests = self._ask_due(now)
        if self._wait_until is not None and self._wait_until <= now:
            requests += self._evaluate(now)
        for broker, peer in self._peers.items():
            if self._life_tick and peer.tell_at is not None and peer.tell_at <= now:
                if peer.answer is None or peer.reading:
                    peer.tell_later(now + _TELL_AFTER_S)
                else:
                    requests.append(self._frame(now, broker, peer, []))
        return requests


def _life_of(start: LifeStart) -> Life:
    return start.life


def _newest_life(starts: Sequence[LifeStart]) -> Life:
    return starts[-1].life if starts else NO_LIFE


def _end(answer: LifeAnswer) -> tuple[Life, int]:
    return answer.end


def _is_same_set(one: CopySet, other: CopySet) -> bool:
    return set(one.members) == set(other.members) and one.confirm == other.confirm


def _brokers_of(sets: Iterable[CopySet]) -> list[str]:
    return [member.broker for copies in sets for member in copies.members]
