"""Room on the disk for what is staged.

Staged events go into the catalog (`core.origin.staged_events`), and the store cannot refuse what it
was handed: what does not fit waits, and everything that was handed over after it, until there is
room. The log keeps a reserve for that; a catalog that grows by gigabytes has none. So a chunk is
taken only while the disk has room for all that may be on its way there, and then some. Rules:

1. There is room as long as twice of what may wait for the disk is left: sqlite writes everything to
   its journal first. Below that chunks are refused as `busy`; events are published and batches are
   committed as long as the log has room. What these leave behind in the file of the catalog, which
   does not shrink, counts as left: so staging goes on when something was committed or discarded.
2. The disk is looked at every `_LOOK_S` at most, and only when somebody stages.

State: the last look; safe to lose."""

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from anabranch.core.options import Options
from anabranch.model.limits import Limits

_LOOK_S = 0.05


def free_bytes(path: Path) -> int:
    """What the file system of this path has left for us."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def disk_bytes(path: Path) -> int:
    """The size of the file system of this path; 0 if that cannot be known."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize


#: Tells what is left.
Look = Callable[[], int]


class DiskSpace:
    """What the disk of one node has left. See the rules at the top of this module."""

    def __init__(self, look: Look, options: Options, limits: Limits) -> None:
        self._look = look
        self._wanted_bytes = 2 * (options.unsynced_bytes_max + limits.frame_bytes_max)
        self._look_at = 0.0
        self._left_bytes = 0

    def why_not(self) -> str:
        """Why nothing can be staged now; "" if it can."""
        now = monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            self._left_bytes = self._look()
        if self._left_bytes >= self._wanted_bytes:
            return ""
        left = f"the disk has {self._left_bytes} bytes left"
        return f"{left}, {self._wanted_bytes} are wanted for staging; stage again later"
