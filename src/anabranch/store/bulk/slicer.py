"""The slicer: reads slices of a log for many sessions, from any thread.

It chooses the reader, gives each thread its own, and keeps the filters of sessions. Rules:

1. A filter is compiled once for each session that uses it. Those that were used last are kept, up
   to `FILTERS_MAX` and `TEXT_CHARACTERS_MAX`, and none of a session that is forgotten.
2. A session reads one slice at a time; so nobody else uses its filters meanwhile.
3. Kernels are loaded by the first thread that reads, which takes about a second (the first time on
   a machine, several more), and by none before.
4. A filter that matches everything costs nothing.

State: compiled filters and buffers. Safe to lose.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anabranch.matching.engine import numba_is_here
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from anabranch.store.bulk.plain import read_plainly
from anabranch.store.bulk.slices import Slice, Wanted
from anabranch.store.reading import Piece

if TYPE_CHECKING:
    from anabranch.matching.sieve import Sieve
    from anabranch.store.bulk.compiled import BulkReader

#: Each takes half a megabyte,
FILTERS_MAX = 32
#: and a long one some fifty bytes for each character.
TEXT_CHARACTERS_MAX = 262_144


class Slicer:
    """Reads slices. See the rules at the top of this module."""

    def __init__(
        self,
        limits: Limits,
        filters_max: int = FILTERS_MAX,
        text_characters_max: int = TEXT_CHARACTERS_MAX,
    ) -> None:
        self._limits = limits
        self._filters_max = filters_max
        self._text_characters_max = text_characters_max
        self._has_kernels = numba_is_here()
        self._own = threading.local()
        #: (session, text) → the filter, and its sieve where there are kernels; the last used last.
        self._filters: OrderedDict[tuple[int, str], tuple[Filter, Sieve | None]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, pieces: Sequence[Piece], wanted: Wanted, session: int, text: str) -> Slice:
        """The next slice of what a session wants; `FilterError` if its filter is none."""
        filter, sieve = self._filter(session, text) if text else (None, None)
        if self._has_kernels:
            return self._reader().read(pieces, wanted, sieve)
        return read_plainly(pieces, wanted, filter)

    def forget(self, session: int) -> None:
        """A session is over."""
        with self._lock:
            for key in [key for key in self._filters if key[0] == session]:
                del self._filters[key]

    def __len__(self) -> int:
        """The filters it keeps."""
        return len(self._filters)

    def _reader(self) -> "BulkReader":
        from anabranch.store.bulk.compiled import BulkReader  # noqa: PLC0415 - needs numba

        reader: BulkReader | None = getattr(self._own, "reader", None)
        if reader is None:
            reader = self._own.reader = BulkReader()
        return reader

    def _filter(self, session: int, text: str) -> "tuple[Filter | None, Sieve | None]":
        key = (session, text)
        with self._lock:
            known = self._filters.get(key)
            if known is not None:
                self._filters.move_to_end(key)
                return known
        filter = Filter.parse(text, self._limits)
        if filter == Filter.everything():
            return None, None
        made = filter, self._sieve(filter)
        with self._lock:
            self._filters[key] = made
            while self._has_too_many():
                self._filters.popitem(last=False)
        return made

    def _has_too_many(self) -> bool:
        characters = sum(len(text) for _, text in self._filters)
        return len(self._filters) > self._filters_max or characters > self._text_characters_max

    def _sieve(self, filter: Filter) -> "Sieve | None":
        # Where there are no kernels a filter is refused for the same reasons: no normal form.
        _ = filter.conjunctions
        if not self._has_kernels:
            return None
        from anabranch.matching.sieve import Sieve  # noqa: PLC0415 - needs numba

        return Sieve(filter, self._limits)
