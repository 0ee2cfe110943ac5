"""What goes wrong in a simulation, when, and how it is put right again.

Each kind of fault strikes at random times with the rate of the plan. `heal` ends them all: blocks
are opened, brokers are started, clocks stay as they are. A network that was divided is joined by
few links (see `dividing`).
"""

from collections.abc import Callable
from random import Random

from anabranch.model.network import Network
from anabranch.sim.dividing import Division
from anabranch.sim.fault_mix import FaultMix
from anabranch.sim.things import Queue, SimLink
from anabranch.sim.world import World

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
        for wire, direction in sides:
            self._world.stop(wire, direction)
        self._blocks += sides
        lasts_s = rng.choice((0.2, 1.0, 4.0)) * (0.5 + rng.random())
        self._world.after(lasts_s, self._unblock, sides)
        return lasts_s + 0.3

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
