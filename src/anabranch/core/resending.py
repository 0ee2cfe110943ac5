"""What was resent to whom lately, so that an impatient edge is not served twice.

An edge that lacks ticks asks, and asks again when nothing comes. Answers and questions may cross,
paths may be slow, and a peer may repeat itself a hundred times. So a tick goes to the same edge at
most once in `quiet_s`, which is half the time after which an edge asks again. The sets are bounded:
an edge with too many of them is not answered until the oldest has expired.

State: safe to lose; an edge is then answered once more.
"""

from collections import deque
from collections.abc import Iterable

from anabranch.core.ranges import RangeSet

#: Answers to one edge that are remembered at a time.
ANSWERS_MAX = 64


class Resends:
    """Recent answers, per edge. See the top of this module."""

    __slots__ = ("_quiet_s", "_recent")

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        #: Edge → (when it may ask again, what it got), oldest first.
        self._recent: dict[str, deque[tuple[float, RangeSet]]] = {}

    def due(self, now: float, edge: str, ranges: Iterable[tuple[int, int]]) -> RangeSet:
        """What of these ranges was not resent to this edge lately."""
        recent = self._recent.get(edge)
        while recent and recent[0][0] <= now:
            recent.popleft()
        if recent and len(recent) >= ANSWERS_MAX:
            return RangeSet()
        wanted = RangeSet(ranges)
        for _, ticks in recent or ():
            for first, last in ticks:
                wanted.remove(first, last)
        return wanted

    def resent(self, now: float, edge: str, ticks: RangeSet) -> None:
        """These ticks are on the way to this edge."""
        if ticks:
            recent = self._recent.setdefault(edge, deque())
            recent.append((now + self._quiet_s, ticks))
