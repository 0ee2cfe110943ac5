"""Splitting a full block so that events find reason to skip one half; and where cells begin.

A cluster's blocks are the leaves of a binary tree. A node has an axis and a cut; an entry goes
left if it does not constrain the axis or if the middle of its cells lies below the cut, right
otherwise. The tree only decides where an entry is put; a search never walks it, it goes by the
zones.

The cut is chosen by what it saves: for each axis the cut *constrained or not* and the cut at
the median are weighed by the expected work `entries × probability that the zones let an event
in`, on either side. If nothing separates the members (hundreds of equal filters), the node
sends everything to the new block.

*Bounds*, where the cells of an ordered axis begin, are drawn from a sample of the keys that
predicates name, again at every eightfold growth of an axis; all pages of that axis are then
redrawn. That costs a pass over its entries, so the cost of an insert stays constant on average.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.blocks import (
    clear_block,
    draw_block,
    make_block,
    redraw_axis,
    seat_member,
    slot_at,
)
from anabranch.matching.kernels.keys import (
    KEY_HIGHEST,
    KEY_LOWEST,
    cell_of,
    predicate_axis,
    predicate_cells,
    predicate_count,
    predicate_on,
    words_of_predicate,
)
from anabranch.matching.kernels.machine import (
    bit_count,
    bitmaps_at,
    get,
    highest_bit,
    integers_at,
    kernel,
    lowest_bit,
    words_at,
)
from anabranch.matching.kernels.storage import copy_slot, take_node

# -- bounds of cells -------------------------------------------------------------------------------


@kernel
def sample(context, words):
    """Offer the ends of ranges to the samples; returns an axis whose bounds are due, or -1."""
    axes = words_at(context, at.AXES)
    samples = words_at(context, at.SAMPLES)
    due = np.int64(-1)
    position = np.int64(1)
    for _ in range(words[0]):
        head = words[position]
        test = (head >> 16) & 0xFF
        if test == at.RANGES or test == at.FINE_RANGES:
            axis = head & 0xFFFF
            a = axis * at.AXIS_WORDS
            stride = 1 if test == at.RANGES else 2
            for i in range(2 * (head >> 24)):
                key = words[position + 1 + i * stride]
                if axes[a + at.A_SPACE] == at.NUMBER and (key <= KEY_LOWEST or key >= KEY_HIGHEST):
                    continue
                seen = axes[a + at.A_SEEN]
                place = seen
                if seen >= at.SAMPLE_SIZE:
                    mixed = np.uint64(context[at.RANDOM]) * np.uint64(6364136223846793005)
                    mixed += np.uint64(1442695040888963407)
                    context[at.RANDOM] = np.int64(mixed)
                    place = np.int64((mixed >> np.uint64(33)) % np.uint64(seen + 1))
                if place < at.SAMPLE_SIZE:
                    samples[axis * at.SAMPLE_SIZE + place] = key
                axes[a + at.A_SEEN] = seen + 1
            if axes[a + at.A_SEEN] >= axes[a + at.A_BOUND_AT]:
                due = axis
        position += words_of_predicate(head)
    return due


@kernel
def draw_bounds(context, axis):
    """Set an axis' bounds to quantiles of its sample, and redraw what depends on them."""
    axes = words_at(context, at.AXES)
    samples = words_at(context, at.SAMPLES)
    bounds = words_at(context, at.BOUNDS)
    nodes = integers_at(context, at.NODES)
    a = axis * at.AXIS_WORDS
    seen = axes[a + at.A_SEEN]
    axes[a + at.A_BOUND_AT] = seen * 8
    size = min(seen, at.SAMPLE_SIZE)
    ordered = np.empty(size, np.int64)
    for i in range(size):
        # Insertion sort: numba's own takes seconds to compile, and this runs a few times in all.
        key = samples[axis * at.SAMPLE_SIZE + i]
        j = i
        while j > 0 and ordered[j - 1] > key:
            ordered[j] = ordered[j - 1]
            j -= 1
        ordered[j] = key
    old = np.empty(at.CELLS - 1, np.int64)
    for i in range(at.CELLS - 1):
        old[i] = bounds[axis * (at.CELLS - 1) + i]
        bounds[axis * (at.CELLS - 1) + i] = ordered[((i + 1) * size) // at.CELLS]
    for node in range(context[at.NODE_COUNT]):
        by_middle = nodes[node * at.NODE_WORDS] == axis | (at.BY_MIDDLE << 16)
        if by_middle and nodes[node * at.NODE_WORDS + 1] > 1:
            bound = old[min(nodes[node * at.NODE_WORDS + 1] // 2, at.CELLS - 1) - 1]
            nodes[node * at.NODE_WORDS + 1] = max(1, 2 * cell_of(context, axis, bound))
    for block in range(context[at.BLOCK_COUNT]):
        if words_at(context, at.BLOCKS)[block * at.BLOCK_WORDS + at.B_COUNT] & 0xFFFFFFFF > 0:
            redraw_axis(context, block, axis)


# -- splitting -------------------------------------------------------------------------------------


#: Axes weighed at a split, the most used ones.
_AXES_WEIGHED = 16
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@kernel
def feature_of(cells, feature):
    """A feature of a set of cells; -1 for an unconstrained entry."""
    if cells == _ALL:
        return np.int64(-1)
    if feature == at.BY_WIDTH:
        return bit_count(cells)
    return lowest_bit(cells) + highest_bit(cells)


@kernel
def _cells_on_axis(context, slot, axis):
    """Possible cells of a slot's entry on an axis; all bits if it does not constrain it."""
    number = predicate_on(context, slot, axis)
    if number < 0:
        return _ALL
    possible, _ = predicate_cells(context, slot, number)
    return possible


@kernel
def find_leaf(context, cluster, slot):
    """(block, parent node or -1, side) where the tree puts the entry of a slot."""
    nodes = integers_at(context, at.NODES)
    clusters = words_at(context, at.CLUSTERS)
    spot = clusters[cluster * at.CLUSTER_WORDS + at.C_ROOT]
    parent = np.int64(-1)
    side = np.int64(0)
    while spot >= 0:
        rule = np.int64(nodes[spot * at.NODE_WORDS])
        parent = spot
        side = np.int64(3)
        if rule >= 0:
            cells = _cells_on_axis(context, slot, rule & 0xFFFF)
            if feature_of(cells, rule >> 16) < nodes[spot * at.NODE_WORDS + 1]:
                side = np.int64(2)
        spot = np.int64(nodes[parent * at.NODE_WORDS + side])
    return -2 - spot, parent, side


@kernel
def _gather_masks(context, block, axes):
    """Write every member's cells on the most used axes to MASKS; returns how many axes."""
    blocks = words_at(context, at.BLOCKS)
    row_pages = words_at(context, at.ROW_PAGES)
    masks = bitmaps_at(context, at.MASKS)
    b = block * at.BLOCK_WORDS
    table = blocks[b + at.B_TABLE]
    first = table & ((np.int64(1) << np.int64(40)) - 1)
    count = (table >> 40) & 0xFFFF
    uses = np.zeros(count, np.int64)
    for place in range(at.BLOCK_SLOTS):
        slot = slot_at(blocks, b, place)
        for predicate in range(predicate_count(context, slot)):
            axis = predicate_axis(context, slot, predicate)
            for row in range(count):
                if row_pages[first + row] & 0xFFFF == axis:
                    uses[row] += 1
                    break
    number = min(count, _AXES_WEIGHED)
    for j in range(number):
        best = 0
        for row in range(count):
            if uses[row] > uses[best]:
                best = row
        uses[best] = -1
        axes[j] = row_pages[first + best] & 0xFFFF
    for place in range(at.BLOCK_SLOTS):
        slot = slot_at(blocks, b, place)
        for j in range(_AXES_WEIGHED):
            masks[place * _AXES_WEIGHED + j] = _ALL
        for predicate in range(predicate_count(context, slot)):
            axis = predicate_axis(context, slot, predicate)
            for j in range(number):
                if axes[j] == axis:
                    possible, _ = predicate_cells(context, slot, predicate)
                    masks[place * _AXES_WEIGHED + j] = possible
                    break
    return number


@kernel
def _part(masks, features, cut, counts, unions):
    """Sort the members into four parts by feature: below 0, cut - 1 and cut, and the rest.

    The candidates for a cut lie between the parts, so one pass serves all three.
    """
    for part in range(4):
        counts[part] = 0
        for j in range(_AXES_WEIGHED):
            unions[part * _AXES_WEIGHED + j] = np.uint64(0)
    for place in range(at.BLOCK_SLOTS):
        value = features[place]
        part = np.int64(value >= 0) + np.int64(value >= cut - 1) + np.int64(value >= cut)
        counts[part] += 1
        for j in range(_AXES_WEIGHED):
            unions[np.uint64(part * _AXES_WEIGHED + j)] |= get(masks, place * _AXES_WEIGHED + j)


@kernel
def _work(number, counts, unions, boundary):
    """Expected work if the parts below `boundary` go left; infinite if that is too lopsided."""
    lefts = np.int64(0)
    for part in range(boundary):
        lefts += counts[part]
    if lefts < at.BLOCK_SLOTS // 8 or lefts > at.BLOCK_SLOTS - at.BLOCK_SLOTS // 8:
        return np.inf
    chance_left = 1.0
    chance_right = 1.0
    for j in range(number):
        left = np.uint64(0)
        right = np.uint64(0)
        for part in range(4):
            if part < boundary:
                left |= unions[part * _AXES_WEIGHED + j]
            else:
                right |= unions[part * _AXES_WEIGHED + j]
        chance_left *= min(bit_count(left), at.CELLS) / at.CELLS
        chance_right *= min(bit_count(right), at.CELLS) / at.CELLS
    return lefts * chance_left + (at.BLOCK_SLOTS - lefts) * chance_right


@kernel
def _middle_cut(features, counts):
    """The cut that leaves about half of the members on either side."""
    for value in range(len(counts)):
        counts[value] = 0
    for place in range(at.BLOCK_SLOTS):
        counts[features[place] + 1] += 1
    below = counts[0]
    cut = np.int64(0)
    while below < at.BLOCK_SLOTS // 2:
        below += counts[cut + 1]
        cut += 1
    return cut


@kernel
def _choose(context, number, features):
    """(axis, feature, cut) that leave the least expected work; axis -1 if none does."""
    masks = bitmaps_at(context, at.MASKS)
    histogram = np.empty(2 * at.CELLS + 8, np.int64)
    counts = np.empty(4, np.int64)
    unions = np.empty(4 * _AXES_WEIGHED, np.uint64)
    best = np.inf
    best_axis = np.int64(-1)
    best_feature = np.int64(0)
    best_cut = np.int64(0)
    for j in range(number):
        for feature in (at.BY_MIDDLE, at.BY_WIDTH):
            for place in range(at.BLOCK_SLOTS):
                features[place] = feature_of(masks[place * _AXES_WEIGHED + j], feature)
            cut = _middle_cut(features, histogram)
            _part(masks, features, cut, counts, unions)
            for boundary in (3, 2, 1):
                candidate = np.int64(0) if boundary == 1 else cut - (3 - boundary)
                if candidate > 0 or (candidate == 0 and feature == at.BY_MIDDLE):
                    work = _work(number, counts, unions, boundary)
                    if work < best:
                        best = work
                        best_axis = np.int64(j)
                        best_feature = np.int64(feature)
                        best_cut = candidate
    return best_axis, best_feature, best_cut


@kernel
def split_leaf(context, cluster, block, parent, side):
    """Split a full block into two and hang both into the tree."""
    nodes = integers_at(context, at.NODES)
    clusters = words_at(context, at.CLUSTERS)
    masks = bitmaps_at(context, at.MASKS)
    axes = np.empty(_AXES_WEIGHED, np.int64)
    features = np.empty(at.BLOCK_SLOTS, np.int64)
    number = _gather_masks(context, block, axes)
    chosen, feature, cut = _choose(context, number, features)
    other = make_block(context, cluster)
    c = cluster * at.CLUSTER_WORDS
    words_at(context, at.ZONES)[other * at.ZONE_WORDS + at.Z_NEXT] |= clusters[c + at.C_BLOCKS] + 1
    clusters[c + at.C_BLOCKS] = other
    node = take_node(context)
    nodes[node * at.NODE_WORDS] = -1 if chosen < 0 else axes[chosen] | (feature << 16)
    nodes[node * at.NODE_WORDS + 1] = cut
    nodes[node * at.NODE_WORDS + 2] = -2 - block
    nodes[node * at.NODE_WORDS + 3] = -2 - other
    if parent < 0:
        clusters[c + at.C_ROOT] = node
    else:
        nodes[parent * at.NODE_WORDS + side] = node
    if chosen >= 0:
        for place in range(at.BLOCK_SLOTS):
            features[place] = feature_of(masks[place * _AXES_WEIGHED + chosen], feature)
        _deal(context, block, other, features, cut)


@kernel
def _deal(context, block, other, features, cut):
    """Redistribute the members of a full block: below the cut here, the rest in `other`."""
    blocks = words_at(context, at.BLOCKS)
    for place in range(at.BLOCK_SLOTS):
        copy_slot(context, slot_at(blocks, block * at.BLOCK_WORDS, place), 1 + place)
    clear_block(context, block)
    for place in range(at.BLOCK_SLOTS):
        target = block if features[place] < cut else other
        seat_member(context, target, 1 + place)
    draw_block(context, block)
    draw_block(context, other)
