"""Covering queries between conjunctions, as boxes, for the covering table and the DAG.

A conjunction is *held* first, which encodes it; it may then be kept, seated among the boxes and
unseated. Equal conjunctions share one `Held` as long as it is kept. Among the seated conjunctions,
`coverer` and `coverers` find one or all that cover a held conjunction, and `covered` finds all that
it covers, as `model.normal.conjunction` defines it; the conjunction itself is excluded. With numba,
the kernels of `compiled_boxes` answer; without it, `PlainBoxes` compares with every seated
conjunction.
"""

from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

import msgspec

from anabranch.matching.engine import numba_is_here
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.normal.conjunction import Conjunction, covers


class Held(msgspec.Struct, eq=False):
    """A conjunction as the boxes know it, seated or not. Who uses the boxes adds its own fields."""

    conjunction: Conjunction
    #: Equal for equal conjunctions, as long as one of them is kept.
    key: Hashable
    #: Whether its words tell all there is to it.
    is_plain: bool
    #: Where it is seated, or -1.
    number: int = -1


H = TypeVar("H", bound=Held)
Make = Callable[[Conjunction, Hashable, bool], H]


class Boxes(Protocol[H]):
    """Conjunctions and their covering."""

    def hold(self, conjunction: Conjunction) -> H:
        """Look at a conjunction: the one that is kept and equals it, or a new one.

        A new one can be asked about until the next one is held, or kept.
        """

    def keep(self, held: H) -> None:
        """Keep the conjunction held last, which is new. Every `keep` needs a `release`."""

    def release(self, held: H) -> None:
        """Forget a kept conjunction that is not seated."""

    def take(self, conjunction: Conjunction) -> tuple[H, H | None]:
        """Hold a conjunction and keep it if it is new; then also one of the seated that cover it.

        The same as `hold`, `keep` and `coverer`, in one step.
        """

    def is_covered(self, conjunction: Conjunction) -> bool:
        """Whether it is kept, or one of the seated covers it."""

    def seat(self, held: H) -> None:
        """Let it be found from now on."""

    def unseat(self, held: H) -> None:
        """Let it be found no more."""

    def seated(self, number: int) -> H:
        """The one that is seated there."""

    def coverer(self, held: H) -> H | None:
        """One of the seated that covers it."""

    def coverers(self, held: H) -> list[H]:
        """All of the seated that cover it."""

    def covered(self, held: H) -> list[H]:
        """All of the seated that it covers."""


def make_boxes(make: Make[H], limits: Limits = DEFAULT_LIMITS) -> Boxes[H]:
    """Compiled boxes where numba is installed, plain ones elsewhere."""
    if not numba_is_here():
        return PlainBoxes(make)
    from anabranch.matching.compiled_boxes import CompiledBoxes  # noqa: PLC0415 - needs numba

    return CompiledBoxes(make, limits)


class PlainBoxes(Generic[H]):
    """Every pair is compared."""

    def __init__(self, make: Make[H]) -> None:
        self._make = make
        self._kept: dict[Hashable, H] = {}
        self._seated: dict[int, H] = {}
        self._next = 0

    def hold(self, conjunction: Conjunction) -> H:
        return self._kept.get(conjunction) or self._make(conjunction, conjunction, False)

    def keep(self, held: H) -> None:
        self._kept[held.key] = held

    def release(self, held: H) -> None:
        del self._kept[held.key]

    def take(self, conjunction: Conjunction) -> tuple[H, H | None]:
        held = self.hold(conjunction)
        if held.key in self._kept:
            return held, None
        self.keep(held)
        return held, self.coverer(held)

    def is_covered(self, conjunction: Conjunction) -> bool:
        return conjunction in self._kept or self.coverer(self.hold(conjunction)) is not None

    def seat(self, held: H) -> None:
        held.number = self._next
        self._seated[self._next] = held
        self._next += 1

    def unseat(self, held: H) -> None:
        del self._seated[held.number]
        held.number = -1

    def seated(self, number: int) -> H:
        return self._seated[number]

    def coverer(self, held: H) -> H | None:
        return next(iter(self.coverers(held)), None)

    def coverers(self, held: H) -> list[H]:
        wanted = held.conjunction
        return [s for s in self._seated.values() if s is not held and covers(s.conjunction, wanted)]

    def covered(self, held: H) -> list[H]:
        ours = held.conjunction
        return [s for s in self._seated.values() if s is not held and covers(ours, s.conjunction)]
