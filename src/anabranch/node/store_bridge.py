"""The bridge between the event loop and the store's threads, and the check for disk space.

The store has its own threads. `StoreBridge` puts their completions into a queue and wakes the
node's loop once for everything in it. Rules:

1. Completions are delivered in order; of consecutive syncs only the last one is delivered.
2. Nothing is delivered after `close`.

State: completions in transit. Safe to lose.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from time import monotonic

from anabranch.core import contract
from anabranch.core.options import Options
from anabranch.model.limits import Limits
from anabranch.store.copies import Refusal


class StoreBridge:
    """Carries completions from the store's threads to the node's loop. See the rules above."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handle: Callable[[contract.Stimulus | Refusal], None],
        fail: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._handle = handle
        self._fail = fail
        self._completions: deque[contract.Stimulus | Refusal | Exception] = deque()
        self._is_woken = False
        self._is_closed = False

    # -- for the store's threads ----------------------------------------------------------------

    def synced(self, number: int) -> None:
        self._post(contract.Synced(number))

    def log_read(self, read: contract.LogRead) -> None:
        self._post(read)

    def rows_read(self, read: contract.RowsRead) -> None:
        self._post(read)

    def log_full(self, full: bool) -> None:
        self._post(contract.LogFull(full))

    def copy_full(self, refusal: Refusal) -> None:
        self._post(refusal)

    def failed(self, error: Exception) -> None:
        self._post(error)

    def _post(self, completion: contract.Stimulus | Refusal | Exception) -> None:
        self._completions.append(completion)
        if not self._is_woken:
            self._is_woken = True
            # After shutdown the loop may be closed.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    # -- for the loop ---------------------------------------------------------------------------

    def _deliver(self) -> None:
        # Reset before the queue is read, so that later completions wake the loop again.
        self._is_woken = False
        completions = self._completions
        while completions and not self._is_closed:
            first = completions.popleft()
            if isinstance(first, Exception):
                self._fail(str(first))
                continue
            is_superseded = bool(completions) and isinstance(completions[0], contract.Synced)
            if not (isinstance(first, contract.Synced) and is_superseded):
                self._handle(first)

    def close(self) -> None:
        """Deliver nothing more."""
        self._is_closed = True


_CHECK_S = 0.05


#: Returns the free bytes.
Look = Callable[[], int]


class DiskSpace:
    """Checks disk space before events are staged.

    Staged events go into the catalog (`core.origin.staged_events`), and the store cannot refuse a
    write: if it does not fit, that write and all later ones wait until there is space. The log
    keeps a reserve for that; a catalog that grows by gigabytes has none. So a chunk is accepted
    only while the disk has space for everything that may be in transit, with a margin. Rules:

    1. There is space as long as twice the bytes that may wait for the disk are free, because sqlite
       writes everything to its journal first. Below that, chunks are refused as `busy`; publishing
       and committing batches continue as long as the log has space. Unused pages in the catalog
       file, which does not shrink, count as free: so staging resumes after a commit or discard.
    2. The disk is checked every `_CHECK_S` at most, and only when a client stages.

    State: the last check; safe to lose.
    """

    def __init__(self, look: Look, options: Options, limits: Limits) -> None:
        self._look = look
        self._wanted_bytes = 2 * (options.unsynced_bytes_max + limits.frame_bytes_max)
        self._check_at = 0.0
        self._left_bytes = 0

    def why_not(self) -> str:
        """Why nothing can be staged now; "" if it can."""
        now = monotonic()
        if now >= self._check_at:
            self._check_at = now + _CHECK_S
            self._left_bytes = self._look()
        if self._left_bytes >= self._wanted_bytes:
            return ""
        free = f"the disk has {self._left_bytes} bytes left"
        return f"{free}, staging needs {self._wanted_bytes}; try again later"
