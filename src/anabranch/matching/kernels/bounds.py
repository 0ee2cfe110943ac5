"""Bounds: where the cells of an ordered axis begin.

Bounds are drawn from a sample of the keys that predicates name, again at every eightfold growth
of an axis; all pages of that axis are then redrawn. That costs a pass over its entries, so the
cost of an insert stays constant on average.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.blocks import (
    redraw_axis,
)
from anabranch.matching.kernels.keys import (
    KEY_HIGHEST,
    KEY_LOWEST,
    cell_of,
    words_of_predicate,
)
from anabranch.matching.kernels.machine import (
    integers_at,
    kernel,
    words_at,
)


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
