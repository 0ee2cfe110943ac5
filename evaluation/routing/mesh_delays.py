"""Scenes of a market in a mesh, and the delays in them: what choosing paths by load is good for.

Each scene is one network, one crowd and one way to choose paths. The parts:

    degree      random graphs of degree 2 and 4, and a full mesh
    grown       degree 4, links come up one after the other instead of all at once
    publishers  twice as many publishers whose advertisements overlap; at the same rate together,
                and at the same rate each
    rate        more and more events, until paths that are fixed do not keep up
    burst       four times the rate for a while
    hops        a ladder; the delay to subscribers 6, 10 and 12 links away
    failures    a full mesh, as in the source, and degree 4: a broker dies with its clients, and
                then another; those that are on most shortest ways, of those without which the
                graph is whole
    matching    degree 4, matching at the ends only

Parameters: service times after the source's 4.5 ms per matching, thirty brokers on twenty machines
as there, and a rate that keeps the busiest machine busy for about nine tenths of the time with
fixed paths at degree 4. Where that is too much for a graph, at degree 2 and on the ladder, there is
a case with less, and one that shows what too much does.

Prior art: spec PADRES, section 5.

Medians
-------
The middle of some graphs, and how far they lie apart.

A mean over graphs says what the worst of them says, if that one is overloaded. So figures are
medians, with the least and the greatest beside them; differences are of each graph with itself, and
then of all graphs the median.

Many at once
------------
The parts of the evaluation of mesh routing: which scenes each has, and how they are run.

At scale 1 networks have thirty brokers, every case has three graphs, and runs are as long as they
need to be; a smaller scale means shorter runs, fewer graphs and, below a fifth, a few brokers only.
Scenes do not depend on each other, so they run in several processes; results come in the order of
the scenes. What two parts have in common is run once.
"""

import gc
import multiprocessing
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from random import Random
from statistics import median
from typing import Literal, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from anabranch.config.survey import near_of, parts_without
from anabranch.core.options import Options
from anabranch.model.network import Network, graph_of_brokers
from anabranch.sim.mesh_shapes import full_mesh, random_mesh
from evaluation.routing.mesh_market import LOADS_EVERY_S, SLOW, Crowd, Market, Service
from evaluation.routing.mesh_placement import Placed, PlaceScene, run_scene
from evaluation.routing.mesh_relays import Relayed, RelayJob, relay

# -- medians --------------------------------------------------------------------------------------


class Middle(msgspec.Struct, frozen=True):
    """A median, and what it is the median of lies between these."""

    value: float
    least: float
    most: float

    def text(self, show: Callable[[float], str], unit: str = "") -> str:
        """`12 ms (10 to 15)`, or `12 ms` if there is nothing between."""
        ends = show(self.least), show(self.most)
        around = f" ({ends[0]} to {ends[1]})" if ends[0] != ends[1] else ""
        return f"{show(self.value)}{unit}{around}"


def middle(values: Sequence[float]) -> Middle:
    """Of some graphs."""
    return Middle(median(values), min(values), max(values))


def difference(before: Sequence[float], after: Sequence[float]) -> Middle:
    """Of each graph against itself, as a share of what was before; 0 where that was nothing."""
    pairs = zip(before, after, strict=True)
    return middle([new / old - 1 if old else 0.0 for old, new in pairs])


# -- delays ---------------------------------------------------------------------------------------


#: Ways to choose paths.
WAYS: dict[str, Options] = {
    "fixed": replace(SLOW, paths="fixed"),
    "dynamic": replace(SLOW, paths="dynamic"),
    "dynamic, waiting": replace(SLOW, paths="dynamic", cost="waiting"),
}
HOPS = (6, 10, 12)
#: Events per second for each broker, in random graphs; on a ladder, where ways are long, as many as
#: all keep up with, and more; and where brokers die, so that the others have room for their work.
RATE = 10.0
LADDER_RATE, LADDER_RATE_TOO_HIGH = 6.0, 9.0
FAILURES_RATE = 8.0
TOO_MUCH = "ladder, too much"
#: Shares of the rate, for the part `rate`.
SHARES = (0.5, 1.0, 1.25, 1.5)
#: Parts of a run: before a burst or a failure, during the burst or until the next failure, after.
_BURST = 4.0
_CALM = 0.4
#: Seconds that late events are waited for.
_DRAIN_S = 60.0


class Scene(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    part: str
    case: str
    way: str
    #: 0: a full mesh; −1: a ladder.
    degree: int = 4
    brokers: int = 30
    #: For each symbol.
    publishers: int = 1
    #: Of events per second and broker.
    rate: float = RATE
    seconds: float = 10.0
    stands: bool = True
    matching_everywhere: bool = True
    seed: int = 1


class Delays(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a scene."""

    scene: Scene
    published: int
    #: Events at brokers of subscribers, and notifications of subscribers.
    arrived: int
    notified: int
    #: Means, from publication.
    arrival_ms: float
    notification_ms: float
    #: Of the events published in the first and in the last third.
    early_ms: float
    late_ms: float
    #: Events over links, and those that were for the broker they came to, per event published.
    copies: float
    ends: float
    #: Work that came to the busiest machine, over the time there was; above 1 it is too much.
    busiest: float
    #: Mean delay of arrival of the events published in each second, in ms; 0 if there were none.
    per_s: list[float]
    #: Links away → mean delay of notification in ms, on a ladder.
    by_hops: dict[str, float]

    @property
    def is_overloaded(self) -> bool:
        """Whether a machine had too much to do, and delays grew by half from third to third."""
        return self.busiest > 1.0 and self.late_ms > 1.5 * self.early_ms


def run_delays(scene: Scene) -> Delays:
    """Play a scene."""
    market = market_of(scene)
    rate = scene.rate * scene.brokers
    phase_s = scene.seconds / 4
    if scene.part == "burst":
        for share, phases in ((_CALM, 1), (_CALM * _BURST, 1), (_CALM, 2)):
            market.publish_at(rate * share)
            market.wait(phase_s * phases)
    elif scene.part == "failures":
        market.publish_at(rate)
        for name in in_between(market.network, 2):
            market.wait(phase_s)
            market.kill(name)
        market.wait(phase_s * 2)
    else:
        market.publish_at(rate)
        market.wait(scene.seconds)
    busiest = market.busiest()
    market.drain(_DRAIN_S)
    return _delays(scene, market, busiest)


def market_of(scene: Scene, loads_every_s: float = LOADS_EVERY_S) -> Market:
    """The network and the crowd of a scene."""
    rng = Random(scene.seed)
    names = [f"b{number}" for number in range(1, scene.brokers + 1)]
    if scene.degree == 0:
        network = full_mesh(names, [])
    elif scene.degree < 0:
        network = ladder(names)
    else:
        network = random_mesh(rng, names, [], scene.degree)
    symbols = max(1, scene.brokers * 2 // 3)
    crowd = Crowd(publishers=symbols * scene.publishers, subscribers=scene.brokers, symbols=symbols)
    if scene.degree < 0:
        far = tuple(names[2 * hops] for hops in HOPS if 2 * hops < len(names))
        crowd = replace(crowd, far_publisher=names[0], far_subscribers=far)
    return Market(
        network,
        WAYS[scene.way],
        crowd,
        machines=symbols,
        service=Service(matching="everywhere" if scene.matching_everywhere else "at the ends"),
        stands=scene.stands,
        loads_every_s=loads_every_s,
        seed=scene.seed,
    )


def ladder(names: Sequence[str]) -> Network:
    """Two rows side by side: the first broker's row has every second name."""
    rows = names[::2], names[1::2]
    rails = [link for row in rows for link in pairwise(row)]
    return graph_of_brokers([*rails, *zip(*rows, strict=False)])


def in_between(network: Network, count: int) -> list[str]:
    """Brokers that are on most shortest ways, one after the other; the others stay joined."""
    near = {name: set(others) for name, others in near_of(network).items()}
    chosen: list[str] = []
    for _ in range(count):
        on_ways = _on_ways(near)
        can_go = [name for name in near if len(parts_without(near, broker=name)) == 1]
        chosen.append(max(can_go, key=lambda name: (on_ways[name], name)))
        gone = chosen[-1]
        near = {name: near[name] - {gone} for name in near if name != gone}
    return chosen


def _on_ways(near: Mapping[str, Collection[str]]) -> dict[str, int]:
    """Broker → the ways that it is on, of one shortest way between any two others."""
    found = dict.fromkeys(near, 0)
    for root in near:
        parents: dict[str, str] = {root: ""}
        pending = deque([root])
        while pending:
            here = pending.popleft()
            for there in sorted(near[here]):
                if there not in parents:
                    parents[there] = here
                    pending.append(there)
        for name in near:
            on_way = parents[name]
            while on_way and on_way != root:
                found[on_way] += 1
                on_way = parents[on_way]
    return found


def _delays(scene: Scene, market: Market, busiest: float) -> Delays:
    arrived, notified = market.arrived(), market.notified()
    third = scene.seconds / 3
    published = max(1, market.published)
    return Delays(
        scene=scene,
        published=market.published,
        arrived=len(arrived),
        notified=len(notified),
        arrival_ms=_mean_ms(arrived),
        notification_ms=_mean_ms(notified),
        early_ms=_mean_ms([pair for pair in arrived if pair[0] < third]),
        late_ms=_mean_ms([pair for pair in arrived if pair[0] >= 2 * third]),
        copies=market.copies / published,
        ends=market.ends / published,
        busiest=busiest,
        per_s=_per_s(arrived, scene.seconds),
        by_hops=_by_hops(market) if scene.degree < 0 else {},
    )


def _mean_ms(pairs: Sequence[tuple[float, float]]) -> float:
    return 1_000 * sum(delay for _, delay in pairs) / max(1, len(pairs))


def _per_s(pairs: Sequence[tuple[float, float]], seconds: float) -> list[float]:
    bins: list[list[tuple[float, float]]] = [[] for _ in range(max(1, int(seconds)))]
    for pair in pairs:
        bins[min(int(pair[0]), len(bins) - 1)].append(pair)
    return [_mean_ms(each) for each in bins]


def _by_hops(market: Market) -> dict[str, float]:
    times = market.quoters[-1].times
    found = {}
    for watcher in market.watchers:
        if watcher.name.startswith("far "):
            hops = int(watcher.home.removeprefix("b")) // 2
            found[str(hops)] = _mean_ms([(0.0, at - times[n - 1]) for _, n, at in watcher.notified])
    return found


# -- many at once ---------------------------------------------------------------------------------


DelayPart = Literal[
    "degree", "grown", "publishers", "rate", "burst", "hops", "failures", "matching"
]
DELAY_PARTS: tuple[DelayPart, ...] = get_args(DelayPart)
Played = TypeVar("Played")
Outcome = TypeVar("Outcome")

_BROKERS = 30
_FEW_BELOW = 0.2
_FEW, _FEW_ON_LADDER = 8, 14
_SECONDS = 6.0
_SECONDS_MIN = 3.0
_GRAPHS = 3
#: Parts in which paths are chosen by waiting bytes, too.
_WITH_WAITING: tuple[DelayPart, ...] = ("rate", "burst")


def scenes(part: DelayPart, scale: float, seed: int) -> list[Scene]:
    """All runs of a part."""
    cases = _cases(part, scale)
    seeds = range(seed, seed + max(1, round(_GRAPHS * scale)))
    ways = [way for way in WAYS if part in _WITH_WAITING or "waiting" not in way]
    return [replace(case, way=way, seed=each) for case in cases for way in ways for each in seeds]


def _cases(part: DelayPart, scale: float) -> list[Scene]:
    brokers = _BROKERS if scale >= _FEW_BELOW else _FEW
    seconds = max(_SECONDS_MIN, _SECONDS * scale)
    plain = Scene(part=part, case="", way="", brokers=brokers, seconds=seconds)
    if part == "degree":
        return [
            replace(plain, case="degree 2", degree=2),
            replace(plain, case="degree 2, half the rate", degree=2, rate=RATE / 2),
            replace(plain, case="degree 4"),
            replace(plain, case="full mesh", degree=0),
        ]
    if part == "grown":
        return [replace(plain, case="degree 4, grown", stands=False)]
    if part == "publishers":
        many = replace(plain, publishers=2)
        return [
            replace(many, case="twice as many, same rate together"),
            replace(many, case="twice as many, same rate each", rate=2 * RATE),
        ]
    if part == "rate":
        rates = [round(RATE * share, 2) for share in SHARES]
        return [replace(plain, case=f"{each * brokers:g} events/s", rate=each) for each in rates]
    if part == "burst":
        return [replace(plain, case="four times the rate for a quarter", seconds=2 * seconds)]
    if part == "hops":
        length = brokers if brokers > _FEW else _FEW_ON_LADDER
        ladder = replace(plain, degree=-1, brokers=length)
        return [
            replace(ladder, case="ladder", rate=LADDER_RATE),
            replace(ladder, case=TOO_MUCH, rate=LADDER_RATE_TOO_HIGH),
        ]
    if part == "failures":
        long = replace(plain, seconds=2 * seconds, rate=FAILURES_RATE)
        return [
            replace(long, case="full mesh, two die", degree=0),
            replace(long, case="degree 4, two die"),
        ]
    return [
        replace(plain, case="matched everywhere"),
        replace(plain, case="matched at the ends", matching_everywhere=False),
    ]


def play(scene: Scene) -> Delays:
    """One scene, and nothing of it stays."""
    delays = run_delays(scene)
    gc.collect()
    return delays


def play_place(scene: PlaceScene) -> Placed:
    """The same of a scene of patterns."""
    placed = run_scene(scene)
    gc.collect()
    return placed


def play_all(
    every: Sequence[Scene], processes: int, known: dict[Scene, Delays] | None = None
) -> Iterator[Delays]:
    """All of them, in order; what is known already, and what becomes known, is not run again."""
    known = {} if known is None else known
    fresh = dict.fromkeys(each for each in map(_alike, every) if each not in known)
    playing = _in_processes(play, list(fresh), processes)
    for scene in every:
        if _alike(scene) not in known:
            known[_alike(scene)] = next(playing)
        yield replace(known[_alike(scene)], scene=scene)


def _alike(scene: Scene) -> Scene:
    """What a scene is but for its name."""
    part = scene.part if scene.part in ("burst", "failures") else ""
    return replace(scene, part=part, case="")


def play_relays(every: Sequence[RelayJob], processes: int) -> Iterator[list[Relayed]]:
    """The same of relays."""
    yield from _in_processes(relay, every, processes)


def play_places(every: Sequence[PlaceScene], processes: int) -> Iterator[Placed]:
    """The same of scenes of patterns."""
    yield from _in_processes(play_place, every, processes)


def _in_processes(
    function: Callable[[Played], Outcome], every: Sequence[Played], processes: int
) -> Iterator[Outcome]:
    if processes <= 1 or len(every) < 2:
        yield from map(function, every)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        yield from pool.imap(function, every, chunksize=1)
