"""Looking at a conjunction: reading it, asking who covers it and keeping it, in one call.

A call into a kernel costs as much as a small search. So what the covering table does with most
conjunctions, to read one, find that it is covered and count what it refers to, is one call.
"""

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.cover import (
    find_coverers,
)
from anabranch.matching.kernels.keys import (
    keys_from_floats,
)
from anabranch.matching.kernels.machine import (
    entry_point,
    get,
    integers_at,
    words_at,
)
from anabranch.matching.kernels.read_conjunction import (
    STATE,
    TOTAL,
    WORDS,
    read_message,
)
from anabranch.matching.kernels.update import (
    refer,
)

# -- purposes ---------------------------------------------------------------------------------

READ = 0  #: Nothing but the words.
ASK = 1  #: And an entry that covers it.
KEEP = 2  #: And count its references up.

# -- answers; any other is an entry that covers it ---------------------------------------------

NOBODY = -1  #: No entry covers it, or none was asked for.
DOUBTFUL = -2  #: No entry covers it for certain, but some may.
UNREAD = -3  #: The message is not plain: nothing was done.


@entry_point
def look(context, desk, is_message, purpose):
    """Look at the conjunction in the desk's message, or in its words if they are there already."""
    words = words_at(desk, WORDS)
    total = read_message(context, desk) if is_message else keys_from_floats(words)
    if total < 0:
        return np.int64(UNREAD)
    desk[TOTAL] = total
    if purpose == READ:
        return np.int64(NOBODY)
    state = words_at(desk, STATE)
    state[0] = 1
    state[1] = 0
    state[2] = 0
    find_coverers(context, words, state)
    if purpose == KEEP:
        refer(context, words, 1)
    if state[1] > 0:
        return np.int64(get(integers_at(context, at.OUTPUT), 0))
    return np.int64(NOBODY if state[2] == 0 else DOUBTFUL)
