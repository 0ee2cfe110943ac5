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

from collections.abc import Sequence

from anabranch.core.session.effects import (
    Confirm,
    SendFrame,
    SessionEffects,
    SessionOptions,
    TellPublishRefused,
)
from anabranch.model.client_frames import Confirmed, Publish, PublishRefused
from anabranch.model.encoding import encode_event
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.event import Event, EventId
from anabranch.model.limits import DEFAULT_LIMITS, Limits

_PATIENCE_MAX = 8


class Publishing:
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
