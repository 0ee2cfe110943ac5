"""The interface of the kernels: a vector of numbers and a table of events.

One vector carries the input and the end of a walk, because every argument of a compiled function
costs. The table has ROW_WORDS numbers for each event found.
"""

from typing import Final

# -- the vector ----------------------------------------------------------------------------------

POSITION: Final = 0  #: In and out: where in the chunk the next entry begins.
TICK: Final = 1  #: In and out: the tick of the next record.
FIRST: Final = 2  #: The first tick that is wanted, and the last.
LAST: Final = 3
SALT: Final = 4
NOW_NS: Final = 5
IS_SIEVED: Final = 6  #: Whether attributes are concatenated.
NEEDED: Final = 7  #: Out: bytes of the entry at POSITION, if it is longer than the chunk; or 0.
ROOM: Final = 8  #: For `pack`: the maximum and current bytes of the rows.
USED: Final = 9
STATE_WORDS: Final = 10

# -- why `walk` stops ----------------------------------------------------------------------------

MORE: Final = 0  #: The next entry is not completely in the chunk.
DONE: Final = 1  #: The last tick was reached.
CROWDED: Final = 2  #: The table is full.
BAD: Final = 3  #: The entry at POSITION is invalid.

# -- a row of the table --------------------------------------------------------------------------

T_TICK: Final = 0
T_TIME: Final = 1
T_START: Final = 2  #: The position of the event in the chunk; of an unread row, the record.
T_STOP: Final = 3
T_ATTRIBUTES: Final = 4  #: The end of its attributes among all attributes.
T_IS_UNREAD: Final = 5  #: 1 if Python must evaluate it.
ROW_WORDS: Final = 6

#: The header of an event in a row: tick 8, time 8, length 4.
ROW_HEAD_BYTES: Final = 20
