"""Fault injection: the kinds of faults, their schedule, and healing.

Each kind of fault strikes at random times with the rate in the plan. `heal` ends them all: blocked
links are opened, brokers are started; clocks stay as they are.

The faults of a simulation are drawn from the seed or requested as text: `any` leaves them to the
seed, `none` has none, and otherwise the text is a list such as `kill=0.5,partition,repeat=0.1`, in
which a kind without a number gets the rate in `KINDS`. Kinds that are not in the list do not occur.
The rest of a plan does not depend on the faults, except that a long partition extends the plan by
its duration.

Long partitions. Other faults last for seconds, in which retry intervals stay short. A long
partition cuts off one broker, or about half of them, until everything is healed; by then brokers
retry rarely. Healing restores the minimum where routing supports any graph: one link between two
parts. No broker is helped by neighbours that all reconnect at once, so all guarantees must be kept
by brokers that learn of that one link. The other links stay broken to the end.
"""

import math
from collections.abc import Callable
from random import Random

import msgspec

from anabranch.model.errors import LocalError
from anabranch.model.network import Network
from anabranch.sim.world import Queue, SimLink, World

# -- long partitions -------------------------------------------------------------------------------


class Division:
    """The parts of one world, which are joined by all links, or by as few as that takes."""

    def __init__(self, world: World, rng: Random, *, by_all_links: bool) -> None:
        self._world = world
        self._rng = rng
        self._by_all_links = by_all_links
        self._broken: list[SimLink] = []

    def begin(self) -> int:
        """Divide it; returns how many links are broken."""
        names = list(self._world.hosts)
        size = self._rng.choice((1, max(1, len(names) // 2)))
        inside = set(self._rng.sample(names, size))
        wires = self._world.wires.values()
        self._broken = [wire for wire in wires if len(inside.intersection(wire.ends)) == 1]
        for wire in self._broken:
            for direction in (0, 1):
                self._world.stop(wire, direction)
        return len(self._broken)

    def heal(self) -> None:
        """Join the parts."""
        for wire in self._broken if self._by_all_links else self._joining():
            for direction in (0, 1):
                self._world.open(wire, direction)

    def _joining(self) -> list[SimLink]:
        """Broken links that join all parts, and no more of them than it takes."""
        part = {name: {name} for name in self._world.hosts}
        broken = self._rng.sample(self._broken, len(self._broken))
        whole = [wire for wire in self._world.wires.values() if wire not in self._broken]
        found = []
        for wire in whole + broken:
            one, other = wire.ends
            if part[one] is not part[other]:
                part[one] |= part[other]
                for name in part[other]:
                    part[name] = part[one]
                found.append(wire)
        return [wire for wire in found if wire in self._broken]


# -- the mix of faults -----------------------------------------------------------------------------


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
    #: A broker comes back with an empty disk; only where streams have copies.
    lose_disk: float = 0.0
    #: The same with an old copy of its disk; never drawn, only asked for, since it must be noticed.
    roll_back_disk: float = 0.0
    #: An edge misses ticks of another one, which is killed and comes back when all is healed.
    bury: float = 0.0
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
    "lose-disk": 0.4,
    "roll-back-disk": 0.6,
    "bury": 0.1,
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
                f"unknown kind of fault {kind!r}; choose from {', '.join(KINDS)},"
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


#: An origin with fewer confirmed ticks is not buried: nobody misses it.
_STREAM_MIN = 10
#: What may wait where queues are bounded.
_LINK_BYTES_MAX = 2_000
_CLIENT_BYTES_MAX = 600


class Faults:
    """The troubles of one world."""

    def __init__(self, world: World, network: Network, mix: FaultMix, division: Division) -> None:
        self._world = world
        self._network = network
        self._mix = mix
        self._division = division
        self._healed = False
        self._blocks: list[tuple[SimLink, int]] = []
        self._narrow: list[Queue] = []
        self.counts: dict[str, int] = {}
        #: Edges that stay down, or are about to.
        self._buried: set[str] = set()
        #: While a fault is going on, and a little longer.
        self.until_s = 0.0

    def begin(self) -> None:
        """Let them come."""
        self._world.weather.repeat = self._mix.repeat
        self._world.weather.jitter_s = self._mix.jitter_s
        self._world.weather.sync_s = self._mix.sync_s
        if self._mix.clog:
            self._world.weather.link_bytes_max = _LINK_BYTES_MAX
        if self._mix.slow_client:
            self._world.weather.client_bytes_max = _CLIENT_BYTES_MAX
        kinds: list[tuple[str, float, Callable[[Random], float]]] = [
            ("kill", self._mix.kill, self._kill),
            ("kill-site", self._mix.kill_site, self._kill_site),
            ("partition", self._mix.partition, self._partition),
            ("one-way", self._mix.one_way, self._one_way),
            ("cut", self._mix.cut, self._cut),
            ("clock-jump", self._mix.clock_jump, self._clock_jump),
            ("slow", self._mix.slow, self._slow),
            ("clog", self._mix.clog, self._clog),
            ("slow-client", self._mix.slow_client, self._slow_client),
            ("bury", self._mix.bury, self._bury),
        ]
        for name, rate, strike in kinds:
            if rate > 0:
                self._next(name, rate, strike)
        if self._mix.divide_s:
            self.counts["divide"] = self._division.begin()
            self.until_s = self._world.now + self._mix.divide_s

    def heal(self) -> None:
        """End them all."""
        self._healed = True
        world = self._world
        world.weather.repeat = 0.0
        world.weather.jitter_s = min(world.weather.jitter_s, 0.005)
        world.weather.sync_s = min(world.weather.sync_s, 0.01)
        for wire, direction in self._blocks:
            world.open(wire, direction)
        self._blocks.clear()
        self._division.heal()
        for queue in self._narrow:
            queue.rate = 0
        for name, host in world.hosts.items():
            host.slow_s = 0.0
            world.start(name)

    def is_on(self) -> bool:
        """Whether something is wrong at the moment."""
        return self._world.now < self.until_s

    def _next(self, name: str, rate: float, strike: Callable[[Random], float]) -> None:
        self._world.after(self._world.rng.expovariate(rate), self._strike, name, rate, strike)

    def _strike(self, name: str, rate: float, strike: Callable[[Random], float]) -> None:
        if self._healed:
            return
        lasts_s = strike(self._world.rng)
        if lasts_s:
            self.counts[name] = self.counts.get(name, 0) + 1
            self.until_s = max(self.until_s, self._world.now + lasts_s)
        self._next(name, rate, strike)

    # -- the kinds; each returns how long it lasts, 0 if it could not be ------------------------

    def _kill(self, rng: Random) -> float:
        name = rng.choice(list(self._world.hosts))
        return self._down(rng, name)

    def _down(self, rng: Random, name: str) -> float:
        if self._world.hosts[name].broker is None:
            return 0.0
        self._world.kill(name)
        lasts_s = rng.choice((0.05, 0.3, 1.0, 3.0)) * (0.5 + rng.random())
        self._world.after(lasts_s, self._world.start, name)
        return lasts_s + 0.5

    def _bury(self, rng: Random) -> float:
        """Cut off one edge for a while, so that it misses ticks, and meanwhile kill another until
        everything is healed; most of them stay up."""
        hosts = self._world.hosts
        edges = [name for name in self._network.edges if hosts[name].broker is not None]
        origins = [name for name in edges if len(hosts[name].disk.ever_synced) >= _STREAM_MIN]
        if self._buried and 4 * len(self._buried) >= len(self._network.edges):
            return 0.0
        if not origins or len(edges) < 2:
            return 0.0
        origin = rng.choice(origins)
        self._buried.add(origin)
        others = [name for name in edges if name != origin]
        reader = rng.choice([name for name in others if self._has_readers(name)] or others)
        wires = [wire for wire in self._world.wires.values() if reader in wire.ends]
        sides = [(wire, direction) for wire in wires for direction in (0, 1)]
        # Until the links break: what waits on them would come later otherwise.
        lasts_s = hosts[reader].config.options.dead_after_s + 0.3 + rng.random()
        self._cut_off(sides, lasts_s)
        self._world.after(lasts_s - 0.1, self._kill_for_long, origin)
        return lasts_s + 0.3

    def _has_readers(self, name: str) -> bool:
        broker = self._world.hosts[name].broker
        return broker is not None and broker.edge is not None and bool(broker.edge.filters())

    def _kill_for_long(self, name: str) -> None:
        if not self._healed:
            self._world.kill(name)

    def _kill_site(self, rng: Random) -> float:
        sites = [site for site in self._network.sites if len(self._network.members(site)) > 1]
        if not sites:
            return 0.0
        members = list(self._network.members(rng.choice(sites)))
        members.remove(rng.choice(members))
        return max(self._down(rng, name) for name in members)

    def _partition(self, rng: Random) -> float:
        """Cut some brokers off from all others, both ways."""
        names = list(self._world.hosts)
        inside = set(rng.sample(names, rng.randint(1, max(1, len(names) // 2))))
        wires = [wire for wire in self._world.wires.values() if _crosses(wire, inside)]
        return self._block(rng, [(wire, direction) for wire in wires for direction in (0, 1)])

    def _one_way(self, rng: Random) -> float:
        wires = list(self._world.wires.values())
        return self._block(rng, [(rng.choice(wires), rng.randrange(2))]) if wires else 0.0

    def _block(self, rng: Random, sides: list[tuple[SimLink, int]]) -> float:
        if not sides:
            return 0.0
        lasts_s = rng.choice((0.2, 1.0, 4.0)) * (0.5 + rng.random())
        self._cut_off(sides, lasts_s)
        return lasts_s + 0.3

    def _cut_off(self, sides: list[tuple[SimLink, int]], lasts_s: float) -> None:
        for wire, direction in sides:
            self._world.stop(wire, direction)
        self._blocks += sides
        self._world.after(lasts_s, self._unblock, sides)

    def _unblock(self, sides: list[tuple[SimLink, int]]) -> None:
        for side in sides:
            if side in self._blocks:
                self._blocks.remove(side)
                self._world.open(*side)

    def _cut(self, rng: Random) -> float:
        wires = [wire for wire in self._world.wires.values() if wire.is_up]
        if not wires:
            return 0.0
        wire = rng.choice(wires)
        self._world.cut(wire, wire.number)
        return 0.4

    def _clock_jump(self, rng: Random) -> float:
        host = self._world.hosts[rng.choice(list(self._world.hosts))]
        jump_s = rng.choice((-3_600.0, -5.0, -0.5, 0.5, 5.0, 3_600.0))
        host.machine_offset_s += jump_s
        host.broker_offset_s += max(0.0, jump_s)
        return 0.5

    def _slow(self, rng: Random) -> float:
        name = rng.choice(list(self._world.hosts))
        self._world.hosts[name].slow_s = rng.choice((0.02, 0.1, 0.5))
        lasts_s = 1.0 + rng.random() * 2
        self._world.after(lasts_s, self._hurry, name)
        return lasts_s

    def _hurry(self, name: str) -> None:
        self._world.hosts[name].slow_s = 0.0

    def _clog(self, rng: Random) -> float:
        """A link that carries little; what waits on it grows."""
        wires = list(self._world.wires.values())
        if not wires:
            return 0.0
        return self._narrow_down(rng, rng.choice(wires).queues[rng.randrange(2)])

    def _slow_client(self, rng: Random) -> float:
        """A client that reads slowly."""
        hosts = self._world.hosts.values()
        found = [each for host in hosts for each in host.sessions.values() if each.is_open]
        return self._narrow_down(rng, rng.choice(found).queue) if found else 0.0

    def _narrow_down(self, rng: Random, queue: Queue) -> float:
        queue.rate = rng.choice((500, 2_000, 6_000))
        self._narrow.append(queue)
        lasts_s = 1.0 + rng.random() * 2
        self._world.after(lasts_s, self._widen, queue)
        return lasts_s

    def _widen(self, queue: Queue) -> None:
        queue.rate = 0


def _crosses(wire: SimLink, inside: set[str]) -> bool:
    return (wire.ends[0] in inside) != (wire.ends[1] in inside)
