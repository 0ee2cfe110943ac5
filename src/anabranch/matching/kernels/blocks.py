"""Blocks: 512 slots whose entries are tested together, one AND per axis.

A block has a table of the axes that enough of its members constrain, and for each a *page*: a row
of 512 bits per cell, in which bit j is set unless the entry in slot j excludes that cell. A member
that does not constrain the axis, and a slot that is empty, have their bit in every row, the MISS
row too. The AND of one row per axis, and of the live bits, is therefore the set of members that may
match. Where most constraints span many cells, a second page holds the *certain* cells: members set
in all of those, and *whole* (none of their predicates is on an axis without a page), match without
a look at their line.

Pages are drawn when a block is refilled; then they are updated as members are added and removed,
but no axis gets a page until the block is split. Adding or removing a member changes one column.
Redrawing a page goes the other way: first the cells of all members as masks, one word each, then
row by row one bit of every mask. The masks are worked out once and serve both pages and the zone.

The *zone* of an axis in a block is the union of its members' cells, and the span from their
lowest to their highest key. A block is skipped when the event falls outside a zone, and the
three narrowest zones stand together in one cache line, so that skipping costs no more than
that. Zones only widen until the block is split or emptied. Covering asks the other way round,
whether a member may lie within a box. For that the zone has the highest low end and the lowest high
end of the members that constrain the axis.
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
    get,
    integers_at,
    kernel,
    lowest_bit,
    words_at,
)
from anabranch.matching.kernels.storage import (
    copy_slot,
    free_block,
    free_page,
    free_slots,
    free_table,
    take_block,
    take_page,
    take_slots,
    take_table,
)

# -- zones -----------------------------------------------------------------------------------------


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
    row_pages = words_at(context, at.ROW_PAGES)
    first, count, _ = table_of(words_at(context, at.BLOCKS), block * at.BLOCK_WORDS)
    for row in range(first, first + count):
        if row_pages[row] & 0xFFFF == axis:
            return row
    return np.int64(-1)


# -- pages -----------------------------------------------------------------------------------------


_EVERY_ROW = np.uint64((1 << at.ROWS) - 1)
#: A certain page pays where this many cells of a constraint are certain on average.
_CERTAIN_CELLS = 4
#: Words of MASKS that one row takes, and rows for which there is room.
_ROW_MASKS = 2 * at.BLOCK_SLOTS
_ROWS_AT_ONCE = 8


@kernel
def slot_at(blocks, b, place):
    """The slot of a place in the block whose words begin at `b`."""
    return get(blocks, b + at.B_CHUNKS + (place >> at.CHUNK_CLASS)) + (
        place & ((1 << at.CHUNK_CLASS) - 1)
    )


@kernel
def clear_cells(context, page, place, cells):
    """Clear a member's bit in the rows of all cells but these."""
    pages = bitmaps_at(context, at.PAGES)
    keep = ~(np.uint64(1) << np.uint64(place & 63))
    spot = page * at.PAGE_WORDS + (place >> 6)
    others = ~cells & _EVERY_ROW
    while others != np.uint64(0):
        pages[np.uint64(spot + lowest_bit(others) * at.WORDS)] &= keep
        others &= others - np.uint64(1)


@kernel
def set_column(context, page, place):
    pages = bitmaps_at(context, at.PAGES)
    bit = np.uint64(1) << np.uint64(place & 63)
    spot = page * at.PAGE_WORDS + (place >> 6)
    for row in range(at.ROWS):
        pages[np.uint64(spot + row * at.WORDS)] |= bit


@kernel
def _gather(context, block, first, count, certain_cells):
    """Write the members' possible and certain cells on the axes of some rows to MASKS.

    Each row has its possible cells first, then its certain ones. Its zone is widened, and
    `certain_cells` becomes how many cells are certain in all beyond what makes a page pay.
    """
    blocks = words_at(context, at.BLOCKS)
    tables = words_at(context, at.TABLES)
    row_pages = words_at(context, at.ROW_PAGES)
    masks = bitmaps_at(context, at.MASKS)
    b = block * at.BLOCK_WORDS
    for spot in range(count * _ROW_MASKS):
        masks[spot] = _ALL
    everywhere = (np.uint64(1) << np.uint64(count)) - np.uint64(1)
    for word in range(at.WORDS):
        live = np.uint64(blocks[b + at.B_LIVE + word])
        while live != np.uint64(0):
            place = word * 64 + lowest_bit(live)
            live &= live - np.uint64(1)
            slot = slot_at(blocks, b, place)
            constrained = np.uint64(0)
            for number in range(predicate_count(context, slot)):
                axis = predicate_axis(context, slot, number)
                for row in range(count):
                    if get(row_pages, first + row) & 0xFFFF == axis:
                        possible, certain = predicate_cells(context, slot, number)
                        widen_zone(context, (first + row) * at.TABLE_WORDS, slot, number, possible)
                        masks[row * _ROW_MASKS + place] = possible
                        masks[row * _ROW_MASKS + at.BLOCK_SLOTS + place] = certain
                        certain_cells[row] += bit_count(certain) - _CERTAIN_CELLS
                        constrained |= np.uint64(1) << np.uint64(row)
                        break
            everywhere &= constrained
    for row in range(count):
        if (everywhere >> np.uint64(row)) & np.uint64(1) == np.uint64(0):
            open_zone(tables, (first + row) * at.TABLE_WORDS)


@kernel
def _draw_page(context, page, first):
    """Draw a page from the masks that begin at word `first` of MASKS."""
    pages = bitmaps_at(context, at.PAGES)
    masks = bitmaps_at(context, at.MASKS)
    for word in range(at.WORDS):
        spot = page * at.PAGE_WORDS + word
        origin = first + word * 64
        for row in range(at.ROWS):
            bits = np.uint64(0)
            for place in range(64):
                bit = (get(masks, origin + place) >> np.uint64(row)) & np.uint64(1)
                bits |= bit << np.uint64(place)
            pages[np.uint64(spot + row * at.WORDS)] = bits


@kernel
def draw_rows(context, block, first, count, fresh):
    """Redraw pages and zones of some rows of a block's table from its members' records.

    A `fresh` row is given a certain page if that pays; another one has it or has it not.
    """
    row_pages = words_at(context, at.ROW_PAGES)
    row_certain = words_at(context, at.ROW_CERTAIN)
    certain_cells = np.empty(_ROWS_AT_ONCE, np.int64)
    for start in range(first, first + count, _ROWS_AT_ONCE):
        together = min(_ROWS_AT_ONCE, first + count - start)
        for row in range(together):
            certain_cells[row] = 0
            close_zone(words_at(context, at.TABLES), (start + row) * at.TABLE_WORDS)
        _gather(context, block, start, together, certain_cells)
        for row in range(together):
            _draw_page(context, row_pages[start + row] >> 16, row * _ROW_MASKS)
            if fresh and certain_cells[row] >= 0:
                row_certain[start + row] = take_page(context)
            if row_certain[start + row] >= 0:
                certain_masks = row * _ROW_MASKS + at.BLOCK_SLOTS
                _draw_page(context, row_certain[start + row], certain_masks)


# -- blocks ----------------------------------------------------------------------------------------


#: A page pays off if at least this number of members use its axis, and this share: 1 / 2**shift.
_USES_MIN = 4
_USES_SHIFT = 5


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
    rank_zones(context, block)
    return block


@kernel
def _drop_rows(context, block):
    blocks = words_at(context, at.BLOCKS)
    row_pages = words_at(context, at.ROW_PAGES)
    row_certain = words_at(context, at.ROW_CERTAIN)
    b = block * at.BLOCK_WORDS
    first, count, size_class = table_of(blocks, b)
    for row in range(first, first + count):
        free_page(context, row_pages[row] >> 16)
        if row_certain[row] >= 0:
            free_page(context, row_certain[row])
    free_table(context, first, size_class)
    blocks[b + at.B_TABLE] = take_table(context, 0)
    _show_table(context, block)


@kernel
def clear_block(context, block):
    """Drop a block's axes, pages and slots; its members must be gone or about to be put back."""
    blocks = words_at(context, at.BLOCKS)
    b = block * at.BLOCK_WORDS
    _drop_rows(context, block)
    for word in range(at.WORDS):
        blocks[b + at.B_LIVE + word] = 0
    for chunk in range(at.CHUNKS):
        if blocks[b + at.B_CHUNKS + chunk] >= 0:
            free_slots(context, blocks[b + at.B_CHUNKS + chunk], at.CHUNK_CLASS)
            blocks[b + at.B_CHUNKS + chunk] = -1
    blocks[b + at.B_COUNT] = (blocks[b + at.B_COUNT] >> 32) << 32
    blocks[b + at.B_GROUPS] = 0
    rank_zones(context, block)


@kernel
def drop_block(context, block):
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
def seat_member(context, block, source):
    """Seat the entry of slot `source` in a block that has room; returns its place.

    Pages and zones know nothing of it yet: `block_put` tells them, or `draw_block` for many.
    """
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
    blocks[b + at.B_COUNT] += 1
    return place


@kernel
def block_put(context, block, source):
    """Seat the entry of slot `source` in a block that has room."""
    blocks = words_at(context, at.BLOCKS)
    b = block * at.BLOCK_WORDS
    place = seat_member(context, block, source)
    slot = slot_at(blocks, b, place)
    _note_whole(context, block, place, slot)
    _mark(context, block, place, slot)
    members = blocks[b + at.B_COUNT] & 0xFFFFFFFF
    unpaged = (blocks[b + at.B_TABLE] >> 40) & 0xFFFF == 0
    if unpaged and (members == 64 or members == 128 or members == 256):
        draw_block(context, block)
    rank_zones(context, block)


@kernel
def _note_whole(context, block, place, slot):
    """Note whether the pages of its block tell all about a member."""
    blocks = words_at(context, at.BLOCKS)
    bit = np.uint64(1) << np.uint64(place & 63)
    word = block * at.BLOCK_WORDS + at.B_WHOLE + (place >> 6)
    whole = np.uint64(blocks[word]) | bit
    for number in range(predicate_count(context, slot)):
        if row_of_axis(context, block, predicate_axis(context, slot, number)) < 0:
            whole &= ~bit
            break
    blocks[word] = np.int64(whole)


@kernel
def _place_of(blocks, b, slot):
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
    row_certain = words_at(context, at.ROW_CERTAIN)
    b = block * at.BLOCK_WORDS
    first, count, _ = table_of(blocks, b)
    for row in range(first, first + count):
        number = predicate_on(context, slot, row_pages[row] & 0xFFFF)
        if number < 0:
            open_zone(tables, row * at.TABLE_WORDS)
            continue
        possible, certain = predicate_cells(context, slot, number)
        clear_cells(context, row_pages[row] >> 16, place, possible)
        if row_certain[row] >= 0:
            clear_cells(context, row_certain[row], place, certain)
        widen_zone(context, row * at.TABLE_WORDS, slot, number, possible)


@kernel
def _add_axis(context, block, axis):
    """A new table row with a page in which nobody is constrained."""
    blocks = words_at(context, at.BLOCKS)
    tables = words_at(context, at.TABLES)
    row_pages = words_at(context, at.ROW_PAGES)
    row_certain = words_at(context, at.ROW_CERTAIN)
    b = block * at.BLOCK_WORDS
    first, count, size_class = table_of(blocks, b)
    if count == np.int64(4) << size_class:
        larger = take_table(context, size_class + 1)
        for row in range(count):
            row_pages[larger + row] = row_pages[first + row]
            row_certain[larger + row] = row_certain[first + row]
        for word in range(count * at.TABLE_WORDS):
            tables[larger * at.TABLE_WORDS + word] = tables[first * at.TABLE_WORDS + word]
        free_table(context, first, size_class)
        first = larger
        size_class += 1
    row = first + count
    row_pages[row] = axis | (take_page(context) << 16)
    row_certain[row] = -1
    close_zone(tables, row * at.TABLE_WORDS)
    blocks[b + at.B_TABLE] = first | ((count + 1) << 40) | (size_class << 56)
    _show_table(context, block)


@kernel
def block_remove(context, block, slot):
    """Empty a slot: its member is unconstrained again and not live."""
    blocks = words_at(context, at.BLOCKS)
    row_pages = words_at(context, at.ROW_PAGES)
    row_certain = words_at(context, at.ROW_CERTAIN)
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
        row = row_of_axis(context, block, predicate_axis(context, slot, number))
        if row < 0:
            continue
        set_column(context, row_pages[row] >> 16, place)
        if row_certain[row] >= 0:
            set_column(context, row_certain[row], place)


@kernel
def redraw_axis(context, block, axis):
    """Redraw one axis of a block, if the block has it; the axis has new bounds."""
    row = row_of_axis(context, block, axis)
    if row >= 0:
        draw_rows(context, block, row, 1, False)
        rank_zones(context, block)


@kernel
def draw_block(context, block):
    """Draw the pages of a refilled block, for the axes that enough members use."""
    blocks = words_at(context, at.BLOCKS)
    b = block * at.BLOCK_WORDS
    _drop_rows(context, block)
    uses = np.zeros(context[at.AXIS_COUNT], np.int64)
    for word in range(at.WORDS):
        live = np.uint64(blocks[b + at.B_LIVE + word])
        while live != np.uint64(0):
            slot = slot_at(blocks, b, word * 64 + lowest_bit(live))
            live &= live - np.uint64(1)
            for number in range(predicate_count(context, slot)):
                uses[np.uint64(predicate_axis(context, slot, number))] += 1
    least = max(_USES_MIN, (blocks[b + at.B_COUNT] & 0xFFFFFFFF) >> _USES_SHIFT)
    for axis in range(context[at.AXIS_COUNT]):
        if uses[axis] >= least:
            _add_axis(context, block, axis)
    for word in range(at.WORDS):
        live = np.uint64(blocks[b + at.B_LIVE + word])
        whole = live
        while live != np.uint64(0):
            slot = slot_at(blocks, b, word * 64 + lowest_bit(live))
            for number in range(predicate_count(context, slot)):
                if get(uses, predicate_axis(context, slot, number)) < least:
                    whole &= ~(np.uint64(1) << np.uint64(lowest_bit(live)))
                    break
            live &= live - np.uint64(1)
        blocks[b + at.B_WHOLE + word] = np.int64(whole)
    first, count, _ = table_of(blocks, b)
    draw_rows(context, block, first, count, True)
    rank_zones(context, block)
