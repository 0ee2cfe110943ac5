"""Catch-up: replay missed events from the origin until a subscription is live again.

Theory of operation: a stream position that is catching up (mode `behind`) requests the events that
match its own filter from the origin, starting after its position, one bounded batch at a time. The
origin keeps no state about that; the edge requests the next batch when the last one is delivered
and the window has room. When the position reaches that of the reorder buffer, it becomes live. A
position that is only slightly behind needs no request: the reorder buffer keeps its most recent
runs. Rules:

1. Only a subscription with a session receives events, and only as many as its window has room for.
   Otherwise it waits for acknowledgements; no subscription is closed for catching up slowly.
2. Recent runs are matched here only if that is cheap; expensive filters go to the origin, which
   bounds what it examines per answer. A position becomes live when it is at or beyond that of the
   reorder buffer and the buffer's version includes the subscription. Ticks that it has already
   received are skipped.
3. The origin has matched the filter. The edge checks time limits, hop limits and destinations, as
   for live events.
4. A position that must not deliver an event yet, because the event follows others in another
   stream, stops before it and requests nothing until it may (`publisher_order`).
5. Ticks that the log no longer has are reported to the client as withheld and skipped.

`HoldRequests` asks origins to retain events for positions that a client brings from elsewhere.
"""

from collections.abc import Sequence
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
from anabranch.core.edge.publisher_order import PublisherOrder
from anabranch.core.edge.reorder_buffer import Run, hole_runs
from anabranch.core.edge.state import EdgeState
from anabranch.core.edge.subscriptions import EdgeStream, EdgeSubscription, StreamPosition
from anabranch.core.edge.unsubscribe import Ownership, Unsubscription
from anabranch.matching.residual_checks import CHECK_WORK, SEARCHED_BYTES
from anabranch.model.errors import RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frames import Answer, Held, Hold, NotKept, Replay
from anabranch.model.version import NOTHING

#: The cost of matching recent runs at once, in microseconds of an ordinary machine.
_RECENT_WORK_MAX = 1_000


class CatchUp:
    """Brings subscriptions up to date. See the rules at the top of this module."""

    def __init__(self, state: EdgeState, delivery: LiveDelivery, order: PublisherOrder) -> None:
        self._state = state
        self._order = order
        self._delivery = delivery

    # -- decide ---------------------------------------------------------------------------------

    def resume(self, now: float, place: StreamPosition) -> None:
        """Start to catch up: the position has a session now."""
        place.stream.behind[place.subscription.key] = place
        self.settle(now, place)

    def settle_stream(self, now: float, stream: EdgeStream) -> None:
        """Continue catch-up after the reorder buffer advanced."""
        for place in list(stream.behind.values()):
            if not place.ask and place.subscription.room > 0 and not place.waits():
                self.settle(now, place)

    def settle_subscription(self, now: float, subscription: EdgeSubscription) -> None:
        """Continue catch-up: the window may have room, or the version has arrived."""
        for place in subscription.places.values():
            if place.mode == "behind" and not place.ask:
                self.settle(now, place)

    def settle(self, now: float, place: StreamPosition) -> None:
        """Advance a position as far as possible, and request a replay if that is not enough."""
        line, subscription = place.stream.line, place.subscription
        if subscription.room < 1 or place.mode != "behind" or place.waits():
            return
        if line.is_placed and subscription.version is not None:
            if place.sent < line.position:
                recent = line.recent.after(place.sent)
                if recent is not None and _are_cheap(recent, subscription.filter):
                    self._feed(now, place, recent, line.position, is_matched=False)
                    if place.waits():
                        return
            if place.sent >= line.position and line.version >= subscription.version:
                self._go_live(now, place)
                return
        if not place.ask and (not line.is_placed or place.sent < line.position):
            self._ask(now, place)

    def _go_live(self, now: float, place: StreamPosition) -> None:
        self._state.requests.close(place.ask)
        place.ask = 0
        self._delivery.enter(place)
        self._order.caught_up(now, place)

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

    # -- answers --------------------------------------------------------------------------------

    def answer(self, now: float, place: StreamPosition, answer: Answer) -> None:
        """Deliver one batch of a replay."""
        runs = self._checked(place, answer)
        if answer.through < answer.first:
            if place.sent < place.stream.line.position:
                self._state.requests.postpone(now, place.ask)
            else:
                self._close_replay(place)
            return
        self._close_replay(place)
        self._feed(now, place, runs, answer.through, is_matched=True)
        self.settle(now, place)

    def not_kept(self, now: float, place: StreamPosition, answer: NotKept) -> None:
        """Skip ticks that the origin's log no longer has, and report them as withheld."""
        self._close_replay(place)
        last = answer.oldest - 1
        if last > place.sent:
            self._delivery.withhold(place, place.sent + 1, last, "retention")
            place.sent = last
            self._order.caught_up(now, place)
        self.settle(now, place)

    def _close_replay(self, place: StreamPosition) -> None:
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
            raise RemoteError(f"invalid ticks in the answer of {place.stream.name!r} to a replay")
        runs = [Run(datum.tick, datum.tick, NOTHING, datum) for datum in answer.data]
        if answer.withheld:
            runs += hole_runs(answer.withheld, NOTHING)
            runs.sort(key=lambda run: run.first)
        return runs

    # -- deliver --------------------------------------------------------------------------------

    def _feed(
        self, now: float, place: StreamPosition, runs: list[Run], through: int, is_matched: bool
    ) -> None:
        """Deliver runs to one position, as far as its window allows."""
        for run in runs:
            if run.last <= place.sent:
                continue
            place.sent = max(place.sent, run.first - 1)
            if run.is_silent:
                stops = self._is_version_missing(place, run)
            else:
                stops = not self._take_run(now, place, run, is_matched)
            if stops:
                break
            place.sent = run.last
        else:
            place.sent = max(place.sent, through)
        if place.batch:
            self._delivery.flush(place)
        elif place.sent - place.told >= PROGRESS_TICKS:
            self._delivery.tell_through(place)
        self._order.caught_up(now, place)

    def _is_version_missing(self, place: StreamPosition, run: Run) -> bool:
        version = place.subscription.version
        return version is None or version > run.version

    def _take_run(self, now: float, place: StreamPosition, run: Run, is_matched: bool) -> bool:
        """Deliver one run that is not silent; False if the window is full or the event must
        wait."""
        envelope = None if run.datum is None else read(run, self._state.limits)
        if envelope is not None:
            assert run.datum is not None
            if is_beyond_limits(now, run, envelope, place.stream.hops):
                return True
            if not is_addressed(envelope, place.subscription.client):
                return True
            if is_matched or is_match(run, envelope, place.subscription.filter):
                follows = envelope.header.control.after
                if follows and not self._delivery.may_deliver(now, place, run.first, envelope):
                    return False
                return self._delivery.push(place, run.datum)
        if run.reason:
            self._delivery.flush(place)
            self._delivery.withhold(place, run.first, run.last, run.reason)
        return True


def _are_cheap(runs: Sequence[Run], filter: Filter) -> bool:
    """Whether runs can be matched here at once; otherwise the origin does it in portions."""
    size = sum(run.size for run in runs)
    each = CHECK_WORK + len(filter.conjunctions)
    return len(runs) * each + filter.search_weight * size // SEARCHED_BYTES <= _RECENT_WORK_MAX


class HoldRequests:
    """Requests to origins to retain events that a subscription needs but no cursor here protects.

    A client that was at another edge, or whose reliable subscription lost its connection, presents
    the ticks up to which it has received everything. Nothing this edge sent earlier guarantees that
    origins retain the events after these ticks, so the edge sends each origin a *hold* request. The
    subscription does not wait for the answers: it is active as soon as it is on disk with all its
    ticks, and each stream is served as soon as its own origin has answered. Requests to an origin
    that does not answer are repeated with back-off. Often it is the very edge that the client had
    to leave. Rules:

    1. A position is *holding* until its origin has answered `Held`. Until then the edge delivers
       nothing on it, reports no progress, and the client cannot acknowledge anything there.
    2. The catalog row of a position records whether it is held. After a crash the edge sends the
       hold requests that were not answered again, with the same ticks.
    3. A durable subscription is claimed from other edges when none of its positions is holding, and
       not before (`Ownership`). A claim with a higher number ends all this; one with a lower number
       stays unanswered.
    4. If a log does not reach back far enough, the edge requests the ticks that it has. The missing
       ticks are found when the stream is replayed and are reported as withheld. A reliable
       subscription is closed instead, because it must resume without a gap.
    5. If the client presents a tick beyond the newest one of a stream, its subscription is closed
       with that reason.

    Why no event that a durable subscription needs is discarded. Suppose it moves from B to A.

    - While A is holding a stream, B's cursor there protects the events: B yields only to claims,
      and A sends none. B was the owner, so its own positions are held, or those of a previous owner
      protect them in the same way. Chains of any length end at an edge whose positions are all
      held.
    - From the moment A sends a hold, it sends `Done` for that stream up to its own cursor at most,
      whether held or not. So once the origin has answered, it retains the ticks after the cursor
      for A, across crashes of either broker (the origin syncs a hold before it answers, and a
      `Done` sent before a hold is void).
    - A crashes. Before its rows are on disk it has no record, has notified nobody, and B still has
      the subscription. Cursors are put before the number, so a number on disk has its cursors, and
      each records whether it is held. A resumes its hold requests.
    - The client moves on to C with a higher number before A has finished. C sends its own holds. If
      A receives its answers first, it claims from B, which yields; A's positions are held then. C
      does not answer A's claim, because A would yield to it while C has nothing held. If C receives
      its answers first, A and B yield to C. If the client goes back to B, B is like C, and needs no
      answer where its own cursors reach back far enough.
    - The client loses its state. The edge with the highest number returns all its ticks, those of
      holding positions too; they are at or below what the client had presented.
    - Two edges may both consider themselves owner for a while. Only the edge with the client's
      session delivers.

    State: the rows of the positions; requests are sent again after a restart.
    """

    def __init__(
        self,
        state: EdgeState,
        cursors: Cursors,
        unsubscription: Unsubscription,
        catch_up: CatchUp,
        ownership: Ownership,
    ) -> None:
        self._state = state
        self._cursors = cursors
        self._unsubscription = unsubscription
        self._catch_up = catch_up
        self._ownership = ownership

    def begin(self, now: float, place: StreamPosition) -> None:
        """Ask the origin to retain everything after this position."""
        place.mode = "holding"
        self._ask(now, place, place.acked)

    def go_on(self, now: float, subscription: EdgeSubscription) -> None:
        """Send hold requests again after a restart."""
        for place in subscription.places.values():
            if place.mode == "holding":
                self._ask(now, place, place.acked)

    def _ask(self, now: float, place: StreamPosition, tick: int) -> None:
        self._state.requests.close(place.hold)
        place.hold = self._state.hold(now, place.stream.name, tick, place)

    def held(self, now: float, place: StreamPosition, answer: Held) -> None:
        """Serve the stream: its origin retains the events."""
        state, subscription = self._state, place.subscription
        asked = state.requests.content(place.hold)
        assert isinstance(asked, Hold)
        if asked.tick > answer.head:
            stream = place.stream.name
            reason = f"tick {asked.tick} of {stream!r} does not exist; the newest is {answer.head}"
            self._unsubscription.cut(now, subscription, reason)
            return
        state.requests.close(place.hold)
        place.hold = 0
        place.mode = "behind"
        if subscription.is_durable:
            self._cursors.put_cursor(place)
            if not subscription.is_claimed:
                self._ownership.claim(now, subscription)
        if subscription.session is not None:
            self._catch_up.resume(now, place)

    def not_kept(self, now: float, place: StreamPosition, answer: NotKept) -> None:
        """Handle a log that does not reach back far enough."""
        if place.subscription.is_durable:
            self._ask(now, place, max(answer.oldest - 1, place.acked))
            return
        reason = (
            f"{place.stream.name!r} no longer keeps the events after tick {place.acked};"
            f" its oldest tick is {answer.oldest}"
        )
        self._unsubscription.cut(now, place.subscription, reason)
