"""Claims: what the source found about choosing paths by load, beside what came out here.

A claim is one line: a test, what it gave with fixed paths and with either cost of links, what the
source reports, and whether the two are alike. Differences are of means over all graphs, as the
source gives them: below zero is better. A difference within two percent counts as none; nothing
finer is meant, since networks, machines and programs are others.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from anabranch.sim.evaluation.delays import HOPS, Delays
from anabranch.sim.evaluation.overhead import MatchCost, Overhead

FIXED, DYNAMIC, WAITING = "fixed", "dynamic", "dynamic, waiting"
_NONE = 0.02
#: Delays are as before when they are below so many times of what they were.
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
    Source("delay, degree 4", "degree 4", -0.203),
    Source("delay, full mesh", "full mesh", 0.041),
    Source("delay, degree 4, links came up one by one", "degree 4, grown", None),
    Source("delay, 40 publishers, same rate together", "twice as many, same rate together", -0.465),
    Source("delay, 40 publishers, same rate each", "twice as many, same rate each", -0.465),
)


def claims(
    delays: Sequence[Delays], overheads: Sequence[Overhead], match: MatchCost | None = None
) -> list[Claim]:
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
    if match is not None and "matching" in by_part:
        found.append(_match_time(by_part["matching"], match))
    return [*found, *_overhead(overheads)]


def mean_ms(runs: Iterable[Delays], way: str) -> float:
    """The mean delay of arrival of all events in these runs with one way to choose paths."""
    mine = [run for run in runs if run.scene.way == way]
    every = sum(run.arrived for run in mine)
    return sum(run.arrival_ms * run.arrived for run in mine) / max(1, every)


def _difference(source: Source, runs: Sequence[Delays]) -> Claim:
    fixed = mean_ms(runs, FIXED)
    ours = mean_ms(runs, DYNAMIC) / fixed - 1
    said = "not in the source"
    if source.difference is not None:
        said = _with_overload(verdict(ours, source.difference), runs)
    return Claim(
        test=source.test,
        fixed=f"{fixed:.1f} ms",
        dynamic=_with_percent(mean_ms(runs, DYNAMIC), fixed),
        waiting=_with_percent(mean_ms(runs, WAITING), fixed),
        source="" if source.difference is None else f"{source.difference:+.1%}",
        verdict=said,
    )


def _with_overload(said: str, runs: Sequence[Delays]) -> str:
    """Where there is too much to do for everybody, delays say how long a run was, and little
    else."""
    overloaded = {run.scene.way for run in runs if run.is_overloaded}
    return f"{said}; overloaded either way" if {FIXED, DYNAMIC} <= overloaded else said


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


def _with_percent(ours: float, fixed: float) -> str:
    return f"{ours:.1f} ms ({ours / fixed - 1:+.1%})" if fixed else ""


def _rate(runs: Sequence[Delays]) -> Iterator[Claim]:
    kept = {way: _highest(runs, way) for way in (FIXED, DYNAMIC, WAITING)}
    yield Claim(
        test="highest rate that was kept up with",
        **_by_way({way: f"{rate:g} events/s" for way, rate in kept.items()}),
        source="at 2,400 msg/min fixed overloads, dynamic does not",
        verdict=direction((kept[FIXED] - kept[DYNAMIC]) / max(*kept.values(), 1.0)),
    )


def _highest(runs: Sequence[Delays], way: str) -> float:
    """The highest rate below the first at which delays grow."""
    kept = 0.0
    for run in runs:
        if run.scene.way == way:
            if run.is_overloaded:
                break
            kept = run.scene.rate * run.scene.brokers
    return kept


def _burst(runs: Sequence[Delays]) -> Iterator[Claim]:
    peaks = {run.scene.way: max(run.per_s) for run in runs}
    yield Claim(
        test="burst: highest mean delay of a second",
        **_by_way({way: f"{peak:.0f} ms" for way, peak in peaks.items()}),
        source="dynamic lower",
        verdict=direction(peaks[DYNAMIC] / peaks[FIXED] - 1),
    )
    times = {run.scene.way: _recovered_s(run) for run in runs}
    yield Claim(
        test="burst: seconds until delays are as before",
        **_by_way({way: f"{time} s" for way, time in times.items()}),
        source="dynamic first",
        verdict=direction(times[DYNAMIC] - times[FIXED]),
    )


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
    for hops in HOPS:
        if not all(str(hops) in run.by_hops for run in runs):
            continue
        means = {way: _mean_by_hops(runs, way, hops) for way in (FIXED, DYNAMIC, WAITING)}
        fixed, dynamic = _SOURCE_HOPS[hops]
        theirs = dynamic / fixed - 1
        yield Claim(
            test=f"delay over {hops} links",
            fixed=f"{means[FIXED]:.1f} ms",
            dynamic=_with_percent(means[DYNAMIC], means[FIXED]),
            waiting=_with_percent(means[WAITING], means[FIXED]),
            source=f"{fixed} → {dynamic} ms ({theirs:+.1%})",
            verdict=_with_overload(verdict(means[DYNAMIC] / means[FIXED] - 1, theirs), runs),
        )
    if all(str(HOPS[-1]) in run.by_hops for run in runs):
        growth = {
            way: _mean_by_hops(runs, way, HOPS[-1]) / _mean_by_hops(runs, way, HOPS[0]) - 1
            for way in (FIXED, DYNAMIC, WAITING)
        }
        yield Claim(
            test=f"growth of delay from {HOPS[0]} to {HOPS[-1]} links",
            **_by_way({way: f"{each:+.1%}" for way, each in growth.items()}),
            source="+57.7% → +27.4%",
            verdict=_with_overload(direction(growth[DYNAMIC] - growth[FIXED]), runs),
        )


def _mean_by_hops(runs: Sequence[Delays], way: str, hops: int) -> float:
    mine = [run.by_hops[str(hops)] for run in runs if run.scene.way == way]
    return sum(mine) / len(mine)


def _failures(runs: Sequence[Delays]) -> Iterator[Claim]:
    phases = {run.scene.way: _after_failures(run) for run in runs}
    names = ("first death: highest second", "second death: highest second", "settled after both")
    for place, (name, source) in enumerate(zip(names, (0.891, 2.175, 0.231), strict=True)):
        ours = phases[DYNAMIC][place]
        yield Claim(
            test=f"failures, {name}",
            **_by_way({way: f"{each[place]:+.0%}" for way, each in phases.items()}),
            source=f"{source:+.1%}",
            verdict=verdict(ours, source) if ours > _NONE else "no disturbance here",
        )


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
    everywhere = {r.scene.way: r for r in runs if r.scene.matching_everywhere}
    ends = {r.scene.way: r for r in runs if not r.scene.matching_everywhere}
    first = {way: 1 / (1 + run.copies) for way, run in everywhere.items()}
    brokers = "fewer" if first[DYNAMIC] > _SOURCE_MATCHINGS else "more"
    yield Claim(
        test="matchings at the origin only, of those at every broker",
        **_by_way({way: f"{share:.1%}" for way, share in first.items()}),
        source=f"{_SOURCE_MATCHINGS:.1%}",
        verdict=f"{brokers} brokers per event here",
    )
    both = {way: f"{(1 + run.ends) / (1 + run.copies):.1%}" for way, run in everywhere.items()}
    yield Claim(
        test="matchings at the origin and at edges (ours), of those at every broker",
        **_by_way(both),
        source="",
        verdict="not in the source",
    )
    delays = {
        way: f"{run.arrival_ms:.1f} ms ({run.arrival_ms / everywhere[way].arrival_ms - 1:+.1%})"
        for way, run in ends.items()
    }
    yield Claim(
        test="delay, matching at the ends, against everywhere",
        **_by_way(delays),
        source="",
        verdict="not in the source",
    )


def _match_time(runs: Sequence[Delays], match: MatchCost) -> Claim:
    """What matching takes per event: everywhere, and at the origin and at edges."""
    times = {
        run.scene.way: f"{(1 + run.copies) * match.match_us:.0f} →"
        f" {(1 + run.ends) * match.match_us:.0f} µs"
        for run in runs
        if run.scene.matching_everywhere
    }
    return Claim(
        test=f"time of matching per event, everywhere → ours, at {match.match_us:.0f} µs each",
        **_by_way(times),
        source="4.5 ms each",
        verdict="computed, not measured",
    )


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
