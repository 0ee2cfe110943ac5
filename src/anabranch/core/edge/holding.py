"""Holding: asking origins to keep what a subscription needs that comes from elsewhere.

A client that was at another edge, or whose reliable subscription lost its connection, brings the
ticks up to which it has everything. Nothing that this edge ever said promises that what follows
them is kept, so each origin is asked to *hold* it. The subscription does not wait for that: it
stands as soon as it is on disk with all its ticks, and each stream is served as soon as its own
origin has answered. An origin that does not answer is asked again, less and less often. Often it is
the very edge that the client had to leave. Rules:

1. A place is *holding* until its origin has answered `Held`. Nothing is delivered on it, its client
   is told no progress there and can acknowledge none.
2. Whether a place is held is in its row of the catalog. After a crash those that are not are asked
   for again, from the same ticks.
3. A durable subscription is claimed from other edges when no place of it is holding, and not
   before (`ownership`). A claim with a higher number ends all this; one with a lower number is left
   unanswered.
4. A log that does not reach back is asked for what it has. What is missing shows when the stream is
   replayed, and is told as withheld. A reliable subscription is cut instead: it was to go on
   without a gap.
5. Where the client has more than there is of a stream, it is cut, and told so.

Why nothing is forgotten that a durable subscription needs. Say it moves from B to A.

- As long as A is holding a stream, B's cursor there stands for it: B yields to claims only, and A
  makes none. B was the owner, so its own places are held, or one before B stands for them in the
  same way. Chains of any length end at an edge all of whose places are held.
- A says `Done` for a stream up to its own cursor at most, held or not, from the moment it asks. So
  once the origin has answered, the ticks after the cursor are kept for A, over crashes of either
  (the origin puts a hold on disk before it answers, and a `Done` said before a hold is void).
- A crashes. Before its rows are on disk it knows nothing, has told nobody, and B is still there.
  Cursors are put before the number; so a number on disk has its cursors, and each says whether it
  is held. A goes on holding.
- The client goes on to C with a higher number before A is done. C asks for itself. If A gets its
  answers first, it claims from B, which yields to it; A's places are held then. C does not answer
  A's claim, for A would yield to it while C has nothing held. If C gets its answers first, A and B
  yield to C. If the client goes back to B, B is like C, and needs no answer where its own cursors
  reach back far enough.
- The client forgets everything. Whoever has the highest number tells all its ticks, holding ones
  too; they are what the client had when it came, or less.
- Two edges may think for a while that it is theirs. Only where the client is anything is delivered.

State: the places' rows; the requests are made again after a start.
"""

from anabranch.core.edge.behind import Behind
from anabranch.core.edge.cursors import Cursors
from anabranch.core.edge.leaving import Leaving
from anabranch.core.edge.ownership import Ownership
from anabranch.core.edge.state import State
from anabranch.core.edge.subscriptions import Place, Subscription
from anabranch.model.frames import Held, Hold, NotKept


class Holding:
    """Places that wait for their origins. See the rules at the top of this module."""

    def __init__(
        self,
        state: State,
        cursors: Cursors,
        leaving: Leaving,
        behind: Behind,
        ownership: Ownership,
    ) -> None:
        self._state = state
        self._cursors = cursors
        self._leaving = leaving
        self._behind = behind
        self._ownership = ownership

    def begin(self, now: float, place: Place) -> None:
        """Ask the origin to keep what comes after where a place stands."""
        place.mode = "holding"
        self._ask(now, place, place.acked)

    def go_on(self, now: float, subscription: Subscription) -> None:
        """A new life: ask for what was not answered in the last one."""
        for place in subscription.places.values():
            if place.mode == "holding":
                self._ask(now, place, place.acked)

    def _ask(self, now: float, place: Place, tick: int) -> None:
        self._state.requests.close(place.hold)
        place.hold = self._state.hold(now, place.stream.name, tick, place)

    def held(self, now: float, place: Place, answer: Held) -> None:
        """The origin keeps it: the stream can be served."""
        state, subscription = self._state, place.subscription
        asked = state.requests.content(place.hold)
        assert isinstance(asked, Hold)
        if asked.tick > answer.head:
            stream = place.stream.name
            reason = f"tick {asked.tick} of {stream!r} does not exist; the newest is {answer.head}"
            self._leaving.cut(now, subscription, reason)
            return
        state.requests.close(place.hold)
        place.hold = 0
        place.mode = "behind"
        if subscription.is_durable:
            self._cursors.put_cursor(place)
            if not subscription.is_claimed:
                self._ownership.claim(now, subscription)
        if subscription.session is not None:
            self._behind.resume(now, place)

    def not_kept(self, now: float, place: Place, answer: NotKept) -> None:
        """The log does not reach back so far."""
        if place.subscription.is_durable:
            self._ask(now, place, max(answer.oldest - 1, place.acked))
            return
        reason = (
            f"{place.stream.name!r} does not keep what comes after tick {place.acked} any more;"
            f" its oldest tick is {answer.oldest}"
        )
        self._leaving.cut(now, place.subscription, reason)
