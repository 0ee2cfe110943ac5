"""Conjunctions on their way between brokers.

A conjunction travels as the text of a filter and its place in that filter's normal form, because
text is the one notation that every broker reads alike. Whoever receives it parses the text and has
the same conjunction at the same place. Conjunctions of one filter travel together.
"""

from collections.abc import Iterable
from typing import NamedTuple

from anabranch.model.errors import FilterError, RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frames import Conjuncts
from anabranch.model.limits import Limits
from anabranch.model.normal.conjunction import Conjunction


class Conjunct(NamedTuple):
    """One conjunction, and where it came from."""

    text: str
    place: int
    filter: Filter

    @property
    def conjunction(self) -> Conjunction:
        """The conjunction itself."""
        return self.filter.conjunctions[self.place]

    def __str__(self) -> str:
        return self.text if len(self.filter.conjunctions) == 1 else f"{self.text} [{self.place}]"


def conjuncts_of(filter: Filter) -> list[Conjunct]:
    """All conjunctions of a filter."""
    text = str(filter)
    return [Conjunct(text, place, filter) for place in range(len(filter.conjunctions))]


def pack(conjuncts: Iterable[Conjunct]) -> list[Conjuncts]:
    """As frames have them."""
    places: dict[str, list[int]] = {}
    for conjunct in conjuncts:
        places.setdefault(conjunct.text, []).append(conjunct.place)
    return [Conjuncts(text, tuple(each)) for text, each in places.items()]


def unpack(packed: Iterable[Conjuncts], limits: Limits) -> list[Conjunct]:
    """From a frame; `RemoteError` if a text is no filter or has no such place."""
    found: list[Conjunct] = []
    for item in packed:
        try:
            filter = Filter.parse(item.text, limits)
            count = len(filter.conjunctions)
        except FilterError as error:
            raise RemoteError(f"an interest arrived that is no filter: {error.message}") from error
        for place in item.places:
            if place >= count:
                raise RemoteError(
                    f"an interest arrived for conjunction {place} of a filter that has {count}"
                )
            found.append(Conjunct(item.text, place, filter))
    return found
