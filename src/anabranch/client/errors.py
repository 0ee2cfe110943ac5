"""What can go wrong for a client, told apart by what the application can do about it.

    ConnectError                no broker of the addresses could be reached; check them
    ClosedError                 the client is closed, by the application or by what the text says
    PublishRefusedError         the event will never be in the log; publish another one
    PublishUnknownError         nobody can say any more whether the event is in the log
    ClockError                  this machine's clock is far behind what was published before; set it
    NotAdvertisedError          the event is outside of what this client advertised
    SubscriptionRefusedError    the broker does not grant the subscription
    SubscriptionCutError        the subscription is over; a durable one can be taken up again
    WithheldError               some ticks will not come; reading on continues after them
    RequestTimeoutError         no reply came in time
    BatchRefusedError           the broker does not stage or commit this; `code` says what to do
    BatchUnknownError           the broker has not answered; commit the same batch again
    PatternRefusedError         the broker does not define or drop a pattern; its reason says why
    PatternUnknownError         no broker has answered; ask for the same again
    FetchRefusedError           the broker does not give out what was asked for
    TicksNotKeptError           ... because the log begins later; `oldest` says where
    FetchCutError               the client is at another broker than the one it read from

All are `AnabranchError`; what is wrong with an event, a filter or a pattern is an `EventError`, a
`FilterError` or a `PatternError`, as everywhere.
"""

from anabranch.model.errors import AnabranchError, LocalError
from anabranch.model.event import EventId
from anabranch.model.instants import utc_text


class ClientError(AnabranchError):
    """Something a client could not do."""


class ConnectError(ClientError, ConnectionError):
    """No broker could be reached."""


class ClosedError(ClientError):
    """The client is closed."""


class PublishRefusedError(ClientError):
    """The origin will never take this event."""

    def __init__(self, event_id: EventId, reason: str) -> None:
        super().__init__(f"event {event_id} was refused: {reason}")
        self.event_id = event_id
        self.reason = reason


class PublishUnknownError(ClientError):
    """Whether this event is in the log cannot be known; it will not be sent again."""

    def __init__(self, event_id: EventId, reason: str) -> None:
        super().__init__(f"event {event_id} may be published or not: {reason}")
        self.event_id = event_id
        self.reason = reason


class ClockError(ClientError):
    """No new incarnation can begin by this machine's clock; the event was not sent."""

    def __init__(self, client: str, last: int, time_ns: int, lead_s: float) -> None:
        super().__init__(
            f"client {client!r} has published with incarnation {last} ({utc_text(last)}), which"
            f" leads this machine's clock ({utc_text(time_ns)}) by more than {lead_s:g} s; set the"
            " clock, publish at another broker, or take another name"
        )


class NotAdvertisedError(LocalError):
    """The event matches no advertisement of the client that publishes it."""


class SubscriptionRefusedError(ClientError):
    """The broker does not grant a subscription."""

    def __init__(self, subscription: str, reason: str) -> None:
        super().__init__(f"subscription {subscription!r} was refused: {reason}")
        self.subscription = subscription
        self.reason = reason


class SubscriptionCutError(ClientError):
    """A subscription is over although the application did not end it."""

    def __init__(self, subscription: str, reason: str) -> None:
        super().__init__(f"subscription {subscription!r} was cut: {reason}")
        self.subscription = subscription
        self.reason = reason


class WithheldError(ClientError):
    """Matches may have been in these ticks, and will not come."""

    def __init__(self, subscription: str, stream: str, first: int, last: int, reason: str) -> None:
        super().__init__(
            f"subscription {subscription!r} does not get ticks {first} to {last}"
            f" of stream {stream!r}: {reason}"
        )
        self.subscription = subscription
        self.stream = stream
        self.first = first
        self.last = last
        self.reason = reason


class RequestTimeoutError(ClientError, TimeoutError):
    """Nobody replied in time."""


class BatchRefusedError(ClientError):
    """The broker does not stage or commit something; nothing has changed there."""

    def __init__(self, what: str, reason: str, code: str) -> None:
        super().__init__(f"{what} was refused: {reason}")
        self.reason = reason
        #: `unknown-token`, `too-large`, `other-query`, `other-batch`, `departing`, `other-broker`,
        #: or "".
        self.code = code


class BatchUnknownError(ClientError, TimeoutError):
    """The broker has not answered in time, or never will: it has staged or committed, or not."""


class PatternRefusedError(ClientError):
    """The broker does not define or drop a pattern."""

    def __init__(self, pattern: str, reason: str, code: str) -> None:
        super().__init__(f"pattern {pattern!r} was refused: {reason}")
        self.pattern = pattern
        self.reason = reason
        #: `unknown` if no broker has it, `busy` if the same may be granted later, or "".
        self.code = code


class PatternUnknownError(ClientError, TimeoutError):
    """No broker has answered in time: a pattern is defined or dropped, or not."""


class FetchRefusedError(ClientError):
    """The broker does not give out what was asked for."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the fetch was refused: {reason}")
        self.reason = reason


class TicksNotKeptError(FetchRefusedError):
    """The log does not have the first tick any more."""

    def __init__(self, reason: str, oldest: int) -> None:
        super().__init__(reason)
        #: The oldest tick that it has.
        self.oldest = oldest


class FetchCutError(ClientError):
    """A fetch cannot go on, since the client is elsewhere."""

    def __init__(self, stream: str, broker: str) -> None:
        super().__init__(
            f"the stream of {stream!r} is read there, and the client is at {broker!r} now; connect"
            f" to {stream!r} alone"
        )
        self.stream = stream
        self.broker = broker
