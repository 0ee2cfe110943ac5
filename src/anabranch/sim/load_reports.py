"""Simulated load reports of links and brokers.

Every `every_s` each end of a link receives the number of bytes it sent, the number that arrived,
and the number in flight, unless the link is and was idle.

CPU load has no meaning in virtual time, so it is drawn at random: most brokers are idle or busy,
some are overloaded, and some report implausible values. It changes occasionally until the world is
calm.
"""

from random import Random

from anabranch.core import contract
from anabranch.sim.world import SimLink, World

#: Events per second, and the seconds that one takes and waits.
_MOODS = (
    (0.0, 0.0, 0.0),
    (10.0, 0.001, 0.001),
    (200.0, 0.002, 0.01),
    (90.0, 0.01, 0.2),
    (500.0, 0.1, 5.0),
    (1e9, 1e6, 1e9),
)


class BrokerLoadReports:
    """Tells brokers how busy they are. See the top of this module."""

    def __init__(self, world: World, every_s: float, rng: Random) -> None:
        self._world = world
        self._every_s = every_s
        self._rng = rng
        self._moods = {name: rng.choice(_MOODS) for name in sorted(world.hosts)}
        #: Loads stay as they are from now on.
        self.is_calm = False
        world.after(every_s, self._report)

    def _report(self) -> None:
        if not self.is_calm and self._rng.random() < 0.2:
            self._moods[self._rng.choice(sorted(self._moods))] = self._rng.choice(_MOODS)
        for name in sorted(self._world.hosts):
            rate, match_s, queue_s = self._moods.get(name, _MOODS[0])
            events = round(rate * self._every_s)
            load = contract.BrokerLoad(self._every_s, events, events * match_s, queue_s)
            self._world.stimulate(name, load)
        self._world.after(self._every_s, self._report)


class LinkLoadReports:
    """Tells brokers the loads of their links."""

    def __init__(self, world: World, every_s: float) -> None:
        self._world = world
        self._every_s = every_s
        #: (link, connection, direction) → bytes on the way when it was reported last.
        self._waiting: dict[tuple[tuple[str, str], int, int], int] = {}
        world.after(every_s, self._report)

    def _report(self) -> None:
        before, self._waiting = self._waiting, {}
        for wire in list(self._world.wires.values()):
            if wire.is_up:
                for direction in (0, 1):
                    self._report_one(wire, direction, before)
        self._world.after(self._every_s, self._report)

    def _report_one(
        self, wire: SimLink, direction: int, before: dict[tuple[tuple[str, str], int, int], int]
    ) -> None:
        queue, key = wire.queues[direction], (wire.ends, wire.number, direction)
        waited = before.get(key, 0)
        given, gone = queue.given, queue.gone
        waiting = max(waited + given - gone, 0)
        if not (given or waiting or waited):
            return
        queue.given = queue.gone = 0
        self._waiting[key] = waiting
        sender, peer = wire.ends[1 - direction], wire.ends[direction]
        self._world.stimulate(sender, contract.LinkLoad(peer, given, gone, waiting))
