"""Reading a conjunction, asking who covers it and keeping it, in one call.

A call into a kernel costs as much as a small search, so `look` does all that the covering table
does with most conjunctions.

msgspec writes the constraints of a conjunction in half a microsecond; spelling them in Python takes
six times that. The message is an array of [name, value set], a value set a map of its fields in the
order of `ValueSet`: numbers, texts, truths, nan, absent. Names and texts are looked up in the
*text table*, a table from (owner, text) to a number; a name's owner is NAMES and its number that of
the attribute, a text's owner is its attribute and its number its code.

Only what is plain is read: up to LINE_RANGES constraints, each a single range of numbers whose
ends are floats, or a single text, of a name and a text that are known. Anything else is left to
`Schema.spell`, which gives the same words for what both can read.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.cover import find_coverers
from anabranch.matching.kernels.keys import (
    KEY_HIGHEST,
    KEY_LOWEST,
    key_of_bits,
    key_of_float,
    keys_from_floats,
)
from anabranch.matching.kernels.machine import (
    bytes_at,
    entry_point,
    get,
    inlined,
    integers_at,
    kernel,
    words_at,
)
from anabranch.matching.kernels.message_pack import FLOAT, after_scalar, text_at, value_at
from anabranch.matching.kernels.text_tables import hash_of, same_bytes
from anabranch.matching.kernels.update import refer

# -- the buffer: a vector like the context, for what goes in and out ---------------------------

MESSAGE = 0  #: u8: the message.
WORDS = 1  #: i64: the words it becomes.
STATE = 2  #: i64: what `cover` counts.
SLOTS = 3  #: i64, SLOT_WORDS per slot of the text table.
LETTERS = 4  #: u8: the texts of the text table, one after the other.
MASK = 5  #: Slots of the text table - 1; they are a power of two.
TOTAL = 6  #: How many words there are.
BUFFER_WORDS = 8

SLOT_WORDS = 4
S_HASH = 0  #: 0 in a slot that was never used.
S_OWNER = 1
S_TEXT = 2  #: First byte in LETTERS | length << 32.
S_NUMBER = 3  #: -1 when forgotten.

NAMES = -1  #: Owner of the names of attributes.

_FLOAT_EXACT = np.int64(1) << np.int64(53)
#: Any odd number that mixes well.
_OWNER_FACTOR = np.int64(-0x61C8864680B583EB)
_NONE = np.int64(-1)
_ONE = 0x91
_EMPTY = 0x90
_FALSE = 0xC2
_FIVE_FIELDS = 0x85


@inlined
def _hash(letters, first, length, owner):
    # A hash is never 0, which marks a slot that was never used.
    return (hash_of(letters, first, length) ^ (owner * _OWNER_FACTOR)) | 1


@entry_point
def enter_word(buffer, owner, first, length, number):
    """Enter a text of LETTERS into the text table, which has room; returns its slot."""
    slots = words_at(buffer, SLOTS)
    hashed = _hash(bytes_at(buffer, LETTERS), first, length, owner)
    spot = (hashed >> 1) & buffer[MASK]
    while slots[spot * SLOT_WORDS + S_HASH] != 0:
        spot = (spot + 1) & buffer[MASK]
    slots[spot * SLOT_WORDS + S_HASH] = hashed
    slots[spot * SLOT_WORDS + S_OWNER] = owner
    slots[spot * SLOT_WORDS + S_TEXT] = first | (length << 32)
    slots[spot * SLOT_WORDS + S_NUMBER] = number
    return spot


@kernel
def _look_up(buffer, message, first, length, owner):
    """The number of a text in the message, or -1."""
    slots = words_at(buffer, SLOTS)
    letters = bytes_at(buffer, LETTERS)
    mask = buffer[MASK]
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
            if same_bytes(letters, text & 0xFFFFFFFF, message, first, length):
                return get(slots, s + S_NUMBER)
        spot = (spot + 1) & mask
    return np.int64(-1)


@kernel
def _number_at(message, position, stop):
    """(position after it, is it a float for certain, its key) of a number."""
    position, kind, bits = value_at(message, position, stop)
    if kind == FLOAT:
        return position, True, key_of_bits(bits)
    exact = position >= 0 and -_FLOAT_EXACT <= bits <= _FLOAT_EXACT
    return position, exact, key_of_float(np.float64(bits))


@kernel
def _read_numbers(context, message, position, stop, attribute, words, total):
    """Read one range of numbers; the position after it and after no texts, or -1."""
    position, known, low = _number_at(message, position, stop)
    position, also_known, high = _number_at(message, position, stop)
    axis = np.int64(get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.NUMBER))
    every = low <= KEY_LOWEST and high >= KEY_HIGHEST
    position = after_scalar(message, position, stop)
    if position < 0 or every or axis < 0 or not known or not also_known:
        return _NONE
    words[total] = axis | (at.RANGES << 16) | (1 << 24)
    words[total + 1] = low
    words[total + 2] = high
    return position + 1 if get(message, position) == _EMPTY else _NONE


@kernel
def _read_text(context, buffer, message, position, stop, attribute, words, total):
    """Read one range of texts if it is a single text; the position after it, or -1."""
    first, length = text_at(message, position, stop)
    end, end_length = text_at(message, first + length, stop)
    # The range ends before the next text, which is this one and a zero.
    if length < 0 or end_length != length + 1 or get(message, end + length) != 0:
        return _NONE
    if not same_bytes(message, first, message, end, length):
        return _NONE
    axis = np.int64(get(integers_at(context, at.ATTRIBUTE_AXES), attribute * at.SPACES + at.CODE))
    code = _look_up(buffer, message, first, length, attribute)
    if axis < 0 or code < 0:
        return _NONE
    words[total] = axis | (at.CODES << 16) | (1 << 24)
    words[total + 1] = code
    return end + end_length


@kernel
def _after_no_more(message, position, stop):
    """The position after no truths, no NaN and no absence; -1 if there are any."""
    position = after_scalar(message, position, stop)
    plain = get(message, position) == 0
    position = after_scalar(message, position + 1, stop)
    plain &= get(message, position) == _FALSE
    position = after_scalar(message, position + 1, stop)
    plain &= get(message, position) == _FALSE
    return position + 1 if plain else _NONE


@kernel
def read_message(context, buffer, stop):
    """Write the words of the message, which ends at `stop`; returns how many there are, or -1 if it
    is not plain."""
    message = bytes_at(buffer, MESSAGE)
    words = words_at(buffer, WORDS)
    count = np.int64(get(message, 0)) - _EMPTY
    if count < 0 or count > at.LINE_RANGES:
        return _NONE
    words[0] = count
    total = np.int64(1)
    position = np.int64(1)
    for _ in range(count):
        first, length = text_at(message, position + 1, stop)
        if length < 0 or get(message, first + length) != _FIVE_FIELDS:
            return _NONE
        attribute = _look_up(buffer, message, first, length, np.int64(NAMES))
        position = after_scalar(message, first + length + 1, stop)
        if attribute < 0:
            return _NONE
        if get(message, position) == _ONE:
            position = _read_numbers(context, message, position + 2, stop, attribute, words, total)
            total += 3
        elif get(message, position) == _EMPTY:
            position = after_scalar(message, position + 1, stop)
            if get(message, position) != _ONE:
                return _NONE
            position = _read_text(
                context, buffer, message, position + 2, stop, attribute, words, total
            )
            total += 2
        else:
            return _NONE
        if position >= 0:
            position = _after_no_more(message, position, stop)
        if position < 0:
            return position
    return total


# -- looking at a conjunction ----------------------------------------------------------------------


# -- purposes ---------------------------------------------------------------------------------

READ = 0  #: Nothing but the words.
ASK = 1  #: And an entry that covers it.
KEEP = 2  #: And count its references up.

# -- answers; any other is an entry that covers it ---------------------------------------------

NOBODY = -1  #: No entry covers it, or none was asked for.
DOUBTFUL = -2  #: No entry covers it for certain, but some may.
UNREAD = -3  #: The message is not plain: nothing was done.


@entry_point
def look(context, buffer, size, purpose):
    """Look at the conjunction in the message of `size` bytes; if 0, its words are there."""
    words = words_at(buffer, WORDS)
    total = read_message(context, buffer, size) if size > 0 else keys_from_floats(words)
    if total < 0:
        return np.int64(UNREAD)
    buffer[TOTAL] = total
    if purpose == READ:
        return np.int64(NOBODY)
    state = words_at(buffer, STATE)
    state[0] = 1
    state[1] = 0
    state[2] = 0
    find_coverers(context, words, state)
    if purpose == KEEP:
        refer(context, words, 1)
    if state[1] > 0:
        return np.int64(get(integers_at(context, at.OUTPUT), 0))
    return np.int64(NOBODY if state[2] == 0 else DOUBTFUL)
