"""Reading a conjunction from MessagePack: a plain one becomes words without Python's help.

msgspec writes the constraints of a conjunction in half a microsecond; spelling them in Python takes
six times that. The message is an array of [name, value set], a value set a map of its fields in the
order of `ValueSet`: numbers, texts, truths, nan, absent. Names and texts are looked up in the
*glossary*, a table from (owner, text) to a number; a name's owner is NAMES and its number that of
the attribute, a text's owner is its attribute and its number its code.

Only what is plain is read: up to LINE_RANGES constraints, each a single range of numbers whose
ends are floats, or a single text, of a name and a text that are known. Anything else is left to
`Schema.spell`, which gives the same words for what both can read.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.keys import (
    KEY_HIGHEST,
    KEY_LOWEST,
    key_of_bits,
    key_of_float,
)
from anabranch.matching.kernels.machine import (
    bytes_at,
    entry_point,
    get,
    integers_at,
    kernel,
    words_at,
)

# -- the desk: a vector like the context, for what goes in and out ---------------------------

MESSAGE = 0  #: u8: the message.
WORDS = 1  #: i64: the words it becomes.
STATE = 2  #: i64: what `cover` counts.
SLOTS = 3  #: i64, SLOT_WORDS per slot of the glossary.
LETTERS = 4  #: u8: the texts of the glossary, one after the other.
ADDRESSES = 5
MASK = 5  #: Slots of the glossary - 1; they are a power of two.
TOTAL = 6  #: How many words there are.
DESK_WORDS = 8

SLOT_WORDS = 4
S_HASH = 0  #: 0 in a slot that was never used.
S_OWNER = 1
S_TEXT = 2  #: First byte in LETTERS | length << 32.
S_NUMBER = 3  #: -1 when forgotten.

NAMES = -1  #: Owner of the names of attributes.

_FLOAT_EXACT = np.int64(1) << np.int64(53)
_ONE = 0x91
_EMPTY = 0x90
_FALSE = 0xC2
_FIVE_FIELDS = 0x85


@kernel
def _hash(letters, first, length, owner):
    mixed = np.uint64(owner) * np.uint64(0x9E3779B97F4A7C15)
    for i in range(first, first + length):
        mixed = (mixed ^ np.uint64(get(letters, i))) * np.uint64(0x100000001B3)
    mixed ^= mixed >> np.uint64(29)
    return np.int64(mixed | np.uint64(1))


@entry_point
def enter_word(desk, owner, first, length, number):
    """Enter a text of LETTERS into the glossary, which has room; returns its slot."""
    slots = words_at(desk, SLOTS)
    hashed = _hash(bytes_at(desk, LETTERS), first, length, owner)
    spot = (hashed >> 1) & desk[MASK]
    while slots[spot * SLOT_WORDS + S_HASH] != 0:
        spot = (spot + 1) & desk[MASK]
    slots[spot * SLOT_WORDS + S_HASH] = hashed
    slots[spot * SLOT_WORDS + S_OWNER] = owner
    slots[spot * SLOT_WORDS + S_TEXT] = first | (length << 32)
    slots[spot * SLOT_WORDS + S_NUMBER] = number
    return spot


@kernel
def _look_up(desk, message, first, length, owner):
    """The number of a text in the message, or -1."""
    slots = words_at(desk, SLOTS)
    letters = bytes_at(desk, LETTERS)
    mask = desk[MASK]
    hashed = _hash(message, first, length, owner)
    spot = (hashed >> 1) & mask
    while get(slots, spot * SLOT_WORDS + S_HASH) != 0:
        s = spot * SLOT_WORDS
        text = get(slots, s + S_TEXT)
        if (
            get(slots, s + S_HASH) == hashed
            and get(slots, s + S_OWNER) == owner
            and text >> 32 == length
            and get(slots, s + S_NUMBER) >= 0
        ):
            same = True
            for i in range(length):
                same &= get(letters, (text & 0xFFFFFFFF) + i) == get(message, first + i)
            if same:
                return get(slots, s + S_NUMBER)
        spot = (spot + 1) & mask
    return np.int64(-1)


@kernel
def _big_endian(message, position, size):
    value = np.int64(0)
    for i in range(position, position + size):
        value = (value << 8) | np.int64(get(message, i))
    return value


@kernel
def _text_at(message, position):
    """(first byte, length) of the text at a position; length -1 if there is none or a long one."""
    mark = np.int64(get(message, position))
    if mark & 0xE0 == 0xA0:
        return position + 1, mark & 0x1F
    if mark == 0xD9:
        return position + 2, np.int64(get(message, position + 1))
    if mark == 0xDA:
        return position + 3, _big_endian(message, position + 1, 2)
    return position, np.int64(-1)


@kernel
def _number_at(message, position):
    """(is it a float for certain, its key, the position behind it) of a number."""
    mark = np.int64(get(message, position))
    position += 1
    if mark == 0xCB:
        return True, key_of_bits(_big_endian(message, position, 8)), position + 8
    value = mark
    size = np.int64(0)
    if mark >= 0xE0:
        value = mark - 256
    elif mark >= 0xD0:
        size = np.int64(1) << (mark - 0xD0)
        value = _big_endian(message, position, size)
        unused = 64 - 8 * size
        value = (value << unused) >> unused
    elif mark >= 0xCC:
        size = np.int64(1) << (mark - 0xCC)
        value = _big_endian(message, position, size)
        if value < 0:
            value = _FLOAT_EXACT + 1
    exact = -_FLOAT_EXACT <= value <= _FLOAT_EXACT
    return exact, key_of_float(np.float64(value)), position + size


@kernel
def _behind_key(message, position):
    """The position behind the name of a field, which is short."""
    return position + 1 + (np.int64(get(message, position)) & 0x1F)


@kernel
def _read_numbers(context, message, position, attribute, words, total):
    """Read one range of numbers; the position behind it and behind no texts, or -1."""
    known, low, position = _number_at(message, position)
    also_known, high, position = _number_at(message, position)
    axis = np.int64(get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.NUMBER))
    every = low <= KEY_LOWEST and high >= KEY_HIGHEST
    position = _behind_key(message, position)
    if every or axis < 0 or not known or not also_known or get(message, position) != _EMPTY:
        return np.int64(-1)
    words[total] = axis | (at.RANGES << 16) | (1 << 24)
    words[total + 1] = low
    words[total + 2] = high
    return position + 1


@kernel
def _read_text(context, desk, message, position, attribute, words, total):
    """Read one range of texts if it is a single text; the position behind it, or -1."""
    first, length = _text_at(message, position)
    if length < 0:
        return np.int64(-1)
    behind, behind_length = _text_at(message, first + length)
    # The range ends before the next text, which is this one and a zero.
    if behind_length != length + 1 or get(message, behind + length) != 0:
        return np.int64(-1)
    for i in range(length):
        if get(message, first + i) != get(message, behind + i):
            return np.int64(-1)
    axis = np.int64(get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.CODE))
    code = _look_up(desk, message, first, length, attribute)
    if axis < 0 or code < 0:
        return np.int64(-1)
    words[total] = axis | (at.CODES << 16) | (1 << 24)
    words[total + 1] = code
    return behind + behind_length


@kernel
def _behind_no_more(message, position):
    """The position behind no truths, no NaN and no absence; -1 if there are any."""
    position = _behind_key(message, position)
    plain = get(message, position) == 0
    position = _behind_key(message, position + 1)
    plain &= get(message, position) == _FALSE
    position = _behind_key(message, position + 1)
    plain &= get(message, position) == _FALSE
    return position + 1 if plain else np.int64(-1)


@kernel
def read_message(context, desk):
    """Write the words of the message; returns how many there are, or -1 if it is not plain."""
    message = bytes_at(desk, MESSAGE)
    words = words_at(desk, WORDS)
    count = np.int64(get(message, 0)) - _EMPTY
    if count < 0 or count > at.LINE_RANGES:
        return np.int64(-1)
    words[0] = count
    total = np.int64(1)
    position = np.int64(1)
    for _ in range(count):
        first, length = _text_at(message, position + 1)
        if length < 0 or get(message, first + length) != _FIVE_FIELDS:
            return np.int64(-1)
        attribute = _look_up(desk, message, first, length, np.int64(NAMES))
        position = _behind_key(message, first + length + 1)
        if attribute < 0:
            return np.int64(-1)
        if get(message, position) == _ONE:
            position = _read_numbers(context, message, position + 2, attribute, words, total)
            total += 3
        elif get(message, position) == _EMPTY:
            position = _behind_key(message, position + 1)
            if get(message, position) != _ONE:
                return np.int64(-1)
            position = _read_text(context, desk, message, position + 2, attribute, words, total)
            total += 2
        else:
            return np.int64(-1)
        if position < 0:
            return position
        position = _behind_no_more(message, position)
        if position < 0:
            return position
    return total
