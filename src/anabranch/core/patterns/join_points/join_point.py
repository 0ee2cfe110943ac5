"""A join point: detects one pattern at one broker.

It is a client inside a broker: a durable subscription to all events that the parts of the pattern
match, a detector, and a publisher of notifications. Its knowledge is in the logs of the network; it
stores almost nothing itself. Rules:

1. *Time* is that of origins. A stream is complete up to the time before which its origin announced
   no further event; the watermark is the minimum over all streams, and there is none before all
   have started (`DetectionClock`). When there is no more room, some streams are given up
   (`DetectionBounds`).
2. *Reported* is a time R: all matches that were final before R are in the log as notifications. R
   is put on disk after that, and an event is acknowledged only when no match that is final at R or
   later can need it. So a restarted join point, here or elsewhere, is redelivered all it needs.
3. A restarted join point drops matches that are final before R. For the rest it learns from its own
   notifications which matches have been reported: they match its subscription too, are retained
   like events, and nothing is published before all of them up to the restart have arrived.
4. Nothing is published before this broker's origin has the interest, as it was at the definition,
   of the edge where the pattern was defined: subscribers there receive every match. Routing need
   not send an origin the interest of others; the join point waits at most `INTEREST_WITHIN_S` for
   it.
5. While it cannot publish, it accepts no more events once `UNPUBLISHED_MAX` matches wait. A join
   point that is about to move publishes nothing more: its successor finds the same matches.
6. A step does as much work as the broker's `Pace` allows: events wait in a queue for their turn,
   and so do due decisions and matches. Time stands still while events wait, and none of these is
   acknowledged. Once `QUEUED_MAX` wait it accepts no more.
7. Withheld ticks are counted and logged. They do not stop detection.

State: the record (`records`); everything else is rebuilt (`detection`).

Prior art: join points and their movement in PADRES (spec PADRES section 4), where the protocol is
left open; replaying a log instead of handing over state, as in stream processors.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from msgspec.structs import replace

from anabranch.core.contract import Note, earliest
from anabranch.core.options import Options
from anabranch.core.part_requests import (
    JoinPointConnected,
    JoinPointDisconnected,
    JoinPointFrame,
    JoinPointFull,
    PartRequest,
)
from anabranch.core.patterns.event_store import ByteBudget
from anabranch.core.patterns.join_points.detection import (
    DetectionClock,
    DetectionCounters,
    PatternDetection,
)
from anabranch.core.patterns.join_points.records import (
    BrokerQueries,
    ParsedPattern,
    name_of,
)
from anabranch.core.patterns.plan import StepAllowance
from anabranch.core.session.effects import (
    EventDelivered,
    EventsConfirmed,
    EventsRefused,
    ResumePoint,
    SendFrame,
    SessionEffects,
    SubscriptionAccepted,
    SubscriptionCut,
    SubscriptionRefused,
    SubscriptionStarted,
    TicksWithheld,
)
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import AnyClientFrame
from anabranch.model.errors import RemoteError
from anabranch.model.limits import Limits
from anabranch.model.pattern.match import (
    Match,
    PointRecord,
    Start,
    digest_of,
    notification_of,
    subscription_to,
)
from anabranch.model.version import NOTHING

#: Cost of decoding an event, and of publishing a match, in units of one entry examined by a
#: detector.
EVENT_TRIES = 50
PUBLISH_TRIES = 400


class TokenBucket:
    """A token bucket: a rate per second, with a burst of one second."""

    __slots__ = ("_at", "_level", "_per_s")

    def __init__(self, now: float, per_s: int) -> None:
        assert per_s >= 1, "a rate of zero is never ready"
        self._per_s = per_s
        self._level = float(per_s)
        self._at = now

    def ready_at(self, now: float) -> float:
        """When the next token is available; `now` if one is."""
        self._fill(now)
        return now if self._level >= 1.0 else now + (1.0 - self._level) / self._per_s

    def take(self) -> None:
        self._level -= 1.0

    def is_full(self, now: float) -> bool:
        """Whether nothing was used for a second; the bucket can be dropped then."""
        self._fill(now)
        return self._level >= self._per_s

    def _fill(self, now: float) -> None:
        if now > self._at:
            # Add a little, so that the bucket is ready at the time that `ready_at` returned.
            gained = (now - self._at) * self._per_s + 1e-6
            self._level = min(self._level + gained, float(self._per_s))
            self._at = now


class Pace:
    """Limits the work of join points per step and the matches they publish per second.

    A pattern can find many matches in few events, and a client can define many patterns. Neither
    may block the rest of the broker or fill its log faster than consumers can read. Rules:

    1. All join points of a broker share the tries of one step (`pattern_step_tries`). An event that
       was begun is finished. Remaining work continues in the next step, after other stimuli; the
       join point that has waited longest is first.
    2. A pattern publishes at most `pattern_matches_per_s`, and all patterns of one client that are
       detected here at most `pattern_client_matches_per_s`. Unused tokens accumulate for a second.
    3. Both limits only delay. The backlog is bounded by the join point, which then accepts no more
       events.

    State: what is left of the step and of each rate. Safe to lose: a restarted broker begins with
    full buckets.

    Prior art: token buckets, as of RFC 2697.
    """

    def __init__(self, options: Options) -> None:
        self.allowance = StepAllowance(options.pattern_step_tries)
        self._per_s = options.pattern_client_matches_per_s
        #: Client → its token bucket.
        self._clients: dict[str, TokenBucket] = {}

    def of_client(self, now: float, client: str) -> TokenBucket:
        """The token bucket that all patterns of a client share."""
        bucket = self._clients.get(client)
        if bucket is None:
            for name in [name for name, each in self._clients.items() if each.is_full(now)]:
                del self._clients[name]
            bucket = self._clients[client] = TokenBucket(now, self._per_s)
        return bucket


#: Matches that may wait to be published; beyond that no more events are accepted.
UNPUBLISHED_MAX = 4_096
#: Events that may wait for their turn; beyond that no more are accepted.
QUEUED_MAX = 1_024
#: How long to wait for an origin to receive an edge's interest.
INTEREST_WITHIN_S = 10.0
#: Subscription numbers per activation.
_NUMBERS = 1 << 20
#: Not a limit: the detector bounds kept events, and reports those for which it has no room.
_WINDOW = 1 << 40


class JoinPoint:
    """One activation of a join point. See the rules at the top of this module."""

    def __init__(  # noqa: PLR0917 - called in one place
        self,
        record: PointRecord,
        pattern: ParsedPattern,
        session: int,
        broker: BrokerQueries,
        options: Options,
        limits: Limits,
        pace: Pace,
        room: ByteBudget,
    ) -> None:
        self.record = record
        self.session = session
        self.pattern = pattern
        self.scheme = scheme = pattern.scheme
        #: About to move: its successor reports all further matches.
        self.is_moving = False
        #: Why it cannot continue and must be restarted; "" if it can.
        self.failure = ""
        self._name = name_of(record.id)
        self.filter = pattern.subscribed
        self._broker = broker
        self._options = options
        self._limits = limits
        self._client = ClientSession(self._name, incarnation=record.incarnation, limits=limits)
        self._pace = pace
        self._detection = PatternDetection(record, scheme, limits, pace.allowance, room)
        self._clock = DetectionClock(self._name, broker, self._detection, options)
        #: Events that wait for their turn.
        self._queue: deque[EventDelivered] = deque()
        self._queue_bytes = 0
        #: When to continue work that did not fit into a step.
        self._work_at: float | None = None
        #: Matches to be published, and unconfirmed ones with their sequence numbers.
        self._unpublished: deque[Match] = deque()
        self._unconfirmed: deque[tuple[int, Match]] = deque()
        #: Stream → tick up to which own notifications may exist; empty once they have arrived.
        self._missing: dict[str, int] = {}
        self._is_subscribed = False
        self._is_ready = False
        self._is_full = False
        self._is_changed = False
        self._interest_deadline = 0.0
        self._now = 0.0
        self._update_at = 0.0
        self._save_at = 0.0
        self._rate = TokenBucket(0.0, options.pattern_matches_per_s)
        self._effects: list[PartRequest] = []

    # -- questions --------------------------------------------------------------------------------

    @property
    def counters(self) -> DetectionCounters:
        """What happened here since the broker started."""
        return self._detection.counters

    @property
    def is_ready(self) -> bool:
        """Whether it has received its own notifications and may publish."""
        return self._is_ready

    @property
    def is_settled(self) -> bool:
        """Whether everything there is to report is in the log."""
        has_reported_all = (
            self._is_ready and not self._queue and not self._unpublished and not self._unconfirmed
        )
        return (
            has_reported_all
            and not self._detection.is_waiting
            and not self._detection.has_pending_decisions
        )

    @property
    def may_move(self) -> bool:
        """Whether another broker can take over: it has started here, the position of its
        subscription is known, and everything it published is confirmed."""
        ticks, starts, streams = self.acked_ticks(), self.starts, self._broker.streams
        is_known = all(each in ticks for each in starts if each in streams)
        has_begun = self._broker.name in starts or bool(self.failure)
        return self._is_subscribed and has_begun and is_known and not self._unconfirmed

    @property
    def starts(self) -> Mapping[str, Start]:
        """Stream → its first counted event, for the streams that have started."""
        return self._detection.starts

    @property
    def retained(self) -> int:
        """Number of ticks that must be redelivered after a restart."""
        return len(self._detection.unacked)

    @property
    def queued_bytes(self) -> int:
        return self._queue_bytes

    def acked_ticks(self) -> Mapping[str, int]:
        """Stream → the tick after which the next activation resumes."""
        points = self._client.resume_points()
        return next((each.acked for each in points if each.name == self._name), {})

    def set_record(self, record: PointRecord) -> None:
        """Replace its record, which is stored with its next write at the latest."""
        assert record.id == self.record.id
        self.record = record

    def set_moving(self, is_moving: bool) -> None:
        """Whether it is about to move: its successor reports all further matches then."""
        self.is_moving = is_moving

    def fail(self, reason: str) -> None:
        """It cannot continue and must be restarted."""
        self.failure = reason

    # -- activation -------------------------------------------------------------------------------

    def begin(self, now: float) -> list[PartRequest]:
        """Subscribe: its record is on disk."""
        record, broker = self.record, self._broker
        reports = record.reports.items()
        self._missing = {stream: tick for stream, tick in reports if stream in broker.streams}
        self._missing[broker.name] = broker.head()
        # A subscription that already exists here is further along than the record.
        comes = bool(record.ticks) and not broker.progress(self._name)
        resume_point = ResumePoint(
            name=self._name,
            filter=self.filter,
            number=record.incarnation * _NUMBERS,
            acked=record.ticks if comes else {},
            start="resume" if comes else "now",
            window=_WINDOW,
            manual_ack=True,
        )
        self._now = self._update_at = now
        self._interest_deadline = now + INTEREST_WITHIN_S
        self._save_at = now + self._options.pattern_save_s
        self._effects.append(JoinPointConnected(self.session))
        self._perform(self._client.resume(now, resume_point))
        self._perform(self._client.advertise([subscription_to(record.id)]))
        self._perform(self._client.connected(now))
        return self.take_effects()

    def stop(self, now: float) -> list[PartRequest]:
        """Deactivate; its subscription remains without a session."""
        self._perform(self._client.disconnected(now))
        self._detection.close()
        self._emit_notes()
        self._effects.append(JoinPointDisconnected(self.session))
        return self.take_effects()

    def end(self, now: float) -> list[PartRequest]:
        """Unsubscribe; `has_ended` becomes True when that is done."""
        self._perform(self._client.unsubscribe(now, self._name))
        return self.take_effects()

    @property
    def has_ended(self) -> bool:
        return not self._client.knows(self._name)

    # -- stimuli ----------------------------------------------------------------------------------

    def frame(self, now: float, frame: AnyClientFrame) -> list[PartRequest]:
        self._now = now
        try:
            self._perform(self._client.frame(now, frame))
        except RemoteError as error:
            self.failure = str(error)
        self._work(now)
        return self.take_effects()

    def time_passed(self, now: float) -> list[PartRequest]:
        self._now = now
        self._perform(self._client.time_passed(now))
        self._work(now)
        if self._update_at <= now:
            self._queue_matches(self._clock.update(now, {each.stream for each in self._queue}))
            self._emit_notes()
            self._work(now)
            options = self._options
            is_waiting = self._detection.is_waiting or bool(self._queue)
            self._update_at = now + (
                options.pattern_look_s if is_waiting else options.pattern_save_s
            )
        return self.take_effects()

    def _work(self, now: float) -> None:
        """Do pending work, as far as this step allows (rule 6)."""
        pace = self._pace
        is_waiting = False
        while self._queue and not pace.allowance.is_spent:
            event = self._queue[0]
            if self._detection.is_full_for(event.time_ns):
                self._queue_matches(self._clock.make_room(now, event.time_ns))
                is_full = self._detection.is_full_for(event.time_ns)
                if is_full and self._clock.may_wait(now):
                    is_waiting = True
                    self._update_at = min(self._update_at, now + self._options.pattern_look_s)
                    break
            self._queue.popleft()
            self._queue_bytes -= len(event.body)
            pace.allowance.spend(EVENT_TRIES)
            self._queue_matches(self._detection.take(event))
        if self._detection.has_pending_decisions and not pace.allowance.is_spent:
            self._queue_matches(self._detection.continue_decisions())
        self._publish(now)
        self._pause_or_resume()
        is_idle = is_waiting or not self._queue
        if is_idle and not self._detection.has_pending_decisions and not self._may_publish():
            self._work_at = None
        elif pace.allowance.is_spent:
            self._work_at = now if self._work_at is None else min(self._work_at, now)
        else:
            self._work_at = self._next_publish_at(now)

    def _pause_or_resume(self) -> None:
        """Pause delivery while too much waits, and resume it later (rule 5)."""
        held, coming = len(self._unpublished), len(self._queue)
        is_full = held > UNPUBLISHED_MAX or coming > QUEUED_MAX
        has_room = held < UNPUBLISHED_MAX // 2 and coming < QUEUED_MAX // 2
        if (is_full and not self._is_full) or (has_room and self._is_full):
            self._is_full = is_full
            self._effects.append(JoinPointFull(self.session, full=is_full))

    def _emit_notes(self) -> None:
        for text in self._detection.take_notes():
            self._effects.append(Note("warning", f"pattern {self.record.id!r}: {text}"))

    def next_deadline(self) -> float:
        wanted = [self._client.next_deadline(), self._work_at, self._update_at]
        return min(each for each in wanted if each is not None)

    def take_effects(self) -> list[PartRequest]:
        effects, self._effects = self._effects, []
        return effects

    def _perform(self, effects: SessionEffects) -> None:
        for effect in effects:
            match effect:
                case SendFrame():
                    self._effects.append(JoinPointFrame(self.session, effect.frame))
                case EventDelivered():
                    self._queue.append(effect)
                    self._queue_bytes += len(effect.body)
                case EventsConfirmed():
                    while self._unconfirmed and self._unconfirmed[0][0] <= effect.sequence:
                        self._unconfirmed.popleft()
                case SubscriptionAccepted():
                    self._is_subscribed = True
                case SubscriptionStarted():
                    self._is_changed |= self._detection.start(effect.stream, effect.tick)
                case TicksWithheld():
                    self._withheld(effect)
                case SubscriptionCut() | SubscriptionRefused():
                    self.failure = effect.reason or "the subscription was closed"
                case EventsRefused(final=True):
                    # They are not in the log; publish them again after a restart.
                    while self._unconfirmed and self._unconfirmed[-1][0] >= effect.sequence:
                        self._unpublished.appendleft(self._unconfirmed.pop()[1])
                    self.failure = effect.reason

    def _withheld(self, withheld: TicksWithheld) -> None:
        if withheld.reason != "transient":
            self.counters.count_withheld()
            what = f"withheld ({withheld.reason}); it may miss matches"
            self._detection.note(what, withheld.stream, withheld.first)

    # -- reporting --------------------------------------------------------------------------------

    def _queue_matches(self, matches: Sequence[Match]) -> None:
        self._unpublished += matches

    def _may_publish(self) -> bool:
        """Whether a match can be published as soon as the pace allows it."""
        is_able = self._is_ready and not self.failure and not self.is_moving
        return bool(self._unpublished) and is_able and self._client.has_room()

    def _next_publish_at(self, now: float) -> float:
        """When the next match may be published."""
        of_client = self._pace.of_client(now, self.record.client)
        return max(self._rate.ready_at(now), of_client.ready_at(now))

    def _publish(self, now: float) -> None:
        """Publish found matches, as soon as that is allowed (rules 3 and 4)."""
        if self.failure or (not self._is_ready and not self._becomes_ready(now)):
            return
        allowance = self._pace.allowance
        while self._may_publish() and not allowance.is_spent:
            if self._next_publish_at(now) > now:
                return
            match = self._unpublished.popleft()
            if digest_of(match.identity) in self._detection.reports:
                continue
            allowance.spend(PUBLISH_TRIES)
            self._rate.take()
            self._pace.of_client(now, self.record.client).take()
            event = notification_of(match, self._detection.final_ns(match), self._limits)
            ids, effects = self._client.publish(now, event, time_ns=int(now * 1e9))
            self._unconfirmed.append((ids[0].sequence, match))
            self.counters.count_reported()
            self._perform(effects)

    def _becomes_ready(self, now: float) -> bool:
        received = self._client.received(self._name, self._missing) or {}
        is_missing = any(received.get(each, 0) < tick for each, tick in self._missing.items())
        # Queued events have not been examined.
        is_missing |= any(each.tick <= self._missing.get(each.stream, 0) for each in self._queue)
        if is_missing:
            return False
        if now < self._interest_deadline and not self._has_interest():
            return False
        self._missing = {}
        self._is_ready = True
        return True

    def _has_interest(self) -> bool:
        """Whether this broker's origin has the interest of the edge that defined it (rule 4)."""
        edge, version, broker = self.record.edge, self.record.version, self._broker
        return edge not in broker.streams or broker.vector().get(edge, NOTHING) >= version

    # -- remembering ------------------------------------------------------------------------------

    def to_save(self, now: float) -> PointRecord | None:
        """The record to be put on disk, if that is due and the record has changed."""
        if now < self._save_at or not self._is_ready:
            return None
        self._save_at = now + self._options.pattern_save_s
        is_late = self.retained > 0 and self._reported_ns() > self.record.reported_ns
        if not is_late and not self._is_changed:
            # Nothing could be released, so the progress of time need not be on disk.
            self._acknowledge(now)
            return None
        return self.newest()

    def newest(self) -> PointRecord:
        self._is_changed = False
        reported_ns = max(self._reported_ns(), self.record.reported_ns)
        starts = dict(self._detection.starts)
        self.record = replace(self.record, reported_ns=reported_ns, starts=starts)
        return self.record

    def _reported_ns(self) -> int:
        """The time before which all matches are confirmed in the log (rule 2)."""
        unsure = [match.last.time_ns for _, match in self._unconfirmed]
        unsure += [match.last.time_ns for match in self._unpublished]
        return min([self._detection.horizon_ns, *unsure])

    def saved(self, now: float, record: PointRecord) -> list[PartRequest]:
        """Acknowledge events that are no longer needed: a record is on disk."""
        self._detection.release(record.reported_ns)
        self._acknowledge(now)
        return self.take_effects()

    def _acknowledge(self, now: float) -> None:
        if self._client.knows(self._name):
            ticks = self._detection.unacked.ticks(self._processed_ticks())
            self._perform(self._client.ack(now, {self._name: ticks}))

    def _processed_ticks(self) -> dict[str, int]:
        """Stream → the tick up to which every event has left the queue."""
        taken = dict(self._client.progress(self._name))
        for event in self._queue:
            taken[event.stream] = min(taken.get(event.stream, event.tick), event.tick - 1)
        return taken


#: Up to this many stale entries are never swept.
_STALE_MAX = 64


class TimerQueue:
    """A timer queue: deadlines by key, without scanning all keys.

    A heap in which a key may occur several times; only its earliest time counts, and later entries
    of a key cause at most a superfluous check. To postpone a key, its owner waits until it is due
    and adds it again with the later time. Stale entries are swept when they outnumber the others.

    State: volatile.
    """

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        #: Key → its earliest time in the heap.
        self._times: dict[str, float] = {}

    def add(self, key: str, at: float) -> None:
        """Schedule a key, unless it is already scheduled earlier."""
        known = self._times.get(key)
        if known is None or at < known:
            self._times[key] = at
            heappush(self._heap, (at, key))

    def remove(self, key: str) -> None:
        self._times.pop(key, None)
        if len(self._heap) > 2 * len(self._times) + _STALE_MAX:
            self._heap = [(at, each) for each, at in self._times.items()]
            heapify(self._heap)

    def due(self, now: float) -> list[str]:
        """Remove and return the keys that are due, earliest first."""
        keys = []
        while self._heap and self._heap[0][0] <= now:
            at, key = heappop(self._heap)
            if self._times.get(key) == at:
                del self._times[key]
                keys.append(key)
        return keys

    def __len__(self) -> int:
        return len(self._heap)

    def next_at(self) -> float | None:
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None


class FairQueue:
    """A fair queue for something that only one key can have at a time.

    Each key has a time from which on it wants a turn. Among the keys that are due, the one that has
    waited longest is next, so no key starves, however long a turn takes. Keys that are not due cost
    nothing when the next deadline is computed.

    State: volatile.
    """

    __slots__ = ("_at", "_deadlines", "_due")

    def __init__(self) -> None:
        #: Key → when it wants a turn.
        self._at: dict[str, float] = {}
        self._deadlines = TimerQueue()
        #: Keys that wait for a turn, in order.
        self._due: dict[str, None] = {}

    def schedule(self, key: str, at: float) -> None:
        """Schedule a turn, replacing an earlier schedule."""
        self._due.pop(key, None)
        self._at[key] = at
        self._deadlines.add(key, at)

    def remove(self, key: str) -> None:
        self._at.pop(key, None)
        self._due.pop(key, None)
        self._deadlines.remove(key)

    def pop(self, now: float) -> str | None:
        """Remove and return the next key that is due, if any."""
        for key in self._deadlines.due(now):
            if self._at[key] <= now:
                self._due[key] = None
            else:
                self._deadlines.add(key, self._at[key])
        first = next(iter(self._due), None)
        if first is not None:
            self.remove(first)
        return first

    def next_at(self) -> float | None:
        """When the next turn is due."""
        first = next(iter(self._due), None)
        return earliest(None if first is None else self._at[first], self._deadlines.next_at())
