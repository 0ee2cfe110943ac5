"""Tallies: what came to join points and what they found, between two looks.

Rates for which there are no statistics are counted. The first look only begins: what a join point
is given again when it starts came at another time, and counts for nothing.

State: the counts of the last look. Safe to lose.
"""

from typing import NamedTuple

from anabranch.core.points.point import JoinPoint


class Counted(NamedTuple):
    """What was counted since the look before."""

    #: Origin → events per second,
    rates: dict[str, float]
    matches_per_s: float
    #: and how many events that rests on.
    events: int


class _Tally(NamedTuple):
    """What a join point had counted at a look."""

    session: int
    at: float
    by_stream: dict[str, int]
    events: int
    reported: int


class Tallies:
    """The counts of all join points of a broker. See the top of this module."""

    def __init__(self) -> None:
        self._tallies: dict[str, _Tally] = {}

    def look(self, now: float, point: JoinPoint) -> Counted | None:
        """What came since the last look; None if this is the first one of this activation."""
        counters, pattern_id = point.counters, point.record.id
        by_stream = dict(counters.by_stream)
        tally = _Tally(point.session, now, by_stream, counters.events, counters.reported)
        before = self._tallies.get(pattern_id)
        self._tallies[pattern_id] = tally
        if before is None or before.session != tally.session or now <= before.at:
            return None
        for_s = now - before.at
        rates = {
            stream: (count - before.by_stream.get(stream, 0)) / for_s
            for stream, count in by_stream.items()
        }
        matches_per_s = (tally.reported - before.reported) / for_s
        return Counted(rates, matches_per_s, tally.events - before.events)

    def forgotten(self, pattern_id: str) -> None:
        """It is not here any more."""
        self._tallies.pop(pattern_id, None)
