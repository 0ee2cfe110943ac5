"""Which destinations an event reaches: what a relay asks, and stops asking early.

Same steps as `search`, but an entry whose destination is already reached is not looked at, a
block all of whose destinations are reached is skipped, and when none is left the search is
over. The order of clusters is the same as in `search`; nothing is prefetched, since most calls
end after a few blocks.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.keys import (
    words_of_predicate,
)
from anabranch.matching.kernels.machine import (
    bitmaps_at,
    borrowed,
    bytes_at,
    entry_point,
    highest_bit,
    integers_at,
    kernel,
    lowest_bit,
    words_at,
)
from anabranch.matching.kernels.read_event import (
    ENTRIES_MAX,
    NAME_BYTES_MAX,
    attributes_in,
    lift_event,
    next_stamp,
    read_event,
    record_holds,
    ties_hold,
)
from anabranch.matching.kernels.storage import (
    find_cluster,
)

_FIRST_ROW = np.int64((1 << 40) - 1)


@kernel
def line_holds(context, slot):
    """Do the ranges in a slot's line admit the placed event, or the placed box?"""
    if not ties_hold(context, slot):
        return False
    lines = integers_at(context, at.LINES)
    line = slot * at.LINE_WORDS
    info = np.int64(lines[line + at.L_INFO])
    if info >> 24:
        for j in range(info & 0xFF):
            if (info >> (24 + j)) & 1:
                code = lines[line + at.L_ENDS + 2 * j]
                if integers_at(context, at.HITS)[code] != context[at.STAMP]:
                    return False
    return True


@kernel
def _slot_holds(context, slot):
    if not line_holds(context, slot):
        return False
    record = np.int64(integers_at(context, at.LINES)[slot * at.LINE_WORDS + at.L_RECORD])
    if record < 0:
        return True
    records = words_at(context, at.RECORDS)
    position = record + 1
    for _ in range(records[record] & 0xFFFF):
        if not record_holds(context, position):
            return False
        position += words_of_predicate(records[position])
    return True


@kernel
def _zones_admit(context, block):
    """Do the narrowest zones of a block admit the placed event?"""
    zones = words_at(context, at.ZONES)
    z = block * at.ZONE_WORDS
    axes = zones[z + at.Z_AXES]
    for rank in range(3):
        axis = (axes >> (16 * rank)) & 0xFFFF
        if axis == at.NO_AXIS:
            return True
        if (axes >> (48 + rank)) & 1:
            cells = bitmaps_at(context, at.CELL_MASK)[axis]
            if np.uint64(zones[z + at.Z_RANGE + 2 * rank]) & cells == np.uint64(0):
                return False
        elif (
            words_at(context, at.LOW)[axis] < zones[z + at.Z_RANGE + 2 * rank]
            or words_at(context, at.HIGH)[axis] > zones[z + at.Z_RANGE + 2 * rank + 1]
        ):
            return False
    return True


@kernel
def _try_slot(context, slot, hits, open_bits, state):
    """Check one entry; state: destinations left, doubts."""
    entry = np.int64(integers_at(context, at.SLOT_ENTRY)[slot])
    group = integers_at(context, at.GROUPS)[entry & at.ENTRY_MASK]
    if hits[group] or not _slot_holds(context, slot):
        return
    if entry & at.DOUBT:
        integers_at(context, at.DOUBTS)[state[1]] = entry & at.ENTRY_MASK
        state[1] += 1
        return
    hits[group] = True
    state[0] -= 1
    open_bits[group & 63] -= 1


@kernel
def _try_block(context, block, hits, open_bits, state):
    """Check the members of a block that its pages let through."""
    blocks = words_at(context, at.BLOCKS)
    pages = bitmaps_at(context, at.PAGES)
    row_pages = words_at(context, at.ROW_PAGES)
    cell_mask = bitmaps_at(context, at.CELL_MASK)
    b = block * at.BLOCK_WORDS
    first = blocks[b + at.B_TABLE] & _FIRST_ROW
    count = (blocks[b + at.B_TABLE] >> 40) & 0xFFFF
    for word in range(at.WORDS):
        members = np.uint64(blocks[b + at.B_LIVE + word])
        for row in range(first, first + count):
            if members == np.uint64(0):
                break
            page = (row_pages[row] >> 16) * at.PAGE_WORDS + word
            cells = cell_mask[row_pages[row] & 0xFFFF]
            admitted = np.uint64(0)
            while cells != np.uint64(0):
                admitted |= pages[page + lowest_bit(cells) * at.WORDS]
                cells &= cells - np.uint64(1)
            members &= admitted
        slot = blocks[b + at.B_CHUNKS + (word >> 1)] + 64 * (word & 1)
        while members != np.uint64(0) and state[0] > 0:
            _try_slot(context, slot + lowest_bit(members), hits, open_bits, state)
            members &= members - np.uint64(1)


@kernel
def _try_cluster(context, cluster, hits, open_bits, state):
    """Check the entries of a cluster that may reach something new."""
    clusters = words_at(context, at.CLUSTERS)
    zones = words_at(context, at.ZONES)
    blocks = words_at(context, at.BLOCKS)
    c = cluster * at.CLUSTER_WORDS
    run = clusters[c + at.C_RUN]
    if run >= 0:
        for slot in range(run, run + clusters[c + at.C_COUNT]):
            _try_slot(context, slot, hits, open_bits, state)
    block = clusters[c + at.C_BLOCKS]
    while block >= 0 and state[0] > 0:
        if _zones_admit(context, block):
            groups = np.uint64(blocks[block * at.BLOCK_WORDS + at.B_GROUPS])
            while groups != np.uint64(0):
                if open_bits[lowest_bit(groups)] > 0:
                    _try_block(context, block, hits, open_bits, state)
                    break
                groups &= groups - np.uint64(1)
        block = (zones[block * at.ZONE_WORDS + at.Z_NEXT] & 0xFFFFFFFF) - 1


@kernel
def _reach_placed(context, count, hit_count, hits, open_bits, state):
    """Mark in `hits` what the placed event reaches."""
    axes = words_at(context, at.AXES)
    touched = words_at(context, at.TOUCHED)
    low = words_at(context, at.LOW)
    high = words_at(context, at.HIGH)
    _try_cluster(context, np.int64(0), hits, open_bits, state)
    for i in range(count):
        axis = touched[i]
        if state[0] == 0:
            break
        cluster = axes[axis * at.AXIS_WORDS + at.A_CLUSTER]
        if cluster >= 0:
            _try_cluster(context, cluster, hits, open_bits, state)
        if axes[axis * at.AXIS_WORDS + at.A_KEYS] > 0:
            rest = words_at(context, at.REST)[axis] if high[axis] > low[axis] else np.int64(0)
            cluster = find_cluster(context, axis, low[axis], rest)
            if cluster >= 0:
                _try_cluster(context, cluster, hits, open_bits, state)
    for i in range(hit_count):
        if state[0] == 0:
            break
        code = np.int64(integers_at(context, at.HIT_LIST)[i])
        attribute = words_at(context, at.PATTERNS)[code * at.PATTERN_WORDS + at.P_CLASS] >> 32
        axis = integers_at(context, at.ATTRIBUTE_AXES)[attribute * at.SPACES + at.PATTERN]
        cluster = find_cluster(context, np.int64(axis), code << 32, np.int64(0))
        if cluster >= 0:
            _try_cluster(context, cluster, hits, open_bits, state)


@entry_point
def reach(context, size, entries_max, name_bytes_max, hits, open_bits, state):
    """Mark in `hits` the destinations that the event in MESSAGE reaches; doubts go to DOUBTS.

    `open_bits` counts, modulo 64, the destinations that are not hit; `state` is how many those
    are, and how many doubts there are. Returns 0, or what went wrong, as `answer_one` does.
    """
    context = borrowed(context)
    hits = borrowed(hits)
    open_bits = borrowed(open_bits)
    state = borrowed(state)
    next_stamp(context)
    position, count, hit_count = read_event(
        context, bytes_at(context, at.MESSAGE), np.int64(0), size, entries_max, name_bytes_max
    )
    if position < 0:
        return position
    _reach_placed(context, count, hit_count, hits, open_bits, state)
    lift_event(context, count)
    return np.int64(0)


@kernel
def _reached(context, message, first, end, bounds, asked, groups, hits, open_bits, state):
    """The destinations, of those asked for, that the event with these attributes reaches, as bits;
    -1 if Python has to find out."""
    state[0] = 0
    state[1] = 0
    for group in range(groups):
        is_asked = (asked >> group) & 1
        hits[group] = is_asked == 0
        open_bits[group] = is_asked
        state[0] += is_asked
    next_stamp(context)
    position, count, hit_count = read_event(
        context, message, first, end, bounds[ENTRIES_MAX], bounds[NAME_BYTES_MAX]
    )
    if position < 0:
        return np.int64(-1)
    _reach_placed(context, count, hit_count, hits, open_bits, state)
    lift_event(context, count)
    if state[1] > 0:
        return np.int64(-1)
    reached = np.int64(0)
    for group in range(groups):
        reached |= np.int64(hits[group]) << group
    return reached & asked


@entry_point
def reach_many(context, bodies, ends, bounds, asked, scratch, answers):
    """`reach` for many encoded events, which stand in `bodies` one after the other.

    Destinations are bits, and those asked for are below 63. `answers` gets those that each event
    reaches, or -1 if Python has to find out: the event is not plain, or something is in doubt.
    `scratch` has 130 words.
    """
    context = borrowed(context)
    bodies = borrowed(bodies)
    bounds = borrowed(bounds)
    hits = borrowed(scratch[:64])
    open_bits = borrowed(scratch[64:128])
    state = borrowed(scratch[128:])
    groups = highest_bit(np.uint64(asked)) + 1 if asked > 0 else np.int64(0)
    start = np.int64(0)
    for event in range(ends.shape[0]):
        stop = ends[event]
        first, end, _ = attributes_in(bodies, start, stop, bounds)
        answers[event] = np.int64(-1)
        if first >= 0:
            answers[event] = _reached(
                context, bodies, first, end, bounds, asked, groups, hits, open_bits, state
            )
        start = stop
