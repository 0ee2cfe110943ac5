"""Rollback: whether the log that an origin starts with is an old copy of its stream.

A log that was restored from a backup, or whose end was cut off, looks like any other. If its origin
went on with it, new events would get ticks that edges have seen already; edges would drop them as
repetitions, and their publishers would be told that they are safe. Nothing in the log shows that,
but the neighbours of the origin know how far the stream had come. Theory of operation:

    every broker    remembers the newest tick it saw of each stream        `StreamWitness`
    greeting        tells the neighbour what is known of its stream        `Hello`
    an origin       appends nothing until its neighbours have told         `RollbackInquiry`

Rules:

1. A starting origin is *asking*: it appends no tick, neither event nor mark nor part of a batch,
   and refuses events for the time being. It takes events when a neighbour that knows the stream has
   greeted, and all others have or `ask_again_s` has passed; or when `start_alone_after_s` has
   passed, which is a warning. A neighbour that knows nothing of a stream that has ticks (a relay
   that lost its state) does not answer. A broker without neighbours has nobody to ask.
2. It is *rolled back* if a neighbour knows a tick that this log never had, or has seen the event of
   a tick that this log made at another time. The first neighbour that greets in this life can know
   nothing of this life, so any tick beyond the start counts. It then refuses all events, confirms
   nothing that is under way, says so at error level, and writes the verdict to the catalog: only
   `anabranch log renew` takes it back.
3. An origin that goes on alone writes down from which tick on (`alone`): what it makes after that
   may stand in the place of lost ticks. The row goes when a neighbour greets and does not object.
   Until its removal is on disk no neighbour is told of the stream (`is_leaving_alone`): otherwise
   a crash would bring the row back, and what the neighbour learned would refute a good log.
4. A neighbour *vouches* for the log if it knows the stream, and no tick beyond the start. An edge
   that is done with a tick that does not exist (`Done`) makes an origin rolled back only if no
   neighbour vouched for it, and not in the first life of its disk. Otherwise the edge is wrong.
5. What a witness tells comes from frames that the router has accepted. Clients cannot influence it.

State: a witness writes what it knows once a second while that changes. Losing it is safe in so far
as other neighbours, or none, are asked.
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

#: Table of what a witness knows, by stream.
HEARD = "heard"
#: Table of what an origin knows about its log; its rows are below.
TABLE = "rollback"
ROLLED_BACK = "verdict"
ALONE = "alone"
#: The newest of the lost ticks of a log that was renewed,
RENEWED = "renewed"
#: and what is to be done, while that is under way (`store.log_repair`).
RENEWING = "renewing"
_TICK_MAX = 1 << 62
#: A witness writes at most this often.
WRITE_EVERY_S = 1.0

ASKING = "this broker has started and waits for what its neighbours know of its stream; send again"

_encoder = msgspec.msgpack.Encoder()


class KnownStream(msgspec.Struct, array_like=True):
    """What a broker knows of the stream of another one."""

    #: The newest tick that is known to exist.
    newest: int = 0
    #: The newest tick whose event was seen, and when that tick was made.
    seen: int = 0
    seen_ns: int = 0


class RollbackVerdict(msgspec.Struct, frozen=True, array_like=True):
    """Why a log counts as rolled back."""

    #: The newest tick of the stream that is known anywhere, and who knows it.
    newest: Position
    witness: str
    #: Ticks of this log up to this one are those that the network knows.
    start: Position


_heard_decoder = msgspec.msgpack.Decoder(tuple[Position, Position, Nanoseconds])
_verdict_decoder = msgspec.msgpack.Decoder(RollbackVerdict)


class StoredRollback(NamedTuple):
    """What the catalog says about the log."""

    verdict: RollbackVerdict | None = None
    #: The tick after which the origin went on alone, if no neighbour has greeted since.
    alone: int | None = None


def stored(recovered: Recovered) -> StoredRollback:
    """Read it, and set aside what cannot be read."""
    good, bad = decoded(recovered, TABLE, _read)
    for each in bad:
        set_aside(recovered, each, b"0" if each.key == RENEWED else None)
    verdict, alone = good.get(ROLLED_BACK), good.get(ALONE)
    return StoredRollback(
        verdict if isinstance(verdict, RollbackVerdict) else None,
        alone if isinstance(alone, int) else None,
    )


def is_renewed(recovered: Recovered) -> bool:
    """Whether the log was ever renewed; also if the row that says so cannot be read."""
    is_damaged = any((each.table, each.key) == (TABLE, RENEWED) for each in recovered.damaged)
    return is_damaged or RENEWED in recovered.catalog.get(TABLE, {})


def _read(key: str, value: bytes) -> RollbackVerdict | int:
    if key == ROLLED_BACK:
        return _verdict_decoder.decode(value)
    if key not in (ALONE, RENEWED):
        raise ValueError(f"the table {TABLE!r} has no such key")
    return number_in(value, _TICK_MAX)


# -- every broker ---------------------------------------------------------------------------------


class StreamWitness:
    """What one broker knows of the streams of others. See the rules at the top of this module."""

    __slots__ = ("_changed", "_heard", "_left", "_write_at")

    def __init__(self, name: str, streams: Iterable[str], recovered: Recovered) -> None:
        #: Invariant: there is one for every stream but the own, and for no other name.
        self._heard = {stream: KnownStream() for stream in streams if stream != name}
        found = rows(recovered, HEARD, _read_heard)
        self._heard |= {stream: each for stream, each in found.items() if stream in self._heard}
        #: Rows of streams that have left the network.
        self._left = [stream for stream in found if stream not in self._heard]
        self._changed: dict[str, None] = {}
        self._write_at = 0.0

    def saw(self, frame: LinkFrame) -> None:
        """The router has accepted this frame."""
        if isinstance(frame, Knowledge):
            newest, data = max(frame.head, frame.mark), frame.data
        elif isinstance(frame, Copies):
            newest, data = max(frame.head, frame.last), frame.data
        elif isinstance(frame, MarkIs):
            newest, data = frame.mark, []
        else:
            return
        heard = self._heard.get(frame.stream)
        if heard is None:
            return
        if data:
            last = data[-1]
            newest = max(newest, last.tick)
            if last.tick > heard.seen:
                heard.seen, heard.seen_ns = last.tick, last.time_ns
        if newest > heard.newest:
            heard.newest = newest
            self._changed[frame.stream] = None

    def of(self, stream: str) -> KnownStream:
        """What is known of a stream."""
        return self._heard.get(stream) or KnownStream()

    def next_deadline(self) -> float | None:
        """When `puts` has something to write."""
        return self._write_at if self._changed or self._left else None

    def puts(self, now: float) -> list[Effect]:
        """What to write: nothing, if that is too early."""
        if now < self._write_at or not (self._changed or self._left):
            return []
        self._write_at = now + WRITE_EVERY_S
        heard = self._heard
        puts: list[Effect] = [Put(HEARD, stream, None) for stream in self._left]
        puts += [Put(HEARD, each, _encoder.encode(heard[each])) for each in self._changed]
        self._left = []
        self._changed = {}
        return puts


def _read_heard(_stream: str, value: bytes) -> KnownStream:
    return KnownStream(*_heard_decoder.decode(value))


# -- an origin ------------------------------------------------------------------------------------


class LogView(NamedTuple):
    """The log of an origin at one moment."""

    #: The newest tick that the network was told, and the newest tick, synced or not.
    emitted: int
    last: int
    #: When a tick was made; None if memory does not tell.
    time_of: Callable[[int], int | None]


class RollbackInquiry:
    """What the neighbours of a starting origin know. See the rules at the top of this module."""

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
        "is_leaving_alone",
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
        """`start`: the newest tick of the log; `known`: what the catalog says."""
        self._name = name
        self._options = options
        self._start = start
        #: The newest tick of the log when it was looked at last.
        self._last = start
        self._is_first_life = is_first_life
        #: Neighbours that have not greeted in this life.
        self._silent = dict.fromkeys(neighbours)
        #: Whether any has, and whether one of them knew the stream.
        self._is_greeted = False
        self._is_answered = False
        #: When asking ends; None if it has.
        self._deadline: float | None = None
        self._alone = known.alone
        self.verdict = known.verdict
        #: Whether the row `alone` is removed in memory and not yet on disk.
        self.is_leaving_alone = False
        #: Whether the origin may append ticks.
        self.is_open = False
        #: Whether a neighbour that knows the stream agrees with the log.
        self.is_vouched = False

    @property
    def hindrance(self) -> str:
        """Why no event is taken; "" if it is."""
        if self.verdict is not None:
            return self._remedy(self.verdict)
        return "" if self.is_open else ASKING

    @property
    def state(self) -> str:
        """`asking`, `open` or `rolled-back`."""
        if self.verdict is not None:
            return "rolled-back"
        return "open" if self.is_open else "asking"

    def begin(self, now: float) -> list[Effect]:
        """The life of the broker begins."""
        if self.verdict is not None:
            return [Note("error", self._remedy(self.verdict))]
        if not self._silent:
            self.is_open = True
            return []
        self._deadline = now + self._options.start_alone_after_s
        return []

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        return self._deadline

    def time_passed(self, now: float) -> list[Effect]:
        """The deadline may have come."""
        if self._deadline is None or self._deadline > now:
            return []
        self._deadline = None
        self.is_open = True
        if self._is_answered:
            return []
        who = f"none of {', '.join(self._silent)} was reached"
        note = Note(
            "warning",
            f"{'no neighbour knew the stream' if self._is_greeted else who} within"
            f" {self._options.start_alone_after_s:g} s: the stream {self._name!r} goes on after"
            f" tick {self._start}, and nobody could say whether this log is the newest copy",
        )
        if self._alone is not None or self._is_greeted:
            # Those that have greeted hear of the stream: it is not alone.
            return [note]
        self._alone = self._start
        return [note, Put(TABLE, ALONE, b"%d" % self._start)]

    def told(
        self,
        now: float,
        peer: str,
        hello: Hello,
        log: LogView,
    ) -> list[Effect]:
        """A neighbour has greeted."""
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
            self.is_leaving_alone = True
            effects.append(Put(TABLE, ALONE, None))
        if self._deadline is None or not self._is_answered:
            return effects
        if self._silent:
            self._deadline = min(self._deadline, now + self._options.ask_again_s)
        else:
            self._deadline = None
            self.is_open = True
        return effects

    @property
    def believes_edges(self) -> bool:
        """Whether an edge that knows a tick beyond the newest is right (rule 4)."""
        return not self.is_vouched and not self._is_first_life

    def refuted(self, newest: int, witness: str, last: int) -> list[Effect]:
        """Somebody knows a tick that this log, which ends with `last`, does not have."""
        if self.verdict is not None and self.verdict.newest >= newest:
            return []
        self._deadline = None
        self._last = last
        start = self._start if self._alone is None else min(self._alone, self._start)
        self.verdict = verdict = RollbackVerdict(newest, witness, start)
        return [
            Put(TABLE, ROLLED_BACK, _encoder.encode(verdict)),
            Note("error", self._remedy(verdict)),
        ]

    def _remedy(self, verdict: RollbackVerdict) -> str:
        made = ""
        if self._last > verdict.start:
            made = (
                f" Ticks {verdict.start + 1} to {self._last} were made since, and subscribers may"
                " have missed them: 'log renew' publishes their events again."
            )
        return (
            f"the log of {self._name!r} is an old copy: it goes up to tick {verdict.start}, but"
            f" {verdict.witness!r} knows tick {verdict.newest} of its stream. Events are refused."
            f" Stop the broker; then restore the newest log, or run"
            f" 'anabranch log renew STATE_DIRECTORY', and start it again.{made}"
        )
