"""The parts of the evaluation of mesh routing: which scenes each has, and how they are run.

At scale 1 networks have thirty brokers and runs are as long as they need to be; a smaller scale
means shorter runs, fewer graphs and, below a fifth, a few brokers only. Scenes do not depend on
each other, so they run in several processes; results come in the order of the scenes.
"""

import gc
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar, get_args

from msgspec.structs import replace

from anabranch.sim.evaluation.delays import LADDER_RATE, RATE, SHARES, WAYS, Delays, Scene, run
from anabranch.sim.evaluation.places import Placed, PlaceScene, run_scene

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
_GRAPHS = 2


def scenes(part: DelayPart, scale: float, seed: int) -> list[Scene]:
    """All runs of a part."""
    cases = _cases(part, scale)
    seeds = range(seed, seed + max(1, round(_graphs(part) * scale)))
    return [replace(case, way=way, seed=each) for case in cases for way in WAYS for each in seeds]


def _graphs(part: DelayPart) -> int:
    """How many graphs of a kind; the others have one."""
    return _GRAPHS if part in ("degree", "grown", "publishers", "hops") else 1


def _cases(part: DelayPart, scale: float) -> list[Scene]:
    brokers = _BROKERS if scale >= _FEW_BELOW else _FEW
    seconds = max(_SECONDS_MIN, _SECONDS * scale)
    plain = Scene(part=part, case="", way="", brokers=brokers, seconds=seconds)
    if part == "degree":
        names = {"degree 2": 2, "degree 4": 4, "full mesh": 0}
        return [replace(plain, case=name, degree=degree) for name, degree in names.items()]
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
        return [replace(plain, case="ladder", degree=-1, brokers=length, rate=LADDER_RATE)]
    if part == "failures":
        return [replace(plain, case="full mesh, two die", degree=0, seconds=2 * seconds)]
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


def play_all(every: Sequence[Scene], processes: int) -> Iterator[Delays]:
    """All of them, in order."""
    yield from _in_processes(play, every, processes)


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
