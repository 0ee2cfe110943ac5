"""Memory inside the engine's arrays: free lists for all that comes and goes.

Every function takes from a free list first and from the untouched end of the array otherwise.
None of them checks capacity: `insert` makes sure beforehand that the worst case fits, so an
update either happens whole or not at all. What is freed is linked through its own memory.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.machine import (
    bitmaps_at,
    entry_point,
    integers_at,
    kernel,
    words_at,
)


@kernel
def take_entry(context):
    entry = context[at.ENTRY_FREE]
    if entry >= 0:
        context[at.ENTRY_FREE] = integers_at(context, at.ENTRY_NEXT)[entry]
        return entry
    context[at.ENTRY_COUNT] += 1
    return context[at.ENTRY_COUNT] - 1


@kernel
def free_entry(context, entry):
    integers_at(context, at.ENTRY_NEXT)[entry] = context[at.ENTRY_FREE]
    context[at.ENTRY_FREE] = entry


@kernel
def take_slots(context, size_class):
    """The first of 2**size_class free slots in a row, all marked empty."""
    slot_entry = integers_at(context, at.SLOT_ENTRY)
    first = context[at.SLOT_FREE + size_class]
    if first >= 0:
        context[at.SLOT_FREE + size_class] = integers_at(context, at.LINES)[first * at.LINE_WORDS]
    else:
        first = context[at.SLOT_COUNT]
        context[at.SLOT_COUNT] += np.int64(1) << np.int64(size_class)
    for slot in range(first, first + (np.int64(1) << np.int64(size_class))):
        slot_entry[slot] = -1
    return first


@kernel
def free_slots(context, first, size_class):
    integers_at(context, at.LINES)[first * at.LINE_WORDS] = context[at.SLOT_FREE + size_class]
    context[at.SLOT_FREE + size_class] = first


@kernel
def copy_slot(context, source, target):
    """Copy an entry's line and ties to another slot and let the entry know."""
    lines = integers_at(context, at.LINES)
    ties = integers_at(context, at.TIES)
    for word in range(at.LINE_WORDS):
        lines[target * at.LINE_WORDS + word] = lines[source * at.LINE_WORDS + word]
    for word in range(at.TIE_WORDS):
        ties[target * at.TIE_WORDS + word] = ties[source * at.TIE_WORDS + word]
    entry = np.int64(lines[target * at.LINE_WORDS + at.L_ENTRY])
    integers_at(context, at.SLOT_ENTRY)[target] = entry
    integers_at(context, at.ENTRY_SLOT)[entry & at.ENTRY_MASK] = target


@kernel
def record_class(words):
    """Size class of a record: exact up to 64 words, then powers of two."""
    if words <= 64:
        return words
    size_class = np.int64(65)
    size = np.int64(128)
    while size < words:
        size *= 2
        size_class += 1
    return size_class


@kernel
def _class_words(size_class):
    if size_class <= 64:
        return size_class
    return np.int64(128) << np.int64(size_class - 65)


@kernel
def take_record(context, words):
    """Position of a record with at least the given number of words."""
    size_class = record_class(words)
    context[at.RECORDS_LIVE] += _class_words(size_class)
    position = context[at.RECORD_FREE + size_class]
    if position >= 0:
        context[at.RECORD_FREE + size_class] = words_at(context, at.RECORDS)[position]
        return position
    position = context[at.RECORD_COUNT]
    context[at.RECORD_COUNT] += _class_words(size_class)
    return position


@kernel
def free_record(context, position, words):
    size_class = record_class(words)
    context[at.RECORDS_LIVE] -= _class_words(size_class)
    words_at(context, at.RECORDS)[position] = context[at.RECORD_FREE + size_class]
    context[at.RECORD_FREE + size_class] = position


@kernel
def take_page(context):
    """A page with every bit set: nobody is constrained on its axis yet."""
    pages = bitmaps_at(context, at.PAGES)
    page = context[at.PAGE_FREE]
    if page >= 0:
        context[at.PAGE_FREE] = np.int64(pages[page * at.PAGE_WORDS]) - 1
    else:
        page = context[at.PAGE_COUNT]
        context[at.PAGE_COUNT] += 1
    fill_page(context, page)
    return page


@kernel
def fill_page(context, page):
    pages = bitmaps_at(context, at.PAGES)
    for word in range(page * at.PAGE_WORDS, (page + 1) * at.PAGE_WORDS):
        pages[word] = ~np.uint64(0)


@kernel
def free_page(context, page):
    bitmaps_at(context, at.PAGES)[page * at.PAGE_WORDS] = np.uint64(context[at.PAGE_FREE] + 1)
    context[at.PAGE_FREE] = page


@kernel
def take_table(context, size_class):
    """The first of 4 * 2**size_class table rows."""
    tables = words_at(context, at.ROW_PAGES)
    first = context[at.TABLE_FREE + size_class]
    if first >= 0:
        context[at.TABLE_FREE + size_class] = tables[first]
        return first
    first = context[at.TABLE_COUNT]
    context[at.TABLE_COUNT] += np.int64(4) << np.int64(size_class)
    return first


@kernel
def free_table(context, first, size_class):
    words_at(context, at.ROW_PAGES)[first] = context[at.TABLE_FREE + size_class]
    context[at.TABLE_FREE + size_class] = first


@kernel
def take_block(context):
    block = context[at.BLOCK_FREE]
    if block >= 0:
        context[at.BLOCK_FREE] = words_at(context, at.BLOCKS)[block * at.BLOCK_WORDS + at.B_COUNT]
        return block
    context[at.BLOCK_COUNT] += 1
    return context[at.BLOCK_COUNT] - 1


@kernel
def free_block(context, block):
    words_at(context, at.BLOCKS)[block * at.BLOCK_WORDS + at.B_COUNT] = context[at.BLOCK_FREE]
    context[at.BLOCK_FREE] = block


@kernel
def take_node(context):
    node = context[at.NODE_FREE]
    if node >= 0:
        context[at.NODE_FREE] = integers_at(context, at.NODES)[node * at.NODE_WORDS]
        return node
    context[at.NODE_COUNT] += 1
    return context[at.NODE_COUNT] - 1


@kernel
def free_node(context, node):
    integers_at(context, at.NODES)[node * at.NODE_WORDS] = context[at.NODE_FREE]
    context[at.NODE_FREE] = node


@kernel
def _hash(axis, key, rest):
    """Mixes an access predicate into a well-spread number (after Stafford's variant 13)."""
    mixed = np.uint64(key) + np.uint64(axis) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= np.uint64(rest) << np.uint64(17)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(1))


@kernel
def find_cluster(context, axis, key, rest):
    """The cluster whose access predicate is this point, or -1."""
    table = integers_at(context, at.HASH)
    clusters = words_at(context, at.CLUSTERS)
    mask = context[at.HASH_MASK]
    spot = _hash(axis, key, rest) & mask
    while table[spot] != 0:
        cluster = np.int64(table[spot]) - 1
        c = cluster * at.CLUSTER_WORDS
        if clusters[c + at.C_KEY] == key and clusters[c + at.C_AXIS] == axis:
            if clusters[c + at.C_REST] == rest:
                return cluster
        spot = (spot + 1) & mask
    return np.int64(-1)


@kernel
def _hash_put(context, cluster):
    table = integers_at(context, at.HASH)
    clusters = words_at(context, at.CLUSTERS)
    c = cluster * at.CLUSTER_WORDS
    mask = context[at.HASH_MASK]
    spot = _hash(clusters[c + at.C_AXIS], clusters[c + at.C_KEY], clusters[c + at.C_REST]) & mask
    while table[spot] != 0:
        spot = (spot + 1) & mask
    table[spot] = cluster + 1


@entry_point
def hash_fill(context):
    """Enter every point cluster into a hash table that has just been made larger."""
    clusters = words_at(context, at.CLUSTERS)
    for cluster in range(context[at.CLUSTER_COUNT]):
        c = cluster * at.CLUSTER_WORDS
        if clusters[c + at.C_COUNT] >= 0 and clusters[c + at.C_AXIS] >= 0:
            if clusters[c + at.C_REST] != at.AXIS_ACCESS:
                _hash_put(context, cluster)


@kernel
def _hash_remove(context, cluster):
    """Take a cluster out and close the gap, so that no tombstones pile up."""
    table = integers_at(context, at.HASH)
    clusters = words_at(context, at.CLUSTERS)
    mask = context[at.HASH_MASK]
    c = cluster * at.CLUSTER_WORDS
    spot = _hash(clusters[c + at.C_AXIS], clusters[c + at.C_KEY], clusters[c + at.C_REST]) & mask
    while table[spot] != cluster + 1:
        spot = (spot + 1) & mask
    hole = spot
    spot = (spot + 1) & mask
    while table[spot] != 0:
        m = (np.int64(table[spot]) - 1) * at.CLUSTER_WORDS
        home = (
            _hash(clusters[m + at.C_AXIS], clusters[m + at.C_KEY], clusters[m + at.C_REST]) & mask
        )
        if ((spot - home) & mask) >= ((spot - hole) & mask):
            table[hole] = table[spot]
            hole = spot
        spot = (spot + 1) & mask
    table[hole] = 0


@entry_point
def make_cluster(context, axis, key, rest):
    """A new empty cluster, found from now on by its access."""
    clusters = words_at(context, at.CLUSTERS)
    axes = words_at(context, at.AXES)
    cluster = context[at.CLUSTER_FREE]
    if cluster >= 0:
        context[at.CLUSTER_FREE] = clusters[cluster * at.CLUSTER_WORDS + at.C_RUN]
    else:
        cluster = context[at.CLUSTER_COUNT]
        context[at.CLUSTER_COUNT] += 1
    c = cluster * at.CLUSTER_WORDS
    clusters[c + at.C_COUNT] = 0
    clusters[c + at.C_RUN] = -1
    clusters[c + at.C_SIZE] = 0
    clusters[c + at.C_BLOCKS] = -1
    clusters[c + at.C_ROOT] = -1
    clusters[c + at.C_AXIS] = axis
    clusters[c + at.C_KEY] = key
    clusters[c + at.C_REST] = rest
    if axis >= 0:
        if rest == at.AXIS_ACCESS:
            axes[axis * at.AXIS_WORDS + at.A_CLUSTER] = cluster
        else:
            axes[axis * at.AXIS_WORDS + at.A_KEYS] += 1
            context[at.HASH_USED] += 1
            _hash_put(context, cluster)
            following = axes[axis * at.AXIS_WORDS + at.A_KEYED]
            clusters[c + at.C_NEXT] = following
            clusters[c + at.C_BACK] = -1
            if following >= 0:
                clusters[following * at.CLUSTER_WORDS + at.C_BACK] = cluster
            axes[axis * at.AXIS_WORDS + at.A_KEYED] = cluster
    return cluster


@kernel
def free_cluster(context, cluster):
    """Give an empty cluster back; it is found no more."""
    clusters = words_at(context, at.CLUSTERS)
    axes = words_at(context, at.AXES)
    c = cluster * at.CLUSTER_WORDS
    axis = clusters[c + at.C_AXIS]
    if axis >= 0:
        if clusters[c + at.C_REST] == at.AXIS_ACCESS:
            axes[axis * at.AXIS_WORDS + at.A_CLUSTER] = -1
        else:
            _hash_remove(context, cluster)
            axes[axis * at.AXIS_WORDS + at.A_KEYS] -= 1
            context[at.HASH_USED] -= 1
            before = clusters[c + at.C_BACK]
            following = clusters[c + at.C_NEXT]
            if before >= 0:
                clusters[before * at.CLUSTER_WORDS + at.C_NEXT] = following
            else:
                axes[axis * at.AXIS_WORDS + at.A_KEYED] = following
            if following >= 0:
                clusters[following * at.CLUSTER_WORDS + at.C_BACK] = before
    clusters[c + at.C_COUNT] = -1
    clusters[c + at.C_RUN] = context[at.CLUSTER_FREE]
    context[at.CLUSTER_FREE] = cluster
