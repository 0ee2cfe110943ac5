"""Kernel warm-up: load the kernels of the matching index in the background.

A broker without subscriptions, and without publishers that advertise much, needs no index and does
not load the kernels: a compiler, and some 120 MB. Loading takes about a second; the first time on a
machine, when the kernels are compiled, a minute or two. Until then numpy matches. Rules:

1. The first frame that needs an index starts the load, in a thread (`kernel_compiler`). It is
   served at once: an index created meanwhile uses numpy and moves to the kernels when they are
   loaded (`kernel_state`).
2. Numpy serves at most `EARLY_CONJUNCTIONS_MAX` conjunctions, because its covering test compares
   every pair, and because moving them is one step of the loop. A frame beyond that, and everything
   behind it on the same connection, waits for the kernels. Timers and all other connections
   continue.
3. Waiting connections stay alive: neighbours count as alive, and clients get signs of life.
4. A broker with durable subscriptions on disk loads the kernels before its life begins: their
   number has no bound. A broker that had other subscriptions towards the end of its last life
   (recorded by a file in its state directory) starts the load when its life begins.
5. That file is created with the first subscription. Every `LOOK_S`, and on an orderly shutdown, it
   is updated: if no subscription is left in the network, the next life starts without the kernels.
   (This one keeps them; loaded kernels cannot be unloaded.)
6. A failure to load the kernels stops the broker.

State: held frames, as safe to lose as their connection; and the file, without which the next life
loads the kernels later.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from anabranch.core.patterns.join_points.records import read_pattern
from anabranch.matching import kernel_state
from anabranch.matching.any_of import FEW
from anabranch.matching.engine import numba_is_here
from anabranch.model.client_frames import Advertises, AnyClientFrame, Define, Subscribe
from anabranch.model.errors import FilterError
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import Conjuncts
from anabranch.model.frames import Carry, InterestChange, InterestState, LinkFrame, TakePoint
from anabranch.model.limits import Limits
from anabranch.model.mesh_frames import Bind, Bound
from anabranch.node.node_log import NodeLog

#: File in the state directory of a broker with subscriptions.
MARK = "needs-index"
LOOK_S = 5.0
#: Conjunctions that are served without kernels. Adding this many takes numpy a tenth of a second,
#: matching an event against them a fifth of a millisecond, and moving them a few milliseconds.
EARLY_CONJUNCTIONS_MAX = 256


class WarmUp:
    """Loads the kernels once. See the rules at the top of this module."""

    def __init__(
        self,
        log: NodeLog,
        state: Path,
        fail: Callable[[str], None],
        load: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        """`stop`, called from another thread, makes `load` return soon."""
        self._mark = state / MARK
        self._log = log
        self._fail = fail
        self._load = load
        self._stop = stop
        self._is_closed = False
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._waiting: list[Callable[[], None]] = []
        self._deferral = kernel_state.Deferral()
        #: Conjunctions that may still be added without kernels; removals do not count.
        self.early_left = EARLY_CONJUNCTIONS_MAX
        #: Whether all frames are served without waiting; `over` is the same as an event.
        self.is_over = False
        self.over = asyncio.Event()

    @property
    def state(self) -> Literal["unused", "loading", "loaded"]:
        """The state of the kernels, for `/status`."""
        if self.is_over:
            return "loaded"
        return "unused" if self._thread is None else "loading"

    @property
    def was_needed(self) -> bool:
        """Whether the previous life needed an index when it ended."""
        return self._mark.exists()

    async def now(self) -> None:
        """Load the kernels and wait for them."""
        self._log.info(
            "loading the matching kernels before the durable subscriptions;"
            " compiling them takes a minute or two, once"
        )
        await asyncio.to_thread(self._load)
        self._over()

    def begin(self) -> None:
        """Start the load, unless it has started."""
        if self._thread is not None or self.is_over:
            return
        self.note(True)
        if not numba_is_here():
            self._log.info("numba is not installed; matching with numpy")
            self._over()
            return
        self._log.info(
            "loading the matching kernels in the background, matching with numpy meanwhile;"
            " compiling them takes a minute or two, once"
        )
        # Not a daemon: interrupting a loader at exit crashes the process.
        self._thread = threading.Thread(target=self._run, name="warming")
        self._thread.start()

    def admits(self, conjunctions: int) -> bool:
        """Whether a frame that adds this many conjunctions may be served now (rule 2)."""
        if conjunctions == 0:
            return True
        self.begin()
        if self.is_over:
            return True
        if conjunctions > self.early_left:
            return False
        self.early_left -= conjunctions
        return True

    def after(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` when the kernels are loaded, in the order of these calls."""
        if not self._waiting:
            self._log.info(
                "numpy serves at most %d conjunctions: further ones wait for the kernels",
                EARLY_CONJUNCTIONS_MAX,
            )
        self._waiting.append(go_on)
        self.begin()

    def watch(self, is_needed: Callable[[], bool]) -> None:
        """Record regularly whether an index is needed, until `close`."""

        def look() -> None:
            self.note(is_needed())
            self._next_look = self._loop.call_later(LOOK_S, look)

        self._next_look = self._loop.call_later(LOOK_S, look)

    def close(self) -> None:
        """Stop recording, and do not load kernels."""
        self._is_closed = True
        self._stop()
        self._deferral.end()
        if self._next_look is not None:
            self._next_look.cancel()

    def note(self, is_needed: bool) -> None:
        """Record for the next life whether an index is needed (rule 4)."""
        with contextlib.suppress(OSError):  # a full disk costs the next life a second
            if is_needed != self._mark.exists():
                self._mark.touch() if is_needed else self._mark.unlink()

    def _run(self) -> None:
        began, problem = time.monotonic(), ""
        try:
            self._load()
        except Exception as error:  # noqa: BLE001 - a compiler may raise anything
            problem = f"cannot load the matching kernels: {type(error).__name__}: {error}"
        with contextlib.suppress(RuntimeError):  # the loop is closed: the broker has ended
            self._loop.call_soon_threadsafe(self._ran, time.monotonic() - began, problem)

    def _ran(self, took_s: float, problem: str) -> None:
        if self._is_closed:
            return
        if problem:
            self._fail(problem)
            return
        self._log.info("the matching kernels are loaded after %.1f s and used from now on", took_s)
        self._over()

    def _over(self) -> None:
        self._deferral.end()
        self.is_over = True
        self.over.set()
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            self._loop.call_soon(go_on)


def conjunctions_asked(frame: AnyClientFrame, limits: Limits) -> int:
    """Number of conjunctions that a client's frame adds to an index: those of a subscription, a
    pattern (which has a subscription), or many advertisements."""
    if isinstance(frame, Subscribe):
        return _count([frame.filter], limits)
    if isinstance(frame, Advertises):
        count = len(frame.filters)
        if count <= FEW:
            return 0
        return _count(frame.filters, limits) if count <= EARLY_CONJUNCTIONS_MAX else count
    return _count_pattern(frame.pattern, frame.text, limits) if isinstance(frame, Define) else 0


def conjunctions_announced(frame: LinkFrame, name: str, limits: Limits) -> int:
    """Number of conjunctions that a neighbour's frame adds to an index of the named broker; at
    least one if it needs an index."""
    if isinstance(frame, InterestChange):
        return _places(frame.plus) or bool(frame.minus)
    if isinstance(frame, Bind):
        # Bindings for other origins are forwarded without decoding.
        is_local = any(binding.origin == name for binding in frame.bindings)
        return (_places(frame.plus) or bool(frame.minus)) if is_local else 0
    if isinstance(frame, Carry):
        content = frame.content if frame.target == name else None
        if isinstance(content, TakePoint):
            return _count_pattern(content.record.id, content.record.text, limits)
        return 0
    return _places(frame.conjunctions) if isinstance(frame, InterestState) else 0


def _count(texts: Iterable[str], limits: Limits) -> int:
    """Number of conjunctions of these filters. An invalid filter has none: the core refuses it."""
    count = 0
    for text in texts:
        with contextlib.suppress(FilterError):
            count += len(Filter.parse(text, limits).conjunctions)
    return count


def _count_pattern(pattern_id: str, text: str, limits: Limits) -> int:
    """Number of conjunctions that a join point subscribes to: those of all parts, and of the
    matches. An invalid pattern has none."""
    with contextlib.suppress(FilterError):
        return len(read_pattern(pattern_id, text, limits).wanted.conjunctions)
    return 0


def _places(conjuncts: Iterable[Conjuncts | Bound]) -> int:
    return sum(len(each.places) for each in conjuncts)
