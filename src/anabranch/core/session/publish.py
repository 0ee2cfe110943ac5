"""The publishing half of a client's session: every event once, in order, until it is confirmed.

Events get their identity here: (client, incarnation, sequence), sequences from 1 without a gap.
They wait until the broker confirms them, and are sent again, from the first unconfirmed one on,
whenever they may have got lost. Repeating is harmless: the origin knows the last sequence it has of
each incarnation, so it takes an event once and confirms a repetition. Rules:

1. An incarnation belongs to one origin. Nobody but that origin knows whether an unconfirmed event
   is in its log, so a publisher with unconfirmed events stays with it until it answers, however
   long that takes; `may_move` says when it may go. Elsewhere it begins a new, higher incarnation,
   and so it does after a restart that lost this module's state. What was unconfirmed at such a
   loss is in the log or not, never twice; the application cannot know which.
2. On one connection events go out in order, at most `in_flight_max` beyond the confirmed. A new
   connection begins again after the last confirmed one.
3. A refused event, and all that were sent after it, are sent again after a pause that doubles with
   every refusal and falls back with every confirmation.
4. A final refusal takes the event and all later ones out of the queue, tells the application, and
   closes the incarnation. Their sequences are not used again: a copy of the refused event that is
   still somewhere on its way must not be taken for another one.
5. The queue is bounded in events and bytes; beyond that `publish` is the caller's mistake.

The state is lost with the process; the application keeps the number of the last incarnation it
used, and whatever events it must not lose, until they are confirmed.
"""

from collections.abc import Iterable, Sequence

from anabranch.core.session.effects import (
    Confirm,
    SendFrame,
    SessionEffects,
    SessionOptions,
    TellCommitted,
    TellPublishRefused,
    TellStaged,
    TellStagingRefused,
)
from anabranch.model.client_frames import (
    ADVERTISED_CHARACTERS_MAX,
    ADVERTISEMENTS_MAX,
    BUSY,
    UNKNOWN_TOKEN,
    Advertises,
    Commit,
    Committed,
    Confirmed,
    Discard,
    Publish,
    PublishRefused,
    Refused,
    Stage,
    Staged,
)
from anabranch.model.encoding import encode_draft, encode_event
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.event import Event, EventId
from anabranch.model.limits import DEFAULT_LIMITS, Limits

_PATIENCE_MAX = 8


class SessionPublisher:
    """The events of one publisher that are not confirmed yet."""

    def __init__(
        self,
        publisher: str,
        incarnation: int,
        options: SessionOptions,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._publisher = publisher
        #: 0: this session does not publish.
        self._incarnation = incarnation
        self._options = options
        self._limits = limits
        self._connected = False
        #: Set by a final refusal.
        self._closed = False
        #: Sequence → encoded event. Invariant: the keys are confirmed + 1 … last.
        self._waiting: dict[int, bytes] = {}
        self._waiting_bytes = 0
        self._last = 0
        self._confirmed = 0
        #: Up to here everything is on its way. Invariant: confirmed ≤ sent ≤ last.
        self._sent = 0
        #: The same over all connections: the broker can confirm no more than this.
        self._sent_ever = 0
        #: When `_sent` falls back to `_confirmed`; None while nothing is on its way.
        self._resend_at: float | None = None
        #: Nothing is sent before this, after a refusal.
        self._pause_until: float | None = None
        #: Factors of the two intervals, 1 … 8.
        self._silences = 1
        self._refusals = 1

    @property
    def incarnation(self) -> int:
        """The incarnation of events published now; 0 if there is none."""
        return self._incarnation

    def unconfirmed(self) -> list[bytes]:
        """The encoded events that wait for confirmation, in order."""
        return list(self._waiting.values())

    @property
    def progress(self) -> tuple[int, int]:
        """The sequences of the last event, and of the last that is confirmed; the same if none
        waits for confirmation."""
        return self._last, self._confirmed if self._waiting else self._last

    def may_move(self) -> bool:
        """Whether nothing binds the publisher to this broker."""
        return not self._waiting

    def open_incarnation(self, incarnation: int) -> None:
        """Publish with this incarnation from now on; it must be higher than any before."""
        if self._waiting:
            raise LocalError(
                f"{len(self._waiting)} events of incarnation {self._incarnation} are unconfirmed;"
                " wait for them, then open the next"
            )
        if incarnation <= self._incarnation:
            raise LocalError(
                f"incarnation {incarnation} is not higher than {self._incarnation}; let it grow"
            )
        self._incarnation = incarnation
        self._closed = False
        self._last = self._confirmed = self._sent = self._sent_ever = 0
        self._resend_at = self._pause_until = None

    def publish(
        self, now: float, events: Sequence[Event], time_ns: int
    ) -> tuple[list[EventId], SessionEffects]:
        """Take these events, all or (with an error) none."""
        if self._incarnation == 0 or self._closed:
            raise LocalError("there is no incarnation to publish with; open one first")
        ids = [
            EventId(self._publisher, self._incarnation, self._last + place)
            for place in range(1, len(events) + 1)
        ]
        bodies = [
            encode_event(event.stamped(event_id, time_ns, limits=self._limits))
            for event, event_id in zip(events, ids, strict=True)
        ]
        size = sum(map(len, bodies))
        if not self.has_room(len(bodies), size):
            raise LocalError(
                f"{len(self._waiting)} events with {self._waiting_bytes} bytes are unconfirmed;"
                " wait until some are, or allow for more in the options"
            )
        for body in bodies:
            self._last += 1
            self._waiting[self._last] = body
        self._waiting_bytes += size
        return ids, self._send(now)

    def has_room(self, events: int = 1, size: int = 0) -> bool:
        """Whether `publish` would take this many events with this many bytes."""
        return (
            len(self._waiting) + events <= self._options.unconfirmed_max
            and self._waiting_bytes + size <= self._options.unconfirmed_bytes_max
        )

    # -- the connection -------------------------------------------------------------------------

    def connected(self, now: float) -> SessionEffects:
        """There is a connection; whatever is unconfirmed goes out on it."""
        self._connected = True
        self._rewind()
        return self._send(now)

    def disconnected(self) -> None:
        """There is none any more."""
        self._connected = False
        self._rewind()

    def confirmed(self, now: float, frame: Confirmed) -> SessionEffects:
        """The broker has some of it for good."""
        if (frame.publisher, frame.incarnation) != (self._publisher, self._incarnation):
            return []
        if frame.sequence > self._sent_ever:
            raise RemoteError(
                f"sequence {frame.sequence} was confirmed, but only {self._sent_ever} were sent"
            )
        if frame.sequence <= self._confirmed:
            return []
        for sequence in range(self._confirmed + 1, frame.sequence + 1):
            self._waiting_bytes -= len(self._waiting.pop(sequence))
        self._confirmed = frame.sequence
        self._sent = max(self._sent, self._confirmed)
        self._silences = self._refusals = 1
        self._resend_at = None
        return [Confirm(self._incarnation, self._confirmed), *self._send(now)]

    def refused(self, now: float, frame: PublishRefused) -> SessionEffects:
        """The broker did not take some of it."""
        if (frame.publisher, frame.incarnation) != (self._publisher, self._incarnation):
            return []
        if not self._confirmed < frame.sequence <= self._sent:
            # It is to be sent again anyway: this refusal follows from an earlier one.
            return []
        self._sent = frame.sequence - 1
        final = frame.is_final
        if final:
            self._close(frame.sequence)
        else:
            self._pause_until = now + self._options.refused_again_s * self._refusals
            self._refusals = min(2 * self._refusals, _PATIENCE_MAX)
        if self._sent == self._confirmed:
            self._resend_at = None
        why = (frame.reason, final, frame.begun, frame.code)
        return [TellPublishRefused(self._incarnation, frame.sequence, *why)]

    def time_passed(self, now: float) -> SessionEffects:
        """A deadline may have come."""
        if self._resend_at is not None and now >= self._resend_at:
            self._sent = self._confirmed
            self._resend_at = None
            self._silences = min(2 * self._silences, _PATIENCE_MAX)
        return self._send(now)

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        if not self._connected:
            return None
        if self._pause_until is None or self._resend_at is None:
            return self._resend_at if self._pause_until is None else self._pause_until
        return min(self._pause_until, self._resend_at)

    # -- inside ---------------------------------------------------------------------------------

    def _rewind(self) -> None:
        self._sent = self._confirmed
        self._resend_at = self._pause_until = None
        self._silences = self._refusals = 1

    def _close(self, first: int) -> None:
        for sequence in range(first, self._last + 1):
            self._waiting_bytes -= len(self._waiting.pop(sequence))
        self._last = self._sent_ever = first - 1
        self._closed = True

    def _send(self, now: float) -> SessionEffects:
        if self._pause_until is not None:
            if now < self._pause_until:
                return []
            self._pause_until = None
        top = min(self._last, self._confirmed + self._options.in_flight_max)
        effects: SessionEffects = []
        while self._connected and self._sent < top:
            effects.append(SendFrame(Publish(self._next_bodies(top))))
        self._sent_ever = max(self._sent_ever, self._sent)
        if self._sent > self._confirmed and self._resend_at is None:
            self._resend_at = now + self._options.resend_after_s * self._silences
        return effects

    def _next_bodies(self, top: int) -> list[bytes]:
        """What the next frame holds: at least one event."""
        bodies: list[bytes] = []
        size = 0
        while self._sent < top and len(bodies) < self._options.frame_events_max:
            body = self._waiting[self._sent + 1]
            if bodies and size + len(body) > self._options.frame_bytes_max:
                break
            bodies.append(body)
            size += len(body)
            self._sent += 1
        return bodies


_FIRST, END = 1 << 32, 1 << 40
_STAGING_PATIENCE_MAX = 8


class SessionStaging:
    """The staging half of a client's session: chunks and commits, each until it is answered.

    Rules:

    1. What was not answered when the connection was lost is sent again over the next one to this
       broker, in order. Repeating is harmless: the broker knows a chunk by its token and index, and
       a batch by its sink and number. On one connection nothing is sent twice but by rule 2.
    2. What is refused as `busy` is sent again after a pause, which doubles with every refusal and
       falls back with every other answer. So is a chunk that lacks those before it, as long as one
       of these waits here; if they were answered, the broker has dropped them. Any other refusal is
       final; both are told. After a pause only the first open chunk of each token goes out, and the
       others when that is answered: a full broker is not sent megabytes in vain.
    3. The requests of this half have numbers of their own, above those of subscriptions and below
       `END`, so that a refusal finds the part that it is for.
    4. Nobody but this broker knows the fate of what is unanswered, so the client stays with it
       until it is, or until nobody waits for it any more (`withdraw`).
    5. At most `staging_max` requests wait; more is the caller's mistake.

    The state is lost with the process. Whoever comes after it stages anew, with other tokens, and
    commits the same batch: that is known, or it is not.
    """

    def __init__(self, options: SessionOptions, limits: Limits = DEFAULT_LIMITS) -> None:
        self._options = options
        self._limits = limits
        self._connected = False
        self._last = _FIRST - 1
        #: Number → what is not answered, in the order in which it was asked for.
        self._open: dict[int, Stage | Commit] = {}
        #: Those of them that were refused for the time being, and until when nothing is sent again.
        self._again: set[int] = set()
        self._again_at: float | None = None
        #: Factor of the pause, 1 … 8.
        self._refusals = 1

    # -- the application ------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether everything is answered."""
        return not self._open

    def has_room(self) -> bool:
        """Whether another request is taken."""
        return len(self._open) < self._options.staging_max

    def draft(self, event: Event, time_ns: int = 0, place: str = "the event") -> bytes:
        """An event as it is staged."""
        return encode_draft(event, time_ns, self._limits, place)

    def stage(
        self, token: str, index: int, drafts: Sequence[bytes], is_last: bool
    ) -> tuple[int, SessionEffects]:
        """Stage a chunk; its number, under which the answer is told."""
        return self._ask(Stage(self._next(), token, index, list(drafts), is_last))

    def commit(
        self, sink: str, query: str, batch: int, tokens: Iterable[str]
    ) -> tuple[int, SessionEffects]:
        """Commit a batch; its number, under which the answer is told."""
        return self._ask(Commit(self._next(), sink, query, batch, tuple(tokens)))

    def discard(self, tokens: Iterable[str]) -> SessionEffects:
        """Nobody will commit these. If that gets lost, they are dropped later."""
        frame = Discard(tuple(tokens))
        named = {*frame.tokens}
        self.withdraw(
            [n for n, each in self._open.items() if isinstance(each, Stage) and each.token in named]
        )
        return [SendFrame(frame)] if self._connected else []

    def withdraw(self, requests: Iterable[int]) -> None:
        """Nobody waits for these any more."""
        for number in requests:
            self._open.pop(number, None)
            self._again.discard(number)
        # What waited for the answer to one of these waits no longer.
        self._again_at = (self._again_at or 0.0) if self._again else None

    def _next(self) -> int:
        if not self.has_room():
            raise LocalError(f"{len(self._open)} chunks and commits wait for an answer; wait too")
        self._last += 1
        return self._last

    def _ask(self, frame: Stage | Commit) -> tuple[int, SessionEffects]:
        self._open[frame.request] = frame
        return frame.request, [SendFrame(frame)] if self._connected else []

    # -- the connection -------------------------------------------------------------------------

    @staticmethod
    def is_own(request: int) -> bool:
        """Whether this number is that of a chunk or a commit."""
        return _FIRST <= request < END

    def connected(self) -> SessionEffects:
        """There is a connection; what is unanswered goes out on it."""
        self._connected = True
        self._forget_refusals()
        return [SendFrame(frame) for frame in self._open.values()]

    def disconnected(self) -> None:
        """There is none any more."""
        self._connected = False
        self._forget_refusals()

    def _forget_refusals(self) -> None:
        self._again.clear()
        self._again_at = None
        self._refusals = 1

    def staged(self, now: float, frame: Staged) -> SessionEffects:
        """A chunk is safe."""
        return [TellStaged(frame.request)] if self._answered(now, frame.request) else []

    def committed(self, now: float, frame: Committed) -> SessionEffects:
        """A batch is in the log."""
        if not self._answered(now, frame.request):
            return []
        what = (frame.sink, frame.batch, frame.first, frame.last, frame.was_known)
        return [TellCommitted(frame.request, *what)]

    def refused(self, now: float, frame: Refused) -> SessionEffects:
        """Something is not granted, or not now."""
        number = frame.request
        if number not in self._open:
            return []
        may_follow = frame.code == UNKNOWN_TOKEN and self._follows_another(number)
        is_final = frame.code != BUSY and not may_follow
        if is_final:
            self._answered(now, number)
        else:
            self._again.add(number)
            if self._again_at is None:
                self._again_at = now + self._options.refused_again_s * self._refusals
                self._refusals = min(2 * self._refusals, _STAGING_PATIENCE_MAX)
        return [TellStagingRefused(number, frame.reason, is_final, frame.code)]

    def _follows_another(self, number: int) -> bool:
        """Whether a chunk before this one is not answered."""
        frame = self._open[number]
        chunks = [each for each in self._open.values() if isinstance(each, Stage)]
        return isinstance(frame, Stage) and any(
            each.token == frame.token and each.index < frame.index for each in chunks
        )

    def _answered(self, now: float, number: int) -> bool:
        self._refusals = 1
        self._again.discard(number)
        if self._again and self._again_at is None:
            self._again_at = now
        return self._open.pop(number, None) is not None

    # -- time -----------------------------------------------------------------------------------

    def time_passed(self, now: float) -> SessionEffects:
        """A deadline may have come."""
        if self._again_at is None or now < self._again_at:
            return []
        self._again_at = None
        numbers = self._firsts() if self._refusals > 1 else self._open
        again = [number for number in numbers if number in self._again]
        self._again.difference_update(again)
        return [SendFrame(self._open[number]) for number in again]

    def _firsts(self) -> Iterable[int]:
        """All commits, and the first chunk of each token."""
        tokens: set[str] = set()
        for number, frame in self._open.items():
            if not isinstance(frame, Stage):
                yield number
            elif frame.token not in tokens:
                tokens.add(frame.token)
                yield number

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        return self._again_at


EVERYTHING = "TRUE"


class SessionAdvertisements:
    """What a session says that it will publish.

    The broker is told the whole list of advertised filters, whenever it changes and on every new
    connection, before any event. Events that match none of them are refused; with an empty list
    everything may be published. Rules:

    1. What is withdrawn is told to be there still until every event that was published before is
       confirmed, since such an event may have to be sent again. Likewise that everything may be
       published, where nothing was advertised before.
    2. What is too much for the broker is told as a promise of everything: that costs traffic, and
       no event.

    State: the list, which the application states again after a crash.
    """

    __slots__ = ("_filters", "_is_connected", "_leaving")

    def __init__(self) -> None:
        self._filters: tuple[str, ...] = ()
        #: Withdrawn ones → the last event that may need them.
        self._leaving: dict[str, int] = {}
        self._is_connected = False

    def advertise(self, filters: Sequence[str], last: int, confirmed: int) -> SessionEffects:
        """From now on events match one of these, or there are none of these.

        `last` and `confirmed` are the sequences of the events that were published and that are
        safe."""
        before, self._filters = self._filters, tuple(dict.fromkeys(filters))
        if before == self._filters:
            return []
        if confirmed < last:
            self._leaving |= dict.fromkeys(before or (EVERYTHING,), last)
        for text in self._filters:
            self._leaving.pop(text, None)
        return self._told()

    def confirmed(self, last: int, confirmed: int) -> SessionEffects:
        """Some events are safe, perhaps all."""
        is_all = confirmed == last
        gone = [text for text, needed in self._leaving.items() if is_all or needed <= confirmed]
        for text in gone:
            del self._leaving[text]
        return self._told() if gone else []

    def connected(self) -> SessionEffects:
        """There is a connection, which knows of nothing."""
        self._is_connected = True
        return self._told() if self._filters else []

    def disconnected(self) -> None:
        """There is none any more."""
        self._is_connected = False

    def _told(self) -> SessionEffects:
        if not self._is_connected:
            return []
        every = [*self._filters, *self._leaving] if self._filters else []
        if len(every) > ADVERTISEMENTS_MAX or sum(map(len, every)) > ADVERTISED_CHARACTERS_MAX:
            every = [EVERYTHING]
        return [SendFrame(Advertises(every))]
