"""Match counting for many events at once: sweeps the index block by block, not event by event.

A search goes from an event to the blocks that it may match. With a million subscriptions, that
reads hundreds of megabytes per event and is bound by memory bandwidth. If only counts are needed,
the order does not matter. This module therefore places a *tile* of events first and then visits
each block once, for all events of the tile that reach it, so that the index data stays in the cache
while it is needed. Counters are indexed by slot for the same reason: the slots of a block are
adjacent, its entries are not. The tests are those of `matching.kernels.search`, in the same order.

Precondition: every subscription of the index is a single conjunction, without patterns and doubts.
An entry is then a subscription, and no event counts twice for it. The caller checks this.

The *tile* is a vector of addresses of arrays that the caller owns; see the constants.
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
    integers_at,
    kernel,
    lowest_bit,
    words_at,
)
from anabranch.matching.kernels.place_event import lift_event, next_stamp, record_holds, ties_hold
from anabranch.matching.kernels.storage import find_cluster
from anabranch.spark.kernels.columnar import PLAN_WORDS, place_row

# -- tile: addresses, and its size -----------------------------------------------------------------

CELLS = 0  #: u8 per event and axis, followed by those of the empty event.
LOWS = 1  #: i64 per event and axis; the same for HIGHS and RESTS.
HIGHS = 2
RESTS = 3
UPPERS = 4  #: i32, two per event and axis.
HEADS = 5  #: i32 per cluster: its last link, or -1; all -1 between calls.
LINKS = 6  #: i32 per link: the previous one, or -1.
LINK_ROWS = 7  #: i32 per link: the event.
REACHED = 8  #: i32: the clusters that at least one event reaches.
HERE = 9  #: i32: the events that reach the current cluster.
ROWS = 10  #: Capacity in events.
TILE_WORDS = 11

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_FIRST_ROW = np.int64((1 << 40) - 1)
#: Minimum candidates in a block for which reading its certain pages pays off; here they are cached.
_CERTAIN_FROM = 4


@kernel
def _link(tile, cluster, row, links, reached):
    """Add a link. Returns (number of links, number of clusters reached)."""
    heads = integers_at(tile, HEADS)
    if heads[cluster] < 0:
        integers_at(tile, REACHED)[reached] = cluster
        reached += 1
    integers_at(tile, LINKS)[links] = heads[cluster]
    integers_at(tile, LINK_ROWS)[links] = row
    heads[cluster] = links
    return links + 1, reached


@kernel
def _take_event(context, tile, row, axes, touched_count, links, reached):
    """Copy the placed event into the tile, and link the clusters that it reaches."""
    cell = words_at(context, at.CELL)
    low = words_at(context, at.LOW)
    high = words_at(context, at.HIGH)
    rest = words_at(context, at.REST)
    uppers = integers_at(context, at.UPPERS)
    base = row * axes
    for axis in range(axes):
        bytes_at(tile, CELLS)[base + axis] = np.uint8(get(cell, axis))
        words_at(tile, LOWS)[base + axis] = get(low, axis)
        words_at(tile, HIGHS)[base + axis] = get(high, axis)
        words_at(tile, RESTS)[base + axis] = get(rest, axis)
        integers_at(tile, UPPERS)[2 * (base + axis)] = get(uppers, 2 * axis)
        integers_at(tile, UPPERS)[2 * (base + axis) + 1] = get(uppers, 2 * axis + 1)
    table = words_at(context, at.AXES)
    touched = words_at(context, at.TOUCHED)
    links, reached = _link(tile, np.int64(0), row, links, reached)
    for i in range(touched_count):
        axis = get(touched, i)
        cluster = get(table, axis * at.AXIS_WORDS + at.A_CLUSTER)
        if cluster >= 0:
            links, reached = _link(tile, cluster, row, links, reached)
        if get(table, axis * at.AXIS_WORDS + at.A_KEYS) == 0:
            continue
        fine = get(rest, axis) if get(high, axis) > get(low, axis) else np.int64(0)
        cluster = find_cluster(context, axis, get(low, axis), fine)
        if cluster >= 0:
            links, reached = _link(tile, cluster, row, links, reached)
    return links, reached


@kernel
def _point_at(context, tile, base):
    """Point the context to the event at `base`."""
    cells = bytes_at(tile, CELLS)
    own = words_at(context, at.CELL)
    for axis in range(context[at.AXIS_COUNT]):
        own[axis] = np.int64(get(cells, base + axis))
    context[at.LOW] = tile[LOWS] + 8 * base
    context[at.HIGH] = tile[HIGHS] + 8 * base
    context[at.REST] = tile[RESTS] + 8 * base


@kernel
def _record_holds(context, record):
    """Whether all predicates of a record hold."""
    records = words_at(context, at.RECORDS)
    position = record + 1
    for _ in range(get(records, record) & 0xFFFF):
        if not record_holds(context, position):
            return False
        position += words_of_predicate(get(records, position))
    return True


@kernel
def _slot_holds(context, tile, base, slot):
    """Whether the entry in a slot matches the event at `base`."""
    lines = integers_at(context, at.LINES)
    uppers = integers_at(tile, UPPERS)
    line = slot * at.LINE_WORDS
    # Test all five ranges without an early exit: mispredicted branches are expensive.
    margin = np.int64(0)
    for j in range(at.LINE_RANGES):
        axis = (np.int64(get(lines, line + at.L_AXES + (j >> 1))) >> (16 * (j & 1))) & 0xFFFF
        low_end = np.int64(get(lines, line + at.L_ENDS + 2 * j))
        high_end = np.int64(get(lines, line + at.L_ENDS + 2 * j + 1))
        margin = min(margin, np.int64(get(uppers, 2 * (base + axis))) - low_end)
        margin = min(margin, high_end - np.int64(get(uppers, 2 * (base + axis) + 1)))
    if margin < -1:
        return False
    record = np.int64(get(lines, line + at.L_RECORD))
    if margin == 0 and record < 0:
        return True
    if margin == -1 and np.int64(get(lines, line + at.L_INFO)) & 0xFFFF00 == 0:
        return False
    _point_at(context, tile, base)
    if margin == -1 and not ties_hold(context, slot):
        return False
    return record < 0 or _record_holds(context, record)


@kernel
def _is_admitted(context, tile, base, zone_axes, z):
    """Whether the zones of a block admit the event at `base`."""
    zones = words_at(context, at.ZONES)
    for rank in range(3):
        axis = (zone_axes >> (16 * rank)) & 0xFFFF
        if axis == at.NO_AXIS:
            return True
        first = get(zones, z + at.Z_RANGE + 2 * rank)
        if (zone_axes >> (48 + rank)) & 1:
            cell = get(bytes_at(tile, CELLS), base + axis)
            if (np.uint64(first) >> np.uint64(cell)) & _ONE == _ZERO:
                return False
        else:
            last = get(zones, z + at.Z_RANGE + 2 * rank + 1)
            if get(words_at(tile, LOWS), base + axis) < first:
                return False
            if get(words_at(tile, HIGHS), base + axis) > last:
                return False
    return True


@kernel
def _sweep_block(context, tile, block, row, axes, counts):
    """Count the members of a block that match an event. Returns their number."""
    blocks = words_at(context, at.BLOCKS)
    row_pages = words_at(context, at.ROW_PAGES)
    row_certain = words_at(context, at.ROW_CERTAIN)
    pages = bitmaps_at(context, at.PAGES)
    cells = bytes_at(tile, CELLS)
    base = row * axes
    b = block * at.BLOCK_WORDS
    table = get(blocks, b + at.B_TABLE)
    start = table & _FIRST_ROW
    stop = start + ((table >> 40) & 0xFFFF)
    x0 = np.uint64(get(blocks, b + at.B_LIVE + 0))
    x1 = np.uint64(get(blocks, b + at.B_LIVE + 1))
    x2 = np.uint64(get(blocks, b + at.B_LIVE + 2))
    x3 = np.uint64(get(blocks, b + at.B_LIVE + 3))
    x4 = np.uint64(get(blocks, b + at.B_LIVE + 4))
    x5 = np.uint64(get(blocks, b + at.B_LIVE + 5))
    x6 = np.uint64(get(blocks, b + at.B_LIVE + 6))
    x7 = np.uint64(get(blocks, b + at.B_LIVE + 7))
    for r in range(start, stop):
        place = get(row_pages, r)
        cell = np.int64(get(cells, base + (place & 0xFFFF)))
        spot = (place >> 16) * at.PAGE_WORDS + cell * at.WORDS
        x0 &= get(pages, spot + 0)
        x1 &= get(pages, spot + 1)
        x2 &= get(pages, spot + 2)
        x3 &= get(pages, spot + 3)
        x4 &= get(pages, spot + 4)
        x5 &= get(pages, spot + 5)
        x6 &= get(pages, spot + 6)
        x7 &= get(pages, spot + 7)
    if (x0 | x1 | x2 | x3 | x4 | x5 | x6 | x7) == _ZERO:
        return np.int64(0)
    members = bit_count(x0) + bit_count(x1) + bit_count(x2) + bit_count(x3)
    members += bit_count(x4) + bit_count(x5) + bit_count(x6) + bit_count(x7)
    y0 = _ZERO
    y1 = _ZERO
    y2 = _ZERO
    y3 = _ZERO
    y4 = _ZERO
    y5 = _ZERO
    y6 = _ZERO
    y7 = _ZERO
    if members >= _CERTAIN_FROM:
        y0 = x0 & np.uint64(get(blocks, b + at.B_WHOLE + 0))
        y1 = x1 & np.uint64(get(blocks, b + at.B_WHOLE + 1))
        y2 = x2 & np.uint64(get(blocks, b + at.B_WHOLE + 2))
        y3 = x3 & np.uint64(get(blocks, b + at.B_WHOLE + 3))
        y4 = x4 & np.uint64(get(blocks, b + at.B_WHOLE + 4))
        y5 = x5 & np.uint64(get(blocks, b + at.B_WHOLE + 5))
        y6 = x6 & np.uint64(get(blocks, b + at.B_WHOLE + 6))
        y7 = x7 & np.uint64(get(blocks, b + at.B_WHOLE + 7))
        for r in range(start, stop):
            place = get(row_pages, r)
            page = get(row_certain, r)
            cell = np.int64(get(cells, base + (place & 0xFFFF)))
            spot = page * at.PAGE_WORDS + cell * at.WORDS
            if page < 0:
                spot = (place >> 16) * at.PAGE_WORDS + at.MISS * at.WORDS
            y0 &= get(pages, spot + 0)
            y1 &= get(pages, spot + 1)
            y2 &= get(pages, spot + 2)
            y3 &= get(pages, spot + 3)
            y4 &= get(pages, spot + 4)
            y5 &= get(pages, spot + 5)
            y6 &= get(pages, spot + 6)
            y7 &= get(pages, spot + 7)
    found = np.int64(0)
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
        word += 1  # noqa: SIM113 - a loop over a tuple is unrolled, with nothing to enumerate
        x &= ~y
        while y != _ZERO:
            counts[slot + lowest_bit(y)] += 1
            y &= y - _ONE
            found += 1
        while x != _ZERO:
            candidate = slot + lowest_bit(x)
            x &= x - _ONE
            if _slot_holds(context, tile, base, candidate):
                counts[candidate] += 1
                found += 1
    return found


@kernel
def _sweep_cluster(context, tile, cluster, count, axes, first, sizes, counts):
    """Count the members of a cluster that match the events in HERE."""
    clusters = words_at(context, at.CLUSTERS)
    zones = words_at(context, at.ZONES)
    here = integers_at(tile, HERE)
    c = cluster * at.CLUSTER_WORDS
    run = get(clusters, c + at.C_RUN)
    if run >= 0:
        for slot in range(run, run + get(clusters, c + at.C_COUNT)):
            for i in range(count):
                row = np.int64(get(here, i))
                if _slot_holds(context, tile, row * axes, slot):
                    counts[slot] += 1
                    sizes[first + row] += 1
    block = get(clusters, c + at.C_BLOCKS)
    while block >= 0:
        z = block * at.ZONE_WORDS
        zone_axes = get(zones, z + at.Z_AXES)
        for i in range(count):
            row = np.int64(get(here, i))
            if _is_admitted(context, tile, row * axes, zone_axes, z):
                sizes[first + row] += _sweep_block(context, tile, block, row, axes, counts)
        block = (get(zones, z + at.Z_NEXT) & 0xFFFFFFFF) - 1


@entry_point
def sweep_rows(context, plan, tile, first, stop, sizes, counts):
    """Count the matches of rows `first` … `stop` - 1: by slot in `counts`, by row in `sizes`."""
    context = borrowed(context)
    plan = borrowed(plan)
    tile = borrowed(tile)
    counts = borrowed(counts)
    sizes = borrowed(sizes)
    columns = np.int64(plan.shape[0]) // PLAN_WORDS
    axes = context[at.AXIS_COUNT]
    links = np.int64(0)
    reached = np.int64(0)
    for row in range(stop - first):
        next_stamp(context)
        touched, _ = place_row(context, plan, columns, first + row)
        links, reached = _take_event(context, tile, row, axes, touched, links, reached)
        lift_event(context, touched)
    heads = integers_at(tile, HEADS)
    here = integers_at(tile, HERE)
    own = context[at.LOW], context[at.HIGH], context[at.REST]
    for i in range(reached):
        cluster = np.int64(get(integers_at(tile, REACHED), i))
        link = np.int64(heads[cluster])
        heads[cluster] = -1
        count = np.int64(0)
        while link >= 0:
            here[count] = get(integers_at(tile, LINK_ROWS), link)
            count += 1
            link = np.int64(get(integers_at(tile, LINKS), link))
        _sweep_cluster(context, tile, cluster, count, axes, first, sizes, counts)
    context[at.LOW], context[at.HIGH], context[at.REST] = own
    for axis in range(axes):
        words_at(context, at.CELL)[axis] = get(bytes_at(tile, CELLS), tile[ROWS] * axes + axis)
    return links
