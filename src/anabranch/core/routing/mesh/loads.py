"""Loads: how busy each link is, and what that makes a way cost.

The driver says, every now and then, how many bytes were given to a link, how many went out, and how
many wait. Of these a *cost* is made; where the nearest way is over a link that does not keep up,
events take one that costs less (see `choosing`). Costs:

- `utilisation`: bytes that were to go over bytes gone, smoothed. It is 1 while the link keeps up,
  and grows up to 16 while it does not. What was to go is what was given and what waited before: a
  link that works off a long queue does not keep up yet. A link that had nothing left at either end
  of the period did: what was given a moment ago is not late.
- `waiting`: the bytes that wait.

A link that says that it is full costs more than every other. All of this is measured at the own
end of a link: no neighbour is asked, so none can lie.

State: one number per link; safe to lose.

Prior art: the link status table, spec PADRES section 3.
"""

from collections.abc import Callable

from anabranch.core.routing.mesh.surroundings import Surroundings

#: How much of a new measurement is taken over.
_SHARE = 0.5

#: A link that lets nothing through is no worse than this, so that it is soon forgotten.
UTILISATION_MAX = 16.0

#: Given, gone and waiting bytes → cost.
Cost = Callable[[int, int, int], float]


def utilisation(given: int, gone: int, waiting: int) -> float:
    """Bytes given, and waiting before, over bytes gone; 1 if nothing waited before, or does now."""
    waited = waiting + gone - given
    if waited <= 0 or waiting <= 0:
        return 1.0
    return min((given + waited) / gone, UTILISATION_MAX) if gone else UTILISATION_MAX


def waiting_bytes(given: int, gone: int, waiting: int) -> float:
    """The bytes that wait."""
    del given, gone
    return float(waiting)


#: By name; each with the step in which it is compared, so that noise does not move anything.
COSTS: dict[str, tuple[Cost, float]] = {
    "utilisation": (utilisation, 0.125),
    "waiting": (waiting_bytes, 4_096.0),
}


class Loads:
    """The cost of every link. See the top of this module."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._cost, self._step = COSTS[around.options.cost]
        self._idle = self._cost(0, 0, 0)
        self._costs: dict[str, float] = {}

    def report(self, peer: str, given: int, gone: int, waiting: int) -> None:
        """What the driver measured on a link since its last report."""
        fresh = self._cost(given, gone, waiting)
        before = self._costs.get(peer, fresh)
        self._costs[peer] = before + _SHARE * (fresh - before)

    def link_down(self, peer: str) -> None:
        """A link is gone."""
        self._costs.pop(peer, None)

    def measured(self, peer: str) -> float:
        """The cost as it was measured, for people."""
        return self._costs.get(peer, self._idle)

    def is_busy(self, peer: str) -> bool:
        """Whether sending over a link costs more than over one that keeps up."""
        return self.cost(peer) > self._idle // self._step

    def cost(self, peer: str) -> float:
        """What sending over a link costs, in steps; higher is worse."""
        if self._around.links.get(peer, True):
            return float("inf")
        return self._costs.get(peer, self._idle) // self._step
