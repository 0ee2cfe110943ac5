"""Adding and removing entries.

`insert` takes a conjunction as words (see the record layout), picks its *access*, writes its line,
ties and record to slot 0, and seats it from there in the cluster of that access. The access is the
rarest point among its predicates, else the axis on which it admits the fewest cells, else none:
then it stands in cluster 0, which every event looks into. Either there is room for the worst case
and the insert happens, or nothing is touched and the number of the array that is too small comes
back.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.blocks import (
    block_put,
    block_remove,
    draw_block,
    drop_block,
    make_block,
    seat_member,
)
from anabranch.matching.kernels.keys import (
    keys_from_floats,
    predicate_axis,
    predicate_cells,
    predicate_count,
    words_of_predicate,
)
from anabranch.matching.kernels.machine import (
    bit_count,
    borrowed,
    entry_point,
    integers_at,
    kernel,
    words_at,
)
from anabranch.matching.kernels.split import draw_bounds, find_leaf, sample, split_leaf
from anabranch.matching.kernels.storage import (
    copy_slot,
    find_cluster,
    free_cluster,
    free_entry,
    free_node,
    free_record,
    free_slots,
    make_cluster,
    take_entry,
    take_record,
    take_slots,
)

# -- access of an entry ----------------------------------------------------------------------------


@kernel
def choose_access(context, words):
    """(position of the access predicate or -1, its key, its rest)."""
    clusters = words_at(context, at.CLUSTERS)
    best = np.int64(1) << np.int64(60)
    access = np.int64(-1)
    key = np.int64(0)
    rest = np.int64(0)
    position = np.int64(1)
    for _ in range(words[0]):
        head = words[position]
        test = (head >> 16) & 0xFF
        point = False
        if head >> 24 == 1:
            if test == at.RANGES:
                point = words[position + 1] == words[position + 2]
            elif test == at.FINE_RANGES:
                point = words[position + 1] == words[position + 3]
                point = point and words[position + 2] == words[position + 4]
            elif test == at.CODES or test == at.PATTERN_CODE:
                point = True
        if point:
            this_rest = words[position + 2] if test == at.FINE_RANGES else np.int64(0)
            this_key = words[position + 1]
            if test == at.CODES or test == at.PATTERN_CODE:
                this_key <<= 32
            cluster = find_cluster(context, head & 0xFFFF, this_key, this_rest)
            count = 0 if cluster < 0 else clusters[cluster * at.CLUSTER_WORDS + at.C_COUNT]
            if count < best:
                best = count
                access = position
                key = this_key
                rest = this_rest
        position += words_of_predicate(head)
    return access, key, rest


@kernel
def _narrowest(context, slot):
    """The axis on which an entry allows the fewest cells, absence not among them; or -1."""
    axes = words_at(context, at.AXES)
    best = np.int64(at.CELLS + 8)
    narrowest = np.int64(-1)
    for number in range(predicate_count(context, slot)):
        axis = predicate_axis(context, slot, number)
        possible, _ = predicate_cells(context, slot, number)
        width = bit_count(possible)
        if axes[axis * at.AXIS_WORDS + at.A_SPACE] == at.KIND:
            width = np.int64(at.CELLS)
            if (possible >> np.uint64(at.K_ABSENT)) & np.uint64(1):
                width = np.int64(at.CELLS + 8)
        if width < best:
            best = width
            narrowest = axis
    return narrowest


@kernel
def cluster_for(context, words, access, key, rest):
    """The cluster for the entry in slot 0, new if need be."""
    if access >= 0:
        axis = words[access] & 0xFFFF
        cluster = find_cluster(context, axis, key, rest)
    else:
        axis = _narrowest(context, 0)
        key = np.int64(0)
        rest = np.int64(at.AXIS_ACCESS)
        cluster = np.int64(0)
        if axis >= 0:
            cluster = words_at(context, at.AXES)[axis * at.AXIS_WORDS + at.A_CLUSTER]
    if cluster < 0:
        cluster = make_cluster(context, axis, key, rest)
    return cluster


# -- lines and records -----------------------------------------------------------------------------


@kernel
def write_slot(context, words, access, entry_word):
    """Write line, ties and record of a conjunction to slot 0, but for its access predicate."""
    lines = integers_at(context, at.LINES)
    records = words_at(context, at.RECORDS)
    lines[at.L_ENTRY] = entry_word
    lines[at.L_INFO] = 0
    lines[at.L_RECORD] = -1
    # A range that is not there admits everything, so that all five can be tested without asking.
    for j in range(at.LINE_RANGES):
        lines[at.L_AXES + (j >> 1)] = 0
        lines[at.L_ENDS + 2 * j] = np.int32(-0x80000000)
        lines[at.L_ENDS + 2 * j + 1] = np.int32(0x7FFFFFFF)
    rest_words = np.int64(1)
    rest_count = np.int64(0)
    position = np.int64(1)
    for _ in range(words[0]):
        head = words[position]
        if position != access and not _write_range(context, words, position):
            rest_words += words_of_predicate(head)
            rest_count += 1
            words[position] = head | (np.int64(1) << np.int64(61))
        position += words_of_predicate(head)
    if rest_count == 0:
        return
    record = take_record(context, rest_words)
    lines[at.L_RECORD] = record
    records[record] = rest_count | (rest_words << 16)
    spot = record + 1
    position = np.int64(1)
    for _ in range(words[0]):
        head = words[position] & ~(np.int64(1) << np.int64(61))
        if head != words[position]:
            words[position] = head
            for word in range(words_of_predicate(head)):
                records[spot] = words[position + word]
                spot += 1
        position += words_of_predicate(head)


@kernel
def _write_range(context, words, position):
    """Write a predicate to the line in slot 0 if it is a single range or code and there is room."""
    lines = integers_at(context, at.LINES)
    ties = integers_at(context, at.TIES)
    head = words[position]
    test = (head >> 16) & 0xFF
    count = np.int64(lines[at.L_INFO]) & 0xFF
    if (
        head >> 24 != 1
        or count == at.LINE_RANGES
        or (test != at.RANGES and test != at.CODES and test != at.PATTERN_CODE)
    ):
        return False
    low = words[position + 1]
    high = low
    if test == at.CODES or test == at.PATTERN_CODE:
        low <<= 32
        high = low | 0xFFFFFFFF
    else:
        high = words[position + 2]
    info = np.int64(lines[at.L_INFO]) + 1
    low_end = low >> 32
    high_end = high >> 32
    if low & 0xFFFFFFFF != 0:
        info |= np.int64(1) << (8 + count)
        low_end += 1
    if high & 0xFFFFFFFF != 0xFFFFFFFF:
        info |= np.int64(1) << (16 + count)
        high_end -= 1
    if low_end > 0x7FFFFFFF or high_end < -0x80000000:
        return False
    if test == at.PATTERN_CODE:
        info |= np.int64(1) << (24 + count)
    lines[at.L_INFO] = info
    pair = np.int64(lines[at.L_AXES + (count >> 1)])
    axis = head & 0xFFFF
    pair = (pair & 0xFFFF) | (axis << 16) if count & 1 else axis
    lines[at.L_AXES + (count >> 1)] = np.int32(pair)
    lines[at.L_ENDS + 2 * count] = np.int32(low_end)
    lines[at.L_ENDS + 2 * count + 1] = np.int32(high_end)
    ties[2 * count] = np.int32(low & 0xFFFFFFFF)
    ties[2 * count + 1] = np.int32(high & 0xFFFFFFFF)
    return True


# -- adding and removing ---------------------------------------------------------------------------


@kernel
def _lacking(context, words):
    """Number of an array that might not hold one more insert, or -1."""
    axes = context[at.AXIS_COUNT]
    if context[at.ENTRY_COUNT] + 1 > context[at.ENTRY_CAPACITY]:
        return at.ENTRY_SLOT
    if context[at.SLOT_COUNT] + 2 * at.BLOCK_SLOTS > context[at.SLOT_CAPACITY]:
        return at.SLOT_ENTRY
    if context[at.RECORD_COUNT] + 2 * words + 256 > context[at.RECORD_CAPACITY]:
        return at.RECORDS
    if context[at.PAGE_COUNT] + 4 * axes + 4 > context[at.PAGE_CAPACITY]:
        return at.PAGES
    if context[at.BLOCK_COUNT] + 2 > context[at.BLOCK_CAPACITY]:
        return at.BLOCKS
    if context[at.TABLE_COUNT] + 8 * axes + 64 > context[at.TABLE_CAPACITY]:
        return at.TABLES
    if context[at.CLUSTER_COUNT] + 1 > context[at.CLUSTER_CAPACITY]:
        return at.CLUSTERS
    if context[at.NODE_COUNT] + 1 > context[at.NODE_CAPACITY]:
        return at.NODES
    if 2 * (context[at.HASH_USED] + 1) > context[at.HASH_MASK]:
        return at.HASH
    return -1


@entry_point
def refer(context, words, step):
    """Count the predicates' references to axes and codes up or down."""
    keys_from_floats(words)
    axes = words_at(context, at.AXES)
    position = np.int64(1)
    for _ in range(words[0]):
        head = words[position]
        test = (head >> 16) & 0xFF
        axes[(head & 0xFFFF) * at.AXIS_WORDS + at.A_REFS] += step
        if test == at.CODES or test == at.NOT_CODES or test == at.PATTERN_CODE:
            for i in range(head >> 24):
                if step > 0:
                    integers_at(context, at.CODE_REFS)[words[position + 1 + i]] += 1
                else:
                    _drop_code(context, words[position + 1 + i])
        position += words_of_predicate(head)


@kernel
def _seat(context, cluster):
    """Put the entry in slot 0 into a cluster."""
    clusters = words_at(context, at.CLUSTERS)
    c = cluster * at.CLUSTER_WORDS
    if clusters[c + at.C_BLOCKS] < 0 and clusters[c + at.C_COUNT] >= at.RUN_MAX:
        _run_to_block(context, cluster)
    if clusters[c + at.C_BLOCKS] < 0:
        _seat_in_run(context, cluster)
    else:
        _seat_in_block(context, cluster)
    clusters[c + at.C_COUNT] += 1


@kernel
def _seat_in_block(context, cluster):
    blocks = words_at(context, at.BLOCKS)
    block, parent, side = find_leaf(context, cluster, 0)
    if blocks[block * at.BLOCK_WORDS + at.B_COUNT] & 0xFFFFFFFF == at.BLOCK_SLOTS:
        split_leaf(context, cluster, block, parent, side)
        block, parent, side = find_leaf(context, cluster, 0)
    block_put(context, block, 0)


@kernel
def _seat_in_run(context, cluster):
    clusters = words_at(context, at.CLUSTERS)
    c = cluster * at.CLUSTER_WORDS
    count = clusters[c + at.C_COUNT]
    if count == clusters[c + at.C_SIZE]:
        size_class = np.int64(0)
        while np.int64(1) << size_class <= count:
            size_class += 1
        larger = take_slots(context, size_class)
        smaller = clusters[c + at.C_RUN]
        for i in range(count):
            copy_slot(context, smaller + i, larger + i)
        if count > 0:
            free_slots(context, smaller, size_class - 1)
        clusters[c + at.C_RUN] = larger
        clusters[c + at.C_SIZE] = np.int64(1) << size_class
    slot = clusters[c + at.C_RUN] + count
    copy_slot(context, 0, slot)
    entry = np.int64(integers_at(context, at.SLOT_ENTRY)[slot]) & at.ENTRY_MASK
    integers_at(context, at.ENTRY_CLUSTER)[entry] = cluster


@kernel
def _run_to_block(context, cluster):
    """A run has outgrown itself: seat its entries in a first block."""
    clusters = words_at(context, at.CLUSTERS)
    c = cluster * at.CLUSTER_WORDS
    block = make_block(context, cluster)
    run = clusters[c + at.C_RUN]
    for i in range(clusters[c + at.C_COUNT]):
        seat_member(context, block, run + i)
    draw_block(context, block)
    size_class = np.int64(0)
    while np.int64(1) << size_class < clusters[c + at.C_SIZE]:
        size_class += 1
    free_slots(context, run, size_class)
    clusters[c + at.C_RUN] = -1
    clusters[c + at.C_SIZE] = 0
    clusters[c + at.C_BLOCKS] = block
    clusters[c + at.C_ROOT] = -2 - block


@entry_point
def insert(context, words, flags, owner, group):
    """Add the conjunction in `words`; the new entry, or -2 - (number of an array too small).

    `owner` is the first entry of the subscription, or -1 if this is it. `flags` is any of MANY and
    DOUBT. `group` is the number of the subscription's destination.
    """
    context = borrowed(context)
    words = borrowed(words)
    prepared = _prepare(context, words)
    if prepared < 0:
        return prepared
    access, key, rest = choose_access(context, words)
    entry = _make_entry(context, words, access, flags, owner, group)
    _seat(context, cluster_for(context, words, access, key, rest))
    due = sample(context, words)
    if due >= 0:
        draw_bounds(context, due)
    return entry


@kernel
def _prepare(context, words):
    """The words in all, their ends made keys; or -2 - (number of an array too small)."""
    total = keys_from_floats(words)
    lacking = _lacking(context, total)
    return total if lacking < 0 else -2 - lacking


@kernel
def _make_entry(context, words, access, flags, owner, group):
    """A new entry, written to slot 0 without its access predicate."""
    entry = take_entry(context)
    write_slot(context, words, -1 if context[at.COVERING] else access, entry | flags)
    entry_next = integers_at(context, at.ENTRY_NEXT)
    entry_next[entry] = -1
    if owner >= 0:
        entry_next[entry] = entry_next[owner]
        entry_next[owner] = entry
    integers_at(context, at.ENTRY_OWNER)[entry] = entry if owner < 0 else owner
    integers_at(context, at.STAMPS)[entry] = 0
    integers_at(context, at.GROUPS)[entry] = group
    context[at.LIVE_ENTRIES] += 1
    if flags & at.DOUBT:
        context[at.DOUBT_ENTRIES] += 1
    if not context[at.COVERING]:
        refer(context, words, 1)
    return entry


@entry_point
def remove(context, entry):
    """Remove one entry. Codes that no entry uses any longer are appended to FREED."""
    context = borrowed(context)
    clusters = words_at(context, at.CLUSTERS)
    slot_entry = integers_at(context, at.SLOT_ENTRY)
    cluster = np.int64(integers_at(context, at.ENTRY_CLUSTER)[entry])
    block = -2 - cluster
    if block >= 0:
        cluster = words_at(context, at.BLOCKS)[block * at.BLOCK_WORDS + at.B_COUNT] >> 32
    slot = np.int64(integers_at(context, at.ENTRY_SLOT)[entry])
    if slot_entry[slot] & at.DOUBT:
        context[at.DOUBT_ENTRIES] -= 1
    _release(context, cluster, slot)
    c = cluster * at.CLUSTER_WORDS
    record = np.int64(integers_at(context, at.LINES)[slot * at.LINE_WORDS + at.L_RECORD])
    if block < 0:
        last = clusters[c + at.C_RUN] + clusters[c + at.C_COUNT] - 1
        if last != slot:
            copy_slot(context, last, slot)
        slot_entry[last] = -1
    else:
        block_remove(context, block, slot)
    clusters[c + at.C_COUNT] -= 1
    if record >= 0:
        free_record(context, record, words_at(context, at.RECORDS)[record] >> 16)
    free_entry(context, entry)
    context[at.LIVE_ENTRIES] -= 1
    if clusters[c + at.C_COUNT] == 0:
        _empty_cluster(context, cluster)


@kernel
def _drop_code(context, code):
    """One reference to a code less; the last one goes to FREED."""
    code_refs = integers_at(context, at.CODE_REFS)
    code_refs[code] -= 1
    if code_refs[code] == 0:
        words_at(context, at.FREED)[context[at.FREED_COUNT]] = code
        context[at.FREED_COUNT] += 1


@kernel
def _release(context, cluster, slot):
    """Count down what a slot's entry and its access refer to."""
    if context[at.COVERING]:
        return
    clusters = words_at(context, at.CLUSTERS)
    records = words_at(context, at.RECORDS)
    lines = integers_at(context, at.LINES)
    axes = words_at(context, at.AXES)
    c = cluster * at.CLUSTER_WORDS
    axis = clusters[c + at.C_AXIS]
    if axis >= 0 and clusters[c + at.C_REST] != at.AXIS_ACCESS:
        axes[axis * at.AXIS_WORDS + at.A_REFS] -= 1
        space = axes[axis * at.AXIS_WORDS + at.A_SPACE]
        if space == at.CODE or space == at.PATTERN:
            _drop_code(context, clusters[c + at.C_KEY] >> 32)
    in_line = np.int64(lines[slot * at.LINE_WORDS + at.L_INFO]) & 0xFF
    for number in range(in_line):
        axis = predicate_axis(context, slot, number)
        axes[axis * at.AXIS_WORDS + at.A_REFS] -= 1
        space = axes[axis * at.AXIS_WORDS + at.A_SPACE]
        if space == at.CODE or space == at.PATTERN:
            _drop_code(context, np.int64(lines[slot * at.LINE_WORDS + at.L_ENDS + 2 * number]))
    record = np.int64(lines[slot * at.LINE_WORDS + at.L_RECORD])
    if record < 0:
        return
    position = record + 1
    for _ in range(records[record] & 0xFFFF):
        head = records[position]
        test = (head >> 16) & 0xFF
        axes[(head & 0xFFFF) * at.AXIS_WORDS + at.A_REFS] -= 1
        if test == at.CODES or test == at.NOT_CODES or test == at.PATTERN_CODE:
            for i in range(head >> 24):
                _drop_code(context, records[position + 1 + i])
        position += words_of_predicate(head)


@kernel
def _empty_cluster(context, cluster):
    """A cluster has lost its last entry: give back its run, blocks, tree and itself."""
    clusters = words_at(context, at.CLUSTERS)
    c = cluster * at.CLUSTER_WORDS
    if clusters[c + at.C_RUN] >= 0:
        size_class = np.int64(0)
        while np.int64(1) << size_class < clusters[c + at.C_SIZE]:
            size_class += 1
        free_slots(context, clusters[c + at.C_RUN], size_class)
    _free_tree(context, clusters[c + at.C_ROOT])
    block = clusters[c + at.C_BLOCKS]
    while block >= 0:
        following = (
            words_at(context, at.ZONES)[block * at.ZONE_WORDS + at.Z_NEXT] & 0xFFFFFFFF
        ) - 1
        drop_block(context, block)
        block = following
    clusters[c + at.C_RUN] = -1
    clusters[c + at.C_SIZE] = 0
    clusters[c + at.C_BLOCKS] = -1
    clusters[c + at.C_ROOT] = -1
    if cluster != 0:
        free_cluster(context, cluster)


@kernel
def _free_tree(context, root):
    """Give back the nodes below `root`, without recursion: nodes are strung on a list first."""
    nodes = integers_at(context, at.NODES)
    if root < 0:
        return
    pending = np.int64(root)
    nodes[pending * at.NODE_WORDS + 1] = -1
    while pending >= 0:
        node = pending
        pending = np.int64(nodes[node * at.NODE_WORDS + 1])
        for side in (2, 3):
            child = np.int64(nodes[node * at.NODE_WORDS + side])
            if child >= 0:
                nodes[child * at.NODE_WORDS + 1] = pending
                pending = child
        free_node(context, node)
