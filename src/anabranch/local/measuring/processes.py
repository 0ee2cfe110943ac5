"""What another process has used: CPU time and memory, as the operating system counts them.

CPU time is that of all threads of a process, user and system together, in nanoseconds: the clock
that POSIX gives every process. It does not advance while the process waits, so a busy machine costs
cache misses and nothing else. This module keeps no state.
"""

import ctypes
import os
import time
from pathlib import Path

from anabranch.model.errors import LocalError

_libc = ctypes.CDLL(None)


def cpu_s(pid: int) -> float:
    """CPU time of a process since it began."""
    clock = ctypes.c_int()
    if _libc.clock_getcpuclockid(pid, ctypes.byref(clock)) != 0:
        raise LocalError(f"there is no process {pid} to measure; it has ended")
    return time.clock_gettime_ns(clock.value) / 1e9


def resident_bytes(pid: int) -> int:
    """Memory that a process occupies."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
