"""Between a node and its store: calls one way, news the other, across threads.

The store works in threads of its own. What it has to tell is put into a queue, and the node's loop
is woken once for everything that is in there (`StoreBridge`). Rules:

1. News are handed on in the order in which they came; of several syncs the last one says it all.
2. After `close` nothing is handed on.

State: news on their way. Safe to lose.
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from anabranch.core import contract
from anabranch.core.options import Options
from anabranch.model.limits import Limits


class StoreBridge:
    """Takes what the store's threads tell to the node's loop. See the rules at the top."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handle: Callable[[contract.Stimulus], None],
        fail: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._handle = handle
        self._fail = fail
        self._news: deque[contract.Stimulus | Exception] = deque()
        self._is_woken = False
        self._is_closed = False

    # -- for the store's threads ----------------------------------------------------------------

    def synced(self, number: int) -> None:
        """Everything up to this sync is on disk."""
        self._tell(contract.Synced(number))

    def log_read(self, read: contract.LogRead) -> None:
        """Records that were asked for."""
        self._tell(read)

    def log_full(self, full: bool) -> None:
        """There is no room; or there is again."""
        self._tell(contract.LogFull(full))

    def failed(self, error: Exception) -> None:
        """Nothing more is written in this life."""
        self._tell(error)

    def _tell(self, news: contract.Stimulus | Exception) -> None:
        self._news.append(news)
        if not self._is_woken:
            self._is_woken = True
            # The loop may be closed already; then nobody wants to know.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._hand_on)

    # -- for the loop ---------------------------------------------------------------------------

    def _hand_on(self) -> None:
        # Before the queue is looked at: what comes later wakes the loop again.
        self._is_woken = False
        news = self._news
        while news and not self._is_closed:
            each = news.popleft()
            if isinstance(each, Exception):
                self._fail(str(each))
            elif not (
                isinstance(each, contract.Synced) and news and isinstance(news[0], contract.Synced)
            ):
                self._handle(each)

    def close(self) -> None:
        """Hand on nothing more."""
        self._is_closed = True


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
    """Room on the disk for what is staged.

    Staged events go into the catalog (`core.origin.staged_events`), and the store cannot refuse
    what it was handed: what does not fit waits, and everything that was handed over after it, until
    there is room. The log keeps a reserve for that; a catalog that grows by gigabytes has none. So
    a chunk is taken only while the disk has room for all that may be on its way there, and then
    some. Rules:

    1. There is room as long as twice of what may wait for the disk is left: sqlite writes
       everything to its journal first. Below that chunks are refused as `busy`; events are
       published and batches are committed as long as the log has room. What these leave behind in
       the file of the catalog, which does not shrink, counts as left: so staging goes on when
       something was committed or discarded.
    2. The disk is looked at every `_LOOK_S` at most, and only when somebody stages.

    State: the last look; safe to lose.
    """

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
