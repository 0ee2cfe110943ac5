"""Tiles of events for `kernels.sweeping`: how many at once, and the arrays they are placed in.

The more events there are in a tile, the fewer times the index is read for all of them; a tile of
some megabytes lies in the cache that all cores share. An index can be swept if every subscription
is one conjunction that the kernels decide alone, without patterns; see there.

State: arrays for one call, of one thread; and what was counted.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from anabranch.matching.kernels import layout as at
from anabranch.matching.memory import Memory
from anabranch.spark.kernels import sweeping

_TILE_BYTES: Final = 8 << 20
_ROWS_MIN: Final = 64
_ROWS_MAX: Final = 16_384
#: Bytes of an event on one axis.
_AXIS_BYTES: Final = 33


def can_be_swept(memory: Memory, subscriptions: int) -> bool:
    """Whether an index can be; `subscriptions` are those that have an entry."""
    context = memory.context
    if context[at.DOUBT_ENTRIES] or context[at.LIVE_ENTRIES] != subscriptions:
        return False
    # An axis of patterns stays when those are gone, and a long text may find no room on it.
    axes = memory.arrays[at.ATTRIBUTE_AXES].reshape(-1, at.SPACES)
    return not bool((axes[:, at.PATTERN] >= 0).any())


class Tiles:
    """Room for a tile."""

    def __init__(self, memory: Memory) -> None:
        axes = max(int(memory.context[at.AXIS_COUNT]), 1)
        clusters = int(memory.context[at.CLUSTER_COUNT])
        self.rows = min(max(_TILE_BYTES // (axes * _AXIS_BYTES), _ROWS_MIN), _ROWS_MAX)
        links = self.rows * (2 * axes + 1)
        cells = np.zeros((self.rows + 1) * axes, np.uint8)
        nowhere = memory.arrays[at.CELL][: memory.context[at.AXIS_COUNT]]
        cells[self.rows * axes :][: len(nowhere)] = nowhere
        self._arrays: dict[int, NDArray[np.int64] | NDArray[np.int32] | NDArray[np.uint8]] = {
            each: np.empty(self.rows * axes, np.int64)
            for each in (sweeping.LOWS, sweeping.HIGHS, sweeping.RESTS)
        }
        self._arrays |= {
            sweeping.CELLS: cells,
            sweeping.UPPERS: np.empty(2 * self.rows * axes, np.int32),
            sweeping.HEADS: np.full(clusters + 1, -1, np.int32),
            sweeping.LINKS: np.empty(links, np.int32),
            sweeping.LINK_ROWS: np.empty(links, np.int32),
            sweeping.REACHED: np.empty(min(links, clusters + 1), np.int32),
            sweeping.HERE: np.empty(self.rows, np.int32),
        }
        #: Matches by slot.
        self.counts = np.zeros(int(memory.context[at.SLOT_COUNT]), np.int64)
        #: The addresses of the arrays, as kernels take them.
        self.words = np.zeros(sweeping.TILE_WORDS, np.int64)
        for number, array in self._arrays.items():
            self.words[number] = array.ctypes.data
        self.words[sweeping.ROWS] = self.rows

    def by_entry(self, memory: Memory, entries: int) -> NDArray[np.int64]:
        """What was counted, by entry."""
        slots = np.nonzero(self.counts)[0]
        found = np.zeros(entries, np.int64)
        found[memory.arrays[at.SLOT_ENTRY][slots]] = self.counts[slots]
        return found
