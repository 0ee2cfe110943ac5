"""Crashing: a site of three brokers loses two of them, one after the other, and gets them back.

Origins, one site of three relays, and two edges. Three groups of subscribers want half of all
events; when only one relay is left, a new group subscribes to the other half. One origin would send
through one relay at a time, so there are six, for the relays to share. The source's times, in
seconds, are here with a tenth of their distances:

    475 first crash · 505 second crash · 565 new group · 691 and 731 the two return

Counted per group: events delivered in each second, how many of those wanted came in the end, and
the longest pause between two; per relay: the events it sent on.

Prior art: Zhao 2006, §6.3.8.
"""

from itertools import pairwise

import msgspec

from anabranch.model.network import Network
from anabranch.sim.evaluation.stage import DRAIN_S, FLOOD, TREE, Draw, Stage, Variant

RATE = 2_000.0
#: Subscribers of each of the first groups, and of the new one.
SUBSCRIBERS = 250
NEW_SUBSCRIBERS = 100
VARIANTS = (TREE, FLOOD)
#: Seconds after the beginning.
FIRST_CRASH_S = 6.0
SECOND_CRASH_S = 9.0
NEW_GROUP_S = 15.0
FIRST_RETURN_S = 27.6
SECOND_RETURN_S = 31.6
END_S = 40.0
#: From, to, and what is there: for rates.
PHASES = (
    (0.0, FIRST_CRASH_S, "all three"),
    (FIRST_CRASH_S, SECOND_CRASH_S, "two left"),
    (SECOND_CRASH_S, NEW_GROUP_S, "one left"),
    (NEW_GROUP_S, FIRST_RETURN_S, "one left, new group"),
    (FIRST_RETURN_S, SECOND_RETURN_S, "two again"),
    (SECOND_RETURN_S, END_S, "all again"),
)
#: Named so that each relay is the first choice of two of them.
_ORIGINS = ("p1", "p2", "p3", "p5", "p9", "p19")
_RELAYS = ("m1", "m2", "m3")
_FIRST_GROUPS = (("first group", "s1"), ("second group", "s1"), ("third group", "s2"))
_NEW = "new group"
#: Half of the topics are wanted from the beginning, the others by the new group.
_TOPICS = 100


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """What came to one group of subscribers."""

    name: str
    edge: str
    subscribers: int
    #: Deliveries in each second from the beginning.
    per_s: list[int]
    #: Deliveries in each phase since it is there, over those that an even pace would bring.
    rates: dict[str, float]
    #: Matches published after the subscriptions had started; those that never came, and what came
    #: twice.
    wanted: int
    missing: int
    repeated: int
    longest_pause_s: float


class CrashingRun(msgspec.Struct, frozen=True, kw_only=True):
    """One variant."""

    variant: str
    published: int
    groups: list[Group]
    #: Relay → its share of the events that the site sent on, in each phase.
    shares: dict[str, list[float]]
    #: From the request of the new group to the start of its last subscription on the last stream.
    new_group_started_after_s: float
    crashes: int


class _Club:
    """A group of subscribers at one edge; everyone wants one topic."""

    def __init__(self, stage: Stage, name: str, edge: str, size: int) -> None:
        self.name = name
        self.edge = edge
        self.reader = stage.reader(name, edge)
        self.reader.seen = []
        is_new = name == _NEW
        self.since = NEW_GROUP_S if is_new else 0.0
        half = _TOPICS // 2
        self.topics = {f"{name} {number}": number % half + half * is_new for number in range(size)}

    def subscribe(self) -> None:
        """All of them."""
        for subscription, topic in self.topics.items():
            self.reader.subscribe(self.name, f"topic = {topic}", subscription)


def network() -> Network:
    """Six origins, three relays in one site, two edges."""
    leaves = (*_ORIGINS, "s1", "s2")
    sites = {name: (name,) for name in leaves} | {"middle": _RELAYS}
    return Network(sites, [(name, "middle") for name in leaves])


def measure(variant: Variant, scale: float, seed: int = 1) -> CrashingRun:
    """The whole of it."""
    stage = Stage(network(), variant, seed)
    world = stage.world
    for place, origin in enumerate(_ORIGINS):
        stage.feed(origin, RATE * scale / len(_ORIGINS), _topics_from(place))
    many, few = max(10, round(SUBSCRIBERS * scale)), max(4, round(NEW_SUBSCRIBERS * scale))
    clubs = [_Club(stage, name, edge, many) for name, edge in _FIRST_GROUPS]
    for club in clubs:
        club.subscribe()
    late = _Club(stage, _NEW, "s2", few)
    stage.wait(2.0)
    begin = world.now
    for delay, relay in ((FIRST_CRASH_S, "m1"), (SECOND_CRASH_S, "m2")):
        world.after(delay, world.kill, relay)
    for delay, relay in ((FIRST_RETURN_S, "m1"), (SECOND_RETURN_S, "m2")):
        world.after(delay, world.start, relay)
    world.after(NEW_GROUP_S, late.subscribe)
    stage.begin()
    shares = _shares(stage, begin)
    stage.end()
    started = max(max(times.values()) for times in late.reader.started.values())
    return CrashingRun(
        variant=variant.name,
        published=stage.published,
        groups=[_result(stage, club, begin) for club in (*clubs, late)],
        shares=shares,
        new_group_started_after_s=started - begin - NEW_GROUP_S,
        crashes=world.count.kills,
    )


def _topics_from(place: int) -> Draw:
    """Origins begin at different topics and go through all of them."""
    return lambda number: {"topic": _topic(place, number), "number": number}


def _topic(place: int, number: int) -> int:
    return (number + place * _TOPICS // len(_ORIGINS)) % _TOPICS


def _shares(stage: Stage, begin: float) -> dict[str, list[float]]:
    """Let the phases pass, and see which relay sends how much."""
    shares: dict[str, list[float]] = {relay: [] for relay in _RELAYS}
    before = stage.meter.counts()
    for _, end, _ in PHASES:
        stage.wait(begin + end - stage.world.now)
        now = stage.meter.counts()
        sent = {relay: now.since(before).out_of(relay).events for relay in _RELAYS}
        for relay, events in sent.items():
            shares[relay].append(events / max(1, sum(sent.values())))
        before = now
    return shares


def _result(stage: Stage, club: _Club, begin: float) -> Group:
    times = [time - begin for time in club.reader.delivered[club.name]]
    per_s = [0] * int(END_S + DRAIN_S)
    for time in times:
        per_s[min(int(time), len(per_s) - 1)] += 1
    pace = sum(feeder.rate for feeder in stage.feeders) * len(club.topics) / _TOPICS
    rates = {
        name: sum(start <= time < end for time in times) / (pace * (end - start))
        for start, end, name in PHASES
        if start >= club.since
    }
    seen = club.reader.seen or []
    wanted = _wanted(stage, club)
    return Group(
        name=club.name,
        edge=club.edge,
        subscribers=len(club.topics),
        per_s=per_s,
        rates=rates,
        wanted=len(wanted),
        missing=len(wanted - set(seen)),
        repeated=len(seen) - len(set(seen)),
        longest_pause_s=max((b - a for a, b in pairwise(times)), default=0.0),
    )


def _wanted(stage: Stage, club: _Club) -> set[tuple[str, str, int]]:
    """What has to come: matches that were published when a subscription had started."""
    by_topic: dict[int, list[str]] = {}
    for subscription, topic in club.topics.items():
        by_topic.setdefault(topic, []).append(subscription)
    started = club.reader.started
    return {
        (subscription, feeder.home, number + 1)
        for place, feeder in enumerate(stage.feeders)
        for number, time in enumerate(feeder.times)
        for subscription in by_topic.get(_topic(place, number), [])
        if time > started[subscription][feeder.home]
    }
