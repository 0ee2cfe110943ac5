"""A client session with one durable subscription, and what it says, in few words."""

from anabranch.core.session.effects import (
    EventDelivered,
    SendFrame,
    SessionEffects,
)
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import Deliver, Matches, Quality, StartsAt, Subscribe, Subscribed
from anabranch.model.frame_parts import Datum

FILTER = "a > 1"


def subscriber(
    quality: Quality = "durable", *, manual: bool = False, window: int = 256
) -> ClientSession:
    """A connected session with one subscription that stands and has started at tick 1 of o."""
    session = ClientSession("c")
    session.connected(0.0)
    session.subscribe(0.0, "s", FILTER, quality=quality, manual_ack=manual, window=window)
    session.frame(0.0, Subscribed(1, "s", 1, {}))
    session.frame(0.0, StartsAt("s", "o", 1))
    return session


def deliver(*ticks: int, through: int = 0, stream: str = "o") -> Deliver:
    data = [Datum(tick, tick * 10, b"%d" % tick) for tick in ticks]
    return Deliver(stream, [Matches("s", through or ticks[-1], data)])


def given(effects: SessionEffects) -> list[int]:
    return [effect.tick for effect in effects if isinstance(effect, EventDelivered)]


def frames(effects: SessionEffects) -> list[object]:
    return [effect.frame for effect in effects if isinstance(effect, SendFrame)]


def the_subscribe(effects: SessionEffects) -> Subscribe:
    (frame,) = [frame for frame in frames(effects) if isinstance(frame, Subscribe)]
    assert isinstance(frame, Subscribe)
    return frame


def reconnect(session: ClientSession, now: float = 10.0) -> Subscribe:
    session.disconnected(now)
    return the_subscribe(session.connected(now))
