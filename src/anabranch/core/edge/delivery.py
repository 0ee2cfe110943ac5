"""Delivery: match each event once, push it to subscriptions that are up to date, replay to others.

Theory of operation of live delivery: the reorder buffer of a stream releases runs in stream order.
Each event is matched once against the index of all subscriptions and pushed to the positions that
are live on the stream. The events that the subscriptions of one session receive in one step leave
in one frame, or in several if one would be too large. A silent range costs one comparison of
versions. `CatchUp` replays to the other subscriptions. Rules of live delivery:

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

from collections.abc import Generator, Hashable, Iterator, Sequence
from itertools import pairwise

from anabranch.core.edge.cursors import Cursors
from anabranch.core.edge.publisher_order import PublisherOrder
from anabranch.core.edge.reorder_buffer import Run, withheld_runs
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
from anabranch.matching.residual_checks import CHECK_WORK, SEARCHED_BYTES, Check
from anabranch.model.client_frames import Ack, StartsAt, Withheld
from anabranch.model.encoding import Envelope
from anabranch.model.errors import RemoteError
from anabranch.model.event import Attributes
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.frames import Answer, NotKept, Replay
from anabranch.model.version import NOTHING, Version

_NS_PER_S = 1e9


def matching(run: Run, envelope: Envelope, index: MatchIndex) -> list[Hashable]:
    """Keys of matching subscriptions; empty if the attributes are unreadable."""
    try:
        return index.match(envelope)
    except RemoteError:
        run.mark_unreadable()
        return []


def candidates(
    run: Run, envelope: Envelope, index: MatchIndex
) -> tuple[list[Hashable], list[tuple[Hashable, Check]], Attributes] | None:
    """Keys that match for certain, keys that need a check, and the attributes to check; None if
    the attributes are unreadable."""
    try:
        sure, left = index.narrow(envelope)
        return sure, left, envelope.attributes() if left else {}
    except RemoteError:
        run.mark_unreadable()
        return None


def is_match(run: Run, envelope: Envelope, filter: Filter) -> bool:
    """Whether one filter matches the event; False if the attributes are unreadable."""
    try:
        return filter.matches(envelope.attributes())
    except RemoteError:
        run.mark_unreadable()
        return False


def is_addressed(envelope: Envelope, client: str) -> bool:
    """Whether an event may go to this client, if its filter matches."""
    destinations = envelope.header.control.destinations
    return not destinations or client in destinations


def is_beyond_limits(now: float, run: Run, envelope: Envelope, hops: int) -> bool:
    control = envelope.header.control
    if control.hop_limit is not None and hops > control.hop_limit:
        return True
    if control.time_limit_ns is None or run.datum is None:
        return False
    return now * _NS_PER_S - run.datum.time_ns > control.time_limit_ns


#: Keys of the subscriptions that match an event; None if the event must be decoded first.
Matched = Sequence[Hashable] | None
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
PROGRESS_POSITIONS_MAX = 256


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
        self, now: float, stream: EdgeStream, runs: list[Run], matched: list[Matched] | None = None
    ) -> None:
        """Deliver runs that the reorder buffer released; `matched` may hold their matches."""
        batched: list[StreamPosition] = []
        if matched is None:
            matched = self._match_many(stream, runs)
        for number, run in enumerate(runs):
            if stream.waiting and not run.reason:
                self._start(now, stream, run.first, run.version)
            if not stream.live:
                continue
            if run.datum is not None:
                self._datum(now, stream, run, matched[number] if matched else None, batched)
            if run.reason:
                self._send_withheld_range(stream, run, batched)
            elif run.datum is None and stream.required_version() > run.version:
                self._require_version(stream, run)
        for position in batched:
            self.flush(position, stream.buffer.position)
        self._after_runs(now, stream)

    def _after_runs(self, now: float, stream: EdgeStream) -> None:
        """Start waiting subscriptions and report progress after a batch of runs."""
        self.start_waiting(now, stream)
        moved, count = stream.buffer.position - stream.progress_tick, len(stream.live)
        is_due = moved >= PROGRESS_TICKS and moved >= PROGRESS_TICKS_EACH * count
        if is_due and count <= PROGRESS_POSITIONS_MAX:
            self.send_all_progress(stream)

    def is_heavy(self, stream: EdgeStream, runs: int) -> bool:
        """Whether delivery of this many runs may exceed the work of one step."""
        if not (stream.live or stream.waiting):
            return False
        state = self._state
        work = runs * len(state.subscriptions) * PUSH_WORK
        return work > state.options.step_work_max or state.index.has_doubts

    def match_at_once(self, runs: list[Run]) -> list[Matched] | None:
        """Match these runs, if matching and delivering them fits into one step; None otherwise."""
        if len(runs) > self._runs_at_once():
            return None
        state = self._state
        bodies = [b"" if run.datum is None else run.datum.body for run in runs]
        matched = state.index.match_bodies(bodies, state.limits)
        fan_out = 0
        for run, each in zip(runs, matched, strict=True):
            if each is None and run.datum is not None:
                return None
            fan_out += len(each or ())
        return matched if fan_out * PUSH_WORK <= state.options.step_work_max else None

    def _runs_at_once(self) -> int:
        """Number of runs to look up without a pause."""
        count = max(1, len(self._state.subscriptions))
        return max(1, min(self._runs_max, _LOOKED_UP_MAX // count))

    def deliver_held(self, now: float, stream: EdgeStream) -> Iterator[PartRequest]:
        """Deliver held runs, about one step's worth of work."""
        buffer, work_max = stream.buffer, self._state.options.step_work_max
        work = 0
        while buffer.has_ready and work < work_max:
            runs = buffer.peek(self._runs_at_once())
            matched = self._match_many(stream, runs) or [None] * len(runs)
            count, fan_out = 0, 0
            for run, each in zip(runs, matched, strict=True):
                if run.datum is not None and each is None and (stream.live or stream.waiting):
                    break
                fan_out += len(each or ()) * PUSH_WORK
                if count and work + fan_out > work_max:
                    break
                count += 1
            spent = _RUN_WORK * len(runs) + min(fan_out, work_max)
            yield WorkDone(spent)
            work += spent
            if count and fan_out <= work_max:
                self._state.begin()
                buffer.release(runs[:count])
                self.advance(now, stream, runs[:count], matched[:count])
                yield from self._state.result()
            else:
                work += yield from self._deliver_one(now, stream, runs[0], matched[0])

    def _deliver_one(
        self, now: float, stream: EdgeStream, run: Run, matched: Matched
    ) -> Generator[PartRequest, None, int]:
        """Deliver one run in portions: to many subscriptions, or after many checks. Returns the
        work done."""
        state, work = self._state, 0
        if matched is None:
            matched, work = yield from self._match_in_portions(now, stream, run)
        state.begin()
        if stream.waiting and not run.reason:
            self._start(now, stream, run.first, run.version)
        yield from state.result()
        count = self._fan_out_max
        for first in range(0, len(matched), count):
            state.begin()
            batched: list[StreamPosition] = []
            self._datum(now, stream, run, matched[first : first + count], batched)
            for position in batched:
                self.flush(position, run.last)
            yield from state.result()
            yield WorkDone(PUSH_WORK * count)
        state.begin()
        stream.buffer.release([run])
        if run.reason:
            self._send_withheld_range(stream, run, [])
        self._after_runs(now, stream)
        yield from state.result()
        return work + PUSH_WORK * len(matched)

    def _match_in_portions(
        self, now: float, stream: EdgeStream, run: Run
    ) -> Generator[WorkDone, None, tuple[list[Hashable], int]]:
        """Like `_match`, in portions; also returns the work done."""
        envelope = run.read(self._state.limits)
        if envelope is None or is_beyond_limits(now, run, envelope, stream.hops):
            return [], 0
        found = candidates(run, envelope, self._state.index)
        if found is None:
            return [], 0
        matched, unchecked, attributes = found
        known = set(matched)
        work = total = 0
        for key, check in unchecked:
            if key not in known and check(attributes):
                known.add(key)
                matched.append(key)
            work += check.work(run.size)
            if work > self._check_work_max:
                yield WorkDone(work)
                total += work
                work = 0
        yield WorkDone(work)
        return self._addressed(stream, envelope, matched), total + work

    def _match_many(self, stream: EdgeStream, runs: list[Run]) -> list[Matched] | None:
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
        matched: Matched,
        batched: list[StreamPosition],
    ) -> None:
        datum = run.datum
        if matched is None:
            matched = self._match(now, stream, run)
        assert datum is not None
        live, tick = stream.live, datum.tick
        # An event that the index has matched without decoding it follows nothing.
        envelope = run.envelope
        follower = envelope if envelope is not None and envelope.header.control.after else None
        for key in matched:
            position = live.get(key)
            if position is None or tick <= position.processed:
                continue
            if follower is not None and not self.may_deliver(now, position, tick, follower):
                stream.fall_back(position, tick - 1)
                continue
            if not position.batch:
                batched.append(position)
            if not self.push(position, datum):
                self._overflow(now, position, tick - 1)

    def _match(self, now: float, stream: EdgeStream, run: Run) -> list[Hashable]:
        """Keys of the subscriptions that match one event and may receive it."""
        envelope = run.read(self._state.limits)
        if envelope is None or is_beyond_limits(now, run, envelope, stream.hops):
            return []
        return self._addressed(stream, envelope, matching(run, envelope, self._state.index))

    def _addressed(
        self, stream: EdgeStream, envelope: Envelope, matched: list[Hashable]
    ) -> list[Hashable]:
        if not envelope.header.control.destinations:
            return matched
        positions = [(key, stream.live.get(key)) for key in matched]
        return [
            key
            for key, position in positions
            if position is not None and is_addressed(envelope, position.subscription.client)
        ]

    def may_deliver(
        self, now: float, position: StreamPosition, tick: int, envelope: Envelope
    ) -> bool:
        """Whether an event that states what it follows may be delivered now; if it may only because
        the position cannot wait any longer, the client is told."""
        verdict = self._order.verdict(now, position, tick, envelope)
        if verdict == "tell":
            self.flush(position, tick - 1)
            self._order.tell(position, tick, envelope)
        return verdict != "wait"

    def push(self, position: StreamPosition, datum: Datum) -> bool:
        """Add an event to the next frame; False if the window or the session is full."""
        subscription = position.subscription
        session = subscription.session
        if session is None or session.is_full or subscription.unacked >= subscription.window:
            return False
        size = len(datum.body)
        if position.batch_bytes + size > self._state.options.replay_bytes_max:
            self.flush(position, datum.tick - 1)
        position.push(datum)
        return True

    def _overflow(self, now: float, position: StreamPosition, tick: int) -> None:
        subscription = position.subscription
        if subscription.is_durable:
            position.stream.fall_back(position, tick)
            return
        session = subscription.session
        which = "connection" if session is not None and session.is_full else "window"
        self.flush(position, tick)
        self._unsubscription.cut(now, subscription, f"too slow: the {which} is full")

    def _require_version(self, stream: EdgeStream, run: Run) -> None:
        if run.is_complete:
            return
        for position in list(stream.live.values()):
            is_required = position.subscription.is_lossless and run.last > position.processed
            if is_required and position.required_version > run.version:
                stream.fall_back(position, run.first - 1)

    def _send_withheld_range(
        self, stream: EdgeStream, run: Run, batched: list[StreamPosition]
    ) -> None:
        for position in batched:
            self.flush(position, run.first - 1)
        for position in stream.live.values():
            self.send_withheld(position, run.first, run.last, run.reason)

    # -- frames ---------------------------------------------------------------------------------

    def flush(self, position: StreamPosition, through: int = -1) -> None:
        """Send the batch of a position, and how far it is complete."""
        session = position.subscription.session
        if session is None or not position.batch:
            return
        if through < 0 or position.mode != "live":
            through = position.through
        self._send(position, session, through)

    def _send(self, position: StreamPosition, session: EdgeSession, through: int) -> None:
        size = position.batch_bytes
        self._state.deliver(session, position.stream.name, position.take_batch(through), size)

    def send_withheld(self, position: StreamPosition, first: int, last: int, reason: str) -> None:
        """Report ticks as withheld to the client."""
        session = position.subscription.session
        first = max(first, position.processed + 1)
        if session is None or first > last:
            return
        hole = Hole(first, last, reason)
        self._state.send_client(
            session, Withheld(position.subscription.name, position.stream.name, [hole])
        )
        position.announce(last)

    def send_progress_in_portions(self, now: float, stream: EdgeStream) -> None:
        """Report progress on one stream, to a bounded number of subscriptions per call."""
        if not stream.progress_positions:
            if len(stream.live) + len(stream.catching_up) <= PROGRESS_POSITIONS_MAX:
                self.send_all_progress(stream)
                return
            stream.queue_progress()
        for position in stream.take_progress(PROGRESS_POSITIONS_MAX):
            if position.mode in {"live", "catching_up"}:
                self.send_progress(position)
        if stream.progress_positions or stream.buffer.position > stream.progress_tick:
            # Come back for the remaining ones even if the stream stays silent.
            self._state.schedule_done(now)

    def send_all_progress(self, stream: EdgeStream) -> None:
        """Report to all clients how far the stream is complete for them."""
        stream.note_progress()
        for position in stream.live.values():
            self.send_progress(position)
        for position in stream.catching_up.values():
            self.send_progress(position)

    def send_progress(self, position: StreamPosition) -> None:
        """Report progress to one client, unless it is best-effort."""
        session = position.subscription.session
        if session is None or not position.subscription.is_lossless:
            return
        if position.through > position.announced:
            self._send(position, session, position.through)

    # -- starts ---------------------------------------------------------------------------------

    def _start(self, now: float, stream: EdgeStream, tick: int, version: Version) -> None:
        earliest = stream.earliest_version
        if earliest is None or earliest > version:
            return
        startable, has_more = stream.startable(version, self._starts_max)
        if has_more:
            # A later tick is as good for the remaining ones.
            self._state.queue_starts(stream)
            self._state.do_backlog_at(now)
        for subscription in startable:
            self._start_position(now, subscription, stream, tick)

    def start_waiting(self, now: float, stream: EdgeStream) -> None:
        """Start waiting subscriptions at the next tick, if the buffer's version includes them."""
        buffer = stream.buffer
        if stream.waiting and buffer.is_placed:
            self._start(now, stream, buffer.position + 1, buffer.version)

    def _start_position(
        self, now: float, subscription: EdgeSubscription, stream: EdgeStream, tick: int
    ) -> None:
        position = subscription.start(stream, tick)
        self._state.schedule_done(now)
        if subscription.is_durable:
            position.begin_start()
            self._cursors.put_cursor(position)
            self._state.sync(StartStored(position))
            return
        self.send_start(position)
        if subscription.session is not None:
            stream.go_live(position)

    def send_start(self, position: StreamPosition) -> None:
        """Send the client the first tick from which it receives every match."""
        session = position.subscription.session
        if session is not None:
            name = position.subscription.name
            self._state.send_client(
                session, StartsAt(name, position.stream.name, position.acked + 1)
            )

    def record_versions(self, now: float, versions: dict[str, Version]) -> list[EdgeSubscription]:
        """Record the interest versions that now include these subscriptions."""
        known = []
        for key, version in versions.items():
            subscription = self._state.subscriptions.get(key)
            if subscription is not None and not subscription.is_ending:
                subscription.set_version(version)
                known.append(subscription)
        for stream in self._state.streams.values():
            for subscription in known:
                if subscription.key in stream.waiting:
                    stream.note_waiting(subscription.version)
            self.start_waiting(now, stream)
        return known

    # -- acknowledgements -----------------------------------------------------------------------

    def ack(self, now: float, session: EdgeSession, frame: Ack) -> list[StreamPosition]:
        """Apply an acknowledgement; returns the positions that advanced."""
        acked = _acked(session, frame)
        for position, tick in acked:
            self._cursors.record_ack(position, tick)
        self._state.schedule_done(now)
        return [position for position, _ in acked]


def _acked(session: EdgeSession, frame: Ack) -> list[tuple[StreamPosition, int]]:
    """Positions that an acknowledgement advances; `RemoteError` if it acknowledges unsent ticks."""
    acked = []
    for stream, ticks in frame.ticks.items():
        for name, tick in ticks.items():
            subscription = session.subscriptions.get(name)
            if subscription is None:
                # It ended, and the client has not been notified yet.
                continue
            position = subscription.positions.get(stream)
            if position is None or tick > position.announced:
                raise RemoteError(
                    f"subscription {name!r} acknowledges tick {tick} of {stream!r},"
                    " which was never sent"
                )
            if tick > position.acked:
                acked.append((position, tick))
    return acked


#: The cost of matching recent runs at once, in microseconds of an ordinary machine.
_RECENT_WORK_MAX = 1_000


class CatchUp:
    """Replays missed events from the origin until a subscription is live again.

    A stream position that is catching up requests the events that match its own filter from the
    origin, starting after its position, one bounded batch at a time. The origin keeps no state
    about that; the edge requests the next batch when the last one is delivered and the window has
    room. When the position reaches that of the reorder buffer, it becomes live. A position that is
    only slightly behind needs no request: the reorder buffer keeps its most recent runs. Rules:

    1. Only a subscription with a session receives events, and only as many as its window has room
       for. Otherwise it waits for acknowledgements; no subscription is closed for catching up
       slowly.
    2. Recent runs are matched here only if that is cheap; expensive filters go to the origin, which
       bounds what it examines per answer. A position becomes live when it is at or beyond that of
       the reorder buffer and the buffer's version includes the subscription. Ticks that it has
       already received are skipped.
    3. The origin has matched the filter. The edge checks time limits, hop limits and destinations,
       as for live events.
    4. A position that must not deliver an event yet, because the event follows others in another
       stream, stops before it and requests nothing until it may (`publisher_order`).
    5. Ticks that the log no longer has are reported to the client as withheld and skipped.
    """

    def __init__(self, state: EdgeState, delivery: LiveDelivery, order: PublisherOrder) -> None:
        self._state = state
        self._order = order
        self._delivery = delivery

    # -- decide ---------------------------------------------------------------------------------

    def resume(self, now: float, position: StreamPosition) -> None:
        """Start to catch up: the position has a session now."""
        position.stream.catch_up(position)
        self.advance(now, position)

    def advance_stream(self, now: float, stream: EdgeStream) -> None:
        """Continue catch-up after the reorder buffer advanced."""
        for position in list(stream.catching_up.values()):
            if position.replay_request or position.waits():
                continue
            if position.subscription.credit > 0:
                self.advance(now, position)

    def advance_subscription(self, now: float, subscription: EdgeSubscription) -> None:
        """Continue catch-up: the window may have room, or the version has arrived."""
        for position in subscription.positions.values():
            if position.mode == "catching_up" and not position.replay_request:
                self.advance(now, position)

    def advance(self, now: float, position: StreamPosition) -> None:
        """Advance a position as far as possible, and request a replay if that is not enough."""
        buffer, subscription = position.stream.buffer, position.subscription
        if subscription.credit < 1 or position.mode != "catching_up" or position.waits():
            return
        if buffer.is_placed and subscription.version is not None:
            if position.processed < buffer.position:
                recent = buffer.recent.after(position.processed)
                if recent is not None and _are_cheap(recent, subscription.filter):
                    self._deliver(now, position, recent, buffer.position, is_matched=False)
                    if position.waits():
                        return
            if position.processed >= buffer.position and buffer.version >= subscription.version:
                self._close_replay(position)
                position.stream.go_live(position)
                self._order.caught_up(now, position)
                return
        if not position.replay_request and (
            not buffer.is_placed or position.processed < buffer.position
        ):
            self._ask(now, position)

    def _ask(self, now: float, position: StreamPosition) -> None:
        state, subscription = self._state, position.subscription
        options = state.options
        credit = subscription.credit
        if credit < 1:
            return
        number = state.requests.next_number()
        position.expect_replay(number)
        replay = Replay(
            number,
            position.processed + 1,
            0,
            [str(subscription.filter)],
            min(credit, options.replay_events_max),
            options.replay_bytes_max,
        )
        state.send_request(now, number, position.stream.name, replay, position)

    # -- answers --------------------------------------------------------------------------------

    def answer(self, now: float, position: StreamPosition, answer: Answer) -> None:
        """Deliver one batch of a replay."""
        runs = self._checked(position, answer)
        if answer.through < answer.first:
            if position.processed < position.stream.buffer.position:
                self._state.requests.postpone(now, position.replay_request)
            else:
                self._close_replay(position)
            return
        self._close_replay(position)
        self._deliver(now, position, runs, answer.through, is_matched=True)
        self.advance(now, position)

    def not_kept(self, now: float, position: StreamPosition, answer: NotKept) -> None:
        """Skip ticks that the origin's log no longer has, and report them as withheld."""
        self._close_replay(position)
        last = answer.oldest - 1
        if last > position.processed:
            self._delivery.send_withheld(position, position.processed + 1, last, "retention")
            position.advance(last)
            self._order.caught_up(now, position)
        self.advance(now, position)

    def _close_replay(self, position: StreamPosition) -> None:
        self._state.requests.close(position.end_replay())

    def _checked(self, position: StreamPosition, answer: Answer) -> list[Run]:
        asked = self._state.requests.content(position.replay_request)
        assert isinstance(asked, Replay)
        ticks = [datum.tick for datum in answer.data]
        ordered = all(one < other for one, other in pairwise(ticks))
        ends = [*ticks[:1], *ticks[-1:], *(t for h in answer.withheld for t in (h.first, h.last))]
        within = all(answer.first <= tick <= answer.through for tick in ends)
        if answer.first != asked.first or not ordered or not within:
            raise RemoteError(
                f"invalid ticks in the answer of {position.stream.name!r} to a replay"
            )
        runs = [Run(datum.tick, datum.tick, NOTHING, datum) for datum in answer.data]
        if answer.withheld:
            runs += withheld_runs(answer.withheld, NOTHING)
            runs.sort(key=lambda run: run.first)
        return runs

    # -- deliver --------------------------------------------------------------------------------

    def _deliver(
        self, now: float, position: StreamPosition, runs: list[Run], through: int, is_matched: bool
    ) -> None:
        """Deliver runs to one position, as far as its window allows."""
        for run in runs:
            if run.last <= position.processed:
                continue
            position.advance(run.first - 1)
            if run.is_silent:
                stops = self._is_version_missing(position, run)
            else:
                stops = not self._take_run(now, position, run, is_matched)
            if stops:
                break
            position.advance(run.last)
        else:
            position.advance(through)
        if position.batch:
            self._delivery.flush(position)
        elif position.processed - position.announced >= PROGRESS_TICKS:
            self._delivery.send_progress(position)
        self._order.caught_up(now, position)

    def _is_version_missing(self, position: StreamPosition, run: Run) -> bool:
        if run.is_complete:
            return False
        version = position.subscription.version
        return version is None or version > run.version

    def _take_run(self, now: float, position: StreamPosition, run: Run, is_matched: bool) -> bool:
        """Deliver one run that is not silent; False if the window is full or the event must
        wait."""
        envelope = None if run.datum is None else run.read(self._state.limits)
        if envelope is not None:
            assert run.datum is not None
            if is_beyond_limits(now, run, envelope, position.stream.hops):
                return True
            if not is_addressed(envelope, position.subscription.client):
                return True
            if is_matched or is_match(run, envelope, position.subscription.filter):
                follows, tick = bool(envelope.header.control.after), run.first
                if follows and not self._delivery.may_deliver(now, position, tick, envelope):
                    return False
                return self._delivery.push(position, run.datum)
        if run.reason:
            self._delivery.flush(position)
            self._delivery.send_withheld(position, run.first, run.last, run.reason)
        return True


def _are_cheap(runs: Sequence[Run], filter: Filter) -> bool:
    """Whether runs can be matched here at once; otherwise the origin does it in portions."""
    size = sum(run.size for run in runs)
    each = CHECK_WORK + len(filter.conjunctions)
    return len(runs) * each + filter.search_weight * size // SEARCHED_BYTES <= _RECENT_WORK_MAX
