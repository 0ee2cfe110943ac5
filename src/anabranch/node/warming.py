"""Loading the kernels of the matching index while the broker goes on.

A broker without subscriptions, and without publishers that advertise much, needs no index, and does
not load what one is made of: a compiler, and some 120 MB. Loading takes about a second (the first
time on a machine, a minute or two), which is longer than a neighbour may be silent. Rules:

1. Whatever needs an index, and everything behind it on the same connection, is held back until the
   kernels are loaded; that is begun by the first of them, in a thread. Timers and all other
   connections go on meanwhile.
2. Those who are held back are heard all the same, within a bound: neighbours count as alive, and
   clients are told that the broker is.
3. A broker that finds durable subscriptions on disk, or knew of any, its own or another edge's,
   towards the end of its last life (a file in its state directory says so), loads the kernels
   before its life begins: a neighbour that comes back is given work at once.
4. That file is there from the first subscription on. Every `LOOK_S`, and when the broker ends in
   order, it is made to say what is true: where no subscription is left in the network, the next
   life begins without the kernels. (This one keeps them; nothing loaded can be given back.)
5. Kernels that cannot be loaded end the broker.

State: what is held back, as safe to lose as the connection it came on; and the file, without which
the first frames of a life wait.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from anabranch.matching.any_of import FEW
from anabranch.model.client_frames import Advertises, AnyClientFrame, Define, Subscribe
from anabranch.model.frames import Carry, InterestChange, InterestState, LinkFrame, TakePoint
from anabranch.model.mesh_frames import Bind
from anabranch.node.notes import NodeLog

#: In the state directory of a broker that knows of subscriptions.
MARK = "needs-index"
LOOK_S = 5.0


class WarmUp:
    """Loads the kernels once. See the rules at the top of this module."""

    def __init__(
        self,
        log: NodeLog,
        state: Path,
        fail: Callable[[str], None],
        load: Callable[[], None],
    ) -> None:
        self._mark = state / MARK
        self._log = log
        self._fail = fail
        self._load = load
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._waiting: list[Callable[[], None]] = []
        #: Whether nothing has to wait any more; the same for whoever waits for that.
        self.is_over = False
        self.over = asyncio.Event()

    @property
    def was_needed(self) -> bool:
        """Whether the life before needed an index when it ended."""
        return self._mark.exists()

    async def now(self) -> None:
        """Return when the kernels are loaded."""
        await asyncio.to_thread(self._load)
        self._over()

    def after(self, go_on: Callable[[], None]) -> None:
        """Have this called when the kernels are loaded; those who asked first come first."""
        self._waiting.append(go_on)
        if self._thread is None:
            self._log.info("loading the matching index, which is needed for the first time")
            # The process does not end before it: a compiler that is torn out of its work crashes.
            self._thread = threading.Thread(target=self._run, name="warming")
            self._thread.start()
            self.note(True)

    def watch(self, is_needed: Callable[[], bool]) -> None:
        """Note again and again whether an index is needed, until `close`."""

        def look() -> None:
            self.note(is_needed())
            self._next_look = self._loop.call_later(LOOK_S, look)

        self._next_look = self._loop.call_later(LOOK_S, look)

    def close(self) -> None:
        """Note nothing more."""
        if self._next_look is not None:
            self._next_look.cancel()

    def note(self, is_needed: bool) -> None:
        """Say to the next life whether an index is needed (rule 4)."""
        with contextlib.suppress(OSError):  # a full disk costs the next life a second
            if is_needed != self._mark.exists():
                self._mark.touch() if is_needed else self._mark.unlink()

    def _run(self) -> None:
        began, problem = time.monotonic(), ""
        try:
            self._load()
        except Exception as error:  # noqa: BLE001 - a compiler may raise anything
            problem = f"the matching index cannot be loaded: {type(error).__name__}: {error}"
        with contextlib.suppress(RuntimeError):  # the loop is closed: the broker has ended
            self._loop.call_soon_threadsafe(self._ran, time.monotonic() - began, problem)

    def _ran(self, took_s: float, problem: str) -> None:
        if problem:
            self._fail(problem)
            return
        self._log.info("the matching index is loaded, after %.1f s", took_s)
        self._over()

    def _over(self) -> None:
        self.is_over = True
        self.over.set()
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            self._loop.call_soon(go_on)


def asks_for_index(frame: AnyClientFrame) -> bool:
    """Whether a client wants what takes an index: a subscription, which a join point has as well,
    or to advertise much."""
    return isinstance(frame, Subscribe | Define) or (
        isinstance(frame, Advertises) and len(frame.filters) > FEW
    )


def needs_index(frame: LinkFrame, name: str) -> bool:
    """Whether a neighbour tells a broker of this name of subscriptions, or gives it a pattern."""
    if isinstance(frame, InterestChange):
        return bool(frame.plus or frame.minus)
    if isinstance(frame, Bind):
        # What is meant for others is passed on unread.
        is_meant = any(binding.origin == name for binding in frame.bindings)
        return is_meant and bool(frame.plus or frame.minus)
    if isinstance(frame, Carry):
        return frame.target == name and isinstance(frame.content, TakePoint)
    return isinstance(frame, InterestState) and bool(frame.conjunctions)
