"""Between a node and its store: calls one way, news the other, across threads.

The store works in threads of its own. What it has to tell is put into a queue, and the node's loop
is woken once for everything that is in there (`StoreBridge`). Rules:

1. News are handed on in the order in which they came; of several syncs the last one says it all.
2. After `close` nothing is handed on.

State: news on their way. Safe to lose.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from anabranch.core import contract as say


class StoreBridge:
    """Takes what the store's threads tell to the node's loop. See the rules at the top."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handle: Callable[[say.Stimulus], None],
        fail: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._handle = handle
        self._fail = fail
        self._news: deque[say.Stimulus | Exception] = deque()
        self._is_woken = False
        self._is_closed = False

    # -- for the store's threads ----------------------------------------------------------------

    def synced(self, number: int) -> None:
        """Everything up to this sync is on disk."""
        self._tell(say.Synced(number))

    def log_read(self, read: say.LogRead) -> None:
        """Records that were asked for."""
        self._tell(read)

    def log_full(self, full: bool) -> None:
        """There is no room; or there is again."""
        self._tell(say.LogFull(full))

    def failed(self, error: Exception) -> None:
        """Nothing more is written in this life."""
        self._tell(error)

    def _tell(self, news: say.Stimulus | Exception) -> None:
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
            elif not (isinstance(each, say.Synced) and news and isinstance(news[0], say.Synced)):
                self._handle(each)

    def close(self) -> None:
        """Hand on nothing more."""
        self._is_closed = True
