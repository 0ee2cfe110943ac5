"""Many texts as two arrays: their bytes, one after the other, and where each ends.

A snapshot of an index has a million ids; as Python objects they would have to be made anew in every
process that opens it. As arrays they are mapped, and a text is made when somebody asks for it. The
arrays are those of a text column in Arrow, so a pipeline can hand out ids without making any.

State: the arrays, which are not changed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Ids may be any Python text, lone surrogates included.
_ERRORS = "surrogatepass"


@dataclass(frozen=True, slots=True)
class TextTable:
    """Texts by number: text i is `letters[stops[i]:stops[i + 1]]`."""

    stops: NDArray[np.int64]
    letters: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.stops) - 1

    def raw(self, number: int) -> bytes:
        """The bytes of a text."""
        return self.letters[self.stops[number] : self.stops[number + 1]].tobytes()

    def text(self, number: int) -> str:
        """A text."""
        return self.raw(number).decode("utf-8", _ERRORS)


def table_of(texts: Iterable[str]) -> TextTable:
    """These texts."""
    return table_of_raw(text.encode("utf-8", _ERRORS) for text in texts)


def table_of_raw(pieces: Iterable[bytes]) -> TextTable:
    """These stretches of bytes."""
    kept = list(pieces)
    stops = np.zeros(len(kept) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, kept), np.int64, len(kept)), out=stops[1:])
    return TextTable(stops, np.frombuffer(b"".join(kept), np.uint8))
