"""Zones: why most blocks are never looked into.

The *zone* of an axis in a block is the union of its members' cells, and the span from their
lowest to their highest key. A block is skipped when the event falls outside a zone, and the
three narrowest zones stand together in one cache line, so that skipping costs no more than
that. Zones only widen until the block is split or emptied.

Covering asks the other way round, whether a member may lie within a box. For that the zone has
the highest low end and the lowest high end of the members that constrain the axis.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.keys import (
    is_ordered,
    predicate_ends,
)
from anabranch.matching.kernels.machine import (
    bit_count,
    kernel,
    words_at,
)

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_FIRST_ROW = np.int64((1 << 40) - 1)
_LOWEST = np.int64(-0x8000000000000000)
_HIGHEST = np.int64(0x7FFFFFFFFFFFFFFF)


@kernel
def open_zone(tables, t):
    """Some member does not constrain the axis: every event is within its zone."""
    tables[t + at.T_ZONE] = np.int64(_ALL)
    tables[t + at.T_LOWEST] = _LOWEST
    tables[t + at.T_HIGHEST] = _HIGHEST


@kernel
def close_zone(tables, t):
    """No members yet: no event is within the zone."""
    tables[t + at.T_ZONE] = 0
    tables[t + at.T_LOWEST] = _HIGHEST
    tables[t + at.T_HIGHEST] = _LOWEST
    tables[t + at.T_LAST_LOW] = _LOWEST
    tables[t + at.T_FIRST_HIGH] = _HIGHEST


@kernel
def widen_zone(context, t, slot, number, possible):
    """Let the zone of a table row include a slot's predicate."""
    tables = words_at(context, at.TABLES)
    low, high = predicate_ends(context, slot, number)
    tables[t + at.T_ZONE] |= np.int64(possible)
    tables[t + at.T_LOWEST] = min(tables[t + at.T_LOWEST], low)
    tables[t + at.T_HIGHEST] = max(tables[t + at.T_HIGHEST], high)
    tables[t + at.T_LAST_LOW] = max(tables[t + at.T_LAST_LOW], low)
    # The high end of a fine range is rounded up: it may lie one key lower.
    tables[t + at.T_FIRST_HIGH] = min(tables[t + at.T_FIRST_HIGH], max(high, _LOWEST + 1) - 1)


@kernel
def rank_zones(context, block):
    """Copy the three narrowest zones into the block's header."""
    blocks = words_at(context, at.BLOCKS)
    tables = words_at(context, at.TABLES)
    row_pages = words_at(context, at.ROW_PAGES)
    zones = words_at(context, at.ZONES)
    b = block * at.BLOCK_WORDS
    z = block * at.ZONE_WORDS
    first, count, _ = table_of(blocks, b)
    axes = np.int64(0)
    floor = np.int64(-1)
    for rank in range(3):
        best = np.int64(-1)
        best_width = np.int64(1) << np.int64(40)
        for row in range(first, first + count):
            width = bit_count(np.uint64(tables[row * at.TABLE_WORDS + at.T_ZONE]))
            # Widths are ranked together with the row number, so that no two are equal.
            width = width * 65536 + (row - first)
            if floor < width < best_width:
                best_width = width
                best = row
        if best < 0 or best_width >= at.ROWS * 65536:
            axes |= np.int64(at.NO_AXIS) << np.int64(16 * rank)
        else:
            t = best * at.TABLE_WORDS
            axes |= (row_pages[best] & 0xFFFF) << np.int64(16 * rank)
            floor = best_width
            if is_ordered(context, row_pages[best] & 0xFFFF):
                zones[z + at.Z_RANGE + 2 * rank] = tables[t + at.T_LOWEST]
                zones[z + at.Z_RANGE + 2 * rank + 1] = tables[t + at.T_HIGHEST]
            else:
                axes |= np.int64(1) << np.int64(48 + rank)
                zones[z + at.Z_RANGE + 2 * rank] = tables[t + at.T_ZONE]
    zones[z + at.Z_AXES] = axes


@kernel
def table_of(blocks, b):
    """(first row, number of axes, size class) of a block's table."""
    word = blocks[b + at.B_TABLE]
    return word & _FIRST_ROW, (word >> 40) & 0xFFFF, word >> 56


@kernel
def row_of_axis(context, block, axis):
    """Table row of an axis in a block, or -1."""
    row_pages = words_at(context, at.ROW_PAGES)
    first, count, _ = table_of(words_at(context, at.BLOCKS), block * at.BLOCK_WORDS)
    for row in range(first, first + count):
        if row_pages[row] & 0xFFFF == axis:
            return row
    return np.int64(-1)
