"""Index search for events in columns, without encoding them first.

A search of the index normally reads MessagePack. For events in columns, writing that would cost
more than reading it, so this module places values on the axes of the index directly from Arrow
arrays. Index and search are the same (`matching.kernels.search`).

The *plan* gives the location of the columns: PLAN_WORDS words per column, with the addresses of its
arrays. The creator of a plan keeps those arrays alive while a kernel runs. Rules:

1. A null is absent. Of two columns of one attribute, the first that has a value counts.
2. Texts are UTF-8, as in Arrow; this is not checked here.
3. A doubtful entry is left out if its subscription also matches by another entry.
4. A kernel that runs out of space reports it, and is called again from the row it has reached.

Encoded events are a single column of the kind ENCODED. Brokers validated them when they were
published; regardless of their content, no byte outside of them is read. An event that is not plain
is ODD and left to Python.

There is only one entry point, because each one is compiled with a copy of the whole search.
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
from anabranch.matching.kernels.place_event import (
    lift_event,
    next_stamp,
    place_float,
    place_integer,
    place_kind,
    place_text,
)
from anabranch.matching.kernels.read_body import attributes_in
from anabranch.matching.kernels.read_event import read_event
from anabranch.matching.kernels.search import find

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


@inlined
def _has_room(context, n, d):
    """Whether OUTPUT and DOUBTS have enough space for another event."""
    return (
        n + context[at.LIVE_ENTRIES] <= context[at.OUTPUT_CAPACITY]
        and d + context[at.DOUBT_ENTRIES] <= context[at.DOUBT_CAPACITY]
    )


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
        if not _has_room(context, n, d):
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
