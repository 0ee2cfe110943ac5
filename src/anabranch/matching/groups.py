"""Destinations: groups of subscriptions behind the same link.

A relay needs the links over which to forward an event, not the subscriptions that match. Every
subscription may name a destination, any hashable value. Destinations are numbered here, and a
number is reused after the last subscription with it is removed.
"""

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

#: The number of subscriptions that name no destination; it is never asked for.
NOWHERE = 0
#: Destinations of which a word has a bit for each, and a sign to spare.
_BITS = 63
#: Sets of destinations that are kept.
_NAMED_MAX = 4_096


class Groups:
    """Destination ⇄ number."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._names: list[Hashable] = [None]
        self._members: list[int] = [0]
        self._free: list[int] = []
        #: What `unhit` answers until a destination comes or goes.
        self._unhit: tuple[NDArray[np.bool_], NDArray[np.int64]] | None = None
        #: Bits → the destinations they stand for, likewise; those asked for so far.
        self._named: dict[int, frozenset[Hashable]] = {}

    def join(self, destination: Hashable) -> int:
        """The number of a destination with one subscription more; None is nowhere."""
        if destination is None:
            return NOWHERE
        number = self._numbers.get(destination)
        if number is None:
            number = self._free.pop() if self._free else len(self._names)
            if number == len(self._names):
                self._names.append(destination)
                self._members.append(0)
            self._names[number] = destination
            self._numbers[destination] = number
            self._changed()
        self._members[number] += 1
        return number

    def leave(self, number: int) -> None:
        if number == NOWHERE:
            return
        self._members[number] -= 1
        if self._members[number] == 0:
            del self._numbers[self._names[number]]
            self._names[number] = None
            self._free.append(number)
            self._changed()

    def _changed(self) -> None:
        self._unhit = None
        self._named.clear()

    def members(self) -> list[tuple[Hashable, int, int]]:
        return [(name, n, self._members[n]) for name, n in self._numbers.items()]

    def restore(self, destination: Hashable, number: int, members: int) -> None:
        """Take over a destination that another instance numbered."""
        while number >= len(self._names):
            self._names.append(None)
            self._members.append(0)
        self._names[number] = destination
        self._members[number] = members
        self._numbers[destination] = number
        self._changed()

    def unhit(self) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """(what is hit: unused numbers only, how many are not hit per number modulo 64)."""
        if self._unhit is None:
            hits = np.array([members == 0 for members in self._members], np.bool_)
            open_bits = np.bincount(np.nonzero(~hits)[0] % 64, minlength=64)
            self._unhit = hits, open_bits.astype(np.int64)
        return self._unhit[0].copy(), self._unhit[1].copy()

    def names(self, hits: NDArray[np.bool_]) -> set[Hashable]:
        """The destinations that are in use and hit."""
        return {
            self._names[number] for number in hits.nonzero()[0].tolist() if self._members[number]
        }

    # -- as bits ------------------------------------------------------------------------------

    def in_use(self) -> int | None:
        """The numbers of all destinations as bits; None if they are too many."""
        if len(self._members) > _BITS:
            return None
        return sum(1 << number for number in self._numbers.values())

    def named(self, bits: int) -> frozenset[Hashable]:
        names = self._named.get(bits)
        if names is None:
            if len(self._named) >= _NAMED_MAX:
                self._named.clear()
            held = [number for number in self._numbers.values() if bits >> number & 1]
            names = self._named[bits] = frozenset(self._names[number] for number in held)
        return names
