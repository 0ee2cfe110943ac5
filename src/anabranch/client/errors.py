"""The errors of a client, grouped by what the application can do about them.

    ConnectError                no broker could be reached; check the addresses
    ClosedError                 the client is closed; the text gives the reason
    PublishRefusedError         the event will never be in the log; correct it and publish again
    PublishUnknownError         the event may or may not be in the log
    PublishNotSentError         the event was not sent: an earlier one has an unknown outcome
    ClockError                  this machine's clock is behind earlier incarnations; set the clock
    NotAdvertisedError          the event matches none of the client's advertisements
    AttributeTypeError          a received event lacks an attribute, or it has another type
    SubscriptionRefusedError    the broker refused the subscription
    SubscriptionCutError        the subscription is over; a durable one can be resumed
    WithheldError               some ticks will not be delivered; reading continues after them
    RequestTimeoutError         no reply arrived in time
    BatchRefusedError           the broker refused to stage or commit; `code` gives the reason
    BatchUnknownError           the broker has not answered; commit the same batch again
    PatternRefusedError         the broker refused to define or drop a pattern
    PatternUnknownError         no broker has answered; repeat the call
    FetchRefusedError           the broker refused the fetch
    TicksNotKeptError           ... because the log starts later, at `oldest`
    FetchCutError               the client has moved away from the broker it was reading from

All of them are `AnabranchError`. Invalid events, filters and patterns raise `EventError`,
`FilterError` and `PatternError` (`model.errors`).
"""

from anabranch.model.errors import AnabranchError, LocalError
from anabranch.model.event import EventId, utc_text


class ClientError(AnabranchError):
    """An operation of a client failed."""


class ConnectError(ClientError, ConnectionError):
    """No broker could be reached."""


class ClosedError(ClientError):
    """The client is closed."""


class PublishRefusedError(ClientError):
    """The origin refused the event and will never accept it."""

    def __init__(self, event_id: EventId, reason: str) -> None:
        super().__init__(f"event {event_id} was refused: {reason}")
        self.event_id = event_id
        self.reason = reason


class PublishUnknownError(ClientError):
    """The event may or may not be in the log. The client does not resend it."""

    def __init__(self, event_id: EventId, reason: str) -> None:
        super().__init__(f"event {event_id} may or may not be published: {reason}")
        self.event_id = event_id
        self.reason = reason


class PublishNotSentError(ClientError):
    """The event was not sent. It waited behind an event whose outcome remains unknown."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the event was not sent: {reason}")
        self.reason = reason


class ClockError(ClientError):
    """This machine's clock does not allow a new incarnation. The event was not sent."""

    def __init__(self, client: str, last: int, time_ns: int, lead_s: float) -> None:
        super().__init__(
            f"client {client!r} has published with incarnation {last} ({utc_text(last)}), which"
            f" leads this machine's clock ({utc_text(time_ns)}) by more than {lead_s:g} s; set the"
            " clock, publish at another broker, or take another name"
        )


class NotAdvertisedError(LocalError):
    """The event matches none of the client's advertisements."""


class AttributeTypeError(LocalError, TypeError):
    """An attribute of a received event is absent, or does not have the wanted type."""

    def __init__(self, name: str, wanted: str, found: str) -> None:
        """`found` describes the type and value of the attribute; "" if it is absent."""
        what = f"attribute {name!r} is {found}" if found else f"there is no attribute {name!r}"
        super().__init__(f"{what}; {wanted} was wanted")
        self.name = name
        self.wanted = wanted
        self.found = found


class SubscriptionRefusedError(ClientError):
    """The broker refused a subscription."""

    def __init__(self, subscription: str, reason: str) -> None:
        super().__init__(f"subscription {subscription!r} was refused: {reason}")
        self.subscription = subscription
        self.reason = reason


class SubscriptionCutError(ClientError):
    """A subscription ended without a request of the application."""

    def __init__(self, subscription: str, reason: str) -> None:
        super().__init__(f"subscription {subscription!r} was cut: {reason}")
        self.subscription = subscription
        self.reason = reason


class WithheldError(ClientError):
    """These ticks may contain matches that will not be delivered."""

    def __init__(self, subscription: str, stream: str, first: int, last: int, reason: str) -> None:
        super().__init__(
            f"ticks {first} to {last} of stream {stream!r} are withheld from subscription"
            f" {subscription!r}: {reason}"
        )
        self.subscription = subscription
        self.stream = stream
        self.first = first
        self.last = last
        self.reason = reason


class RequestTimeoutError(ClientError, TimeoutError):
    """No reply arrived in time."""


class BatchRefusedError(ClientError):
    """The broker refused to stage or commit. Nothing has changed there."""

    def __init__(self, what: str, reason: str, code: str) -> None:
        super().__init__(f"{what} was refused: {reason}")
        self.reason = reason
        #: `unknown-token`, `too-large`, `other-query`, `other-batch`, `departing`, `other-broker`,
        #: or "".
        self.code = code


class BatchUnknownError(ClientError, TimeoutError):
    """The broker has not answered in time. It may or may not have staged or committed."""


class PatternRefusedError(ClientError):
    """The broker refused to define or drop a pattern."""

    def __init__(self, pattern: str, reason: str, code: str) -> None:
        super().__init__(f"pattern {pattern!r} was refused: {reason}")
        self.pattern = pattern
        self.reason = reason
        #: `unknown` if the pattern does not exist, `busy` if the request may succeed later, or "".
        self.code = code


class PatternUnknownError(ClientError, TimeoutError):
    """No broker has answered in time. The pattern may or may not be defined or dropped."""


class FetchRefusedError(ClientError):
    """The broker refused a fetch."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the fetch was refused: {reason}")
        self.reason = reason


class TicksNotKeptError(FetchRefusedError):
    """The log no longer contains the first tick."""

    def __init__(self, reason: str, oldest: int) -> None:
        super().__init__(reason)
        #: The oldest tick in the log.
        self.oldest = oldest


class FetchCutError(ClientError):
    """A fetch cannot continue because the client has moved to another broker."""

    def __init__(self, stream: str, broker: str) -> None:
        super().__init__(
            f"stream {stream!r} can be read only at its own broker, and the client has moved to"
            f" {broker!r}; connect to {stream!r} alone"
        )
        self.stream = stream
        self.broker = broker
