"""The parts of the evaluation of mesh routing: which scenes each has, and how they are run.

At scale 1 networks have thirty brokers, every case has three graphs, and runs are as long as they
need to be; a smaller scale means shorter runs, fewer graphs and, below a fifth, a few brokers only.
Scenes do not depend on each other, so they run in several processes; results come in the order of
the scenes. What two parts have in common is run once.
"""

import gc
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar, get_args

from msgspec.structs import replace

from anabranch.sim.evaluation.delays import (
    FAILURES_RATE,
    LADDER_RATE,
    LADDER_RATE_TOO_HIGH,
    RATE,
    SHARES,
    TOO_MUCH,
    WAYS,
    Delays,
    Scene,
    run,
)
from anabranch.sim.evaluation.places import Placed, PlaceScene, run_scene
from anabranch.sim.evaluation.relaying import Relayed, RelayJob, relay

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
    delays = run(scene)
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
