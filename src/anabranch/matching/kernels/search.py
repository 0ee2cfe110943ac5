"""Finding the entries an event satisfies: the inner loop of the whole system.

For each event: (1) place it on every axis of its attributes (`read_event`); (2) collect
the clusters it can reach, by point, by axis, and the one that everybody must look into; check the
runs at once, and keep the blocks whose zones admit the event; (3) AND the rows of each of those
blocks, asking for the next block's rows meanwhile; members that all certain pages vouch for are
matches, the rest are candidates; (4) check the candidates' records, asking for the next ones
meanwhile. An entry with a residue is not decided here: it goes to DOUBTS, and Python has the last
word.

The kernel is written out by hand: eight words of a row are eight variables, which the compiler
keeps in registers. A call into a kernel costs as much as a small search, and every array it is
handed adds to that. So what one event takes is one call whose only array is the context.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.keys import words_of_predicate
from anabranch.matching.kernels.machine import (
    bit_count,
    bitmaps_at,
    borrowed,
    bytes_at,
    entry_point,
    get,
    inlined,
    integers_at,
    kernel,
    lowest_bit,
    prefetch,
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
from anabranch.matching.kernels.storage import find_cluster

# -- searching -------------------------------------------------------------------------------------


_AHEAD = 2  #: Blocks whose rows are asked for before they are needed.
_LINES_AHEAD = 12  #: Candidates' lines likewise.
_CERTAIN_FROM = 12  #: Candidates in a block that make its certain pages worth reading.
_FIRST_ROW = np.int64((1 << 40) - 1)


@kernel
def find(context, touched_count, hit_count, n, d):
    """Match the event that is placed; owners go to OUTPUT behind the first n, doubts behind d.

    Returns where they end. The arrays have room for all that may match.
    """
    clusters = words_at(context, at.CLUSTERS)
    axes = words_at(context, at.AXES)
    blocks = words_at(context, at.BLOCKS)
    row_certain = words_at(context, at.ROW_CERTAIN)
    row_pages = words_at(context, at.ROW_PAGES)
    records = words_at(context, at.RECORDS)
    pages = bitmaps_at(context, at.PAGES)
    slot_entry = integers_at(context, at.SLOT_ENTRY)
    lines = integers_at(context, at.LINES)
    zones = words_at(context, at.ZONES)
    entry_owner = integers_at(context, at.ENTRY_OWNER)
    cell = words_at(context, at.CELL)
    cell_mask = bitmaps_at(context, at.CELL_MASK)
    patterns = words_at(context, at.PATTERNS)
    attribute_axes = integers_at(context, at.ATTRIBUTE_AXES)
    hits = integers_at(context, at.HITS)
    hit_list = integers_at(context, at.HIT_LIST)
    low = words_at(context, at.LOW)
    high = words_at(context, at.HIGH)
    uppers = integers_at(context, at.UPPERS)
    touched = words_at(context, at.TOUCHED)
    visited = words_at(context, at.VISITED)
    candidates = integers_at(context, at.CANDIDATES)
    output = integers_at(context, at.OUTPUT)
    doubts = integers_at(context, at.DOUBTS)
    stamps = integers_at(context, at.STAMPS)
    pages_address = context[at.PAGES]
    blocks_address = context[at.BLOCKS]
    rows_address = context[at.ROW_PAGES]
    certain_address = context[at.ROW_CERTAIN]
    lines_address = context[at.LINES]
    zero = np.uint64(0)
    one = np.uint64(1)
    stamp = context[at.STAMP]
    visits = 0
    found = 0
    members_seen = 0
    # Certain pages pay where blocks have many candidates; then they are asked for early.
    rich = context[at.RICHNESS] >= _CERTAIN_FROM * 64
    # -- (2) clusters: the one without access, two for every axis touched, one per pattern
    for step in range(-1, 2 * touched_count + hit_count):
        cluster = np.int64(0)
        if step >= 2 * touched_count:
            code = np.int64(get(hit_list, step - 2 * touched_count))
            attribute = get(patterns, code * at.PATTERN_WORDS + at.P_CLASS) >> 32
            axis = np.int64(get(attribute_axes, attribute * at.SPACES + at.PATTERN))
            cluster = find_cluster(context, axis, code << 32, np.int64(0))
            if cluster < 0:
                continue
        elif step >= 0:
            axis = get(touched, step >> 1)
            if step & 1:
                if get(axes, axis * at.AXIS_WORDS + at.A_KEYS) == 0:
                    continue
                rest = np.int64(0)
                if get(high, axis) > get(low, axis):
                    rest = words_at(context, at.REST)[axis]
                cluster = find_cluster(context, axis, get(low, axis), rest)
            else:
                cluster = get(axes, axis * at.AXIS_WORDS + at.A_CLUSTER)
            if cluster < 0:
                continue
        c = cluster * at.CLUSTER_WORDS
        run = get(clusters, c + at.C_RUN)
        if run >= 0:
            for slot in range(run, run + get(clusters, c + at.C_COUNT)):
                candidates[found] = slot
                found += 1
        block = get(clusters, c + at.C_BLOCKS)
        while block >= 0:
            z = block * at.ZONE_WORDS
            zone_axes = get(zones, z + at.Z_AXES)
            admitted = True
            for rank in range(3):
                axis = (zone_axes >> (16 * rank)) & 0xFFFF
                if axis == at.NO_AXIS:
                    break
                if (zone_axes >> (48 + rank)) & 1:
                    zone = np.uint64(get(zones, z + at.Z_RANGE + 2 * rank))
                    admitted = zone & get(cell_mask, axis) != zero
                else:
                    admitted = get(low, axis) >= get(zones, z + at.Z_RANGE + 2 * rank)
                    admitted = admitted and get(high, axis) <= get(
                        zones, z + at.Z_RANGE + 2 * rank + 1
                    )
                if not admitted:
                    break
            following = get(zones, z + at.Z_NEXT)
            if admitted:
                visited[visits] = block
                visits += 1
                prefetch(blocks_address + 8 * at.BLOCK_WORDS * block)
                prefetch(blocks_address + 8 * at.BLOCK_WORDS * block + 64)
                prefetch(rows_address + 8 * (following >> 32))
                prefetch(rows_address + 8 * (following >> 32) + 64)
                if rich:
                    prefetch(certain_address + 8 * (following >> 32))
            block = (following & 0xFFFFFFFF) - 1
    # -- (3) blocks
    for i in range(visits + _AHEAD):
        if i < visits:
            b = get(visited, i) * at.BLOCK_WORDS
            table = get(blocks, b + at.B_TABLE)
            row = table & _FIRST_ROW
            for r in range(row, row + ((table >> 40) & 0xFFFF)):
                word = get(row_pages, r)
                spot = (word >> 16) * at.PAGE_WORDS + (get(cell, word & 0xFFFF) & 63) * at.WORDS
                prefetch(pages_address + 8 * spot)
                if rich and get(row_certain, r) >= 0:
                    spot = (
                        get(row_certain, r) * at.PAGE_WORDS
                        + (get(cell, word & 0xFFFF) & 63) * at.WORDS
                    )
                    prefetch(pages_address + 8 * spot)
        if i < _AHEAD:
            continue
        block = get(visited, i - _AHEAD)
        b = block * at.BLOCK_WORDS
        x0 = np.uint64(get(blocks, b + at.B_LIVE))
        x1 = np.uint64(get(blocks, b + at.B_LIVE + 1))
        x2 = np.uint64(get(blocks, b + at.B_LIVE + 2))
        x3 = np.uint64(get(blocks, b + at.B_LIVE + 3))
        x4 = np.uint64(get(blocks, b + at.B_LIVE + 4))
        x5 = np.uint64(get(blocks, b + at.B_LIVE + 5))
        x6 = np.uint64(get(blocks, b + at.B_LIVE + 6))
        x7 = np.uint64(get(blocks, b + at.B_LIVE + 7))
        table = get(blocks, b + at.B_TABLE)
        row = table & _FIRST_ROW
        row_end = row + ((table >> 40) & 0xFFFF)
        several = False
        for r in range(row, row_end):
            word = get(row_pages, r)
            here = get(cell, word & 0xFFFF)
            if here & at.MULTI:
                several = True
                continue
            spot = (word >> 16) * at.PAGE_WORDS + here * at.WORDS
            x0 &= get(pages, spot)
            x1 &= get(pages, spot + 1)
            x2 &= get(pages, spot + 2)
            x3 &= get(pages, spot + 3)
            x4 &= get(pages, spot + 4)
            x5 &= get(pages, spot + 5)
            x6 &= get(pages, spot + 6)
            x7 &= get(pages, spot + 7)
        if several:
            for r in range(row, row_end):
                word = get(row_pages, r)
                if get(cell, word & 0xFFFF) & at.MULTI == 0:
                    continue
                y0 = zero
                y1 = zero
                y2 = zero
                y3 = zero
                y4 = zero
                y5 = zero
                y6 = zero
                y7 = zero
                cells = get(cell_mask, word & 0xFFFF)
                while cells != zero:
                    spot = (word >> 16) * at.PAGE_WORDS + lowest_bit(cells) * at.WORDS
                    cells &= cells - one
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
            continue
        members = bit_count(x0) + bit_count(x1) + bit_count(x2) + bit_count(x3)
        members += bit_count(x4) + bit_count(x5) + bit_count(x6) + bit_count(x7)
        members_seen += members
        y0 = zero
        y1 = zero
        y2 = zero
        y3 = zero
        y4 = zero
        y5 = zero
        y6 = zero
        y7 = zero
        if members >= _CERTAIN_FROM:
            y0 = x0 & np.uint64(get(blocks, b + at.B_WHOLE))
            y1 = x1 & np.uint64(get(blocks, b + at.B_WHOLE + 1))
            y2 = x2 & np.uint64(get(blocks, b + at.B_WHOLE + 2))
            y3 = x3 & np.uint64(get(blocks, b + at.B_WHOLE + 3))
            y4 = x4 & np.uint64(get(blocks, b + at.B_WHOLE + 4))
            y5 = x5 & np.uint64(get(blocks, b + at.B_WHOLE + 5))
            y6 = x6 & np.uint64(get(blocks, b + at.B_WHOLE + 6))
            y7 = x7 & np.uint64(get(blocks, b + at.B_WHOLE + 7))
            for r in range(row, row_end):
                word = get(row_pages, r)
                page = get(row_certain, r)
                spot = page * at.PAGE_WORDS + (get(cell, word & 0xFFFF) & 63) * at.WORDS
                if page < 0:
                    spot = (word >> 16) * at.PAGE_WORDS + at.MISS * at.WORDS
                y0 &= get(pages, spot)
                y1 &= get(pages, spot + 1)
                y2 &= get(pages, spot + 2)
                y3 &= get(pages, spot + 3)
                y4 &= get(pages, spot + 4)
                y5 &= get(pages, spot + 5)
                y6 &= get(pages, spot + 6)
                y7 &= get(pages, spot + 7)
        word = 0
        for x, y in (
            (x0, y0),
            (x1, y1),
            (x2, y2),
            (x3, y3),
            (x4, y4),
            (x5, y5),
            (x6, y6),
            (x7, y7),
        ):
            slot = get(blocks, b + at.B_CHUNKS + (word >> 1)) + 64 * (word & 1)
            word += 1
            x &= ~y
            while x != zero:
                candidates[found] = slot + lowest_bit(x)
                found += 1
                x &= x - one
            while y != zero:
                entry = np.int64(get(slot_entry, slot + lowest_bit(y)))
                y &= y - one
                if entry & (at.MANY | at.DOUBT):
                    flags = entry
                    entry &= at.ENTRY_MASK
                    if flags & at.MANY and get(stamps, get(entry_owner, entry)) == stamp:
                        continue
                    if flags & at.DOUBT:
                        doubts[d] = entry
                        d += 1
                        continue
                    entry = np.int64(get(entry_owner, entry))
                    stamps[entry] = stamp
                output[n] = entry
                n += 1
    if visits > 0:
        context[at.RICHNESS] += ((64 * members_seen) // visits - context[at.RICHNESS]) >> 4
    # -- (4) candidates
    for i in range(min(found, _LINES_AHEAD)):
        prefetch(lines_address + 4 * at.LINE_WORDS * np.int64(get(candidates, i)))
    for i in range(found):
        if i + _LINES_AHEAD < found:
            prefetch(
                lines_address + 4 * at.LINE_WORDS * np.int64(get(candidates, i + _LINES_AHEAD))
            )
        line = at.LINE_WORDS * np.int64(get(candidates, i))
        info = np.int64(get(lines, line + at.L_INFO))
        # Test all five ranges unconditionally: a mispredicted branch here is expensive.
        margin = np.int64(0)
        for j in range(at.LINE_RANGES):
            axis = (np.int64(get(lines, line + at.L_AXES + (j >> 1))) >> (16 * (j & 1))) & 0xFFFF
            low_end = np.int64(get(lines, line + at.L_ENDS + 2 * j))
            high_end = np.int64(get(lines, line + at.L_ENDS + 2 * j + 1))
            margin = min(margin, np.int64(get(uppers, 2 * axis)) - low_end)
            margin = min(margin, high_end - np.int64(get(uppers, 2 * axis + 1)))
        holds = margin == 0
        if margin == -1 and info & 0xFFFF00:
            holds = ties_hold(context, np.int64(get(candidates, i)))
        if holds and info >> 24:
            for j in range(info & 0xFF):
                if (info >> (24 + j)) & 1:
                    code = np.int64(get(lines, line + at.L_ENDS + 2 * j))
                    if get(hits, code) != stamp:
                        holds = False
                        break
        record = np.int64(get(lines, line + at.L_RECORD))
        if record >= 0 and holds:
            position = record + 1
            for _ in range(get(records, record) & 0xFFFF):
                if not record_holds(context, position):
                    holds = False
                    break
                position += words_of_predicate(get(records, position))
        entry = np.int64(get(lines, line + at.L_ENTRY))
        if entry & (at.MANY | at.DOUBT):
            flags = entry
            entry &= at.ENTRY_MASK
            if not holds or (flags & at.MANY and get(stamps, get(entry_owner, entry)) == stamp):
                continue
            if flags & at.DOUBT:
                doubts[d] = entry
                d += 1
                continue
            entry = np.int64(get(entry_owner, entry))
            stamps[entry] = stamp
        output[n] = entry
        n += holds
    return n, d


# -- from messages to owners -----------------------------------------------------------------------


# From owners to the integers that stand for them.
#
# numpy would first turn the 32-bit owners into an array of 64-bit ones.


@entry_point
def name_owners(names, owners, named):
    for i in range(owners.shape[0]):
        named[i] = get(names, owners[i])


@inlined
def name_output(context, count):
    """Write the ids of the first owners in OUTPUT to NAMED, if there are ids and room for them."""
    if context[at.IDS] == 0 or count > at.NAMED_MAX:
        return
    ids = words_at(context, at.IDS)
    output = integers_at(context, at.OUTPUT)
    named = words_at(context, at.NAMED)
    for i in range(count):
        named[i] = get(ids, get(output, i))


@inlined
def has_room(context, n, d):
    """Whether another event cannot overflow OUTPUT or DOUBTS."""
    return (
        n + context[at.LIVE_ENTRIES] <= context[at.OUTPUT_CAPACITY]
        and d + context[at.DOUBT_ENTRIES] <= context[at.DOUBT_CAPACITY]
    )


@entry_point
def answer_one(context, size, entries_max, name_bytes_max):
    """Match the event in MESSAGE; `read_event` describes the bounds.

    Owners go to OUTPUT, their ids to NAMED, doubtful entries to DOUBTS. Returns how many owners
    there are | doubtful entries << 32, or what went wrong, which is negative.
    """
    context = borrowed(context)
    if not has_room(context, 0, 0):
        return np.int64(at.OUTPUT_FULL)
    next_stamp(context)
    position, count, hits = read_event(
        context, bytes_at(context, at.MESSAGE), np.int64(0), size, entries_max, name_bytes_max
    )
    if position < 0:
        return position
    n, d = find(context, count, hits, np.int64(0), np.int64(0))
    lift_event(context, count)
    name_output(context, n)
    return n | (d << 32)


@entry_point
def answer_many(context, messages, position, first, ends, doubt_ends):
    """Match events `first` …, which stand in `messages` from `position` one after the other.

    Owners go to OUTPUT, doubtful entries to DOUBTS; the owners of event i end at ends[i + 1].
    Returns (the events done, the position behind them); fewer than there are when OUTPUT might
    overflow, or with what went wrong as a negative position.
    """
    context = borrowed(context)
    messages = borrowed(messages)
    n = ends[first]
    d = doubt_ends[first]
    stop = np.int64(messages.shape[0])
    for event in range(first, ends.shape[0] - 1):
        if not has_room(context, n, d):
            return event, position
        next_stamp(context)
        position, count, hits = read_event(
            context, messages, position, stop, np.int64(0), np.int64(-1)
        )
        if position < 0:
            return event, position
        n, d = find(context, count, hits, n, d)
        lift_event(context, count)
        ends[event + 1] = n
        doubt_ends[event + 1] = d
    return ends.shape[0] - 1, position


@kernel
def _free_event(context, bodies, start, stop, bounds):
    """(axes, patterns) of a free event that is placed; axes -1 if it is not, and none is."""
    first, end, is_free = attributes_in(bodies, start, stop, bounds)
    if first < 0 or not is_free:
        return np.int64(-1), np.int64(0)
    next_stamp(context)
    position, count, hits = read_event(
        context, bodies, first, end, bounds[ENTRIES_MAX], bounds[NAME_BYTES_MAX]
    )
    return (count if position >= 0 else np.int64(-1)), hits


@entry_point
def answer_bodies(context, bodies, stops, bounds, first, ends):
    """Match encoded events `first` …, the bodies of which end at `stops`.

    Owners go to OUTPUT; those of event i end at ends[i + 1], which is -1 if Python has to find
    them: the event is not free, or something is in doubt. Returns the events done, which are fewer
    than there are when OUTPUT might overflow.
    """
    context = borrowed(context)
    bodies = borrowed(bodies)
    bounds = borrowed(bounds)
    n = np.int64(0)
    start = stops[first - 1] if first > 0 else np.int64(0)
    for event in range(first, stops.shape[0]):
        if not has_room(context, n, 0):
            return event
        count, hits = _free_event(context, bodies, start, stops[event], bounds)
        start = stops[event]
        ends[event + 1] = -1
        if count < 0:
            continue
        found, doubts = find(context, count, hits, n, np.int64(0))
        lift_event(context, count)
        if doubts == 0:
            n = found
            ends[event + 1] = n
    return stops.shape[0]
