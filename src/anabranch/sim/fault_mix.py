"""Which faults a simulation has, and how often: what the seed draws, or what somebody asked for.

Asked for is a text: `any` leaves it to the seed, `none` has no faults, and otherwise it is a list
such as `kill=0.5,partition,repeat=0.1`, in which a kind without a number gets the one in `KINDS`.
Kinds that are not in the list do not occur. The rest of a plan does not depend on the mix, but
where a network is divided: the plan is stretched by as long as that takes.
"""

import math
from random import Random

import msgspec

from anabranch.model.errors import LocalError

ANY = "any"
NONE = "none"


class FaultMix(msgspec.Struct, frozen=True, kw_only=True):
    """How often what happens, per simulated second over the whole network; 0: never."""

    kill: float = 0.0
    #: All but one broker of a site at once.
    kill_site: float = 0.0
    partition: float = 0.0
    one_way: float = 0.0
    cut: float = 0.0
    clock_jump: float = 0.0
    slow: float = 0.0
    #: A link that carries little for a while, so that its sender hears that it is full.
    clog: float = 0.0
    #: A client that reads slowly for a while, likewise.
    slow_client: float = 0.0
    #: The network becomes another one.
    reconfigure: float = 0.0
    #: A disk is replaced by an old copy of itself; never drawn, only asked for, since little else
    #: may happen then.
    rollback: float = 0.0
    #: How long the network is in two parts, up to the end of all faults; never drawn, only asked
    #: for, since minutes are dear.
    divide_s: float = 0.0
    #: Chance that a frame comes twice.
    repeat: float = 0.0
    jitter_s: float = 0.003
    #: How long a sync takes, about.
    sync_s: float = 0.004


#: Kind → the number it gets if none is given: a rate per second, a chance, or seconds.
KINDS: dict[str, float] = {
    "kill": 0.6,
    "kill-site": 0.3,
    "partition": 0.3,
    "one-way": 0.4,
    "cut": 1.0,
    "clock-jump": 0.3,
    "slow": 0.3,
    "clog": 0.4,
    "slow-client": 0.6,
    "reconfigure": 0.4,
    "rollback": 0.4,
    "divide": 120.0,
    "repeat": 0.1,
    "jitter": 0.05,
    "sync": 0.1,
}
_SECONDS = ("divide", "jitter", "sync")
#: The greatest number of a kind, where that is not `_HIGHEST`.
_HIGHEST_OF = {"repeat": 1.0, "divide": 3_600.0}
_HIGHEST = 100.0


def asked_mix(text: str) -> FaultMix | None:
    """The mix that a text asks for; None if that is left to the seed."""
    if text == ANY:
        return None
    if text == NONE:
        return FaultMix()
    numbers: dict[str, float] = {}
    for part in text.split(","):
        kind, equals, number = part.strip().partition("=")
        if kind not in KINDS:
            raise LocalError(
                f"there is no kind of fault {kind!r}; there are {', '.join(KINDS)},"
                f" or {ANY} or {NONE} alone"
            )
        field = f"{kind}_s" if kind in _SECONDS else kind.replace("-", "_")
        if field in numbers:
            raise LocalError(f"the fault {kind!r} is there twice in {text!r}; name it once")
        numbers[field] = _number(kind, number) if equals else KINDS[kind]
    return FaultMix(**numbers)


def _number(kind: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    highest = _HIGHEST_OF.get(kind, _HIGHEST)
    if not 0 <= number <= highest:
        raise LocalError(
            f"the fault {kind!r} has {text!r}; give it a number from 0 to {highest:g}, or none"
        )
    return number


def draw_mix(rng: Random, more: Random, changing: Random, brokers: int) -> FaultMix:
    """Most seeds have a few kinds of faults, some have none, some have them all."""

    def sometimes(chance: float, *rates: float, source: Random = rng) -> float:
        return source.choice(rates) if source.random() < chance else 0.0

    return FaultMix(
        kill=sometimes(0.7, 0.2, 0.6, 1.5) * max(1.0, brokers / 6),
        kill_site=sometimes(0.3, 0.2, 0.5),
        partition=sometimes(0.4, 0.2, 0.5),
        one_way=sometimes(0.3, 0.3, 0.6),
        cut=sometimes(0.5, 0.5, 2.0),
        clock_jump=sometimes(0.2, 0.3),
        slow=sometimes(0.3, 0.3),
        repeat=sometimes(0.3, 0.02, 0.2),
        jitter_s=rng.choice((0.001, 0.005, 0.05)),
        sync_s=rng.choice((0.002, 0.01, 0.1)),
        clog=sometimes(0.2, 0.3, 1.0, source=more),
        slow_client=sometimes(0.2, 0.5, 1.5, source=more),
        reconfigure=sometimes(0.2, 0.2, 0.5, source=changing),
    )
