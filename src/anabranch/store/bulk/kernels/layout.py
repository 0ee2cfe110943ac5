"""What goes in and out of the kernels: a vector of numbers, and a table of events.

One vector carries what a walk is told and where it stopped, because every argument of a compiled
function costs. The table has ROW_WORDS numbers for each event that was found.
"""

from typing import Final

# -- the vector ----------------------------------------------------------------------------------

POSITION: Final = 0  #: In and out: where in the chunk the next entry begins.
TICK: Final = 1  #: In and out: the tick of the next record.
FIRST: Final = 2  #: The first tick that is wanted, and the last.
LAST: Final = 3
SALT: Final = 4
NOW_NS: Final = 5
IS_SIEVED: Final = 6  #: Whether attributes are put one after the other.
NEEDED: Final = 7  #: Out: bytes of the entry at POSITION, if it is longer than the chunk; or 0.
ROOM: Final = 8  #: Of `pack`: bytes that the rows may have, and that they have.
USED: Final = 9
STATE_WORDS: Final = 10

# -- why `walk` stops ----------------------------------------------------------------------------

MORE: Final = 0  #: The next entry is not in the chunk, or not as a whole.
DONE: Final = 1  #: The last tick was reached.
CROWDED: Final = 2  #: The table is full.
BAD: Final = 3  #: The entry at POSITION is not what was written.

# -- a row of the table --------------------------------------------------------------------------

T_TICK: Final = 0
T_TIME: Final = 1
T_START: Final = 2  #: Where the event stands in the chunk; of an unread row, the record.
T_STOP: Final = 3
T_ATTRIBUTES: Final = 4  #: Where its attributes end among all attributes.
T_IS_UNREAD: Final = 5  #: 1 if Python has to judge.
ROW_WORDS: Final = 6

#: What stands before an event in a row: tick 8, time 8, length 4.
ROW_HEAD_BYTES: Final = 20
