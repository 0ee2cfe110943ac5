"""What the matches of a pattern give to the application.

    async for matched in await client.subscribe_pattern(text):
        print(matched["low"]["price"], matched["high"]["price"])

A match is delivered as one event (`model.pattern.notification`); this is what it says. The events
that contributed are here as they were published. If together they were more than an event may hold,
only their places are: `is_whole` is False then, and they can be fetched from their streams.

These are values; they keep no state.
"""

from collections.abc import Mapping

import msgspec

from anabranch.client.received import Received
from anabranch.model.encoding import decode_event
from anabranch.model.errors import LocalError
from anabranch.model.event import Event
from anabranch.model.limits import Limits
from anabranch.model.pattern.match import Contribution, Identity
from anabranch.model.pattern.notification import read_notification
from anabranch.model.values import Value


class PartEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a match. `event_of_part["price"]` reads an attribute of it."""

    #: The part of the pattern that it stands for.
    part: str
    #: Its origin's stream, and its place in it.
    stream: str
    tick: int
    #: The origin's clock when it took the event: nanoseconds since 1970 in UTC.
    time_ns: int
    #: As it was published; None if the match is not whole.
    event: Event | None

    def __getitem__(self, name: str) -> Value:
        return self._here()[name]

    def get(self, name: str, default: Value | None = None) -> Value | None:
        """The value of an attribute, or `default` if the event has none of that name."""
        return self._here().get(name, default)

    def _here(self) -> Event:
        if self.event is None:
            raise LocalError(
                f"the match was too large to have its events: fetch tick {self.tick} of stream"
                f" {self.stream!r}"
            )
        return self.event


class Matched(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """A match of a pattern. `matched["low"]` is the first event of that part."""

    #: The pattern's id.
    pattern: str
    #: All events, in their order.
    events: tuple[PartEvent, ...]
    #: What no other match of the pattern has: its sorted (part, stream, tick).
    identity: Identity
    #: Whether the events are here, and not their places alone.
    is_whole: bool
    #: Whether more matches end with the same event, and are left out (`pattern_matches_max`).
    is_cut: bool
    #: The event that told of it, for its stream, tick and time.
    received: Received

    @property
    def by_part(self) -> Mapping[str, tuple[PartEvent, ...]]:
        """Part → its events, in their order, of those that have any."""
        found: dict[str, tuple[PartEvent, ...]] = {}
        for each in self.events:
            found[each.part] = (*found.get(each.part, ()), each)
        return found

    def __getitem__(self, part: str) -> PartEvent:
        for each in self.events:
            if each.part == part:
                return each
        parts = ", ".join(dict.fromkeys(each.part for each in self.events))
        raise KeyError(f"this match has no event of part {part!r}; it has some of {parts}")

    def __contains__(self, part: object) -> bool:
        return any(each.part == part for each in self.events)

    @property
    def first_ns(self) -> int:
        """The time of its first event."""
        return self.events[0].time_ns

    @property
    def last_ns(self) -> int:
        """The time of its last event."""
        return self.events[-1].time_ns


def matched_by(received: Received, limits: Limits) -> Matched:
    """What a notification tells; `RemoteError` if it is none."""
    told = read_notification(received.event, limits)
    return Matched(
        pattern=told.match.pattern,
        events=tuple(_part(each, told.is_whole, limits) for each in told.match.contributions),
        identity=told.match.identity,
        is_whole=told.is_whole,
        is_cut=told.match.is_cut,
        received=received,
    )


def _part(contribution: Contribution, is_whole: bool, limits: Limits) -> PartEvent:
    placed = contribution.event
    return PartEvent(
        part=contribution.part,
        stream=placed.stream,
        tick=placed.tick,
        time_ns=placed.time_ns,
        event=decode_event(placed.body, limits) if is_whole else None,
    )
