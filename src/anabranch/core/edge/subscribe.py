"""Subscribe and attach: how a client gets a new subscription or resumes an existing one.

A subscription that starts now and ends with its session is active at once. Others pass through
states, each of which waits for answers:

    queued    a subscription of the same name is being removed; continue when that is on disk
    finding   the client has lost its state: ask all other edges; the highest number wins
    asking    ask origins whether they have the explicit start, and to retain what follows it
    storing   the subscription with its number and cursors is being synced
    active    the client is notified, the interest grows

A subscription that resumes after ticks it has received, durable or reliable, skips `asking`: it is
active at once, and each of its streams is served when its own origin has answered (`HoldRequests`).
When all have answered, and not before, the edge claims the subscription from other edges.

Rules:

1. The client is authoritative about the ticks it has processed. If this edge has a cursor, the
   higher tick counts; if not, the origin must first hold the client's tick, because nothing so far
   guarantees that it retains the ticks after it. A cursor that started after the client's tick does
   not count: it was created here while the client had its start elsewhere.
2. The edge selects an owner only after every other edge has answered, because a former owner that
   does not know of the new one answers too. If no edge has the subscription, the edge asks all of
   them once more, since a subscription on the move may be visible nowhere; then it refuses.
3. A number below this edge's comes from a stale client and is refused. 0 requests the next one.
4. An explicit start is granted if the origins hold it, and refused if a log does not reach back;
   hence it waits for all of them. `beginning` is the oldest tick of each log. If a durable one
   exists here, it resumes regardless of the requested start: its client was never notified that
   it is active.
5. If the client disconnects before the subscription is in the catalog, the request has no effect.
"""

from msgspec.structs import replace

from anabranch.core.edge.cursors import Cursors
from anabranch.core.edge.delivery import CatchUp, LiveDelivery
from anabranch.core.edge.state import AttachStored, EdgeState, PendingAttach, StartStored
from anabranch.core.edge.subscriptions import (
    EdgeSession,
    EdgeSubscription,
    StreamPosition,
)
from anabranch.core.edge.unsubscribe import Ownership, Unsubscription
from anabranch.model.client_frames import UNKNOWN, Code, Refused, Subscribe, Subscribed
from anabranch.model.errors import EventError, FilterError, LocalError, RemoteError
from anabranch.model.event import INT_MAX
from anabranch.model.filter import Filter
from anabranch.model.frames import Answer, Find, Found, Held, Hold, NotKept, Replay
from anabranch.model.names import JOIN_POINT_PREFIX, check_name


class Activation:
    """Makes a subscription active: notifies its client and starts to serve it.

    The client receives, in this order: the confirmation, with the number and the ticks at which the
    subscription resumes; for each stream that the client did not list, the tick from which it
    receives every match; then deliveries and withheld ranges.

    1. On streams on which the subscription has a position it catches up, after the ticks that its
       client has acknowledged; on all others it waits for its start. Where the origin has not
       confirmed yet that it retains the needed events, catch-up begins after that (`HoldRequests`).
    2. If the client of a durable subscription has disconnected in the meantime, the subscription
       becomes active without a session, provided that the client may have been notified before,
       here or elsewhere. A new one is withdrawn.
    """

    def __init__(
        self,
        state: EdgeState,
        unsubscription: Unsubscription,
        delivery: LiveDelivery,
        catch_up: CatchUp,
        ownership: Ownership,
    ) -> None:
        self._state = state
        self._unsubscription = unsubscription
        self._delivery = delivery
        self._catch_up = catch_up
        self._ownership = ownership

    def activate(self, now: float, attach: PendingAttach, subscription: EdgeSubscription) -> None:
        """Activate a subscription: everything is granted, and on disk if it has to be."""
        state = self._state
        current = state.attaches.get(attach.key)
        is_over = state.subscriptions.get(attach.key) is not subscription
        if is_over or subscription.is_ending:
            return
        if current is attach:
            state.end_attach(attach.key)
        elif current is not None and current.is_committed:
            # A later attach is being synced and will activate it.
            return
        if current is attach and subscription.is_unannounced and attach.session is None:
            self._unsubscription.withdraw(now, subscription)
            return
        subscription.stored()
        self.register(subscription)
        if subscription.is_durable:
            self._ownership.claim(now, subscription)
        if attach.session is not None:
            self._serve(now, subscription, attach, attach.session)
        elif subscription.session is None and subscription.is_durable:
            state.set_detached(subscription)
        state.schedule_done(now)

    def register(self, subscription: EdgeSubscription) -> None:
        """Add it to the interest; it waits on streams where it has not started."""
        if subscription.is_registered:
            return
        self._state.register(subscription)
        for stream in self._state.streams.values():
            if stream.name not in subscription.positions:
                stream.wait(subscription)

    def _serve(
        self,
        now: float,
        subscription: EdgeSubscription,
        attach: PendingAttach,
        session: EdgeSession,
    ) -> None:
        subscription.join_session(session, attach.frame.window)
        self._state.forget_detached(subscription)
        self.confirm(subscription, session, attach.request)
        listed = attach.frame.ticks if attach.frame.start == "resume" else {}
        positions = [
            position for position in subscription.positions.values() if position.mode != "starting"
        ]
        for position in positions:
            position.restart()
            if position.stream.name not in listed:
                self._delivery.send_start(position)
        for position in positions:
            if position.mode == "catching_up":
                self._catch_up.resume(now, position)

    def confirm(self, subscription: EdgeSubscription, session: EdgeSession, request: int) -> None:
        number, ticks = subscription.number, subscription.acked_ticks()
        self._state.send_client(session, Subscribed(request, subscription.name, number, ticks))

    def start_stored(self, now: float, stored: StartStored) -> None:
        """Send the client a durable start, which is on disk now."""
        position = stored.position
        subscription = position.subscription
        if position.mode != "starting" or subscription.is_ending:
            return
        if subscription.positions.get(position.stream.name) is not position:
            # Its client attached with an earlier start.
            return
        position.started()
        if subscription.session is not None:
            self._delivery.send_start(position)
            self._catch_up.resume(now, position)


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

    def begin(self, now: float, position: StreamPosition) -> None:
        """Ask the origin to retain everything after this position."""
        position.hold()
        self._ask(now, position, position.acked)

    def resume_all(self, now: float, subscription: EdgeSubscription) -> None:
        """Send hold requests again after a restart."""
        for position in subscription.positions.values():
            if position.mode == "holding":
                self._ask(now, position, position.acked)

    def _ask(self, now: float, position: StreamPosition, tick: int) -> None:
        self._state.requests.close(position.end_hold())
        position.expect_hold(self._state.request_hold(now, position.stream.name, tick, position))

    def held(self, now: float, position: StreamPosition, answer: Held) -> None:
        """Serve the stream: its origin retains the events."""
        state, subscription = self._state, position.subscription
        asked = state.requests.content(position.hold_request)
        assert isinstance(asked, Hold)
        if asked.tick > answer.head:
            stream = position.stream.name
            reason = f"tick {asked.tick} of {stream!r} does not exist; the newest is {answer.head}"
            self._unsubscription.cut(now, subscription, reason)
            return
        state.requests.close(position.hold_request)
        position.held()
        if subscription.is_durable:
            self._cursors.put_cursor(position)
            if not subscription.is_claimed:
                self._ownership.claim(now, subscription)
        if subscription.session is not None:
            self._catch_up.resume(now, position)

    def not_kept(self, now: float, position: StreamPosition, answer: NotKept) -> None:
        if position.subscription.is_durable:
            self._ask(now, position, max(answer.oldest - 1, position.acked))
            return
        reason = (
            f"{position.stream.name!r} no longer keeps the events after tick {position.acked};"
            f" its oldest tick is {answer.oldest}"
        )
        self._unsubscription.cut(now, position.subscription, reason)


_FIND_ROUNDS_MAX = 2


class Attachments:
    """Runs pending attaches. See the rules at the top of this module."""

    def __init__(
        self,
        state: EdgeState,
        cursors: Cursors,
        unsubscription: Unsubscription,
        hold_requests: HoldRequests,
        activation: Activation,
    ) -> None:
        self._state = state
        self._cursors = cursors
        self._unsubscription = unsubscription
        self._hold_requests = hold_requests
        self._activation = activation

    # -- begin ----------------------------------------------------------------------------------

    def begin(self, now: float, attach: PendingAttach) -> None:
        """Start an attach, or continue a queued one."""
        state, frame = self._state, attach.frame
        state.begin_attach(attach)
        known = state.subscriptions.get(attach.key)
        if known is not None and known.is_ending:
            return
        if frame.quality == "durable":
            if frame.number == 0 and (known is not None or frame.start == "resume"):
                self._find(now, attach)
                return
            closed = state.closed.get(attach.key)
            attach.set_number(max(frame.number, 1, 0 if closed is None else closed.number + 1))
        if frame.start == "resume":
            self._resume(now, attach, frame.ticks)
        elif frame.start == "tick" or known is not None:
            self._hold_all(now, attach, frame.ticks)
        elif frame.start == "beginning":
            self._hold_all(now, attach, dict.fromkeys(state.streams, 0))
        elif frame.start == "time":
            self._request_ticks_of_time(now, attach)
        else:
            self._commit(now, attach)

    def continue_queued(self, now: float, key: str) -> None:
        """Continue the attach that waited for the removal of a subscription to reach the disk."""
        attach = self._state.attaches.get(key)
        if attach is None:
            return
        filter, text = attach.filter, attach.frame.filter
        reason = self._state.size_refusal(attach.client, attach.key, filter, text)
        if reason:
            # Not checked before: the removed subscription had the same name.
            self._refuse(now, attach, reason)
        else:
            self.begin(now, attach)

    def _refuse(self, now: float, attach: PendingAttach, reason: str, code: Code = "") -> None:
        if attach.session is not None:
            self._state.send_client(attach.session, Refused(attach.request, reason[:1000], code))
        self._unsubscription.abandon(now, attach.key)

    def _is_answered(self, attach: PendingAttach, who: str) -> bool:
        """Record an answer; returns whether it was the last one."""
        self._state.requests.close(attach.answered(who))
        return not attach.requests

    # -- find the owner -------------------------------------------------------------------------

    def _find(self, now: float, attach: PendingAttach) -> None:
        state = self._state
        attach.begin_find()
        for edge in state.other_edges:
            number = state.requests.next_number()
            attach.expect(edge, number)
            question = Find(number, attach.frame.subscription)
            state.send_request(now, number, edge, question, attach)
        if not attach.requests:
            self._found_all(now, attach)

    def found(self, now: float, source: str, attach: PendingAttach, answer: Found) -> None:
        """Handle the answer of an edge: whether it has the subscription, and at which ticks."""
        self._check_found(source, answer)
        attach.found(answer)
        if self._is_answered(attach, source):
            self._found_all(now, attach)

    def _check_found(self, source: str, answer: Found) -> None:
        for stream in answer.ticks:
            if stream not in self._state.streams:
                raise RemoteError(f"{source!r} has a position on the unknown stream {stream!r}")
        try:
            if answer.number:
                # The normal form may exceed the limits of this edge.
                _ = Filter.parse(answer.filter, self._state.limits).conjunctions
        except FilterError as error:
            raise RemoteError(f"{source!r} sent an invalid filter: {error}") from error

    def _found_all(self, now: float, attach: PendingAttach) -> None:
        known, found = self._state.subscriptions.get(attach.key), attach.owner
        if known is None and found is None:
            if attach.find_rounds < _FIND_ROUNDS_MAX and self._state.other_edges:
                self._find(now, attach)
            else:
                name = attach.frame.subscription
                reason = f"no broker has a durable subscription {name!r}"
                self._refuse(now, attach, reason, UNKNOWN)
            return
        if found is None or (known is not None and known.number > found.number):
            assert known is not None
            attach.set_number(known.number + 1)
            self._resume(now, attach, attach.frame.ticks)
            return
        attach.set_number(found.number + 1)
        filter = Filter.parse(found.filter, self._state.limits)
        if attach.filter is not None and attach.filter != filter:
            self._refuse(now, attach, other_filter(attach.frame.subscription))
            return
        if known is None and attach.cost is None:
            state, key = self._state, attach.key
            if reason := state.size_refusal(attach.client, key, filter, found.filter):
                self._refuse(now, attach, reason)
                return
            state.charge(attach, filter.cost(found.filter))
        attach.set_filter(filter)
        self._resume(now, attach, found.ticks)

    # -- resume ---------------------------------------------------------------------------------

    def _resume(self, now: float, attach: PendingAttach, ticks: dict[str, int]) -> None:
        """Resume after these ticks; hold requests follow once the positions exist."""
        attach.resume_after(ticks)
        self._commit(now, attach)

    # -- explicit starts ------------------------------------------------------------------------

    def _hold_all(self, now: float, attach: PendingAttach, ticks: dict[str, int]) -> None:
        known = self._state.subscriptions.get(attach.key)
        for stream, tick in ticks.items():
            attach.start_after(stream, tick)
            position = None if known is None else known.positions.get(stream)
            if position is None or not position.covers(tick):
                self._hold(now, attach, stream, tick)
        if not attach.requests:
            self._commit(now, attach)

    def _hold(self, now: float, attach: PendingAttach, stream: str, tick: int) -> None:
        attach.start_after(stream, min(tick, attach.ticks.get(stream, tick)))
        attach.expect(stream, self._state.request_hold(now, stream, tick, attach))

    def _request_ticks_of_time(self, now: float, attach: PendingAttach) -> None:
        """Ask every origin for its first tick at or after the time."""
        state = self._state
        for stream in state.streams:
            number = state.requests.next_number()
            attach.expect(stream, number)
            filters = [attach.frame.filter]
            bytes_max = state.options.replay_bytes_max
            question = Replay(number, 0, attach.frame.time_ns, filters, 1, bytes_max)
            state.send_request(now, number, stream, question, attach)

    def answer(self, now: float, source: str, attach: PendingAttach, answer: Answer) -> None:
        """Hold the tick that an origin reported for the start time."""
        self._state.requests.close(attach.answered(source))
        self._hold(now, attach, source, answer.first - 1)

    def held(self, now: float, source: str, attach: PendingAttach, answer: Held) -> None:
        """Record that an origin retains the events after the start."""
        asked = self._state.requests.content(answer.request)
        assert isinstance(asked, Hold)
        if asked.tick > answer.head:
            self._refuse(
                now,
                attach,
                f"tick {asked.tick} of {source!r} does not exist; the newest is {answer.head}",
            )
            return
        attach.start_after(source, asked.tick)
        if self._is_answered(attach, source):
            self._commit(now, attach)

    def not_kept(self, now: float, source: str, attach: PendingAttach, answer: NotKept) -> None:
        """Refuse a start that a log no longer reaches; `beginning` takes the oldest tick."""
        if attach.frame.start != "beginning":
            self._refuse(
                now,
                attach,
                f"{source!r} no longer keeps the requested ticks;"
                f" its oldest tick is {answer.oldest}; `keep_s` in the network file keeps more,"
                " and `beginning` starts at the oldest tick",
            )
            return
        self._state.requests.close(attach.answered(source))
        self._hold(now, attach, source, answer.oldest - 1)

    # -- store ----------------------------------------------------------------------------------

    def _commit(self, now: float, attach: PendingAttach) -> None:
        """Create the subscription, and put it into the catalog if it is durable."""
        state = self._state
        if attach.number > INT_MAX:
            reason = f"the number {attach.number} exceeds the limit {INT_MAX}; use another name"
            self._refuse(now, attach, reason)
            return
        subscription = state.subscriptions.get(attach.key)
        if subscription is None:
            try:
                subscription = self._new_subscription(attach)
            except LocalError as error:
                self._refuse(now, attach, str(error))
                return
        self._unsubscription.close_claims(subscription)
        subscription.renumber(attach.number)
        closed = state.forget_closed(attach.key)
        if closed is not None:
            self._unsubscription.close_claims(closed)
        if closed is not None or attach.is_resuming:
            subscription.presume_announced()
        self._create_positions(now, attach, subscription)
        attach.commit()
        if not subscription.is_durable:
            self._activation.activate(now, attach, subscription)
            return
        for position in subscription.positions.values():
            self._cursors.put_cursor(position)
        self._cursors.put_subscription(subscription)
        state.sync(AttachStored(attach, subscription))

    def _new_subscription(self, attach: PendingAttach) -> EdgeSubscription:
        frame, filter = attach.frame, attach.filter
        assert filter is not None
        self._state.index.add(attach.key, filter)
        subscription = EdgeSubscription(
            attach.key,
            frame.subscription,
            attach.client,
            filter,
            quality=frame.quality,
            number=attach.number,
        )
        self._state.add(subscription, attach)
        return subscription

    def _create_positions(
        self, now: float, attach: PendingAttach, subscription: EdgeSubscription
    ) -> None:
        for stream, tick in attach.ticks.items():
            position = subscription.positions.get(stream)
            if position is None or not position.covers(tick):
                if position is not None:
                    self._cursors.abandon(position)
                    self._state.requests.close(position.end_hold())
                position = subscription.start(self._state.streams[stream], tick + 1)
                if attach.is_resuming:
                    self._hold_requests.begin(now, position)
            position.present(tick)


def other_filter(name: str) -> str:
    reason = f"the durable subscription {name!r} has another filter"
    return f"{reason}; use another name, or unsubscribe it first"


#: Above any tick of a stream; one less than a frame can hold.
_TICK_MAX = (1 << 62) - 1
#: The normal form of a filter is shorter than this many times its text: `1e15,` is the worst case.
_GROWTH_MAX = 8
#: No client attaches a subscription this often without contact to this edge.
NUMBER_LEAP_MAX = 1 << 40


class SubscribeRequests:
    """Validates `Subscribe` frames before anything else happens.

    An invalid request is answered with `Refused` and the session continues; only a frame that no
    correct client sends ends the session. Rules:

    1. A name identifies one subscription per session. A repeated request for the same subscription
       is answered again; a different one under the same name is refused.
    2. A durable subscription belongs to the client that created it.
    3. A durable subscription may resume, and a reliable one may resume after ticks that its client
       has received. A best-effort one starts now.
    4. The number of subscriptions per edge and per client is bounded, and so is the memory of their
       filters (`core.filter_memory`).
    5. The ownership number from a client may exceed the one recorded here, or 0 if there is none,
       by at most `NUMBER_LEAP_MAX`: after the highest possible number no client could attach again.
       An edge continues from any number it finds, so a client that attaches with number 0 always
       gets the next one.
    6. A client that resumes may list streams that have left the network since. There is nothing to
       resume on them; they are ignored.
    """

    def __init__(self, state: EdgeState, attachments: Attachments, activation: Activation) -> None:
        self._state = state
        self._attachments = attachments
        self._activation = activation

    def subscribe(self, now: float, session: EdgeSession, frame: Subscribe) -> None:
        frame = self._without_removed_streams(frame)
        is_durable = frame.quality == "durable"
        name = frame.subscription
        key = name if is_durable else _own_key(session, name)
        try:
            check_name(frame.subscription, "subscription", self._state.limits.name_bytes_max)
            filter = self._filter(frame)
        except (FilterError, EventError) as error:
            self._refuse(session, frame, str(error))
            return
        if self._is_repeated(session, frame, key, filter):
            return
        reason = self._refusal(session, frame, key, filter)
        if reason:
            self._refuse(session, frame, reason)
        else:
            self._attachments.begin(now, PendingAttach(key, session, frame, filter))

    def _without_removed_streams(self, frame: Subscribe) -> Subscribe:
        """Rule 6."""
        streams = self._state.streams
        if frame.start != "resume" or frame.ticks.keys() <= streams.keys():
            return frame
        return replace(frame, ticks={s: tick for s, tick in frame.ticks.items() if s in streams})

    def _refuse(self, session: EdgeSession, frame: Subscribe, reason: str) -> None:
        self._state.send_client(session, Refused(frame.request, reason[:1000]))

    def _filter(self, frame: Subscribe) -> Filter | None:
        asks_owner = frame.start == "resume" and frame.number == 0 and frame.quality == "durable"
        if not frame.filter and asks_owner:
            return None
        filter = Filter.parse(frame.filter, self._state.limits)
        # Compute the normal form now: it may exceed the limits.
        assert filter.conjunctions is not None
        if len(frame.filter) > self._state.limits.filter_bytes_max // _GROWTH_MAX:
            # Rows and frames hold the normal form, which may be longer than the text.
            Filter.parse(str(filter), self._state.limits)
        return filter

    # -- repeated requests ----------------------------------------------------------------------

    def _is_repeated(
        self, session: EdgeSession, frame: Subscribe, key: str, filter: Filter | None
    ) -> bool:
        """Whether this session sent the request before; if so, it is or will be answered."""
        attach = self._state.attaches.get(key)
        if attach is not None and attach.session is session:
            if replace(frame, request=attach.frame.request) != attach.frame:
                return False
            attach.repeat(frame)
            return True
        subscription = session.subscriptions.get(frame.subscription)
        if subscription is None or not _is_same(subscription, frame, filter):
            return False
        self._activation.confirm(subscription, session, frame.request)
        return True

    # -- refusals -------------------------------------------------------------------------------

    def _refusal(
        self, session: EdgeSession, frame: Subscribe, key: str, filter: Filter | None
    ) -> str:
        """Why a request is refused; "" if it is not."""
        attach = self._state.attaches.get(key)
        if key.startswith(JOIN_POINT_PREFIX) and session.number >= 0:
            return f"names that begin with {JOIN_POINT_PREFIX!r} are reserved for join points"
        if attach is not None and attach.client != session.client:
            return f"the name {frame.subscription!r} belongs to another client"
        keys = (frame.subscription, _own_key(session, frame.subscription))
        is_wanted = any(each in session.attach_keys for each in keys)
        if frame.subscription in session.subscriptions or is_wanted or (attach and attach.session):
            return f"the name {frame.subscription!r} is in use for another subscription"
        return (
            self._start_refusal(frame)
            or self._number_refusal(session, frame, key)
            or self._known_refusal(session, frame, key, filter)
            or self._limit_refusal(session, frame, key, filter)
        )

    def _start_refusal(self, frame: Subscribe) -> str:
        if frame.start != "now" and frame.quality == "best-effort":
            return "a best-effort subscription starts now; use a reliable one for another start"
        if frame.start == "resume" and frame.quality != "durable" and not frame.ticks:
            return "a reliable subscription resumes after ticks; list them, or start a new one"
        for stream, tick in frame.ticks.items():
            if stream not in self._state.streams:
                return f"there is no stream {stream!r}"
            if tick > _TICK_MAX:
                return f"tick {tick} is above the highest possible tick {_TICK_MAX}"
        return ""

    def _number_refusal(self, session: EdgeSession, frame: Subscribe, key: str) -> str:
        """Rule 5. Join points count in their own steps; numbers from other brokers are checked when
        the join point arrives."""
        state = self._state
        known = state.subscriptions.get(key) or state.closed.get(key)
        number = 0 if known is None else known.number
        if session.number < 0 or frame.number - number <= NUMBER_LEAP_MAX:
            return ""
        return (
            f"number {frame.number} exceeds {number}, the number recorded here, by more than"
            f" {NUMBER_LEAP_MAX}; resume the subscription without its state to get the next number"
        )

    def _known_refusal(
        self, session: EdgeSession, frame: Subscribe, key: str, filter: Filter | None
    ) -> str:
        name = frame.subscription
        known = self._state.subscriptions.get(key)
        if known is None or known.is_ending:
            return ""
        if known.client != session.client:
            return f"the name {name!r} belongs to another client"
        if known.quality != frame.quality or known.name != name or known.session is not None:
            return f"the name {name!r} is in use for another subscription"
        if filter is not None and filter != known.filter:
            return other_filter(name)
        if 0 < frame.number < known.number:
            return f"{name!r} is already attached with number {known.number}, above {frame.number}"
        return ""

    def _limit_refusal(
        self, session: EdgeSession, frame: Subscribe, key: str, filter: Filter | None
    ) -> str:
        state = self._state
        if key in state.subscriptions:
            return ""
        count = len(state.subscriptions) + len(state.attaches) + len(state.closed)
        if count >= state.limits.subscriptions_max:
            text = f"this broker has {count} subscriptions, its limit (subscriptions_max)"
            return f"{text}; subscribe at another broker"
        client, quota = session.client, state.limits.client_subscriptions_max
        if state.subscription_counts.get(client, 0) >= quota:
            text = f"client {client!r} has {quota} subscriptions at this broker, its quota"
            return f"{text} (client_subscriptions_max); end some of them first"
        if frame.quality == "durable" and state.closed_counts.get(client, 0) >= quota:
            text = f"client {client!r} ended {quota} durable subscriptions, its quota"
            text = f"{text} (client_subscriptions_max), that other brokers have not confirmed"
            return f"{text}; wait until they reconnect"
        return state.size_refusal(client, key, filter, frame.filter)


def _own_key(session: EdgeSession, name: str) -> str:
    """The key of a subscription that ends with its session. That of a durable one is its name."""
    return f"{session.client}\0{name}"


def _is_same(subscription: EdgeSubscription, frame: Subscribe, filter: Filter | None) -> bool:
    """Whether a request matches an active subscription."""
    return (
        subscription.quality == frame.quality
        and frame.number <= subscription.number
        and (filter is None or filter == subscription.filter)
    )
