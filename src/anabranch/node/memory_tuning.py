"""Memory tuning of a broker process: no long garbage collections, no retained large blocks.

*Garbage collector* (`Collector`). A full collection visits every object. With ten thousand
subscriptions it takes a third of a second, during which nothing else runs. Reference counting frees
nearly all garbage of a broker without it. Rules:

1. After each full collection the surviving objects are frozen: later collections skip them. So a
   collection visits only objects created since the last one, `YOUNG_MAX` times `GENERATIONS`, which
   takes a few hundredths of a second.
2. Frozen objects in a reference cycle that are dropped later stay in memory. After every
   `FREEZES_MAX` collections one collection visits everything, which bounds the leak. That pause is
   long. It occurs after tens of millions of new objects, and counts as a step that is too long.

*C allocator* (`return_large_blocks`, `give_back`). glibc's allocator adapts to a program: after the
first large frame is freed, it takes blocks of up to 32 MiB from its heap instead of from the
system. Later allocations land in the holes between them, the next large frame does not fit into any
hole, and the heap grows although little of it is in use. Rules:

3. Blocks of `LARGE_BYTES` and more always come from the system and return at once. That costs some
   microseconds per block, which is little compared to copying its bytes.
4. Smaller blocks return on request (`give_back`). Until then the heap keeps `SPARE_BYTES` at its
   end, because shrinking and growing with every frame takes time.

State: a count, and settings of the process; an embedded broker leaves both alone. Without glibc,
the allocator is not changed.
"""

import ctypes
import gc
from functools import cache

#: Net allocations that trigger a collection of the youngest generation, and the collections of each
#: generation that trigger one of the next; the last one visits all objects that are not frozen.
YOUNG_MAX = 10_000
GENERATIONS = (5, 2)
FREEZES_MAX = 400


class Collector:
    """Tunes the garbage collector of this process. See the rules at the top of this module."""

    def __init__(self) -> None:
        self._freezes = 0

    def start(self) -> None:
        """Collect all garbage now, and freeze the rest."""
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG_MAX, *GENERATIONS)
        self._freezes = 0
        if self._after_collection not in gc.callbacks:
            gc.callbacks.append(self._after_collection)

    def stop(self) -> None:
        """Stop tuning the collector."""
        if self._after_collection in gc.callbacks:
            gc.callbacks.remove(self._after_collection)

    def _after_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase != "stop" or info["generation"] < len(GENERATIONS):
            return
        self._freezes += 1
        if self._freezes > FREEZES_MAX:
            self._freezes = 0
            gc.unfreeze()
        else:
            gc.freeze()


LARGE_BYTES = 4 * 1024 * 1024
SPARE_BYTES = 16 * 1024 * 1024
#: Parameter numbers, as in malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def return_large_blocks() -> bool:
    """Return large blocks to the system when they are freed; False if not supported."""
    library = _glibc()
    if library is None:
        return False
    settings = {_M_MMAP_THRESHOLD: LARGE_BYTES, _M_TRIM_THRESHOLD: SPARE_BYTES}
    return all(library.mallopt(number, value) == 1 for number, value in settings.items())


def give_back() -> None:
    """Return free memory to the system, including memory between blocks in use."""
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
