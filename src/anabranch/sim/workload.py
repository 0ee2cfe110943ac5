"""Events and filters of simulated applications, from a small domain.

An event has a number `a`, a string `b` and sometimes a boolean `c`; `DOMAIN` has every combination,
so that a set of filters can be checked exhaustively. A filter is drawn in the plain form that the
checker reads (a tuple of conjunctions of (attribute, operator, value)) and converted to text for
the broker, so that checker and broker share no code.
"""

from collections.abc import Sequence
from itertools import product
from random import Random

from anabranch.model.event import Control, Value

Predicate = tuple[str, str, Value]
PlainFilter = tuple[tuple[Predicate, ...], ...]

_NUMBERS = range(6)
_TEXTS = ("x", "y", "z")


def _domain() -> list[dict[str, Value]]:
    events: list[dict[str, Value]] = []
    for number, text, truth in product((None, *_NUMBERS), (None, *_TEXTS), (None, True)):
        event: dict[str, Value] = {}
        if number is not None:
            event["a"] = number
        if text is not None:
            event["b"] = text
        if truth is not None:
            event["c"] = truth
        events.append(event)
    return events


#: Every event there can be, as far as filters can tell.
DOMAIN = _domain()


def draw_event(rng: Random) -> dict[str, Value]:
    """The attributes of an event."""
    event: dict[str, Value] = {"a": rng.choice(_NUMBERS), "b": rng.choice(_TEXTS)}
    if rng.random() < 0.3:
        event["c"] = True
    if rng.random() < 0.05:
        del event["b"]
    return event


def draw_control(rng: Random, clients: Sequence[str] = ()) -> Control:
    """What an event may ask for beside being delivered: to be forgotten, not to go on for ever, or
    to go to some of these clients only.

    One of the time limits is so long that it changes nothing."""
    kind = rng.randrange(5 if clients else 4)
    time_limit_s = rng.choice((0.01, 0.1, 0.5, 2.0, 1_000.0)) if kind in {1, 3} else None
    return Control(
        persistence="transient" if kind in {0, 3} else "persistent",
        time_limit_ns=None if time_limit_s is None else int(time_limit_s * 1e9),
        hop_limit=rng.randrange(5) if kind == 2 else None,
        destinations=tuple(rng.sample(clients, rng.randint(1, len(clients)))) if kind == 4 else (),
    )


def draw_filter(rng: Random) -> PlainFilter:
    """What a subscriber might want; often the same as others, often wider or narrower."""
    return tuple(_draw_conjunction(rng) for _ in range(1 if rng.random() < 0.8 else 2))


def _draw_conjunction(rng: Random) -> tuple[Predicate, ...]:
    kind = rng.random()
    number: Predicate = ("a", rng.choice(("=", "<", "<=", ">", ">=")), rng.choice(_NUMBERS))
    text: Predicate = ("b", "=", rng.choice(_TEXTS))
    if kind < 0.35:
        return (number,)
    if kind < 0.55:
        return (text,)
    if kind < 0.6:
        return (("c", "=", True),)
    return (number, text)
