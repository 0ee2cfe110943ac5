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

from anabranch.core.edge.delivery import PROGRESS_TICKS, Delivery
from anabranch.core.edge.reading import is_addressed, is_beyond_limits, is_match, read
from anabranch.core.edge.state import State
from anabranch.core.edge.subscriptions import Place, Stream, Subscription
from anabranch.core.line import Run, hole_runs
from anabranch.model.errors import RemoteError
from anabranch.model.frames import Answer, NotKept, Replay
from anabranch.model.version import NOTHING


class Behind:
    """Brings subscriptions forward to the line. See the rules at the top of this module."""

    def __init__(self, state: State, delivery: Delivery) -> None:
        self._state = state
        self._delivery = delivery

    # -- what to do next ------------------------------------------------------------------------

    def resume(self, now: float, place: Place) -> None:
        """A place that is behind has a session now, or again."""
        place.stream.behind[place.subscription.key] = place
        self.settle(now, place)

    def settle_stream(self, now: float, stream: Stream) -> None:
        """The line has moved."""
        for place in list(stream.behind.values()):
            if not place.ask and place.subscription.room > 0:
                self.settle(now, place)

    def settle_subscription(self, now: float, subscription: Subscription) -> None:
        """There may be room in the window, or the version is known."""
        for place in subscription.places.values():
            if place.mode == "behind" and not place.ask:
                self.settle(now, place)

    def settle(self, now: float, place: Place) -> None:
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

    def _join(self, place: Place) -> None:
        self._state.requests.close(place.ask)
        place.ask = 0
        self._delivery.enter(place)

    def _ask(self, now: float, place: Place) -> None:
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

    def answer(self, now: float, place: Place, answer: Answer) -> None:
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

    def not_kept(self, now: float, place: Place, answer: NotKept) -> None:
        """The log does not reach back so far."""
        self._close(place)
        last = answer.oldest - 1
        if last > place.sent:
            self._delivery.withhold(place, place.sent + 1, last, "retention")
            place.sent = last
        self.settle(now, place)

    def _close(self, place: Place) -> None:
        self._state.requests.close(place.ask)
        place.ask = 0

    def _checked(self, place: Place, answer: Answer) -> list[Run]:
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
        self, now: float, place: Place, runs: list[Run], through: int, is_matched: bool
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

    def _is_unversed(self, place: Place, run: Run) -> bool:
        version = place.subscription.version
        return version is None or version > run.version

    def _take(self, now: float, place: Place, run: Run, is_matched: bool) -> bool:
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
