"""The door of the core: what goes into a broker, and what comes out.

    effects = broker.handle(now, stimulus)
    deadline = broker.next_deadline()

A broker never acts; it says what is to be done. Whoever drives it (a process with sockets and a
disk, or the simulator) performs the effects *in order* and reports back with stimuli. Rules:

1. Same state, same `now`, same stimulus: same effects. No clock, no randomness, no I/O in here.
2. `now` is in seconds of the broker's own clock, which is set by the machine's when a life begins
   and never goes back within it; it may jump forward. Between lives anything may happen to it.
3. What must survive a crash is an `Append` or a `Put`, followed by a `Sync` with a number. When
   everything before that `Sync` is on disk, and only then, the driver says `Synced(number)`.
   Numbers grow; `Synced(5)` includes everything up to 5. A crash keeps any beginning of the
   unsynced appends and, independently, any beginning of the unsynced puts.
4. A confirmation that promises durability is an effect of `Synced`.
5. Frames to one link or session arrive in order or not at all: when a link goes down, what was on
   the way is lost. `LinkUp` follows `LinkDown` before anything arrives again.
6. A frame that breaks the protocol costs its sender the link or session: the broker answers with
   `CutLink` or `CutClient` and forgets whatever else the frame would have caused. A client frame
   is taken whole or not at all (the driver may hand a large one over in parts). Carried messages
   are their sender's fault, not the neighbour's: they are dropped with a note.
7. What one stimulus causes may take several calls (`broker`): effects come in order all the same,
   and `next_deadline` is now until all is done.
"""

from collections.abc import Sequence

import msgspec

from anabranch.model.client_frames import AnyClientFrame
from anabranch.model.frames import LinkFrame


class Stimulus(msgspec.Struct, frozen=True, gc=False):
    """Something that happened."""


class Started(Stimulus, frozen=True):
    """The first stimulus of a life, after `recover`."""


class LinkUp(Stimulus, frozen=True):
    """There is a connection to this broker now."""

    peer: str


class LinkDown(Stimulus, frozen=True):
    """There is none any more."""

    peer: str


class LinkFull(Stimulus, frozen=True):
    """More is waiting to be sent on this link than its bound; or not any more."""

    peer: str
    full: bool


class LinkLoad(Stimulus, frozen=True):
    """Bytes that were given to a link, and that went out, since the last report; and those that
    wait. Said every now and then while anything does, or not at all."""

    peer: str
    given: int
    gone: int
    waiting: int


class BrokerLoad(Stimulus, frozen=True):
    """How busy the broker was for so many seconds: events that came, how long they took all
    together, and how long one waited before that. Said every now and then, or not at all."""

    for_s: float
    events: int
    busy_s: float
    waited_s: float


class FrameReceived(Stimulus, frozen=True):
    """A frame came over a link."""

    peer: str
    frame: LinkFrame


class ClientCame(Stimulus, frozen=True):
    """A client connected; the driver chooses the session's number, never twice in a life."""

    session: int
    #: The host it connects from, for quotas; "" if that is not known.
    host: str = ""


class ClientLeft(Stimulus, frozen=True):
    """A session is over."""

    session: int


class ClientFull(Stimulus, frozen=True):
    """More is waiting for this client than its bound; or not any more."""

    session: int
    full: bool


class ClientFrameReceived(Stimulus, frozen=True):
    """A frame came from a client."""

    session: int
    frame: AnyClientFrame


class Synced(Stimulus, frozen=True):
    """Everything up to this `Sync` is on disk."""

    number: int


class LogRead(Stimulus, frozen=True):
    """What a `Read` asked for: records from its first tick on, without a gap."""

    request: int
    first: int
    records: tuple[bytes, ...]


class LogFull(Stimulus, frozen=True):
    """There is no room for further appends; or there is again."""

    full: bool


class Depart(Stimulus, frozen=True):
    """The broker is to leave the network: see `departing`."""


class MoveJoinPoint(Stimulus, frozen=True):
    """A pattern is to be detected at another broker, if it is detected here; see `points`."""

    pattern: str
    target: str


class TimePassed(Stimulus, frozen=True):
    """The deadline has come."""


class Effect(msgspec.Struct, frozen=True, gc=False):
    """Something to be done."""


class Send(Effect, frozen=True):
    """Send a frame over a link; lost if the link is down."""

    peer: str
    frame: LinkFrame


class SendClient(Effect, frozen=True):
    """Send a frame to a client; lost if the session is over."""

    session: int
    frame: AnyClientFrame


class CutLink(Effect, frozen=True):
    """Close a link; the driver reports `LinkDown` and may connect again."""

    peer: str
    reason: str


class CutClient(Effect, frozen=True):
    """Close a session; the driver reports `ClientLeft`."""

    session: int
    reason: str


class Append(Effect, frozen=True):
    """Add a record to the log of this broker's stream. Ticks are dense."""

    tick: int
    record: bytes


class Put(Effect, frozen=True):
    """Remember a value in the catalog; None forgets it."""

    table: str
    key: str
    value: bytes | None


class Sync(Effect, frozen=True):
    """Make everything appended and put so far durable, then say `Synced(number)`."""

    number: int


class Read(Effect, frozen=True):
    """Read records of the log, from `first` up to `last` or fewer; `LogRead` answers."""

    request: int
    first: int
    last: int
    bytes_max: int


class Forget(Effect, frozen=True):
    """Records up to this tick may be deleted."""

    tick: int


class Note(Effect, frozen=True):
    """Something worth a line in the log of the process."""

    level: str
    text: str


Effects = list[Effect]


class DamagedRecord(msgspec.Struct, frozen=True):
    """A record of the catalog that cannot be read, and why."""

    table: str
    key: str
    value: bytes
    reason: str


class SetAsideRecord(msgspec.Struct, frozen=True):
    """A damaged record that a start sets aside (`catalog_recovery`)."""

    record: DamagedRecord
    #: What takes its place; None: nothing does.
    instead: bytes | None


class Recovered(msgspec.Struct, frozen=True):
    """What a broker finds when it starts: all that was synced, and perhaps some of the rest."""

    #: table → key → value
    catalog: dict[str, dict[str, bytes]] = {}
    #: The oldest tick in the log.
    first_tick: int = 1
    #: All records from `records_first` on; at least those that `ledger.first_needed` asks for.
    records: Sequence[bytes] = ()
    #: 0: the same as `first_tick`.
    records_first: int = 0
    #: Rows that the store could read but not believe; they are not in `catalog`.
    damaged: tuple[DamagedRecord, ...] = ()
    #: What reading it finds (`catalog_recovery`): records to be set aside, and rows that have to be
    #: put before these go. Filled while a broker is made.
    aside: list[SetAsideRecord] = msgspec.field(default_factory=list)
    repairs: list[Put] = msgspec.field(default_factory=list)

    @property
    def last_tick(self) -> int:
        """The newest tick in the log."""
        return (self.records_first or self.first_tick) + len(self.records) - 1


# The first of several deadlines, some of which there may not be.
#
# Asked after every stimulus, of every part of a broker; so it is a plain loop.


def earliest(*times: float | None) -> float | None:
    """The least of them; None if there is none."""
    first: float | None = None
    for each in times:
        if each is not None and (first is None or each < first):
            first = each
    return first
