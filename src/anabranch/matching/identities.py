"""The ids of subscriptions, by entry; and the answer to a batch, which consists of ids.

While all ids are 64-bit integers, they are stored as such: numpy then builds a result without a
Python object per match. The first id of another type converts the array to objects.

In a snapshot, text ids are two arrays: their bytes, concatenated, and the end of each. As Python
objects, a million ids would have to be created in every process that opens the snapshot. The arrays
are memory-mapped, and a text is created on demand. They have the layout of a text column in Arrow,
so that a pipeline can return ids without creating any.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast, overload

import numpy as np
from numpy.typing import NDArray

from anabranch.model.event import INT_MAX, INT_MIN

Ids = NDArray[np.int64] | NDArray[np.object_]


class Matches(Sequence[list[Hashable]]):
    """A sequence with one list of ids per event, made when it is looked at.

    `ids` holds all of them in one array (of integers, if all ids of the index are), event after
    event; those of event i lie between `offsets[i]` and `offsets[i + 1]`. Changing the index later
    does not change an answer.
    """

    __slots__ = ("ids", "offsets")

    def __init__(self, ids: Ids, offsets: NDArray[np.int64]) -> None:
        self.ids = ids
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> list[Hashable]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[Hashable]]: ...
    def __getitem__(self, index: int | slice) -> list[Hashable] | list[list[Hashable]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"event {index} of {len(self)}")
        index %= len(self)
        ids: list[Hashable] = self.ids[self.offsets[index] : self.offsets[index + 1]].tolist()
        return ids

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence) and not isinstance(other, str | bytes):
            return len(self) == len(other) and all(
                mine == theirs for mine, theirs in zip(self, other, strict=True)
            )
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Matches of {len(self)} events, {len(self.ids)} ids>"


# -- identities ------------------------------------------------------------------------------------


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


# -- texts as arrays -------------------------------------------------------------------------------


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
        return self.letters[self.stops[number] : self.stops[number + 1]].tobytes()

    def text(self, number: int) -> str:
        return self.raw(number).decode("utf-8", _ERRORS)


def table_of(texts: Iterable[str]) -> TextTable:
    return table_of_raw(text.encode("utf-8", _ERRORS) for text in texts)


def table_of_raw(pieces: Iterable[bytes]) -> TextTable:
    kept = list(pieces)
    stops = np.zeros(len(kept) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, kept), np.int64, len(kept)), out=stops[1:])
    return TextTable(stops, np.frombuffer(b"".join(kept), np.uint8))


class StoredIds(NamedTuple):
    """The ids of a snapshot: mapped arrays in place of a dictionary.

        names      i64 by number   an integer id; 0 for a text
        kinds      u8 by number    1 for a text; no elements at all if every id is an integer
        texts      by number       the text; "" for an integer
        firsts     i32 by number   the first entry of the subscription, -1 if nothing satisfies it
        by_entry   i64 by entry    the id, if all are integers; else its number

    A *number* says which subscription it is, in the order in which they were added. Ids are made
    when they are asked for; the dictionary of all of them only when somebody looks an id up.

    State: the arrays, and what was asked for.
    """

    names: NDArray[np.int64]
    kinds: NDArray[np.uint8]
    texts: TextTable
    firsts: NDArray[np.int32]
    by_entry: NDArray[np.int64]

    @property
    def are_integers(self) -> bool:
        return len(self.kinds) == 0

    def of_number(self, number: int) -> str | int:
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
        if self._known is None:
            firsts = self.stored.firsts.tolist()
            self._known = {self.stored.of_number(n): firsts[n] for n in range(len(firsts))}
        return self._known

    def __len__(self) -> int:
        return len(self.stored.firsts)

    def of(self, entries: NDArray[np.int32], take: Take) -> Ids:
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
