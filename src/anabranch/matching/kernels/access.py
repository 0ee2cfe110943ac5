"""Access: under which cluster an entry is found.

The access of a conjunction is the rarest point among its predicates, else the axis on which it
admits the fewest cells, else none: then it stands in cluster 0, which every event looks into.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.keys import (
    predicate_axis,
    predicate_cells,
    predicate_count,
    words_of_predicate,
)
from anabranch.matching.kernels.machine import (
    bit_count,
    kernel,
    words_at,
)
from anabranch.matching.kernels.storage import (
    find_cluster,
    make_cluster,
)


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
