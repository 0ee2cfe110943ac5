"""One broker: a router, links, and (if it takes clients) a home for them, behind one door.

    broker = Broker(config, recovered, now)
    effects = broker.handle(now, stimulus)

The broker itself decides nothing about delivery. It greets neighbours, takes what one part asks
for to the part that does it, numbers the syncs, and turns a broken protocol into a cut link. What
one stimulus causes (an origin's tick reaches the own edge through the router) is worked off in
order, and all of it before the next stimulus is looked at. Rules:

1. One call of `handle` does about `step_work_max` of work. What is left goes on with the next call;
   until then `is_working` is true, and `next_deadline` is now. A part that has much to do returns
   an iterator instead of a list; it says how much it has done (`WorkDone`), and may be interrupted
   there. One that had much to do and returns a list says so at its end.
2. Stimuli that come meanwhile wait, in order. So the parts see each stimulus handled whole before
   the next one, however many calls that takes; only `now` moves on. The driver should hold back
   whatever can wait.
3. Heartbeats do not wait: neighbours are heard and pinged, and clients are told that the broker is
   alive, in every call.

A life begins with its number: it is put into the catalog and synced before anything else happens.
Until then clients are turned away and neighbours wait for their greeting. A broker that is to leave
the network for good is told so, and tells when it may (`departing`). What of the catalog cannot be
read is set aside with the number of the life (`catalog_recovery`).

State: in the parts; here only what is on the way. Safe to lose.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec
from msgspec.structs import replace

from anabranch.core import contract, departure
from anabranch.core.catalog_recovery import SetAsideRecords, decoded, number_in, set_aside
from anabranch.core.client_services import ClientServices, Who
from anabranch.core.contract import Effect, Effects, Recovered, Stimulus, earliest
from anabranch.core.departure import TABLE
from anabranch.core.edge.edge import Edge
from anabranch.core.links import Links
from anabranch.core.options import Options
from anabranch.core.origin import rollback
from anabranch.core.origin.origin import Origin
from anabranch.core.origin.rollback import RollbackInquiry, StreamWitness
from anabranch.core.part_requests import (
    CarryTo,
    ChangeAdvertisements,
    ChangeInterest,
    JoinPointRequest,
    Marked,
    PartRequest,
    RequestSync,
)
from anabranch.core.patterns.join_points.join_points import JoinPoints
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
from anabranch.model.frames import Hello, LinkFrame, Ping
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.network import Network

_LIFE_KEY = "life"
#: Lives beyond this one could not be counted on; it is some centuries away.
_LIFE_MAX = (1 << 63) - (1 << 40)
#: What taking something from one part to another costs, at least.
_WISH_WORK = 20
#: What routing one tick of an emission costs.
_EMIT_WORK = 5
#: Frames of a neighbour that may wait until it can be served; beyond that its link is cut.
_WAITING_FRAMES_MAX = 1024
#: The broker's own tickets.
_LIFE, _DEPARTURE = 0, 1


class BrokerConfig(msgspec.Struct, frozen=True):
    """What a broker is told once."""

    name: str
    network: Network
    routing: RoutingName = "tree"
    options: Options = Options()
    limits: Limits = DEFAULT_LIMITS
    #: Makes a router of its own, in place of the one that `routing` names.
    router: RouterMaker | None = None
    #: Of the network; grows with every change of it.
    revision: int = 1
    #: What is known of the own stream (`model.statistics`).
    statistics: bytes = b""


class Broker:
    """One broker. See the top of this module and `core.contract`."""

    def __init__(self, config: BrokerConfig, recovered: Recovered, now: float) -> None:
        self.config = config
        recovered = replace(recovered, aside=[], repairs=[])
        self.life = max(int(now * 1e9), _stored_life(recovered) + 1)
        #: Whether the life is on disk.
        self.is_ready = False
        network = config.network
        self.is_edge = config.name in network.edges
        self._links = Links(config.name, network.links_of(config.name), config.options)
        #: What it knows of the streams of others.
        self.witness = StreamWitness(config.name, network.edges, recovered)
        self._rollback = rollback.stored(recovered)
        self._is_first_life = not recovered.catalog.get("broker")
        routing = ROUTINGS[config.routing]
        if config.router is None and routing.needs_tree and not network.is_tree:
            raise LocalError(
                f"{config.routing!r} routing needs a tree, and this network is none; use mesh"
            )
        make_router = config.router or routing.make
        self.router: Router = make_router(
            config.name, network, config.options, config.limits, self.life
        )
        parts = (config.name, network, config.options, config.limits, recovered, now)
        self.router.know_statistics(config.statistics)
        is_edge, scout = self.is_edge, self.router.scout
        self._home = ClientServices(*parts, self._do, self.life, scout) if is_edge else None
        newest = 0 if self._home is None else self._home.origin.newest
        self._departed = departure.stored_departure(recovered, config.revision, newest)
        #: Greetings of neighbours that came before the life was on disk.
        self._hellos: dict[str, Hello] = {}
        #: Neighbours that have greeted and may not hear of the own stream yet, and their frames.
        self._waiting: dict[str, list[LinkFrame]] = {}
        #: Streams whose contradictions were noted.
        self._contradicted: dict[str, None] = {}
        #: Records of the catalog that could not be read.
        self.set_aside = SetAsideRecords(recovered, config.limits, now)
        self._repairs = self.set_aside.effects(recovered)
        self._sync_number = 0
        #: (sync number, who asked, its ticket), oldest first.
        self._syncs: deque[tuple[int, Who, int]] = deque()
        self._sync_wanted: list[tuple[Who, int]] = []
        #: (who wants it, what is left of that), oldest first; all of it follows from `_current`.
        self._work: deque[tuple[Who, Iterator[PartRequest | Outcome]]] = deque()
        #: (who does it, the rest of it): long work of a part, of which a portion was done.
        self._long: deque[tuple[Who, Iterator[PartRequest | Outcome]]] = deque()
        self._deferred: list[PartRequest | Outcome] = []
        self._current: Stimulus = contract.Started()
        #: What happened meanwhile.
        self._stimuli: deque[Stimulus] = deque()
        #: Of the last call, for whoever watches: each stimulus that was worked on, and how many
        #: effects there were before its own.
        self.worked_on: list[tuple[Stimulus, int]] = []
        #: What was spent in this call.
        self._spent = 0
        self._now = now

    @property
    def is_working(self) -> bool:
        """Whether it still works on what happened before; whoever can wait should."""
        return bool(self._work or self._long or self._stimuli)

    @property
    def has_work_left(self) -> bool:
        """Whether it still works on the last stimulus that it began with."""
        return bool(self._work or self._long)

    @property
    def origin(self) -> Origin | None:
        """Where events enter; None if it takes no clients."""
        return None if self._home is None else self._home.origin

    @property
    def edge(self) -> Edge | None:
        """Where they leave, likewise."""
        return None if self._home is None else self._home.edge

    @property
    def filter_bytes(self) -> int:
        """About how much memory the filters of clients take here."""
        return self._home.memory.used if self._home else 0

    @property
    def points(self) -> JoinPoints | None:
        """Where patterns are detected, likewise."""
        return None if self._home is None else self._home.points

    # -- the door -------------------------------------------------------------------------------

    def handle(self, now: float, stimulus: Stimulus) -> Effects:
        """What to do about something that happened."""
        effects: Effects = []
        self._now = now
        self._spent = 0
        self.worked_on = [(self._current, 0)] if self.has_work_left else []
        if not self.is_working or not self._is_heartbeat(now, stimulus, effects):
            self._stimuli.append(stimulus)
        work_max = self.config.options.step_work_max
        while self._spent < work_max and self.is_working:
            try:
                if not self.has_work_left:
                    self._current = self._stimuli.popleft()
                    self.worked_on.append((self._current, len(effects)))
                    self._take(now, self._current)
                self._work_off(now, effects, work_max)
            except RemoteError as error:
                # What else the frame would have caused is left undone.
                self._work.clear()
                self._long.clear()
                self._deferred = []
                if isinstance(error, ContradictionError) and error.stream not in self._contradicted:
                    self._contradicted[error.stream] = None
                    effects.append(contract.Note("error", str(error)))
                effects.append(_cut(self._current, str(error)))
        heard = self.witness.puts(now) if self.is_ready or self._sync_wanted else []
        if self._sync_wanted or heard:
            self._sync_number += 1
            for who, ticket in self._sync_wanted:
                self._syncs.append((self._sync_number, who, ticket))
            self._sync_wanted.clear()
            effects += heard
            effects.append(contract.Sync(self._sync_number))
        return effects

    def next_deadline(self) -> float | None:
        """When `TimePassed` is wanted."""
        if self.is_working:
            return self._now
        deadlines = [part.next_deadline() for part in self._parts]
        return earliest(self.witness.next_deadline() if self.is_ready else None, *deadlines)

    @property
    def _parts(self) -> tuple[Links | Router | Origin | Edge | JoinPoints, ...]:
        home = () if self._home is None else self._home.parts
        return (self._links, self.router, *home)

    # -- stimuli --------------------------------------------------------------------------------

    def _is_heartbeat(self, now: float, stimulus: Stimulus, effects: Effects) -> bool:
        """Rule 3, while other work is under way; False if there is more to it."""
        if isinstance(stimulus, contract.FrameReceived):
            is_ping = isinstance(stimulus.frame, Ping)
            if not is_ping or self._links.is_greeted(stimulus.peer):
                self._links.heard(now, stimulus.peer)
            return is_ping
        if isinstance(stimulus, contract.ClientFrameReceived) and self._home is not None:
            is_asking = isinstance(stimulus.frame, Alive) and stimulus.session >= 0
            if is_asking and self._home.edge.has_client(stimulus.session):
                effects.append(contract.SendClient(stimulus.session, Alive()))
                return True
        if isinstance(stimulus, contract.TimePassed):
            due = self._links.next_deadline()
            if due is not None and due <= now:
                for wish in self._links.time_passed(now):
                    if isinstance(wish, contract.Send):
                        self._links.sent(now, wish.peer)
                    effects.append(wish)
            return True
        return False

    def _take(self, now: float, stimulus: Stimulus) -> None:
        if isinstance(stimulus, contract.FrameReceived):
            self._frame(now, stimulus)
        elif isinstance(stimulus, contract.ClientFrameReceived):
            self._client_frame(now, stimulus)
        elif isinstance(stimulus, contract.Synced):
            self._synced(now, stimulus.number)
        elif isinstance(stimulus, contract.TimePassed):
            self._time_passed(now)
        elif isinstance(stimulus, contract.Started):
            self._do(None, self._repairs)
            self._repairs = []
            if self._departed is not None and self.departure is None:
                self._do(None, [departure.void()])
            self._do(None, [contract.Put(TABLE, _LIFE_KEY, b"%d" % self.life), RequestSync(_LIFE)])
        elif isinstance(stimulus, contract.Depart):
            self._depart(now)
        elif isinstance(stimulus, contract.MoveJoinPoint):
            if self._home is not None and self.is_ready:
                points = self._home.points
                self._do(points, points.move(now, stimulus.pattern, stimulus.target))
        elif not self._client_event(now, stimulus):
            self._link_event(now, stimulus)

    def _frame(self, now: float, stimulus: contract.FrameReceived) -> None:
        peer, frame = stimulus.peer, stimulus.frame
        if isinstance(frame, Ping) and not self._links.is_greeted(peer):
            # It shows that somebody is there, but not who: the greeting is still waited for.
            return
        if not self._links.heard(now, peer) or isinstance(frame, Ping):
            return
        if isinstance(frame, Hello):
            self._links.greet(now, peer, frame)
            self._greeted(now, peer, frame)
        elif peer in self._waiting:
            if len(self._waiting[peer]) >= _WAITING_FRAMES_MAX:
                raise RemoteError(f"{peer!r} sends too much while this broker waits for its disk")
            self._waiting[peer].append(frame)
        elif self._links.is_greeted(peer):
            self._do(None, self.router.frame(now, peer, frame))
            self.witness.saw(frame)
        else:
            raise RemoteError(f"{peer!r} does not greet")

    def _greeted(self, now: float, peer: str, hello: Hello) -> None:
        """A neighbour has greeted; what it knows counts once the life has begun."""
        if not self.is_ready:
            self._hellos[peer] = hello
            return
        if self._home is not None:
            origin = self._home.origin
            self._do(origin, origin.told(now, peer, hello))
            if not origin.may_be_told_of:
                self._waiting[peer] = []
                return
        self._do(None, self.router.link_up(now, peer))

    def _serve_waiting(self, now: float) -> None:
        """Neighbours may hear of the own stream now; what they sent meanwhile comes first."""
        waiting, self._waiting = self._waiting, {}
        for peer in waiting:
            self._do(None, self.router.link_up(now, peer))
        frames = [
            contract.FrameReceived(peer, frame) for peer in waiting for frame in waiting[peer]
        ]
        self._stimuli.extendleft(reversed(frames))

    def _link_event(self, now: float, stimulus: Stimulus) -> None:
        if isinstance(stimulus, contract.LinkUp):
            self._do(None, self._links.up(now, stimulus.peer))
            if self.is_ready:
                self._greet(stimulus.peer)
        elif isinstance(stimulus, contract.LinkDown):
            self._hellos.pop(stimulus.peer, None)
            was_waiting = self._waiting.pop(stimulus.peer, None) is not None
            if self._links.down(stimulus.peer) and self.is_ready and not was_waiting:
                self._do(None, self.router.link_down(now, stimulus.peer))
        elif isinstance(stimulus, contract.LinkLoad):
            loads = stimulus.given, stimulus.gone, stimulus.waiting
            self.router.link_load(now, stimulus.peer, *loads)
        elif isinstance(stimulus, contract.BrokerLoad):
            if self.is_ready:
                self._do(None, self.router.broker_load(now, stimulus))
        elif isinstance(stimulus, contract.LinkFull):
            self._do(None, self.router.link_full(now, stimulus.peer, stimulus.full))
        else:
            assert self._home is not None
            self._home.log_event(now, stimulus)

    def _client_event(self, now: float, stimulus: Stimulus) -> bool:
        if self._home is not None and self.is_ready:
            return self._home.client_event(now, stimulus)
        if isinstance(stimulus, contract.ClientCame):
            why = "the broker is starting" if self.is_edge else "this broker takes no clients"
            self._do(None, [contract.CutClient(stimulus.session, why)])
        return isinstance(stimulus, contract.ClientCame | contract.ClientLeft | contract.ClientFull)

    def _client_frame(self, now: float, stimulus: contract.ClientFrameReceived) -> None:
        if self._home is not None and self.is_ready:
            self._home.client_frame(now, stimulus.session, stimulus.frame)

    def _synced(self, now: float, number: int) -> None:
        while self._syncs and self._syncs[0][0] <= number:
            _, who, ticket = self._syncs.popleft()
            if who is not None:
                self._do(who, who.synced(now, ticket))
            elif ticket == _LIFE:
                self._begin(now)
        if self._waiting and self._home is not None and self._home.origin.may_be_told_of:
            self._serve_waiting(now)

    def _greet(self, peer: str) -> None:
        self._do(None, self._links.hello(peer, self.life, self.witness.of(peer)))

    def _inquiry(self, origin: Origin) -> RollbackInquiry:
        """What the neighbours are asked before the origin goes on."""
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
        """The life is on disk: greet whoever is there, and let the parts start."""
        self.is_ready = True
        home = self._home
        if home is not None:
            self._do(None, self.router.advertise(now, (), (), home.origin.newest))
            home.started(now, self._inquiry(home.origin))
            if self.departure is not None:
                home.depart(now)
        for peer in self._links.all():
            self._greet(peer)
            hello = self._hellos.pop(peer, None)
            if hello is not None:
                self._greeted(now, peer, hello)

    # -- leaving the network --------------------------------------------------------------------

    @property
    def departure(self) -> departure.Departure | None:
        """Whether it departs."""
        found = self._departed
        is_meant = found is not None and found.revision >= self.config.revision and self.is_edge
        return found if is_meant else None

    @property
    def is_drained(self) -> bool:
        """Whether it departs, and the others need it no longer. From then on they never will."""
        departure, home = self.departure, self._home
        if departure is None or home is None or not self.is_ready:
            return False
        return home.is_drained(departure) and not self._syncs and not self.is_working

    @property
    def last_needed(self) -> int:
        """The last tick with an event of a broker that departs, but for batches under way."""
        assert self._home is not None
        assert self.departure is not None
        return self._home.last_needed(self.departure)

    def _depart(self, now: float) -> None:
        home = self._home
        if home is None or not self.is_ready or self.departure is not None:
            return
        self._departed = departure.Departure(self.config.revision, home.origin.newest)
        self._do(None, [self._departed.put(), RequestSync(_DEPARTURE)])
        home.depart(now)

    def _time_passed(self, now: float) -> None:
        for part in self._parts:
            deadline = part.next_deadline()
            if deadline is None or deadline > now:
                continue
            who = part if isinstance(part, Edge | Origin | JoinPoints) else None
            self._do(who, part.time_passed(now))

    # -- what the parts want --------------------------------------------------------------------

    def _do(self, who: Who, wishes: Iterable[PartRequest | Outcome]) -> None:
        if isinstance(wishes, list) and wishes and isinstance(wishes[-1], WorkDone):
            # The work is done, not only promised: it counts before others are begun.
            self._spent += wishes.pop().work
        if who is not None and isinstance(wishes, chain):
            # What is computed already, and then work that has not begun.
            computed: list[PartRequest | Outcome] = []
            for wish in wishes:
                if isinstance(wish, WorkDone):
                    self._long.append((who, wishes))
                    break
                computed.append(wish)
            self._do(who, computed)
        elif who is not None and not isinstance(wishes, list | tuple):
            self._long.append((who, iter(wishes)))
        elif wishes:
            self._work.append((who, iter(wishes)))

    def _go_on_long(self, effects: Effects, work_max: int) -> None:
        """Long work of a part, begun when all that was computed before is done: effects keep
        the order in which they were computed; what it asks of others waits until it is done."""
        who, wishes = self._long[0]
        for wish in wishes:
            if isinstance(wish, WorkDone):
                self._spent += wish.work
                if self._spent >= work_max:
                    return
            elif isinstance(wish, Effect) and not _is_for_a_part(wish):
                effects.append(wish)
            else:
                self._deferred.append(wish)
        self._long.popleft()
        deferred, self._deferred = self._deferred, []
        self._do(who, deferred)

    def _work_off(self, now: float, effects: Effects, work_max: int) -> None:
        """Do what the parts want, until enough has been done."""
        work = self._work
        while work or self._long:
            if not work:
                if self._spent >= work_max:
                    return
                self._go_on_long(effects, work_max)
                continue
            who, wishes = work[0]
            for wish in wishes:
                if isinstance(wish, WorkDone):
                    self._spent += wish.work
                    if self._spent >= work_max:
                        return
                elif isinstance(wish, contract.Send):
                    if isinstance(wish.frame, Hello) or self._links.is_greeted(wish.peer):
                        self._links.sent(now, wish.peer)
                        effects.append(wish)
                elif (
                    isinstance(wish, contract.SendClient | contract.CutClient) and wish.session < 0
                ):
                    assert self._home is not None
                    self._home.to_point(now, wish)
                elif isinstance(wish, Effect):
                    effects.append(wish)
                elif isinstance(wish, RequestSync):
                    self._sync_wanted.append((who, wish.ticket))
                else:
                    self._spent += _WISH_WORK
                    self._pass_on(now, wish, effects)
                    if self._spent >= work_max:
                        return
            work.popleft()

    def _pass_on(self, now: float, wish: PartRequest | Outcome, effects: Effects) -> None:
        router, home = self.router, self._home
        if isinstance(wish, CarryTo):
            self._do(None, router.carry(now, wish.target, wish.content))
            return
        if isinstance(wish, CarriedMessage):
            self._deliver(now, wish, effects)
            return
        assert home is not None
        if isinstance(wish, Arrival):
            self._do(home.edge, home.edge.arrival(now, wish))
        elif isinstance(wish, Emission):
            self._spent += _EMIT_WORK * len(wish.data)
            self._do(None, router.publish(now, wish))
        elif isinstance(wish, ChangeInterest):
            self._do(None, router.interest_changes(now, wish.added, wish.removed))
        elif isinstance(wish, InterestVersions):
            self._do(home.edge, home.edge.versions(now, wish.versions))
        elif isinstance(wish, ChangeAdvertisements):
            parts = wish.added, wish.removed, home.origin.newest
            self._do(None, router.advertise(now, *parts))
        elif isinstance(wish, Marked):
            self._do(None, router.marked(now, wish.mark, wish.vector))
        elif isinstance(wish, VectorAdvance):
            self._do(home.origin, home.origin.vector_advance(now, wish.vector))
        elif isinstance(wish, JoinPointRequest):
            home.from_point(now, wish)
        else:
            raise AssertionError(f"nobody takes {wish!r}")

    def _deliver(self, now: float, delivery: CarriedMessage, effects: Effects) -> None:
        """A carried message; a bad one is its sender's fault, not the neighbour's."""
        try:
            if self._home is None:
                raise RemoteError("this broker is no edge")
            self._home.carried(now, delivery)
        except RemoteError as error:
            effects.append(contract.Note("warning", f"from {delivery.source!r}: {error}"))


def _stored_life(recovered: Recovered) -> int:
    """The life before this one, as far as it can be read; and no key that nobody knows."""

    def read(key: str, value: bytes) -> int:
        if key == departure.KEY:
            return 0
        if key != _LIFE_KEY:
            raise ValueError(f"the table {TABLE!r} has no such key")
        return number_in(value, _LIFE_MAX)

    good, bad = decoded(recovered, TABLE, read)
    for each in bad:
        if each.key != departure.KEY:
            set_aside(recovered, each)
    return good.get(_LIFE_KEY, 0)


def _is_for_a_part(effect: Effect) -> bool:
    """Whether a part of the broker takes it first: the links, or a join point."""
    if isinstance(effect, contract.SendClient | contract.CutClient):
        return effect.session < 0
    return isinstance(effect, contract.Send)


def _cut(stimulus: Stimulus, reason: str) -> Effect:
    """What a broken protocol costs."""
    if isinstance(stimulus, contract.FrameReceived):
        return contract.CutLink(stimulus.peer, reason)
    assert isinstance(stimulus, contract.ClientFrameReceived), reason
    return contract.CutClient(stimulus.session, reason)
