"""Real brokers on a bench, and liars among them.

Three honest brokers, two edges `a` and `b` around the relay `h1`, talk through the real codec over
links that lose nothing, each with a disk that syncs at once. Whoever else is in the network (`h2`
and `c`) is played by the test: it says what it likes, and what it is told is kept. A frame that its
receiver cannot decode costs the link, as a process would have it.
"""

from collections import deque
from typing import TypeVar

from anabranch.core import contract
from anabranch.core.broker import Broker, BrokerConfig
from anabranch.core.options import Options
from anabranch.core.routing.registry import RoutingName
from anabranch.model.client_frames import (
    AnyClientFrame,
    Connect,
    Deliver,
    Matches,
    Publish,
    Subscribe,
)
from anabranch.model.encoding import encode_event
from anabranch.model.errors import RemoteError
from anabranch.model.event import Event, EventId
from anabranch.model.frames import PROTOCOL_VERSION, AnyCarried, Carry, Hello, LinkFrame
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.wire.codec import decode_client, decode_link, encode_client, encode_link
from tests.edge_parts import NETWORK

HONEST = ("a", "b", "h1")
BILLION = 1_000_000_000
#: The greatest tick that a frame can name.
LAST = 1 << 62
Frame = TypeVar("Frame", bound=AnyClientFrame)


def body(publisher: str, sequence: int, price: int = 1, incarnation: int = 1) -> bytes:
    return encode_event(Event({"price": price}, id=EventId(publisher, incarnation, sequence)))


def carry(content: AnyCarried, source: str = "c", target: str = "b") -> Carry:
    return Carry(source, target, 9, content)


class Bench:
    """Brokers, links, disks and clients. See the top of this module."""

    def __init__(
        self,
        options: Options = Options(),  # noqa: B008
        limits: Limits = DEFAULT_LIMITS,
        routing: RoutingName = "tree",
    ) -> None:
        self.now = 1_000.0
        self._limits = limits
        self._queue: deque[tuple[str, contract.Stimulus]] = deque()
        self.logs: dict[str, list[bytes]] = {name: [] for name in HONEST}
        #: (broker, who was cut off by it) → reasons.
        self.cuts: dict[tuple[str, str], list[str]] = {}
        self.cut_clients: dict[tuple[str, int], str] = {}
        self.notes: list[str] = []
        #: Liar → what it was told, and by whom.
        self.told: dict[str, list[tuple[str, LinkFrame]]] = {"c": [], "h2": []}
        self.frames: dict[tuple[str, int], list[AnyClientFrame]] = {}
        self._links: set[frozenset[str]] = set()
        self._sessions = 0
        self._sequence = 0
        self.brokers: dict[str, Broker] = {}
        for name in HONEST:
            config = BrokerConfig(name, NETWORK, routing, options, limits)
            self.brokers[name] = Broker(config, contract.Recovered(), self.now)
            self.give(name, contract.Started())
        for edge in ("a", "b"):
            self.connect(edge, "h1")
        self.run(1.0)

    # -- time and effects -----------------------------------------------------------------------

    def give(self, name: str, stimulus: contract.Stimulus) -> None:
        """Something happens to a broker, and all that follows from it at once."""
        self._queue.append((name, stimulus))
        self._work_off()

    def _work_off(self) -> None:
        while self._queue:
            who, what = self._queue.popleft()
            for effect in self.brokers[who].handle(self.now, what):
                self._perform(who, effect)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now + seconds
        while True:
            deadlines = {n: b.next_deadline() for n, b in self.brokers.items()}
            due = {n: at for n, at in deadlines.items() if at is not None and at <= end}
            if not due:
                break
            name = min(due, key=lambda n: due[n])
            self.now = max(self.now + 1e-6, due[name])
            self.give(name, contract.TimePassed())
        self.now = max(self.now, end)

    def _perform(self, who: str, effect: contract.Effect) -> None:
        if isinstance(effect, contract.Send):
            self._send(who, effect.peer, effect.frame)
        elif isinstance(effect, contract.SendClient):
            frame = decode_client(encode_client(effect.frame))
            self.frames.setdefault((who, effect.session), []).append(frame)
        elif isinstance(effect, contract.Sync):
            self._queue.append((who, contract.Synced(effect.number)))
        elif isinstance(effect, contract.Append):
            self.logs[who].append(effect.record)
            assert effect.tick == len(self.logs[who])
        elif isinstance(effect, contract.Read):
            records = tuple(self.logs[who][effect.first - 1 : effect.last])
            self._queue.append((who, contract.LogRead(effect.request, effect.first, records)))
        elif isinstance(effect, contract.CutLink):
            self._cut(who, effect.peer, effect.reason)
        elif isinstance(effect, contract.CutClient):
            self.cut_clients[who, effect.session] = effect.reason
            self._queue.append((who, contract.ClientDisconnected(effect.session)))
        elif isinstance(effect, contract.Note):
            self.notes.append(effect.text)

    # -- links ----------------------------------------------------------------------------------

    def connect(self, one: str, other: str) -> None:
        self._links.add(frozenset((one, other)))
        for who, peer in ((one, other), (other, one)):
            if who in self.brokers:
                self._queue.append((who, contract.LinkUp(peer)))
        self._work_off()

    def _send(self, who: str, peer: str, frame: LinkFrame) -> None:
        if frozenset((who, peer)) not in self._links:
            return
        try:
            decoded = decode_link(encode_link(frame, self._limits), self._limits)
        except RemoteError as error:
            self._cut(peer, who, str(error))
            return
        if peer in self.brokers:
            self._queue.append((peer, contract.FrameReceived(who, decoded)))
        else:
            self.told[peer].append((who, decoded))

    def _cut(self, who: str, peer: str, reason: str) -> None:
        self.cuts.setdefault((who, peer), []).append(reason)
        if frozenset((who, peer)) in self._links:
            self._links.remove(frozenset((who, peer)))
            for end, other in ((who, peer), (peer, who)):
                if end in self.brokers:
                    self._queue.append((end, contract.LinkDown(other)))

    def liar(self, name: str, broker: str = "h1", life: int = 7) -> None:
        """One that the test plays connects and greets."""
        self.connect(name, broker)
        self.lie(name, Hello(PROTOCOL_VERSION, name, life), broker)

    def lie(self, name: str, frame: LinkFrame, broker: str = "h1") -> None:
        """It says something, if it still has a link."""
        if frozenset((name, broker)) in self._links:
            self.give(broker, contract.FrameReceived(name, decode_link(encode_link(frame))))

    def is_cut(self, name: str, broker: str = "h1") -> bool:
        return frozenset((name, broker)) not in self._links

    def honest_cuts(self) -> list[tuple[str, str]]:
        return [(who, peer) for who, peer in self.cuts if who in HONEST and peer in HONEST]

    # -- clients --------------------------------------------------------------------------------

    def client(self, edge: str, name: str) -> int:
        self._sessions += 1
        self.give(edge, contract.ClientConnected(self._sessions))
        self.says(edge, self._sessions, Connect(PROTOCOL_VERSION, name))
        return self._sessions

    def says(self, edge: str, session: int, frame: AnyClientFrame) -> None:
        self.give(edge, contract.ClientFrameReceived(session, frame))

    def heard(self, edge: str, session: int, kind: type[Frame]) -> list[Frame]:
        return [f for f in self.frames.get((edge, session), []) if isinstance(f, kind)]

    def matches(self, edge: str, session: int) -> list[Matches]:
        """What the subscriptions of a session got."""
        return [each for frame in self.heard(edge, session, Deliver) for each in frame.matches]

    def served(self) -> bool:
        """Whether new clients of `a` get what new clients of `b` publish, with nobody cut off."""
        self._sequence += 1
        name = f"well-behaved-{self._sequence}"
        session = self.client("a", name)
        self.says("a", session, Subscribe(1, "s", "price > 0", "reliable"))
        self.run(3.0)
        publisher = self.client("b", f"{name}-feed")
        for sequence in (1, 2, 3):
            self.says("b", publisher, Publish([body(f"{name}-feed", sequence)]))
        self.run(3.0)
        delivered = [datum for each in self.matches("a", session) for datum in each.data]
        self.give("a", contract.ClientDisconnected(session))
        self.give("b", contract.ClientDisconnected(publisher))
        return len(delivered) == 3 and not self.honest_cuts()
