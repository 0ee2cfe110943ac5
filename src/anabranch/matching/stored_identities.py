"""The ids of a snapshot: mapped arrays in place of a dictionary.

    names      i64 by number   an integer id; 0 for a text
    kinds      u8 by number    1 for a text; no elements at all if every id is an integer
    texts      by number       the text; "" for an integer
    firsts     i32 by number   the first entry of the subscription, -1 if nothing satisfies it
    by_entry   i64 by entry    the id, if all are integers; else its number

A *number* says which subscription it is, in the order in which they were added. Ids are made when
they are asked for; the dictionary of all of them only when somebody looks an id up.

State: the arrays, and what was asked for.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anabranch.matching.identities import Identities, Take
from anabranch.matching.matches import Ids
from anabranch.matching.text_table import TextTable, table_of


class StoredIds(NamedTuple):
    """The arrays. See the top of this module."""

    names: NDArray[np.int64]
    kinds: NDArray[np.uint8]
    texts: TextTable
    firsts: NDArray[np.int32]
    by_entry: NDArray[np.int64]

    @property
    def are_integers(self) -> bool:
        """Whether every id is an integer."""
        return len(self.kinds) == 0

    def of_number(self, number: int) -> str | int:
        """The id of a subscription."""
        if self.are_integers or self.kinds[number] == 0:
            return int(self.names[number])
        return self.texts.text(number)


def stored_ids(ids: Iterable[tuple[str | int, int]], entries: int) -> StoredIds:
    """Ids with their first entries as arrays; `entries` is how many entries there are."""
    listed = list(ids)
    firsts = np.fromiter((entry for _, entry in listed), np.int32, len(listed))
    names = np.fromiter((0 if isinstance(i, str) else i for i, _ in listed), np.int64, len(listed))
    kinds = np.fromiter((isinstance(i, str) for i, _ in listed), np.uint8, len(listed))
    by_entry = np.zeros(entries, np.int64)
    has_entry = firsts >= 0
    if not kinds.any():
        by_entry[firsts[has_entry]] = names[has_entry]
        return StoredIds(names, kinds[:0], table_of(()), firsts, by_entry)
    texts = table_of(i if isinstance(i, str) else "" for i, _ in listed)
    by_entry[firsts[has_entry]] = np.nonzero(has_entry)[0]
    return StoredIds(names, kinds, texts, firsts, by_entry)


class StoredIdentities(Identities):
    """`Identities` over the arrays of a snapshot, for reading only."""

    def __init__(
        self, moved: Callable[[NDArray[np.int64] | None], None], stored: StoredIds
    ) -> None:
        self.stored = stored
        self._moved = moved
        self._by_entry = stored.by_entry
        self._known: dict[Hashable, int] | None = None
        moved(stored.by_entry if stored.are_integers else None)

    @property
    def entries(self) -> dict[Hashable, int]:
        """Id → first entry."""
        if self._known is None:
            firsts = self.stored.firsts.tolist()
            self._known = {self.stored.of_number(n): firsts[n] for n in range(len(firsts))}
        return self._known

    def __len__(self) -> int:
        return len(self.stored.firsts)

    def of(self, entries: NDArray[np.int32], take: Take) -> Ids:
        """The ids of these first entries."""
        if self.stored.are_integers:
            return super().of(entries, take)
        numbers = take(entries, self.stored.by_entry).tolist()
        ids = np.empty(len(numbers), object)
        ids[:] = [self.stored.of_number(number) for number in numbers]
        return ids

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, all of which are mapped."""
        stored = self.stored
        names = stored.names.nbytes + stored.kinds.nbytes
        texts = stored.texts.stops.nbytes + stored.texts.letters.nbytes
        return names + texts + stored.firsts.nbytes + stored.by_entry.nbytes
