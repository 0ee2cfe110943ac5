"""The C allocator of a broker process: large blocks go back to the system when they are freed.

The allocator of glibc learns from what a program frees: after the first large frame it takes blocks
of up to 32 MiB from its heap instead of from the system. What is allocated later comes to lie in
the holes between them, the next large frame finds no hole that fits, and the heap grows although
little of it is in use. Rules:

1. Blocks of `LARGE_BYTES` and more always come from the system, and go back at once. That costs
   some microseconds for each, which is little beside the copying of so many bytes.
2. Smaller ones go back when somebody says so (`give_back`). At its end the heap keeps `SPARE_BYTES`
   until then, because shrinking and growing with every frame takes time.

State: settings of the process; an embedded broker leaves them alone. Where the C library is not
glibc, nothing happens.
"""

import ctypes
from functools import cache

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
