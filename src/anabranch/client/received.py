"""What a subscription gives to the application: events, and ranges that will not come."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

import msgspec

from anabranch.client.composing import How
from anabranch.model.event import Event
from anabranch.model.header import EventId
from anabranch.model.values import Value

if TYPE_CHECKING:
    from anabranch.client.subscription import Subscription

_UNPUBLISHED = EventId("", 0, 0)


class Received(msgspec.Struct, frozen=True, eq=False):
    """An event as a subscription got it. `received["price"]` reads an attribute of it."""

    event: Event
    #: The origin's stream, and the event's place in it.
    stream: str
    tick: int
    #: The origin's clock when it took the event: nanoseconds since 1970 in UTC.
    time_ns: int
    subscription: "Subscription"
    #: Names the uninterrupted promise that this delivery is part of; traces use it.
    episode: str = ""

    @property
    def id(self) -> EventId:
        """Who published it, in which life, and as which one."""
        return self.event.id or _UNPUBLISHED

    @property
    def payload(self) -> bytes:
        """The opaque part of the event."""
        return self.event.payload

    def __getitem__(self, name: str) -> Value:
        return self.event[name]

    def get(self, name: str, default: Value | None = None) -> Value | None:
        """The value of an attribute, or `default` if the event has none of that name."""
        return self.event.get(name, default)

    async def reply(self, attributes: Mapping[str, Value], **how: Unpack[How]) -> EventId:
        """Publish an answer that only the client gets that published this event."""
        return await self.subscription.reply(self, attributes, **how)


class Withheld(msgspec.Struct, frozen=True):
    """Ticks in which there may have been matches that will not come, and why."""

    subscription: str
    stream: str
    first: int
    last: int
    reason: str
    episode: str = ""


Item = Received | Withheld
