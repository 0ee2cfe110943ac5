"""How much is looked at for one event, and the end of it.

Whatever a search looks at is taken from one number: a slot that the event might fill, a place of a
shelf that is looked up, an event that might belong there or might be a witness, and a match that is
found, by its size. So what an event costs is bounded by `pattern_tries_max`, whatever the pattern
is and whatever came before. Rules:

1. One try is about one comparison of an event, or one look-up. Where much has to be compared for
   one, because it has many joins, every eight count as one more (`weight_of`).
2. Who spends more than is left has not finished (`TriesExceeded`), and somebody is told.
3. All detectors of a broker share one `Allowance`: what they may try in one step. An event that was
   begun is finished; the rest waits for the next step. So it changes when, and never what.

State: what is left for the event that is looked at, and for the step.
"""

from typing import Final

#: What it counts to look up a place of a shelf, in the time that it takes to look at one entry.
LOOK_UP_TRIES: Final = 3


class TriesExceeded(Exception):  # noqa: N818  # nothing is wrong, but a bound is reached
    """More would have to be tried for one event than is allowed."""


class MatchesExceeded(Exception):  # noqa: N818  # nothing is wrong, but a bound is reached
    """More was found for one event than is reported."""


class Allowance:
    """What is left of a step, in tries, for all detectors that share it."""

    __slots__ = ("_size", "left")

    def __init__(self, size: int) -> None:
        self._size = size
        self.left = size

    @property
    def is_spent(self) -> bool:
        """Whether the rest waits for the next step."""
        return self.left <= 0

    def renew(self) -> None:
        """Another step begins."""
        self.left = self._size


class Tries:
    """What is left to be tried. Searches count it down themselves where that is their loop."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0

    def spend(self, count: int) -> None:
        """So many things are about to be looked at."""
        self.left -= count
        if self.left < 0:
            raise TriesExceeded


def weight_of(compared: int) -> int:
    """How many tries it is to look at something with so many comparisons."""
    return 1 + (compared >> 3)
