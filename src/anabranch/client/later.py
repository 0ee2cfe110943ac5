"""Something to be done a while after it was first asked for, once for all who asked meanwhile."""

import asyncio
from collections.abc import Callable


class Later:
    """One such thing. It belongs to the event loop that runs when it is made."""

    __slots__ = ("_action", "_loop", "_timer", "delay_s")

    def __init__(self, delay_s: float, action: Callable[[], None]) -> None:
        #: Counts from the next time that it is asked for.
        self.delay_s = delay_s
        self._action = action
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def ask(self) -> None:
        """Have it done after the delay, if that is not on its way already."""
        if self._timer is None:
            self._timer = self._loop.call_later(self.delay_s, self._do)

    def cancel(self) -> None:
        """Do not do it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _do(self) -> None:
        self._timer = None
        self._action()
