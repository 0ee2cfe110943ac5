"""Rollback faults: a disk is restored from an old copy, and the operator renews its log.

One edge is the victim. It has publishers but no subscribers, because rolled-back cursors are out of
scope. Occasionally its disk is copied while it runs, like a volume snapshot. Later the broker is
killed and its disk is replaced with the copy. In half of the cases only the log is replaced, and
the catalog stays unless it would reveal the rollback itself.

Rules

1. A disk is rolled back only when a neighbour has a tick that is lost, and nearly all that the disk
   has. Otherwise the rollback could not be detected.
2. When the broker reports that its log is an old copy, the operator stops it, renews the log and
   restarts it after a while. The lost ticks are reported to the checker.
"""

from collections.abc import Callable
from random import Random

from anabranch.check import history as told
from anabranch.core.broker import Broker
from anabranch.model.network import Network
from anabranch.sim.disk import Disk
from anabranch.sim.world import World

#: Ticks that are left out above all that is known: more than are made while a link breaks.
_SPARE_TICKS = 100


class Rollbacks:
    """What happens to one disk. See the rules at the top of this module."""

    def __init__(
        self, world: World, network: Network, history: list[told.Record], chance: Random
    ) -> None:
        self._world = world
        self._history = history
        self._chance = chance
        self._rate = 0.0
        #: Whose disk it is; "" if there is nobody to notice.
        edges = list(network.edges)
        self.victim = chance.choice(edges) if len(edges) > 1 else ""
        self._copy: Disk | None = None
        self._is_over = False
        self.count = 0
        #: How often the operator had to renew the log.
        self.renewals = 0

    def begin(self, rate: float) -> None:
        """Let it happen, so often per second."""
        self._rate = rate
        if rate and self.victim:
            self._later(self._take_copy)
            self._world.after(0.1, self._operate)

    def heal(self) -> None:
        """Nothing more happens; the operator goes on."""
        self._is_over = True

    def _later(self, action: Callable[[], None]) -> None:
        self._world.after(self._chance.expovariate(2 * self._rate), action)

    def _take_copy(self) -> None:
        if self._is_over:
            return
        self._copy = self._world.hosts[self.victim].disk.copied(self._chance)
        self._later(self._strike)

    def _strike(self) -> None:
        if self._is_over:
            return
        host, old = self._world.hosts[self.victim], self._copy
        assert old is not None
        broker = host.broker
        if broker is None or not self._is_noticed(broker, old.head()):
            self._world.after(0.1, self._strike)
            return
        self._world.kill(self.victim)
        host.disk = host.disk.set_back(old, keeps_catalog=self._chance.random() < 0.5)
        self.count += 1
        self._world.after(0.02 + self._chance.random(), self._world.start, self.victim)
        self._later(self._take_copy)

    def _is_noticed(self, broker: Broker, head: int) -> bool:
        """Whether a neighbour that is there knows more than the copy, and the log is in order."""
        if broker.origin is None or broker.origin.inquiry is None:
            return False
        if broker.origin.inquiry.state != "open":
            return False
        neighbours = broker.config.network.links_of(self.victim)
        known = [self._world.hosts[name].broker for name in neighbours]
        newest = [each.witness.known(self.victim).newest for each in known if each is not None]
        known_tick = max(newest, default=0)
        made = self._world.hosts[self.victim].disk.head()
        return known_tick > head and made - known_tick < _SPARE_TICKS

    # -- the operator ---------------------------------------------------------------------------

    def _operate(self) -> None:
        host = self._world.hosts[self.victim]
        origin = None if host.broker is None else host.broker.origin
        if origin is not None and origin.inquiry is not None and origin.inquiry.verdict is not None:
            self._world.kill(self.victim)
            lost = host.disk.renew(_SPARE_TICKS)
            self._history += [told.Lost(self.victim, first, last) for first, last in lost]
            if lost:
                self.renewals += 1
            self._world.after(0.3, self._world.start, self.victim)
        self._world.after(0.3 + self._chance.random(), self._operate)
