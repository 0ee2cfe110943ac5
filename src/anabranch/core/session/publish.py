"""Publishing half of a client's session: events, staged batches and advertisements.

Events get their identity here: (client, incarnation, sequence), with sequences from 1 without a
gap. They are kept until the broker confirms them, and resent from the first unconfirmed one on
whenever they may have been lost. Resending is harmless: the origin records the last sequence of
each incarnation, so it accepts an event once and confirms a duplicate.

Rules for events

1. An incarnation belongs to one origin. Only that origin can tell whether an unconfirmed event is
   in its log, so a publisher with unconfirmed events stays with it until it answers, however long
   that takes; `may_move` reports when it may move. At another broker the publisher starts a new,
   higher incarnation, as it does after a restart that lost this state. An event that was
   unconfirmed at such a loss is in the log once or not at all; the application cannot find out
   which.
2. On one connection, events are sent in order, at most `in_flight_max` beyond the confirmed ones. A
   new connection continues after the last confirmed event.
3. A refused event, and all events sent after it, are resent after a pause that doubles with every
   refusal and is reset by every confirmation.
4. A final refusal removes the event and all later ones from the queue, reports them to the
   application, and closes the incarnation. Their sequences are not used again: a copy of the
   refused event that is still in flight must not be taken for another event.
5. The queue is bounded in events and bytes; `publish` raises an error beyond that.
6. A refusal with the code `FORGOTTEN` says that the broker no longer knows what it accepted of the
   publisher. What was accepted over the present connection was confirmed on it before the refusal;
   so the refused events that were sent over this connection only, or not at all, are in no log, and
   the application may publish them in a new incarnation. The outcome of the others is unknown
   (`EventsRefused.sent_before`).
7. `give_up` discards the unconfirmed events, whose outcome remains unknown, and closes the
   incarnation. Their late confirmations are ignored. When to do that is the subject of
   `publisher_order`.

State: lost with the process. The application saves the number of the last incarnation, and keeps
events that it must not lose until they are confirmed.
"""

from collections.abc import Iterable, Sequence

from anabranch.core.contract import earliest
from anabranch.core.session.effects import (
    BatchCommitted,
    ChunkStaged,
    EventsConfirmed,
    EventsRefused,
    SendFrame,
    SessionEffects,
    SessionOptions,
    StagingRefused,
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
from anabranch.model.event import After, Event, EventId
from anabranch.model.limits import DEFAULT_LIMITS, Limits

_BACKOFF_MAX = 8


class SessionPublisher:
    """The unconfirmed events of one publisher. See the rules at the top of this module."""

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
        self._unconfirmed: dict[int, bytes] = {}
        self._unconfirmed_bytes = 0
        self._last = 0
        self._confirmed = 0
        #: Everything up to here is in flight or confirmed. Invariant: confirmed ≤ sent ≤ last.
        self._sent = 0
        #: The same over all connections: the broker can confirm at most this sequence.
        self._sent_ever = 0
        #: The same over all connections before this one.
        self._sent_before = 0
        #: When `_sent` falls back to `_confirmed`; None while nothing is in flight.
        self._resend_at: float | None = None
        #: After a refusal, when sending resumes.
        self._pause_until: float | None = None
        #: Back-off factors of the two intervals, 1 … 8.
        self._resend_factor = 1
        self._refused_factor = 1

    @property
    def incarnation(self) -> int:
        """The current incarnation; 0 if there is none."""
        return self._incarnation

    def unconfirmed(self) -> list[bytes]:
        return list(self._unconfirmed.values())

    @property
    def progress(self) -> tuple[int, int]:
        """The sequences of the last event and of the last confirmed one; equal if none is
        unconfirmed."""
        return self._last, self._confirmed if self._unconfirmed else self._last

    def may_move(self) -> bool:
        """Whether no event binds the publisher to this broker."""
        return not self._unconfirmed

    def use_limits(self, limits: Limits) -> None:
        """Check events against these limits from now on."""
        self._limits = limits

    def open_incarnation(self, incarnation: int) -> None:
        """Publish with this incarnation from now on; it must be higher than any before."""
        if self._unconfirmed:
            raise LocalError(
                f"{len(self._unconfirmed)} events of incarnation {self._incarnation} are"
                " unconfirmed; wait for their confirmation before opening the next"
            )
        if incarnation <= self._incarnation:
            raise LocalError(
                f"incarnation {incarnation} is not higher than {self._incarnation}; use a higher"
                " one"
            )
        self._incarnation = incarnation
        self._closed = False
        self._last = self._confirmed = self._sent = self._sent_ever = self._sent_before = 0
        self._resend_at = self._pause_until = None

    def give_up(self) -> None:
        """Discard the unconfirmed events and close the incarnation (rule 7)."""
        self._unconfirmed.clear()
        self._unconfirmed_bytes = 0
        self._confirmed = self._sent = self._last
        self._resend_at = self._pause_until = None
        self._closed = True

    def publish(
        self, now: float, events: Sequence[Event], time_ns: int, after: After = ()
    ) -> tuple[list[EventId], SessionEffects]:
        """Queue these events and send them; all of them, or none in case of an error."""
        if self._incarnation == 0 or self._closed:
            raise LocalError("no incarnation is open; open one before publishing")
        ids = [
            EventId(self._publisher, self._incarnation, self._last + place)
            for place in range(1, len(events) + 1)
        ]
        bodies = [
            encode_event(event.stamped(event_id, time_ns, limits=self._limits, after=after))
            for event, event_id in zip(events, ids, strict=True)
        ]
        size = sum(map(len, bodies))
        if not self.has_room(len(bodies), size):
            raise LocalError(
                f"{len(self._unconfirmed)} events with {self._unconfirmed_bytes} bytes are"
                " unconfirmed; wait for confirmations, or raise the limits in the session options"
            )
        for body in bodies:
            self._last += 1
            self._unconfirmed[self._last] = body
        self._unconfirmed_bytes += size
        return ids, self._send(now)

    def has_room(self, events: int = 1, size: int = 0) -> bool:
        """Whether `publish` would accept this many events with this many bytes."""
        return (
            len(self._unconfirmed) + events <= self._options.unconfirmed_max
            and self._unconfirmed_bytes + size <= self._options.unconfirmed_bytes_max
        )

    # -- the connection -------------------------------------------------------------------------

    def connected(self, now: float) -> SessionEffects:
        """Send all unconfirmed events on a new connection."""
        self._connected = True
        self._rewind()
        return self._send(now)

    def disconnected(self) -> None:
        self._connected = False
        self._sent_before = self._sent_ever
        self._rewind()

    def confirmed(self, now: float, frame: Confirmed) -> SessionEffects:
        if (frame.publisher, frame.incarnation) != (self._publisher, self._incarnation):
            return []
        if frame.sequence > self._sent_ever:
            raise RemoteError(
                f"sequence {frame.sequence} was confirmed, but only {self._sent_ever} were sent"
            )
        if frame.sequence <= self._confirmed:
            return []
        for sequence in range(self._confirmed + 1, frame.sequence + 1):
            self._unconfirmed_bytes -= len(self._unconfirmed.pop(sequence))
        self._confirmed = frame.sequence
        self._sent = max(self._sent, self._confirmed)
        self._resend_factor = self._refused_factor = 1
        self._resend_at = None
        confirmed = EventsConfirmed(self._incarnation, self._confirmed, frame.tick)
        return [confirmed, *self._send(now)]

    def refused(self, now: float, frame: PublishRefused) -> SessionEffects:
        if (frame.publisher, frame.incarnation) != (self._publisher, self._incarnation):
            return []
        if not self._confirmed < frame.sequence <= self._sent:
            # It will be resent anyway: this refusal is a consequence of an earlier one.
            return []
        self._sent = frame.sequence - 1
        final = frame.is_final
        if final:
            self._close(frame.sequence)
        else:
            self._pause_until = now + self._options.retry_refused_after_s * self._refused_factor
            self._refused_factor = min(2 * self._refused_factor, _BACKOFF_MAX)
        if self._sent == self._confirmed:
            self._resend_at = None
        why = (frame.reason, final, frame.begun, frame.code, self._sent_before)
        return [EventsRefused(self._incarnation, frame.sequence, *why)]

    def time_passed(self, now: float) -> SessionEffects:
        if self._resend_at is not None and now >= self._resend_at:
            self._sent = self._confirmed
            self._resend_at = None
            self._resend_factor = min(2 * self._resend_factor, _BACKOFF_MAX)
        return self._send(now)

    def next_deadline(self) -> float | None:
        return earliest(self._pause_until, self._resend_at) if self._connected else None

    # -- internals ------------------------------------------------------------------------------

    def _rewind(self) -> None:
        self._sent = self._confirmed
        self._resend_at = self._pause_until = None
        self._resend_factor = self._refused_factor = 1

    def _close(self, first: int) -> None:
        for sequence in range(first, self._last + 1):
            self._unconfirmed_bytes -= len(self._unconfirmed.pop(sequence))
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
            self._resend_at = now + self._options.resend_after_s * self._resend_factor
        return effects

    def _next_bodies(self, top: int) -> list[bytes]:
        """The events of the next frame, at least one."""
        bodies: list[bytes] = []
        size = 0
        while self._sent < top and len(bodies) < self._options.frame_events_max:
            body = self._unconfirmed[self._sent + 1]
            if bodies and size + len(body) > self._options.frame_bytes_max:
                break
            bodies.append(body)
            size += len(body)
            self._sent += 1
        return bodies


STAGING_REQUEST_FIRST, STAGING_REQUEST_END = 1 << 32, 1 << 40


class SessionStaging:
    """Staging half of a client's session: chunks and commits, each kept until it is answered.

    Rules

    1. Unanswered requests are resent, in order, on the next connection to this broker. Resending is
       harmless: the broker identifies a chunk by its token and index, and a batch by its sink and
       number. On one connection, only rule 2 sends a request twice.
    2. A request refused as `busy` is resent after a pause, which doubles with every refusal and is
       reset by any other reply. The same holds for a chunk that arrived before its predecessors, as
       long as one of them is open here; if they were answered, the broker has dropped them. Any
       other refusal is final; both kinds are reported. After a pause, only the first open chunk of
       each token is sent, and the others once that is answered, so that a full broker does not
       receive megabytes in vain.
    3. The requests of this half have their own numbers, above those of subscriptions and below
       `STAGING_REQUEST_END`, so that a refusal identifies the part it is for.
    4. Only this broker can tell the outcome of an unanswered request, so the client stays with it
       until it answers, or until the application no longer waits (`withdraw`).
    5. At most `staging_max` requests may be open; the caller gets an error beyond that.

    State: lost with the process. Its successor stages the events again with other tokens and
    commits the same batch number, which the broker recognises if it was committed.
    """

    def __init__(self, options: SessionOptions, limits: Limits = DEFAULT_LIMITS) -> None:
        self._options = options
        self._limits = limits
        self._connected = False
        self._last = STAGING_REQUEST_FIRST - 1
        #: Number → unanswered request, in the order of the requests.
        self._open: dict[int, Stage | Commit] = {}
        #: Those refused temporarily, and when they are resent.
        self._refused_requests: set[int] = set()
        self._retry_at: float | None = None
        #: Back-off factor, 1 … 8.
        self._retry_factor = 1

    # -- the application ------------------------------------------------------------------------

    def use_limits(self, limits: Limits) -> None:
        """Check drafts against these limits from now on."""
        self._limits = limits

    @property
    def is_idle(self) -> bool:
        """Whether all requests are answered."""
        return not self._open

    def has_room(self) -> bool:
        """Whether another request is accepted."""
        return len(self._open) < self._options.staging_max

    def draft(self, event: Event, time_ns: int = 0, place: str = "the event") -> bytes:
        return encode_draft(event, time_ns, self._limits, place)

    def stage(
        self, token: str, index: int, drafts: Sequence[bytes], is_last: bool
    ) -> tuple[int, SessionEffects]:
        """Stage a chunk; returns the request number that the reply carries."""
        return self._request(Stage(self._next(), token, index, list(drafts), is_last))

    def commit(
        self, sink: str, query: str, batch: int, tokens: Iterable[str]
    ) -> tuple[int, SessionEffects]:
        """Commit a batch; returns the request number that the reply carries."""
        return self._request(Commit(self._next(), sink, query, batch, tuple(tokens)))

    def discard(self, tokens: Iterable[str]) -> SessionEffects:
        """Discard staged tokens. If the frame is lost, the broker drops them after a timeout."""
        frame = Discard(tuple(tokens))
        named = {*frame.tokens}
        self.withdraw(
            [
                number
                for number, request in self._open.items()
                if isinstance(request, Stage) and request.token in named
            ]
        )
        return [SendFrame(frame)] if self._connected else []

    def withdraw(self, requests: Iterable[int]) -> None:
        """Stop waiting for these requests."""
        for number in requests:
            self._open.pop(number, None)
            self._refused_requests.discard(number)
        # Requests that waited for one of these can be resent at once.
        self._retry_at = (self._retry_at or 0.0) if self._refused_requests else None

    def _next(self) -> int:
        if not self.has_room():
            raise LocalError(
                f"{len(self._open)} chunks and commits are unanswered; wait for replies"
            )
        self._last += 1
        return self._last

    def _request(self, frame: Stage | Commit) -> tuple[int, SessionEffects]:
        self._open[frame.request] = frame
        return frame.request, [SendFrame(frame)] if self._connected else []

    # -- the connection -------------------------------------------------------------------------

    @staticmethod
    def is_own(request: int) -> bool:
        """Whether this is the number of a chunk or a commit."""
        return STAGING_REQUEST_FIRST <= request < STAGING_REQUEST_END

    def connected(self) -> SessionEffects:
        """Resend unanswered requests on a new connection."""
        self._connected = True
        self._reset_retries()
        return [SendFrame(frame) for frame in self._open.values()]

    def disconnected(self) -> None:
        self._connected = False
        self._reset_retries()

    def _reset_retries(self) -> None:
        self._refused_requests.clear()
        self._retry_at = None
        self._retry_factor = 1

    def staged(self, now: float, frame: Staged) -> SessionEffects:
        return [ChunkStaged(frame.request)] if self._answered(now, frame.request) else []

    def committed(self, now: float, frame: Committed) -> SessionEffects:
        if not self._answered(now, frame.request):
            return []
        what = (frame.sink, frame.batch, frame.first, frame.last, frame.was_known)
        return [BatchCommitted(frame.request, *what)]

    def refused(self, now: float, frame: Refused) -> SessionEffects:
        """Process a refusal, which may be temporary."""
        number = frame.request
        if number not in self._open:
            return []
        is_out_of_order = frame.code == UNKNOWN_TOKEN and self._has_open_predecessor(number)
        is_final = frame.code != BUSY and not is_out_of_order
        if is_final:
            self._answered(now, number)
        else:
            self._refused_requests.add(number)
            if self._retry_at is None:
                self._retry_at = now + self._options.retry_refused_after_s * self._retry_factor
                self._retry_factor = min(2 * self._retry_factor, _BACKOFF_MAX)
        return [StagingRefused(number, frame.reason, is_final, frame.code)]

    def _has_open_predecessor(self, number: int) -> bool:
        """Whether an earlier chunk of the same token is unanswered."""
        frame = self._open[number]
        chunks = [chunk for chunk in self._open.values() if isinstance(chunk, Stage)]
        return isinstance(frame, Stage) and any(
            chunk.token == frame.token and chunk.index < frame.index for chunk in chunks
        )

    def _answered(self, now: float, number: int) -> bool:
        self._retry_factor = 1
        self._refused_requests.discard(number)
        if self._refused_requests and self._retry_at is None:
            self._retry_at = now
        return self._open.pop(number, None) is not None

    # -- time -----------------------------------------------------------------------------------

    def time_passed(self, now: float) -> SessionEffects:
        if self._retry_at is None or now < self._retry_at:
            return []
        self._retry_at = None
        numbers = self._first_open() if self._retry_factor > 1 else self._open
        resent = [number for number in numbers if number in self._refused_requests]
        self._refused_requests.difference_update(resent)
        return [SendFrame(self._open[number]) for number in resent]

    def _first_open(self) -> Iterable[int]:
        """All commits, and the first open chunk of each token."""
        tokens: set[str] = set()
        for number, frame in self._open.items():
            if not isinstance(frame, Stage):
                yield number
            elif frame.token not in tokens:
                tokens.add(frame.token)
                yield number

    def next_deadline(self) -> float | None:
        return self._retry_at


EVERYTHING = "TRUE"


class SessionAdvertisements:
    """The advertisements of a session: filters that its events will match.

    The session sends the complete list of filters whenever it changes, and on every new connection
    before any event. The broker refuses events that match none of them; with an empty list, the
    session may publish any event.

    Rules

    1. A withdrawn filter stays on the list until every event published before is confirmed, because
       such an event may have to be resent. The same holds for the permission to publish anything,
       if nothing was advertised before.
    2. A list that exceeds the broker's limits is replaced by `EVERYTHING`. That costs traffic but
       no event.

    State: the list, which the application supplies again after a crash.
    """

    __slots__ = ("_filters", "_is_connected", "_withdrawn")

    def __init__(self) -> None:
        self._filters: tuple[str, ...] = ()
        #: Withdrawn filter → the last event that may need it.
        self._withdrawn: dict[str, int] = {}
        self._is_connected = False

    def advertise(self, filters: Sequence[str], last: int, confirmed: int) -> SessionEffects:
        """Replace the list of filters; an empty list allows any event.

        `last` and `confirmed` are the sequences of the last published and the last confirmed event.
        """
        before, self._filters = self._filters, tuple(dict.fromkeys(filters))
        if before == self._filters:
            return []
        if confirmed < last:
            self._withdrawn |= dict.fromkeys(before or (EVERYTHING,), last)
        for text in self._filters:
            self._withdrawn.pop(text, None)
        return self._announce()

    def confirmed(self, last: int, confirmed: int) -> SessionEffects:
        """Remove withdrawn filters that no unconfirmed event needs."""
        is_all = confirmed == last
        expired = [
            text for text, needed in self._withdrawn.items() if is_all or needed <= confirmed
        ]
        for text in expired:
            del self._withdrawn[text]
        return self._announce() if expired else []

    def connected(self) -> SessionEffects:
        """Announce the list on a new connection."""
        self._is_connected = True
        return self._announce() if self._filters else []

    def disconnected(self) -> None:
        self._is_connected = False

    def _announce(self) -> SessionEffects:
        if not self._is_connected:
            return []
        filters = [*self._filters, *self._withdrawn] if self._filters else []
        if len(filters) > ADVERTISEMENTS_MAX or sum(map(len, filters)) > ADVERTISED_CHARACTERS_MAX:
            filters = [EVERYTHING]
        return [SendFrame(Advertises(filters))]
