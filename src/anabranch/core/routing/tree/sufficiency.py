"""The sufficiency test: may this broker filter these ticks in that direction?

It may if it knows the interest of every edge behind the direction in the version that the ticks'
vector has, or a later one. Then nothing it drops is wanted by a subscription that counts on these
ticks. If not, or if the vector is not known here, ticks are sent on, wanted or not. Rules:

1. The result is remembered per stream and direction, for the newest mark that was tested.
2. What held for a mark holds for all earlier ones, since vectors grow along a stream; and it goes
   on to hold, since what a broker knows grows.
3. What failed is tried again when the broker has learned more, or for a later mark.

State: volatile, results only.

Prior art: Zhao 2006, §3.2.3, §4.1.7, §6.1.3 (the cache).
"""

from collections.abc import Mapping, Sequence

from anabranch.core.routing.tree.counters import Counters
from anabranch.core.routing.tree.vectors import Marks
from anabranch.model.version import NOTHING, Version


class Sufficiency:
    """The test of one site, with its memory."""

    def __init__(
        self,
        marks: Marks,
        versions: Mapping[str, Version],
        behind: Mapping[str, Sequence[str]],
        counters: Counters,
        remembers: bool,
    ) -> None:
        self._marks = marks
        #: V^b of the site, which its presence changes.
        self._versions = versions
        self._behind = behind
        self._counters = counters
        self._remembers = remembers
        #: (stream, direction) → (mark, result)
        self._results: dict[tuple[str, str], tuple[int, bool]] = {}

    def holds(self, stream: str, mark: int, direction: str) -> bool:
        """Whether ticks with this mark may be filtered."""
        self._counters.sufficiency_asked += 1
        key = stream, direction
        if self._remembers:
            result = self._results.get(key)
            if result is not None and mark <= result[0]:
                return result[1]
        vector = self._marks.vector(stream, mark)
        if vector is None:
            return False
        answer = self._test(vector, direction)
        if self._remembers:
            self._results[key] = (mark, answer)
        return answer

    def learned(self, direction: str) -> None:
        """More is known of a direction: forget what failed there."""
        failed = [
            key for key, (_, held) in self._results.items() if not held and key[1] == direction
        ]
        for key in failed:
            del self._results[key]

    def _test(self, vector: Mapping[str, Version], direction: str) -> bool:
        self._counters.sufficiency_tests += 1
        versions = self._versions
        for edge in self._behind[direction]:
            self._counters.sufficiency_elements += 1
            wanted = vector.get(edge)
            if wanted is not None and versions.get(edge, NOTHING) < wanted:
                return False
        return True
