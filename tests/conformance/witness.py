"""A witness beside every router of a network: what it was told, what it claimed, and what is true.

`Witness` stands between a broker and its router, passes everything on unchanged, and notes it in
the `Ledger` that all witnesses of a network share. The ledger therefore knows what every origin
published and what every edge wants, and holds each claim of a router against it. What it finds are
*breaches*, by the number of the rule in `core.routing.contract`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from anabranch.core.contract import CutLink, Note, Put, Send
from anabranch.core.options import Options
from anabranch.core.ranges import RangeSet
from anabranch.core.routing.contract import (
    Arrival,
    CarriedMessage,
    Emission,
    InterestVersions,
    Outcome,
    Router,
    VectorAdvance,
    WorkDone,
    interest_at_once,
)
from anabranch.core.routing.registry import RouterMaker
from anabranch.model.encoding import decode_envelope
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.frames import AnyCarried, Carry, LinkFrame
from anabranch.model.limits import Limits
from anabranch.model.network import Network
from anabranch.model.version import NOTHING, Version
from anabranch.wire.codec import encode_link

_BREACHES_MAX = 20
#: What a router may ask of its broker.
_ALLOWED = (
    Send,
    CutLink,
    Put,
    Note,
    Arrival,
    CarriedMessage,
    WorkDone,
    VectorAdvance,
    InterestVersions,
)


class Breach(NamedTuple):
    """One rule broken once."""

    rule: int
    broker: str
    text: str


class Stream:
    """What one origin published, over all its lives. A tick that left its origin never changes."""

    def __init__(self) -> None:
        self.bodies: dict[int, bytes] = {}
        self.silent = RangeSet()
        self.withheld = RangeSet()
        self.head = 0

    def note(
        self, data: Sequence[Datum], silent: Iterable[tuple[int, int]], withheld: Iterable[Hole]
    ) -> None:
        for datum in data:
            self.bodies[datum.tick] = datum.body
            self.head = max(self.head, datum.tick)
        for first, last in silent:
            self.silent.add(first, last)
            self.head = max(self.head, last)
        for hole in withheld:
            self.withheld.add(hole.first, hole.last)


class Ledger:
    """Everything that is true, as far as routers can be wrong about it."""

    def __init__(self) -> None:
        self.breaches: list[Breach] = []
        self.streams: dict[str, Stream] = {}
        #: Edge → subscription → what it wants, and since which version; of the present life.
        self.wanted: dict[str, dict[str, tuple[Filter, Version]]] = {}
        #: Everything that was ever given to a router to carry.
        self.carried: set[bytes] = set()
        #: (edge, stream) → the version of what arrived last.
        self.latest: dict[tuple[str, str], Version] = {}
        #: (edge, stream) → (tick, version) of everything that arrived, of the present life.
        self.said: dict[tuple[str, str], list[tuple[int, Version]]] = {}
        self.silences = 0
        self._matches: dict[tuple[str, bytes], bool] = {}

    def breach(self, rule: int, broker: str, text: str) -> None:
        if len(self.breaches) < _BREACHES_MAX:
            self.breaches.append(Breach(rule, broker, text))

    def of(self, rule: int) -> list[Breach]:
        return [breach for breach in self.breaches if breach.rule == rule]

    def stream(self, name: str) -> Stream:
        return self.streams.setdefault(name, Stream())

    def begin(self, broker: str) -> None:
        """A broker's life begins: its edge wants nothing yet, and has heard nothing."""
        self.wanted[broker] = {}
        for key in [key for key in self.said if key[0] == broker]:
            del self.said[key], self.latest[key]

    # -- rule 1 and 2 -----------------------------------------------------------------------------

    def arrived(self, edge: str, arrival: Arrival) -> None:
        stream = self.stream(arrival.stream)
        for datum in arrival.data:
            if stream.bodies.get(datum.tick) != datum.body:
                self.breach(1, edge, f"{arrival.stream} has another event at tick {datum.tick}")
        for hole in arrival.withheld:
            if stream.withheld.missing(hole.first, hole.last):
                self.breach(1, edge, f"{arrival.stream} never withheld {hole}")
        for first, last in arrival.silent:
            self._silence(edge, arrival, first, last)
        if arrival.head > stream.head:
            self.breach(1, edge, f"{arrival.stream} has no tick {arrival.head} yet")
        said = self.said.setdefault((edge, arrival.stream), [])
        said += [(datum.tick, arrival.version) for datum in arrival.data]
        said += [(tick, arrival.version) for ends in arrival.silent for tick in ends]
        self.latest[edge, arrival.stream] = arrival.version

    def _silence(self, edge: str, arrival: Arrival, first: int, last: int) -> None:
        """Nothing in there matches a subscription that the version contains."""
        stream = self.stream(arrival.stream)
        if last > stream.head:
            self.breach(1, edge, f"{arrival.stream} has no tick {last} yet, to be silent")
        contained = [
            (name, filter)
            for name, (filter, version) in self.wanted[edge].items()
            if version <= arrival.version
        ]
        for tick in range(first, min(last, stream.head) + 1):
            body = stream.bodies.get(tick)
            if body is None:
                continue
            self.silences += 1
            for name, filter in contained:
                if self._is_match(filter, body):
                    text = f"tick {tick} of {arrival.stream} is said to be silent in version"
                    self.breach(1, edge, f"{text} {arrival.version}, but {name} wants it")

    def _is_match(self, filter: Filter, body: bytes) -> bool:
        key = str(filter), body
        known = self._matches.get(key)
        if known is None:
            known = self._matches[key] = filter.matches(decode_envelope(body).attributes())
        return known

    def versions_in_order(self, edge: str, stream: str) -> bool:
        """Rule 2, as far as this life of the edge has seen."""
        highest = NOTHING
        best: dict[int, Version] = {}
        for tick, version in self.said.get((edge, stream), []):
            best[tick] = max(version, best.get(tick, NOTHING))
        for _, version in sorted(best.items()):
            if version < highest:
                return False
            highest = version
        return True

    # -- rules 3 and 5 ----------------------------------------------------------------------------

    def unreached(self) -> list[str]:
        """Subscriptions whose version has not come with the latest knowledge of some stream."""
        return [
            f"{name} at {edge} has version {version}; {stream} is at {self.latest[edge, stream]}"
            for edge, stream in self.latest
            for name, (_, version) in self.wanted[edge].items()
            if self.latest[edge, stream] < version
        ]

    def carry(self, source: str, target: str, content: AnyCarried) -> None:
        self.carried.add(encode_link(Carry(source, target, 0, content)))

    def delivered(self, broker: str, delivery: CarriedMessage) -> None:
        if encode_link(Carry(delivery.source, broker, 0, delivery.content)) not in self.carried:
            text = f"{delivery.source} never sent this here: {delivery.content}"
            self.breach(5, broker, text)


class Witness(Router):
    """A router with a witness."""

    def __init__(self, inner: Router, name: str, ledger: Ledger) -> None:
        self.inner = inner
        self._name = name
        self._ledger = ledger
        ledger.begin(name)

    def _seen(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        outcomes = list(outcomes)
        for outcome in outcomes:
            if not isinstance(outcome, _ALLOWED):
                self._ledger.breach(6, self._name, f"{type(outcome).__name__} is not for routers")
            elif isinstance(outcome, Arrival):
                self._ledger.arrived(self._name, outcome)
            elif isinstance(outcome, CarriedMessage):
                self._ledger.delivered(self._name, outcome)
        return outcomes

    def link_up(self, now: float, peer: str) -> list[Outcome]:
        return self._seen(self.inner.link_up(now, peer))

    def link_down(self, now: float, peer: str) -> list[Outcome]:
        return self._seen(self.inner.link_down(now, peer))

    def link_full(self, now: float, peer: str, full: bool) -> list[Outcome]:
        return self._seen(self.inner.link_full(now, peer, full))

    def link_load(self, now: float, peer: str, given: int, gone: int, waiting: int) -> None:
        self.inner.link_load(now, peer, given, gone, waiting)

    def advertise(
        self, now: float, added: Sequence[str], removed: Sequence[str], newest: int
    ) -> list[Outcome]:
        return self._seen(self.inner.advertise(now, added, removed, newest))

    def frame(self, now: float, peer: str, frame: LinkFrame) -> list[Outcome]:
        return self._seen(self.inner.frame(now, peer, frame))

    def interest_changes(
        self, now: float, added: Mapping[str, Filter], removed: Sequence[str]
    ) -> Iterator[Outcome]:
        versions, outcomes = interest_at_once(self.inner, now, added, removed)
        wanted = self._ledger.wanted[self._name]
        for name in removed:
            wanted.pop(name, None)
        for name, filter in added.items():
            if name in versions:
                wanted[name] = (filter, versions[name])
        if list(versions) != list(added):
            self._ledger.breach(3, self._name, f"versions for {list(versions)}, not {list(added)}")
        yield InterestVersions(versions)
        yield from self._seen(outcomes)

    def publish(self, now: float, emission: Emission) -> list[Outcome]:
        stream = self._ledger.stream(self._name)
        stream.note(emission.data, emission.silent, emission.withheld)
        stream.head = max(stream.head, emission.head)
        return self._seen(self.inner.publish(now, emission))

    def marked(self, now: float, mark: int, vector: Mapping[str, Version]) -> list[Outcome]:
        return self._seen(self.inner.marked(now, mark, vector))

    def carry(self, now: float, target: str, content: AnyCarried) -> list[Outcome]:
        self._ledger.carry(self._name, target, content)
        return self._seen(self.inner.carry(now, target, content))

    def time_passed(self, now: float) -> list[Outcome]:
        return self._seen(self.inner.time_passed(now))

    def next_deadline(self) -> float | None:
        return self.inner.next_deadline()


def witnessed(make: RouterMaker, ledger: Ledger) -> RouterMaker:
    """Routers as `make` makes them, each with a witness."""

    def maker(name: str, network: Network, options: Options, limits: Limits, life: int) -> Router:
        return Witness(make(name, network, options, limits, life), name, ledger)

    return maker
