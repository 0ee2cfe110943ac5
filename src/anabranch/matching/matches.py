"""The answer to a batch: for each event, the ids of the subscriptions it satisfies."""

from collections.abc import Hashable, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

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
