"""The broker: one state machine that connects links, a router and the client-facing parts.

    broker = Broker(config, recovered, now)
    effects = broker.handle(now, stimulus)

The broker makes no delivery decisions itself. It runs the handshake with neighbours, routes the
requests of one part to the part that serves them, numbers the syncs, and closes the connection of
a peer that violates the protocol. Everything that one stimulus causes (for example, a tick of the
origin that reaches the local edge through the router) is processed in order, and completely, before
the next stimulus. A *life* is one run of the broker; a later life has a higher number.

Rules

1. Bounded steps. One call of `handle` does about `step_work_max` of work and leaves the rest to
   later calls; until then `is_working` is true and `next_deadline` is now. A part with a lot of
   work returns an iterator instead of a list. The iterator yields the cost of finished work
   (`WorkDone`) and may be suspended there. A part that did much work and returns a list ends it
   with `WorkDone`.
2. Order. Stimuli that arrive in the meantime are queued in order, so a part sees each stimulus
   processed completely before the next one, regardless of the number of calls. Only `now` advances.
   The driver should hold back input that can wait.
3. Heartbeats are not queued. Every call records frames of neighbours as signs of life, sends due
   pings, and answers keep-alive probes of clients.
4. Start. The broker writes the number of its life to the catalog and syncs it before it does
   anything else. Until then it rejects clients and delays its greeting to neighbours. Catalog
   records that cannot be read are set aside in the same sync (`catalog_recovery`).
5. Departure. A broker that receives `Depart` drains itself and then reports `is_drained`
   (`client_services`).

State: the parts own it; the broker holds only work in progress. Safe to lose.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

import msgspec
from msgspec.structs import replace

from anabranch.core import contract
from anabranch.core.catalog_recovery import SetAsideRecords
from anabranch.core.client_services import (
    LIFE_KEY,
    TABLE,
    ClientServices,
    Departure,
    Requester,
    departure_deletion,
    stored_departure,
    stored_life,
)
from anabranch.core.contract import Effect, Effects, Recovered, Stimulus, earliest
from anabranch.core.edge.edge import Edge
from anabranch.core.links import Links
from anabranch.core.options import Options
from anabranch.core.origin import rollback
from anabranch.core.origin.origin import Origin
from anabranch.core.origin.rollback import RollbackInquiry, StreamWitness
from anabranch.core.part_requests import (
    AnnounceMark,
    AppendLife,
    CarryTo,
    ChangeAdvertisements,
    ChangeInterest,
    JoinPointRequest,
    PartRequest,
    RequestSync,
)
from anabranch.core.patterns.join_points.join_points import JoinPoints
from anabranch.core.replication.keeper import Keeper
from anabranch.core.replication.replication import Replication
from anabranch.core.replication.report import waits_for
from anabranch.core.replication.rows import carried_put, with_rows_of
from anabranch.core.replication.writer import StreamWriter
from anabranch.core.routing.contract import (
    Arrival,
    CarriedMessage,
    Emission,
    InterestVersions,
    Outcome,
    Router,
    VectorAdvance,
    WorkDone,
)
from anabranch.core.routing.registry import ROUTINGS, RouterMaker, RoutingName
from anabranch.model.client_frames import Alive
from anabranch.model.errors import ContradictionError, LocalError, RemoteError
from anabranch.model.frames import (
    Answer,
    AnyCarried,
    Carry,
    Done,
    ForCopies,
    Hello,
    Known,
    LinkFrame,
    Nack,
    Ping,
    Replay,
    Resent,
)
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.network import Network
from anabranch.model.replication import ForKeeper, ForReplication

#: The minimum cost of routing a request to another part.
_REQUEST_WORK = 20
#: The cost of routing one tick of an emission.
_EMISSION_TICK_WORK = 5
#: Frames queued for a neighbour while the origin may not announce its stream; its link is cut
#: beyond that.
_WAITING_FRAMES_MAX = 1024
#: Tickets of the broker's own syncs.
_LIFE, _DEPARTURE, _ALONE = 0, 1, 2
#: Messages about ticks, which change nothing that rows of the catalog hold for long.
_ABOUT_TICKS = Nack | Done | Replay | Answer | Resent | Known


class BrokerConfig(msgspec.Struct, frozen=True):
    """The configuration of a broker, fixed for one life."""

    name: str
    network: Network
    routing: RoutingName = "tree"
    options: Options = Options()
    limits: Limits = DEFAULT_LIMITS
    #: Overrides the router that `routing` names.
    router: RouterMaker | None = None
    #: Revision of the network file; grows with every change.
    revision: int = 1
    #: Statistics about the events of this broker's stream (`model.statistics`).
    statistics: bytes = b""
    #: Stream → its keepers, for streams that have copies.
    keepers: Mapping[str, tuple[str, ...]] = {}


class Broker:
    """One broker. See the top of this module and `core.contract`."""

    def __init__(self, config: BrokerConfig, recovered: Recovered, now: float) -> None:
        self.config = config
        recovered = with_rows_of(replace(recovered, aside=[], repairs=[]))
        self.life = max(int(now * 1e9), stored_life(recovered) + 1)
        #: The number of the life is on disk.
        self.is_ready = False
        network = config.network
        self.is_edge = config.name in network.edges
        self._links = Links(config.name, network.links_of(config.name), config.options)
        #: This broker's knowledge of other brokers' streams, for rollback detection.
        self.witness = StreamWitness(config.name, network.edges, recovered)
        self._rollback = rollback.stored(recovered)
        self._is_first_life = not recovered.catalog.get("broker")
        routing = ROUTINGS[config.routing]
        if config.router is None and routing.needs_tree and not network.is_tree:
            raise LocalError(
                f"{config.routing!r} routing requires a tree, but this network is not one; use mesh"
            )
        make_router = config.router or routing.make
        self.router: Router = make_router(
            config.name, network, config.options, config.limits, self.life
        )
        parts = (config.name, network, config.options, config.limits, recovered, now)
        self.router.set_statistics(config.statistics)
        self.replication = Replication(
            config.name, network, config.options, config.limits, recovered, self.life
        )
        #: Whether clients are served, and the neighbours' greetings until then.
        self.is_serving = False
        self._early_hellos: dict[str, Hello] = {}
        is_edge, facts = self.is_edge, self.router.placement_facts
        more = (self._submit, self.life, facts, config.keepers)
        self._services = ClientServices(*parts, *more) if is_edge else None
        newest = 0 if self._services is None else self._services.origin.newest
        self._departed = stored_departure(recovered, config.revision, newest)
        #: Greetings of neighbours received before the life was on disk.
        self._hellos: dict[str, Hello] = {}
        #: Neighbours that greeted while the origin may not announce its stream → queued frames.
        self._held_frames: dict[str, list[LinkFrame]] = {}
        #: Streams whose contradiction was logged.
        self._contradicted: dict[str, None] = {}
        #: Catalog records that could not be read.
        self.set_aside = SetAsideRecords(recovered, config.limits, now)
        self._repairs = self.set_aside.effects(recovered)
        self._sync_number = 0
        #: (sync number, requesting part, its ticket), oldest first.
        self._syncs: deque[tuple[int, Requester, int]] = deque()
        self._sync_wanted: list[tuple[Requester, int]] = []
        #: (part, its remaining requests), oldest first; all of them result from `_current`.
        self._work: deque[tuple[Requester, Iterator[PartRequest | Outcome]]] = deque()
        #: (part, its remaining requests): long-running work, suspended between two portions.
        self._long_work: deque[tuple[Requester, Iterator[PartRequest | Outcome]]] = deque()
        self._deferred: list[PartRequest | Outcome] = []
        self._current: Stimulus = contract.Started()
        #: Stimuli that arrived while the broker was working.
        self._stimuli: deque[Stimulus] = deque()
        #: For observers: each stimulus that the last call worked on, and the number of effects
        #: that preceded its own.
        self.processed: list[tuple[Stimulus, int]] = []
        #: Work done in this call.
        self._spent = 0
        self._now = now

    @property
    def is_working(self) -> bool:
        """Whether work is left from earlier stimuli; drivers should hold back input that can
        wait."""
        return bool(self._work or self._long_work or self._stimuli)

    @property
    def has_work_left(self) -> bool:
        """Whether work is left from the stimulus that was started last."""
        return bool(self._work or self._long_work)

    @property
    def origin(self) -> Origin | None:
        """The part that takes events; None if this broker takes no clients."""
        return None if self._services is None else self._services.origin

    @property
    def edge(self) -> Edge | None:
        """The part that delivers events; None if this broker takes no clients."""
        return None if self._services is None else self._services.edge

    @property
    def filter_bytes(self) -> int:
        return self._services.memory.used if self._services else 0

    @property
    def join_points(self) -> JoinPoints | None:
        """The part that detects patterns; None if this broker takes no clients."""
        return None if self._services is None else self._services.join_points

    @property
    def refusal(self) -> str:
        """Why this broker refuses clients; "" if it serves them."""
        if not self.is_edge:
            return "this broker takes no clients"
        if self.is_serving:
            return ""
        writer = self.replication.writer
        reason = waits_for(writer) if self.is_ready and writer is not None else ""
        return f"the broker is starting: {reason}" if reason else "the broker is starting"

    # -- interface ------------------------------------------------------------------------------

    def handle(self, now: float, stimulus: Stimulus) -> Effects:
        """Process a stimulus; the driver performs the returned effects in order."""
        effects: Effects = []
        self._now = now
        self._spent = 0
        self.processed = [(self._current, 0)] if self.has_work_left else []
        if not self.is_working or not self._is_heartbeat(now, stimulus, effects):
            self._stimuli.append(stimulus)
        work_max = self.config.options.step_work_max
        while self._spent < work_max and self.is_working:
            try:
                if not self.has_work_left:
                    self._current = self._stimuli.popleft()
                    self.processed.append((self._current, len(effects)))
                    self._dispatch(now, self._current)
                self._drain_work(now, effects, work_max)
                if not self.has_work_left:
                    self._continue_replication(now)
            except RemoteError as error:
                # Discard everything else that the frame would have caused.
                self._work.clear()
                self._long_work.clear()
                self._deferred = []
                if isinstance(error, ContradictionError) and error.stream not in self._contradicted:
                    self._contradicted[error.stream] = None
                    effects.append(contract.Note("error", str(error)))
                effects.append(_cut(self._current, str(error)))
        self._replicate(now, effects)
        if self._is_unfinished:
            return effects
        seen_puts = self.witness.puts(now) if self.is_ready or self._sync_wanted else []
        if seen_puts or self._sync_wanted or self.replication.wants_sync:
            self._sync_number += 1
            for who, ticket in self._sync_wanted:
                self._syncs.append((self._sync_number, who, ticket))
            self._sync_wanted.clear()
            effects += seen_puts
            effects.append(contract.Sync(self._sync_number))
            self.replication.requested(self._sync_number)
        return effects

    # -- replication ----------------------------------------------------------------------------

    @property
    def _is_unfinished(self) -> bool:
        """Whether a replicated broker has not finished a step (`replication`, rule 3)."""
        return self.replication.writer is not None and self.has_work_left

    def _replicate(self, now: float, effects: Effects) -> None:
        """At the end of a step: carry its rows in the stream, and send its ticks to the copies."""
        replication = self.replication
        writer = replication.writer
        if writer is None:
            return
        replication.observe(effects)
        if self.has_work_left:
            return
        assert self._services is not None
        origin = self._services.origin
        for rows in replication.rows_to_append():
            for request in origin.append_rows(now, rows):
                if isinstance(request, RequestSync):
                    self._sync_wanted.append((origin, request.ticket))
                else:
                    assert isinstance(request, contract.Append)
                    effects += [request, carried_put(request.tick)]
                    writer.appended(request.tick, request.record)
        self._submit(writer, writer.flush(now))
        self._drain_work(now, effects, self.config.options.step_work_max + self._spent)

    def _continue_replication(self, now: float) -> None:
        """After each stimulus: what waited for copies, and for the beginning of a life."""
        replication, services = self.replication, self._services
        writer = replication.writer
        if writer is None or services is None:
            return
        origin = services.origin
        if writer.state == "complete":
            if origin.inquiry is None:
                inquiry = self._inquiry(origin)
                self._submit(origin, origin.start_inquiry(now, inquiry))
                for peer, hello in self._early_hellos.items():
                    self._submit(origin, origin.greeted(now, peer, hello))
                self._early_hellos.clear()
                if writer.knows_confirmed:
                    inquiry.copies_agree(now)
            assert origin.inquiry is not None
            if origin.inquiry.is_open:
                self._submit(writer, writer.begin())
        if not self.is_serving and (
            writer.is_leading or (origin.inquiry is not None and origin.inquiry.verdict is not None)
        ):
            self._serve(now)
        for who, ticket, _ in replication.released():
            assert isinstance(who, Edge | Origin | JoinPoints)
            self._tell_synced(now, who, ticket)

    def _is_gated(self, who: Requester) -> bool:
        """Whether a part waits for the copies and not only for the disk."""
        writer = self.replication.writer
        if writer is None or who is None or isinstance(who, Keeper | StreamWriter):
            return False
        inquiry = None if self.origin is None else self.origin.inquiry
        return writer.is_leading or inquiry is None or inquiry.verdict is None

    def _carry(self, now: float, target: str, content: AnyCarried) -> None:
        """Carry a message to another broker. Records for a neighbour do not need a route."""
        if isinstance(content, ForReplication) and self._links.is_neighbour(target):
            # If the link is down it is dropped, and repeated when the neighbour is back.
            carry = Carry(self.config.name, target, 0, content)
            self._submit(None, [contract.Send(target, carry)])
        else:
            self._submit(None, self.router.carry(now, target, content))

    def next_deadline(self) -> float | None:
        """When the driver must send `TimePassed`; None if no timer runs."""
        if self.is_working:
            return self._now
        deadlines = [part.next_deadline() for part in self._parts]
        return earliest(self.witness.next_deadline() if self.is_ready else None, *deadlines)

    @property
    def _parts(self) -> tuple[Links | Router | Replication | Origin | Edge | JoinPoints, ...]:
        services: tuple[Origin | Edge | JoinPoints, ...] = ()
        if self._services is not None:
            # Its origin asks the neighbours before clients are served.
            services = self._services.parts if self.is_serving else (self._services.origin,)
        # Copies are asked when the life is on disk.
        replication = (self.replication,) if self.is_ready else ()
        return (self._links, self.router, *replication, *services)

    # -- stimuli --------------------------------------------------------------------------------

    def _is_heartbeat(self, now: float, stimulus: Stimulus, effects: Effects) -> bool:
        """Rule 3, while other work is in progress; False if the stimulus must be queued as well."""
        if isinstance(stimulus, contract.FrameReceived):
            is_ping = isinstance(stimulus.frame, Ping)
            if not is_ping or self._links.is_greeted(stimulus.peer):
                self._links.heard(now, stimulus.peer)
            return is_ping
        if isinstance(stimulus, contract.ClientFrameReceived) and self._services is not None:
            is_probe = isinstance(stimulus.frame, Alive) and stimulus.session >= 0
            if is_probe and self._services.edge.has_client(stimulus.session):
                effects.append(contract.SendClient(stimulus.session, Alive()))
                return True
        if isinstance(stimulus, contract.TimePassed):
            due = self._links.next_deadline()
            if due is not None and due <= now:
                for request in self._links.time_passed(now):
                    if isinstance(request, contract.Send):
                        self._links.sent(now, request.peer)
                    effects.append(request)
            return True
        return False

    def _dispatch(self, now: float, stimulus: Stimulus) -> None:
        self.replication.note(stimulus)
        if isinstance(stimulus, contract.FrameReceived):
            self._frame(now, stimulus)
        elif isinstance(stimulus, contract.ClientFrameReceived):
            self._client_frame(now, stimulus)
        elif isinstance(stimulus, contract.Synced):
            self._synced(now, stimulus.number)
        elif isinstance(stimulus, contract.TimePassed):
            self._time_passed(now)
        elif isinstance(stimulus, contract.Started):
            self._submit(None, self._repairs)
            self._repairs = []
            if self._departed is not None and self.departure is None:
                self._submit(None, [departure_deletion()])
            self._submit(
                None, [contract.Put(TABLE, LIFE_KEY, b"%d" % self.life), RequestSync(_LIFE)]
            )
        elif isinstance(stimulus, contract.Depart):
            self._depart(now)
        elif isinstance(stimulus, contract.MoveJoinPoint):
            if self._services is not None and self.is_serving:
                points = self._services.join_points
                self._submit(points, points.move(now, stimulus.pattern, stimulus.target))
        elif not self._client_event(now, stimulus):
            self._link_event(now, stimulus)

    def _frame(self, now: float, stimulus: contract.FrameReceived) -> None:
        peer, frame = stimulus.peer, stimulus.frame
        if isinstance(frame, Ping) and not self._links.is_greeted(peer):
            # A ping proves that the peer is alive but not who it is; wait for the greeting.
            return
        if not self._links.heard(now, peer) or isinstance(frame, Ping):
            return
        if isinstance(frame, Hello):
            self._links.greet(now, peer, frame)
            self._greeted(now, peer, frame)
        elif peer in self._held_frames:
            if len(self._held_frames[peer]) >= _WAITING_FRAMES_MAX:
                raise RemoteError(
                    f"{peer!r} sent too many frames while this broker waits for its disk"
                )
            self._held_frames[peer].append(frame)
        elif self._links.is_greeted(peer):
            self._submit(None, self.router.frame(now, peer, frame))
            self.witness.record(frame)
        else:
            raise RemoteError(f"{peer!r} sent a frame before its greeting")

    def _greeted(self, now: float, peer: str, hello: Hello) -> None:
        """Process the greeting of a neighbour, or defer it until the life has begun."""
        if not self.is_ready:
            self._hellos[peer] = hello
            return
        writer = self.replication.writer
        if writer is not None:
            self._submit(writer, writer.neighbour_up(now, peer))
        if self._services is not None:
            origin = self._services.origin
            if origin.inquiry is None:
                self._early_hellos[peer] = hello
            self._submit(origin, origin.greeted(now, peer, hello))
            if not origin.may_announce:
                if writer is not None:
                    # The origin's own sync waits for copies, which may be reached only after this.
                    self._submit(None, [RequestSync(_ALONE)])
                self._held_frames[peer] = []
                return
        self._submit(None, self.router.link_up(now, peer))

    def _serve_waiting(self, now: float) -> None:
        """The origin may announce its stream: bring links up, then process their queued frames."""
        waiting, self._held_frames = self._held_frames, {}
        for peer in waiting:
            self._submit(None, self.router.link_up(now, peer))
        frames = [
            contract.FrameReceived(peer, frame) for peer in waiting for frame in waiting[peer]
        ]
        self._stimuli.extendleft(reversed(frames))

    def _link_event(self, now: float, stimulus: Stimulus) -> None:
        if isinstance(stimulus, contract.LinkUp):
            self._submit(None, self._links.link_up(now, stimulus.peer))
            if self.is_ready:
                self._greet(stimulus.peer)
        elif isinstance(stimulus, contract.LinkDown):
            self._hellos.pop(stimulus.peer, None)
            self._early_hellos.pop(stimulus.peer, None)
            was_waiting = self._held_frames.pop(stimulus.peer, None) is not None
            if self._links.link_down(stimulus.peer) and self.is_ready and not was_waiting:
                self._submit(None, self.router.link_down(now, stimulus.peer))
        elif isinstance(stimulus, contract.LinkLoad):
            loads = stimulus.offered_bytes, stimulus.sent_bytes, stimulus.queued_bytes
            self.router.link_load(now, stimulus.peer, *loads)
        elif isinstance(stimulus, contract.BrokerLoad):
            if self.is_ready:
                self._submit(None, self.router.broker_load(now, stimulus))
        elif isinstance(stimulus, contract.LinkFull):
            self._submit(None, self.router.link_full(now, stimulus.peer, stimulus.full))
        elif isinstance(stimulus, contract.LogRead | contract.RowsRead | contract.CopyFull):
            self._disk_event(now, stimulus)
        else:
            assert self._services is not None
            self._services.log_event(now, stimulus)

    def _disk_event(
        self, now: float, stimulus: contract.LogRead | contract.RowsRead | contract.CopyFull
    ) -> None:
        replication = self.replication
        requests = replication.disk(now, stimulus)
        if requests is not None:
            self._submit(replication.keeper, requests)
        elif self.is_serving and self._services is not None:
            self._services.log_event(now, stimulus)

    def _client_event(self, now: float, stimulus: Stimulus) -> bool:
        if self._services is not None and self.is_serving:
            return self._services.client_event(now, stimulus)
        if isinstance(stimulus, contract.ClientConnected):
            self._submit(None, [contract.CutClient(stimulus.session, self.refusal)])
        return isinstance(
            stimulus, contract.ClientConnected | contract.ClientDisconnected | contract.ClientFull
        )

    def _client_frame(self, now: float, stimulus: contract.ClientFrameReceived) -> None:
        if self._services is not None and self.is_serving:
            self._services.client_frame(now, stimulus.session, stimulus.frame)

    def _synced(self, now: float, number: int) -> None:
        while self._syncs and self._syncs[0][0] <= number:
            entry, who, ticket = self._syncs.popleft()
            if self._is_gated(who):
                self.replication.gate(who, ticket, entry)
            elif who is not None:
                self._tell_synced(now, who, ticket)
            elif ticket == _LIFE:
                self._begin(now)
            elif ticket == _ALONE and self.origin is not None and self.origin.inquiry is not None:
                self.origin.inquiry.alone_removal_synced()
        writer = self.replication.writer
        if writer is not None:
            self._submit(writer, self.replication.synced(now, number))
        if self._held_frames and self._services is not None and self._services.origin.may_announce:
            self._serve_waiting(now)

    def _tell_synced(self, now: float, who: Requester, ticket: int) -> None:
        if isinstance(who, Keeper):
            self._submit(who, who.synced(ticket))
        elif who is not None:
            self._submit(who, who.synced(now, ticket))

    def _greet(self, peer: str) -> None:
        self._submit(None, self._links.hello(peer, self.life, self.witness.known(peer)))

    def _inquiry(self, origin: Origin) -> RollbackInquiry:
        config = self.config
        return RollbackInquiry(
            config.name,
            config.network.links_of(config.name),
            origin.newest,
            config.options,
            self._rollback,
            is_first_life=self._is_first_life,
        )

    def _begin(self, now: float) -> None:
        """The life is on disk: start the parts and greet all connected neighbours."""
        self.is_ready = True
        services, replication = self._services, self.replication
        peers = self._links.connected_peers()
        for peer in peers:
            # First of all: copies may be asked over these links at once.
            self._greet(peer)
        self._submit(replication.keeper, replication.keeper.started())
        if services is not None:
            origin, writer = services.origin, replication.writer
            self._submit(None, self.router.advertise(now, (), (), origin.newest))
            if writer is not None:
                self._submit(writer, writer.started(now))
            else:
                self._submit(origin, origin.start_inquiry(now, self._inquiry(origin)))
                self._serve(now)
        for peer in peers:
            hello = self._hellos.pop(peer, None)
            if hello is not None:
                self._greeted(now, peer, hello)

    def _serve(self, now: float) -> None:
        """Serve clients from now on."""
        services = self._services
        assert services is not None
        self.is_serving = True
        services.started(now)
        if self.departure is not None:
            services.depart(now)

    # -- leaving the network --------------------------------------------------------------------

    @property
    def departure(self) -> Departure | None:
        """The departure in progress, if any."""
        found = self._departed
        is_meant = found is not None and found.revision >= self.config.revision and self.is_edge
        return found if is_meant else None

    @property
    def is_drained(self) -> bool:
        """Whether this broker departs and no other broker needs it; once true, it stays true."""
        departure, services = self.departure, self._services
        if departure is None or services is None or not self.is_ready:
            return False
        is_waiting = self._syncs or self.replication.gated or self.is_working
        return self.is_serving and services.is_drained(departure) and not is_waiting

    @property
    def last_needed_tick(self) -> int:
        """The last tick with an event of a departing broker, not counting batches in progress."""
        assert self._services is not None
        assert self.departure is not None
        return self._services.last_needed_tick(self.departure)

    def _depart(self, now: float) -> None:
        services = self._services
        if services is None or not self.is_serving or self.departure is not None:
            return
        self._departed = Departure(self.config.revision, services.origin.newest)
        self._submit(None, [self._departed.put(), RequestSync(_DEPARTURE)])
        services.depart(now)

    def _time_passed(self, now: float) -> None:
        for part in self._parts:
            deadline = part.next_deadline()
            if deadline is None or deadline > now:
                continue
            who: Requester = part if isinstance(part, Edge | Origin | JoinPoints) else None
            if isinstance(part, Replication):
                who = part.writer
            self._submit(who, part.time_passed(now))

    # -- requests of the parts ------------------------------------------------------------------

    def _submit(self, who: Requester, requests: Iterable[PartRequest | Outcome]) -> None:
        while isinstance(requests, list) and requests and isinstance(requests[-1], WorkDone):
            # This work is already done, so it counts before other work starts.
            self._spent += requests.pop().work
        if who is not None and isinstance(requests, chain):
            # Computed requests come first, then work that has not started.
            computed: list[PartRequest | Outcome] = []
            for request in requests:
                if isinstance(request, WorkDone):
                    self._long_work.append((who, requests))
                    break
                computed.append(request)
            self._submit(who, computed)
        elif who is not None and not isinstance(requests, list | tuple):
            self._long_work.append((who, iter(requests)))
        elif requests:
            self._work.append((who, iter(requests)))

    def _continue_long_work(self, effects: Effects, work_max: int) -> None:
        """Continue long-running work of a part after all computed requests are done.

        Effects keep the order in which they were computed; requests to other parts wait until the
        work is complete."""
        who, requests = self._long_work[0]
        for request in requests:
            if isinstance(request, WorkDone):
                self._spent += request.work
                if self._spent >= work_max:
                    return
            elif isinstance(request, Effect) and not _is_internal(request):
                effects.append(request)
            else:
                self._deferred.append(request)
        self._long_work.popleft()
        deferred, self._deferred = self._deferred, []
        self._submit(who, deferred)

    def _drain_work(self, now: float, effects: Effects, work_max: int) -> None:
        """Process the requests of the parts until the work limit is reached."""
        work = self._work
        while work or self._long_work:
            if not work:
                if self._spent >= work_max:
                    return
                self._continue_long_work(effects, work_max)
                continue
            who, requests = work[0]
            for request in requests:
                if isinstance(request, WorkDone):
                    self._spent += request.work
                    if self._spent >= work_max:
                        return
                elif isinstance(request, contract.Send):
                    if isinstance(request.frame, Hello) or self._links.is_greeted(request.peer):
                        self._links.sent(now, request.peer)
                        effects.append(request)
                elif (
                    isinstance(request, contract.SendClient | contract.CutClient)
                    and request.session < 0
                ):
                    assert self._services is not None
                    self._services.to_join_point(now, request)
                elif isinstance(request, Effect):
                    effects.append(request)
                elif isinstance(request, RequestSync):
                    self._sync_wanted.append((who, request.ticket))
                else:
                    self._spent += _REQUEST_WORK
                    self._route_request(now, request, effects)
                    if self._spent >= work_max:
                        return
            work.popleft()

    def _route_request(self, now: float, request: PartRequest | Outcome, effects: Effects) -> None:
        router, services = self.router, self._services
        if isinstance(request, CarryTo):
            self._carry(now, request.target, request.content)
            return
        if isinstance(request, CarriedMessage):
            self._deliver_carried(now, request, effects)
            return
        assert services is not None
        if isinstance(request, AppendLife):
            origin = services.origin
            self._submit(origin, origin.append_life(now, request.life, request.copies))
        elif isinstance(request, Arrival):
            if not self.is_serving:
                return
            if request.data:
                self.replication.note_activity()
            self._submit(services.edge, services.edge.arrival(now, request))
        elif isinstance(request, Emission):
            self._spent += _EMISSION_TICK_WORK * len(request.data)
            self._submit(None, router.publish(now, request))
        elif isinstance(request, ChangeInterest):
            self._submit(None, router.interest_changes(now, request.added, request.removed))
        elif isinstance(request, InterestVersions):
            self._submit(services.edge, services.edge.versions(now, request.versions))
        elif isinstance(request, ChangeAdvertisements):
            parts = request.added, request.removed, services.origin.newest
            self._submit(None, router.advertise(now, *parts))
        elif isinstance(request, AnnounceMark):
            self._submit(None, router.marked(now, request.mark, request.vector))
        elif isinstance(request, VectorAdvance):
            self._submit(services.origin, services.origin.vector_advance(now, request.vector))
        elif isinstance(request, JoinPointRequest):
            services.from_join_point(now, request)
        else:
            raise AssertionError(f"no part takes {request!r}")

    def _deliver_carried(self, now: float, delivery: CarriedMessage, effects: Effects) -> None:
        """Deliver a carried message. Its sender is to blame for an invalid one, not the
        neighbour."""
        content, replication = delivery.content, self.replication
        try:
            if isinstance(content, ForReplication):
                requests = replication.carried(now, delivery.source, content)
                who = replication.keeper if isinstance(content, ForKeeper) else replication.writer
                self._submit(who, requests)
                return
            if isinstance(content, ForCopies):
                self._submit(None, replication.reads.carried(now, delivery.source, content))
                return
            if self._services is None:
                raise RemoteError("this broker is not an edge")
            if self.is_serving:
                if not isinstance(content, _ABOUT_TICKS):
                    replication.note_activity()
                self._services.carried(now, delivery)
        except RemoteError as error:
            effects.append(contract.Note("warning", f"from {delivery.source!r}: {error}"))


def _is_internal(effect: Effect) -> bool:
    """Whether a part of this broker processes the effect first: the links or a join point."""
    if isinstance(effect, contract.SendClient | contract.CutClient):
        return effect.session < 0
    return isinstance(effect, contract.Send)


def _cut(stimulus: Stimulus, reason: str) -> Effect:
    if isinstance(stimulus, contract.FrameReceived):
        return contract.CutLink(stimulus.peer, reason)
    assert isinstance(stimulus, contract.ClientFrameReceived), reason
    return contract.CutClient(stimulus.session, reason)
