"""Flooding: every tick goes to every edge, and edges do all the filtering.

This is the simplest router and the baseline for measurements. No interest travels, so versions
carry no information: every subscription is contained from the start (`NOTHING` is the version of
all knowledge and of all interest), and no broker turns ticks into silence.

Knowledge follows the tree of sites away from its origin or, with a target, only towards that edge.
Sites without an edge behind them get nothing. State: the links only.
"""

from collections.abc import Iterator, Mapping, Sequence

from anabranch.core.contract import Note, Send
from anabranch.core.options import Options
from anabranch.core.routing.contract import (
    Arrival,
    Emission,
    InterestVersions,
    Outcome,
    Router,
    VectorAdvance,
    knowledge_of,
)
from anabranch.core.routing.overlay import Overlay, check_knowledge
from anabranch.model.errors import RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frames import AnyCarried, Carry, Knowledge, LinkFrame
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.network import Network
from anabranch.model.version import NOTHING, Version

_FIRST = Version(1, 1)


class FloodRouter(Router):
    """The flooding router. See the top of this module."""

    def __init__(
        self,
        name: str,
        network: Network,
        options: Options,
        limits: Limits = DEFAULT_LIMITS,
        life: int = 0,
    ) -> None:
        del options, limits, life  # flooding has no options, no state and no versions
        self._name = name
        self._network = network
        self._overlay = Overlay(name, network)
        #: (site, stream) → adjacent sites to send to.
        self._downstream: dict[tuple[str, str], tuple[str, ...]] = {}

    # -- links ------------------------------------------------------------------------------------

    def link_up(self, now: float, peer: str) -> list[Outcome]:
        del now
        self._overlay.link_up(peer)
        return []

    def link_down(self, now: float, peer: str) -> list[Outcome]:
        del now
        self._overlay.link_down(peer)
        return []

    def link_full(self, now: float, peer: str, full: bool) -> list[Outcome]:
        del now
        self._overlay.link_full(peer, full)
        return []

    def link_load(
        self, now: float, peer: str, offered_bytes: int, sent_bytes: int, queued_bytes: int
    ) -> None:
        """There is only one path, so load does not matter."""
        del now, peer, offered_bytes, sent_bytes, queued_bytes

    def frame(self, now: float, peer: str, frame: LinkFrame) -> list[Outcome]:
        del now
        if isinstance(frame, Carry):
            return self._overlay.carried(peer, frame)
        if not isinstance(frame, Knowledge):
            raise RemoteError(
                f"{peer!r} sends {type(frame).__name__}, which flooding does not support"
            )
        check_knowledge(self._overlay, peer, frame)
        return self._forward(frame)

    # -- the edge and the origin ------------------------------------------------------------------

    def interest_changes(
        self, now: float, added: Mapping[str, Filter], removed: Sequence[str]
    ) -> Iterator[Outcome]:
        del now, removed
        yield InterestVersions(dict.fromkeys(added, NOTHING))

    def advertise(
        self, now: float, added: Sequence[str], removed: Sequence[str], newest: int
    ) -> list[Outcome]:
        del now, added, removed, newest
        return []

    def publish(self, now: float, emission: Emission) -> list[Outcome]:
        del now
        return self._forward(knowledge_of(self._name, emission))

    def marked(self, now: float, mark: int, vector: Mapping[str, Version]) -> list[Outcome]:
        """Flooding ignores vectors, but a stream without ticks would stay unknown to the edges:
        the first mark starts it."""
        del now, mark
        return [] if vector else [VectorAdvance({self._name: _FIRST})]

    # -- messages and timers ----------------------------------------------------------------------

    def carry(self, now: float, target: str, content: AnyCarried) -> list[Outcome]:
        del now
        return self._overlay.carry(target, content)

    def time_passed(self, now: float) -> list[Outcome]:
        del now
        return []

    def next_deadline(self) -> float | None:
        return None

    # -- forwarding -------------------------------------------------------------------------------

    def _forward(self, frame: Knowledge) -> list[Outcome]:
        """Forward a frame from its site, and from this broker's own sites downstream."""
        out: list[Outcome] = []
        pending = [frame]
        while pending:
            at = pending.pop(0)
            if at.site == self._name and at.target in ("", self._name):
                parts = at.data, at.silent, at.withheld, at.head, at.time_ns
                out.append(Arrival(at.stream, NOTHING, *parts))
            for site in self._directions(at):
                parts = at.data, at.silent, at.withheld, at.head, at.time_ns
                onward = Knowledge(at.stream, site, at.target, at.mark, *parts)
                broker = self._overlay.next_broker(site, at.stream)
                if broker == self._name:
                    pending.append(onward)
                elif broker is not None:
                    out.append(Send(broker, onward))
                else:
                    out.append(Note("info", f"no broker of site {site!r} accepts ticks"))
        return out

    def _directions(self, frame: Knowledge) -> tuple[str, ...]:
        network, site, stream, target = self._network, frame.site, frame.stream, frame.target
        if target:
            return () if target == site else (network.next_site(site, target),)
        known = self._downstream.get((site, stream))
        if known is None:
            back = "" if site == stream else network.next_site(site, stream)
            adjacent = network.neighbours(site)
            known = tuple(s for s in adjacent if s != back and network.edges_behind(site, s))
            self._downstream[site, stream] = known
        return known
