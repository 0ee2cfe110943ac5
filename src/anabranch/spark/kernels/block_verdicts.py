"""Verification of one block of ticks: compares expected matches with deliveries.

A *key* is a subscription and the index of a tick in its block: subscription << BITS | place. The
matches and the deliveries of a block are both keys in ascending order, deliveries of one key in
order of arrival; one merge pass over both finds missing and excess deliveries.

Findings are recorded in parallel arrays: `marks` for deliveries, `missing` for matches. The
definitions are those of `check.checker`.
"""

import numpy as np

from anabranch.matching.kernels.machine import inlined, kernel
from anabranch.spark.kernels.machine import entry_point

#: Ticks per block, as a power of two.
BITS = 13
BLOCK_TICKS = 1 << BITS

# Marks: problems of a delivery by itself …
FINE, NOTHING_THERE, OTHER_EVENT, NO_MATCH, AFTER_END, OUT_OF_BOUNDS, BEFORE_START = range(7)
REASON_BITS = 15
# … and in relation to others.
DUPLICATE = 16
REORDERED = 32

# Flags of an event.
OPTIONAL = 1  #: Its delivery is not required.
UNKNOWN = 2  #: Its content is not known.

# Columns of the bounds on a stream, one row per subscription.
START, DUE, END, START_ORDER, END_ORDER, BEST_EFFORT = 0, 1, 2, 3, 4, 5
BOUNDS = 6
NEVER = np.iinfo(np.int64).max

# Columns of `groups`, one row per subscription in the block.
SUBSCRIPTION, DELIVERED, EXPECTED, LOWEST, HIGHEST = 0, 1, 2, 3, 4
GROUP = 5

_PLACE = np.int64(BLOCK_TICKS - 1)


@inlined
def _is_due(bounds, subscription, tick):
    """Whether a match in this tick has to be delivered."""
    return bounds[subscription, START] <= tick <= bounds[subscription, DUE]


@kernel
def _reason(bounds, subscription, tick, name, event, events, is_match, is_late, is_early, first):
    """The problem of a delivery by itself."""
    if tick < first:
        return FINE
    if event < 0:
        return NOTHING_THERE
    if events[event, 0] != name:
        return OTHER_EVENT
    if events[event, 1] & UNKNOWN != 0:
        return FINE
    if not is_match:
        return NO_MATCH
    if is_late:
        return AFTER_END
    if bounds[subscription, BEST_EFFORT] != 0:
        return FINE
    if tick < bounds[subscription, START] or tick > bounds[subscription, END]:
        return OUT_OF_BOUNDS
    return BEFORE_START if is_early else FINE


@kernel
def _mark_tick(keys, orders, names, i, base, bounds, event_at, events, is_match, first, marks):
    """Mark the deliveries of one tick to one subscription. Returns where the next ones begin."""
    subscription = keys[i] >> BITS
    place = keys[i] & _PLACE
    stop = i
    is_late = False
    is_early = False
    while stop < keys.shape[0] and keys[stop] == keys[i]:
        is_late |= orders[stop] > bounds[subscription, END_ORDER]
        is_early |= orders[stop] < bounds[subscription, START_ORDER]
        stop += 1
    event = np.int64(event_at[place])
    for j in range(i, stop):
        marks[j] = _reason(
            bounds, subscription, base + place, names[j], event, events, is_match, is_late,
            is_early, first,
        )  # fmt: skip
        if j > i:
            marks[j] |= DUPLICATE
    return stop


@kernel
def _mark_order(keys, orders, start, stop, marks, before):
    """Mark deliveries that came after a later tick of their subscription. Returns the lowest and
    the highest order.

    `before` receives the place of the later tick that was delivered first."""
    lowest = np.int64(NEVER)
    highest = np.int64(-NEVER)
    lowest_place = np.int64(-1)
    j = stop
    while j > start:
        i = j - 1
        while i > start and keys[i - 1] == keys[i]:
            i -= 1
        if orders[i] > lowest:
            marks[i] |= REORDERED
            before[i] = lowest_place
        highest = max(highest, orders[j - 1])
        if orders[i] < lowest:
            lowest = orders[i]
            lowest_place = keys[i] & _PLACE
        j = i
    return lowest, highest


@kernel
def _count_match(bounds, subscription, place, base, event_at, events, first, is_there):
    """(whether a match counts as expected, whether it is missing)."""
    tick = base + place
    event = event_at[place]
    if tick < first or event < 0 or not _is_due(bounds, subscription, tick):
        return 0, 0
    is_optional = events[event, 1] & OPTIONAL != 0
    if is_there:
        return 1, 0
    if is_optional:
        return 0, 0
    return 1, 0 if bounds[subscription, BEST_EFFORT] != 0 else 1


@entry_point
def judge(
    keys, orders, names, pairs, base, first, bounds, event_at, events, marks, before, missing,
    groups,
):  # fmt: skip
    """Judge a block that starts at tick `base`. Returns the number of subscriptions in it.

    `event_at`: place → row of `events`, or -1. `events`: name, flags. Ticks before `first` are
    checked only for order and duplicates."""
    i = np.int64(0)
    p = np.int64(0)
    group = 0
    while i < keys.shape[0] or p < pairs.shape[0]:
        subscription = np.int64(NEVER)
        if i < keys.shape[0]:
            subscription = keys[i] >> BITS
        if p < pairs.shape[0]:
            subscription = min(subscription, pairs[p] >> BITS)
        start = i
        expected = 0
        while i < keys.shape[0] and keys[i] >> BITS == subscription:
            while p < pairs.shape[0] and pairs[p] < keys[i]:
                counts, missing[p] = _count_match(
                    bounds, subscription, pairs[p] & _PLACE, base, event_at, events, first, False
                )
                expected += counts
                p += 1
            is_match = p < pairs.shape[0] and pairs[p] == keys[i]
            if is_match:
                counts, missing[p] = _count_match(
                    bounds, subscription, pairs[p] & _PLACE, base, event_at, events, first, True
                )
                expected += counts
                p += 1
            i = _mark_tick(
                keys, orders, names, i, base, bounds, event_at, events, is_match, first, marks
            )
        while p < pairs.shape[0] and pairs[p] >> BITS == subscription:
            counts, missing[p] = _count_match(
                bounds, subscription, pairs[p] & _PLACE, base, event_at, events, first, False
            )
            expected += counts
            p += 1
        lowest, highest = _mark_order(keys, orders, start, i, marks, before)
        if i > start or expected > 0:
            groups[group, SUBSCRIPTION] = subscription
            groups[group, DELIVERED] = i - start
            groups[group, EXPECTED] = expected
            groups[group, LOWEST] = lowest
            groups[group, HIGHEST] = highest
            group += 1
    return group


@entry_point
def pair(places, counts, wanted, members_first, members, pairs):
    """Fill `pairs` with the keys of all matches: for each event, the members of the filters that it
    matches, which are concatenated in `wanted`."""
    at = np.int64(0)
    out = np.int64(0)
    for event in range(places.shape[0]):
        place = np.int64(places[event])
        for _ in range(counts[event]):
            filter_number = wanted[at]
            at += 1
            for m in range(members_first[filter_number], members_first[filter_number + 1]):
                pairs[out] = (np.int64(members[m]) << BITS) | place
                out += 1
    return out


@entry_point
def count_pairs(wanted, members_first):
    """Number of keys that `pair` creates."""
    total = np.int64(0)
    for i in range(wanted.shape[0]):
        total += members_first[wanted[i] + 1] - members_first[wanted[i]]
    return total


@entry_point
def spread(offsets, rows, out_counts, wanted, out):
    """Copy the matches of the chosen rows from an array for all rows to one for these."""
    position = np.int64(0)
    for i in range(rows.shape[0]):
        row = rows[i]
        out_counts[i] = offsets[row + 1] - offsets[row]
        for j in range(offsets[row], offsets[row + 1]):
            out[position] = wanted[j]
            position += 1
    return position
