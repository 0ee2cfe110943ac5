"""How the version of one edge's interest grows along one stream.

Vectors never decrease with the tick, so what one element of them does along a stream is told by the
few marks at which it grew. For a mark that is not known, the last step before it is a lower bound.

State: the newest `STEPS_MAX` steps; what is older is taken for unknown, which promises less.
"""

from bisect import bisect_right

from anabranch.model.version import NOTHING, Version

STEPS_MAX = 256


class Steps:
    """How the element of one edge grows along one stream. See the top of this module."""

    __slots__ = ("_marks", "_versions")

    def __init__(self) -> None:
        #: Invariant: marks ascend, and versions with them, strictly.
        self._marks: list[int] = [0]
        self._versions: list[Version] = [NOTHING]

    @property
    def newest(self) -> Version:
        """The greatest version that any mark is known to have."""
        return self._versions[-1]

    def at(self, mark: int) -> Version:
        """The version that this mark has, at least."""
        place = bisect_right(self._marks, mark) - 1
        return self._versions[place] if place >= 0 else NOTHING

    def learn(self, mark: int, version: Version) -> None:
        """This mark has this version."""
        place = bisect_right(self._marks, mark)
        if place and self._versions[place - 1] >= version:
            return
        while place < len(self._marks) and self._versions[place] <= version:
            del self._marks[place], self._versions[place]
        self._marks.insert(place, mark)
        self._versions.insert(place, version)
        if len(self._marks) > STEPS_MAX:
            del self._marks[0], self._versions[0]
