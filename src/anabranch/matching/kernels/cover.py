"""Covering: the same bitmaps, asked about boxes instead of points.

A conjunction g is a box: on each axis it reaches from a lowest to a highest key. `place_box` writes
both ends, and the cells they lie in, where `search` has the single key of an event; on every other
axis of its attributes it leaves what an entry there would need to contain it. An entry f
covers g if on every axis that f constrains, g's reach lies within f's; that is the test of
`search` with LOW and HIGH set to the ends of the reach, and with two rows ANDed per axis, one
for either end. As there, runs are checked at once and blocks are gathered by their zones first;
the rows of the next ones are asked for while one is worked on. The other way round is in
`covered`.

A line decides alone. An entry that has a record or a residue, and that the rest of the test
lets through, is a doubt; so is every answer if g itself is not told by its reach. For doubts
Python compares the conjunctions themselves. Nothing here misses a pair that
`model.normal.conjunction` finds.

Where covering is asked for, lines repeat the access predicate (the context's COVERING says so),
so that a line tells the whole box.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.keys import (
    cell_of,
    keys_from_floats,
    line_high,
    line_low,
    words_of_predicate,
)
from anabranch.matching.kernels.machine import (
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

# -- boxes -----------------------------------------------------------------------------------------


_LOWEST = np.int64(-0x8000000000000000)
_HIGHEST = np.int64(0x7FFFFFFFFFFFFFFF)


@kernel
def _place(context, axis, low_cell, high_cell, low, high, rest):
    words_at(context, at.CELL)[axis] = low_cell
    words_at(context, at.HIGH_CELL)[axis] = high_cell
    words_at(context, at.LOW)[axis] = low
    words_at(context, at.HIGH)[axis] = high
    words_at(context, at.REST)[axis] = rest


@kernel
def _place_kind(context, attribute, kind, count):
    """Let the box be of one kind on an attribute's kind axis, if it has one."""
    touched = words_at(context, at.TOUCHED)
    axis = np.int64(get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.KIND))
    if axis < 0:
        return count
    _place(context, axis, kind, kind, _LOWEST, _HIGHEST, 0)
    touched[count] = axis
    return count + 1


@kernel
def _place_order(context, axis, low, high, rest, count):
    """Let the box reach from low to high on an ordered axis."""
    low_cell = cell_of(context, axis, low)
    _place(context, axis, low_cell, cell_of(context, axis, high), low, high, rest)
    words_at(context, at.TOUCHED)[count] = axis
    return count + 1


@kernel
def _place_codes(context, words, position, attribute, count):
    """A box of one or several texts: codes, and text order where the attribute has that axis."""
    code_keys = words_at(context, at.CODE_KEYS)
    axis = get(words, position) & 0xFFFF
    number = get(words, position) >> 24
    first = get(words, position + 1)
    lowest = first
    highest = first
    low_key = get(code_keys, first)
    high_key = get(code_keys, first)
    for i in range(1, number):
        code = get(words, position + 1 + i)
        lowest = min(lowest, code)
        highest = max(highest, code)
        low_key = min(low_key, get(code_keys, code))
        high_key = max(high_key, get(code_keys, code))
    last = get(words, position + number)
    _place(context, axis, first % at.CELLS, last % at.CELLS, lowest << 32, highest << 32, 0)
    words_at(context, at.TOUCHED)[count] = axis
    count += 1
    axis = np.int64(get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.TEXT))
    if axis >= 0:
        count = _place_order(context, axis, low_key, high_key, 0, count)
    return count


@kernel
def _place_any_text(context, attribute, count):
    """A box of texts that no single code contains; entries that exclude codes may."""
    axis = np.int64(get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.CODE))
    if axis < 0:
        return count
    _place(context, axis, at.OTHER, at.OTHER, _LOWEST, _HIGHEST, 0)
    words_at(context, at.TOUCHED)[count] = axis
    return count + 1


@kernel
def place_box(context, words):
    """Set the reach of the box in `words` on its attributes' axes; returns how many these are."""
    axes = words_at(context, at.AXES)
    touched = words_at(context, at.TOUCHED)
    count = np.int64(0)
    position = np.int64(1)
    for _ in range(get(words, 0)):
        head = get(words, position)
        axis = head & 0xFFFF
        test = (head >> 16) & 0xFF
        last = (head >> 24) - 1
        attribute = get(axes, axis * at.AXIS_WORDS + at.A_ATTRIBUTE)
        if test == at.KINDS:
            mask = np.uint64(get(words, position + 1))
            low_kind = lowest_bit(mask)
            high_kind = low_kind
            while mask != np.uint64(0):
                high_kind = lowest_bit(mask)
                mask &= mask - np.uint64(1)
            _place(context, axis, low_kind, high_kind, _LOWEST, _HIGHEST, 0)
            touched[count] = axis
            count += 1
        elif get(axes, axis * at.AXIS_WORDS + at.A_SPACE) == at.NUMBER:
            low = get(words, position + 1)
            rest = np.int64(0)
            if test == at.RANGES:
                high = get(words, position + 2 + 2 * last)
            else:
                high = get(words, position + 3 + 4 * last)
                high += 1 if get(words, position + 4 + 4 * last) > 0 else 0
                rest = get(words, position + 2)
            count = _place_order(context, axis, low, high, rest, count)
            count = _place_kind(context, attribute, at.K_NUMBER, count)
        else:
            if test == at.CODES:
                count = _place_codes(context, words, position, attribute, count)
            elif test == at.NOT_CODES:
                count = _place_any_text(context, attribute, count)
                text_axis = np.int64(
                    get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.TEXT)
                )
                if text_axis >= 0:
                    _place(context, text_axis, 0, at.CELLS - 1, _LOWEST, _HIGHEST, 0)
                    touched[count] = text_axis
                    count += 1
            else:
                low = get(words, position + 1)
                high = get(words, position + 2 + 2 * last)
                count = _place_order(context, axis, low, high, 0, count)
                count = _place_any_text(context, attribute, count)
            count = _place_kind(context, attribute, at.K_TEXT, count)
        position += words_of_predicate(head)
    return count


@kernel
def lift_box(context, count):
    axes = words_at(context, at.AXES)
    touched = words_at(context, at.TOUCHED)
    for i in range(count):
        axis = get(touched, i)
        cell = at.K_ABSENT if get(axes, axis * at.AXIS_WORDS + at.A_SPACE) == at.KIND else at.MISS
        _place(context, axis, cell, cell, _LOWEST, _HIGHEST, 0)


# -- coverers --------------------------------------------------------------------------------------


_AHEAD = 2  #: Blocks whose rows are asked for before they are needed.
_FIRST_ROW = np.int64((1 << 40) - 1)


@kernel
def _zones_contain(zones, z, low, high, cell, high_cell):
    """Do the narrowest zones of a block, from word z on, contain the box?"""
    axes = get(zones, z + at.Z_AXES)
    for rank in range(3):
        axis = (axes >> (16 * rank)) & 0xFFFF
        if axis == at.NO_AXIS:
            return True
        start = get(zones, z + at.Z_RANGE + 2 * rank)
        if (axes >> (48 + rank)) & 1:
            cells = np.uint64(1) << np.uint64(get(cell, axis))
            cells |= np.uint64(1) << np.uint64(get(high_cell, axis))
            if np.uint64(start) & cells != cells:
                return False
        elif get(low, axis) < start or get(high, axis) > get(zones, z + at.Z_RANGE + 2 * rank + 1):
            return False
    return True


@kernel
def _line_contains(context, slot):
    """Do the ranges in a slot's line contain the placed box?

    Upper halves first: the lower ones lie in another cache line and are seldom needed.
    """
    lines = integers_at(context, at.LINES)
    line = slot * at.LINE_WORDS
    info = np.int64(get(lines, line + at.L_INFO))
    for j in range(info & 0xFF):
        pair = np.int64(get(lines, line + at.L_AXES + (j >> 1)))
        axis = (pair >> (16 * (j & 1))) & 0xFFFF
        low = get(words_at(context, at.LOW), axis)
        high = get(words_at(context, at.HIGH), axis)
        start = np.int64(get(lines, line + at.L_ENDS + 2 * j))
        stop = np.int64(get(lines, line + at.L_ENDS + 2 * j + 1))
        # Outside by more than one is outside; by one, the lower halves tell.
        if low >> 32 < start - 1 or high >> 32 > stop + 1:
            return False
        if low >> 32 < start and low < line_low(context, slot, j):
            return False
        if high >> 32 > stop and high > line_high(context, slot, j):
            return False
    return True


@kernel
def note(context, slot, state):
    """A slot's entry passed: sure or a doubt. state: first only, sure, doubts."""
    entry = np.int64(get(integers_at(context, at.SLOT_ENTRY), slot))
    if entry & at.DOUBT:
        integers_at(context, at.DOUBTS)[state[2]] = entry & at.ENTRY_MASK
        state[2] += 1
    else:
        integers_at(context, at.OUTPUT)[state[1]] = entry & at.ENTRY_MASK
        state[1] += 1


@kernel
def _ask_for_rows(context, block):
    """Ask for the rows of a block that the placed box will be ANDed with."""
    blocks = words_at(context, at.BLOCKS)
    row_pages = words_at(context, at.ROW_PAGES)
    cell = words_at(context, at.CELL)
    high_cell = words_at(context, at.HIGH_CELL)
    table = get(blocks, block * at.BLOCK_WORDS + at.B_TABLE)
    first = table & _FIRST_ROW
    for row in range(first, first + ((table >> 40) & 0xFFFF)):
        axis = get(row_pages, row) & 0xFFFF
        page = (get(row_pages, row) >> 16) * at.PAGE_WORDS
        prefetch(context[at.PAGES] + 8 * (page + get(cell, axis) * at.WORDS))
        prefetch(context[at.PAGES] + 8 * (page + get(high_cell, axis) * at.WORDS))


@kernel
def _coverers_in_block(context, block, state):
    blocks = words_at(context, at.BLOCKS)
    pages = bitmaps_at(context, at.PAGES)
    row_pages = words_at(context, at.ROW_PAGES)
    cell = words_at(context, at.CELL)
    high_cell = words_at(context, at.HIGH_CELL)
    b = block * at.BLOCK_WORDS
    first = get(blocks, b + at.B_TABLE) & _FIRST_ROW
    count = (get(blocks, b + at.B_TABLE) >> 40) & 0xFFFF
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
        page = (get(row_pages, row) >> 16) * at.PAGE_WORDS
        spot = page + get(cell, axis) * at.WORDS
        also = page + get(high_cell, axis) * at.WORDS
        x0 &= get(pages, spot) & get(pages, also)
        x1 &= get(pages, spot + 1) & get(pages, also + 1)
        x2 &= get(pages, spot + 2) & get(pages, also + 2)
        x3 &= get(pages, spot + 3) & get(pages, also + 3)
        x4 &= get(pages, spot + 4) & get(pages, also + 4)
        x5 &= get(pages, spot + 5) & get(pages, also + 5)
        x6 &= get(pages, spot + 6) & get(pages, also + 6)
        x7 &= get(pages, spot + 7) & get(pages, also + 7)
        if (x0 | x1 | x2 | x3 | x4 | x5 | x6 | x7) == np.uint64(0):
            return
    for word, members in enumerate((x0, x1, x2, x3, x4, x5, x6, x7)):
        slot = get(blocks, b + at.B_CHUNKS + (word >> 1)) + 64 * (word & 1)
        while members != np.uint64(0):
            here = slot + lowest_bit(members)
            members &= members - np.uint64(1)
            if _line_contains(context, here):
                note(context, here, state)
                if state[0] and state[1]:
                    return


@kernel
def _visit(context, cluster, visits, state):
    """Check a cluster's run; append to VISITED the blocks whose zones contain the box.

    Returns how many are in VISITED.
    """
    clusters = words_at(context, at.CLUSTERS)
    zones = words_at(context, at.ZONES)
    visited = words_at(context, at.VISITED)
    low = words_at(context, at.LOW)
    high = words_at(context, at.HIGH)
    cell = words_at(context, at.CELL)
    high_cell = words_at(context, at.HIGH_CELL)
    blocks_address = context[at.BLOCKS]
    rows_address = context[at.ROW_PAGES]
    c = cluster * at.CLUSTER_WORDS
    run = get(clusters, c + at.C_RUN)
    if run >= 0:
        for slot in range(run, run + get(clusters, c + at.C_COUNT)):
            if _line_contains(context, slot):
                note(context, slot, state)
                if state[0] and state[1]:
                    return visits
    block = get(clusters, c + at.C_BLOCKS)
    while block >= 0:
        z = block * at.ZONE_WORDS
        following = get(zones, z + at.Z_NEXT)
        if _zones_contain(zones, z, low, high, cell, high_cell):
            visited[visits] = block
            visits += 1
            prefetch(blocks_address + 8 * at.BLOCK_WORDS * block)
            prefetch(blocks_address + 8 * at.BLOCK_WORDS * block + 64)
            prefetch(rows_address + 8 * (following >> 32))
            prefetch(rows_address + 8 * (following >> 32) + 64)
        block = (following & 0xFFFFFFFF) - 1
    return visits


@kernel
def _visit_axis(context, axis, visits, state):
    """Visit the clusters that an axis of the box leads to: by its point, and by the axis."""
    axes = words_at(context, at.AXES)
    low = get(words_at(context, at.LOW), axis)
    high = get(words_at(context, at.HIGH), axis)
    if get(axes, axis * at.AXIS_WORDS + at.A_KEYS) > 0:
        rest = get(words_at(context, at.REST), axis)
        if low + (1 if rest > 0 else 0) == high:
            cluster = find_cluster(context, axis, low, rest)
            if cluster >= 0:
                visits = _visit(context, cluster, visits, state)
                if state[0] and state[1]:
                    return visits
    cluster = get(axes, axis * at.AXIS_WORDS + at.A_CLUSTER)
    if cluster >= 0:
        visits = _visit(context, cluster, visits, state)
    return visits


@kernel
def find_coverers(context, words, state):
    """As `coverers`, for words whose ranges are keys already and a state that is set."""
    visited = words_at(context, at.VISITED)
    count = place_box(context, words)
    visits = _visit(context, np.int64(0), np.int64(0), state)
    for i in range(count):
        if state[0] and state[1]:
            break
        visits = _visit_axis(context, get(words_at(context, at.TOUCHED), i), visits, state)
    for i in range(visits + _AHEAD):
        if state[0] and state[1]:
            break
        if i < visits:
            _ask_for_rows(context, get(visited, i))
        if i >= _AHEAD:
            _coverers_in_block(context, get(visited, i - _AHEAD), state)
    lift_box(context, count)


@entry_point
def coverers(context, words, first, state):
    """Entries that cover the box in `words`: sure ones to OUTPUT, doubts to DOUBTS.

    With `first`, one sure entry is enough. `state`: that, how many sure ones, how many doubts.
    """
    state[0] = first
    state[1] = 0
    state[2] = 0
    keys_from_floats(words)
    find_coverers(context, words, state)
