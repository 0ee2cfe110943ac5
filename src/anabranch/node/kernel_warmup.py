"""Load the kernels of the matching index in the background while the broker serves.

A broker without subscriptions, and without publishers that advertise much, needs no index, and does
not load the kernels: a compiler, and some 120 MB. Loading takes about a second; the first time on a
machine, when the kernels are compiled, a minute or two. Until then numpy matches. Rules:

1. The first frame that needs an index starts the load, in a thread (`kernel_compiler`). It is
   served at once: an index made meanwhile uses numpy and moves to the kernels when they are loaded
   (`kernel_state`).
2. Numpy serves at most `EARLY_CONJUNCTIONS_MAX` conjunctions, because its covering test compares
   every pair, and because moving them is one step of the loop. A frame beyond that, and everything
   behind it on the same connection, waits for the kernels. Timers and all other connections go on.
3. Connections that wait are heard within a bound: neighbours count as alive, and clients are told
   that the broker is.
4. A broker with durable subscriptions on disk loads the kernels before its life begins: their
   number has no bound. A broker that knew of other subscriptions towards the end of its last life
   (a file in its state directory says so) starts the load when its life begins.
5. That file exists from the first subscription on. Every `LOOK_S`, and when the broker ends in
   order, it is made to say what is true: where no subscription is left in the network, the next
   life begins without the kernels. (This one keeps them; nothing loaded can be given back.)
6. Kernels that cannot be loaded end the broker.

State: what is held back, as safe to lose as the connection it came on; and the file, without which
the next life loads the kernels later.
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

#: In the state directory of a broker that knows of subscriptions.
MARK = "needs-index"
LOOK_S = 5.0
#: Conjunctions that are served without kernels. Adding so many takes numpy a tenth of a second,
#: matching an event with them a fifth of a millisecond, and moving them a few milliseconds.
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
        """`stop` makes `load` return soon, from another thread."""
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
        #: Conjunctions that may still be added without kernels. Those that leave are not counted.
        self.early_left = EARLY_CONJUNCTIONS_MAX
        #: Whether nothing has to wait any more; the same for whoever waits for that.
        self.is_over = False
        self.over = asyncio.Event()

    @property
    def state(self) -> Literal["unused", "loading", "loaded"]:
        """What there is to say about the kernels."""
        if self.is_over:
            return "loaded"
        return "unused" if self._thread is None else "loading"

    @property
    def was_needed(self) -> bool:
        """Whether the life before needed an index when it ended."""
        return self._mark.exists()

    async def now(self) -> None:
        """Return when the kernels are loaded."""
        self._log.info(
            "loading the matching kernels before the durable subscriptions;"
            " compiling them takes a minute or two, once"
        )
        await asyncio.to_thread(self._load)
        self._over()

    def begin(self) -> None:
        """Start the load, unless it was started."""
        if self._thread is not None or self.is_over:
            return
        self.note(True)
        if not numba_is_here():
            self._log.info("numba is not installed: numpy matches")
            self._over()
            return
        self._log.info(
            "loading the matching kernels in the background, numpy matches meanwhile;"
            " compiling them takes a minute or two, once"
        )
        # The process does not end before it: a loader that is torn out of its work crashes.
        self._thread = threading.Thread(target=self._run, name="warming")
        self._thread.start()

    def admits(self, conjunctions: int) -> bool:
        """Whether a frame that adds so many conjunctions to an index may be served now (rule 2)."""
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
        """Have this called when the kernels are loaded; those who asked first come first."""
        if not self._waiting:
            self._log.info(
                "numpy serves at most %d conjunctions: more wait for the kernels",
                EARLY_CONJUNCTIONS_MAX,
            )
        self._waiting.append(go_on)
        self.begin()

    def watch(self, is_needed: Callable[[], bool]) -> None:
        """Note again and again whether an index is needed, until `close`."""

        def look() -> None:
            self.note(is_needed())
            self._next_look = self._loop.call_later(LOOK_S, look)

        self._next_look = self._loop.call_later(LOOK_S, look)

    def close(self) -> None:
        """Note nothing more, and load no kernels."""
        self._is_closed = True
        self._stop()
        self._deferral.end()
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
            problem = f"the matching kernels cannot be loaded: {type(error).__name__}: {error}"
        with contextlib.suppress(RuntimeError):  # the loop is closed: the broker has ended
            self._loop.call_soon_threadsafe(self._ran, time.monotonic() - began, problem)

    def _ran(self, took_s: float, problem: str) -> None:
        if self._is_closed:
            return
        if problem:
            self._fail(problem)
            return
        self._log.info(
            "the matching kernels are loaded after %.1f s, and match from now on", took_s
        )
        self._over()

    def _over(self) -> None:
        self._deferral.end()
        self.is_over = True
        self.over.set()
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            self._loop.call_soon(go_on)


def conjunctions_asked(frame: AnyClientFrame, limits: Limits) -> int:
    """How many conjunctions a client's frame adds to an index: a subscription, a pattern, which has
    a subscription, or many advertisements."""
    if isinstance(frame, Subscribe):
        return _count([frame.filter], limits)
    if isinstance(frame, Advertises):
        count = len(frame.filters)
        if count <= FEW:
            return 0
        return _count(frame.filters, limits) if count <= EARLY_CONJUNCTIONS_MAX else count
    return _count_pattern(frame.pattern, frame.text, limits) if isinstance(frame, Define) else 0


def conjunctions_told(frame: LinkFrame, name: str, limits: Limits) -> int:
    """How many conjunctions a neighbour's frame adds to an index of a broker of this name; at least
    one if it needs an index."""
    if isinstance(frame, InterestChange):
        return _places(frame.plus) or bool(frame.minus)
    if isinstance(frame, Bind):
        # What is meant for others is passed on unread.
        is_meant = any(binding.origin == name for binding in frame.bindings)
        return (_places(frame.plus) or bool(frame.minus)) if is_meant else 0
    if isinstance(frame, Carry):
        content = frame.content if frame.target == name else None
        if isinstance(content, TakePoint):
            return _count_pattern(content.record.id, content.record.text, limits)
        return 0
    return _places(frame.conjunctions) if isinstance(frame, InterestState) else 0


def _count(texts: Iterable[str], limits: Limits) -> int:
    """The conjunctions of these filters; none of one that is invalid: the core refuses it."""
    count = 0
    for text in texts:
        with contextlib.suppress(FilterError):
            count += len(Filter.parse(text, limits).conjunctions)
    return count


def _count_pattern(pattern_id: str, text: str, limits: Limits) -> int:
    """The conjunctions of what a join point subscribes to: all that the parts match, and the
    matches. None if the pattern is invalid."""
    with contextlib.suppress(FilterError):
        return len(read_pattern(pattern_id, text, limits).wanted.conjunctions)
    return 0


def _places(conjuncts: Iterable[Conjuncts | Bound]) -> int:
    return sum(len(each.places) for each in conjuncts)
