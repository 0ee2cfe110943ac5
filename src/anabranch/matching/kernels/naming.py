"""From owners to the integers that stand for them.

numpy would first turn the 32-bit owners into an array of 64-bit ones.
"""

from anabranch.matching.kernels.machine import entry_point, get


@entry_point
def name_owners(names, owners, named):
    """Write the name of each owner to `named`."""
    for i in range(owners.shape[0]):
        named[i] = get(names, owners[i])
