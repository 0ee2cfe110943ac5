"""The arrays behind the numba engine: allocation, growth, and the context that names them.

Arrays grow by a third, by copying; the kernels find the new address in the context. Memory
beyond what is in use is never touched, so it costs address space only. Not thread-safe: the
index holds a lock.
"""

from typing import cast

import numpy as np
from numpy.typing import DTypeLike, NDArray

from anabranch.matching.kernels import layout as at

Array = NDArray[np.int32] | NDArray[np.int64] | NDArray[np.uint64] | NDArray[np.uint8]

#: capacity counter → (array, element type, elements per unit); these grow together.
GROUPS: dict[int, tuple[tuple[int, DTypeLike, int], ...]] = {
    at.ENTRY_CAPACITY: (
        (at.ENTRY_SLOT, np.int32, 1),
        (at.ENTRY_CLUSTER, np.int32, 1),
        (at.ENTRY_OWNER, np.int32, 1),
        (at.ENTRY_NEXT, np.int32, 1),
        (at.STAMPS, np.int32, 1),
        (at.CANDIDATES, np.int32, 1),
        (at.GROUPS, np.int32, 1),
    ),
    at.SLOT_CAPACITY: (
        (at.SLOT_ENTRY, np.int32, 1),
        (at.LINES, np.int32, at.LINE_WORDS),
        (at.TIES, np.int32, at.TIE_WORDS),
    ),
    at.RECORD_CAPACITY: ((at.RECORDS, np.int64, 1),),
    at.PAGE_CAPACITY: ((at.PAGES, np.uint64, at.PAGE_WORDS),),
    at.BLOCK_CAPACITY: (
        (at.BLOCKS, np.int64, at.BLOCK_WORDS),
        (at.ZONES, np.int64, at.ZONE_WORDS),
        (at.VISITED, np.int64, 1),
    ),
    at.TABLE_CAPACITY: (
        (at.TABLES, np.int64, at.TABLE_WORDS),
        (at.ROW_PAGES, np.int64, 1),
        (at.ROW_CERTAIN, np.int64, 1),
    ),
    at.CLUSTER_CAPACITY: ((at.CLUSTERS, np.int64, at.CLUSTER_WORDS),),
    at.NODE_CAPACITY: ((at.NODES, np.int32, at.NODE_WORDS),),
    at.AXIS_CAPACITY: (
        (at.AXES, np.int64, at.AXIS_WORDS),
        (at.BOUNDS, np.int64, at.CELLS - 1),
        (at.SAMPLES, np.int64, at.SAMPLE_SIZE),
        (at.CELL, np.int64, 1),
        (at.LOW, np.int64, 1),
        (at.HIGH, np.int64, 1),
        (at.UPPERS, np.int32, 2),
        (at.REST, np.int64, 1),
        (at.HIGH_CELL, np.int64, 1),
        (at.TOUCHED, np.int64, 1),
        (at.ATTRIBUTE_AXES, np.int32, at.SPACES),
        (at.ATTRIBUTE_CLASSES, np.int32, 2),
        (at.CELL_MASK, np.uint64, 1),
        (at.NAMES, np.int64, at.NAME_WORDS),
        (at.NAME_SEEN, np.int32, 1),
    ),
    at.CODE_CAPACITY: (
        (at.CODE_REFS, np.int32, 1),
        (at.FREED, np.int64, 1),
        (at.CODE_KEYS, np.int64, 1),
        (at.PATTERNS, np.int64, at.PATTERN_WORDS),
        (at.HITS, np.int32, 1),
        (at.HIT_LIST, np.int32, 1),
    ),
    at.LITERAL_CAPACITY: ((at.LITERALS, np.uint8, 1),),
    at.CLASS_CAPACITY: ((at.CLASSES, np.int32, 1),),
    at.TEXT_CAPACITY: ((at.TEXT_HASHES, np.int64, 1),),
    at.NAME_LETTER_CAPACITY: ((at.NAME_LETTERS, np.uint8, 1),),
    at.MESSAGE_CAPACITY: ((at.MESSAGE, np.uint8, 1),),
    at.OUTPUT_CAPACITY: ((at.OUTPUT, np.int32, 1),),
    at.DOUBT_CAPACITY: ((at.DOUBTS, np.int32, 1),),
}

#: The array by which `insert` names what is too small → its capacity counter.
CAPACITY_OF: dict[int, int] = {arrays[0][0]: capacity for capacity, arrays in GROUPS.items()}

#: Capacity counter → counter of what is in use.
COUNT_OF: dict[int, int] = {
    at.ENTRY_CAPACITY: at.ENTRY_COUNT,
    at.SLOT_CAPACITY: at.SLOT_COUNT,
    at.RECORD_CAPACITY: at.RECORD_COUNT,
    at.PAGE_CAPACITY: at.PAGE_COUNT,
    at.BLOCK_CAPACITY: at.BLOCK_COUNT,
    at.TABLE_CAPACITY: at.TABLE_COUNT,
    at.CLUSTER_CAPACITY: at.CLUSTER_COUNT,
    at.NODE_CAPACITY: at.NODE_COUNT,
    at.AXIS_CAPACITY: at.AXIS_COUNT,
}

#: The large arrays of which a unit is written when it is taken; what lies beyond the count of those
#: in use has no meaning.
_WRITTEN_WHEN_TAKEN = frozenset((at.PAGES, at.AXES, at.BOUNDS, at.SAMPLES))

#: The arrays that searching reads and never writes: what a snapshot holds.
STORED = frozenset(
    (
        at.ENTRY_OWNER,
        at.GROUPS,
        at.SLOT_ENTRY,
        at.LINES,
        at.TIES,
        at.RECORDS,
        at.PAGES,
        at.BLOCKS,
        at.ZONES,
        at.TABLES,
        at.ROW_PAGES,
        at.ROW_CERTAIN,
        at.CLUSTERS,
        at.HASH,
        at.AXES,
        at.BOUNDS,
        at.ATTRIBUTE_AXES,
        at.ATTRIBUTE_CLASSES,
        at.PATTERNS,
        at.PATTERN_HASH,
        at.LITERALS,
        at.CLASSES,
        at.POWERS,
    )
)

_FIRST_CAPACITY: dict[int, int] = {
    at.ENTRY_CAPACITY: 1_024,
    at.SLOT_CAPACITY: 4_096,
    at.RECORD_CAPACITY: 16_384,
    at.PAGE_CAPACITY: 64,
    at.BLOCK_CAPACITY: 16,
    at.TABLE_CAPACITY: 512,
    at.CLUSTER_CAPACITY: 256,
    at.NODE_CAPACITY: 16,
    at.AXIS_CAPACITY: 32,
    at.CODE_CAPACITY: 256,
    at.LITERAL_CAPACITY: 4_096,
    at.CLASS_CAPACITY: 64,
    at.TEXT_CAPACITY: 1_024,
    at.NAME_LETTER_CAPACITY: 1_024,
    at.MESSAGE_CAPACITY: 4_096,
    at.OUTPUT_CAPACITY: 65_536,
    at.DOUBT_CAPACITY: 4_096,
}


#: Arrays whose size does not depend on a capacity counter.
_UNGROUPED = (
    at.HASH,
    at.PATTERN_HASH,
    at.POWERS,
    at.MASKS,
    at.NAME_HASH,
    at.NAME_HASHES,
    at.NAMED,
)


def stored_sizes(context: NDArray[np.int64]) -> dict[int, int]:
    """How long each array that a reader needs is, by the counters of a context."""
    sizes = {
        at.HASH: int(context[at.HASH_MASK]) + 1,
        at.PATTERN_HASH: int(context[at.PATTERN_HASH_MASK]) + 1,
        at.POWERS: at.LITERAL_BYTES_MAX + 1,
    }
    for capacity, arrays in GROUPS.items():
        units = int(context[COUNT_OF.get(capacity, capacity)])
        sizes |= {number: units * per_unit for number, _, per_unit in arrays if number in STORED}
    return sizes


def _aligned(elements: int, kind: DTypeLike) -> Array:
    """An uninitialised array that begins on a cache line."""
    size = np.dtype(kind).itemsize
    raw = np.empty(elements + 64 // size, dtype=kind)
    skip = (-raw.ctypes.data % 64) // size
    return raw[skip : skip + elements]


class Memory:
    """The arrays of one engine. `context` is what every kernel takes."""

    def __init__(self) -> None:
        self.context: NDArray[np.int64] = np.zeros(at.CONTEXT_WORDS, np.int64)
        self.arrays: dict[int, Array] = {}
        for head in (at.ENTRY_FREE, at.PAGE_FREE, at.BLOCK_FREE, at.CLUSTER_FREE, at.NODE_FREE):
            self.context[head] = -1
        self.context[at.SLOT_FREE : at.RECORD_FREE + at.RECORD_CLASSES] = -1
        for capacity, units in _FIRST_CAPACITY.items():
            self._resize(capacity, units)
        self._put(at.MASKS, _aligned(at.BLOCK_SLOTS * 16, np.uint64))
        self._put(at.POWERS, np.zeros(at.LITERAL_BYTES_MAX + 1, np.int64))
        self._put(at.NAME_HASHES, np.zeros(at.NAME_HASHES_MAX, np.int64))
        self._put(at.NAMED, np.zeros(at.NAMED_MAX, np.int64))
        self.grow_hash(1_024)
        self.grow_name_hash(64)
        self.grow_pattern_hash(256)
        self.context[at.SLOT_COUNT] = at.SCRATCH_SLOTS

    def _put(self, number: int, array: Array) -> None:
        self.arrays[number] = array
        self.context[number] = array.ctypes.data

    def _resize(self, capacity: int, units: int) -> None:
        old_units = int(self.context[capacity])
        for number, kind, per_unit in GROUPS[capacity]:
            fresh = _aligned(units * per_unit, kind)
            if number in self.arrays:
                # To copy what was never used would make it resident.
                is_late = number in _WRITTEN_WHEN_TAKEN
                used = int(self.context[COUNT_OF[capacity]]) if is_late else old_units
                fresh[: used * per_unit] = self.arrays[number][: used * per_unit]
            self._put(number, fresh)
        self.context[capacity] = units
        if capacity == at.AXIS_CAPACITY:
            self._blank_axes(old_units, units)
        elif capacity == at.CODE_CAPACITY:
            self.arrays[at.CODE_REFS][old_units:] = 0
            self.arrays[at.HITS][old_units:] = 0

    def _blank_axes(self, start: int, stop: int) -> None:
        """New axes miss every event and have a single cell."""
        self.arrays[at.CELL][start:stop] = at.MISS
        self.arrays[at.HIGH_CELL][start:stop] = at.MISS
        self.arrays[at.LOW][start:stop] = np.iinfo(np.int64).min
        self.arrays[at.HIGH][start:stop] = np.iinfo(np.int64).max
        self.arrays[at.UPPERS][2 * start : 2 * stop : 2] = np.iinfo(np.int32).min
        self.arrays[at.UPPERS][2 * start + 1 : 2 * stop : 2] = np.iinfo(np.int32).max
        self.arrays[at.REST][start:stop] = 0
        self.arrays[at.ATTRIBUTE_AXES][at.SPACES * start : at.SPACES * stop] = -1
        self.arrays[at.ATTRIBUTE_CLASSES][2 * start : 2 * stop] = 0
        self.arrays[at.CELL_MASK][start:stop] = 1 << at.MISS
        self.arrays[at.NAME_SEEN][start:stop] = 0

    def grow(self, capacity: int, units_min: int = 0) -> None:
        """Make the arrays behind a capacity counter larger by a third, or to `units_min`."""
        units = int(self.context[capacity])
        self._resize(capacity, max(units + units // 3 + 16, units_min))

    def grow_hash(self, units: int) -> None:
        """A new empty hash table of this size, a power of two; the caller fills it."""
        self._put(at.HASH, np.zeros(units, np.int32))
        self.context[at.HASH_MASK] = units - 1

    def grow_pattern_hash(self, units: int) -> None:
        """A new empty hash table for patterns, likewise."""
        self._put(at.PATTERN_HASH, np.zeros(units, np.int32))
        self.context[at.PATTERN_HASH_MASK] = units - 1

    def grow_name_hash(self, units: int) -> None:
        """A new empty hash table for names, likewise."""
        self._put(at.NAME_HASH, np.zeros(units, np.int32))
        self.context[at.NAME_HASH_MASK] = units - 1

    def integers(self, number: int) -> NDArray[np.int32]:
        return cast("NDArray[np.int32]", self.arrays[number])

    def used(self) -> dict[int, Array]:
        """The parts in use of the arrays that a reader needs."""
        sizes = stored_sizes(self.context)
        return {number: self.arrays[number][:size] for number, size in sizes.items()}

    @classmethod
    def of_stored(cls, context: NDArray[np.int64], stored: dict[int, Array]) -> "Memory":
        """A memory for reading only, over arrays that `used` gave; scratch arrays are its own."""
        memory = cls()
        scratch = memory.arrays
        fresh = memory.context
        memory.context = context.copy()
        memory.context[: at.ARRAYS] = fresh[: at.ARRAYS]
        memory.context[at.NAME_HASH_MASK] = fresh[at.NAME_HASH_MASK]
        memory.context[at.STAMP] = 0
        for capacity, arrays in GROUPS.items():
            units = int(context[COUNT_OF.get(capacity, capacity)])
            for number, kind, per_unit in arrays:
                if number not in STORED:
                    scratch[number] = _aligned(units * per_unit, kind)
                    memory._put(number, scratch[number])
            memory.context[capacity] = units
        for number, array in stored.items():
            memory._put(number, array)
        memory.arrays[at.STAMPS][:] = 0
        memory.arrays[at.HITS][:] = 0
        memory.arrays[at.NAME_SEEN][:] = 0
        memory._blank_cells()
        return memory

    def _blank_cells(self) -> None:
        """No event is placed on any axis."""
        axes = self.arrays[at.AXES].reshape(-1, at.AXIS_WORDS)
        nowhere = np.where(axes[:, at.A_SPACE] == at.KIND, at.K_ABSENT, at.MISS)
        self.arrays[at.CELL][:] = nowhere
        self.arrays[at.CELL_MASK][:] = np.uint64(1) << nowhere.astype(np.uint64)
        self.arrays[at.HIGH_CELL][:] = nowhere
        self.arrays[at.LOW][:] = np.iinfo(np.int64).min
        self.arrays[at.HIGH][:] = np.iinfo(np.int64).max
        self.arrays[at.UPPERS][::2] = np.iinfo(np.int32).min
        self.arrays[at.UPPERS][1::2] = np.iinfo(np.int32).max
        self.arrays[at.REST][:] = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the parts of the arrays that are or were in use, scratch memory included."""
        total = sum(self.arrays[number].nbytes for number in _UNGROUPED)
        for capacity, arrays in GROUPS.items():
            units = int(self.context[COUNT_OF.get(capacity, capacity)])
            for _, kind, per_unit in arrays:
                total += units * per_unit * np.dtype(kind).itemsize
        return total
