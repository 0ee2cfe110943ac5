"""Replication reports: the copies of a broker's stream and the copies that it keeps, for operators.

A report is a snapshot between two steps; taking it changes nothing. It reads the private state of
the writer, whose rules (`writer`, ADR 0030) say what it means.

A copy counts as *present* if it is a member of the copy set, is not lost, and has answered. A
stream with fewer present copies than configured is *below its number*: nothing confirmed is lost
yet, but fewer failures may follow.

Stateless.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from anabranch.core.replication.keeper import KeptCopy
from anabranch.core.replication.peers import Peer
from anabranch.core.replication.replication import Replication
from anabranch.core.replication.writer import State, StreamWriter
from anabranch.model.replication import CopyId, CopySet, LifeStart

#: Kept copies that are reported one by one.
KEPT_MAX = 1_000

#: `member`: it counts. `learner`: it is being filled, and does not count yet. `lost`: its disk was
#: lost or rolled back. `silent`: it was asked and has not answered.
CopyState = Literal["member", "learner", "lost", "silent"]


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """One copy of this broker's stream."""

    broker: str
    state: CopyState
    #: Whether the network file wants a copy here.
    is_configured: bool
    #: The number of the first life that counted on this copy, as far as the log knows; 0: none.
    since: int = 0
    #: The newest tick that it has acknowledged, and how many ticks it is behind the own log; None
    #: until it has answered this process.
    acked: int | None
    lag: int | None


class FetchReport(msgspec.Struct, frozen=True, kw_only=True):
    """A stream that is being fetched from a copy, because the own disk lacks it."""

    #: The broker of the copy.
    source: str
    #: Ticks fetched so far, and all that have to be.
    done: int
    total: int


class OwnCopiesReport(msgspec.Struct, frozen=True, kw_only=True):
    """The copies of this broker's stream."""

    state: State
    #: What the broker waits for before it serves clients; "" if it does not.
    waits_for: str
    #: The number of the life that is asked for or has begun.
    life: int
    #: Copies in the network file, and those that are present.
    configured: int
    present: int
    #: Copies that must have synced a tick before it is confirmed.
    confirm: int
    #: The newest confirmed tick, and the newest tick.
    confirmed: int
    newest: int
    #: This broker's copy comes first.
    copies: tuple[CopyReport, ...]
    #: None unless `state` is `fetching`.
    fetching: FetchReport | None = None
    #: Lives begun by this process, and ticks fetched.
    lives_begun: int = 0
    ticks_fetched: int = 0

    @property
    def is_below(self) -> bool:
        """Whether the stream has fewer copies than it should."""
        return self.present < self.configured

    @property
    def unconfirmed(self) -> int:
        """Ticks that wait for copies."""
        return max(self.newest - self.confirmed, 0)


class KeptCopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of another broker's stream, which this broker keeps."""

    stream: str
    #: Its oldest and its newest tick. It is empty if `last` is `first` − 1.
    first: int
    last: int
    #: The newest tick that it knows to be confirmed.
    confirmed: int
    #: The number of the life that it has promised.
    promised: int
    #: Whether it is being searched for catalog rows after a start.
    is_examining: bool
    #: Whether the disk has no space for it.
    is_full: bool

    @property
    def ticks(self) -> int:
        return self.last - self.first + 1


class ReplicationReport(msgspec.Struct, frozen=True, kw_only=True):
    """All copies that a broker has to do with."""

    #: None if the stream of this broker is not replicated, or it has none.
    own: OwnCopiesReport | None = None
    #: The first `KEPT_MAX` copies that this broker keeps, the number of all, and of their ticks.
    kept: tuple[KeptCopyReport, ...] = ()
    kept_copies: int = 0
    kept_ticks: int = 0
    #: Copies for which the disk has no space.
    kept_full: int = 0


def replication_report(replication: Replication) -> ReplicationReport:
    writer = replication.writer
    kept = [_kept(copy) for copy in replication.keeper.copies]
    kept.sort(key=_stream)
    return ReplicationReport(
        own=None if writer is None else _own(writer),
        kept=tuple(kept[:KEPT_MAX]),
        kept_copies=len(kept),
        kept_ticks=sum(each.ticks for each in kept),
        kept_full=sum(each.is_full for each in kept),
    )


def waits_for(writer: StreamWriter) -> str:
    """What a broker waits for before it serves clients; "" if it does not wait."""
    if writer.is_leading:
        return ""
    if (fetching := _fetching(writer)) is not None:
        return (
            f"it fetches its stream from the copy at {fetching.source!r}"
            f" ({fetching.done:,} of {fetching.total:,} ticks)"
        )
    if writer.state == "complete":
        return "it asks its neighbours what they know of its stream"
    if writer.state == "asking" and not writer._is_promised:
        return "it waits for its disk"
    peers = _relevant(writer, _newest(writer))
    if writer.state == "beginning":
        late = [name for name, peer in peers.items() if peer.acked < writer._life_tick]
        return f"it waits until copies of its stream at {_named(late)} have the first record"
    silent = [name for name, peer in peers.items() if peer.is_silent]
    if silent:
        return f"it waits for copies of its stream at {_named(silent)}"
    return "too many copies of its stream are lost to know where it ends"


def _newest(writer: StreamWriter) -> Sequence[LifeStart]:
    """The lives of the stream, as the copy knows them whose newest life is the highest."""
    return max((each.starts for each in writer._answers()), key=_last_life)


def _last_life(starts: Sequence[LifeStart]) -> tuple[int, str]:
    return (starts[-1].life.number, starts[-1].life.broker) if starts else (0, "")


def _relevant(writer: StreamWriter, starts: Sequence[LifeStart]) -> dict[str, Peer]:
    """The brokers that have a copy that counts, or should have one."""
    members = {member.broker for member in starts[-1].copies.members} if starts else set()
    return {
        name: peer
        for name, peer in writer.peers.items()
        if name in members or name in writer._keepers
    }


# -- the own stream --------------------------------------------------------------------------------


def _own(writer: StreamWriter) -> OwnCopiesReport:
    starts = _newest(writer)
    copies = starts[-1].copies if starts else None
    own = _own_copy(writer, starts)
    relevant = _relevant(writer, starts)
    # Those of the network file come first, in their order.
    names = [name for name in writer._keepers if name in relevant]
    names += sorted(relevant.keys() - set(names))
    found = (own, *(_copy(writer, starts, name, relevant[name]) for name in names))
    return OwnCopiesReport(
        state=writer.state,
        waits_for=waits_for(writer),
        life=writer.life.number,
        configured=writer._options.copies,
        present=sum(each.state == "member" for each in found),
        confirm=writer._options.confirm if copies is None else copies.confirm,
        confirmed=max(writer.confirmed, *(each.confirmed for each in writer._answers())),
        newest=writer.last,
        copies=found,
        fetching=_fetching(writer),
        lives_begun=writer.lives_begun,
        ticks_fetched=0 if writer.fetch is None else writer.fetch.fetched,
    )


def _own_copy(writer: StreamWriter, starts: Sequence[LifeStart]) -> CopyReport:
    known = starts[-1].copies.of(writer.own_id.broker) if starts else None
    is_here = known == writer.own_id and writer._row.is_open
    state: CopyState = "member" if is_here else "learner"
    if known is not None and not writer._row.is_open and writer.state != "fetching":
        state = "lost"
    return CopyReport(
        broker=writer.own_id.broker,
        state=state,
        is_configured=True,
        since=_since(starts, writer.own_id),
        acked=writer._own_synced,
        lag=max(writer.last - writer._own_synced, 0),
    )


def _copy(writer: StreamWriter, starts: Sequence[LifeStart], name: str, peer: Peer) -> CopyReport:
    acked: int | None = peer.acked
    if peer.answer is not None and not writer._life_tick:
        # Before a life has begun, nothing is acknowledged in it: its answer says what it has.
        acked = max(peer.acked, peer.answer.last)
    elif peer.copy is None:
        acked = None
    return CopyReport(
        broker=name,
        state=_state(writer, starts[-1].copies if starts else None, name, peer),
        is_configured=name in writer._keepers,
        since=0 if peer.copy is None else _since(starts, peer.copy),
        acked=acked,
        lag=None if acked is None else max(writer.last - acked, 0),
    )


def _state(writer: StreamWriter, copies: CopySet | None, name: str, peer: Peer) -> CopyState:
    member = None if copies is None else copies.of(name)
    if peer.answer is None and member is not None and member in writer._lost:
        return "lost"
    if peer.is_silent:
        return "silent"
    return "member" if member is not None and member == peer.copy else "learner"


def _since(starts: Sequence[LifeStart], copy: CopyId) -> int:
    """The number of the first of the newest lives that count on a copy without a break."""
    since = 0
    for start in reversed(starts):
        if copy not in start.copies.members:
            break
        since = start.life.number
    return since


def _fetching(writer: StreamWriter) -> FetchReport | None:
    fetch = writer.fetch
    if fetch is None:
        return None
    best = fetch.source
    return FetchReport(
        source=best.copy.broker, done=fetch.fetched, total=best.last + 1 - fetch.first
    )


def _named(brokers: Iterable[str]) -> str:
    names = [repr(name) for name in brokers]
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


# -- kept copies -----------------------------------------------------------------------------------


def _kept(copy: KeptCopy) -> KeptCopyReport:
    return KeptCopyReport(
        stream=copy.stream,
        first=copy.row.first,
        last=copy.synced,
        confirmed=copy.confirmed,
        promised=copy.row.promised.number,
        is_examining=bool(copy.examining),
        is_full=copy.is_full,
    )


def _stream(copy: KeptCopyReport) -> str:
    return copy.stream
