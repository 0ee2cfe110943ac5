"""What patterns are matched against, and what a match is.

A *placed event* is an event with its place: the stream and the tick that name it, and the time by
which patterns order it. A *match* is the events that satisfy a pattern together, each with the name
of the part it stands for. Rules:

1. The order of events is by time, then by the name of the stream, then by tick. No two events are
   equal in all three, so the order is total, and the same wherever it is asked for.
2. The identity of a match is the sorted list of (part, stream, tick). It depends on nothing but the
   match, so two detectors that find the same one can be told that they did.
3. Whoever places an event chooses what its time is (what its publisher says, or its origin's clock)
   and uses the same for all events of one pattern.

These are values; they keep no state.
"""

import msgspec

from anabranch.model.values import Value

#: The place of an event in the order of all: time, stream, tick.
Key = tuple[int, str, int]
#: What a match is called: part, stream and tick of each event, sorted.
Identity = tuple[tuple[str, str, int], ...]


class PlacedEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event, and where it stands."""

    stream: str
    tick: int
    #: Nanoseconds since 1970, or by whichever clock all events of the pattern have.
    time_ns: int
    attributes: dict[str, Value]
    #: The event as it was published, or nothing. It is carried along, and not looked into.
    body: bytes = b""

    @property
    def key(self) -> Key:
        """Its place in the order of all events."""
        return self.time_ns, self.stream, self.tick


class Contribution(msgspec.Struct, frozen=True, array_like=True):
    """An event of a match, and the part it stands for."""

    part: str
    event: PlacedEvent


class Match(msgspec.Struct, frozen=True, array_like=True):
    """The events that satisfy a pattern together."""

    #: Which pattern, as whoever asked for it calls it.
    pattern: str
    #: In the order of events.
    contributions: tuple[Contribution, ...]
    #: Whether more matches end with the same event than `pattern_matches_max`, and are left out.
    is_cut: bool = False

    @property
    def identity(self) -> Identity:
        """The same for the same match, whoever detects it."""
        return tuple(
            sorted((each.part, each.event.stream, each.event.tick) for each in self.contributions)
        )

    @property
    def by_part(self) -> dict[str, tuple[PlacedEvent, ...]]:
        """The events of each part that has any, in the order of events."""
        found: dict[str, tuple[PlacedEvent, ...]] = {}
        for part, event in ((each.part, each.event) for each in self.contributions):
            found[part] = (*found.get(part, ()), event)
        return found

    @property
    def last(self) -> PlacedEvent:
        """The event that it ends with."""
        return self.contributions[-1].event
