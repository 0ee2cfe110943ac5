"""Those that are behind: each with a position of its own, fed by replays until it is live again.

Theory of operation: a place that is behind asks the origin for what matches its own filter, from
its position on, a bounded piece at a time. The origin keeps nothing about that; the next piece is
asked for when the last one has been delivered and the window has room. When the place has come to
where the line is, it follows the line. A place that is only a little behind needs no origin: the
line keeps its last runs. Rules:

1. Only a subscription with a session gets anything, and only as much as its window has room for. It
   waits for acknowledgements otherwise; nobody is cut for being slow on old ticks.
2. A place becomes live when it stands at the line's position or beyond, and the line's version
   contains the subscription. Ticks of the line that it already has are skipped.
3. The origin has matched the filter; time and hop limits and destinations are looked after here,
   as for what comes live.
4. Ticks that the log does not have any more are told to the client as withheld, and passed over.
"""

from itertools import pairwise

from anabranch.core.edge.cursors import Cursors
from anabranch.core.edge.delivery import (
    PROGRESS_TICKS,
    LiveDelivery,
    is_addressed,
    is_beyond_limits,
    is_match,
    read,
)
from anabranch.core.edge.reorder_buffer import Run, hole_runs
from anabranch.core.edge.state import EdgeState
from anabranch.core.edge.subscriptions import EdgeStream, EdgeSubscription, StreamPosition
from anabranch.core.edge.unsubscribe import Ownership, Unsubscription
from anabranch.model.errors import RemoteError
from anabranch.model.frames import Answer, Held, Hold, NotKept, Replay
from anabranch.model.version import NOTHING


class CatchUp:
    """Brings subscriptions forward to the line. See the rules at the top of this module."""

    def __init__(self, state: EdgeState, delivery: LiveDelivery) -> None:
        self._state = state
        self._delivery = delivery

    # -- what to do next ------------------------------------------------------------------------

    def resume(self, now: float, place: StreamPosition) -> None:
        """A place that is behind has a session now, or again."""
        place.stream.behind[place.subscription.key] = place
        self.settle(now, place)

    def settle_stream(self, now: float, stream: EdgeStream) -> None:
        """The line has moved."""
        for place in list(stream.behind.values()):
            if not place.ask and place.subscription.room > 0:
                self.settle(now, place)

    def settle_subscription(self, now: float, subscription: EdgeSubscription) -> None:
        """There may be room in the window, or the version is known."""
        for place in subscription.places.values():
            if place.mode == "behind" and not place.ask:
                self.settle(now, place)

    def settle(self, now: float, place: StreamPosition) -> None:
        """Bring a place forward as far as possible; ask for more if that is not enough."""
        line, subscription = place.stream.line, place.subscription
        if subscription.room < 1 or place.mode != "behind":
            return
        if line.is_placed and subscription.version is not None:
            if place.sent < line.position:
                recent = line.recent.after(place.sent)
                if recent is not None:
                    self._feed(now, place, recent, line.position, is_matched=False)
            if place.sent >= line.position and line.version >= subscription.version:
                self._join(place)
                return
        if not place.ask and (not line.is_placed or place.sent < line.position):
            self._ask(now, place)

    def _join(self, place: StreamPosition) -> None:
        self._state.requests.close(place.ask)
        place.ask = 0
        self._delivery.enter(place)

    def _ask(self, now: float, place: StreamPosition) -> None:
        state, subscription = self._state, place.subscription
        options = state.options
        room = subscription.room
        if room < 1:
            return
        place.ask = state.requests.number()
        replay = Replay(
            place.ask,
            place.sent + 1,
            0,
            [str(subscription.filter)],
            min(room, options.replay_events_max),
            options.replay_bytes_max,
        )
        state.out += state.requests.ask(now, place.ask, place.stream.name, replay, place)

    # -- what comes -----------------------------------------------------------------------------

    def answer(self, now: float, place: StreamPosition, answer: Answer) -> None:
        """A piece of what was asked for."""
        runs = self._checked(place, answer)
        if answer.through < answer.first:
            if place.sent < place.stream.line.position:
                self._state.requests.postpone(now, place.ask)
            else:
                self._close(place)
            return
        self._close(place)
        self._feed(now, place, runs, answer.through, is_matched=True)
        self.settle(now, place)

    def not_kept(self, now: float, place: StreamPosition, answer: NotKept) -> None:
        """The log does not reach back so far."""
        self._close(place)
        last = answer.oldest - 1
        if last > place.sent:
            self._delivery.withhold(place, place.sent + 1, last, "retention")
            place.sent = last
        self.settle(now, place)

    def _close(self, place: StreamPosition) -> None:
        self._state.requests.close(place.ask)
        place.ask = 0

    def _checked(self, place: StreamPosition, answer: Answer) -> list[Run]:
        asked = self._state.requests.content(place.ask)
        assert isinstance(asked, Replay)
        ticks = [datum.tick for datum in answer.data]
        ordered = all(one < other for one, other in pairwise(ticks))
        ends = [*ticks[:1], *ticks[-1:], *(t for h in answer.withheld for t in (h.first, h.last))]
        within = all(answer.first <= tick <= answer.through for tick in ends)
        if answer.first != asked.first or not ordered or not within:
            raise RemoteError(f"the answer of {place.stream.name!r} to a replay has ticks amiss")
        runs = [Run(datum.tick, datum.tick, NOTHING, datum) for datum in answer.data]
        if answer.withheld:
            runs += hole_runs(answer.withheld, NOTHING)
            runs.sort(key=lambda run: run.first)
        return runs

    # -- delivering -----------------------------------------------------------------------------

    def _feed(
        self, now: float, place: StreamPosition, runs: list[Run], through: int, is_matched: bool
    ) -> None:
        """Deliver runs to one place, as far as its window allows."""
        for run in runs:
            if run.last <= place.sent:
                continue
            place.sent = max(place.sent, run.first - 1)
            if run.is_silent:
                stops = self._is_unversed(place, run)
            else:
                stops = not self._take(now, place, run, is_matched)
            if stops:
                break
            place.sent = run.last
        else:
            place.sent = max(place.sent, through)
        if place.batch:
            self._delivery.flush(place)
        elif place.sent - place.told >= PROGRESS_TICKS:
            self._delivery.tell_through(place)

    def _is_unversed(self, place: StreamPosition, run: Run) -> bool:
        version = place.subscription.version
        return version is None or version > run.version

    def _take(self, now: float, place: StreamPosition, run: Run, is_matched: bool) -> bool:
        """Deliver one run that is not silent; False if there is no room."""
        envelope = None if run.datum is None else read(run, self._state.limits)
        if envelope is not None:
            assert run.datum is not None
            if is_beyond_limits(now, run, envelope, place.stream.hops):
                return True
            if not is_addressed(envelope, place.subscription.client):
                return True
            if is_matched or is_match(run, envelope, place.subscription.filter):
                return self._delivery.push(place, run.datum)
        if run.reason:
            self._delivery.flush(place)
            self._delivery.withhold(place, run.first, run.last, run.reason)
        return True


class HoldRequests:
    """Holding: asking origins to keep what a subscription needs that comes from elsewhere.

    A client that was at another edge, or whose reliable subscription lost its connection, brings
    the ticks up to which it has everything. Nothing that this edge ever said promises that what
    follows them is kept, so each origin is asked to *hold* it. The subscription does not wait for
    that: it stands as soon as it is on disk with all its ticks, and each stream is served as soon
    as its own origin has answered. An origin that does not answer is asked again, less and less
    often. Often it is the very edge that the client had to leave. Rules:

    1. A place is *holding* until its origin has answered `Held`. Nothing is delivered on it, its
       client is told no progress there and can acknowledge none.
    2. Whether a place is held is in its row of the catalog. After a crash those that are not are
       asked for again, from the same ticks.
    3. A durable subscription is claimed from other edges when no place of it is holding, and not
       before (`ownership`). A claim with a higher number ends all this; one with a lower number is
       left unanswered.
    4. A log that does not reach back is asked for what it has. What is missing shows when the
       stream is replayed, and is told as withheld. A reliable subscription is cut instead: it was
       to go on without a gap.
    5. Where the client has more than there is of a stream, it is cut, and told so.

    Why nothing is forgotten that a durable subscription needs. Say it moves from B to A.

    - As long as A is holding a stream, B's cursor there stands for it: B yields to claims only, and
      A makes none. B was the owner, so its own places are held, or one before B stands for them in
      the same way. Chains of any length end at an edge all of whose places are held.
    - A says `Done` for a stream up to its own cursor at most, held or not, from the moment it asks.
      So once the origin has answered, the ticks after the cursor are kept for A, over crashes of
      either (the origin puts a hold on disk before it answers, and a `Done` said before a hold is
      void).
    - A crashes. Before its rows are on disk it knows nothing, has told nobody, and B is still
      there. Cursors are put before the number; so a number on disk has its cursors, and each says
      whether it is held. A goes on holding.
    - The client goes on to C with a higher number before A is done. C asks for itself. If A gets
      its answers first, it claims from B, which yields to it; A's places are held then. C does not
      answer A's claim, for A would yield to it while C has nothing held. If C gets its answers
      first, A and B yield to C. If the client goes back to B, B is like C, and needs no answer
      where its own cursors reach back far enough.
    - The client forgets everything. Whoever has the highest number tells all its ticks, holding
      ones too; they are what the client had when it came, or less.
    - Two edges may think for a while that it is theirs. Only where the client is anything is
      delivered.

    State: the places' rows; the requests are made again after a start.
    """

    def __init__(
        self,
        state: EdgeState,
        cursors: Cursors,
        leaving: Unsubscription,
        behind: CatchUp,
        ownership: Ownership,
    ) -> None:
        self._state = state
        self._cursors = cursors
        self._leaving = leaving
        self._behind = behind
        self._ownership = ownership

    def begin(self, now: float, place: StreamPosition) -> None:
        """Ask the origin to keep what comes after where a place stands."""
        place.mode = "holding"
        self._ask(now, place, place.acked)

    def go_on(self, now: float, subscription: EdgeSubscription) -> None:
        """A new life: ask for what was not answered in the last one."""
        for place in subscription.places.values():
            if place.mode == "holding":
                self._ask(now, place, place.acked)

    def _ask(self, now: float, place: StreamPosition, tick: int) -> None:
        self._state.requests.close(place.hold)
        place.hold = self._state.hold(now, place.stream.name, tick, place)

    def held(self, now: float, place: StreamPosition, answer: Held) -> None:
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

    def not_kept(self, now: float, place: StreamPosition, answer: NotKept) -> None:
        """The log does not reach back so far."""
        if place.subscription.is_durable:
            self._ask(now, place, max(answer.oldest - 1, place.acked))
            return
        reason = (
            f"{place.stream.name!r} does not keep what comes after tick {place.acked} any more;"
            f" its oldest tick is {answer.oldest}"
        )
        self._leaving.cut(now, place.subscription, reason)
