"""Whose frames reach the core next, when several connections have some.

The core handles one stimulus at a time, and that may take many steps (`core.broker`). Meanwhile the
connections keep their frames and read no more. Rules:

1. First come, first served: a connection with frames queues behind all that queued before. When its
   turn comes it hands frames on for a few milliseconds, or until the core is left with work; then
   it queues again. So a client that asks for very much delays the others by one of its frames, not
   by all of them.
2. Every `SIGN_S` each connection in the queue gives a sign of life: a neighbour must not seem dead
   because nothing is read from it, and the broker must not seem dead to a client that waits.

State: who waits. As safe to lose as the connections.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

SIGN_S = 0.5


class _Waiter(NamedTuple):
    go_on: Callable[[], None]
    sign: Callable[[], None]


class FrameQueue:
    """The queue for the core of one node. See the rules at the top of this module."""

    def __init__(self, is_working: Callable[[], bool]) -> None:
        #: Whether the core is at work.
        self.is_working = is_working
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Waiter] = deque()
        #: Those that wait for something else before they wait for their turn.
        self._others: dict[int, _Waiter] = {}
        self._last_number = 0
        self._is_coming = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def are_wanted(self) -> bool:
        """Whether somebody waits."""
        return bool(self._queue)

    def wait(self, go_on: Callable[[], None], sign: Callable[[], None]) -> None:
        """Call this when its turn has come; and give that sign of life until then."""
        self._queue.append(_Waiter(go_on, sign))
        self._watch()
        self.give()

    def wait_for(
        self, future: "Future[None]", go_on: Callable[[], None], sign: Callable[[], None]
    ) -> None:
        """The same, but not before something is done in another thread."""
        self._last_number += 1
        number = self._last_number
        self._others[number] = _Waiter(go_on, sign)
        self._watch()

        def done(_future: "Future[None]") -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._come, number)

        future.add_done_callback(done)

    def _come(self, number: int) -> None:
        waiter = self._others.pop(number, None)
        if waiter is not None:
            self.wait(*waiter)

    def give(self) -> None:
        """The core may be free: let those have their turn who wait."""
        if self._queue and not self._is_coming and not self.is_working():
            self._is_coming = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._is_coming = False
        if self._queue and not self.is_working():
            self._queue.popleft().go_on()
        self.give()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(SIGN_S, self._signs)

    def _signs(self) -> None:
        self._timer = None
        for waiter in (*self._queue, *self._others.values()):
            waiter.sign()
        if self._queue or self._others:
            self._watch()

    def close(self) -> None:
        """Nobody has a turn any more."""
        self._queue.clear()
        self._others.clear()
        if self._timer is not None:
            self._timer.cancel()
