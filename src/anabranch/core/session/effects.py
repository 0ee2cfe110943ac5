"""What a client's session asks for: frames for the broker, and news for the application.

A session never acts. Every method returns a list of the values below; whoever drives it (a client
library with a socket, or the simulator) performs them in order. Frames are lost if there is no
connection, which is no harm: whatever matters is said again after the next one.

What is told about a subscription comes in this order, per stream:

    TellStart · DeliverToApplication and TellWithheld, ticks ascending · TellEnded or TellCut
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from anabranch.model.client_frames import AnyClientFrame, Code, Described, Fetched, Refused

StartKind = Literal["now", "beginning", "tick", "time", "resume"]


class SessionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a session behaves where a client may choose. Times are in seconds."""

    #: Events that wait for confirmation, sent or not; `publish` refuses to take more.
    unconfirmed_max: int = 4_096
    unconfirmed_bytes_max: int = 64 * 1024 * 1024
    #: Events that may be on the way to the broker without being confirmed.
    in_flight_max: int = 1_024
    #: What one `Publish` frame holds.
    frame_events_max: int = 256
    frame_bytes_max: int = 1_048_576
    #: Events that were sent and not confirmed for this long are sent again, doubling up to eight
    #: times of it.
    resend_after_s: float = 5.0
    #: Chunks and commits that may wait for an answer.
    staging_max: int = 64
    #: What was refused is sent again after this long, likewise.
    refused_again_s: float = 0.25
    #: Acknowledgements are gathered for this long, or until a quarter of the window has arrived.
    ack_after_s: float = 0.05


class ResumePoint(msgspec.Struct, frozen=True, kw_only=True):
    """All that a client has to know to come back to a durable subscription, here or elsewhere.

    A client that keeps this on disk keeps `number` and `acked`; `received` is about what this very
    process has in hand, and a new process begins with none of it."""

    name: str
    filter: str
    #: The last ownership number this client used; 0 if it never did, or forgot it.
    number: int = 0
    #: Stream → the application has dealt with everything up to this tick.
    acked: Mapping[str, int] = {}
    #: Stream → the application was given everything up to this tick.
    received: Mapping[str, int] = {}
    #: `resume` once the subscription stood; before that, what was asked for.
    start: StartKind = "resume"
    start_time_ns: int = 0
    start_ticks: Mapping[str, int] = {}
    window: int = 256
    manual_ack: bool = False


class SessionEffect(msgspec.Struct, frozen=True, gc=False):
    """Something to be done, or to be told to the application."""


class SendFrame(SessionEffect, frozen=True):
    """Send this to the broker."""

    frame: AnyClientFrame


class Confirm(SessionEffect, frozen=True):
    """All events of this incarnation up to this sequence are safe."""

    incarnation: int
    sequence: int


class TellPublishRefused(SessionEffect, frozen=True):
    """The broker does not take this event and what followed it.

    If that is final, they will never be in the log, and this incarnation takes no more; otherwise
    the session sends them again by itself."""

    incarnation: int
    sequence: int
    reason: str
    final: bool
    #: The higher incarnation that has begun, if this one is over for that; 0 otherwise.
    begun: int = 0
    code: str = ""


class TellStands(SessionEffect, frozen=True):
    """The broker has the subscription. Starts are told one by one."""

    subscription: str
    number: int


class TellStart(SessionEffect, frozen=True):
    """From this tick of the stream on, the application gets every match, once and in order."""

    subscription: str
    stream: str
    tick: int


class DeliverToApplication(SessionEffect, frozen=True):
    """A match."""

    subscription: str
    stream: str
    tick: int
    #: The origin's clock when the tick was made.
    time_ns: int
    #: The encoded event.
    body: bytes


class TellWithheld(SessionEffect, frozen=True):
    """There may have been matches in these ticks; they will not come."""

    subscription: str
    stream: str
    first: int
    last: int
    reason: str


class TellEnded(SessionEffect, frozen=True):
    """The application unsubscribed; it has every match up to these ticks, and gets no more."""

    subscription: str
    ticks: Mapping[str, int]


class TellCut(SessionEffect, frozen=True):
    """The subscription is over although the application did not ask for it; "": the session is.

    A durable one lives on without this session: with its standing it can be taken up again."""

    subscription: str
    reason: str
    standing: ResumePoint | None = None
    #: As in the frame `Cut`.
    code: Code = ""


class TellRefused(SessionEffect, frozen=True):
    """The broker does not grant the subscription. A durable one that once stood still stands."""

    subscription: str
    reason: str
    standing: ResumePoint | None = None
    #: As in the frame `Refused`.
    code: Code = ""


class TellOfBatch(SessionEffect, frozen=True):
    """The broker answers a chunk or a commit."""

    request: int


class TellStaged(TellOfBatch, frozen=True):
    """A chunk is safe."""


class TellCommitted(TellOfBatch, frozen=True):
    """A batch is in the stream, all of it, once."""

    sink: str
    batch: int
    #: As in the frame `Committed`.
    first: int
    last: int
    was_known: bool


class TellStagingRefused(TellOfBatch, frozen=True):
    """A chunk or a commit is not granted; if that is not final, the session asks again."""

    reason: str
    final: bool
    #: As in the frame `Refused`.
    code: Code = ""


class TellAnswer(SessionEffect, frozen=True):
    """The broker answers a question about its log."""

    answer: Described | Fetched | Refused


class TellDefined(SessionEffect, frozen=True):
    """The broker answers what was asked about a pattern."""

    request: int
    pattern: str
    #: Whether it was to be dropped, and not defined.
    is_drop: bool
    #: Why that is not granted; "" if it is.
    reason: str = ""
    #: As in the frame `Refused`.
    code: Code = ""


SessionEffects = list[SessionEffect]
