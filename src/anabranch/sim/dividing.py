"""A network that is in parts for minutes, and held together by few links afterwards.

Faults that come and go last for seconds, in which no pause between two questions gets long. Here
one broker, or about half of them, are cut off from the others until all is healed: by then
everybody who misses somebody asks seldom. What heals is the least that there can be where routing
goes over any graph: one link between two parts. Nobody gets help from neighbours that all come back
at once, and all promises have to be kept by what hears of that link. The others stay broken to the
end.
"""

from random import Random

from anabranch.sim.things import SimLink
from anabranch.sim.world import World


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
