"""Histories of simulations as clients would have told them, with mistakes put into them.

Each mistake is a function that changes a history in place. What the checker finds in the result is
what an audit of the same records has to find.
"""

import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TypeVar

import msgspec

from anabranch.check import history as saw
from anabranch.check.checker import check
from anabranch.devnet.verdict import concluded
from anabranch.sim.runner import Order, plan_of
from anabranch.sim.simulation import Simulation
from anabranch.spark.audit.verdicts import KINDS

#: Kind, subscription, stream, tick.
Place = tuple[str, str, str, int]
History = list[saw.Record]
Told = saw.Delivered | saw.Started | saw.Logged
LoggedRow = tuple[str, int, str, int, int, str | None]

_KEPT = (
    saw.Published,
    saw.Confirmed,
    saw.Abandoned,
    saw.Subscribed,
    saw.Started,
    saw.Delivered,
    saw.WithheldTold,
    saw.Ended,
    saw.Cut,
    saw.Logged,
)


def simulated(seed: int) -> History:
    """What clients would have written down in a simulation, and what was logged."""
    simulation = Simulation(plan_of(Order(shape="star", faults="kill=0.3,cut"), seed))
    assert not simulation.run().anomalies
    return [_as_clients_tell(record) for record in simulation.history if isinstance(record, _KEPT)]


def _as_clients_tell(record: saw.Record) -> saw.Record:
    if not isinstance(record, saw.Published):
        return record
    is_free = record.time_limit_s is None and record.reach is None and not record.destinations
    optional = record.optional or record.transient or not is_free
    name = (record.publisher, record.incarnation, record.sequence)
    return saw.Published(record.time, *name, record.attributes, record.broker, optional)


def lose(rng: Random, history: History) -> None:
    history.pop(rng.choice(_where(history, saw.Delivered)))


def repeat(rng: Random, history: History) -> None:
    place = rng.choice(_where(history, saw.Delivered))
    history.insert(rng.randrange(place, len(history)), history[place])


def delay(rng: Random, history: History) -> None:
    place = rng.choice(_where(history, saw.Delivered))
    record = history.pop(place)
    history.insert(min(len(history), place + rng.randrange(1, 40)), record)


def make_up(rng: Random, history: History) -> None:
    place, record = _one(rng, history, saw.Delivered)
    tick = rng.choice((record.tick, 100_000, rng.randrange(1, 60)))
    history[place] = msgspec.structs.replace(record, tick=tick, sequence=4_711)


def misplace(rng: Random, history: History) -> None:
    """An event comes at the tick of another."""
    place, record = _one(rng, history, saw.Delivered)
    _, other = _one(rng, history, saw.Delivered)
    history[place] = msgspec.structs.replace(record, tick=other.tick)


def bring_to_somebody(rng: Random, history: History) -> None:
    place, record = _one(rng, history, saw.Delivered)
    where, other = _one(rng, history, saw.Delivered)
    brought = msgspec.structs.replace(record, subscription=other.subscription)
    history.insert(rng.choice((place, where)) + 1, brought)


def forget_to_log(rng: Random, history: History) -> None:
    history.pop(rng.choice(_where(history, saw.Logged)))


def log_again(rng: Random, history: History) -> None:
    _, record = _one(rng, history, saw.Logged)
    history.append(msgspec.structs.replace(record, tick=90_000 + rng.randrange(9)))


def log_out_of_order(rng: Random, history: History) -> None:
    """Two ticks of a log have each other's events."""
    place, first = _one(rng, history, saw.Logged)
    where, second = _one(rng, history, saw.Logged)
    history[place] = msgspec.structs.replace(second, stream=first.stream, tick=first.tick)
    history[where] = msgspec.structs.replace(first, stream=second.stream, tick=second.tick)


def start_elsewhere(rng: Random, history: History) -> None:
    place, record = _one(rng, history, saw.Started)
    tick = max(1, record.tick + rng.choice((-1, 1, 5)))
    history[place] = msgspec.structs.replace(record, tick=tick)


_Kind = TypeVar("_Kind", saw.Delivered, saw.Started, saw.Logged)


def _one(rng: Random, history: History, kind: type[_Kind]) -> tuple[int, _Kind]:
    place = rng.choice(_where(history, kind))
    record = history[place]
    assert isinstance(record, kind)
    return place, record


def _where(history: History, kind: type[saw.Record]) -> list[int]:
    return [place for place, record in enumerate(history) if isinstance(record, kind)]


SPOIL: tuple[Callable[[Random, History], None], ...] = (
    lose, repeat, delay, make_up, misplace, bring_to_somebody, forget_to_log, log_again,
    log_out_of_order, start_elsewhere,
)  # fmt: skip


def spoiled(case: int, history: History) -> History:
    """The history of a case: with some mistakes, and with names that no other case has."""
    rng = Random(case)
    history = list(history)
    for _ in range(case % 6):
        rng.choice(SPOIL)(rng, history)
    return [_renamed(case, record) for record in history]


def _renamed(case: int, record: saw.Record) -> saw.Record:
    fields = ("subscription", "stream", "publisher", "broker")
    names: dict[str, object] = {
        field: f"{case}/{getattr(record, field)}" for field in fields if hasattr(record, field)
    }
    if isinstance(record, saw.Subscribed):
        starts = {f"{case}/{stream}": tick for stream, tick in record.latest_start.items()}
        names["latest_start"] = starts
    return msgspec.structs.replace(record, **names)


def checked(history: History) -> Counter[Place]:
    """What the checker finds, of what an audit is about."""
    called = {"gap": "lost"}
    return Counter(
        (called.get(each.name, each.name), each.subscription, each.stream, each.tick)
        for each in check(concluded(history))
        if called.get(each.name, each.name) in KINDS
    )


def logged_rows(history: History) -> list[LoggedRow]:
    """The rows of `published`, with attributes as JSON."""
    events = {
        (record.publisher, record.incarnation, record.sequence): record
        for record in history
        if isinstance(record, saw.Published)
    }
    rows: list[LoggedRow] = []
    for record in history:
        if isinstance(record, saw.Logged):
            name = (record.publisher, record.incarnation, record.sequence)
            event = events.get(name)
            text = None if event is None else json.dumps(dict(event.attributes))
            rows.append((record.stream, record.tick, *name, text))
    return rows
