"""Histories of a network as text: drawn at random, played again, and made shorter.

One line is one step:

    subscribe EDGE NAME FILTER     unsubscribe NAME       wait SECONDS
    deliver FROM TO                publish EDGE A B       mark EDGE
    connect ONE OTHER              disconnect ONE OTHER   crash BROKER    restart BROKER
    rest                           settle

`deliver` takes the next frame of a link, `rest` takes all there are. `mark` lets an origin make a
mark and tell its head. `settle` makes the network whole, lets it rest, and asks whether everybody
knows everything. A step that is impossible by now (a broker is down, a link is empty) does nothing,
so that a history stays one when lines are left out.
"""

import random
from collections.abc import Callable, Iterator, Sequence

from tests.model.lockstep import Lockstep

#: Shares of the kinds of steps.
STEPS = {
    "deliver": 50,
    "wait": 12,
    "subscribe": 10,
    "unsubscribe": 8,
    "publish": 6,
    "mark": 4,
    "disconnect": 3,
    "connect": 3,
    "crash": 1,
    "restart": 2,
}
WAITS = ("0.005", "0.01", "0.02", "0.1", "0.3")


def play(world: Lockstep, line: str) -> None:
    """Do one step."""
    verb, *rest = line.split(maxsplit=1)
    match verb, (rest[0].split(maxsplit=2) if rest else []):
        case "subscribe", [edge, name, text]:
            if world.hosts[edge].is_up:
                world.subscribe(edge, name, text)
        case "unsubscribe", [name]:
            for each in world.subscriptions:
                if each.name == name and each.end is None:
                    world.unsubscribe(each)
        case "wait", [seconds]:
            world.pass_time(float(seconds))
        case "deliver", [one, other]:
            if world.links.get((one, other)):
                world.deliver((one, other))
        case "publish", [edge, a, b]:
            if world.hosts[edge].is_up:
                world.publish(edge, {"a": int(a), "b": int(b)})
        case "mark", [edge]:
            if world.hosts[edge].is_up:
                world.hosts[edge].make_mark()
                world.hosts[edge].tell_head()
        case (("connect" | "disconnect"), [one, other]):
            (world.connect if verb == "connect" else world.disconnect)(one, other)
        case "crash", [name]:
            if world.hosts[name].is_up:
                world.crash(name)
        case "restart", [name]:
            if not world.hosts[name].is_up:
                world.hosts[name].start()
        case "rest", []:
            while world.deliver_one():
                pass
        case "settle", []:
            world.connect_all()
            world.settle(20)
            world.check_all()
            world.check_converged()
        case _:
            raise ValueError(f"no step: {line}")


def random_lines(
    world: Lockstep, source: random.Random, texts: Sequence[str], count: int
) -> Iterator[str]:
    """Steps that are possible when they are drawn."""
    brokers, edges = world.network.brokers, world.network.edges
    links = [(a, b) for a in brokers for b in world.network.links_of(a) if a < b]
    for number in range(count):
        match source.choices(list(STEPS), list(STEPS.values()))[0]:
            case "deliver":
                waiting = [link for link, frames in world.links.items() if frames]
                yield "deliver {} {}".format(*source.choice(waiting or links))
            case "wait":
                yield f"wait {source.choice(WAITS)}"
            case "subscribe":
                yield f"subscribe {source.choice(edges)} n{number} {source.choice(texts)}"
            case "unsubscribe":
                lasting = [each.name for each in world.subscriptions if each.end is None]
                yield f"unsubscribe {source.choice(lasting or ['nobody'])}"
            case "publish":
                yield f"publish {source.choice(edges)} {source.randrange(4)} {source.randrange(4)}"
            case "mark":
                yield f"mark {source.choice(edges)}"
            case ("connect" | "disconnect") as verb:
                yield "{} {} {}".format(verb, *source.choice(links))
            case "crash":
                yield f"crash {source.choice(brokers)}"
            case _:
                down = [name for name, host in world.hosts.items() if not host.is_up]
                yield f"restart {source.choice(down or brokers)}"


def shortened(lines: Sequence[str], fails: Callable[[Sequence[str]], bool]) -> list[str]:
    """Fewer lines that still fail: none of them can be left out."""
    kept, size = list(lines), max(len(lines) // 2, 1)
    while True:
        before, place = len(kept), 0
        while place < len(kept):
            shorter = kept[:place] + kept[place + size :]
            if fails(shorter):
                kept = shorter
            else:
                place += size
        if size == 1 and len(kept) == before:
            return kept
        size = max(size // 2, 1)
