"""Blocks: 512 slots whose entries are tested together, one AND per axis.

A block has a table of the axes its members constrain, and for each of them a *page*: a row of
512 bits per cell, in which bit j is set unless the entry in slot j excludes that cell. A member
that does not constrain the axis has its bit in every row, the MISS row too. The AND of one row
per axis, and of the live bits, is therefore the set of members that may match. Where most
constraints span many cells, a second page holds the *certain* cells: members set in all of
those match without a look at their record.

The *zone* of an axis is the union of its members' cells. A block is skipped when the event
falls outside a zone, and the three narrowest zones stand in the block's header, so that
skipping costs one cache line. Zones only widen until the block is split or emptied.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.keys import (
    is_ordered,
    predicate_axis,
    predicate_cells,
    predicate_count,
    predicate_ends,
    predicate_on,
)
from anabranch.matching.kernels.machine import (
    bit_count,
    bitmaps_at,
    integers_at,
    kernel,
    lowest_bit,
    words_at,
)
from anabranch.matching.kernels.storage import (
    copy_slot,
    fill_page,
    free_block,
    free_page,
    free_slots,
    free_table,
    take_block,
    take_page,
    take_slots,
    take_table,
)

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_FIRST_ROW = np.int64((1 << 40) - 1)
_LOWEST = np.int64(-0x8000000000000000)
_HIGHEST = np.int64(0x7FFFFFFFFFFFFFFF)
#: A certain page pays where constraints span this many cells on average.
_CERTAIN_CELLS = 6


@kernel
def make_block(context, cluster):
    """A new block without members or axes."""
    blocks = words_at(context, at.BLOCKS)
    block = take_block(context)
    b = block * at.BLOCK_WORDS
    for word in range(at.BLOCK_WORDS):
        blocks[b + word] = 0
    words_at(context, at.ZONES)[block * at.ZONE_WORDS + at.Z_NEXT] = 0
    blocks[b + at.B_TABLE] = take_table(context, 0)
    _show_table(context, block)
    for chunk in range(at.CHUNKS):
        blocks[b + at.B_CHUNKS + chunk] = -1
    blocks[b + at.B_COUNT] = cluster << 32
    _rank_zones(context, block)
    return block


@kernel
def clear_block(context, block):
    """Drop a block's axes and pages; its members must be gone or about to be put back."""
    blocks = words_at(context, at.BLOCKS)
    tables = words_at(context, at.TABLES)
    row_pages = words_at(context, at.ROW_PAGES)
    b = block * at.BLOCK_WORDS
    first, count, size_class = _table_of(blocks, b)
    for row in range(first, first + count):
        free_page(context, row_pages[row] >> 16)
        if tables[row * at.TABLE_WORDS + at.T_CERTAIN] >= 0:
            free_page(context, tables[row * at.TABLE_WORDS + at.T_CERTAIN])
    free_table(context, first, size_class)
    blocks[b + at.B_TABLE] = take_table(context, 0)
    _show_table(context, block)
    for word in range(at.WORDS):
        blocks[b + at.B_LIVE + word] = 0
    for chunk in range(at.CHUNKS):
        if blocks[b + at.B_CHUNKS + chunk] >= 0:
            free_slots(context, blocks[b + at.B_CHUNKS + chunk], at.CHUNK_CLASS)
            blocks[b + at.B_CHUNKS + chunk] = -1
    blocks[b + at.B_COUNT] = (blocks[b + at.B_COUNT] >> 32) << 32
    blocks[b + at.B_GROUPS] = 0
    _rank_zones(context, block)


@kernel
def drop_block(context, block):
    """Give back an empty block and all it holds."""
    clear_block(context, block)
    blocks = words_at(context, at.BLOCKS)
    b = block * at.BLOCK_WORDS
    free_table(context, blocks[b + at.B_TABLE] & _FIRST_ROW, 0)
    free_block(context, block)


@kernel
def _show_table(context, block):
    """Let the zones name the block's first table row."""
    zones = words_at(context, at.ZONES)
    first = words_at(context, at.BLOCKS)[block * at.BLOCK_WORDS + at.B_TABLE] & _FIRST_ROW
    z = block * at.ZONE_WORDS + at.Z_NEXT
    zones[z] = (zones[z] & 0xFFFFFFFF) | (first << 32)


@kernel
def _table_of(blocks, b):
    """(first row, number of axes, size class) of a block's table."""
    word = blocks[b + at.B_TABLE]
    return word & _FIRST_ROW, (word >> 40) & 0xFFFF, word >> 56


@kernel
def block_put(context, block, source):
    """Seat the entry of slot `source` in a block that has room."""
    blocks = words_at(context, at.BLOCKS)
    b = block * at.BLOCK_WORDS
    place = np.int64(0)
    for word in range(at.WORDS):
        free = ~np.uint64(blocks[b + at.B_LIVE + word])
        if free != np.uint64(0):
            place = word * 64 + lowest_bit(free)
            break
    if blocks[b + at.B_CHUNKS + (place >> at.CHUNK_CLASS)] < 0:
        blocks[b + at.B_CHUNKS + (place >> at.CHUNK_CLASS)] = take_slots(context, at.CHUNK_CLASS)
    slot = slot_at(blocks, b, place)
    copy_slot(context, source, slot)
    entry = np.int64(integers_at(context, at.SLOT_ENTRY)[slot]) & at.ENTRY_MASK
    integers_at(context, at.ENTRY_CLUSTER)[entry] = -2 - block
    live = np.uint64(blocks[b + at.B_LIVE + (place >> 6)])
    live |= np.uint64(1) << np.uint64(place & 63)
    blocks[b + at.B_LIVE + (place >> 6)] = np.int64(live)
    group = np.uint64(1) << np.uint64(integers_at(context, at.GROUPS)[entry] & 63)
    blocks[b + at.B_GROUPS] = np.int64(np.uint64(blocks[b + at.B_GROUPS]) | group)
    _mark(context, block, place, slot)
    blocks[b + at.B_COUNT] += 1
    _rank_zones(context, block)


@kernel
def slot_at(blocks, b, place):
    """The slot of a place in the block whose words begin at `b`."""
    return blocks[b + at.B_CHUNKS + (place >> at.CHUNK_CLASS)] + (
        place & ((1 << at.CHUNK_CLASS) - 1)
    )


@kernel
def _place_of(blocks, b, slot):
    """The place of a slot in its block."""
    place = np.int64(0)
    for chunk in range(at.CHUNKS):
        first = blocks[b + at.B_CHUNKS + chunk]
        if first >= 0 and first <= slot < first + (1 << at.CHUNK_CLASS):
            place = (chunk << at.CHUNK_CLASS) + slot - first
    return place


@kernel
def _mark(context, block, place, slot):
    """Enter an entry's cells into the pages and zones of its block."""
    blocks = words_at(context, at.BLOCKS)
    tables = words_at(context, at.TABLES)
    row_pages = words_at(context, at.ROW_PAGES)
    b = block * at.BLOCK_WORDS
    members = blocks[b + at.B_COUNT] & 0xFFFFFFFF
    first, count, _ = _table_of(blocks, b)
    for row in range(first, first + count):
        if predicate_on(context, slot, row_pages[row] & 0xFFFF) < 0:
            _open_zone(tables, row * at.TABLE_WORDS)
    for number in range(predicate_count(context, slot)):
        axis = predicate_axis(context, slot, number)
        row = _row_of_axis(context, block, axis)
        if row < 0:
            row = _add_axis(context, block, axis)
            if members > 0:
                _open_zone(tables, row * at.TABLE_WORDS)
        possible, certain = predicate_cells(context, slot, number)
        _clear_cells(context, row_pages[row] >> 16, place, possible)
        if tables[row * at.TABLE_WORDS + at.T_CERTAIN] >= 0:
            _clear_cells(context, tables[row * at.TABLE_WORDS + at.T_CERTAIN], place, certain)
        _widen_zone(context, row * at.TABLE_WORDS, slot, number, possible)


@kernel
def _open_zone(tables, t):
    """Some member does not constrain the axis: every event is within its zone."""
    tables[t + at.T_ZONE] = np.int64(_ALL)
    tables[t + at.T_LOWEST] = _LOWEST
    tables[t + at.T_HIGHEST] = _HIGHEST


@kernel
def _close_zone(tables, t):
    """No members yet: no event is within the zone."""
    tables[t + at.T_ZONE] = 0
    tables[t + at.T_LOWEST] = _HIGHEST
    tables[t + at.T_HIGHEST] = _LOWEST


@kernel
def _widen_zone(context, t, slot, number, possible):
    """Let the zone of a table row include a slot's predicate."""
    tables = words_at(context, at.TABLES)
    low, high = predicate_ends(context, slot, number)
    tables[t + at.T_ZONE] |= np.int64(possible)
    tables[t + at.T_LOWEST] = min(tables[t + at.T_LOWEST], low)
    tables[t + at.T_HIGHEST] = max(tables[t + at.T_HIGHEST], high)


@kernel
def _row_of_axis(context, block, axis):
    """Table row of an axis in a block, or -1."""
    row_pages = words_at(context, at.ROW_PAGES)
    first, count, _ = _table_of(words_at(context, at.BLOCKS), block * at.BLOCK_WORDS)
    for row in range(first, first + count):
        if row_pages[row] & 0xFFFF == axis:
            return row
    return np.int64(-1)


@kernel
def _add_axis(context, block, axis):
    """A new table row with a page in which nobody is constrained."""
    blocks = words_at(context, at.BLOCKS)
    tables = words_at(context, at.TABLES)
    row_pages = words_at(context, at.ROW_PAGES)
    b = block * at.BLOCK_WORDS
    first, count, size_class = _table_of(blocks, b)
    if count == np.int64(4) << size_class:
        larger = take_table(context, size_class + 1)
        for row in range(count):
            row_pages[larger + row] = row_pages[first + row]
        for word in range(count * at.TABLE_WORDS):
            tables[larger * at.TABLE_WORDS + word] = tables[first * at.TABLE_WORDS + word]
        free_table(context, first, size_class)
        first = larger
        size_class += 1
    row = first + count
    row_pages[row] = axis | (take_page(context) << 16)
    tables[row * at.TABLE_WORDS + at.T_CERTAIN] = -1
    _close_zone(tables, row * at.TABLE_WORDS)
    blocks[b + at.B_TABLE] = first | ((count + 1) << 40) | (size_class << 56)
    _show_table(context, block)
    return row


@kernel
def _clear_cells(context, page, place, cells):
    """Clear a member's bit in the rows of all cells but these."""
    pages = bitmaps_at(context, at.PAGES)
    keep = ~(np.uint64(1) << np.uint64(place & 63))
    spot = page * at.PAGE_WORDS + (place >> 6)
    for row in range(at.ROWS):
        if (cells >> np.uint64(row)) & np.uint64(1) == np.uint64(0):
            pages[spot + row * at.WORDS] &= keep


@kernel
def block_remove(context, block, slot):
    """Empty a slot: its member is unconstrained again and not live."""
    blocks = words_at(context, at.BLOCKS)
    tables = words_at(context, at.TABLES)
    row_pages = words_at(context, at.ROW_PAGES)
    b = block * at.BLOCK_WORDS
    place = _place_of(blocks, b, slot)
    live = np.uint64(blocks[b + at.B_LIVE + (place >> 6)])
    live &= ~(np.uint64(1) << np.uint64(place & 63))
    blocks[b + at.B_LIVE + (place >> 6)] = np.int64(live)
    blocks[b + at.B_COUNT] -= 1
    integers_at(context, at.SLOT_ENTRY)[slot] = -1
    if blocks[b + at.B_COUNT] & 0xFFFFFFFF == 0:
        clear_block(context, block)
        return
    for number in range(predicate_count(context, slot)):
        row = _row_of_axis(context, block, predicate_axis(context, slot, number))
        _set_column(context, row_pages[row] >> 16, place)
        if tables[row * at.TABLE_WORDS + at.T_CERTAIN] >= 0:
            _set_column(context, tables[row * at.TABLE_WORDS + at.T_CERTAIN], place)


@kernel
def _set_column(context, page, place):
    """Set a member's bit in every row of a page."""
    pages = bitmaps_at(context, at.PAGES)
    bit = np.uint64(1) << np.uint64(place & 63)
    spot = page * at.PAGE_WORDS + (place >> 6)
    for row in range(at.ROWS):
        pages[spot + row * at.WORDS] |= bit


@kernel
def _rank_zones(context, block):
    """Copy the three narrowest zones into the block's header."""
    blocks = words_at(context, at.BLOCKS)
    tables = words_at(context, at.TABLES)
    row_pages = words_at(context, at.ROW_PAGES)
    zones = words_at(context, at.ZONES)
    b = block * at.BLOCK_WORDS
    z = block * at.ZONE_WORDS
    first, count, _ = _table_of(blocks, b)
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
def redraw_row(context, block, row):
    """Draw the pages and the zone of one axis of a block anew, from its members' records."""
    tables = words_at(context, at.TABLES)
    row_pages = words_at(context, at.ROW_PAGES)
    blocks = words_at(context, at.BLOCKS)
    t = row * at.TABLE_WORDS
    b = block * at.BLOCK_WORDS
    axis = row_pages[row] & 0xFFFF
    fill_page(context, row_pages[row] >> 16)
    if tables[t + at.T_CERTAIN] >= 0:
        fill_page(context, tables[t + at.T_CERTAIN])
    _close_zone(tables, t)
    for word in range(at.WORDS):
        live = np.uint64(blocks[b + at.B_LIVE + word])
        while live != np.uint64(0):
            place = word * 64 + lowest_bit(live)
            live &= live - np.uint64(1)
            slot = slot_at(blocks, b, place)
            number = predicate_on(context, slot, axis)
            if number < 0:
                _open_zone(tables, t)
                continue
            possible, certain = predicate_cells(context, slot, number)
            _widen_zone(context, t, slot, number, possible)
            _clear_cells(context, row_pages[row] >> 16, place, possible)
            if tables[t + at.T_CERTAIN] >= 0:
                _clear_cells(context, tables[t + at.T_CERTAIN], place, certain)


@kernel
def redraw_axis(context, block, axis):
    """Draw one axis of a block anew, if the block has it; the axis has new bounds."""
    row = _row_of_axis(context, block, axis)
    if row >= 0:
        redraw_row(context, block, row)
        _rank_zones(context, block)


@kernel
def certify_block(context, block):
    """Give each axis of a fresh block a certain page where that pays."""
    blocks = words_at(context, at.BLOCKS)
    tables = words_at(context, at.TABLES)
    row_pages = words_at(context, at.ROW_PAGES)
    b = block * at.BLOCK_WORDS
    first, count, _ = _table_of(blocks, b)
    for row in range(first, first + count):
        t = row * at.TABLE_WORDS
        axis = row_pages[row] & 0xFFFF
        cells = np.int64(0)
        constrained = np.int64(0)
        for place in range(at.BLOCK_SLOTS):
            live = np.uint64(blocks[b + at.B_LIVE + (place >> 6)])
            if (live >> np.uint64(place & 63)) & np.uint64(1) == np.uint64(0):
                continue
            slot = slot_at(blocks, b, place)
            number = predicate_on(context, slot, axis)
            if number >= 0:
                _, certain = predicate_cells(context, slot, number)
                cells += bit_count(certain)
                constrained += 1
        if cells >= constrained * (_CERTAIN_CELLS - 2) and tables[t + at.T_CERTAIN] < 0:
            tables[t + at.T_CERTAIN] = take_page(context)
            redraw_row(context, block, row)
