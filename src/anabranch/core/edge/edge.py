"""The edge: serves the subscriptions of the clients connected to this broker.

    asks = edge.client_frame(now, session, frame)
    asks = edge.arrival(now, arrival)
    deadline = edge.next_deadline()

Every method is one step and returns its effects in order. This module only dispatches each input
to the module that handles it:

    subscribe       validates requests, attaches subscriptions, asks origins to retain events
    unsubscribe     ends subscriptions, ownership of durable ones, client sessions
    delivery        live delivery and catch-up; limits and destinations of events
    publisher_order events of one publisher that are in several streams
    cursors         what is on disk; `Done` messages to origins
    subscriptions   the records
    sources         whom to ask for missing ticks: the origin, or a keeper
    state           the tables, and requests that are repeated until answered
    reorder_buffer  order of a stream, and its gaps

It also handles gaps in streams: while a live subscription needs every tick, the edge requests the
missing ticks; otherwise it skips them, but not for a head alone that is too far to be believed.
Rules:

1. Every edge of the network has one stream. An arrival for any other stream violates the protocol.
2. A client has one session. A new session replaces the older one, which is closed. When the broker
   departs (`departure`), it closes all sessions, and later any session that requests a
   subscription.
3. A frame that violates the protocol raises `RemoteError` before any state has changed.

State: durable subscriptions and cursors are in the catalog, everything else is safe to lose.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from anabranch.core.contract import DEPARTURE_REASON, Recovered
from anabranch.core.edge.cursors import Cursors, recovered_run
from anabranch.core.edge.delivery import CatchUp, LiveDelivery, Matched
from anabranch.core.edge.publisher_order import PublisherOrder
from anabranch.core.edge.reorder_buffer import Run, runs_of
from anabranch.core.edge.sources import away_after_s, sources_of
from anabranch.core.edge.state import (
    AttachStored,
    CursorsStored,
    EdgeState,
    EndStored,
    PendingAttach,
    RunStored,
    StartStored,
    Stored,
    YieldStored,
)
from anabranch.core.edge.subscribe import (
    Activation,
    Attachments,
    HoldRequests,
    SubscribeRequests,
)
from anabranch.core.edge.subscriptions import (
    EdgeSession,
    EdgeStream,
    EdgeSubscription,
    StreamPosition,
)
from anabranch.core.edge.unsubscribe import ClientSessions, Ownership, Unsubscription
from anabranch.core.filter_memory import FilterMemory
from anabranch.core.options import Options
from anabranch.core.part_requests import ChangeInterest, PartRequest
from anabranch.core.routing.contract import Arrival, WorkDone
from anabranch.model.client_frames import (
    Ack,
    Alive,
    AnyClientFrame,
    Connect,
    Subscribe,
    Unsubscribe,
)
from anabranch.model.errors import RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frames import (
    Answer,
    AnyCarried,
    Claim,
    Find,
    Found,
    Held,
    Hold,
    Nack,
    NackCopy,
    NotInCopy,
    NotKept,
    Replay,
    Resent,
    Yield,
)
from anabranch.model.limits import Limits
from anabranch.model.network import Network
from anabranch.model.version import NOTHING, Version

#: Work to settle a position, to end a subscription, and to index a conjunction.
_CATCH_UP_WORK = 60
#: The cost of decoding one event of a replay and passing it on.
_RECEIVE_WORK = 15
_LEAVE_WORK = 60
_INDEX_WORK = 60
#: Up to this many conjunctions are indexed without reporting the work.
_FEW_CONJUNCTIONS = 16
#: Answer → requests that it may answer.
_ANSWERS: dict[type, tuple[type, ...]] = {
    Answer: (Replay,),
    NotKept: (Replay, Hold),
    Held: (Hold,),
    Found: (Find,),
}


class Edge:
    """The edge of one broker. See the top of this module."""

    def __init__(  # noqa: PLR0917 - every part of a broker is built from these
        self,
        name: str,
        network: Network,
        options: Options,
        limits: Limits,
        recovered: Recovered,
        now: float,
        memory: FilterMemory | None = None,
        keepers: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """Filters are charged to `memory`, which other parts may share."""
        run = recovered_run(recovered, now)
        sources = sources_of(name, network, options, keepers or {}, now)
        state = EdgeState(name, network, options, limits, run, memory, sources)
        self._state = state
        self.wants = state.wants
        self._cursors = Cursors(state)
        self._unsubscription = Unsubscription(state, self._cursors)
        self._order = PublisherOrder(state)
        self._delivery = LiveDelivery(state, self._cursors, self._unsubscription, self._order)
        self._catch_up = CatchUp(state, self._delivery, self._order)
        self._ownership = Ownership(state, self._cursors, self._unsubscription)
        self._hold_requests = HoldRequests(
            state, self._cursors, self._unsubscription, self._catch_up, self._ownership
        )
        self._activation = Activation(
            state, self._unsubscription, self._delivery, self._catch_up, self._ownership
        )
        self._attachments = Attachments(
            state, self._cursors, self._unsubscription, self._hold_requests, self._activation
        )
        self._client_sessions = ClientSessions(state, self._unsubscription)
        self._subscribe_requests = SubscribeRequests(state, self._attachments, self._activation)
        self._is_departing = False
        #: When to look for origins that are away; never, if no stream has copies.
        self._look_every_s = away_after_s(options)
        has_copies = any(each.keepers for each in sources.values())
        self._look_at = now + self._look_every_s if has_copies else float("inf")
        #: Positions settled, and subscriptions ended, per portion.
        self._caught_up_max = options.portion(_CATCH_UP_WORK)
        self._ended_max = options.portion(_LEAVE_WORK)
        #: A version of the edge's interest that includes all subscriptions so far.
        self.version = NOTHING
        self._cursors.recover(recovered)
        state.schedule_done(now)

    def started(self, now: float) -> list[PartRequest]:
        """Announce the interest of recovered subscriptions, and resume holds and claims."""
        state = self._state
        state.begin()
        self._cursors.start()
        state.sync(RunStored())
        for subscription in state.subscriptions.values():
            self._activation.register(subscription)
            self._hold_requests.resume_all(now, subscription)
        for subscription in (*state.subscriptions.values(), *state.closed.values()):
            if not subscription.is_claimed:
                self._ownership.claim(now, subscription)
        return state.result()

    def depart(self, now: float) -> list[PartRequest]:
        """Stop serving clients. Join points keep their sessions and move away by themselves."""
        self._state.begin()
        self._is_departing = True
        for session in [each for each in self._state.sessions.values() if each.number >= 0]:
            self._client_sessions.cut(now, session, DEPARTURE_REASON)
        return self._state.result()

    def kept(self) -> list[str]:
        """Durable subscriptions on disk, including those that are ending or have ended."""
        durable = [each.name for each in self._state.subscriptions.values() if each.is_durable]
        return [*durable, *self._state.closed, *self._state.attaches]

    # -- clients --------------------------------------------------------------------------------

    def durable(self) -> list[str]:
        """The durable subscriptions that this edge owns, for tests and checkers."""
        every = self._state.subscriptions.values()
        return [each.name for each in every if each.quality == "durable"]

    def unclaimed(self) -> list[str]:
        """Durable subscriptions that other edges have not yielded yet."""
        every = self._state.subscriptions
        return [name for name in self.durable() if not every[name].is_claimed]

    def filters(self) -> dict[str, Filter]:
        """Subscription → its filter, for tests and checkers."""
        return {key: each.filter for key, each in self._state.subscriptions.items()}

    def client_of(self, session: int, frame: AnyClientFrame) -> str:
        """The client of a session; "" if there is no such session. Raises `RemoteError` if the
        session has not sent `Connect`."""
        known = self._state.sessions.get(session)
        if known is None:
            return ""
        if not known.client:
            raise RemoteError(f"a session begins with Connect, not with {type(frame).__name__}")
        return known.client

    def host_of(self, session: int) -> str:
        """The host that a client connects from; "" if unknown."""
        known = self._state.sessions.get(session)
        return "" if known is None else known.host

    def is_present(self, client: str) -> bool:
        """Whether this client has a session."""
        return client in self._state.sessions_by_client

    def client_came(
        self,
        now: float,  # noqa: ARG002 - as all others
        session: int,
        host: str = "",
    ) -> list[PartRequest]:
        """Open a session for a connection from this host."""
        self._state.begin()
        self._state.open_session(session, host)
        return self._state.result()

    def has_client(self, session: int) -> bool:
        """Whether the session exists and has sent `Connect`."""
        known = self._state.sessions.get(session)
        return known is not None and bool(known.client)

    def client_left(self, now: float, session: int) -> Iterable[PartRequest]:
        """Close the session of a client that disconnected."""
        self._state.begin()
        left = self._state.sessions.get(session)
        if left is None:
            return self._state.result()
        if len(left.subscriptions) > self._ended_max:
            return self._leave_in_portions(now, left)
        self._client_sessions.close(now, left)
        return self._state.result()

    def _leave_in_portions(self, now: float, session: EdgeSession) -> Iterator[PartRequest]:
        """End the subscriptions of a session in portions, and then the session."""
        state = self._state
        yield from self._end_most(now, session)
        state.begin()
        self._client_sessions.close(now, session)
        yield from state.result()

    def _replace_in_portions(
        self, now: float, session: EdgeSession, frame: Connect, older: EdgeSession
    ) -> Iterator[PartRequest]:
        """Replace the older session of a client, after ending its subscriptions in portions."""
        yield from self._end_most(now, older)
        self._state.begin()
        self._client_sessions.connect(now, session, frame)
        yield from self._state.result()

    def _end_most(self, now: float, session: EdgeSession) -> Iterator[PartRequest]:
        """End subscriptions of a session in portions, until few are left."""
        state = self._state
        while len(session.subscriptions) > self._ended_max:
            state.begin()
            self._unsubscription.end_some(now, session, self._ended_max)
            yield from state.result()
            yield WorkDone(_LEAVE_WORK * self._ended_max)

    def client_full(self, now: float, session: int, full: bool) -> list[PartRequest]:
        """Record whether the outgoing buffer of a client is full."""
        state = self._state
        state.begin()
        known = state.sessions.get(session)
        if known is not None:
            known.set_full(full)
            if not full:
                self._catch_up_all(now, list(known.subscriptions.values()))
        return state.result()

    def _catch_up_all(self, now: float, subscriptions: Sequence[EdgeSubscription]) -> None:
        """Continue catch-up where windows have room: at once if few, in the background if many."""
        if len(subscriptions) > self._caught_up_max:
            positions = (position for each in subscriptions for position in each.positions.values())
            self._catch_up_later(
                now, (p for p in positions if p.mode == "catching_up" and not p.replay_request)
            )
            return
        for subscription in subscriptions:
            self._catch_up.advance_subscription(now, subscription)

    def client_frame(
        self, now: float, session: int, frame: AnyClientFrame
    ) -> Iterable[PartRequest]:
        state = self._state
        state.begin()
        known = state.sessions.get(session)
        if known is None:
            # The session was closed; frames sent before the client noticed are ignored.
            return state.result()
        if isinstance(frame, Connect):
            older = self._client_sessions.older(known, frame)
            if older is not None and len(older.subscriptions) > self._ended_max:
                return self._replace_in_portions(now, known, frame, older)
            self._client_sessions.connect(now, known, frame)
        elif not known.client:
            raise RemoteError(f"a session begins with Connect, not with {type(frame).__name__}")
        elif isinstance(frame, Ack):
            self._ack(now, known, frame)
        elif isinstance(frame, Subscribe) and self._is_departing and session >= 0:
            self._client_sessions.cut(now, known, DEPARTURE_REASON)
        elif isinstance(frame, Subscribe):
            self._subscribe_requests.subscribe(now, known, frame)
            return _with_work(state.result())
        elif isinstance(frame, Unsubscribe):
            self._unsubscription.unsubscribe(now, known, frame)
        elif isinstance(frame, Alive):
            state.send_client(known, frame)
        else:
            raise RemoteError(f"a client does not send {type(frame).__name__}")
        return state.result()

    def _ack(self, now: float, session: EdgeSession, frame: Ack) -> None:
        acked = self._delivery.ack(now, session, frame)
        if any(stream.catching_up for stream in self._state.streams.values()):
            self._catch_up_all(now, [position.subscription for position in acked])

    # -- streams --------------------------------------------------------------------------------

    def arrival(self, now: float, arrival: Arrival) -> Iterable[PartRequest]:
        """Handle data, silence and withheld ranges of a stream."""
        state = self._state
        state.begin()
        stream = state.streams.get(arrival.stream)
        if stream is None:
            raise RemoteError(f"this network has no stream {arrival.stream!r}")
        stream.sources.heard(now)
        return self._take(now, stream, runs_of(arrival), arrival)

    def _take(
        self, now: float, stream: EdgeStream, runs: list[Run], arrival: Arrival
    ) -> Iterable[PartRequest]:
        state, buffer = self._state, stream.buffer
        dropped = buffer.dropped
        was_behind = stream.name in state.backlog
        is_first = not was_behind and not buffer.waiting
        is_heavy = was_behind or self._delivery.is_heavy(stream, len(runs) + buffer.waiting)
        matched = self._delivery.match_at_once(runs) if is_heavy and is_first else None
        holds_back = is_heavy and matched is None
        ready = buffer.take(runs, arrival.head, arrival.version, holds_back=holds_back)
        if len(ready) < len(runs):
            # Some of it was a duplicate.
            matched = None
        stream.note_watermark(arrival.head, arrival.time_ns)
        if buffer.dropped > dropped:
            state.note("warning", f"reorder buffer of {stream.name!r} is full; requesting again")
        self._released(now, stream, ready, matched)
        if was_behind or not buffer.has_ready:
            return state.result()
        self._queue_backlog(now, stream)
        return chain(state.result(), self._do_backlog(now))

    # -- background work ------------------------------------------------------------------------

    @property
    def has_backlog(self) -> bool:
        return self._state.has_backlog

    def _queue_backlog(self, now: float, stream: EdgeStream) -> None:
        """Queue a stream whose reorder buffer holds runs back."""
        self._state.queue_stream(stream)
        self._state.do_backlog_at(now)

    def _do_backlog(self, now: float) -> Iterator[PartRequest]:
        """Do about one step's worth of deferred work, round-robin over streams."""
        state = self._state
        yield WorkDone(0)
        state.do_backlog_at(now)
        if state.backlog:
            stream = state.take_stream()
            yield from self._delivery.deliver_held(now, stream)
            state.begin()
            stream.note_watermark(0, 0)
            self._schedule_gap_check(now, stream)
            self._order.passed(now, stream)
            if stream.buffer.has_ready:
                state.queue_stream(stream)
            state.schedule_done(now)
            yield from state.result()
        for name in list(state.starting_streams):
            state.begin()
            self._delivery.start_waiting(now, state.take_starts(name))
            yield from state.result()
            yield WorkDone(_CATCH_UP_WORK * self._caught_up_max)
        for _ in range(self._caught_up_max):
            position = state.take_catch_up()
            if position is None:
                break
            state.begin()
            if (
                position.stream.catching_up.get(position.subscription.key) is position
                and not position.replay_request
            ):
                self._catch_up.advance(now, position)
            yield from state.result()
            yield WorkDone(_CATCH_UP_WORK)

    def _catch_up_later(self, now: float, positions: Iterable[StreamPosition]) -> None:
        self._state.queue_catch_up(positions)
        self._state.do_backlog_at(now)

    def _released(
        self, now: float, stream: EdgeStream, ready: list[Run], matched: list[Matched] | None = None
    ) -> None:
        """Deliver released runs, then check the stream for gaps."""
        state = self._state
        if ready or stream.waiting:
            self._delivery.advance(now, stream, ready, matched)
        self._schedule_gap_check(now, stream)
        self._order.passed(now, stream)
        if len(stream.catching_up) > self._caught_up_max:
            wanting = (
                p
                for p in stream.catching_up.values()
                if not p.replay_request and p.subscription.credit > 0 and not p.waits()
            )
            self._catch_up_later(now, wanting)
        elif stream.catching_up:
            self._catch_up.advance_stream(now, stream)
        if ready:
            state.schedule_done(now)

    def _schedule_gap_check(self, now: float, stream: EdgeStream) -> None:
        state = self._state
        stream.buffer.schedule_gap_check(now, state.options.nack_after_s)
        state.schedule_gap_check(stream)

    def progress(self, name: str) -> dict[str, tuple[int, int]]:
        """Like `EdgeSubscription.progress`; empty if the subscription is missing or ending."""
        subscription = self._state.subscriptions.get(name)
        return {} if subscription is None or subscription.is_ending else subscription.progress()

    def versions(self, now: float, versions: dict[str, Version]) -> list[PartRequest]:
        """Record the interest versions that now include these subscriptions."""
        self._state.begin()
        self.version = max([self.version, *versions.values()])
        for subscription in self._delivery.record_versions(now, versions):
            self._catch_up.advance_subscription(now, subscription)
        return self._state.result()

    def _check_gaps(self, now: float) -> None:
        state = self._state
        options = state.options
        state.begin_gap_checks()
        for stream in state.streams.values():
            buffer = stream.buffer
            if stream.name in state.backlog:
                # Request missing ticks only after the backlog is delivered.
                buffer.postpone_gap_check(now + options.nack_after_s)
            elif buffer.gap_check_at is not None and buffer.gap_check_at <= now:
                if stream.lossless_count:
                    pauses = options.nack_after_s, options.nack_again_s
                    ranges = buffer.ranges_to_request(now, *pauses, options.nack_ticks_max)
                    if ranges:
                        self._request_ticks(now, stream, ranges)
                elif buffer.is_head_doubtful:
                    ranges = buffer.head_to_request(now, options.nack_again_s)
                    self._request_ticks(now, stream, ranges)
                else:
                    holds_back = self._delivery.is_heavy(stream, buffer.waiting)
                    self._released(now, stream, buffer.skip_gap(holds_back=holds_back))
                    if buffer.has_ready:
                        self._queue_backlog(now, stream)
            state.schedule_gap_check(stream)

    def _request_ticks(self, now: float, stream: EdgeStream, ranges: list[tuple[int, int]]) -> None:
        """Ask the origin or a keeper for missing ticks, which the buffer has just requested."""
        sources = stream.sources
        target = sources.target(now, stream.buffer.attempts - 1)
        if target == stream.name:
            self._state.carry(target, Nack(ranges))
        else:
            self._state.carry(target, NackCopy(stream.name, ranges, sources.is_away(now)))

    def _look_for_heads(self, now: float) -> None:
        """Ask keepers how far the streams go whose origins are away (`sources`, rule 4)."""
        self._look_at = now + self._look_every_s
        for stream in self._state.streams.values():
            if stream.buffer.is_placed and (stream.lossless_count or stream.catching_up):
                keeper = stream.sources.keeper_to_ask(now)
                if keeper:
                    self._state.carry(keeper, NackCopy(stream.name, [], is_last_resort=True))

    # -- other brokers --------------------------------------------------------------------------

    def carried(self, now: float, source: str, content: AnyCarried) -> Iterable[PartRequest]:
        self._state.begin()
        if isinstance(content, Resent):
            return self._resent(now, source, content)
        if isinstance(content, Claim):
            self._ownership.claimed(now, source, content)
        elif isinstance(content, Yield):
            self._ownership.yielded(source, content)
        elif isinstance(content, Find):
            self._ownership.find(source, content)
        elif isinstance(content, NotInCopy):
            return self._state.requests.ask_origin(now, content.request, source)
        elif isinstance(content, Answer | NotKept | Held | Found):
            self._answered(now, source, content)
            if isinstance(content, Answer) and content.data:
                return [*self._state.result(), WorkDone(_RECEIVE_WORK * len(content.data))]
        else:
            raise RemoteError(f"an edge does not accept {type(content).__name__}")
        return self._state.result()

    def _resent(self, now: float, source: str, resent: Resent) -> Iterable[PartRequest]:
        """Take ticks that a keeper sent (`sources`, rule 5)."""
        stream = self._state.streams.get(resent.stream)
        if stream is None or source not in stream.sources.keepers:
            raise RemoteError(f"{source!r} is not a keeper of a stream {resent.stream!r}")
        buffer = stream.buffer
        # A keeper may know less than others: its head never replaces a higher one.
        head = resent.head if resent.head > buffer.head else 0
        parts = resent.data, resent.silent, resent.withheld
        arrival = Arrival(stream.name, NOTHING, *parts, head)
        runs = runs_of(arrival)
        if not buffer.is_placed:
            return self._state.result()
        for run in runs:
            run.mark_complete()
        if runs:
            stream.sources.keeper_answered(source, len(resent.data))
        return self._take(now, stream, runs, arrival)

    def _note_source(self, now: float, source: str, answer: Answer | NotKept | Held) -> bool:
        """Record that a broker has answered; False if a keeper's answer must be ignored."""
        target = self._state.requests.target(answer.request)
        sources = self._state.streams[target].sources
        if source == target:
            sources.heard(now)
            return True
        if isinstance(answer, Answer) and answer.through < answer.first:
            return False
        sources.keeper_answered(source, len(answer.data) if isinstance(answer, Answer) else 0)
        return True

    def _answered(self, now: float, source: str, answer: Answer | NotKept | Held | Found) -> None:
        requests = self._state.requests
        subject = requests.subject(answer.request, source)
        if subject is None:
            # Answered before, or no longer needed.
            return
        if not isinstance(requests.content(answer.request), _ANSWERS[type(answer)]):
            raise RemoteError(f"{type(answer).__name__} of {source!r} does not match its request")
        if not isinstance(answer, Found) and not self._note_source(now, source, answer):
            return
        if isinstance(subject, StreamPosition):
            self._position_answered(now, subject, answer)
        elif isinstance(subject, PendingAttach):
            self._attach_answered(now, source, subject, answer)

    def _position_answered(
        self, now: float, position: StreamPosition, answer: Answer | NotKept | Held | Found
    ) -> None:
        if isinstance(answer, Held):
            self._hold_requests.held(now, position, answer)
        elif isinstance(answer, NotKept) and answer.request == position.hold_request:
            self._hold_requests.not_kept(now, position, answer)
        elif isinstance(answer, NotKept):
            self._catch_up.not_kept(now, position, answer)
        elif isinstance(answer, Answer):
            self._catch_up.answer(now, position, answer)

    def _attach_answered(
        self,
        now: float,
        source: str,
        attach: PendingAttach,
        answer: Answer | NotKept | Held | Found,
    ) -> None:
        if isinstance(answer, Found):
            self._attachments.found(now, source, attach, answer)
        elif isinstance(answer, Held):
            self._attachments.held(now, source, attach, answer)
        elif isinstance(answer, NotKept):
            self._attachments.not_kept(now, source, attach, answer)
        else:
            self._attachments.answer(now, source, attach, answer)

    # -- disk and time --------------------------------------------------------------------------

    def synced(self, now: float, ticket: int) -> list[PartRequest]:
        """Everything put before this ticket is on disk."""
        self._state.begin()
        for stored in self._state.stored(ticket):
            self._stored(now, stored)
        return self._state.result()

    def _stored(self, now: float, stored: Stored) -> None:
        if isinstance(stored, CursorsStored):
            self._cursors.stored(now, stored)
        elif isinstance(stored, StartStored):
            self._activation.start_stored(now, stored)
        elif isinstance(stored, AttachStored):
            self._activation.activate(now, stored.attach, stored.subscription)
        elif isinstance(stored, YieldStored):
            self._ownership.yield_stored(now, stored)
            self._attachments.continue_queued(now, stored.subscription.key)
        elif isinstance(stored, EndStored):
            self._unsubscription.end_stored(now, stored)
            closed = self._state.closed.get(stored.subscription.key)
            if closed is not None:
                self._ownership.claim(now, closed)
            self._attachments.continue_queued(now, stored.subscription.key)
        else:
            self._state.emit(self._state.requests.open(now))
            self._state.schedule_done(now)

    def time_passed(self, now: float) -> Iterable[PartRequest]:
        done = self._timers(now)
        if self._state.has_backlog:
            return chain(done, self._do_backlog(now))
        return done

    def _timers(self, now: float) -> list[PartRequest]:
        state = self._state
        state.begin()
        state.emit(state.requests.repeat(now))
        if state.gap_check_at <= now:
            self._check_gaps(now)
        if self._look_at <= now:
            self._look_for_heads(now)
        if self._order.next_at <= now:
            self._order.time_passed(now)
        if state.take_done(now):
            for stream in state.streams.values():
                self._delivery.send_progress_in_portions(now, stream)
            self._cursors.write(now)
        return state.result()

    def next_deadline(self) -> float | None:
        state = self._state
        if state.has_backlog:
            return state.backlog_at
        order_at = self._order.next_at
        at = min(state.done_at, state.gap_check_at, order_at, state.requests.next_repeat_at)
        at = min(at, self._look_at)
        return None if at == float("inf") else at


def _with_work(asks: list[PartRequest]) -> list[PartRequest]:
    """Add the work of indexing new filters: several join points may subscribe in one step."""
    changes = [each for each in asks if isinstance(each, ChangeInterest)]
    count = sum(len(filter.conjunctions) for each in changes for filter in each.added.values())
    return [*asks, WorkDone(_INDEX_WORK * count)] if count > _FEW_CONJUNCTIONS else asks
