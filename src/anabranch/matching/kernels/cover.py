"""Covering: the same bitmaps, asked about boxes instead of points.

A conjunction g is a box: on each axis it reaches from a lowest to a highest key. An entry f
covers g if on every axis that f constrains, g's reach lies within f's; that is the test of
`search` with LOW and HIGH set to the ends of the reach, and with two rows ANDed per axis, one
for either end. The other way round is in `covered`.

A line decides alone. An entry that has a record or a residue, and that the rest of the test
lets through, is a doubt; so is every answer if g itself is not told by its reach. For doubts
Python compares the conjunctions themselves. Nothing here misses a pair that
`model.normal.relations` finds.

Where covering is asked for, lines repeat the access predicate (the context's COVERING says so),
so that a line tells the whole box.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.box import (
    lift_box,
    place_box,
)
from anabranch.matching.kernels.keys import (
    keys_from_floats,
)
from anabranch.matching.kernels.machine import (
    bitmaps_at,
    entry_point,
    integers_at,
    kernel,
    lowest_bit,
    words_at,
)
from anabranch.matching.kernels.reach import (
    line_holds,
)
from anabranch.matching.kernels.storage import (
    find_cluster,
)

_FIRST_ROW = np.int64((1 << 40) - 1)


@kernel
def _zones_contain(context, block):
    """Do the narrowest zones of a block contain the box?"""
    zones = words_at(context, at.ZONES)
    z = block * at.ZONE_WORDS
    axes = zones[z + at.Z_AXES]
    for rank in range(3):
        axis = (axes >> (16 * rank)) & 0xFFFF
        if axis == at.NO_AXIS:
            return True
        if (axes >> (48 + rank)) & 1:
            zone = np.uint64(zones[z + at.Z_RANGE + 2 * rank])
            cells = np.uint64(1) << np.uint64(words_at(context, at.CELL)[axis])
            cells |= np.uint64(1) << np.uint64(words_at(context, at.HIGH_CELL)[axis])
            if zone & cells != cells:
                return False
        elif (
            words_at(context, at.LOW)[axis] < zones[z + at.Z_RANGE + 2 * rank]
            or words_at(context, at.HIGH)[axis] > zones[z + at.Z_RANGE + 2 * rank + 1]
        ):
            return False
    return True


@kernel
def note(context, slot, state):
    """A slot's entry passed: sure or a doubt. state: first only, sure, doubts."""
    entry = np.int64(integers_at(context, at.SLOT_ENTRY)[slot])
    if entry & at.DOUBT:
        integers_at(context, at.DOUBTS)[state[2]] = entry & at.ENTRY_MASK
        state[2] += 1
    else:
        integers_at(context, at.OUTPUT)[state[1]] = entry & at.ENTRY_MASK
        state[1] += 1


@kernel
def _coverers_in_block(context, block, state):
    blocks = words_at(context, at.BLOCKS)
    pages = bitmaps_at(context, at.PAGES)
    row_pages = words_at(context, at.ROW_PAGES)
    cell = words_at(context, at.CELL)
    high_cell = words_at(context, at.HIGH_CELL)
    b = block * at.BLOCK_WORDS
    first = blocks[b + at.B_TABLE] & _FIRST_ROW
    count = (blocks[b + at.B_TABLE] >> 40) & 0xFFFF
    x0 = np.uint64(blocks[b + at.B_LIVE])
    x1 = np.uint64(blocks[b + at.B_LIVE + 1])
    x2 = np.uint64(blocks[b + at.B_LIVE + 2])
    x3 = np.uint64(blocks[b + at.B_LIVE + 3])
    x4 = np.uint64(blocks[b + at.B_LIVE + 4])
    x5 = np.uint64(blocks[b + at.B_LIVE + 5])
    x6 = np.uint64(blocks[b + at.B_LIVE + 6])
    x7 = np.uint64(blocks[b + at.B_LIVE + 7])
    for row in range(first, first + count):
        axis = row_pages[row] & 0xFFFF
        page = (row_pages[row] >> 16) * at.PAGE_WORDS
        spot = page + cell[axis] * at.WORDS
        also = page + high_cell[axis] * at.WORDS
        x0 &= pages[spot] & pages[also]
        x1 &= pages[spot + 1] & pages[also + 1]
        x2 &= pages[spot + 2] & pages[also + 2]
        x3 &= pages[spot + 3] & pages[also + 3]
        x4 &= pages[spot + 4] & pages[also + 4]
        x5 &= pages[spot + 5] & pages[also + 5]
        x6 &= pages[spot + 6] & pages[also + 6]
        x7 &= pages[spot + 7] & pages[also + 7]
        if (x0 | x1 | x2 | x3 | x4 | x5 | x6 | x7) == np.uint64(0):
            return
    for word, members in enumerate((x0, x1, x2, x3, x4, x5, x6, x7)):
        slot = blocks[b + at.B_CHUNKS + (word >> 1)] + 64 * (word & 1)
        while members != np.uint64(0):
            here = slot + lowest_bit(members)
            members &= members - np.uint64(1)
            if line_holds(context, here):
                note(context, here, state)
                if state[0] and state[1]:
                    return


@kernel
def _coverers_in_cluster(context, cluster, state):
    clusters = words_at(context, at.CLUSTERS)
    zones = words_at(context, at.ZONES)
    c = cluster * at.CLUSTER_WORDS
    run = clusters[c + at.C_RUN]
    if run >= 0:
        for slot in range(run, run + clusters[c + at.C_COUNT]):
            if line_holds(context, slot):
                note(context, slot, state)
                if state[0] and state[1]:
                    return
    block = clusters[c + at.C_BLOCKS]
    while block >= 0:
        if _zones_contain(context, block):
            _coverers_in_block(context, block, state)
            if state[0] and state[1]:
                return
        block = (zones[block * at.ZONE_WORDS + at.Z_NEXT] & 0xFFFFFFFF) - 1


@entry_point
def coverers(context, words, first, state):
    """Entries that cover the box in `words`: sure ones to OUTPUT, doubts to DOUBTS.

    With `first`, one sure entry is enough. `state`: that, how many sure ones, how many doubts.
    """
    state[0] = first
    state[1] = 0
    state[2] = 0
    axes = words_at(context, at.AXES)
    touched = words_at(context, at.TOUCHED)
    low = words_at(context, at.LOW)
    high = words_at(context, at.HIGH)
    rests = words_at(context, at.REST)
    keys_from_floats(words)
    count = place_box(context, words)
    _coverers_in_cluster(context, np.int64(0), state)
    for i in range(count):
        if state[0] and state[1]:
            break
        axis = touched[i]
        if axes[axis * at.AXIS_WORDS + at.A_KEYS] > 0:
            point = low[axis] == high[axis]
            if rests[axis] > 0:
                point = low[axis] + 1 == high[axis]
            if point:
                cluster = find_cluster(context, axis, low[axis], rests[axis])
                if cluster >= 0:
                    _coverers_in_cluster(context, cluster, state)
                    if state[0] and state[1]:
                        break
        cluster = axes[axis * at.AXIS_WORDS + at.A_CLUSTER]
        if cluster >= 0:
            _coverers_in_cluster(context, cluster, state)
    lift_box(context, count)
