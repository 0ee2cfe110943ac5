"""How much memory this process occupies, as the operating system counts it."""

import gc
import os
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """Resident bytes after a garbage collection; None where the system does not say."""
    gc.collect()
    if not _STATM.exists():
        return None
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
