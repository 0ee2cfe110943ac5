"""Conjunctions on their way between brokers.

A conjunction travels as the text of a filter and its place in that filter's normal form, because
text is the one notation that every broker reads alike. Whoever receives it parses the text and has
the same conjunction at the same place. Conjunctions of one filter travel together.

What is too much for one frame is told as wanting everything (`wanted`): that lets more pass than
must, and no link breaks over it. Likewise nothing is told to have ended then (`ended`).
"""

from collections.abc import Generator, Iterable
from typing import NamedTuple

from anabranch.core.routing.contract import Spent, finished
from anabranch.model.errors import FilterError, RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import ITEMS_MAX, Conjuncts
from anabranch.model.limits import Limits
from anabranch.model.normal.conjunction import Conjunction

EVERYTHING = Conjuncts("TRUE", (0,))
#: At most, in a frame.
_CHARACTER_BYTES = 4
_PLACE_BYTES = 9


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


#: A filter whose text is longer than this costs much to parse.
LONG_CHARACTERS = 96
#: What it costs to read a character of a filter, and to normalise what it says.
PARSE_WORK = 1


def dag_work(size: int) -> int:
    """What it costs to put one more conjunction into a DAG of this size, or to take it out."""
    return 50 + size // 32


def conjuncts_of(filter: Filter, limits: Limits) -> list[Conjunct]:
    """All conjunctions of a filter; everything, if its text is longer than a receiver reads. (The
    text of a filter may be longer than the one it was made of.)"""
    text = str(filter)
    if len(text.encode()) > limits.filter_bytes_max:
        return [everything()]
    if len(text) > LONG_CHARACTERS:
        # Whoever unpacks it here need not parse it.
        filter.remember(text)
    return [Conjunct(text, place, filter) for place in range(len(filter.conjunctions))]


def everything() -> Conjunct:
    """What stands for a conjunction that cannot be held: it lets more pass than must."""
    return Conjunct(EVERYTHING.text, 0, Filter.parse(EVERYTHING.text))


def wanted(conjuncts: Iterable[Conjunct], limits: Limits) -> list[Conjuncts]:
    """What is wanted, or has begun to be, as a frame has it."""
    packed = pack(conjuncts)
    return packed if fits(packed, limits) else [EVERYTHING]


def ended(conjuncts: Iterable[Conjunct], limits: Limits) -> list[Conjuncts]:
    """What is wanted no more, as a frame has it."""
    packed = pack(conjuncts)
    return packed if fits(packed, limits) else []


def fits(packed: list[Conjuncts], limits: Limits) -> bool:
    """Whether a frame has room for these, and for as many others beside them."""
    if len(packed) > ITEMS_MAX:
        return False
    size = sum(_text_bytes(item.text) + _PLACE_BYTES * len(item.places) for item in packed)
    return 3 * size <= limits.frame_bytes_max


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else _CHARACTER_BYTES * len(text)


def pack(conjuncts: Iterable[Conjunct]) -> list[Conjuncts]:
    """As frames have them."""
    places: dict[str, list[int]] = {}
    for conjunct in conjuncts:
        places.setdefault(conjunct.text, []).append(conjunct.place)
    return [Conjuncts(text, tuple(each)) for text, each in places.items()]


def unpack(packed: Iterable[Conjuncts], limits: Limits) -> list[Conjunct]:
    """From a frame; `RemoteError` if a text is no filter or has no such place."""
    return finished(unpacking(packed, limits))


def unpacking(
    packed: Iterable[Conjuncts], limits: Limits
) -> Generator[Spent, None, list[Conjunct]]:
    """The same bit by bit."""
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
        yield Spent(PARSE_WORK * (1 + len(item.text)))
    return found
