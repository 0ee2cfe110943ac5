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
   the unsynced appends of each log and, independently, any prefix of the unsynced puts (and of the
   openings, cuts and drops of copies among them, rule 8).
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
8. Copies. Beside the log of its own stream, a broker may keep *copies* of other brokers' streams:
   one log for each, named by its stream. Wherever an effect or a stimulus has a field `stream`, ""
   is the own stream and anything else a copy.

   a. `OpenCopy` creates a copy, `DropCopy` deletes it with everything in it; afterwards it may be
      opened again, with any first tick. `CutCopy` deletes its newest records. The ticks of a copy
      are dense from its first tick on. Its records are those of the origin's log (`log_tail`), so
      that tools and repairs can read them.
   b. Openings, cuts, drops and puts are one sequence: a crash keeps a prefix of it. So a put that
      survives proves that the openings, cuts and drops before it survived too. An unsynced drop or
      cut happens completely or not at all. If a drop was followed by `OpenCopy` of the same stream,
      a crash leaves the old copy, no copy, or the new one. Appends survive only with the opening
      before them; they are otherwise independent of the puts. After a cut, the next append waits
      for `Synced`.
   c. A copy for which the disk has no space refuses appends instead of delaying them, because a
      sync that waited for it would delay confirmations of the own stream. `CopyFull` says so,
      before the `Synced` that would have covered them. `LogFull` is about the own stream only, for
      which some space is kept free of copies.
   d. A copy that lost confirmed records or was damaged does not prevent a start. It is not in
      `Recovered.copies` but in `Recovered.lost_copies`, at every start, until it is dropped or
      opened again.
   e. Rows of the table `copy_rows` whose keys begin with a stream and `SEPARATOR` belong to the
      copy of that stream. `DropCopy` and `OpenCopy` delete those that were put before.
   f. `DropCopy("")` and `OpenCopy("", first_tick)`, one directly after the other, replace the own
      log by a new one without records. In the sequence of rule b they are one member: a crash
      leaves the old log or the new one. Rows stay.
"""

from collections.abc import Mapping, Sequence

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


class LogRead(Stimulus, frozen=True, repr_omit_defaults=True):
    """The result of a `Read`: records from its first tick on, without a gap.

    Without records: the first tick was deleted or is not written yet, or the copy was dropped."""

    request: int
    first: int
    records: tuple[bytes, ...]
    stream: str = ""


class RowsRead(Stimulus, frozen=True):
    """The result of a `ReadRows`: keys and values. Fewer than all if `is_last` is false."""

    request: int
    rows: tuple[tuple[str, bytes], ...]
    is_last: bool
    #: Whether a row was changed after it was written, here or later; then there are no rows.
    is_damaged: bool = False


class LogFull(Stimulus, frozen=True):
    """The disk has no space for further appends to the own stream, or has space again."""

    full: bool


class CopyFull(Stimulus, frozen=True):
    """All appends to this copy after `last_tick`, up to this moment, were dropped, because the disk
    has no space for them.

    `last_tick` is the last one in the copy; its first tick − 1 if it is empty. Ticks up to there
    are as durable as the last `Synced` says. A `Synced` that covers dropped appends comes later
    than this, and does not concern them. The next append must be `last_tick` + 1; when to try is up
    to the core. If there is still no space then, this is reported again. It is never about a copy
    that was dropped meanwhile; so a `Synced` promises nothing about one."""

    stream: str
    last_tick: int


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


class Append(Effect, frozen=True, repr_omit_defaults=True):
    """Append a record to the log of this broker's stream, or to a copy that is open. Ticks are
    dense."""

    tick: int
    record: bytes
    stream: str = ""


class OpenCopy(Effect, frozen=True):
    """Create an empty copy of a stream; its first record will have this tick, 1 or more.

    It must not exist, unless as a lost one, which this replaces. For "", see rule 8f."""

    stream: str
    first_tick: int


class CutCopy(Effect, frozen=True):
    """Cut off the records of a copy after this tick, which the copy has or which is the one before
    its first. Never of the own log.

    A read that was requested earlier may still return records that are cut off."""

    stream: str
    last_tick: int


class DropCopy(Effect, frozen=True):
    """Delete a copy, everything in it, and its rows. It must exist, be it as a lost one. For "",
    see rule 8f."""

    stream: str


class Put(Effect, frozen=True):
    """Store a value in the catalog; None deletes it."""

    table: str
    key: str
    value: bytes | None


class Sync(Effect, frozen=True):
    """Make all earlier appends, puts, openings, cuts and drops durable, then report
    `Synced(number)`."""

    number: int


class Read(Effect, frozen=True, repr_omit_defaults=True):
    """Read log records from `first` up to at most `last`; `LogRead` returns them."""

    request: int
    first: int
    last: int
    bytes_max: int
    stream: str = ""


class ReadRows(Effect, frozen=True):
    """Read rows of a catalog table whose keys begin with `prefix` and follow `after`, in the order
    of their keys: about `bytes_max` bytes, at least one row if there is one. `RowsRead` returns
    them. Puts that are not synced may be missing."""

    request: int
    table: str
    prefix: str
    after: str
    bytes_max: int


class Restart(Effect, frozen=True):
    """End this life and begin the next one from the disk, with the same configuration. What is not
    synced may be lost, as in a crash. The next life begins after a short delay, and stimuli may
    still come before this one ends."""

    reason: str


class DeleteThrough(Effect, frozen=True, repr_omit_defaults=True):
    """Records up to this tick may be deleted; they are synced."""

    tick: int
    stream: str = ""


class Note(Effect, frozen=True):
    """A message for the log of the process."""

    level: str
    text: str


Effects = list[Effect]


#: The table of rows that belong to copies: stream SEPARATOR … → value.
COPY_ROWS = "copy_rows"
SEPARATOR = "\x1f"
#: Catalog tables that are not part of `Recovered.catalog`: they may be large, and are read by
#: `ReadRows` when they are needed. A damaged row of theirs is not in `Recovered.damaged`.
UNLOADED_TABLES = frozenset({COPY_ROWS})


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


class RecoveredCopy(msgspec.Struct, frozen=True):
    """A copy on disk at a start."""

    #: The oldest tick in it. If it is empty, the tick that its first record will have.
    first_tick: int
    #: `first_tick` − 1 if it is empty.
    last_tick: int


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
    #: Stream → its copy.
    copies: Mapping[str, RecoveredCopy] = {}
    #: Streams whose copies were damaged or are gone (rule 8d).
    lost_copies: tuple[str, ...] = ()

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
