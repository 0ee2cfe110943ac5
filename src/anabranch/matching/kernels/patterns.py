"""Which patterns a text satisfies, without trying them one by one.

A pattern says that a text begins with, ends with, or contains a literal. However many entries
use it, it has one code and is looked for once per event. All beginnings of the text are hashed
in one pass, which gives the hash of any stretch of it by one multiplication; a stretch is
looked up together with the attribute, the kind of pattern and the length. Per attribute only
the (kind, length) pairs that occur are looked up: one stretch each for beginnings and endings,
one per position for what may stand anywhere. Equal hashes are confirmed byte by byte, so
nothing depends on luck but speed.

The text that a filter compares for equality is in the same table, as a pattern of the kind EQUALS;
`code_of_text` looks it up by a hash of its own.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.letters import hash_of, same_bytes
from anabranch.matching.kernels.machine import (
    bytes_at,
    entry_point,
    get,
    inlined,
    integers_at,
    kernel,
    words_at,
)

#: Base of the hash: any odd number that mixes well.
BASE = np.int64(-0x61C8864680B583EB)


@inlined
def _mix(content, class_word):
    """A well-spread number for a stretch's hash and its class."""
    mixed = np.uint64(content) ^ (np.uint64(class_word) * np.uint64(0x9E3779B97F4A7C15))
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.int64((mixed ^ (mixed >> np.uint64(32))) >> np.uint64(1))


@kernel
def _home(context, code):
    patterns = words_at(context, at.PATTERNS)
    p = code * at.PATTERN_WORDS
    return _mix(patterns[p + at.P_HASH], patterns[p + at.P_CLASS]) & context[at.PATTERN_HASH_MASK]


@entry_point
def put_pattern(context, code):
    """Hash the literal of a pattern and enter it into the table, which has room."""
    patterns = words_at(context, at.PATTERNS)
    literals = bytes_at(context, at.LITERALS)
    p = code * at.PATTERN_WORDS
    first = patterns[p + at.P_LITERAL] & 0xFFFFFFFF
    length = patterns[p + at.P_LITERAL] >> 32
    content = np.int64(0)
    if (patterns[p + at.P_CLASS] >> 16) & 0xFFFF == at.EQUALS:
        content = hash_of(literals, first, length)
    else:
        for i in range(first, first + length):
            content = content * BASE + np.int64(literals[i]) + 1
    patterns[p + at.P_HASH] = content
    table = integers_at(context, at.PATTERN_HASH)
    spot = _home(context, code)
    while table[spot] != 0:
        spot = (spot + 1) & context[at.PATTERN_HASH_MASK]
    table[spot] = code + 1


@entry_point
def drop_pattern(context, code):
    """Take a pattern out of the table and close the gap."""
    table = integers_at(context, at.PATTERN_HASH)
    mask = context[at.PATTERN_HASH_MASK]
    spot = _home(context, code)
    while table[spot] != code + 1:
        spot = (spot + 1) & mask
    hole = spot
    spot = (spot + 1) & mask
    while table[spot] != 0:
        home = _home(context, np.int64(table[spot]) - 1)
        if ((spot - home) & mask) >= ((spot - hole) & mask):
            table[hole] = table[spot]
            hole = spot
        spot = (spot + 1) & mask
    table[hole] = 0


@kernel
def _look_up(context, texts, first, class_word, content):
    """The code of the pattern that is the stretch of `texts` from `first`, or -1."""
    patterns = words_at(context, at.PATTERNS)
    literals = bytes_at(context, at.LITERALS)
    table = integers_at(context, at.PATTERN_HASH)
    mask = context[at.PATTERN_HASH_MASK]
    spot = _mix(content, class_word) & mask
    while table[spot] != 0:
        code = np.int64(table[spot]) - 1
        p = code * at.PATTERN_WORDS
        if patterns[p + at.P_HASH] == content and patterns[p + at.P_CLASS] == class_word:
            literal = patterns[p + at.P_LITERAL] & 0xFFFFFFFF
            same = True
            for i in range(class_word & 0xFFFF):
                if literals[literal + i] != texts[first + i]:
                    same = False
                    break
            if same:
                return code
        spot = (spot + 1) & mask
    return np.int64(-1)


@inlined
def code_of_text(context, attribute, texts, first, length):
    """The code of a text that some filter compares with this attribute, or -1."""
    patterns = words_at(context, at.PATTERNS)
    literals = bytes_at(context, at.LITERALS)
    table = integers_at(context, at.PATTERN_HASH)
    mask = context[at.PATTERN_HASH_MASK]
    content = hash_of(texts, first, length)
    class_word = (attribute << 32) | (at.EQUALS << 16) | min(length, np.int64(0xFFFF))
    spot = _mix(content, class_word) & mask
    while get(table, spot) != 0:
        code = np.int64(get(table, spot)) - 1
        p = code * at.PATTERN_WORDS
        literal = get(patterns, p + at.P_LITERAL)
        if (
            get(patterns, p + at.P_HASH) == content
            and get(patterns, p + at.P_CLASS) == class_word
            and literal >> 32 == length
            and same_bytes(literals, literal & 0xFFFFFFFF, texts, first, length)
        ):
            return code
        spot = (spot + 1) & mask
    return np.int64(-1)


@kernel
def _hit(context, code, count):
    """Note that the event satisfies a pattern, once; returns how many it satisfies."""
    hits = integers_at(context, at.HITS)
    if code < 0 or hits[code] == context[at.STAMP]:
        return count
    hits[code] = context[at.STAMP]
    integers_at(context, at.HIT_LIST)[count] = code
    return count + 1


@kernel
def find_patterns(context, attribute, texts, first, length, count):
    """Append the patterns that a text satisfies to HIT_LIST behind the first `count`."""
    classes = integers_at(context, at.CLASSES)
    span = integers_at(context, at.ATTRIBUTE_CLASSES)
    hashes = words_at(context, at.TEXT_HASHES)
    powers = words_at(context, at.POWERS)
    hashes[0] = 0
    for i in range(length):
        hashes[i + 1] = hashes[i] * BASE + np.int64(texts[first + i]) + 1
    start = np.int64(span[2 * attribute])
    for c in range(start, start + span[2 * attribute + 1]):
        size = np.int64(classes[c]) & 0xFFFF
        kind = np.int64(classes[c]) >> 16
        class_word = (np.int64(attribute) << 32) | np.int64(classes[c])
        if size > length:
            continue
        low = length - size if kind == at.ENDS else np.int64(0)
        high = np.int64(0) if kind == at.BEGINS else length - size
        for i in range(low, high + 1):
            content = hashes[i + size] - hashes[i] * powers[size]
            code = _look_up(context, texts, first + i, class_word, content)
            count = _hit(context, code, count)
    return count
