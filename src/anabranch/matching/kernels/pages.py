"""Pages: which members of a block each cell of an axis lets through.

A page is a row of 512 bits per cell, in which bit j is set unless the entry in slot j excludes
that cell. A member that does not constrain the axis, and a slot that is empty, have their bit in
every row. Where a second page holds the *certain* cells, it is kept in the same way.

Adding or removing a member changes one column. Redrawing a page goes the other way: first the
cells of all members as masks, one word each, then row by row one bit of every mask. The masks
are worked out once and serve both pages and the zone.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.keys import (
    predicate_axis,
    predicate_cells,
    predicate_count,
)
from anabranch.matching.kernels.machine import (
    bit_count,
    bitmaps_at,
    get,
    kernel,
    lowest_bit,
    words_at,
)
from anabranch.matching.kernels.storage import (
    take_page,
)
from anabranch.matching.kernels.zones import (
    close_zone,
    open_zone,
    widen_zone,
)

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
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
    """Set a member's bit in every row of a page."""
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
