"""Requests that wait for an answer, and are repeated until it comes.

Carried messages get lost. So everything an edge asks another broker (replays, holds, finds, claims)
is kept here until it is answered or no longer wanted, and is said again after a pause, which
doubles up to eight times. Rules:

1. A request keeps its number when it is repeated, so any of its answers serves.
2. Numbers grow over all lives of the broker: the upper half of a number is the *run*, which grows
   with every start and is on disk before the first request of the run leaves. So no answer to an
   earlier life is taken for one of this life. A run that has used half of its numbers takes the
   next one as well, long before it needs it.
3. What is due next stands in front of a heap, so that requests which nobody will answer for long
   cost nothing until their turn comes. Entries of requests that were closed or put off are passed
   over, and swept when they are more than the others.
4. There is at most one request per place, attaching stream or edge, and claim: the number of
   requests is bounded by the number of subscriptions.

State: safe to lose, but for the run.
"""

from heapq import heapify, heappop, heappush

from anabranch.core.asks import Ask, CarryTo
from anabranch.core.edge.subscriptions import Attach, Place, Subscription
from anabranch.core.line import DOUBLINGS_MAX
from anabranch.model.frames import AnyCarried

_RUN_BITS = 32
#: A run whose numbers are all within the bounds of frames, and so are those of many after it.
RUN_MAX = (1 << 31) - (1 << 16)
_HALF_RUN = 1 << (_RUN_BITS - 1)
_SWEPT_MIN = 64

#: A replay for a place, a question of an attach, or the claim for a subscription.
About = Place | Attach | Subscription


class Asked:
    """One request."""

    __slots__ = ("about", "at", "attempts", "content", "target")

    def __init__(self, target: str, content: AnyCarried, about: About, at: float) -> None:
        self.target = target
        self.content = content
        self.about = about
        #: When to say it again.
        self.at = at
        self.attempts = 0


class Requests:
    """All requests without an answer. See the rules at the top of this module."""

    def __init__(self, run: int, again_s: float) -> None:
        self.last_number = run << _RUN_BITS
        #: The last run whose numbers are this life's.
        self._run = run
        #: Whether the run is on disk.
        self.is_open = False
        self._again_s = again_s
        self._asked: dict[int, Asked] = {}
        #: A heap of (when, number).
        self._due: list[tuple[float, int]] = []

    @property
    def next_at(self) -> float:
        """No request is due before."""
        return self._due[0][0] if self._due else float("inf")

    def _postpone(self, number: int, asked: Asked, at: float) -> None:
        asked.at = at
        if len(self._due) > 2 * len(self._asked) + _SWEPT_MIN:
            self._due = [(each.at, other) for other, each in self._asked.items()]
            heapify(self._due)
        else:
            heappush(self._due, (at, number))

    def number(self) -> int:
        """A number for the next request."""
        self.last_number += 1
        return self.last_number

    def next_run(self) -> int:
        """A further run to be put on disk, if this one may not last; 0 if it will."""
        if self.last_number + _HALF_RUN < (self._run + 1) << _RUN_BITS:
            return 0
        self._run += 1
        return self._run

    def ask(
        self, now: float, number: int, target: str, content: AnyCarried, about: About
    ) -> list[Ask]:
        """Ask a broker something, now and again."""
        asked = self._asked[number] = Asked(target, content, about, 0.0)
        self._postpone(number, asked, now + self._again_s)
        return [CarryTo(target, content)] if self.is_open else []

    def about(self, number: int, source: str) -> About | None:
        """What a request is about; None if there is no such one of that broker."""
        asked = self._asked.get(number)
        return asked.about if asked is not None and asked.target == source else None

    def content(self, number: int) -> AnyCarried:
        """What was asked."""
        return self._asked[number].content

    def close(self, number: int) -> None:
        """A request is answered, or not wanted any more; 0 is none."""
        self._asked.pop(number, None)

    def postpone(self, now: float, number: int) -> None:
        """The answer says that it is too early: ask again after a pause."""
        self._postpone(number, self._asked[number], now + self._again_s)

    def open(self) -> list[Ask]:
        """The run is on disk: say what has been asked since the start."""
        self.is_open = True
        return [CarryTo(asked.target, asked.content) for asked in self._asked.values()]

    def repeat(self, now: float) -> list[Ask]:
        """Say again what was not answered for too long."""
        again: list[Ask] = []
        while self._due and self._due[0][0] <= now:
            at, number = heappop(self._due)
            asked = self._asked.get(number)
            if asked is None or asked.at != at:
                continue
            asked.attempts += 1
            pause_s = self._again_s * 2 ** min(asked.attempts, DOUBLINGS_MAX)
            self._postpone(number, asked, now + pause_s)
            if self.is_open:
                again.append(CarryTo(asked.target, asked.content))
        return again
