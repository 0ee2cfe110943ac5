"""The garbage collector of a broker process, without long pauses.

A full collection looks at every object there is. With ten thousand subscriptions it takes a third
of a second, and nothing else runs meanwhile. Nearly all garbage of a broker is freed without it, by
counting references. Rules:

1. After each full collection what is left is frozen: no later one looks at it. So a collection
   looks only at what came since the last one, `YOUNG_MAX` times `GENERATIONS` objects, which takes
   a few hundredths of a second.
2. Objects that refer to each other, were frozen, and are dropped later stay in memory. After every
   `FREEZES_MAX` collections everything is looked at once, so what they take is bounded. That one
   pause is long. It comes after tens of millions of new objects, and counts as a step too long.

State: a count. Belongs to the process; an embedded broker leaves the collector alone.
"""

import ctypes
import gc
from functools import cache

#: Objects, more than were freed, after which the youngest are looked at; and how many such looks
#: there are before those that survived are looked at, and then all that are not frozen.
YOUNG_MAX = 10_000
GENERATIONS = (5, 2)
FREEZES_MAX = 400


class Collector:
    """Rules the garbage collector of this process. See the rules at the top of this module."""

    def __init__(self) -> None:
        self._freezes = 0

    def start(self) -> None:
        """Collect all garbage now, and freeze the rest."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_MAX, *GENERATIONS)
        self._freezes = 0
        if self._look not in gc.callbacks:
            gc.callbacks.append(self._look)

    def stop(self) -> None:
        """Leave the collector alone from now on."""
        if self._look in gc.callbacks:
            gc.callbacks.remove(self._look)

    def _look(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop" or info["generation"] < len(GENERATIONS):
            return
        self._freezes += 1
        if self._freezes > FREEZES_MAX:
            self._freezes = 0
            gc.unfreeze()
        else:
            gc.freeze()


# The C allocator of a broker process: large blocks go back to the system when they are freed.
#
# The allocator of glibc learns from what a program frees: after the first large frame it takes
# blocks of up to 32 MiB from its heap instead of from the system. What is allocated later comes to
# lie in the holes between them, the next large frame finds no hole that fits, and the heap grows
# although little of it is in use. Rules:
#
# 1. Blocks of `LARGE_BYTES` and more always come from the system, and go back at once. That costs
#    some microseconds for each, which is little beside the copying of so many bytes.
# 2. Smaller ones go back when somebody says so (`give_back`). At its end the heap keeps
#    `SPARE_BYTES` until then, because shrinking and growing with every frame takes time.
#
# State: settings of the process; an embedded broker leaves them alone. Where the C library is not
# glibc, nothing happens.


LARGE_BYTES = 4 * 1024 * 1024
SPARE_BYTES = 16 * 1024 * 1024
#: Numbers of settings, as in malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def return_large_blocks() -> bool:
    """From now on large blocks go back when they are freed; whether that can be."""
    library = _glibc()
    if library is None:
        return False
    settings = {_M_MMAP_THRESHOLD: LARGE_BYTES, _M_TRIM_THRESHOLD: SPARE_BYTES}
    return all(library.mallopt(number, value) == 1 for number, value in settings.items())


def give_back() -> None:
    """Return what is free, between blocks that are in use too."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
    except OSError:
        return None
    is_glibc = hasattr(library, "mallopt") and hasattr(library, "malloc_trim")
    return library if is_glibc else None
