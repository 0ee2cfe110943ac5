"""Writing down what an entry demands: its line, its ties, and a record for what does not fit.

`write_slot` writes to slot 0; seating the entry copies it from there.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.keys import (
    words_of_predicate,
)
from anabranch.matching.kernels.machine import (
    integers_at,
    kernel,
    words_at,
)
from anabranch.matching.kernels.storage import (
    take_record,
)


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
