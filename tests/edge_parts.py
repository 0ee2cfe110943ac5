"""An edge on a bench: what it asks for is done or kept, and a disk that forgets what is not synced.

The rig gives versions to interest as a router would, keeps the catalog as a driver would, and
collects frames to clients and messages to brokers. Nothing is synced before `sync`, unless the rig
syncs by itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from anabranch.core.contract import CutClient, Note, Put, Recovered, SendClient
from anabranch.core.edge.edge import Edge
from anabranch.core.options import Options
from anabranch.core.part_requests import CarryTo, ChangeInterest, PartRequest, RequestSync
from anabranch.core.routing.contract import Arrival, WorkDone
from anabranch.model.client_frames import (
    Ack,
    AnyClientFrame,
    Connect,
    Deliver,
    Matches,
    Subscribe,
    Unsubscribe,
)
from anabranch.model.encoding import encode_event
from anabranch.model.event import DEFAULT_CONTROL, Control, Event, EventId
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.frames import PROTOCOL_VERSION, AnyCarried, Done, Held, Hold
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.network import Network
from anabranch.model.version import Version

Frame = TypeVar("Frame", bound=AnyClientFrame)
Content = TypeVar("Content", bound=AnyCarried)

#: Three edges around one site; `a` is the edge on the bench.
NETWORK = Network(
    {"hub": ["h1", "h2"], "a": ["a"], "b": ["b"], "c": ["c"]},
    [("hub", "a"), ("hub", "b"), ("hub", "c")],
)
ALONE = Network({"a": ["a"]})


def body(price: int = 1, control: Control = DEFAULT_CONTROL, sequence: int = 1) -> bytes:
    return encode_event(Event({"price": price}, id=EventId("feed", 1, sequence), control=control))


def datum(tick: int, price: int = 1, control: Control = DEFAULT_CONTROL) -> Datum:
    return Datum(tick, tick * 1_000_000, body(price, control, tick))


class Rig:
    """One edge, its disk, its clients and the brokers around it."""

    def __init__(
        self,
        *,
        network: Network = NETWORK,
        options: Options = Options(),  # noqa: B008
        limits: Limits = DEFAULT_LIMITS,
        catalog: Mapping[str, dict[str, bytes]] | None = None,
        life: int = 1,
        now: float = 100.0,
        syncs: bool = True,
        keepers: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.now = now
        self.keepers = keepers or {}
        self.syncs = syncs
        self.network = network
        self.options = options
        self.limits = limits
        self.catalog: dict[str, dict[str, bytes]] = {t: dict(r) for t, r in (catalog or {}).items()}
        self.unsynced: list[Put] = []
        self.tickets: list[int] = []
        #: Session → frames it was sent and that were not looked at yet.
        self.frames: dict[int, list[AnyClientFrame]] = {}
        self.carried: list[CarryTo] = []
        self.cuts: list[CutClient] = []
        self.notes: list[Note] = []
        #: Every effect in order.
        self.history: list[PartRequest] = []
        self.interest: dict[str, Version] = {}
        self.version = Version(life, 0)
        #: What the router says of new interest; None: a version of its own each time.
        self.gives_versions = True
        self._session = 0
        self._request = 0
        found = {table: dict(rows) for table, rows in self.catalog.items()}
        # There is no log on this bench: it goes as far as any cursor may say.
        recovered = Recovered(found, first_tick=1 << 62)
        self.edge = Edge("a", network, options, limits, recovered, now, keepers=self.keepers)
        self.do(self.edge.started(now))

    # -- effects --------------------------------------------------------------------------------

    def do(self, asks: Iterable[PartRequest]) -> None:
        asks = list(asks)
        self.history += asks
        for ask in asks:
            if isinstance(ask, Put):
                self.unsynced.append(ask)
            elif isinstance(ask, RequestSync):
                self.tickets.append(ask.ticket)
            elif isinstance(ask, SendClient):
                self.frames.setdefault(ask.session, []).append(ask.frame)
            elif isinstance(ask, CarryTo):
                self.carried.append(ask)
            elif isinstance(ask, CutClient):
                self.cuts.append(ask)
            elif isinstance(ask, Note):
                self.notes.append(ask)
            elif isinstance(ask, ChangeInterest):
                self._change_interest(ask)
            else:
                assert isinstance(ask, WorkDone), ask
        if self.syncs and self.tickets:
            self.sync()

    def _change_interest(self, change: ChangeInterest) -> None:
        for key in change.removed:
            del self.interest[key]
        if change.added and self.gives_versions:
            self.version = Version(self.version.life, self.version.counter + 1)
            versions = dict.fromkeys(change.added, self.version)
            self.interest |= versions
            self.do(self.edge.versions(self.now, versions))

    def sync(self) -> None:
        """Everything put so far is on disk."""
        self.write(len(self.unsynced))
        tickets, self.tickets = self.tickets, []
        for ticket in tickets:
            self.do(self.edge.synced(self.now, ticket))

    def write(self, count: int) -> None:
        """Some of what was put reaches the disk, without anybody being told."""
        for put in self.unsynced[:count]:
            rows = self.catalog.setdefault(put.table, {})
            if put.value is None:
                rows.pop(put.key, None)
            else:
                rows[put.key] = put.value
        del self.unsynced[:count]

    def crash(self, *, syncs: bool = True, options: Options | None = None) -> "Rig":
        """The edge of the next life: it finds what is on disk."""
        return Rig(
            network=self.network,
            options=options or self.options,
            limits=self.limits,
            catalog=self.catalog,
            life=self.version.life + 1,
            now=self.now + 1.0,
            syncs=syncs,
            keepers=self.keepers,
        )

    # -- clients --------------------------------------------------------------------------------

    def connect(self, client: str = "client") -> int:
        self._session += 1
        self.do(self.edge.client_came(self.now, self._session))
        self.client(self._session, Connect(PROTOCOL_VERSION, client))
        return self._session

    def client(self, session: int, frame: AnyClientFrame) -> None:
        self.do(self.edge.client_frame(self.now, session, frame))

    def subscribe(self, session: int, name: str = "s", filter: str = "TRUE", **rest: Any) -> int:
        """Subscribe, reliably unless said otherwise; returns the request."""
        self._request += 1
        parts = {"quality": "reliable", **rest}
        self.client(session, Subscribe(self._request, name, filter, **parts))
        return self._request

    def unsubscribe(self, session: int, name: str = "s") -> int:
        self._request += 1
        self.client(session, Unsubscribe(self._request, name))
        return self._request

    def ack(self, session: int, ticks: dict[str, int], name: str = "s") -> None:
        self.client(session, Ack({stream: {name: tick} for stream, tick in ticks.items()}))

    def leave(self, session: int) -> None:
        self.do(self.edge.client_left(self.now, session))

    def taken(self, session: int, kind: type[Frame]) -> list[Frame]:
        """The frames of one kind that a client got since it last looked; they are gone then."""
        frames = self.frames.get(session, [])
        self.frames[session] = [frame for frame in frames if not isinstance(frame, kind)]
        return [frame for frame in frames if isinstance(frame, kind)]

    def delivered(self, session: int, stream: str = "b") -> list[int]:
        """The ticks a client got since it last looked."""
        return [each.tick for matches in self.matches(session, stream) for each in matches.data]

    def matches(self, session: int, stream: str = "b") -> list[Matches]:
        """What its subscriptions got since it last looked."""
        frames = self.taken(session, Deliver)
        assert all(frame.stream == stream for frame in frames)
        return [matches for frame in frames for matches in frame.matches]

    # -- the network ----------------------------------------------------------------------------

    def arrive(
        self,
        *data: int | Datum,
        stream: str = "b",
        silent: Sequence[tuple[int, int]] = (),
        holes: Sequence[Hole] = (),
        head: int = 0,
        version: Version | None = None,
    ) -> None:
        """Knowledge comes, good for all of the present interest unless said otherwise."""
        made = [each if isinstance(each, Datum) else datum(each) for each in data]
        current = self.version if version is None else version
        self.do(self.edge.arrival(self.now, Arrival(stream, current, made, silent, holes, head)))

    def say(self, source: str, content: AnyCarried) -> None:
        """Another broker says something."""
        self.do(self.edge.carried(self.now, source, content))

    def asked(self, kind: type[Content], target: str | None = None) -> list[Content]:
        """What brokers were sent of one kind since somebody last looked; it is gone then."""
        found = [
            ask
            for ask in self.carried
            if isinstance(ask.content, kind) and target in (None, ask.target)
        ]
        self.carried = [ask for ask in self.carried if ask not in found]
        return [ask.content for ask in found if isinstance(ask.content, kind)]

    def done(self, stream: str = "b") -> int | None:
        """What the origin was told last, after all that is due."""
        self.wait(4 * self.options.done_every_s)
        told = self.asked(Done, stream)
        return told[-1].tick if told else None

    def wait(self, seconds: float) -> None:
        """Time passes, deadline by deadline."""
        end = self.now + seconds
        while (at := self.edge.next_deadline()) is not None and at <= end:
            self.now = max(self.now, at)
            self.do(self.edge.time_passed(self.now))
        self.now = end


# -- subscriptions that roam

RESUME: dict[str, Any] = {"quality": "durable", "start": "resume"}


def owner(rig: Rig, number: int = 3) -> int:
    """A session with a durable subscription that stands here, at tick 5 of stream b."""
    session = rig.connect()
    rig.subscribe(session, "s", quality="durable", number=number)
    rig.arrive(*range(1, 6))
    rig.ack(session, {"b": 5})
    rig.wait(1.0)
    rig.frames[session] = []
    rig.carried.clear()
    return session


def grant(rig: Rig, *streams: str) -> None:
    """Origins hold what they were asked to, however often."""
    for stream in streams:
        for hold in dict.fromkeys((each.request, each.tick) for each in rig.asked(Hold, stream)):
            request, tick = hold
            rig.say(stream, Held(request, max(tick, 100)))
