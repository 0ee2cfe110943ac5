"""The numpy engine: the same results without compiled kernels.

Entries that share an access point (symbol = 'IBM') are in one list. An event searches only the
lists of its own access points and the list of entries without one, and tests the single ranges of
all these candidates in a few numpy calls. Other tests are made one by one, in Python, on the
remaining candidates. This engine is for machines without numba; on the stock workload it took about
a hundred times as long as the kernels.

State: predicates in parallel arrays, with entries pointing into them; removed ones are collected
when they outnumber the rest.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from anabranch.matching.engine import Found, Integers, Words, joined
from anabranch.matching.events import Bodies, Events, Plain, plain_event
from anabranch.matching.kernels import layout as at
from anabranch.matching.numpy_predicates import Placed, Predicate, holds, predicates_of
from anabranch.matching.schema import Spelling
from anabranch.model.encoding import Envelope

#: (axis, key, rest) of the equality by which an entry is found; None where it has none.
Point = tuple[int, int, int]


class _Entry:
    """One conjunction: where its ranges stand, and what else it demands."""

    __slots__ = ("codes", "count", "flags", "group", "members", "others", "owner", "point", "start")

    def __init__(self, owner: int, flags: int, group: int) -> None:
        self.owner = owner
        self.flags = flags
        self.group = group
        self.point: Point | None = None
        self.start = 0
        self.count = 0
        self.others: tuple[Predicate, ...] = ()
        self.codes: tuple[int, ...] = ()
        #: Of a first entry: all entries of its subscription.
        self.members: list[int] = []


class VectorisedEngine:
    """Entries in, owners out."""

    name = "numpy"
    #: Patterns are left to the filters themselves.
    learn_pattern = None

    def __init__(self) -> None:
        self._entries: list[_Entry | None] = []
        self._free: list[int] = []
        self._lists: dict[Point | None, dict[int, None]] = {}
        self._arrays: dict[Point | None, NDArray[np.int64]] = {}
        self._axis = np.zeros(1_024, np.int64)
        self._low = np.zeros(1_024, np.int64)
        self._high = np.zeros(1_024, np.int64)
        self._used = 0
        self._dead = 0
        self._starts = np.zeros(1_024, np.int64)
        self._counts = np.zeros(1_024, np.int64)
        self._placed = Placed()
        self._axis_refs: dict[int, int] = {}
        self._code_refs: dict[int, int] = {}
        self._freed: list[int] = []
        #: Owners and doubtful entries of the event searched last.
        self._found: tuple[Integers, Integers] = np.zeros(0, np.int32), np.zeros(0, np.int32)

    # -- axes and codes -----------------------------------------------------------------------

    def open_axis(self, axis: int, attribute: int, space: int) -> None:
        self._placed.open_axis(axis, attribute, space)
        self._axis_refs[axis] = 0

    def close_axis(self, attribute: int, space: int) -> None:
        self._placed.close_axis(attribute, space)

    def axis_is_used(self, axis: int) -> bool:
        return self._axis_refs.get(axis, 0) > 0

    def reserve_codes(self, count: int) -> None:
        """Codes need no room here."""

    def learn_name(self, attribute: int, name: str) -> None:
        self._placed.learn_name(attribute, name)

    def rewrite_names(self, names: Sequence[str | None]) -> None:
        self._placed.rewrite_names(names)

    def learn_code(self, code: int, attribute: int, text: str) -> None:
        self._placed.learn_code(code, attribute, text)

    def drop_codes(self, codes: list[int]) -> None:
        for code in codes:
            self._placed.drop_code(code)

    def freed_codes(self) -> list[int]:
        freed, self._freed = self._freed, []
        self.drop_codes(freed)
        return freed

    # -- entries ------------------------------------------------------------------------------

    def insert(self, spelling: Spelling, flags: int, owner: int, group: int) -> int:
        number = self._free.pop() if self._free else len(self._entries)
        if number == len(self._entries):
            self._entries.append(None)
        entry = _Entry(number if owner < 0 else owner, flags, group)
        self._entries[number] = entry
        predicates = predicates_of(spelling)
        entry.codes = tuple(code for p in predicates for code in p.codes())
        self._refer(predicates, entry.codes)
        entry.point = self._choose_point(predicates)
        entry.others = tuple(p for p in predicates if p.single_range() is None)
        self._append(number, entry, [r for p in predicates if (r := p.single_range())])
        self._lists.setdefault(entry.point, {})[number] = None
        self._arrays.pop(entry.point, None)
        first = self._entries[entry.owner]
        assert first is not None
        first.members.append(number)
        return number

    def _refer(self, predicates: list[Predicate], codes: tuple[int, ...]) -> None:
        for predicate in predicates:
            self._axis_refs[predicate.axis] += 1
        for code in codes:
            self._code_refs[code] = self._code_refs.get(code, 0) + 1

    def _choose_point(self, predicates: list[Predicate]) -> Point | None:
        points = [point for p in predicates if (point := p.point()) is not None]
        return min(points, key=lambda point: len(self._lists.get(point, ())), default=None)

    def _append(self, number: int, entry: _Entry, ranges: list[tuple[int, int, int]]) -> None:
        entry.start = self._used
        entry.count = len(ranges)
        while self._used + len(ranges) > len(self._axis):
            for name in ("_axis", "_low", "_high"):
                setattr(self, name, np.concatenate((getattr(self, name), getattr(self, name))))
        while number >= len(self._starts):
            self._starts = np.concatenate((self._starts, self._starts))
            self._counts = np.concatenate((self._counts, self._counts))
        for axis, low, high in ranges:
            self._axis[self._used] = axis
            self._low[self._used] = low
            self._high[self._used] = high
            self._used += 1
        self._starts[number] = entry.start
        self._counts[number] = entry.count

    def remove(self, entry: int) -> None:
        gone = self._entries[entry]
        assert gone is not None
        members = self._lists[gone.point]
        del members[entry]
        if not members:
            del self._lists[gone.point]
        self._arrays.pop(gone.point, None)
        for axis in self._axes_of(gone):
            self._axis_refs[axis] -= 1
        for code in gone.codes:
            self._code_refs[code] -= 1
            if self._code_refs[code] == 0:
                del self._code_refs[code]
                self._freed.append(code)
        self._entries[entry] = None
        self._free.append(entry)
        self._dead += gone.count
        if self._dead > 1_024 and 2 * self._dead > self._used:
            self._compact()

    def _axes_of(self, entry: _Entry) -> Iterator[int]:
        yield from self._axis[entry.start : entry.start + entry.count].tolist()
        for predicate in entry.others:
            yield predicate.axis

    def _compact(self) -> None:
        """Sweep out the predicates of removed entries."""
        live = [entry for entry in self._entries if entry is not None]
        numbers = [number for number, entry in enumerate(self._entries) if entry is not None]
        keep = _spans(
            np.array([entry.start for entry in live], np.int64),
            np.array([entry.count for entry in live], np.int64),
        )
        self._axis, self._low, self._high = self._axis[keep], self._low[keep], self._high[keep]
        self._used = len(keep)
        self._dead = 0
        start = 0
        for number, entry in zip(numbers, live, strict=True):
            entry.start = start
            self._starts[number] = start
            start += entry.count
        if self._used == 0:
            self._axis, self._low, self._high = (np.zeros(1_024, np.int64) for _ in range(3))

    def chain(self, entry: int) -> list[int]:
        return list(self._entry(entry).members)

    def owner_of(self, entry: int) -> int:
        return self._entry(entry).owner

    def group_of(self, entry: int) -> int:
        return self._entry(entry).group

    def _entry(self, number: int) -> _Entry:
        entry = self._entries[number]
        assert entry is not None
        return entry

    # -- searching ----------------------------------------------------------------------------

    def _matching(self, event: Plain | Envelope) -> Iterator[int]:
        placed = self._placed
        placed.place(event.attributes() if isinstance(event, Envelope) else plain_event(event))
        lists = [None, *placed.points()]
        found = [self._array(point) for point in lists if point in self._lists]
        candidates = np.concatenate(found) if found else np.zeros(0, np.int64)
        counts = self._counts[candidates]
        spans = _spans(self._starts[candidates], counts)
        axes = self._axis[spans]
        fails = (placed.low[axes] < self._low[spans]) | (placed.high[axes] > self._high[spans])
        whose = np.repeat(np.arange(len(candidates)), counts)
        failed = np.bincount(whose, weights=fails, minlength=len(candidates))
        for number in candidates[failed == 0].tolist():
            if all(holds(test, placed) for test in self._entry(number).others):
                yield number
        placed.lift()

    def _array(self, point: Point | None) -> NDArray[np.int64]:
        array = self._arrays.get(point)
        if array is None:
            array = np.fromiter(self._lists[point], np.int64, len(self._lists[point]))
            self._arrays[point] = array
        return array

    def name_by(self, ids: Words | None) -> None:
        """Ids are looked up later."""

    def search_one(self, event: Plain | Envelope) -> tuple[int, int]:
        owners: dict[int, None] = {}
        doubts: list[int] = []
        for number in self._matching(event):
            entry = self._entry(number)
            if entry.flags & at.DOUBT:
                doubts.append(number)
            else:
                owners[entry.owner] = None
        self._found = np.fromiter(owners, np.int32, len(owners)), np.array(doubts, np.int32)
        return len(owners), len(doubts)

    def owners(self, count: int) -> Integers:
        return self._found[0][:count]

    def doubts(self, count: int) -> Integers:
        return self._found[1][:count]

    def ids(self, count: int) -> list[int] | None:  # noqa: ARG002 - the contract has it
        """Ids are never at hand here."""
        return None

    def search(self, events: Events) -> Found:
        owners: list[Integers] = []
        doubts: list[Integers] = []
        for event in events.attributes:
            self.search_one(event)
            owners.append(self._found[0])
            doubts.append(self._found[1])
        return Found(joined(owners), _offsets(owners), joined(doubts), _offsets(doubts))

    def named(self, owners: Integers, names: Words) -> Words:
        return names[owners]

    def reach(
        self,
        event: Plain | Envelope,
        hits: NDArray[np.bool_],
        open_bits: Words,  # noqa: ARG002 - the contract has it, for engines that stop early
    ) -> Integers:
        doubts: list[int] = []
        for number in self._matching(event):
            entry = self._entry(number)
            if entry.flags & at.DOUBT:
                doubts.append(number)
            else:
                hits[entry.group] = True
        return np.array(doubts, np.int32)

    def search_bodies(self, bodies: Bodies) -> tuple[Integers, list[int]]:
        """Encoded events are not read here."""
        return np.zeros(0, np.int32), [-1] * len(bodies.stops)

    def reach_many(self, bodies: Bodies, asked: int) -> list[int]:  # noqa: ARG002 - the contract
        """Encoded events are not read here."""
        return [-1] * len(bodies.stops)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, without the Python objects beside them."""
        arrays = (self._axis, self._low, self._high, self._starts, self._counts)
        return sum(array.nbytes for array in arrays)


def _spans(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """All positions start … start + count - 1, span after span."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    spans: NDArray[np.int64] = np.arange(total) + np.repeat(starts - (ends - counts), counts)
    return spans


def _offsets(parts: list[Integers]) -> Words:
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return offsets
