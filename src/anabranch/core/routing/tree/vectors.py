"""Marks and their vectors: which interest went into the filtering of a tick.

An origin stamps its ticks with V^m, what it knows of every edge's interest. The vector itself is in
a *mark*, a tick of its own; other ticks only name their mark. So the mark's tick is the digest of
the vector: unique, growing, and the same after a crash. A broker learns vectors over links and
keeps the newest of each stream. Rules:

1. Mark 0 stands before the first one; its vector is empty.
2. Of one stream, a later mark has a vector that is at least that of an earlier one.
3. A vector goes over a link once, before the first ticks that need it, and is said again after the
   link broke. (With `digests` off it goes with every frame.)
4. An edge needs only its own element, and keeps the steps in which that grew (`steps`).

State: volatile; a vector that is missing is asked for.

Prior art: Zhao 2006, §4.1.7 and §6.1.3 (digests).
"""

from collections.abc import Mapping

from anabranch.model.errors import ContradictionError
from anabranch.model.version import Version

#: Marks kept per stream.
MARKS_MAX = 16

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
                what = f"mark {mark} of stream {stream!r} has two vectors"
                raise ContradictionError(stream, what)
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
