"""Marks and their vectors: which interest went into the filtering of a tick.

An origin stamps its ticks with V^m, what it knows of every edge's interest. The vector itself is in
a *mark*, a tick of its own; other ticks only name their mark. So the mark's tick is the digest of
the vector: unique, growing, and the same after a crash. A broker learns vectors over links and
keeps the newest of each stream. Rules:

1. Mark 0 stands before the first one; its vector is empty.
2. Of one stream, a later mark has a vector that is at least that of an earlier one.
3. A vector goes over a link once, before the first ticks that need it, and is said again after the
   link broke. (With `digests` off it goes with every frame.)
4. An edge needs only its own element. It keeps the steps in which that grew; for a mark that it
   does not know, the last step before it is a lower bound, by rule 2.

State: volatile; a vector that is missing is asked for.

Prior art: Zhao 2006, §4.1.7 and §6.1.3 (digests).
"""

from bisect import bisect_right
from collections.abc import Mapping

from anabranch.model.errors import RemoteError
from anabranch.model.version import NOTHING, Version

#: Marks kept per stream, and steps of the own element.
MARKS_MAX = 16
STEPS_MAX = 256

Vector = Mapping[str, Version]
_EMPTY: Vector = {}


class Marks:
    """The vectors a broker knows, and which of them went over which link."""

    def __init__(self) -> None:
        #: Stream → mark → vector, ascending by mark.
        self._known: dict[str, dict[int, Vector]] = {}
        #: Link → stream → marks whose vectors went over it, oldest first.
        self._said: dict[str, dict[str, dict[int, None]]] = {}

    def vector(self, stream: str, mark: int) -> Vector | None:
        """The vector of a mark, if it is known."""
        if mark == 0:
            return _EMPTY
        known = self._known.get(stream)
        return None if known is None else known.get(mark)

    def newest(self, stream: str) -> int:
        """The newest mark that is known of a stream; 0 if there is none."""
        known = self._known.get(stream)
        return next(reversed(known)) if known else 0

    def learn(self, stream: str, mark: int, vector: Vector) -> bool:
        """Keep a vector; True if it is news."""
        known = self._known.setdefault(stream, {})
        before = known.get(mark)
        if before is not None:
            if before != vector:
                raise RemoteError(f"mark {mark} of stream {stream!r} has two vectors")
            return False
        is_newest = not known or mark > next(reversed(known))
        known[mark] = vector
        if not is_newest:
            self._known[stream] = known = dict(sorted(known.items()))
        if len(known) > MARKS_MAX:
            del known[next(iter(known))]
        return mark in known

    def say(self, link: str, stream: str, mark: int) -> bool:
        """Whether a vector has to be said on a link now; it counts as said from here on."""
        said = self._said.setdefault(link, {}).setdefault(stream, {})
        if mark in said:
            return False
        said[mark] = None
        if len(said) > MARKS_MAX:
            del said[next(iter(said))]
        return True

    def forget_link(self, link: str) -> None:
        """A link broke: nothing counts as said on it."""
        self._said.pop(link, None)


class OwnSteps:
    """How an edge's own element grows along one stream."""

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
