"""Effort: what one slice may cost the interpreter, which the event loop waits for.

Kernels do without the interpreter; a record that Python judges does not. A filter that no kernel
decides makes that every record, for seconds. Rules:

1. A slice ends before the record that would be one too many (`JUDGED_MAX`), so that sessions take
   turns, and a broker that ends does not wait.
2. Every few records the thread sleeps for a moment, and whoever waits goes first. Without that, the
   loop would wait for milliseconds at each of its steps: nobody gives the interpreter up sooner.

State: how much is left of one slice.
"""

import time
from collections.abc import Callable

#: Records of one slice that Python judges, at some 10 µs each.
JUDGED_MAX = 4_000
_BREATH_EVERY = 64
_BREATH_S = 0.00005


def _breathe() -> None:
    time.sleep(_BREATH_S)


class Effort:
    """What is left of it. See the rules at the top of this module."""

    __slots__ = ("_breathe", "left")

    def __init__(
        self, judged_max: int = JUDGED_MAX, breathe: Callable[[], None] = _breathe
    ) -> None:
        #: Records that may still be judged.
        self.left = judged_max
        self._breathe = breathe

    def spend(self) -> None:
        """One more record is judged."""
        self.left -= 1
        if self.left % _BREATH_EVERY == 0:
            self._breathe()
