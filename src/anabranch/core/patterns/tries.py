"""How much is looked at for one event, and the end of it.

Whatever a search looks at is taken from one number: a slot that the event might fill, a place of a
shelf that is looked up, an event that might belong there or might be a witness, and a match that is
found, by its size. So what an event costs is bounded by `pattern_tries_max`, whatever the pattern
is and whatever came before. Rules:

1. One try is about one comparison of an event, or one look-up. Where much has to be compared for
   one, because it has many joins, every eight count as one more (`weight_of`).
2. Who spends more than is left has not finished (`TriesExceeded`), and somebody is told.

State: what is left for the event that is looked at.
"""

from typing import Final

#: What it counts to look up a place of a shelf, in the time that it takes to look at one entry.
LOOK_UP_TRIES: Final = 3


class TriesExceeded(Exception):  # noqa: N818  # nothing is wrong, but a bound is reached
    """More would have to be tried for one event than is allowed."""


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
