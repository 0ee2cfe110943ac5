"""How scenario files write frames, vectors, events and what a broker knows.

The notation follows the source as far as it goes: a change is written as the versions it leads to,
the conjunctions that come and go, the site it is from, and the vector its receiver must have. A
version is `life.counter`; 0 is the version of an edge nobody has heard of.
"""

from collections.abc import Iterable, Iterator, Mapping

from anabranch.core.routing.interest_clock import Conjunct, InterestClock, unpack
from anabranch.core.routing.tree.presence import Presence
from anabranch.core.routing.tree.tree import TreeRouter
from anabranch.matching.dag import DagNode
from anabranch.model.encoding import decode_event
from anabranch.model.event import Value
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Conjuncts
from anabranch.model.frames import (
    AskInterest,
    AskMark,
    InterestChange,
    InterestState,
    Knowledge,
    LinkFrame,
    MarkIs,
)
from anabranch.model.language.expression import Or
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.network import Network
from anabranch.model.version import NOTHING, Version


def vector(versions: Mapping[str, Version]) -> str:
    """`(SB1:1.2, SB2:0)`, by name."""
    return "(" + ", ".join(f"{edge}:{version(versions[edge])}" for edge in sorted(versions)) + ")"


def version(each: Version) -> str:
    return "0" if each == NOTHING else str(each)


def conjunction(conjunct: Conjunct) -> str:
    """The part of a filter that a conjunction is."""
    expression = conjunct.filter.expression
    for item in expression.items if isinstance(expression, Or) else ():
        part = Filter.of(item)
        if part.conjunctions == (conjunct.conjunction,):
            return str(part)
    return str(conjunct)


def _conjunctions(packed: Iterable[Conjuncts], sign: str = "") -> list[str]:
    return [f"{sign}({conjunction(each)})" for each in unpack(packed, DEFAULT_LIMITS)]


def _set(*parts: str) -> str:
    return "{" + ", ".join(parts) + "}"


def event(attributes: Mapping[str, Value]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in attributes.items())


def attributes(parts: Iterable[str]) -> dict[str, Value]:
    """From `name=value`; what is a whole number is one, the rest is text."""
    pairs = [part.split("=", 1) for part in parts]
    return {name: int(value) if value.isdigit() else value.strip("'") for name, value in pairs}


def ticks(first: int, last: int) -> str:
    return f"tick {first}" if first == last else f"ticks {first} to {last}"


def links(network: Network) -> str:
    """How many brokers and links there are."""
    count = sum(len(network.links_of(name)) for name in network.brokers) // 2
    return f"{len(network.brokers)} brokers, {count} links, all up"


# -- frames ---------------------------------------------------------------------------------------


def frame(each: LinkFrame) -> str:
    """One line."""
    match each:
        case InterestChange():
            parts = _set(*_conjunctions(each.plus, "+"), *_conjunctions(each.minus, "-"))
            told = " (peer)" if each.from_peer else ""
            constraint = vector(each.constraint)
            return f"change {vector(each.advance)} {parts} {each.source} cons={constraint}{told}"
        case InterestState():
            told = " (peer)" if each.from_peer else ""
            told += " (pass on)" if each.onward else ""
            parts = _set(*_conjunctions(each.conjunctions))
            return f"state {vector(each.vector)} {parts} {each.source}{told}"
        case AskInterest():
            seen = f", there is {vector(each.seen)}" if each.seen else ""
            return f"what does {each.site} know beyond {vector(each.known)}{seen}?"
        case MarkIs():
            return f"mark {each.mark} of {each.stream} is {vector(each.vector)}"
        case AskMark():
            return f"which vector has mark {each.mark} of {each.stream}?"
        case Knowledge():
            return _knowledge(each)
        case _:
            return type(each).__name__


def _knowledge(each: Knowledge) -> str:
    parts = [f"{d.tick} {_body(d.body)}" for d in each.data]
    parts += [
        f"silence {first}" if first == last else f"silence {first}-{last}"
        for first, last in each.silent
    ]
    only = f" for {each.target}" if each.target else ""
    return f"{each.stream}'s ticks{only}, mark {each.mark}: " + ("; ".join(parts) or "none")


def _body(body: bytes) -> str:
    return "(" + event(decode_event(body).attributes) + ")"


# -- what a broker knows --------------------------------------------------------------------------


def broker(name: str, router: TreeRouter) -> Iterator[str]:
    """All presences of a broker; its clock first, if it is an edge."""
    if router.clock is not None:
        yield from _clock(name, router.clock)
    for site, presence in router._presences.items():
        if router.clock is None or site != name:
            yield from _presence(name, presence)
        elif presence.versions:
            yield f"  {name} as an origin: V^b {vector(presence.versions)}"
            yield from _wanted(presence)


def _clock(name: str, clock: InterestClock) -> Iterator[str]:
    yield f"  {name} as an edge: the next version is {clock.current}"
    for subscription, start in clock.subscriptions.items():
        yield f"    {subscription} is in version {start}"
    if clock._dag is not None:
        owners = {id: name for name, each in clock._subscriptions.items() for id in each.ids}
        for root in clock._dag.roots():
            yield from _starts(clock, root, owners, "    ")


def _starts(
    clock: InterestClock, node: DagNode, owners: Mapping[int, str], indent: str
) -> Iterator[str]:
    names = sorted({owners[id] for id in node.ids if id in owners})  # type: ignore[index]
    text = conjunction(clock._conjuncts[node])
    yield f"{indent}{text}  from {clock._starts[node]}  [{' '.join(names)}]"
    for lower in node.below:
        yield from _starts(clock, lower, owners, indent + "    ")


def _presence(name: str, presence: Presence) -> Iterator[str]:
    yield f"  {name} in {presence.site}: V^b {vector(presence.versions)}"
    yield from _wanted(presence)
    interest = presence.interest
    if interest._dag is not None and interest:
        yield "    DAG"
        for root in interest._dag.roots():
            yield from _subscribers(presence, root, "      ")


def _wanted(presence: Presence) -> Iterator[str]:
    for direction in presence.view.directions:
        parts = [f"({conjunction(each)})" for each in presence.interest.conjuncts(direction)]
        yield f"    Λ towards {direction}: {_set(*parts)}"


def _subscribers(presence: Presence, node: DagNode, indent: str) -> Iterator[str]:
    subscribers = presence.interest._subscribers[node]
    text = conjunction(next(iter(subscribers.values())).conjunct)
    yield f"{indent}{text}  [{' '.join(subscribers)}]"
    for lower in node.below:
        yield from _subscribers(presence, lower, indent + "    ")
