"""Index search for events in columns, and counting of matches for many events at once.

A search of the index normally reads MessagePack. For events in columns, writing that would cost
more than reading it, so this module places values on the axes of the index directly from Arrow
arrays. Index and search are the same (`matching.kernels.search`).

The *plan* gives the location of the columns: PLAN_WORDS words per column, with the addresses of its
arrays. The creator of a plan keeps those arrays alive while a kernel runs. Rules:

1. A null is absent. Of two columns of one attribute, the first that has a value counts.
2. Texts are UTF-8, as in Arrow; this is not checked here.
3. A doubtful entry is left out if its subscription also matches by another entry.
4. A kernel that runs out of space reports it, and is called again from the row it has reached.
5. Encoded events are a single column of the kind ENCODED. Brokers validated them when they were
   published; regardless of their content, no byte outside of them is read. An event that is not
   plain is ODD and left to Python.

`search_rows` serves all of that, because each entry point is compiled with a copy of the whole
search.

`sweep_rows` counts. A search goes from an event to the blocks that it may match. With a million
subscriptions, that reads hundreds of megabytes per event and is bound by memory bandwidth. If only
counts are needed, the order does not matter. So a *tile* of events is placed first, and then each
block is visited once, for all events of the tile that reach it, so that the index data stays in
the cache while it is needed. Counters are indexed by slot for the same reason: the slots of a block
are adjacent, its entries are not. The tests are those of `matching.kernels.search`, in the same
order.

6. To be counted, every subscription of the index is a single conjunction, without patterns and
   doubts. An entry is then a subscription, and no event counts twice for it. The caller checks
   this.
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
    words_at,
)
from anabranch.matching.kernels.read_event import (
    attributes_in,
    lift_event,
    next_stamp,
    place_float,
    place_integer,
    place_kind,
    place_text,
    read_event,
    record_holds,
    ties_hold,
)
from anabranch.matching.kernels.search import find, has_room
from anabranch.matching.kernels.storage import find_cluster

# -- plan columns ----------------------------------------------------------------------------------

PLAN_WORDS = 8
ATTRIBUTE = 0  #: Number of the attribute in the index.
KIND = 1
VALUES = 2  #: Address of the values; for texts, of their offsets.
VALID = 3  #: Address of the validity bitmap; 0 if there are no nulls.
LETTERS = 4  #: Address of the bytes of texts.
SKIP = 5  #: Number of rows in the arrays before the first one.

# Kinds of columns; LONG_… have 64-bit offsets.
TEXT, LONG_TEXT, ENCODED, LONG_ENCODED, INTEGER, FLOAT, TRUTH = 0, 1, 2, 3, 4, 5, 6

#: Value in `states` for an event that Python has to evaluate.
ODD = 1

_ZERO = np.int64(0)


@inlined
def _bit(plan, word, row):
    return (np.int64(get(bytes_at(plan, word), row >> 3)) >> (row & 7)) & 1


@inlined
def _stretch(plan, column, row):
    """(first byte, length) of a text or an encoded event."""
    if plan[column + KIND] & 1 == 0:
        ends = integers_at(plan, column + VALUES)
        first = np.int64(get(ends, row))
        return first, np.int64(get(ends, row + 1)) - first
    long_ends = words_at(plan, column + VALUES)
    return get(long_ends, row), get(long_ends, row + 1) - get(long_ends, row)


@kernel
def place_row(context, plan, columns, row):
    """(axes, patterns) of the event in a row; patterns is TEXT_FULL if space is missing."""
    seen = integers_at(context, at.NAME_SEEN)
    stamp = np.int32(context[at.STAMP])
    count = _ZERO
    hits = _ZERO
    for c in range(columns):
        column = c * PLAN_WORDS
        attribute = plan[column + ATTRIBUTE]
        spot = row + plan[column + SKIP]
        if get(seen, attribute) == stamp:
            continue
        if plan[column + VALID] != 0 and _bit(plan, column + VALID, spot) == 0:
            continue
        seen[attribute] = stamp
        kind = plan[column + KIND]
        if kind == INTEGER:
            value = get(words_at(plan, column + VALUES), spot)
            count = place_integer(context, attribute, value, count)
        elif kind == FLOAT:
            bits = get(words_at(plan, column + VALUES), spot)
            count = place_float(context, attribute, bits, count)
        elif kind == TRUTH:
            truth = _bit(plan, column + VALUES, spot)
            value = np.int64(at.K_TRUE if truth != 0 else at.K_FALSE)
            count = place_kind(context, attribute, value, count)
        else:
            first, length = _stretch(plan, column, spot)
            letters = bytes_at(plan, column + LETTERS)
            count, more = place_text(context, attribute, letters, first, length, count, hits)
            if more < 0:
                return count, more
            hits = more
    return count, hits


@kernel
def _open_doubts(context, before, after):
    """Drop the doubts of subscriptions that match for certain. Returns the new end of doubts."""
    doubts = integers_at(context, at.DOUBTS)
    owners = integers_at(context, at.ENTRY_OWNER)
    stamps = integers_at(context, at.STAMPS)
    stamp = np.int32(context[at.STAMP])
    kept = before
    for i in range(before, after):
        if get(stamps, get(owners, get(doubts, i))) != stamp:
            doubts[kept] = doubts[i]
            kept += 1
    return kept


@kernel
def _read_body(context, plan, row, bounds):
    """(axes, patterns) of the encoded event in a row; patterns is UNREAD if it is not plain."""
    if plan[VALID] != 0 and _bit(plan, VALID, row + plan[SKIP]) == 0:
        return _ZERO, np.int64(at.UNREAD)
    data = bytes_at(plan, LETTERS)
    start, length = _stretch(plan, 0, row + plan[SKIP])
    first, end, _ = attributes_in(data, start, start + length, bounds)
    if first < 0:
        return _ZERO, np.int64(at.UNREAD)
    position, count, hits = read_event(context, data, first, end, _ZERO, np.int64(-1))
    return count, hits if position >= 0 else position


@kernel
def _tally(context, n, counts):
    output = integers_at(context, at.OUTPUT)
    for i in range(n):
        counts[get(output, i)] += 1


@entry_point
def search_rows(context, plan, bounds, first, ends, doubt_ends, states, counts):
    """Search from row `first` on; the doubts of row i end at doubt_ends[i + 1] in DOUBTS.

    Without `counts`, the owners of row i end at ends[i + 1] in OUTPUT. With `counts`, owners are
    counted there, and ends[i + 1] is the number of owners of row i; doubts are not counted. A row
    that is ODD in `states` has no result. Returns (rows done, reason to stop: 0 for none)."""
    context = borrowed(context)
    plan = borrowed(plan)
    columns = np.int64(plan.shape[0]) // PLAN_WORDS
    is_encoded = columns == 1 and (plan[KIND] == ENCODED or plan[KIND] == LONG_ENCODED)
    is_counted = counts.shape[0] > 0
    n = _ZERO
    d = _ZERO
    for row in range(first, states.shape[0]):
        if not has_room(context, n, d):
            return row, np.int64(at.OUTPUT_FULL)
        next_stamp(context)
        if is_encoded:
            count, hits = _read_body(context, plan, row, bounds)
        else:
            count, hits = place_row(context, plan, columns, row)
        found = n
        if hits == at.UNREAD:
            states[row] = ODD
        elif hits < 0:
            lift_event(context, count)
            return row, hits
        else:
            found, after = find(context, count, hits, n, d)
            lift_event(context, count)
            d = _open_doubts(context, d, after)
        ends[row + 1] = found
        doubt_ends[row + 1] = d
        if is_counted:
            _tally(context, found, counts)
        else:
            n = found
    return np.int64(states.shape[0]), _ZERO


# -- counting --------------------------------------------------------------------------------------


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

_NO_BITS = np.uint64(0)
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
            if (np.uint64(first) >> np.uint64(cell)) & _ONE == _NO_BITS:
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
    if (x0 | x1 | x2 | x3 | x4 | x5 | x6 | x7) == _NO_BITS:
        return np.int64(0)
    members = bit_count(x0) + bit_count(x1) + bit_count(x2) + bit_count(x3)
    members += bit_count(x4) + bit_count(x5) + bit_count(x6) + bit_count(x7)
    y0 = _NO_BITS
    y1 = _NO_BITS
    y2 = _NO_BITS
    y3 = _NO_BITS
    y4 = _NO_BITS
    y5 = _NO_BITS
    y6 = _NO_BITS
    y7 = _NO_BITS
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
        while y != _NO_BITS:
            counts[slot + lowest_bit(y)] += 1
            y &= y - _ONE
            found += 1
        while x != _NO_BITS:
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
