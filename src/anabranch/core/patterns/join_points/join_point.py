"""A join point: where a pattern is detected.

It is a client inside a broker: a durable subscription to everything that its parts match, a
detector, and a publisher of notifications. What it knows is in the logs of the network, and it
keeps almost nothing itself. Rules:

1. *Time* is that of origins. A stream is known up to when its origin said that nothing earlier will
   come; the watermark is the least of all streams, and there is none before all have started
   (`timing`). When there is no more room, some are not waited for any longer (`room`).
2. *Reported* is a time R: all matches that were final before R are in the log as notifications. It
   is put on disk when that is so, and an event is acknowledged only when no match that is final
   from R on can need it. So one that starts anew, here or elsewhere, is given all it needs.
3. One that starts anew drops what is final before R. For the rest it knows by its own notifications
   which matches are reported: they match its subscription too, are needed like events, and nothing
   is published before all of them up to the start have come.
4. Nothing is published before the own origin knows the interest of the edge where the pattern was
   defined, as it was then: whoever had subscribed there gets everything. Routing need not tell an
   origin what is known of others; it is not waited for longer than `TOLD_WITHIN_S`.
5. While it cannot publish it takes no more, once `HELD_MAX` matches wait. One that is to go
   elsewhere publishes nothing more: who goes on finds the same.
6. It does in one step what its broker's `pace` allows: events that came wait in a queue for their
   turn, and so does what time has passed, and matches. Time stands still while events wait, and
   none of these is acknowledged. Once `COMING_MAX` wait it takes no more.
7. Ticks that are withheld are counted and noted. They do not stop it.

State: the record (`record`); everything else is rebuilt (`watch`).

Prior art: join points and their movement in PADRES (spec PADRES section 4), where the protocol is
left open; reading a log again in place of handing over state, as in stream processors.
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
from anabranch.core.patterns.event_store import KeptBytes
from anabranch.core.patterns.join_points.detection import (
    DetectionClock,
    DetectionCounters,
    PatternDetection,
)
from anabranch.core.patterns.join_points.records import (
    JoinPointSurroundings,
    ReadPattern,
    name_of,
)
from anabranch.core.patterns.plan import StepAllowance
from anabranch.core.session.effects import (
    Confirm,
    DeliverToApplication,
    ResumePoint,
    SendFrame,
    SessionEffects,
    TellCut,
    TellPublishRefused,
    TellRefused,
    TellStands,
    TellStart,
    TellWithheld,
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

#: What it counts to read an event, and to publish a match, in the time that it takes to look at an
#: entry of a detector.
EVENT_TRIES = 50
PUBLISH_TRIES = 400


class RateBucket:
    """So many in a second, and as many at once after a pause."""

    __slots__ = ("_at", "_level", "_per_s")

    def __init__(self, now: float, per_s: int) -> None:
        assert per_s >= 1, "a rate of nothing would never be ready"
        self._per_s = per_s
        self._level = float(per_s)
        self._at = now

    def ready_at(self, now: float) -> float:
        """When the next one is allowed; `now` if it is."""
        self._fill(now)
        return now if self._level >= 1.0 else now + (1.0 - self._level) / self._per_s

    def take(self) -> None:
        """One is done."""
        self._level -= 1.0

    def is_full(self, now: float) -> bool:
        """Whether nothing was done for a second; it need not be remembered then."""
        self._fill(now)
        return self._level >= self._per_s

    def _fill(self, now: float) -> None:
        if now > self._at:
            # A little more than the time says, so that who waits for a time is ready then.
            gained = (now - self._at) * self._per_s + 1e-6
            self._level = min(self._level + gained, float(self._per_s))
            self._at = now


class Pace:
    """How much join points do in one step, and how many matches they publish in one second.

    A pattern can find many matches in few events, and a client can define many patterns. Neither is
    to keep the broker from everything else, nor to fill its log faster than others can read. Rules:

    1. All join points of a broker share what may be tried in one step (`pattern_step_tries`). An
       event that was begun is finished. What is left goes on in the next step, after whatever else
       has happened; who has waited longest comes first.
    2. A pattern publishes `pattern_matches_per_s`, and all patterns that one client has defined, as
       far as they are detected here, `pattern_client_matches_per_s`. What was not used is saved up
       for a second.
    3. Both only delay. What waits is bounded by the join point, which takes no more events then.

    State: what is left of the step, and of each rate. Safe to lose: a broker that starts again
    begins with a full second.

    Prior art: token buckets, as of RFC 2697.
    """

    def __init__(self, options: Options) -> None:
        self.allowance = StepAllowance(options.pattern_step_tries)
        self._per_s = options.pattern_client_matches_per_s
        #: Client → what it may still publish.
        self._clients: dict[str, RateBucket] = {}

    def of_client(self, now: float, client: str) -> RateBucket:
        """The rate that all patterns of a client share."""
        bucket = self._clients.get(client)
        if bucket is None:
            for name in [name for name, each in self._clients.items() if each.is_full(now)]:
                del self._clients[name]
            bucket = self._clients[client] = RateBucket(now, self._per_s)
        return bucket


#: Matches that may wait to be published before no more events are taken.
HELD_MAX = 4_096
#: Events that may wait for their turn before no more are taken.
COMING_MAX = 1_024
#: How long an origin is given to hear of an edge's interest.
TOLD_WITHIN_S = 10.0
#: An activation attaches its subscription with numbers of its own.
_NUMBERS = 1 << 20
#: The detector bounds what is kept, not the window: what it has no room for it says.
_WINDOW = 1 << 40


class JoinPoint:
    """One activation of a join point. See the rules at the top of this module."""

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        record: PointRecord,
        pattern: ReadPattern,
        session: int,
        outlook: JoinPointSurroundings,
        options: Options,
        limits: Limits,
        pace: Pace,
        room: KeptBytes,
    ) -> None:
        self.record = record
        self.session = session
        self.pattern = pattern
        self.scheme = scheme = pattern.scheme
        #: It is to go elsewhere, and finds no more for others to report.
        self.is_going = False
        #: Why it cannot go on; it is to be started anew.
        self.failure = ""
        self._name = name_of(record.id)
        self.filter = pattern.subscribed
        self._outlook = outlook
        self._options = options
        self._limits = limits
        self._client = ClientSession(self._name, incarnation=record.incarnation, limits=limits)
        self._pace = pace
        self._watch = PatternDetection(record, scheme, limits, pace.allowance, room)
        self._timing = DetectionClock(self._name, outlook, self._watch, options)
        #: Events that wait for their turn.
        self._coming: deque[DeliverToApplication] = deque()
        self._coming_bytes = 0
        #: Since when, or from when on, something can be done that a step had no room for.
        self._work_at: float | None = None
        #: Matches to be published, and those that are not confirmed, with their sequences.
        self._held: deque[Match] = deque()
        self._sent: deque[tuple[int, Match]] = deque()
        #: Stream → notifications may be up to here; empty once they have come.
        self._missing: dict[str, int] = {}
        self._stands = False
        self._is_ready = False
        self._is_full = False
        self._is_changed = False
        self._told_by = 0.0
        self._now = 0.0
        self._look_at = 0.0
        self._save_at = 0.0
        self._rate = RateBucket(0.0, options.pattern_matches_per_s)
        self._out: list[PartRequest] = []

    # -- questions --------------------------------------------------------------------------------

    @property
    def counters(self) -> DetectionCounters:
        """What happened here, in this life."""
        return self._watch.counters

    @property
    def is_ready(self) -> bool:
        """Whether it knows what is reported, and may report more."""
        return self._is_ready

    @property
    def is_settled(self) -> bool:
        """Whether all that there is to report is in the log."""
        is_told = self._is_ready and not self._coming and not self._held and not self._sent
        return is_told and not self._watch.is_waiting and not self._watch.is_behind

    @property
    def may_go(self) -> bool:
        """Whether another broker can go on: it has begun here, and it is known where the
        subscription stands, and of all that was published whether it is in the log."""
        standing, starts, streams = self.standing(), self.starts, self._outlook.streams
        is_known = all(each in standing for each in starts if each in streams)
        has_begun = self._outlook.name in starts or bool(self.failure)
        return self._stands and has_begun and is_known and not self._sent

    @property
    def starts(self) -> Mapping[str, Start]:
        """Stream → from where on its events count, of those that it has started on."""
        return self._watch.starts

    @property
    def kept(self) -> int:
        """Ticks that it needs to be given again, should it start anew."""
        return len(self._watch.unacked)

    @property
    def coming_bytes(self) -> int:
        """Bytes of the events that wait for their turn."""
        return self._coming_bytes

    def standing(self) -> Mapping[str, int]:
        """Stream → the tick after which another activation has to go on."""
        standings = self._client.standings()
        return next((each.acked for each in standings if each.name == self._name), {})

    # -- activation -------------------------------------------------------------------------------

    def begin(self, now: float) -> list[PartRequest]:
        """Its record is on disk: subscribe."""
        record, outlook = self.record, self._outlook
        reports = record.reports.items()
        self._missing = {stream: tick for stream, tick in reports if stream in outlook.streams}
        self._missing[outlook.name] = outlook.head()
        # Where the subscription is here, it stands farther than when it came.
        comes = bool(record.ticks) and not outlook.reach(self._name)
        standing = ResumePoint(
            name=self._name,
            filter=self.filter,
            number=record.incarnation * _NUMBERS,
            acked=record.ticks if comes else {},
            start="resume" if comes else "now",
            window=_WINDOW,
            manual_ack=True,
        )
        self._now = self._look_at = now
        self._told_by = now + TOLD_WITHIN_S
        self._save_at = now + self._options.pattern_save_s
        self._out.append(JoinPointConnected(self.session))
        self._perform(self._client.take_over(now, standing))
        self._perform(self._client.advertise([subscription_to(record.id)]))
        self._perform(self._client.connected(now))
        return self.take_out()

    def stop(self, now: float) -> list[PartRequest]:
        """Be active no more; its subscription stays, without a client."""
        self._perform(self._client.disconnected(now))
        self._watch.close()
        self._tell_notes()
        self._out.append(JoinPointDisconnected(self.session))
        return self.take_out()

    def end(self, now: float) -> list[PartRequest]:
        """Give up the subscription; `has_ended` tells when that is done."""
        self._perform(self._client.unsubscribe(now, self._name))
        return self.take_out()

    @property
    def has_ended(self) -> bool:
        """Whether there is no subscription any more."""
        return not self._client.knows(self._name)

    # -- stimuli ----------------------------------------------------------------------------------

    def frame(self, now: float, frame: AnyClientFrame) -> list[PartRequest]:
        """The broker says something to its client."""
        self._now = now
        try:
            self._perform(self._client.frame(now, frame))
        except RemoteError as error:
            self.failure = str(error)
        self._work(now)
        return self.take_out()

    def time_passed(self, now: float) -> list[PartRequest]:
        """A deadline has come."""
        self._now = now
        self._perform(self._client.time_passed(now))
        self._work(now)
        if self._look_at <= now:
            self._hold(self._timing.look(now, {each.stream for each in self._coming}))
            self._tell_notes()
            self._work(now)
            options = self._options
            is_waiting = self._watch.is_waiting or bool(self._coming)
            self._look_at = now + (options.pattern_look_s if is_waiting else options.pattern_save_s)
        return self.take_out()

    def _work(self, now: float) -> None:
        """Do what there is to do, as far as this step may (rule 6)."""
        pace = self._pace
        is_waiting = False
        while self._coming and not pace.allowance.is_spent:
            told = self._coming[0]
            if self._watch.is_full_for(told.time_ns):
                self._hold(self._timing.make_room(now, told.time_ns))
                is_full = self._watch.is_full_for(told.time_ns)
                if is_full and self._timing.may_wait(now):
                    is_waiting = True
                    self._look_at = min(self._look_at, now + self._options.pattern_look_s)
                    break
            self._coming.popleft()
            self._coming_bytes -= len(told.body)
            pace.allowance.left -= EVENT_TRIES
            self._hold(self._watch.take(told))
        if self._watch.is_behind and not pace.allowance.is_spent:
            self._hold(self._watch.go_on())
        self._publish(now)
        self._tell_full()
        is_idle = is_waiting or not self._coming
        if is_idle and not self._watch.is_behind and not self._may_publish():
            self._work_at = None
        elif pace.allowance.is_spent:
            self._work_at = now if self._work_at is None else min(self._work_at, now)
        else:
            self._work_at = self._published_at(now)

    def _tell_full(self) -> None:
        """Take no more events while too much waits, and more when that is done (rule 5)."""
        held, coming = len(self._held), len(self._coming)
        is_full = held > HELD_MAX or coming > COMING_MAX
        has_room = held < HELD_MAX // 2 and coming < COMING_MAX // 2
        if (is_full and not self._is_full) or (has_room and self._is_full):
            self._is_full = is_full
            self._out.append(JoinPointFull(self.session, full=is_full))

    def _tell_notes(self) -> None:
        for text in self._watch.take_notes():
            self._out.append(Note("warning", f"pattern {self.record.id!r}: {text}"))

    def next_deadline(self) -> float:
        """When `time_passed` is wanted."""
        wanted = [self._client.next_deadline(), self._work_at, self._look_at]
        return min(each for each in wanted if each is not None)

    def take_out(self) -> list[PartRequest]:
        """What is to be done; nothing is left."""
        out, self._out = self._out, []
        return out

    def _perform(self, effects: SessionEffects) -> None:
        """What the session says."""
        for effect in effects:
            match effect:
                case SendFrame():
                    self._out.append(JoinPointFrame(self.session, effect.frame))
                case DeliverToApplication():
                    self._coming.append(effect)
                    self._coming_bytes += len(effect.body)
                case Confirm():
                    while self._sent and self._sent[0][0] <= effect.sequence:
                        self._sent.popleft()
                case TellStands():
                    self._stands = True
                case TellStart():
                    self._is_changed |= self._watch.start(effect.stream, effect.tick)
                case TellWithheld():
                    self._withheld(effect)
                case TellCut() | TellRefused():
                    self.failure = effect.reason or "it was cut"
                case TellPublishRefused(final=True):
                    # They are not reported, whoever goes on.
                    while self._sent and self._sent[-1][0] >= effect.sequence:
                        self._held.appendleft(self._sent.pop()[1])
                    self.failure = effect.reason

    def _withheld(self, told: TellWithheld) -> None:
        if told.reason != "transient":
            self.counters.withheld += 1
            what = f"withheld ({told.reason}); it may miss matches"
            self._watch.note(what, told.stream, told.first)

    # -- reporting --------------------------------------------------------------------------------

    def _hold(self, matches: Sequence[Match]) -> None:
        self._held += matches

    def _may_publish(self) -> bool:
        """Whether a match can be published, as soon as the pace allows it."""
        is_able = self._is_ready and not self.failure and not self.is_going
        return bool(self._held) and is_able and self._client.has_room()

    def _published_at(self, now: float) -> float:
        """When the next match may be published."""
        of_client = self._pace.of_client(now, self.record.client)
        return max(self._rate.ready_at(now), of_client.ready_at(now))

    def _publish(self, now: float) -> None:
        """Publish what was found, as soon as that is allowed (rules 3 and 4)."""
        if self.failure or (not self._is_ready and not self._becomes_ready(now)):
            return
        allowance = self._pace.allowance
        while self._may_publish() and not allowance.is_spent:
            if self._published_at(now) > now:
                return
            match = self._held.popleft()
            if digest_of(match.identity) in self._watch.reports:
                continue
            allowance.left -= PUBLISH_TRIES
            self._rate.take()
            self._pace.of_client(now, self.record.client).take()
            event = notification_of(match, self._watch.final_ns(match), self._limits)
            ids, effects = self._client.publish(now, event, time_ns=int(now * 1e9))
            self._sent.append((ids[0].sequence, match))
            self.counters.reported += 1
            self._perform(effects)

    def _becomes_ready(self, now: float) -> bool:
        received = self._client.received(self._name, self._missing) or {}
        is_missing = any(received.get(each, 0) < tick for each, tick in self._missing.items())
        # Those that wait for their turn have not been looked at.
        is_missing |= any(each.tick <= self._missing.get(each.stream, 0) for each in self._coming)
        if is_missing:
            return False
        if now < self._told_by and not self._is_told():
            return False
        self._missing = {}
        self._is_ready = True
        return True

    def _is_told(self) -> bool:
        """Whether the own origin knows the interest of the edge where it was defined (rule 4)."""
        edge, version, outlook = self.record.edge, self.record.version, self._outlook
        return edge not in outlook.streams or outlook.vector().get(edge, NOTHING) >= version

    # -- remembering ------------------------------------------------------------------------------

    def to_save(self, now: float) -> PointRecord | None:
        """The record to be put on disk, if it is time for that and anything has changed."""
        if now < self._save_at or not self._is_ready:
            return None
        self._save_at = now + self._options.pattern_save_s
        is_late = self.kept > 0 and self._reported_ns() > self.record.reported_ns
        if not is_late and not self._is_changed:
            # Where there is nothing to be let go of, the disk need not hear how time passes.
            self._acknowledge(now)
            return None
        return self.newest()

    def newest(self) -> PointRecord:
        """The record as it is now."""
        self._is_changed = False
        reported_ns = max(self._reported_ns(), self.record.reported_ns)
        starts = dict(self._watch.starts)
        self.record = replace(self.record, reported_ns=reported_ns, starts=starts)
        return self.record

    def _reported_ns(self) -> int:
        """The time before which all matches are reported for good (rule 2)."""
        unsure = [match.last.time_ns for _, match in self._sent]
        unsure += [match.last.time_ns for match in self._held]
        return min([self._watch.horizon_ns, *unsure])

    def saved(self, now: float, record: PointRecord) -> list[PartRequest]:
        """A record is on disk: let go of what is needed no more."""
        self._watch.let_go(record.reported_ns)
        self._acknowledge(now)
        return self.take_out()

    def _acknowledge(self, now: float) -> None:
        if self._client.knows(self._name):
            ticks = self._watch.unacked.ticks(self._taken())
            self._perform(self._client.ack(now, {self._name: ticks}))

    def _taken(self) -> dict[str, int]:
        """Stream → the tick up to which everything was taken, and does not wait for its turn."""
        taken = dict(self._client.progress(self._name))
        for told in self._coming:
            taken[told.stream] = min(taken.get(told.stream, told.tick), told.tick - 1)
        return taken


#: So much is never cleared away.
_LEFT_MAX = 64


class Agenda:
    """When which of many things is to be looked at, without looking at all of them.

    A heap in which a key may be several times; only its earliest time counts, and later ones that
    are met afterwards do no harm but a look too many. Whoever wants a key later than was said looks
    when its time has come, and puts it there again. What is left of keys that were taken off is
    cleared away when it is more than the rest.

    State: volatile.
    """

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        #: Key → the earliest time of it in the heap.
        self._times: dict[str, float] = {}

    def add(self, key: str, at: float) -> None:
        """This is to be looked at then, or earlier if that was said."""
        known = self._times.get(key)
        if known is None or at < known:
            self._times[key] = at
            heappush(self._heap, (at, key))

    def remove(self, key: str) -> None:
        """This is not to be looked at."""
        self._times.pop(key, None)
        if len(self._heap) > 2 * len(self._times) + _LEFT_MAX:
            self._heap = [(at, each) for each, at in self._times.items()]
            heapify(self._heap)

    def due(self, now: float) -> list[str]:
        """Those whose time has come, the earliest first; they are not on the agenda any more."""
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
        """The earliest time."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None


class Turns:
    """Whose turn it is, where many wait for something that one can have at a time.

    Each has a time from which on it wants a turn. Of those whose time has come, the one that waits
    longest is next; so nobody is passed over for ever, however long a turn takes. To ask for the
    next deadline costs nothing for those whose time has not come.

    State: volatile.
    """

    __slots__ = ("_agenda", "_at", "_due")

    def __init__(self) -> None:
        #: Key → when it wants a turn.
        self._at: dict[str, float] = {}
        self._agenda = Agenda()
        #: Those that wait for a turn, in their order.
        self._due: dict[str, None] = {}

    def wants(self, key: str, at: float) -> None:
        """This wants a turn then, and not when it was said before."""
        self._due.pop(key, None)
        self._at[key] = at
        self._agenda.add(key, at)

    def remove(self, key: str) -> None:
        """This wants none."""
        self._at.pop(key, None)
        self._due.pop(key, None)
        self._agenda.remove(key)

    def take(self, now: float) -> str | None:
        """Who is next, if anybody; it has had its turn then."""
        for key in self._agenda.due(now):
            if self._at[key] <= now:
                self._due[key] = None
            else:
                self._agenda.add(key, self._at[key])
        first = next(iter(self._due), None)
        if first is not None:
            self.remove(first)
        return first

    def next_at(self) -> float | None:
        """When somebody wants a turn."""
        first = next(iter(self._due), None)
        return earliest(None if first is None else self._at[first], self._agenda.next_at())
