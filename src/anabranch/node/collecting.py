"""The garbage collector of a broker process, without long pauses.

A full collection looks at every object there is. With ten thousand subscriptions it takes a third
of a second, and nothing else runs meanwhile. Nearly all garbage of a broker is freed without it, by
counting references. Rules:

1. After each full collection what is left is frozen: no later one looks at it. So a collection
   looks only at what came since the last one, `YOUNG_MAX` times `GENERATIONS` objects, which takes
   a few hundredths of a second.
2. Objects that refer to each other, were frozen, and are dropped later stay in memory. After every
   `FREEZES_MAX` collections everything is looked at once, so what they take is bounded. That one
   pause is long. It comes after tens of millions of new objects, and counts as a step too long.

State: a count. Belongs to the process; an embedded broker leaves the collector alone.
"""

import gc

#: Objects, more than were freed, after which the youngest are looked at; and how many such looks
#: there are before those that survived are looked at, and then all that are not frozen.
YOUNG_MAX = 10_000
GENERATIONS = (5, 2)
FREEZES_MAX = 400


class Collector:
    """Rules the garbage collector of this process. See the rules at the top of this module."""

    def __init__(self) -> None:
        self._freezes = 0

    def start(self) -> None:
        """Collect all garbage now, and freeze the rest."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_MAX, *GENERATIONS)
        self._freezes = 0
        if self._look not in gc.callbacks:
            gc.callbacks.append(self._look)

    def stop(self) -> None:
        """Leave the collector alone from now on."""
        if self._look in gc.callbacks:
            gc.callbacks.remove(self._look)

    def _look(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop" or info["generation"] < len(GENERATIONS):
            return
        self._freezes += 1
        if self._freezes > FREEZES_MAX:
            self._freezes = 0
            gc.unfreeze()
        else:
            gc.freeze()
