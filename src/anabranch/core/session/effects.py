"""Effects of a client's session: frames for the broker, and reports for the application.

A session performs no I/O. Every method returns a list of the values below, and the driver (a client
library with a socket, or the simulator) performs them in order. Frames without a connection are
dropped, which is harmless: the session sends everything that matters again on the next connection.

Effects of a subscription come in this order, per stream:

    SubscriptionStarted
    EventDelivered and TicksWithheld, ticks ascending
    SubscriptionEnded or SubscriptionCut

`OrderGivenUp` comes before the event that it is about.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from anabranch.model.client_frames import AnyClientFrame, Code, Described, Fetched, Refused

StartKind = Literal["now", "beginning", "tick", "time", "resume"]


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a client's session. Times are in seconds."""

    #: Unconfirmed events, sent or not, and their bytes; beyond these `publish` raises an error.
    unconfirmed_max: int = 4_096
    unconfirmed_bytes_max: int = 64 * 1024 * 1024
    #: Events in flight to the broker that are not confirmed.
    in_flight_max: int = 1_024
    #: Events and bytes per `Publish` frame.
    frame_events_max: int = 256
    frame_bytes_max: int = 1_048_576
    #: Events that are not confirmed for this long are resent, backing off to eight times that.
    resend_after_s: float = 5.0
    #: Unanswered chunks and commits.
    staging_max: int = 64
    #: Refused events, chunks and commits are resent after this long, with the same back-off.
    retry_refused_after_s: float = 0.25
    #: Acknowledgements are collected for this long, or until a quarter of the window has arrived.
    ack_after_s: float = 0.05


class ResumePoint(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a client needs to resume a durable subscription, at this or another broker.

    A client that saves it to disk saves `number` and `acked`; `received` describes the present
    process, and a new process starts without it."""

    name: str
    filter: str
    #: The last ownership number that this client used; 0 if it used none, or lost it.
    number: int = 0
    #: Stream → the application has acknowledged everything up to this tick.
    acked: Mapping[str, int] = {}
    #: Stream → the application has received everything up to this tick.
    received: Mapping[str, int] = {}
    #: `resume` once the broker has accepted the subscription; before that, the requested start.
    start: StartKind = "resume"
    start_time_ns: int = 0
    start_ticks: Mapping[str, int] = {}
    window: int = 256
    manual_ack: bool = False


class SessionEffect(msgspec.Struct, frozen=True, gc=False):
    """An action for the driver, or a report to the application."""


class SendFrame(SessionEffect, frozen=True):
    """Send a frame to the broker."""

    frame: AnyClientFrame


class EventsConfirmed(SessionEffect, frozen=True):
    """All events of this incarnation up to this sequence are durable."""

    incarnation: int
    sequence: int
    #: As in the frame `Confirmed`.
    tick: int = 0


class EventsRefused(SessionEffect, frozen=True):
    """The broker refused this event and all later ones.

    If the refusal is final, they will never be in the log, and this incarnation is closed;
    otherwise the session resends them itself."""

    incarnation: int
    sequence: int
    reason: str
    final: bool
    #: The higher incarnation that superseded this one; 0 if that is not the reason.
    begun: int = 0
    code: str = ""
    #: Events up to this sequence were sent over an earlier connection too.
    sent_before: int = 0


class SubscriptionAccepted(SessionEffect, frozen=True):
    """The broker accepted the subscription. The start of each stream is reported separately."""

    subscription: str
    number: int


class SubscriptionStarted(SessionEffect, frozen=True):
    """From this tick of the stream on, the application receives every match, once and in order."""

    subscription: str
    stream: str
    tick: int


class EventDelivered(SessionEffect, frozen=True):
    """A matching event."""

    subscription: str
    stream: str
    tick: int
    #: The origin's clock when it accepted the event.
    time_ns: int
    #: The encoded event.
    body: bytes


class TicksWithheld(SessionEffect, frozen=True):
    """These ticks may contain matches, but will not be delivered."""

    subscription: str
    stream: str
    first: int
    last: int
    reason: str


class OrderGivenUp(SessionEffect, frozen=True):
    """The event at this tick may come before earlier events of its publisher."""

    subscription: str
    stream: str
    tick: int
    #: As in the frame `OrderNotKept`.
    publisher: str
    incarnation: int
    origin: str
    after: int


class SubscriptionEnded(SessionEffect, frozen=True):
    """The subscription ended on request; the application has every match up to these ticks."""

    subscription: str
    ticks: Mapping[str, int]


class SubscriptionCut(SessionEffect, frozen=True):
    """The subscription was closed without a request of the application; "": the session was.

    A durable subscription continues to exist, and can be resumed from its resume point."""

    subscription: str
    reason: str
    resume_point: ResumePoint | None = None
    #: As in the frame `Cut`.
    code: Code = ""


class SubscriptionRefused(SessionEffect, frozen=True):
    """The broker refused the subscription. A durable one that existed before still exists."""

    subscription: str
    reason: str
    resume_point: ResumePoint | None = None
    #: As in the frame `Refused`.
    code: Code = ""


class StagingReply(SessionEffect, frozen=True):
    """The broker's reply to a chunk or a commit."""

    request: int


class ChunkStaged(StagingReply, frozen=True):
    """The chunk is durable."""


class BatchCommitted(StagingReply, frozen=True):
    """The batch is in the stream, completely and once."""

    sink: str
    batch: int
    #: As in the frame `Committed`.
    first: int
    last: int
    was_known: bool


class StagingRefused(StagingReply, frozen=True):
    """The broker refused a chunk or a commit; unless that is final, the session retries."""

    reason: str
    final: bool
    #: As in the frame `Refused`.
    code: Code = ""


class LogQueryAnswered(SessionEffect, frozen=True):
    """The broker's reply to a log query."""

    answer: Described | Fetched | Refused


class PatternRequestAnswered(SessionEffect, frozen=True):
    """The broker's reply to a pattern request."""

    request: int
    pattern: str
    #: Whether the request was to drop the pattern rather than define it.
    is_drop: bool
    #: Why the broker refused it; "" if it did not.
    reason: str = ""
    #: As in the frame `Refused`.
    code: Code = ""


SessionEffects = list[SessionEffect]
