"""Sources: whom an edge asks for ticks of a stream, its origin or a keeper of a copy.

The origin knows everything about its stream, so it is asked first. If it does not answer, requests
go to keepers and to the origin in turn: an origin that is up is never left out for long, and while
it is down readers get what keepers know to be confirmed (`core.replication.copy_reads`).

Rules

1. *Turns.* The first request goes to the origin and every second one to a keeper. Keepers come
   first if the origin is *away*, or if `prefer` is "near" and a keeper is nearer than the origin.
2. *Away.* The origin is away if nothing of its stream has arrived for several announcements of its
   head. Then keepers withhold transient events, which no copy has.
3. *Which keeper.* The one that answered last, then the others; at first the nearest.
4. *How far the stream goes.* An edge that missed the last ticks of an origin, and the announcement
   of its head, would not know that it lacks anything. So while an origin is away, the edge asks its
   keepers in turn for the newest tick that they know, less and less often. Such a tick is a claim
   like any head: it triggers requests and ends nothing.
5. A keeper's answer says nothing about later ticks. It places no reorder buffer, makes no
   subscription live and closes no request that it does not fulfil.

State: safe to lose.
"""

from collections.abc import Mapping

from anabranch.core.options import Options
from anabranch.model.network import Network

#: Announcements of a head that are missed before an origin counts as away.
_HEADS_MISSED = 3
#: The pause between questions to keepers doubles at most this often.
_DOUBLINGS_MAX = 2


class Sources:
    """The sources of one stream. See the rules at the top of this module."""

    __slots__ = (
        "_ask_at",
        "_asked",
        "_away_after_s",
        "_best",
        "_heard_at",
        "_is_near",
        "keepers",
        "origin",
        "ticks_from_keepers",
    )

    def __init__(
        self,
        origin: str,
        keepers: tuple[str, ...] = (),
        *,
        away_after_s: float = float("inf"),
        is_near: bool = False,
        now: float = 0.0,
    ) -> None:
        self.origin = origin
        #: Nearest to this edge first.
        self.keepers = keepers
        self._away_after_s = away_after_s
        self._is_near = is_near
        #: When something of the stream last came from its origin.
        self._heard_at = now
        #: The keeper that answered last, by its place.
        self._best = 0
        #: Questions since the origin is away, and when to ask the next one.
        self._asked = 0
        self._ask_at = 0.0
        #: Ticks with events that keepers sent.
        self.ticks_from_keepers = 0

    def heard(self, now: float) -> None:
        """Something of the stream has arrived that is not from a keeper."""
        self._heard_at = now
        self._asked = 0

    def keeper_answered(self, keeper: str, events: int) -> None:
        self._best = self.keepers.index(keeper)
        self.ticks_from_keepers += events

    def is_away(self, now: float) -> bool:
        return bool(self.keepers) and now - self._heard_at > self._away_after_s

    def target(self, now: float, attempt: int) -> str:
        """Whom to send a request that was sent `attempt` times before (rules 1 and 3)."""
        keepers = self.keepers
        if not keepers:
            return self.origin
        are_first = self._is_near or self.is_away(now)
        if attempt % 2 == (0 if are_first else 1):
            return keepers[(self._best + attempt // 2) % len(keepers)]
        return self.origin

    def keeper_to_ask(self, now: float) -> str:
        """The keeper to ask now how far the stream goes; "" if none (rule 4)."""
        if not self.is_away(now) or now < self._ask_at:
            return ""
        keeper = self.keepers[self._asked % len(self.keepers)]
        rounds = self._asked // len(self.keepers)
        self._ask_at = now + self._away_after_s * 2 ** min(rounds, _DOUBLINGS_MAX)
        self._asked += 1
        return keeper


def away_after_s(options: Options) -> float:
    return max(options.dead_after_s, _HEADS_MISSED * options.head_every_s)


def sources_of(
    edge: str,
    network: Network,
    options: Options,
    keepers: Mapping[str, tuple[str, ...]],
    now: float,
) -> dict[str, Sources]:
    """The sources of every stream, as an edge sees them. Its own stream needs no keepers."""

    def hops(broker: str) -> int:
        return min(network.distance(site, edge) for site in network.sites_of(broker))

    found: dict[str, Sources] = {}
    for stream in network.edges:
        known = [each for each in keepers.get(stream, ()) if each in network.brokers]
        if stream == edge or not known:
            found[stream] = Sources(stream, now=now)
            continue
        # Stable: of equally near keepers, the first of the stream comes first.
        nearest = tuple(sorted(known, key=hops))
        found[stream] = Sources(
            stream,
            nearest,
            away_after_s=away_after_s(options),
            is_near=options.prefer == "near" and hops(nearest[0]) < hops(stream),
            now=now,
        )
    return found
