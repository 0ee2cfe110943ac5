"""Whom does a box cover? Entries that are constrained on all its axes and lie within it.

Such an entry is not in the MISS row of any axis of the box, nor in the rows of the cells just
outside the box's reach; where that spans few cells, it is in the row of one of them. Clusters
whose key lies outside the reach are passed over, and so are blocks whose members all begin
before the box, or all end behind it, on some axis. What is left is looked at one by one, with
the lines asked for in advance.

For that a box is *marked* on the axes that a predicate of it tells all about; its cells there are
written to CELL_MASK, which only events use otherwise. If that is all there is to the box, an entry
that stands in its line alone is decided by its ranges on the marked axes. Any other pair is
compared predicate by predicate, and what the predicates leave open is a doubt.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.cover import lift_box, note, place_box
from anabranch.matching.kernels.keys import (
    keys_from_floats,
    line_high,
    line_low,
    predicate_on,
    words_of_predicate,
)
from anabranch.matching.kernels.machine import (
    bit_count,
    bitmaps_at,
    entry_point,
    get,
    integers_at,
    kernel,
    lowest_bit,
    prefetch,
    words_at,
)
from anabranch.matching.kernels.storage import find_cluster

# -- marked boxes, single entries ------------------------------------------------------------------


_LOWEST = np.int64(-0x8000000000000000)
_HIGHEST = np.int64(0x7FFFFFFFFFFFFFFF)
UNMARKED = np.uint64(1) << np.uint64(at.MISS)  #: In CELL_MASK: no predicate tells all here.


@kernel
def _tells(context, head):
    """Is the predicate with this head a single range or a single code?"""
    test = (head >> 16) & 0xFF
    return head >> 24 == 1 and (test == at.RANGES or test == at.CODES)


@kernel
def _reach_of(context, slot, axis):
    """(is it known, low, high): the reach of a slot's entry on an axis, from its line."""
    lines = integers_at(context, at.LINES)
    number = predicate_on(context, slot, axis)
    if number < 0 or number >= np.int64(lines[slot * at.LINE_WORDS + at.L_INFO]) & 0xFF:
        return number >= 0, _HIGHEST, _LOWEST
    return True, line_low(context, slot, number), line_high(context, slot, number)


@kernel
def is_within(context, slot, words):
    """Is the entry in a slot constrained on every axis of the box, and its reach within the box's?

    Only single ranges and codes are compared; what else there is, is a doubt anyway.
    """
    axes = words_at(context, at.AXES)
    position = np.int64(1)
    for _ in range(words[0]):
        head = words[position]
        if _tells(context, head):
            axis = head & 0xFFFF
            start = words[position + 1]
            if (head >> 16) & 0xFF == at.CODES:
                start <<= 32
                stop = start | 0xFFFFFFFF
            else:
                stop = words[position + 2]
            known, low, high = _reach_of(context, slot, axis)
            if not known and axes[axis * at.AXIS_WORDS + at.A_SPACE] == at.TEXT:
                # A text given by its code lies within a range of texts if its key does.
                attribute = axes[axis * at.AXIS_WORDS + at.A_ATTRIBUTE]
                code_axis = np.int64(
                    integers_at(context, at.ATTRIBUTE_AXES)[attribute * at.SPACES + at.CODE]
                )
                if code_axis >= 0:
                    known, low, high = _reach_of(context, slot, code_axis)
                    if low <= high:
                        low = words_at(context, at.CODE_KEYS)[low >> 32]
                        high = low
            if not known or (low <= high and (low < start or high > stop)):
                return False
        position += words_of_predicate(head)
    return True


@kernel
def mark_axes(context, words):
    """Write the box's inner cells to CELL_MASK on every axis that a predicate tells all about.

    Returns how many these are, or -1 if the box has more to it. Ranges of texts are left out: a
    text may lie within one by its code, which is another axis.
    """
    axes = words_at(context, at.AXES)
    attribute_axes = integers_at(context, at.ATTRIBUTE_AXES)
    masks = bitmaps_at(context, at.CELL_MASK)
    high = words_at(context, at.HIGH)
    one = np.uint64(1)
    marked = np.int64(0)
    whole = True
    position = np.int64(1)
    for _ in range(get(words, 0)):
        head = get(words, position)
        axis = head & 0xFFFF
        attribute = get(axes, axis * at.AXIS_WORDS + at.A_ATTRIBUTE)
        space = get(axes, axis * at.AXIS_WORDS + at.A_SPACE)
        if _tells(context, head) and space != at.TEXT:
            first = np.uint64(get(words_at(context, at.CELL), axis))
            last = np.uint64(get(words_at(context, at.HIGH_CELL), axis))
            masks[axis] = ((one << (last + one)) - one) & ~((one << first) - one)
            if space == at.CODE:
                # As in lines, a code is the range of all keys with this upper half.
                high[axis] |= 0xFFFFFFFF
                whole = whole and get(attribute_axes, attribute * at.SPACES + at.TEXT) < 0
            marked += 1
        else:
            whole = False
        position += words_of_predicate(head)
    return marked if whole else np.int64(-1)


@kernel
def unmark_axes(context, words):
    masks = bitmaps_at(context, at.CELL_MASK)
    position = np.int64(1)
    for _ in range(get(words, 0)):
        head = get(words, position)
        if (head >> 16) & 0xFF != at.KINDS:
            masks[head & 0xFFFF] = UNMARKED
        position += words_of_predicate(head)


@kernel
def fits(context, slot, marked):
    """Does a line have a range on all the marked axes, each within the box?"""
    lines = integers_at(context, at.LINES)
    masks = bitmaps_at(context, at.CELL_MASK)
    low = words_at(context, at.LOW)
    high = words_at(context, at.HIGH)
    line = slot * at.LINE_WORDS
    found = np.int64(0)
    for j in range(np.int64(get(lines, line + at.L_INFO)) & 0xFF):
        pair = np.int64(get(lines, line + at.L_AXES + (j >> 1)))
        axis = (pair >> (16 * (j & 1))) & 0xFFFF
        if get(masks, axis) == UNMARKED:
            continue
        found += 1
        start = np.int64(get(lines, line + at.L_ENDS + 2 * j))
        stop = np.int64(get(lines, line + at.L_ENDS + 2 * j + 1))
        if start < get(low, axis) >> 32 or stop > get(high, axis) >> 32:
            return False
        if start - 1 <= get(low, axis) >> 32 and line_low(context, slot, j) < get(low, axis):
            return False
        if stop + 1 >= get(high, axis) >> 32 and line_high(context, slot, j) > get(high, axis):
            return False
    return found == marked


# -- entries within a box --------------------------------------------------------------------------


_FIRST_ROW = np.int64((1 << 40) - 1)
_AHEAD = 2  #: Blocks whose rows are asked for before they are needed.
_INNER_MAX = 4  #: The most cells of a box whose rows are worth reading.


@kernel
def _may_have_inside(context, block):
    """May a member of a block lie within the placed box, by the zones of all its axes?

    A member within has a low end not below the box's and a high end not above it.
    """
    blocks = words_at(context, at.BLOCKS)
    tables = words_at(context, at.TABLES)
    row_pages = words_at(context, at.ROW_PAGES)
    axes = words_at(context, at.AXES)
    low = words_at(context, at.LOW)
    high = words_at(context, at.HIGH)
    table = get(blocks, block * at.BLOCK_WORDS + at.B_TABLE)
    first = table & _FIRST_ROW
    for row in range(first, first + ((table >> 40) & 0xFFFF)):
        axis = get(row_pages, row) & 0xFFFF
        t = row * at.TABLE_WORDS
        outside = get(tables, t + at.T_LAST_LOW) < get(low, axis)
        outside |= get(tables, t + at.T_FIRST_HIGH) > get(high, axis)
        if outside and get(axes, axis * at.AXIS_WORDS + at.A_SPACE) == at.NUMBER:
            return False
    return True


@kernel
def _ask_for_rows(context, block):
    """Ask for the rows of a block that every box reads: MISS and the cells beside the box."""
    blocks = words_at(context, at.BLOCKS)
    row_pages = words_at(context, at.ROW_PAGES)
    masks = bitmaps_at(context, at.CELL_MASK)
    cell = words_at(context, at.CELL)
    high_cell = words_at(context, at.HIGH_CELL)
    pages_address = context[at.PAGES]
    table = get(blocks, block * at.BLOCK_WORDS + at.B_TABLE)
    first = table & _FIRST_ROW
    for row in range(first, first + ((table >> 40) & 0xFFFF)):
        axis = get(row_pages, row) & 0xFFFF
        if get(masks, axis) != UNMARKED:
            page = (get(row_pages, row) >> 16) * at.PAGE_WORDS
            prefetch(pages_address + 8 * (page + at.MISS * at.WORDS))
            prefetch(pages_address + 8 * (page + max(get(cell, axis) - 1, 0) * at.WORDS))
            prefetch(pages_address + 8 * (page + (get(high_cell, axis) + 1) * at.WORDS))


@kernel
def _gather_from_block(context, block, found):
    """Append to CANDIDATES the members of a block that the box may cover, by rows."""
    blocks = words_at(context, at.BLOCKS)
    axes = words_at(context, at.AXES)
    pages = bitmaps_at(context, at.PAGES)
    masks = bitmaps_at(context, at.CELL_MASK)
    row_pages = words_at(context, at.ROW_PAGES)
    cell = words_at(context, at.CELL)
    high_cell = words_at(context, at.HIGH_CELL)
    candidates = integers_at(context, at.CANDIDATES)
    lines_address = context[at.LINES]
    b = block * at.BLOCK_WORDS
    first = get(blocks, b + at.B_TABLE) & _FIRST_ROW
    count = (get(blocks, b + at.B_TABLE) >> 40) & 0xFFFF
    zero = np.uint64(0)
    x0 = np.uint64(get(blocks, b + at.B_LIVE))
    x1 = np.uint64(get(blocks, b + at.B_LIVE + 1))
    x2 = np.uint64(get(blocks, b + at.B_LIVE + 2))
    x3 = np.uint64(get(blocks, b + at.B_LIVE + 3))
    x4 = np.uint64(get(blocks, b + at.B_LIVE + 4))
    x5 = np.uint64(get(blocks, b + at.B_LIVE + 5))
    x6 = np.uint64(get(blocks, b + at.B_LIVE + 6))
    x7 = np.uint64(get(blocks, b + at.B_LIVE + 7))
    for row in range(first, first + count):
        axis = get(row_pages, row) & 0xFFFF
        inner = get(masks, axis)
        if inner == UNMARKED:
            continue
        page = (get(row_pages, row) >> 16) * at.PAGE_WORDS
        spot = page + at.MISS * at.WORDS
        x0 &= ~get(pages, spot)
        x1 &= ~get(pages, spot + 1)
        x2 &= ~get(pages, spot + 2)
        x3 &= ~get(pages, spot + 3)
        x4 &= ~get(pages, spot + 4)
        x5 &= ~get(pages, spot + 5)
        x6 &= ~get(pages, spot + 6)
        x7 &= ~get(pages, spot + 7)
        if get(axes, axis * at.AXIS_WORDS + at.A_SPACE) == at.NUMBER:
            # A member within the box has none of the cells beside it. At the edge there are none.
            spot = page + (get(cell, axis) - 1) * at.WORDS
            also = page + (get(high_cell, axis) + 1) * at.WORDS
            if get(cell, axis) > 0:
                x0 &= ~get(pages, spot)
                x1 &= ~get(pages, spot + 1)
                x2 &= ~get(pages, spot + 2)
                x3 &= ~get(pages, spot + 3)
                x4 &= ~get(pages, spot + 4)
                x5 &= ~get(pages, spot + 5)
                x6 &= ~get(pages, spot + 6)
                x7 &= ~get(pages, spot + 7)
            if get(high_cell, axis) < at.CELLS - 1:
                x0 &= ~get(pages, also)
                x1 &= ~get(pages, also + 1)
                x2 &= ~get(pages, also + 2)
                x3 &= ~get(pages, also + 3)
                x4 &= ~get(pages, also + 4)
                x5 &= ~get(pages, also + 5)
                x6 &= ~get(pages, also + 6)
                x7 &= ~get(pages, also + 7)
        if (x0 | x1 | x2 | x3 | x4 | x5 | x6 | x7) == zero:
            return found
        if bit_count(inner) <= _INNER_MAX:
            # It has one of the cells of the box, too; that is asked where these are few.
            y0 = zero
            y1 = zero
            y2 = zero
            y3 = zero
            y4 = zero
            y5 = zero
            y6 = zero
            y7 = zero
            while inner != zero:
                spot = page + lowest_bit(inner) * at.WORDS
                inner &= inner - np.uint64(1)
                y0 |= get(pages, spot)
                y1 |= get(pages, spot + 1)
                y2 |= get(pages, spot + 2)
                y3 |= get(pages, spot + 3)
                y4 |= get(pages, spot + 4)
                y5 |= get(pages, spot + 5)
                y6 |= get(pages, spot + 6)
                y7 |= get(pages, spot + 7)
            x0 &= y0
            x1 &= y1
            x2 &= y2
            x3 &= y3
            x4 &= y4
            x5 &= y5
            x6 &= y6
            x7 &= y7
            if (x0 | x1 | x2 | x3 | x4 | x5 | x6 | x7) == zero:
                return found
    for word, members in enumerate((x0, x1, x2, x3, x4, x5, x6, x7)):
        slot = get(blocks, b + at.B_CHUNKS + (word >> 1)) + 64 * (word & 1)
        while members != zero:
            here = slot + lowest_bit(members)
            members &= members - np.uint64(1)
            prefetch(lines_address + 4 * at.LINE_WORDS * here)
            candidates[found] = here
            found += 1
    return found


@kernel
def _visit(context, cluster, visits, found):
    """Append a cluster's run to CANDIDATES, and its blocks to VISITED if one may be inside.

    Returns how many blocks, and how many candidates there are.
    """
    clusters = words_at(context, at.CLUSTERS)
    zones = words_at(context, at.ZONES)
    visited = words_at(context, at.VISITED)
    candidates = integers_at(context, at.CANDIDATES)
    c = cluster * at.CLUSTER_WORDS
    run = get(clusters, c + at.C_RUN)
    if run >= 0:
        for slot in range(run, run + get(clusters, c + at.C_COUNT)):
            candidates[found] = slot
            found += 1
    block = get(clusters, c + at.C_BLOCKS)
    while block >= 0:
        if _may_have_inside(context, block):
            visited[visits] = block
            visits += 1
        block = (get(zones, block * at.ZONE_WORDS + at.Z_NEXT) & 0xFFFFFFFF) - 1
    return visits, found


@kernel
def _visit_keyed(context, axis, visits, found):
    """Visit the clusters with a key on an axis that the box does not rule out."""
    axes = words_at(context, at.AXES)
    clusters = words_at(context, at.CLUSTERS)
    low = get(words_at(context, at.LOW), axis)
    high = get(words_at(context, at.HIGH), axis)
    space = get(axes, axis * at.AXIS_WORDS + at.A_SPACE)
    placed = space == at.KIND or get(words_at(context, at.CELL), axis) != at.MISS
    point = low == high or (space == at.CODE and low == (high & ~np.int64(0xFFFFFFFF)))
    if placed and point and get(words_at(context, at.REST), axis) == 0:
        cluster = find_cluster(context, axis, low, np.int64(0))
        if cluster >= 0:
            visits, found = _visit(context, cluster, visits, found)
        return visits, found
    cluster = get(axes, axis * at.AXIS_WORDS + at.A_KEYED)
    while cluster >= 0:
        key = get(clusters, cluster * at.CLUSTER_WORDS + at.C_KEY)
        if not placed or space != at.NUMBER or low <= key <= high:
            visits, found = _visit(context, cluster, visits, found)
        cluster = get(clusters, cluster * at.CLUSTER_WORDS + at.C_NEXT)
    return visits, found


@entry_point
def covered(context, words, first, state):
    """Entries that the box in `words` covers: sure ones to OUTPUT, doubts to DOUBTS.

    Clusters with a key outside the box's reach are passed over; where the box is a point on
    an axis, one of that axis' clusters is left. `first` and `state` are as in `coverers`.
    """
    state[0] = first
    state[1] = 0
    state[2] = 0
    axes = words_at(context, at.AXES)
    visited = words_at(context, at.VISITED)
    candidates = integers_at(context, at.CANDIDATES)
    lines = integers_at(context, at.LINES)
    keys_from_floats(words)
    count = place_box(context, words)
    marked = mark_axes(context, words)
    visits, found = _visit(context, np.int64(0), np.int64(0), np.int64(0))
    for axis in range(context[at.AXIS_COUNT]):
        cluster = get(axes, axis * at.AXIS_WORDS + at.A_CLUSTER)
        if cluster >= 0:
            visits, found = _visit(context, cluster, visits, found)
        visits, found = _visit_keyed(context, axis, visits, found)
    for i in range(visits + _AHEAD):
        if i < visits:
            _ask_for_rows(context, get(visited, i))
        if i >= _AHEAD:
            found = _gather_from_block(context, get(visited, i - _AHEAD), found)
    for i in range(found):
        slot = np.int64(get(candidates, i))
        if marked >= 0 and get(lines, slot * at.LINE_WORDS + at.L_RECORD) < 0:
            within = fits(context, slot, marked)
        else:
            within = is_within(context, slot, words)
        if within:
            note(context, slot, state)
    unmark_axes(context, words)
    lift_box(context, count)
