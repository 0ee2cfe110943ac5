"""Reports of how busy links are, as a process would make them.

Every `every_s` the broker at either end of a link hears how many bytes it gave to it, how many
arrived, and how many are on the way, unless there is nothing to say and was nothing before.
"""

from anabranch.core import contract as say
from anabranch.sim.things import Wire
from anabranch.sim.world import World


class LoadReports:
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
        self, wire: Wire, direction: int, before: dict[tuple[tuple[str, str], int, int], int]
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
        self._world.stimulate(sender, say.LinkLoad(peer, given, gone, waiting))
