"""Rollback detection: whether the log that an origin starts with is an old copy of its stream.

A log that was restored from a backup, or whose end was cut off, looks like any other. If its origin
continued with it, new events would get ticks that edges have already seen; edges would drop them as
duplicates although their publishers received confirmations. Nothing in the log shows that, but the
origin's neighbours know how far the stream had advanced.

    every broker    records the newest tick it has seen of each stream     `StreamWitness`
    greeting        reports that tick to the stream's broker               `Hello`
    an origin       appends nothing until its neighbours have reported     `RollbackInquiry`

Rules

1. A starting origin is *asking*: it appends no tick (event, mark or part of a batch) and refuses
   events temporarily. It accepts events when a neighbour that has seen the stream has greeted, and
   all others have too or `ask_again_s` has passed; or when `start_alone_after_s` has passed, with a
   warning. A neighbour that has seen nothing of a stream with ticks (a relay that lost its state)
   does not count. A broker without neighbours accepts events at once.
2. The origin is *rolled back* if a neighbour has seen a tick that this log never had, or the event
   of a tick that this log appended at another time. The first neighbour that greets in this life
   cannot have seen ticks of this life, so any tick beyond the start counts. The origin then refuses
   all events, confirms no pending ones, logs an error, and writes the verdict to the catalog: only
   `anabranch log renew` removes it.
3. An origin that continues alone records the tick after which it did (`alone`): its later ticks may
   replace lost ones. The row is removed when a neighbour greets without contradiction. Until the
   removal is on disk, the stream is not announced to neighbours (`is_alone_removal_pending`):
   otherwise a crash would restore the row, and the neighbours' knowledge would refute a good log.
4. A neighbour *vouches* for the log if it has seen the stream, and no tick beyond the start. An
   edge that is done with a nonexistent tick (`Done`) makes an origin rolled back only if no
   neighbour has vouched for it, and not in the first life of its disk. Otherwise the edge is wrong.
5. If the stream has copies (`core.replication`), these have answered before the inquiry begins,
   and the log has what they have: neighbours are waited for only briefly.
6. A witness only uses frames that the router has accepted. Clients cannot influence it.

State: a witness saves its knowledge at most once a second while it changes. Losing it is safe
insofar as other neighbours are asked, or none.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from anabranch.core.catalog_recovery import decoded, number_in, rows, set_aside
from anabranch.core.contract import Effect, Note, Put, Recovered
from anabranch.core.options import Options
from anabranch.model.frame_parts import Nanoseconds, Position
from anabranch.model.frames import Hello, Knowledge, LinkFrame, MarkIs
from anabranch.model.mesh_frames import Copies

#: Table of a witness: stream → knowledge of it.
HEARD = "heard"
#: Table of an origin's state of its log; its rows are below.
TABLE = "rollback"
ROLLED_BACK = "verdict"
ALONE = "alone"
#: The newest lost tick of a renewed log,
RENEWED = "renewed"
#: and the plan of a renewal in progress (`store.log_repair`).
RENEWING = "renewing"
_TICK_MAX = 1 << 62
#: A witness saves its knowledge at most this often.
WRITE_EVERY_S = 1.0

ASKING = "this broker has started and waits for its neighbours' knowledge of its stream; send again"

_encoder = msgspec.msgpack.Encoder()


class KnownStream(msgspec.Struct, array_like=True):
    """A broker's knowledge of another broker's stream."""

    #: The newest tick known to exist.
    newest: int = 0
    #: The newest tick whose event was seen, and the time of that tick.
    seen: int = 0
    seen_ns: int = 0


class RollbackVerdict(msgspec.Struct, frozen=True, array_like=True):
    """Why a log counts as rolled back."""

    #: The newest tick of the stream that any broker has seen, and that broker.
    newest: Position
    witness: str
    #: Ticks of this log up to this one agree with the network.
    start: Position


_heard_decoder = msgspec.msgpack.Decoder(tuple[Position, Position, Nanoseconds])
_verdict_decoder = msgspec.msgpack.Decoder(RollbackVerdict)


class StoredRollback(NamedTuple):
    """The catalog's state of the log."""

    verdict: RollbackVerdict | None = None
    #: The tick after which the origin continued alone, if no neighbour has greeted since.
    alone: int | None = None


def stored(recovered: Recovered) -> StoredRollback:
    """Read the catalog, and set unreadable rows aside."""
    good, bad = decoded(recovered, TABLE, _read)
    for damaged in bad:
        set_aside(recovered, damaged, b"0" if damaged.key == RENEWED else None)
    verdict, alone = good.get(ROLLED_BACK), good.get(ALONE)
    return StoredRollback(
        verdict if isinstance(verdict, RollbackVerdict) else None,
        alone if isinstance(alone, int) else None,
    )


def is_renewed(recovered: Recovered) -> bool:
    """Whether the log was ever renewed, even if the row that records it cannot be read."""
    is_damaged = any(
        (damaged.table, damaged.key) == (TABLE, RENEWED) for damaged in recovered.damaged
    )
    return is_damaged or RENEWED in recovered.catalog.get(TABLE, {})


def _read(key: str, value: bytes) -> RollbackVerdict | int:
    if key == ROLLED_BACK:
        return _verdict_decoder.decode(value)
    if key not in (ALONE, RENEWED):
        raise ValueError(f"table {TABLE!r} has no such key")
    return number_in(value, _TICK_MAX)


# -- every broker ---------------------------------------------------------------------------------


class StreamWitness:
    """One broker's knowledge of other streams. See the rules at the top of this module."""

    __slots__ = ("_changed", "_departed_streams", "_known", "_write_at")

    def __init__(self, name: str, streams: Iterable[str], recovered: Recovered) -> None:
        #: Invariant: one entry for every stream except this broker's, and no others.
        self._known = {stream: KnownStream() for stream in streams if stream != name}
        found = rows(recovered, HEARD, _read_heard)
        self._known |= {stream: known for stream, known in found.items() if stream in self._known}
        #: Rows of streams that have left the network.
        self._departed_streams = [stream for stream in found if stream not in self._known]
        self._changed: dict[str, None] = {}
        self._write_at = 0.0

    def record(self, frame: LinkFrame) -> None:
        """Record a frame that the router has accepted."""
        if isinstance(frame, Knowledge):
            newest, data = max(frame.head, frame.mark), frame.data
        elif isinstance(frame, Copies):
            newest, data = max(frame.head, frame.last), frame.data
        elif isinstance(frame, MarkIs):
            newest, data = frame.mark, []
        else:
            return
        known = self._known.get(frame.stream)
        if known is None:
            return
        if data:
            last = data[-1]
            newest = max(newest, last.tick)
            if last.tick > known.seen:
                known.seen, known.seen_ns = last.tick, last.time_ns
        if newest > known.newest:
            known.newest = newest
            self._changed[frame.stream] = None

    def known(self, stream: str) -> KnownStream:
        return self._known.get(stream) or KnownStream()

    def next_deadline(self) -> float | None:
        """When `puts` has something to save."""
        return self._write_at if self._changed or self._departed_streams else None

    def puts(self, now: float) -> list[Effect]:
        """Rows to save; none if it is too early."""
        if now < self._write_at or not (self._changed or self._departed_streams):
            return []
        self._write_at = now + WRITE_EVERY_S
        known = self._known
        puts: list[Effect] = [Put(HEARD, stream, None) for stream in self._departed_streams]
        puts += [Put(HEARD, stream, _encoder.encode(known[stream])) for stream in self._changed]
        self._departed_streams = []
        self._changed = {}
        return puts


def _read_heard(_stream: str, value: bytes) -> KnownStream:
    return KnownStream(*_heard_decoder.decode(value))


# -- an origin ------------------------------------------------------------------------------------


class LogView(NamedTuple):
    """An origin's log at one moment."""

    #: The newest tick sent to the network, and the newest tick, synced or not.
    emitted: int
    last: int
    #: The time of a tick; None if it is not in memory.
    time_of: Callable[[int], int | None]


class RollbackInquiry:
    """The inquiry of a starting origin. See the rules at the top of this module."""

    __slots__ = (
        "_alone",
        "_deadline",
        "_is_answered",
        "_is_first_life",
        "_is_greeted",
        "_last",
        "_name",
        "_options",
        "_silent",
        "_start",
        "is_alone_removal_pending",
        "is_open",
        "is_vouched",
        "verdict",
    )

    def __init__(
        self,
        name: str,
        neighbours: Sequence[str],
        start: int,
        options: Options,
        known: StoredRollback,
        *,
        is_first_life: bool,
    ) -> None:
        """`start`: the newest tick of the log; `known`: the catalog's state."""
        self._name = name
        self._options = options
        self._start = start
        #: The newest tick of the log at the last check.
        self._last = start
        self._is_first_life = is_first_life
        #: Neighbours that have not greeted in this life.
        self._silent = dict.fromkeys(neighbours)
        #: Whether any neighbour has greeted, and whether one of them had seen the stream.
        self._is_greeted = False
        self._is_answered = False
        #: When the inquiry ends; None if it has ended.
        self._deadline: float | None = None
        self._alone = known.alone
        self.verdict = known.verdict
        #: Whether the row `alone` is removed in memory but not yet on disk.
        self.is_alone_removal_pending = False
        #: Whether the origin may append ticks.
        self.is_open = False
        #: Whether a neighbour that has seen the stream agrees with the log.
        self.is_vouched = False

    @property
    def suspension(self) -> str:
        """Why events are refused; "" if they are accepted."""
        if self.verdict is not None:
            return self._rollback_message(self.verdict)
        return "" if self.is_open else ASKING

    @property
    def state(self) -> str:
        """`asking`, `open` or `rolled-back`."""
        if self.verdict is not None:
            return "rolled-back"
        return "open" if self.is_open else "asking"

    def begin(self, now: float) -> list[Effect]:
        if self.verdict is not None:
            return [Note("error", self._rollback_message(self.verdict))]
        if not self._silent:
            self.is_open = True
            return []
        self._deadline = now + self._options.start_alone_after_s
        return []

    def next_deadline(self) -> float | None:
        return self._deadline

    def time_passed(self, now: float) -> list[Effect]:
        """End the inquiry if its deadline has passed."""
        if self._deadline is None or self._deadline > now:
            return []
        self._deadline = None
        self.is_open = True
        if self._is_answered:
            return []
        unreached = f"none of {', '.join(self._silent)} was reached"
        note = Note(
            "warning",
            f"{'no neighbour had seen the stream' if self._is_greeted else unreached} within"
            f" {self._options.start_alone_after_s:g} s: stream {self._name!r} continues after"
            f" tick {self._start}, and it is unknown whether this log is the newest copy",
        )
        if self._alone is not None or self._is_greeted:
            # Neighbours that greeted receive the stream, so the origin is not alone.
            return [note]
        self._alone = self._start
        return [note, Put(TABLE, ALONE, b"%d" % self._start)]

    def greeted(
        self,
        now: float,
        peer: str,
        hello: Hello,
        log: LogView,
    ) -> list[Effect]:
        is_first = peer in self._silent
        self._silent.pop(peer, None)
        start = self._start if self._alone is None else self._alone
        limit = log.emitted if self._is_greeted else start
        self._is_greeted = True
        self._is_answered |= hello.newest > 0 or self._start == 0
        made_ns = log.time_of(hello.seen) if hello.seen else None
        if hello.newest > limit or made_ns not in (None, hello.seen_ns):
            return self.refuted(max(hello.newest, hello.seen), peer, log.last)
        effects: list[Effect] = []
        if is_first and 0 < hello.newest <= start:
            self.is_vouched = True
        if self._alone is not None:
            self._alone = None
            self.is_alone_removal_pending = True
            effects.append(Put(TABLE, ALONE, None))
        if self._deadline is None or not self._is_answered:
            return effects
        if self._silent:
            self._deadline = min(self._deadline, now + self._options.ask_again_s)
        else:
            self._deadline = None
            self.is_open = True
        return effects

    def copies_agree(self, now: float) -> None:
        """Copies of the stream at other brokers have said where it ends, and the log has all of
        it: neighbours may still object, but need not be waited for."""
        self._is_answered = True
        if self._deadline is not None:
            self._deadline = min(self._deadline, now + self._options.ask_again_s)

    def alone_removal_synced(self) -> None:
        """The removal of the row `alone` is on disk."""
        self.is_alone_removal_pending = False

    @property
    def believes_edges(self) -> bool:
        """Whether to trust an edge that reports a tick beyond the newest one (rule 4)."""
        return not self.is_vouched and not self._is_first_life

    def refuted(self, newest: int, witness: str, last: int) -> list[Effect]:
        """Another broker has seen a tick that this log, which ends with `last`, lacks."""
        if self.verdict is not None and self.verdict.newest >= newest:
            return []
        self._deadline = None
        self._last = last
        start = self._start if self._alone is None else min(self._alone, self._start)
        self.verdict = verdict = RollbackVerdict(newest, witness, start)
        return [
            Put(TABLE, ROLLED_BACK, _encoder.encode(verdict)),
            Note("error", self._rollback_message(verdict)),
        ]

    def _rollback_message(self, verdict: RollbackVerdict) -> str:
        suffix = ""
        if self._last > verdict.start:
            suffix = (
                f" Ticks {verdict.start + 1} to {self._last} were appended since, and subscribers"
                " may have missed them: 'log renew' publishes their events again."
            )
        return (
            f"the log of {self._name!r} is an old copy: it goes up to tick {verdict.start}, but"
            f" {verdict.witness!r} has seen tick {verdict.newest} of its stream. Events are"
            f" refused. Stop the broker; then restore the newest log, or run"
            f" 'anabranch log renew STATE_DIRECTORY', and restart it.{suffix}"
        )
