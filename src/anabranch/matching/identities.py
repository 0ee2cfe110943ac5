"""The ids that callers give their subscriptions, by entry.

While all ids are integers of 64 bits they are kept as such: an answer is then made by numpy
alone, without touching a Python object per match. The first other id turns the array into one
of objects.
"""

from collections.abc import Callable, Hashable
from typing import cast

import numpy as np
from numpy.typing import NDArray

from anabranch.matching.matches import Ids
from anabranch.model.event import INT_MAX, INT_MIN

Take = Callable[[NDArray[np.int32], NDArray[np.int64]], NDArray[np.int64]]


class Identities:
    """Entry → id, and back."""

    def __init__(self, moved: Callable[[NDArray[np.int64] | None], None]) -> None:
        #: Is told where the ids of entries are from now on; None: they are no integers.
        self._moved = moved
        self._by_entry: Ids
        self._move(np.zeros(1_024, np.int64))
        self._entries: dict[Hashable, int] = {}

    @property
    def entries(self) -> dict[Hashable, int]:
        """Id → first entry, or -1 for a filter that nothing satisfies."""
        return self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, identity: Hashable, entry: int) -> None:
        """Remember the id of a subscription by its first entry (-1: it has none)."""
        self._entries[identity] = entry
        if entry < 0:
            return
        if self._by_entry.dtype != object and not _is_integer(identity):
            self._move(self._by_entry.astype(object))
        if entry >= len(self._by_entry):
            # An entry may lie far beyond: behind a filter of many conjunctions.
            more = np.zeros(entry + entry // 3 + 16 - len(self._by_entry), self._by_entry.dtype)
            self._move(np.concatenate((self._by_entry, more)))
        self._by_entry[entry] = identity  # type: ignore[call-overload]

    def _move(self, by_entry: Ids) -> None:
        self._by_entry = by_entry
        is_integers = by_entry.dtype != object
        self._moved(cast("NDArray[np.int64]", by_entry) if is_integers else None)

    def drop(self, identity: Hashable) -> int:
        """Forget an id; returns its first entry. KeyError if it is unknown."""
        entry = self._entries.pop(identity)
        if entry >= 0:
            self._by_entry[entry] = 0
        return entry

    def of(self, entries: NDArray[np.int32], take: Take) -> Ids:
        """The ids of these first entries; `take` picks integers, `table[entries]`."""
        if self._by_entry.dtype == object:
            return self._by_entry[entries]
        return take(entries, cast("NDArray[np.int64]", self._by_entry))

    @property
    def nbytes(self) -> int:
        """Bytes of the two maps, without the ids themselves."""
        return self._by_entry.nbytes + self._entries.__sizeof__()


def _is_integer(identity: Hashable) -> bool:
    return type(identity) is int and INT_MIN <= identity <= INT_MAX
