"""From owners to the integers that stand for them.

numpy would first turn the 32-bit owners into an array of 64-bit ones.
"""

from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels.machine import entry_point, get, inlined, integers_at, words_at


@entry_point
def name_owners(names, owners, named):
    """Write the name of each owner to `named`."""
    for i in range(owners.shape[0]):
        named[i] = get(names, owners[i])


@inlined
def name_output(context, count):
    """Write the ids of the first owners in OUTPUT to NAMED, if there are ids and room for them."""
    if context[at.IDS] == 0 or count > at.NAMED_MAX:
        return
    ids = words_at(context, at.IDS)
    output = integers_at(context, at.OUTPUT)
    named = words_at(context, at.NAMED)
    for i in range(count):
        named[i] = get(ids, get(output, i))
