"""Whom does a box cover? Entries that are constrained on all its axes and lie within it.

Such an entry is not in the MISS row of any axis of the box, nor in the rows of the cells just
outside the box's reach. Clusters whose key lies outside the reach, and blocks whose zones do not
meet it, are passed over.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.box import (
    lift_box,
    place_box,
)
from anabranch.matching.kernels.cover import (
    note,
)
from anabranch.matching.kernels.keys import (
    keys_from_floats,
    line_high,
    line_low,
    predicate_on,
    words_of_predicate,
)
from anabranch.matching.kernels.machine import (
    bitmaps_at,
    entry_point,
    integers_at,
    kernel,
    lowest_bit,
    words_at,
)
from anabranch.matching.kernels.storage import (
    find_cluster,
)

_FIRST_ROW = np.int64((1 << 40) - 1)
_LOWEST = np.int64(-0x8000000000000000)
_HIGHEST = np.int64(0x7FFFFFFFFFFFFFFF)


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
def _is_within(context, slot, words):
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
def _rows_meet(context, block, words, rows):
    """Find the block's row for each telling predicate of the box; False if none can be covered."""
    blocks = words_at(context, at.BLOCKS)
    tables = words_at(context, at.TABLES)
    row_pages = words_at(context, at.ROW_PAGES)
    axes = words_at(context, at.AXES)
    b = block * at.BLOCK_WORDS
    first = blocks[b + at.B_TABLE] & _FIRST_ROW
    count = (blocks[b + at.B_TABLE] >> 40) & 0xFFFF
    position = np.int64(1)
    for i in range(words[0]):
        head = words[position]
        axis = head & 0xFFFF
        space = axes[axis * at.AXIS_WORDS + at.A_SPACE]
        rows[i] = -1
        if _tells(context, head) and space != at.TEXT:
            for row in range(first, first + count):
                if row_pages[row] & 0xFFFF == axis:
                    rows[i] = row
                    break
            if rows[i] >= 0 and space == at.NUMBER:
                t = rows[i] * at.TABLE_WORDS
                if tables[t + at.T_HIGHEST] < words[position + 1]:
                    return False
                if tables[t + at.T_LOWEST] > words[position + 2]:
                    return False
        position += words_of_predicate(head)
    return True


@kernel
def _covered_in_block(context, block, words, rows, state):
    """Members of a block that the box may cover, by rows; then each by itself."""
    if not _rows_meet(context, block, words, rows):
        return
    blocks = words_at(context, at.BLOCKS)
    pages = bitmaps_at(context, at.PAGES)
    row_pages = words_at(context, at.ROW_PAGES)
    cell = words_at(context, at.CELL)
    high_cell = words_at(context, at.HIGH_CELL)
    b = block * at.BLOCK_WORDS
    x0 = np.uint64(blocks[b + at.B_LIVE])
    x1 = np.uint64(blocks[b + at.B_LIVE + 1])
    x2 = np.uint64(blocks[b + at.B_LIVE + 2])
    x3 = np.uint64(blocks[b + at.B_LIVE + 3])
    x4 = np.uint64(blocks[b + at.B_LIVE + 4])
    x5 = np.uint64(blocks[b + at.B_LIVE + 5])
    x6 = np.uint64(blocks[b + at.B_LIVE + 6])
    x7 = np.uint64(blocks[b + at.B_LIVE + 7])
    for i in range(words[0]):
        if rows[i] < 0:
            continue
        axis = row_pages[rows[i]] & 0xFFFF
        page = (row_pages[rows[i]] >> 16) * at.PAGE_WORDS
        spot = page + at.MISS * at.WORDS
        x0 &= ~pages[spot]
        x1 &= ~pages[spot + 1]
        x2 &= ~pages[spot + 2]
        x3 &= ~pages[spot + 3]
        x4 &= ~pages[spot + 4]
        x5 &= ~pages[spot + 5]
        x6 &= ~pages[spot + 6]
        x7 &= ~pages[spot + 7]
        if words_at(context, at.AXES)[axis * at.AXIS_WORDS + at.A_SPACE] == at.CODE:
            spot = page + cell[axis] * at.WORDS
            x0 &= pages[spot]
            x1 &= pages[spot + 1]
            x2 &= pages[spot + 2]
            x3 &= pages[spot + 3]
            x4 &= pages[spot + 4]
            x5 &= pages[spot + 5]
            x6 &= pages[spot + 6]
            x7 &= pages[spot + 7]
        else:
            # A member within the box has none of the cells beside it. At the edge there are none.
            spot = page + max(cell[axis] - 1, 0) * at.WORDS
            also = page + min(high_cell[axis] + 1, at.CELLS - 1) * at.WORDS
            if cell[axis] > 0:
                x0 &= ~pages[spot]
                x1 &= ~pages[spot + 1]
                x2 &= ~pages[spot + 2]
                x3 &= ~pages[spot + 3]
                x4 &= ~pages[spot + 4]
                x5 &= ~pages[spot + 5]
                x6 &= ~pages[spot + 6]
                x7 &= ~pages[spot + 7]
            if high_cell[axis] < at.CELLS - 1:
                x0 &= ~pages[also]
                x1 &= ~pages[also + 1]
                x2 &= ~pages[also + 2]
                x3 &= ~pages[also + 3]
                x4 &= ~pages[also + 4]
                x5 &= ~pages[also + 5]
                x6 &= ~pages[also + 6]
                x7 &= ~pages[also + 7]
        if (x0 | x1 | x2 | x3 | x4 | x5 | x6 | x7) == np.uint64(0):
            return
    for word, members in enumerate((x0, x1, x2, x3, x4, x5, x6, x7)):
        slot = blocks[b + at.B_CHUNKS + (word >> 1)] + 64 * (word & 1)
        while members != np.uint64(0):
            here = slot + lowest_bit(members)
            members &= members - np.uint64(1)
            if _is_within(context, here, words):
                note(context, here, state)


@kernel
def _covered_in_cluster(context, cluster, words, rows, state):
    clusters = words_at(context, at.CLUSTERS)
    zones = words_at(context, at.ZONES)
    c = cluster * at.CLUSTER_WORDS
    run = clusters[c + at.C_RUN]
    if run >= 0:
        for slot in range(run, run + clusters[c + at.C_COUNT]):
            if _is_within(context, slot, words):
                note(context, slot, state)
    block = clusters[c + at.C_BLOCKS]
    while block >= 0:
        _covered_in_block(context, block, words, rows, state)
        block = (zones[block * at.ZONE_WORDS + at.Z_NEXT] & 0xFFFFFFFF) - 1


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
    clusters = words_at(context, at.CLUSTERS)
    cell = words_at(context, at.CELL)
    low = words_at(context, at.LOW)
    high = words_at(context, at.HIGH)
    rests = words_at(context, at.REST)
    rows = np.empty(words[0] + 1, np.int64)
    keys_from_floats(words)
    count = place_box(context, words)
    _covered_in_cluster(context, np.int64(0), words, rows, state)
    for axis in range(context[at.AXIS_COUNT]):
        cluster = axes[axis * at.AXIS_WORDS + at.A_CLUSTER]
        if cluster >= 0:
            _covered_in_cluster(context, cluster, words, rows, state)
        space = axes[axis * at.AXIS_WORDS + at.A_SPACE]
        placed = space == at.KIND or cell[axis] != at.MISS
        if placed and low[axis] == high[axis] and rests[axis] == 0:
            cluster = find_cluster(context, axis, low[axis], np.int64(0))
            if cluster >= 0:
                _covered_in_cluster(context, cluster, words, rows, state)
            continue
        cluster = axes[axis * at.AXIS_WORDS + at.A_KEYED]
        while cluster >= 0:
            key = clusters[cluster * at.CLUSTER_WORDS + at.C_KEY]
            if not placed or space != at.NUMBER or low[axis] <= key <= high[axis]:
                _covered_in_cluster(context, cluster, words, rows, state)
            cluster = clusters[cluster * at.CLUSTER_WORDS + at.C_NEXT]
    lift_box(context, count)
