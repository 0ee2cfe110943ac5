"""Stretches of bytes: their hash, and whether two are the same; and attributes by their names.

Names and texts are short, so what counts is the number of steps: both go eight bytes at a time,
the last step reaching back over bytes already seen, and never read beyond the stretch.
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
    word_of_bytes,
    words_at,
)

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
    """The hash of a stretch of bytes."""
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
