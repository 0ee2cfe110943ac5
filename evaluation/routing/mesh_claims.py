"""Claims: what the source found about choosing paths by load, beside what came out here.

A claim is one line: a test, what it gave with fixed paths and with either cost of links, what the
source reports, and whether the two are alike. Figures are medians over graphs, with the least and
the greatest in brackets; differences are those of each graph with itself: below zero is better. A
difference within two percent counts as none; nothing finer is meant, since networks, machines and
programs are others.

Overhead
--------
What choosing paths by load costs a broker: processor time, and memory of its router.

The same market at degree 4 is played with each way to choose paths, one after the other in one
process, several times; the least processor time counts. Fixed paths need no reports of loads, so
they get none. Time is that of the brokers' steps, encoding of what they send included, and of
nothing else. Memory is the sizes of all objects that routers refer to, each counted once.

Unlike all other figures of the evaluation, these depend on the machine.

Prior art: the overhead of dynamic routing, spec PADRES section 5.
"""

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType, MethodType, ModuleType

import msgspec

from anabranch.model.network import Network
from evaluation.routing.mesh_delays import (
    HOPS,
    TOO_MUCH,
    Delays,
    Middle,
    Scene,
    difference,
    market_of,
    middle,
)
from evaluation.routing.mesh_market import LOADS_EVERY_S

# -- overhead -------------------------------------------------------------------------------------


#: (name, way, how often loads are reported in seconds; 0: never).
WAYS = (
    ("fixed", "fixed", 0.0),
    ("dynamic, reports every 10 ms", "dynamic", LOADS_EVERY_S),
    ("dynamic, reports every 100 ms", "dynamic", 0.1),
)
_SHARED = (type, ModuleType, FunctionType, MethodType, Network)


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """What one way costs."""

    way: str
    published: int
    #: Processor time of brokers per event published, and per event over a link.
    event_us: float
    copy_us: float
    #: Of the router of a broker, on average.
    router_bytes: float


def measure_overhead(brokers: int, seconds: float, times: int, seed: int) -> list[Overhead]:
    """All ways, this many times each."""
    found: dict[str, list[Overhead]] = {}
    for _ in range(times):
        for name, way, every_s in WAYS:
            scene = Scene(
                part="overhead", case="", way=way, brokers=brokers, seconds=seconds, seed=seed
            )
            found.setdefault(name, []).append(_one(name, scene, every_s))
    return [min(runs, key=lambda run: run.event_us) for runs in found.values()]


def _one(name: str, scene: Scene, every_s: float) -> Overhead:
    market = market_of(scene, every_s)
    gc.collect()
    before = market.world.cpu_s
    market.publish_at(scene.rate * scene.brokers)
    market.wait(scene.seconds)
    market.drain(scene.seconds)
    spent_us = 1e6 * (market.world.cpu_s - before)
    routers = [h.broker.router for h in market.world.hosts.values() if h.broker is not None]
    return Overhead(
        way=name,
        published=market.published,
        event_us=spent_us / max(1, market.published),
        copy_us=spent_us / max(1, market.copies),
        router_bytes=deep_bytes(routers) / len(routers),
    )


def deep_bytes(roots: Iterable[object]) -> int:
    """The bytes of these objects and of all they refer to, but for code and the network."""
    pending, seen, total = list(roots), set[int](), 0
    while pending:
        thing = pending.pop()
        if id(thing) in seen or isinstance(thing, _SHARED):
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        pending += gc.get_referents(thing)
    return total


# -- claims ---------------------------------------------------------------------------------------


FIXED, DYNAMIC, WAITING = "fixed", "dynamic", "dynamic, waiting"
_NONE = 0.02
#: Delays are as before when they are below this multiple of what they were.
_RECOVERED = 1.5


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One line."""

    test: str
    fixed: str
    dynamic: str
    waiting: str
    source: str
    verdict: str


class Source(msgspec.Struct, frozen=True):
    """A difference that the source reports."""

    test: str
    case: str
    difference: float | None


_DIFFERENCES = (
    Source("delay, degree 2", "degree 2", -0.047),
    Source("delay, degree 2, all keep up", "degree 2, half the rate", -0.047),
    Source("delay, degree 4", "degree 4", -0.203),
    Source("delay, full mesh", "full mesh", 0.041),
    Source("delay, degree 4, links came up one by one", "degree 4, grown", None),
    Source("delay, 40 publishers, same rate together", "twice as many, same rate together", -0.465),
    Source("delay, 40 publishers, same rate each", "twice as many, same rate each", -0.465),
)


def claims(delays: Sequence[Delays], overheads: Sequence[Overhead]) -> list[Claim]:
    """All that can be said of these runs."""
    found: list[Claim] = []
    for source in _DIFFERENCES:
        runs = [run for run in delays if run.scene.case == source.case]
        if runs:
            found.append(_difference(source, runs))
    by_part: dict[str, list[Delays]] = {}
    for run in delays:
        by_part.setdefault(run.scene.part, []).append(run)
    makers: dict[str, Callable[[Sequence[Delays]], Iterable[Claim]]] = {
        "rate": _rate,
        "burst": _burst,
        "hops": _hops,
        "failures": _failures,
        "matching": _matching,
    }
    for part, make in makers.items():
        if part in by_part:
            found += make(by_part[part])
    return [*found, *_overhead(overheads)]


def _of(runs: Iterable[Delays], way: str, what: Callable[[Delays], float]) -> list[float]:
    """One figure of each graph."""
    return [what(run) for run in runs if run.scene.way == way]


def _difference(source: Source, runs: Sequence[Delays]) -> Claim:
    said = "not in the source"
    if source.difference is not None:
        said = _judged(runs, _arrival_ms, source.difference)
    return Claim(
        test=source.test,
        **_against_fixed(runs, _arrival_ms),
        source="" if source.difference is None else f"{source.difference:+.1%}",
        verdict=said,
    )


def _arrival_ms(run: Delays) -> float:
    return run.arrival_ms


def _against_fixed(runs: Sequence[Delays], what: Callable[[Delays], float]) -> dict[str, str]:
    """A time in ms with all ways, and how they differ from fixed paths."""
    fixed = _of(runs, FIXED, what)
    texts = {FIXED: middle(fixed).text(_tenths, " ms")}
    for way in (DYNAMIC, WAITING):
        ours = _of(runs, way, what)
        if ours:
            against = difference(fixed, ours)
            ends = "" if against.least == against.most else f"; {_ends(against)}"
            texts[way] = f"{middle(ours).value:.1f} ms ({against.value:+.1%}{ends})"
    return _by_way(texts)


def _tenths(number: float) -> str:
    return f"{number:.1f}"


def _ends(values: Middle) -> str:
    return f"{values.least:+.1%} to {values.most:+.1%}"


def _judged(runs: Sequence[Delays], what: Callable[[Delays], float], theirs: float) -> str:
    """What is said of a difference: also whether graphs agree, and whether they kept up."""
    ours = difference(_of(runs, FIXED, what), _of(runs, DYNAMIC, what))
    said = verdict(ours.value, theirs)
    if ours.least < -_NONE and ours.most > _NONE:
        said += "; graphs differ"
    return _with_overload(said, runs)


def _with_overload(said: str, runs: Sequence[Delays]) -> str:
    """Where there is too much to do for everybody, delays say how long a run was, and little
    else."""
    overloaded = [
        {run.scene.seed for run in runs if run.is_overloaded and run.scene.way == way}
        for way in (FIXED, DYNAMIC)
    ]
    graphs, both = len({run.scene.seed for run in runs}), len(overloaded[0] & overloaded[1])
    if not both:
        return said
    where = "" if both == graphs else f" in {both} of {graphs} graphs"
    return f"{said}; overloaded either way{where}"


def verdict(ours: float, theirs: float) -> str:
    """Whether two differences say the same."""
    if abs(ours) <= _NONE:
        return "no difference here"
    if abs(theirs) <= _NONE:
        return f"{'better' if ours < 0 else 'worse'} here, no difference there"
    if (ours < 0) != (theirs < 0):
        return "the other way round"
    return "same direction, smaller" if abs(ours) < abs(theirs) else "same direction"


def direction(ours: float) -> str:
    """The same where the source has no number, but says that dynamic is less."""
    return verdict(ours, -1.0).removesuffix(", smaller")


def _rate(runs: Sequence[Delays]) -> Iterator[Claim]:
    seeds = sorted({run.scene.seed for run in runs})
    kept = {way: [_highest(runs, way, seed) for seed in seeds] for way in _ways(runs)}
    gain = difference(kept[FIXED], kept[DYNAMIC]).value
    yield Claim(
        test="highest rate that was kept up with",
        **_by_way({way: middle(each).text(_whole, " events/s") for way, each in kept.items()}),
        source="at 2,400 msg/min fixed overloads, dynamic does not",
        verdict=direction(-gain),
    )
    too_high = [run.scene.rate for run in runs if run.is_overloaded and run.scene.way == FIXED]
    if too_high:
        there = [run for run in runs if run.scene.rate == min(too_high)]
        pairs = difference(_of(there, FIXED, _arrival_ms), _of(there, DYNAMIC, _arrival_ms))
        rate = min(too_high) * there[0].scene.brokers
        yield Claim(
            test=f"delay at {rate:g} events/s, the first too much",
            **_against_fixed(there, _arrival_ms),
            source="dynamic lower",
            verdict=_with_overload(direction(pairs.value), there),
        )


def _ways(runs: Iterable[Delays]) -> list[str]:
    return list(dict.fromkeys(run.scene.way for run in runs))


def _whole(number: float) -> str:
    return f"{number:.0f}"


def _highest(runs: Sequence[Delays], way: str, seed: int) -> float:
    """The highest rate below the first at which delays grow."""
    kept = 0.0
    for run in runs:
        if run.scene.way == way and run.scene.seed == seed:
            if run.is_overloaded:
                break
            kept = run.scene.rate * run.scene.brokers
    return kept


def _burst(runs: Sequence[Delays]) -> Iterator[Claim]:
    for name, what, unit, source in (
        ("highest mean delay of a second", _peak_ms, " ms", "dynamic lower"),
        ("seconds until delays are as before", _recovered_s, " s", "dynamic first"),
    ):
        found = {way: _of(runs, way, what) for way in _ways(runs)}
        pairs = zip(found[FIXED], found[DYNAMIC], strict=True)
        ours = middle([(dynamic - fixed) / max(fixed, 1.0) for fixed, dynamic in pairs])
        yield Claim(
            test=f"burst: {name}",
            **_by_way({way: middle(each).text(_whole, unit) for way, each in found.items()}),
            source=source,
            verdict=direction(ours.value),
        )


def _peak_ms(run: Delays) -> float:
    return max(run.per_s)


def _recovered_s(run: Delays) -> int:
    """Seconds after the end of the burst in which delays were still high."""
    quarter = len(run.per_s) // 4
    before = sum(run.per_s[:quarter]) / max(1, quarter)
    after = run.per_s[2 * quarter :]
    high = [second for second, delay in enumerate(after, 1) if delay > _RECOVERED * before]
    return max(high, default=0)


#: Links → fixed and dynamic in the source, in ms.
_SOURCE_HOPS = {6: (47.2, 47.6), 10: (64.5, 52.9), 12: (74.4, 60.6)}


def _hops(runs: Sequence[Delays]) -> Iterator[Claim]:
    kept_up = [run for run in runs if run.scene.case != TOO_MUCH]
    known = [hops for hops in HOPS if all(str(hops) in run.by_hops for run in runs)]
    for hops in known:
        yield _distance(kept_up, hops)
    if known[-1:] == [HOPS[-1]]:
        growth = {way: _of(kept_up, way, _growth) for way in _ways(kept_up)}
        pairs = zip(growth[FIXED], growth[DYNAMIC], strict=True)
        ours = middle([dynamic - fixed for fixed, dynamic in pairs]).value
        yield Claim(
            test=f"growth of delay from {HOPS[0]} to {HOPS[-1]} links",
            **_by_way({way: middle(each).text(_percent) for way, each in growth.items()}),
            source="+57.7% → +27.4%",
            verdict=_with_overload(direction(ours), kept_up),
        )
    too_much = [run for run in runs if run.scene.case == TOO_MUCH]
    if too_much and known:
        yield _distance(too_much, known[-1], ", too much to do")


def _distance(runs: Sequence[Delays], hops: int, remark: str = "") -> Claim:
    def after_ms(run: Delays) -> float:
        return run.by_hops[str(hops)]

    fixed, dynamic = _SOURCE_HOPS[hops]
    theirs = dynamic / fixed - 1
    return Claim(
        test=f"delay over {hops} links{remark}",
        **_against_fixed(runs, after_ms),
        source=f"{fixed} → {dynamic} ms ({theirs:+.1%})",
        verdict=_judged(runs, after_ms, theirs),
    )


def _growth(run: Delays) -> float:
    return run.by_hops[str(HOPS[-1])] / run.by_hops[str(HOPS[0])] - 1


def _percent(share: float) -> str:
    return f"{share:+.1%}"


def _failures(runs: Sequence[Delays]) -> Iterator[Claim]:
    names = ("first death: highest second", "second death: highest second", "settled after both")
    for case in dict.fromkeys(run.scene.case for run in runs):
        graphs = [run for run in runs if run.scene.case == case]
        for place, (name, source) in enumerate(zip(names, (0.891, 2.175, 0.231), strict=True)):
            found = {
                way: middle([_after_failures(run)[place] for run in graphs if run.scene.way == way])
                for way in _ways(graphs)
            }
            is_source = graphs[0].scene.degree == 0
            yield Claim(
                test=f"failures, {case.removesuffix(', two die')}, {name}",
                **_by_way({way: each.text(_percent_whole) for way, each in found.items()}),
                source=f"{source:+.1%}" if is_source else "",
                verdict=_disturbed(found, source) if is_source else _fixed_or_dynamic(found),
            )


def _disturbed(found: dict[str, Middle], source: float) -> str:
    ours = found[DYNAMIC].value
    return verdict(ours, source) if ours > _NONE else "no disturbance here"


def _percent_whole(share: float) -> str:
    return f"{share:+.0%}"


def _fixed_or_dynamic(found: dict[str, Middle]) -> str:
    """Which is disturbed less, where the source has nothing."""
    apart = found[DYNAMIC].value - found[FIXED].value
    if abs(apart) <= _NONE:
        return "not in the source; no difference"
    return f"not in the source; {'less' if apart < 0 else 'more'} with paths by load"


def _after_failures(run: Delays) -> tuple[float, float, float]:
    """The highest delay of a second after each death, and the last ones, over those before."""
    quarter = len(run.per_s) // 4
    before = sum(run.per_s[:quarter]) / max(1, quarter)
    first, second = run.per_s[quarter : 2 * quarter], run.per_s[2 * quarter :]
    settled = run.per_s[3 * quarter :]
    mean = sum(settled) / max(1, len(settled))
    return max(first) / before - 1, max(second) / before - 1, mean / before - 1


#: Publications over matchings: 1,926 of 16,997.
_SOURCE_MATCHINGS = 0.113


def _matching(runs: Sequence[Delays]) -> Iterator[Claim]:
    everywhere = [run for run in runs if run.scene.matching_everywhere]
    ends = [run for run in runs if not run.scene.matching_everywhere]
    ways = _ways(everywhere)
    first = {way: middle(_of(everywhere, way, _at_origin)) for way in ways}
    brokers = "fewer" if first[DYNAMIC].value > _SOURCE_MATCHINGS else "more"
    yield Claim(
        test="matchings at the origin only, of those at every broker",
        **_by_way({way: each.text(_share) for way, each in first.items()}),
        source=f"{_SOURCE_MATCHINGS:.1%}",
        verdict=f"{brokers} brokers per event here",
    )
    both = {way: middle(_of(everywhere, way, _at_ends)).text(_share) for way in ways}
    yield Claim(
        test="matchings at the origin and at edges (ours), of those at every broker",
        **_by_way(both),
        source="",
        verdict="not in the source",
    )
    delays = {}
    for way in ways:
        before, after = _of(everywhere, way, _arrival_ms), _of(ends, way, _arrival_ms)
        change = difference(before, after).value
        delays[way] = f"{middle(after).value:.1f} ms ({change:+.1%})"
    yield Claim(
        test="delay, matching at the ends, against everywhere, at 4.5 ms each",
        **_by_way(delays),
        source="",
        verdict="not in the source; what it really takes is measured below",
    )


def _at_origin(run: Delays) -> float:
    return 1 / (1 + run.copies)


def _at_ends(run: Delays) -> float:
    return (1 + run.ends) / (1 + run.copies)


def _share(number: float) -> str:
    return f"{number:.1%}"


def _overhead(overheads: Sequence[Overhead]) -> Iterator[Claim]:
    if not overheads:
        return
    fixed, dynamic = overheads[0], overheads[1]
    cpu = dynamic.copy_us / fixed.copy_us - 1
    memory = dynamic.router_bytes / fixed.router_bytes - 1
    for name, ours, theirs in (
        ("overhead: processor time per copy", cpu, 0.063),
        ("overhead: memory of routers", memory, 0.089),
    ):
        yield Claim(
            test=name,
            fixed="",
            dynamic=f"{ours:+.1%}",
            waiting="",
            source=f"{theirs:+.1%}",
            verdict=verdict(ours, theirs),
        )


def _by_way(texts: dict[str, str]) -> dict[str, str]:
    return {
        "fixed": texts.get(FIXED, ""),
        "dynamic": texts.get(DYNAMIC, ""),
        "waiting": texts.get(WAITING, ""),
    }
