"""The interface of the broker core: stimuli in, effects out.

    effects = broker.handle(now, stimulus)
    deadline = broker.next_deadline()

A broker performs no I/O. It returns effects, and its driver (a process with sockets and a disk, or
the simulator) performs them *in order* and reports the results as stimuli.

Rules

1. Deterministic. The same state, `now` and stimulus give the same effects. The core uses no clock,
   no randomness and no I/O.
2. Time. `now` is in seconds of the broker's clock. It is set from the machine's clock when a life
   begins and never goes back during that life; it may jump forward. Between lives it may change in
   any way.
3. Durability. State that must survive a crash is an `Append` or a `Put`, followed by a numbered
   `Sync`. The driver sends `Synced(number)` when everything before that `Sync` is on disk, and
   never earlier. Numbers grow; `Synced(5)` covers every number up to 5. A crash keeps any prefix of
   the unsynced appends and, independently, any prefix of the unsynced puts.
4. Confirmations. A confirmation that promises durability is an effect of `Synced`.
5. Connections. Frames to one link or session arrive in order or not at all. When a link goes down,
   frames in flight are lost. After `LinkDown`, nothing arrives before the next `LinkUp`.
6. Protocol errors. A peer whose frame violates the protocol loses its link or session: the broker
   returns `CutLink` or `CutClient` and discards everything else that the frame would have caused. A
   client frame is accepted completely or not at all (the driver may pass a large one in parts). The
   sender of an invalid carried message is to blame, not the neighbour that forwarded it; such a
   message is dropped with a note.
7. Bounded steps. One stimulus may take several calls (`broker`). Effects keep their order, and
   `next_deadline` is now until the work is done.
"""

from collections.abc import Sequence

import msgspec

from anabranch.model.client_frames import AnyClientFrame
from anabranch.model.frames import LinkFrame


class Stimulus(msgspec.Struct, frozen=True, gc=False):
    """An input of the broker: something that happened."""


class Started(Stimulus, frozen=True):
    """The first stimulus of a life, after recovery."""


class LinkUp(Stimulus, frozen=True):
    """The link to this neighbour is connected."""

    peer: str


class LinkDown(Stimulus, frozen=True):
    """The link to this neighbour is disconnected."""

    peer: str


class LinkFull(Stimulus, frozen=True):
    """The send queue of this link exceeded its limit, or drained below it."""

    peer: str
    full: bool


class LinkLoad(Stimulus, frozen=True):
    """Bytes queued and sent on a link since the last report, and bytes still queued.

    The driver sends it occasionally while bytes are queued; it may also omit it."""

    peer: str
    offered_bytes: int
    sent_bytes: int
    queued_bytes: int


class BrokerLoad(Stimulus, frozen=True):
    """The load of the broker over `period_s` seconds: events processed, total processing time, and
    the queueing delay of an event. The driver sends it occasionally; it may also omit it."""

    period_s: float
    events: int
    busy_s: float
    queue_delay_s: float


class FrameReceived(Stimulus, frozen=True):
    """A frame arrived over a link."""

    peer: str
    frame: LinkFrame


class ClientConnected(Stimulus, frozen=True):
    """A client connected. The driver chooses the session number, which is unique in this life."""

    session: int
    #: The client's host, for quotas; "" if unknown.
    host: str = ""


class ClientDisconnected(Stimulus, frozen=True):
    """The session has ended."""

    session: int


class ClientFull(Stimulus, frozen=True):
    """The send queue of this client exceeded its limit, or drained below it."""

    session: int
    full: bool


class ClientFrameReceived(Stimulus, frozen=True):
    """A frame arrived from a client."""

    session: int
    frame: AnyClientFrame


class Synced(Stimulus, frozen=True):
    """Everything up to this `Sync` is on disk."""

    number: int


class LogRead(Stimulus, frozen=True):
    """The result of a `Read`: records from its first tick on, without a gap."""

    request: int
    first: int
    records: tuple[bytes, ...]


class LogFull(Stimulus, frozen=True):
    """The disk has no space for further appends, or has space again."""

    full: bool


class Depart(Stimulus, frozen=True):
    """The broker must leave the network (`client_services`)."""


#: The reason that clients of a departing broker receive.
DEPARTURE_REASON = "this broker is leaving the network; connect to another one"


class MoveJoinPoint(Stimulus, frozen=True):
    """Move a pattern's join point to another broker, if it is at this one (`join_points`)."""

    pattern: str
    target: str


class TimePassed(Stimulus, frozen=True):
    """The time of `next_deadline` has come."""


class Effect(msgspec.Struct, frozen=True, gc=False):
    """An output of the broker: something that the driver must do."""


class Send(Effect, frozen=True):
    """Send a frame over a link; dropped if the link is down."""

    peer: str
    frame: LinkFrame


class SendClient(Effect, frozen=True):
    """Send a frame to a client; dropped if the session has ended."""

    session: int
    frame: AnyClientFrame


class CutLink(Effect, frozen=True):
    """Close a link; the driver reports `LinkDown` and may reconnect."""

    peer: str
    reason: str


class CutClient(Effect, frozen=True):
    """Close a session; the driver reports `ClientDisconnected`."""

    session: int
    reason: str


class Append(Effect, frozen=True):
    """Append a record to the log of this broker's stream. Ticks are dense."""

    tick: int
    record: bytes


class Put(Effect, frozen=True):
    """Store a value in the catalog; None deletes it."""

    table: str
    key: str
    value: bytes | None


class Sync(Effect, frozen=True):
    """Make all earlier appends and puts durable, then report `Synced(number)`."""

    number: int


class Read(Effect, frozen=True):
    """Read log records from `first` up to at most `last`; `LogRead` returns them."""

    request: int
    first: int
    last: int
    bytes_max: int


class DeleteThrough(Effect, frozen=True):
    """Records up to this tick may be deleted."""

    tick: int


class Note(Effect, frozen=True):
    """A message for the log of the process."""

    level: str
    text: str


Effects = list[Effect]


class DamagedRecord(msgspec.Struct, frozen=True):
    """A catalog record that cannot be read, and why."""

    table: str
    key: str
    value: bytes
    reason: str


class SetAsideRecord(msgspec.Struct, frozen=True):
    """A damaged record that this start sets aside (`catalog_recovery`)."""

    record: DamagedRecord
    #: The value that replaces it; None deletes the row.
    instead: bytes | None


class Recovered(msgspec.Struct, frozen=True):
    """The state on disk at a start: everything synced, and possibly some unsynced writes."""

    #: table → key → value
    catalog: dict[str, dict[str, bytes]] = {}
    #: The oldest tick in the log.
    first_tick: int = 1
    #: All records from `records_first` on, which include those from `ledger.first_needed` on.
    records: Sequence[bytes] = ()
    #: 0: the same as `first_tick`.
    records_first: int = 0
    #: Rows that fail the store's checks; they are not in `catalog`.
    damaged: tuple[DamagedRecord, ...] = ()
    #: Output of reading the catalog (`catalog_recovery`): records to set aside, and rows to write
    #: before those are removed. Filled while the broker is constructed.
    aside: list[SetAsideRecord] = msgspec.field(default_factory=list)
    repairs: list[Put] = msgspec.field(default_factory=list)

    @property
    def last_tick(self) -> int:
        return (self.records_first or self.first_tick) + len(self.records) - 1


def earliest(*times: float | None) -> float | None:
    """The earliest of several optional deadlines; None if there is none.

    A plain loop, because it runs for every part of a broker after every stimulus."""
    first: float | None = None
    for time in times:
        if time is not None and (first is None or time < first):
            first = time
    return first
