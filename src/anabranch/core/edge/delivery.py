"""The live path: what a line passes on goes to the subscriptions that follow it.

Theory of operation: a line passes on runs in the order of the stream. Each event is matched once
against the index of all subscriptions; the places of those that are live here get it, and what the
subscriptions of one session got in one step leaves as one frame, or as several where one would be
too large. Silence costs nothing but a comparison of versions. Rules:

1. *Start.* A subscription that waits starts at the first tick whose version contains it: from there
   on nobody upstream left out what it wants. Where the line rests, that is the next tick if the
   line's version is enough, since versions never decrease. The client is told; for a durable
   subscription the start is on disk before that and before anything is delivered. Of very many that
   could start some start a little later, so that one step does not do it all.
2. *Silence* of a version that does not contain a live subscription says nothing about it: it goes
   on behind, and asks for these ticks with its own filter.
3. *Withheld* ticks are told to every live subscription, after all data before them.
4. *Slow consumers.* When the window or the session is full, a durable subscription falls behind;
   another one is cut, and told why. Best-effort ones get what comes, over gaps.
5. What is too much for one step (`is_heavy`) is held back in the line and delivered in portions
   (`deliver_held`): a bounded number of runs, or one run to a bounded number of subscriptions at a
   time, after a bounded number of checks. Other stimuli are handled between two portions, never
   within one run.
6. `through` moves with silence too; the client hears of that now and then, so that it can
   acknowledge. Among many subscriptions that is seldom: it costs a tick, or a second, the same
   however many there are.
"""

from bisect import bisect_right
from collections.abc import Generator, Hashable, Iterator, Sequence

from anabranch.core.edge.cursors import Cursors
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
from anabranch.core.routing.contract import CHECK_WORK, CHECKED_BYTES, WorkDone
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

# Reading an event at an edge: what it says, and whether it may still be delivered here.
#
# An event may limit its life and its way. Both limits are kept at the edge, where they are the same
# for what comes live and for what is replayed. An event beyond a limit is no match for anybody,
# just like silence:
#
# 1. *Time*: it is older than its limit, from when its origin made the tick to the edge's clock now.
# 2. *Hops*: the edge's site is farther from the origin's site than the limit.
#
# An event with *destinations* is for the clients it names, and matches nobody else's subscription.
#
# Attributes are not decoded for that, nor for matching: the index reads them as they came. An event
# that cannot be read is the fault of its origin, not of the neighbour that passed it on, and asking
# again would bring the same: its tick is withheld as `unreadable`.


_NS_PER_S = 1e9


def read(run: Run, limits: Limits) -> Envelope | None:
    """The event of a run, as far as it is decoded; None for one that turns out to be unreadable."""
    if run.envelope is None and run.datum is not None and not run.reason:
        try:
            run.envelope = decode_envelope(run.datum.body, limits)
        except RemoteError:
            _mark_unreadable(run)
    return run.envelope


def matching(run: Run, envelope: Envelope, index: MatchIndex) -> list[Hashable]:
    """Who wants the event; nobody if its attributes turn out to be unreadable."""
    try:
        return index.match(envelope)
    except RemoteError:
        _mark_unreadable(run)
        return []


def narrowed(
    run: Run, envelope: Envelope, index: MatchIndex
) -> tuple[list[Hashable], list[tuple[Hashable, Check]], Attributes] | None:
    """Who wants the event for sure, who perhaps and by which check, and what to check; None if its
    attributes turn out to be unreadable."""
    try:
        sure, left = index.narrow(envelope)
        return sure, left, envelope.attributes() if left else {}
    except RemoteError:
        _mark_unreadable(run)
        return None


def is_match(run: Run, envelope: Envelope, filter: Filter) -> bool:
    """Whether one filter wants the event; no if its attributes turn out to be unreadable."""
    try:
        return filter.matches(envelope.attributes())
    except RemoteError:
        _mark_unreadable(run)
        return False


def _mark_unreadable(run: Run) -> None:
    # The datum stays: whoever keeps the run has counted its bytes.
    run.reason = "unreadable"
    run.envelope = None


def is_addressed(envelope: Envelope, client: str) -> bool:
    """Whether an event is for this client, if its filter wants it."""
    destinations = envelope.header.control.destinations
    return not destinations or client in destinations


def is_beyond_limits(now: float, run: Run, envelope: Envelope, hops: int) -> bool:
    """Whether an event has lived or gone as long as it may."""
    control = envelope.header.control
    if control.hop_limit is not None and hops > control.hop_limit:
        return True
    if control.time_limit_ns is None or run.datum is None:
        return False
    return now * _NS_PER_S - run.datum.time_ns > control.time_limit_ns


#: Who wants an event; None if it has to be read for that.
Wanted = Sequence[Hashable] | None
#: So many events are asked about at once, fewer one by one.
_MANY = 4
#: What it costs to give an event to one subscription, to start one, and to look a run up.
PUSH_WORK = 4
_START_WORK = 40
_RUN_WORK = 10
#: Runs that are looked up at once: to ask an index about many costs little more than about one.
_RUNS_MAX = 512
#: Runs times subscriptions of one look-up: it costs as much as it finds, which may be all of them.
_LOOKED_UP_MAX = 400_000
#: Ticks a line may move before clients are told that there was nothing for them: so many, or so
#: many for each of them where they are many.
PROGRESS_TICKS = 64
PROGRESS_TICKS_EACH = 16
#: Where there are more than this, so many are told at a time.
PROGRESS_CROWD = 256


class LiveDelivery:
    """Delivers what lines pass on. See the rules at the top of this module."""

    def __init__(self, state: EdgeState, cursors: Cursors, leaving: Unsubscription) -> None:
        self._state = state
        self._cursors = cursors
        self._leaving = leaving
        #: Bounds of one portion: subscriptions that start, runs that are looked up, subscriptions
        #: that get an event, and work on checks.
        self._starts_at_once = 4 * state.options.portion(_START_WORK)
        self._portion = state.options.portion(_RUN_WORK, _RUNS_MAX)
        self._crowd = 16 * state.options.portion(PUSH_WORK)
        self._checks_work = state.options.step_work_max // 16

    # -- the line moves -------------------------------------------------------------------------

    def advance(
        self, now: float, stream: EdgeStream, runs: list[Run], wanted: list[Wanted] | None = None
    ) -> None:
        """The line has passed these runs on; who wants each may be known."""
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
                self._unversed(stream, run)
        for place in touched:
            self.flush(place, stream.line.position)
        self._rests(now, stream)

    def _rests(self, now: float, stream: EdgeStream) -> None:
        """The line stays where it is for the moment."""
        self.start_resting(now, stream)
        moved, crowd = stream.line.position - stream.progress_at, len(stream.live)
        is_far = moved >= PROGRESS_TICKS and moved >= PROGRESS_TICKS_EACH * crowd
        if is_far and crowd <= PROGRESS_CROWD:
            self.progress(stream)

    def is_heavy(self, stream: EdgeStream, runs: int) -> bool:
        """Whether delivering so many runs may be more than one step should do."""
        if not (stream.live or stream.waiting):
            return False
        state = self._state
        works = runs * len(state.subscriptions) * PUSH_WORK
        return works > state.options.step_work_max or state.index.has_doubts

    def wanted_at_once(self, runs: list[Run]) -> list[Wanted] | None:
        """Who wants each of these runs, if it takes no more than one step to find that out and to
        deliver them; None otherwise."""
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
        """How many runs are looked up without a pause."""
        crowd = max(1, len(self._state.subscriptions))
        return max(1, min(self._portion, _LOOKED_UP_MAX // crowd))

    def deliver_held(self, now: float, stream: EdgeStream) -> Iterator[PartRequest]:
        """Deliver what a line holds back, about as much as one step should do."""
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
        """Deliver one run to many, or after many checks, bit by bit; returns the work."""
        state, work = self._state, 0
        if wanted is None:
            wanted, work = yield from self._readers_slowly(now, stream, run)
        state.begin()
        if stream.waiting and not run.reason:
            self._start(now, stream, run.first, run.version)
        yield from state.result()
        crowd = self._crowd
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
        self._rests(now, stream)
        yield from state.result()
        return work + PUSH_WORK * len(wanted)

    def _readers_slowly(
        self, now: float, stream: EdgeStream, run: Run
    ) -> Generator[WorkDone, None, tuple[list[Hashable], int]]:
        """`_readers`, bit by bit; and the work."""
        envelope = read(run, self._state.limits)
        if envelope is None or is_beyond_limits(now, run, envelope, stream.hops):
            return [], 0
        found = narrowed(run, envelope, self._state.index)
        if found is None:
            return [], 0
        wanted, open_ones, attributes = found
        known = set(wanted)
        each = CHECK_WORK + run.size // CHECKED_BYTES
        work = 0
        for key, check in open_ones:
            if key not in known and check(attributes):
                known.add(key)
                wanted.append(key)
            work += each
            if work > self._checks_work:
                yield WorkDone(work)
                work = 0
        yield WorkDone(work)
        return self._addressed(stream, envelope, wanted), each * len(open_ones)

    def _wanted(self, stream: EdgeStream, runs: list[Run]) -> list[Wanted] | None:
        """Who wants each of many events, as far as that can be told of all at once."""
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
            wanted = self._readers(now, stream, run)
        assert datum is not None
        live, tick = stream.live, datum.tick
        for key in wanted:
            place = live.get(key)
            if place is None or tick <= place.sent:
                continue
            if not place.batch:
                touched.append(place)
            if not self.push(place, datum):
                self._overflow(now, place, tick - 1)

    def _readers(self, now: float, stream: EdgeStream, run: Run) -> list[Hashable]:
        """Who wants one event and may have it."""
        envelope = read(run, self._state.limits)
        if envelope is None or is_beyond_limits(now, run, envelope, stream.hops):
            return []
        return self._addressed(stream, envelope, matching(run, envelope, self._state.index))

    def _addressed(
        self, stream: EdgeStream, envelope: Envelope, wanted: list[Hashable]
    ) -> list[Hashable]:
        """Those of them that may have it."""
        if not envelope.header.control.destinations:
            return wanted
        places = [(key, stream.live.get(key)) for key in wanted]
        return [
            key
            for key, place in places
            if place is not None and is_addressed(envelope, place.subscription.client)
        ]

    def push(self, place: StreamPosition, datum: Datum) -> bool:
        """Put an event into the next frame, if there is room for it."""
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
        self._leaving.cut(now, subscription, f"too slow: the {which} is full")

    def _unversed(self, stream: EdgeStream, run: Run) -> None:
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
        """Send what a place has got, and how far that goes."""
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
        """Tell a client that ticks are withheld."""
        session = place.subscription.session
        first = max(first, place.sent + 1)
        if session is None or first > last:
            return
        hole = Hole(first, last, reason)
        self._state.tell(session, Withheld(place.subscription.name, place.stream.name, [hole]))
        place.told = max(place.told, last)

    def progress_in_time(self, now: float, stream: EdgeStream) -> None:
        """The same, in its turn, for as many as can be told at a time."""
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
            # The last ones hear of it too, when nothing else comes.
            self._state.touch(now)

    def progress(self, stream: EdgeStream) -> None:
        """Tell clients how far the stream has gone for them."""
        stream.progress_at = stream.line.position
        for place in stream.live.values():
            self.tell_through(place)
        for place in stream.behind.values():
            self.tell_through(place)

    def tell_through(self, place: StreamPosition) -> None:
        """Tell a client how far a stream has gone for it. Best-effort makes no such promise."""
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
            elif len(started) < self._starts_at_once:
                started.append(subscription)
            else:
                # For the others a later tick will do as well.
                stream.earliest = earliest
                self._state.starting[stream.name] = stream
                self._state.backlog_at = now
                break
        for subscription in started:
            del stream.waiting[subscription.key]
            self._begin(now, StreamPosition(subscription, stream, tick))

    def start_resting(self, now: float, stream: EdgeStream) -> None:
        """Start those that wait, if the next tick is sure to be good for them."""
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
        """Tell the client from where on it gets every match."""
        session = place.subscription.session
        if session is not None:
            name = place.subscription.name
            self._state.tell(session, StartsAt(name, place.stream.name, place.acked + 1))

    def enter(self, place: StreamPosition) -> None:
        """A place follows the line from now on."""
        version = place.subscription.version
        place.stream.enter(place, NOTHING if version is None else version)

    def versions(self, now: float, versions: dict[str, Version]) -> list[EdgeSubscription]:
        """Subscriptions are in the edge's interest now, in these versions."""
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
        """The client has dealt with what it got; returns where that is news."""
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
    """The places that an acknowledgement moves; `RemoteError` if it cannot be true."""
    acked = []
    for stream, ticks in frame.ticks.items():
        for name, tick in ticks.items():
            subscription = session.names.get(name)
            if subscription is None:
                # It ended, and the client did not know that yet.
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
