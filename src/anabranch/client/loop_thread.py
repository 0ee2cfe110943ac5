"""An event loop in a thread of its own, for programs that wait.

Work is handed over, and waited for; whoever stops waiting cancels it. The thread does not keep the
process alive.
"""

import asyncio
import threading
from collections.abc import Coroutine
from typing import TypeVar

from anabranch.client.errors import ClosedError

Outcome = TypeVar("Outcome")


class LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="anabranch-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def wait(
        self,
        work: Coroutine[object, object, Outcome],
        timeout: float | None = None,
        awaited: str = "the outcome",
    ) -> Outcome:
        """Do something in the loop, and return when it is done; or say what took too long."""
        if not self._thread.is_alive():
            work.close()
            raise ClosedError("the client is closed")
        promise = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return promise.result(timeout)
        except TimeoutError as error:
            promise.cancel()
            if timeout is None or str(error):
                raise
            raise TimeoutError(f"{awaited} did not come within {timeout:g} s") from None
        except BaseException:
            promise.cancel()
            raise

    def stop(self) -> None:
        """End the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
