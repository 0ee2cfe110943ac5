"""Live delivery: match each event once and push it to every subscription that is up to date.

Theory of operation: the reorder buffer of a stream releases runs in stream order. Each event is
matched once against the index of all subscriptions and pushed to the positions that are live on the
stream. The events that the subscriptions of one session receive in one step leave in one frame, or
in several if one would be too large. A silent range costs one comparison of versions. Rules:

1. *Start.* A new subscription starts at the first tick whose interest version includes it, because
   upstream brokers filter with that version from then on. While the buffer is idle, the next tick
   qualifies if the buffer's version is high enough, since versions never decrease. The edge sends
   the start to the client; for a durable subscription it syncs the start first, before it sends the
   start or any event. If very many subscriptions can start at once, some start a little later, so
   that one step stays bounded.
2. *Silence.* A silent range counts for a live subscription only if its version includes the
   subscription. Otherwise the subscription falls back to catch-up and requests the range with its
   own filter.
3. *Withheld.* Announce a withheld range to every live subscription after all data before it.
4. *Slow consumers.* When a window or session is full, a durable subscription falls back to
   catch-up; any other is closed with a reason. Best-effort subscriptions receive events across
   gaps.
5. *Order.* A position that must not deliver an event yet, because the event follows others in
   another stream, falls back to catch-up before it (`publisher_order`).
6. *Portions.* Runs that are too much work for one step (`is_heavy`) stay in the reorder buffer and
   are delivered in portions (`deliver_held`): a bounded number of runs, or one run to a bounded
   number of subscriptions, after a bounded number of checks. Other stimuli are handled between two
   portions, never within one run.
7. *Progress.* `through` advances with silence too. Report it to clients occasionally so that they
   can acknowledge it. The cost per tick or per second is bounded regardless of the number of
   subscriptions.

The edge also enforces the limits that an event sets on its own delivery, in the same way for live
and replayed events. An event beyond a limit matches no subscription, like silence:

- *Time*: the time since its origin assigned the tick, by this edge's clock, exceeds the limit.
- *Hops*: this edge's site is farther from the origin's site than the limit.
- *Destinations*: an event that names destinations matches only subscriptions of those clients.

Neither these checks nor matching decode attributes: the index reads them in encoded form. If an
event cannot be decoded, its origin is at fault, not the neighbour that forwarded it, and another
request would return the same bytes: its tick is withheld as `unreadable`.
"""

from bisect import bisect_right
from collections.abc import Generator, Hashable, Iterator, Sequence

from anabranch.core.edge.cursors import Cursors
from anabranch.core.edge.publisher_order import PublisherOrder
from anabranch.core.edge.reorder_buffer import Run
from anabranch.core.edge.state import EdgeState, StartStored
from anabranch.core.edge.subscriptions import (
    EdgeSession,
    EdgeStream,
    EdgeSubscription,
    StreamPosition,
)
from anabranch.core.edge.unsubscribe import Unsubscription
from anabranch.core.part_requests import PartRequest
from anabranch.core.routing.contract import WorkDone
from anabranch.matching.index import MatchIndex
from anabranch.matching.residual_checks import Check
from anabranch.model.client_frames import Ack, Matches, StartsAt, Withheld
from anabranch.model.encoding import Envelope, decode_envelope
from anabranch.model.errors import RemoteError
from anabranch.model.event import Attributes
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.limits import Limits
from anabranch.model.version import NOTHING, Version

_NS_PER_S = 1e9


def read(run: Run, limits: Limits) -> Envelope | None:
    """Decode the event of a run, without its attributes; None if the event is unreadable."""
    if run.envelope is None and run.datum is not None and not run.reason:
        try:
            run.envelope = decode_envelope(run.datum.body, limits)
        except RemoteError:
            _mark_unreadable(run)
    return run.envelope


def matching(run: Run, envelope: Envelope, index: MatchIndex) -> list[Hashable]:
    """Keys of matching subscriptions; empty if the attributes are unreadable."""
    try:
        return index.match(envelope)
    except RemoteError:
        _mark_unreadable(run)
        return []


def narrowed(
    run: Run, envelope: Envelope, index: MatchIndex
) -> tuple[list[Hashable], list[tuple[Hashable, Check]], Attributes] | None:
    """Keys that match for certain, keys that need a check, and the attributes to check; None if
    the attributes are unreadable."""
    try:
        sure, left = index.narrow(envelope)
        return sure, left, envelope.attributes() if left else {}
    except RemoteError:
        _mark_unreadable(run)
        return None


def is_match(run: Run, envelope: Envelope, filter: Filter) -> bool:
    """Whether one filter matches the event; False if the attributes are unreadable."""
    try:
        return filter.matches(envelope.attributes())
    except RemoteError:
        _mark_unreadable(run)
        return False


def _mark_unreadable(run: Run) -> None:
    # Keep the datum: the owner of the run has counted its bytes.
    run.reason = "unreadable"
    run.envelope = None


def is_addressed(envelope: Envelope, client: str) -> bool:
    """Whether an event may go to this client, if its filter matches."""
    destinations = envelope.header.control.destinations
    return not destinations or client in destinations


def is_beyond_limits(now: float, run: Run, envelope: Envelope, hops: int) -> bool:
    """Whether an event exceeds its time or hop limit."""
    control = envelope.header.control
    if control.hop_limit is not None and hops > control.hop_limit:
        return True
    if control.time_limit_ns is None or run.datum is None:
        return False
    return now * _NS_PER_S - run.datum.time_ns > control.time_limit_ns


#: Keys of the subscriptions that match an event; None if the event must be decoded first.
Wanted = Sequence[Hashable] | None
#: From this many events on, match them in one call.
_MANY = 4
#: Work to push an event to one subscription, to start a subscription, and to look up a run.
PUSH_WORK = 4
_START_WORK = 40
_RUN_WORK = 10
#: Runs per lookup: matching many at once costs little more than matching one.
_RUNS_MAX = 512
#: Runs times subscriptions of one lookup: its cost is proportional to its matches, at worst all.
_LOOKED_UP_MAX = 400_000
#: Progress is reported after the stream has advanced by this many ticks, and by this many ticks
#: per live subscription.
PROGRESS_TICKS = 64
PROGRESS_TICKS_EACH = 16
#: Progress reports per round, if there are more subscriptions than this.
PROGRESS_CROWD = 256


class LiveDelivery:
    """Delivers released runs to live subscriptions. See the rules at the top of this module."""

    def __init__(
        self,
        state: EdgeState,
        cursors: Cursors,
        unsubscription: Unsubscription,
        order: PublisherOrder,
    ) -> None:
        self._state = state
        self._order = order
        self._cursors = cursors
        self._unsubscription = unsubscription
        #: Bounds of one portion: subscriptions started, runs looked up, subscriptions that receive
        #: an event, and work on checks.
        self._starts_max = 4 * state.options.portion(_START_WORK)
        self._runs_max = state.options.portion(_RUN_WORK, _RUNS_MAX)
        self._fan_out_max = 16 * state.options.portion(PUSH_WORK)
        self._check_work_max = state.options.step_work_max // 16

    # -- released runs --------------------------------------------------------------------------

    def advance(
        self, now: float, stream: EdgeStream, runs: list[Run], wanted: list[Wanted] | None = None
    ) -> None:
        """Deliver runs that the reorder buffer released; `wanted` may hold their matches."""
        touched: list[StreamPosition] = []
        if wanted is None:
            wanted = self._wanted(stream, runs)
        for number, run in enumerate(runs):
            if stream.waiting and not run.reason:
                self._start(now, stream, run.first, run.version)
            if not stream.live:
                continue
            if run.datum is not None:
                self._datum(now, stream, run, wanted[number] if wanted else None, touched)
            if run.reason:
                self._withheld(stream, run, touched)
            elif run.datum is None and stream.floor() > run.version:
                self._require_version(stream, run)
        for place in touched:
            self.flush(place, stream.line.position)
        self._after_runs(now, stream)

    def _after_runs(self, now: float, stream: EdgeStream) -> None:
        """Start waiting subscriptions and report progress after a batch of runs."""
        self.start_resting(now, stream)
        moved, crowd = stream.line.position - stream.progress_at, len(stream.live)
        is_due = moved >= PROGRESS_TICKS and moved >= PROGRESS_TICKS_EACH * crowd
        if is_due and crowd <= PROGRESS_CROWD:
            self.progress(stream)

    def is_heavy(self, stream: EdgeStream, runs: int) -> bool:
        """Whether delivery of this many runs may exceed the work of one step."""
        if not (stream.live or stream.waiting):
            return False
        state = self._state
        works = runs * len(state.subscriptions) * PUSH_WORK
        return works > state.options.step_work_max or state.index.has_doubts

    def wanted_at_once(self, runs: list[Run]) -> list[Wanted] | None:
        """Match these runs, if matching and delivering them fits into one step; None otherwise."""
        if len(runs) > self._runs_at_once():
            return None
        state = self._state
        bodies = [b"" if run.datum is None else run.datum.body for run in runs]
        wanted = state.index.match_bodies(bodies, state.limits)
        fans_out = 0
        for run, each in zip(runs, wanted, strict=True):
            if each is None and run.datum is not None:
                return None
            fans_out += len(each or ())
        return wanted if fans_out * PUSH_WORK <= state.options.step_work_max else None

    def _runs_at_once(self) -> int:
        """Number of runs to look up without a pause."""
        crowd = max(1, len(self._state.subscriptions))
        return max(1, min(self._runs_max, _LOOKED_UP_MAX // crowd))

    def deliver_held(self, now: float, stream: EdgeStream) -> Iterator[PartRequest]:
        """Deliver held runs, about one step's worth of work."""
        line, work_max = stream.line, self._state.options.step_work_max
        work = 0
        while line.has_ready and work < work_max:
            runs = line.peek(self._runs_at_once())
            wanted = self._wanted(stream, runs) or [None] * len(runs)
            count, fans_out = 0, 0
            for run, each in zip(runs, wanted, strict=True):
                if run.datum is not None and each is None and (stream.live or stream.waiting):
                    break
                fans_out += len(each or ()) * PUSH_WORK
                if count and work + fans_out > work_max:
                    break
                count += 1
            spent = _RUN_WORK * len(runs) + min(fans_out, work_max)
            yield WorkDone(spent)
            work += spent
            if count and fans_out <= work_max:
                self._state.begin()
                line.pass_on(runs[:count])
                self.advance(now, stream, runs[:count], wanted[:count])
                yield from self._state.result()
            else:
                work += yield from self._deliver_one(now, stream, runs[0], wanted[0])

    def _deliver_one(
        self, now: float, stream: EdgeStream, run: Run, wanted: Wanted
    ) -> Generator[PartRequest, None, int]:
        """Deliver one run in portions: to many subscriptions, or after many checks. Returns the
        work done."""
        state, work = self._state, 0
        if wanted is None:
            wanted, work = yield from self._matches_in_portions(now, stream, run)
        state.begin()
        if stream.waiting and not run.reason:
            self._start(now, stream, run.first, run.version)
        yield from state.result()
        crowd = self._fan_out_max
        for first in range(0, len(wanted), crowd):
            state.begin()
            touched: list[StreamPosition] = []
            self._datum(now, stream, run, wanted[first : first + crowd], touched)
            for place in touched:
                self.flush(place, run.last)
            yield from state.result()
            yield WorkDone(PUSH_WORK * crowd)
        state.begin()
        stream.line.pass_on([run])
        if run.reason:
            self._withheld(stream, run, [])
        self._after_runs(now, stream)
        yield from state.result()
        return work + PUSH_WORK * len(wanted)

    def _matches_in_portions(
        self, now: float, stream: EdgeStream, run: Run
    ) -> Generator[WorkDone, None, tuple[list[Hashable], int]]:
        """Like `_matches_of`, in portions; also returns the work done."""
        envelope = read(run, self._state.limits)
        if envelope is None or is_beyond_limits(now, run, envelope, stream.hops):
            return [], 0
        found = narrowed(run, envelope, self._state.index)
        if found is None:
            return [], 0
        wanted, unchecked, attributes = found
        known = set(wanted)
        work = total = 0
        for key, check in unchecked:
            if key not in known and check(attributes):
                known.add(key)
                wanted.append(key)
            work += check.work(run.size)
            if work > self._check_work_max:
                yield WorkDone(work)
                total += work
                work = 0
        yield WorkDone(work)
        return self._addressed(stream, envelope, wanted), total + work

    def _wanted(self, stream: EdgeStream, runs: list[Run]) -> list[Wanted] | None:
        """Match many events in one call, where the index can do that."""
        if len(runs) < _MANY or not (stream.live or stream.waiting):
            return None
        bodies = [b"" if run.datum is None else run.datum.body for run in runs]
        return self._state.index.match_bodies(bodies, self._state.limits)

    def _datum(
        self,
        now: float,
        stream: EdgeStream,
        run: Run,
        wanted: Wanted,
        touched: list[StreamPosition],
    ) -> None:
        datum = run.datum
        if wanted is None:
            wanted = self._matches_of(now, stream, run)
        assert datum is not None
        live, tick = stream.live, datum.tick
        # An event that the index has matched without decoding it follows nothing.
        envelope = run.envelope
        follower = envelope if envelope is not None and envelope.header.control.after else None
        for key in wanted:
            place = live.get(key)
            if place is None or tick <= place.sent:
                continue
            if follower is not None and not self.may_deliver(now, place, tick, follower):
                stream.fall_back(place, tick - 1)
                continue
            if not place.batch:
                touched.append(place)
            if not self.push(place, datum):
                self._overflow(now, place, tick - 1)

    def _matches_of(self, now: float, stream: EdgeStream, run: Run) -> list[Hashable]:
        """Keys of the subscriptions that match one event and may receive it."""
        envelope = read(run, self._state.limits)
        if envelope is None or is_beyond_limits(now, run, envelope, stream.hops):
            return []
        return self._addressed(stream, envelope, matching(run, envelope, self._state.index))

    def _addressed(
        self, stream: EdgeStream, envelope: Envelope, wanted: list[Hashable]
    ) -> list[Hashable]:
        if not envelope.header.control.destinations:
            return wanted
        places = [(key, stream.live.get(key)) for key in wanted]
        return [
            key
            for key, place in places
            if place is not None and is_addressed(envelope, place.subscription.client)
        ]

    def may_deliver(self, now: float, place: StreamPosition, tick: int, envelope: Envelope) -> bool:
        """Whether an event that states what it follows may be delivered now; if it may only because
        the position cannot wait any longer, the client is told."""
        verdict = self._order.verdict(now, place, tick, envelope)
        if verdict == "tell":
            self.flush(place, tick - 1)
            self._order.tell(place, tick, envelope)
        return verdict != "wait"

    def push(self, place: StreamPosition, datum: Datum) -> bool:
        """Add an event to the next frame; False if the window or the session is full."""
        subscription = place.subscription
        session = subscription.session
        if session is None or session.is_full or subscription.unacked >= subscription.window:
            return False
        size = len(datum.body)
        if place.batch_bytes + size > self._state.options.replay_bytes_max:
            self.flush(place, datum.tick - 1)
        subscription.unacked += 1
        place.flight.append(datum.tick)
        place.batch.append(datum)
        place.batch_bytes += size
        return True

    def _overflow(self, now: float, place: StreamPosition, tick: int) -> None:
        subscription = place.subscription
        if subscription.is_durable:
            place.stream.fall_back(place, tick)
            return
        session = subscription.session
        which = "connection" if session is not None and session.is_full else "window"
        self.flush(place, tick)
        self._unsubscription.cut(now, subscription, f"too slow: the {which} is full")

    def _require_version(self, stream: EdgeStream, run: Run) -> None:
        for place in list(stream.live.values()):
            is_reliable = place.subscription.quality != "best-effort"
            if is_reliable and place.needs > run.version and run.last > place.sent:
                stream.fall_back(place, run.first - 1)

    def _withheld(self, stream: EdgeStream, run: Run, touched: list[StreamPosition]) -> None:
        for place in touched:
            self.flush(place, run.first - 1)
        for place in stream.live.values():
            self.withhold(place, run.first, run.last, run.reason)

    # -- frames ---------------------------------------------------------------------------------

    def flush(self, place: StreamPosition, through: int = -1) -> None:
        """Send the batch of a position, and how far it is complete."""
        session = place.subscription.session
        if session is None or not place.batch:
            return
        if through < 0 or place.mode != "live":
            through = place.through
        self._send(place, session, through)

    def _send(self, place: StreamPosition, session: EdgeSession, through: int) -> None:
        through = max(through, place.told)
        place.told = through
        matches = Matches(place.subscription.name, through, place.batch)
        self._state.deliver(session, place.stream.name, matches, place.batch_bytes)
        place.batch = []
        place.batch_bytes = 0

    def withhold(self, place: StreamPosition, first: int, last: int, reason: str) -> None:
        """Report ticks as withheld to the client."""
        session = place.subscription.session
        first = max(first, place.sent + 1)
        if session is None or first > last:
            return
        hole = Hole(first, last, reason)
        self._state.tell(session, Withheld(place.subscription.name, place.stream.name, [hole]))
        place.told = max(place.told, last)

    def progress_in_time(self, now: float, stream: EdgeStream) -> None:
        """Report progress on one stream, to a bounded number of subscriptions per call."""
        if not stream.progress_places:
            if len(stream.live) + len(stream.behind) <= PROGRESS_CROWD:
                self.progress(stream)
                return
            stream.progress_at = stream.line.position
            stream.progress_places = [*stream.behind.values(), *stream.live.values()]
        places = stream.progress_places
        for place in places[-PROGRESS_CROWD:]:
            if place.mode in {"live", "behind"}:
                self.tell_through(place)
        del places[-PROGRESS_CROWD:]
        if places or stream.line.position > stream.progress_at:
            # Come back for the remaining ones even if the stream stays silent.
            self._state.touch(now)

    def progress(self, stream: EdgeStream) -> None:
        """Report to all clients how far the stream is complete for them."""
        stream.progress_at = stream.line.position
        for place in stream.live.values():
            self.tell_through(place)
        for place in stream.behind.values():
            self.tell_through(place)

    def tell_through(self, place: StreamPosition) -> None:
        """Report progress to one client, unless it is best-effort."""
        session = place.subscription.session
        if session is None or place.subscription.quality == "best-effort":
            return
        if place.through > place.told:
            self._send(place, session, place.through)

    # -- starts ---------------------------------------------------------------------------------

    def _start(self, now: float, stream: EdgeStream, tick: int, version: Version) -> None:
        earliest = stream.earliest
        if earliest is None or earliest > version:
            return
        stream.earliest = None
        started: list[EdgeSubscription] = []
        for subscription in stream.waiting.values():
            wanted = subscription.version
            if wanted is None or wanted > version:
                stream.expect(wanted)
            elif len(started) < self._starts_max:
                started.append(subscription)
            else:
                # A later tick is as good for the remaining ones.
                stream.earliest = earliest
                self._state.starting[stream.name] = stream
                self._state.backlog_at = now
                break
        for subscription in started:
            del stream.waiting[subscription.key]
            self._begin(now, StreamPosition(subscription, stream, tick))

    def start_resting(self, now: float, stream: EdgeStream) -> None:
        """Start waiting subscriptions at the next tick, if the buffer's version includes them."""
        line = stream.line
        if stream.waiting and line.is_placed:
            self._start(now, stream, line.position + 1, line.version)

    def _begin(self, now: float, place: StreamPosition) -> None:
        subscription, stream = place.subscription, place.stream
        subscription.places[stream.name] = place
        self._state.touch(now)
        if subscription.is_durable:
            place.mode = "starting"
            self._cursors.put_cursor(place)
            self._state.sync(StartStored(place))
            return
        self.tell_start(place)
        if subscription.session is not None:
            self.enter(place)

    def tell_start(self, place: StreamPosition) -> None:
        """Send the client the first tick from which it receives every match."""
        session = place.subscription.session
        if session is not None:
            name = place.subscription.name
            self._state.tell(session, StartsAt(name, place.stream.name, place.acked + 1))

    def enter(self, place: StreamPosition) -> None:
        """Make a position live."""
        version = place.subscription.version
        place.stream.enter(place, NOTHING if version is None else version)

    def versions(self, now: float, versions: dict[str, Version]) -> list[EdgeSubscription]:
        """Record the interest versions that now include these subscriptions."""
        known = []
        for key, version in versions.items():
            subscription = self._state.subscriptions.get(key)
            if subscription is not None and not subscription.is_leaving:
                subscription.version = version
                known.append(subscription)
        for stream in self._state.streams.values():
            for subscription in known:
                if subscription.key in stream.waiting:
                    stream.expect(subscription.version)
            self.start_resting(now, stream)
        return known

    # -- acknowledgements -----------------------------------------------------------------------

    def ack(self, now: float, session: EdgeSession, frame: Ack) -> list[StreamPosition]:
        """Apply an acknowledgement; returns the positions that advanced."""
        acked = _acked(session, frame)
        moves = self._cursors.moves
        for place, tick in acked:
            moves(place, tick)
            flight = place.flight
            count = len(flight) if flight and flight[-1] <= tick else bisect_right(flight, tick)
            if count:
                place.subscription.unacked -= count
                del flight[:count]
        self._state.touch(now)
        return [place for place, _ in acked]


def _acked(session: EdgeSession, frame: Ack) -> list[tuple[StreamPosition, int]]:
    """Positions that an acknowledgement advances; `RemoteError` if it acknowledges unsent ticks."""
    acked = []
    for stream, ticks in frame.ticks.items():
        for name, tick in ticks.items():
            subscription = session.names.get(name)
            if subscription is None:
                # It ended, and the client has not been notified yet.
                continue
            place = subscription.places.get(stream)
            if place is None or tick > place.told:
                raise RemoteError(
                    f"subscription {name!r} acknowledges tick {tick} of {stream!r},"
                    " which was never sent"
                )
            if tick > place.acked:
                acked.append((place, tick))
    return acked
