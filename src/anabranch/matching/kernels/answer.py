"""From messages to matches, in one call: reading, searching and naming.

A call into a kernel costs as much as a small search, and every array it is handed adds to that. So
what one event takes is one call whose only array is the context.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.machine import (
    borrowed,
    bytes_at,
    entry_point,
    get,
    inlined,
    integers_at,
    kernel,
    words_at,
)
from anabranch.matching.kernels.place_event import lift_event, next_stamp
from anabranch.matching.kernels.read_body import ENTRIES_MAX, NAME_BYTES_MAX, attributes_in
from anabranch.matching.kernels.read_event import read_event
from anabranch.matching.kernels.search import find

# From owners to the integers that stand for them.
#
# numpy would first turn the 32-bit owners into an array of 64-bit ones.


@entry_point
def name_owners(names, owners, named):
    """Write the name of each owner to `named`."""
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
def _has_room(context, n, d):
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
    if not _has_room(context, 0, 0):
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
        if not _has_room(context, n, d):
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
        if not _has_room(context, n, 0):
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
