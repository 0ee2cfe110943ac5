"""Tables of texts: attributes by their names, texts that filters compare, and patterns.

Names and texts are short, so what counts is the number of steps: hashing and comparing both go
eight bytes at a time, the last step reaching back over bytes already seen, and never read beyond
the text.

A pattern says that a text begins with, ends with, or contains a literal. However many entries
use it, it has one code and is looked for once per event. All beginnings of the text are hashed
in one pass, which gives the hash of any part of it by one multiplication; a part is
looked up together with the attribute, the kind of pattern and the length. Per attribute only
the (kind, length) pairs that occur are looked up: one part each for beginnings and endings,
one per position for what may stand anywhere. Equal hashes are confirmed byte by byte, so
nothing depends on luck but speed.

The text that a filter compares for equality is in the same table, as a pattern of the kind EQUALS;
`code_of_text` looks it up by a hash of its own.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.machine import (
    bytes_at,
    entry_point,
    get,
    half_of_bytes,
    inlined,
    integers_at,
    kernel,
    word_of_bytes,
    words_at,
)

# -- texts, attributes by name ---------------------------------------------------------------------


_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@inlined
def _short_word(data, first, length):
    """All of a stretch of up to seven bytes, in one word."""
    if length >= 4:
        return half_of_bytes(data, first) | (half_of_bytes(data, first + length - 4) << 32)
    if length == 0:
        return np.int64(0)
    middle = np.int64(get(data, first + (length >> 1))) << 8
    return np.int64(get(data, first)) | middle | (np.int64(get(data, first + length - 1)) << 16)


@inlined
def _mixed(state, word):
    state = (state ^ np.uint64(word)) * _FACTOR
    return state ^ (state >> np.uint64(32))


@inlined
def hash_of(data, first, length):
    state = np.uint64(length)
    if length < 8:
        return np.int64(_mixed(state, _short_word(data, first, length)))
    last = first + length - 8
    while first < last:
        state = _mixed(state, word_of_bytes(data, first))
        first += 8
    return np.int64(_mixed(state, word_of_bytes(data, last)))


@inlined
def same_bytes(data, first, others, other_first, length):
    """Are two stretches of one length the same?"""
    if length < 8:
        return _short_word(data, first, length) == _short_word(others, other_first, length)
    last = length - 8
    i = np.int64(0)
    while i < last:
        if word_of_bytes(data, first + i) != word_of_bytes(others, other_first + i):
            return False
        i += 8
    return word_of_bytes(data, first + last) == word_of_bytes(others, other_first + last)


@entry_point
def put_name(context, attribute):
    """Enter the name of an attribute, which is among the letters; the table has room."""
    names = words_at(context, at.NAMES)
    table = integers_at(context, at.NAME_HASH)
    n = attribute * at.NAME_WORDS
    text = names[n + at.N_TEXT]
    names[n + at.N_HASH] = hash_of(
        bytes_at(context, at.NAME_LETTERS), text & 0xFFFFFFFF, text >> 32
    )
    spot = names[n + at.N_HASH] & context[at.NAME_HASH_MASK]
    while table[spot] != 0:
        spot = (spot + 1) & context[at.NAME_HASH_MASK]
    table[spot] = attribute + 1


@inlined
def attribute_of(context, message, first, length, hashed):
    """The attribute that has this name, whose hash is given; or -1."""
    names = words_at(context, at.NAMES)
    letters = bytes_at(context, at.NAME_LETTERS)
    table = integers_at(context, at.NAME_HASH)
    mask = context[at.NAME_HASH_MASK]
    spot = hashed & mask
    while get(table, spot) != 0:
        attribute = np.int64(get(table, spot)) - 1
        text = get(names, attribute * at.NAME_WORDS + at.N_TEXT)
        if (
            get(names, attribute * at.NAME_WORDS + at.N_HASH) == hashed
            and text >> 32 == length
            and same_bytes(letters, text & 0xFFFFFFFF, message, first, length)
        ):
            return attribute
        spot = (spot + 1) & mask
    return np.int64(-1)


# -- patterns and compared texts -------------------------------------------------------------------


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
