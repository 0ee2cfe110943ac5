"""Driving a core: what happens becomes a stimulus, and what the core says is done.

The driver decides nothing. It performs effects in their order, with the store, the links and the
sessions that it is given. Rules:

1. One stimulus at a time: what happens while effects are performed waits for its turn.
2. There is one timer. It is set after a turn in which something happened, for the core's deadline;
   a deadline that moves to a later time costs one idle wake-up, not a new timer.
3. The clock is that of the machine when the life began, and from then on monotonic.
4. After a stop of our own (the timer is late by half a heartbeat or more) the sockets are looked at
   once more before the core hears how late it is: what neighbours sent meanwhile lies there, and
   without it they would all seem dead.
5. A mistake of our own in the core ends the life at once: nothing that a core says after it is
   half through a step can be trusted.

State: what is on its way to the core and to the disk. Safe to lose.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from anabranch.core import contract
from anabranch.core.broker import Broker
from anabranch.node.frame_queue import FrameQueue
from anabranch.node.links import NodeLinks
from anabranch.node.meters import StepMeter
from anabranch.node.metrics import NodeCounters
from anabranch.node.node_log import LEVELS, NodeLog, Throttle
from anabranch.node.sessions import NodeSessions
from anabranch.store.store import Store

#: A timer that is later than the deadline by less than this is not set anew.
_TIMER_SLACK_S = 1e-4
_NEVER = float("inf")
#: Long enough that the loop looks at all sockets.
_LOOK_S = 1e-3


class CoreClock:
    """What a broker takes for the time (rule 3)."""

    __slots__ = ("_floor_s", "_offset_s")

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()
        #: It shows no less than this.
        self._floor_s = 0.0

    def now(self) -> float:
        """In seconds."""
        now = self._offset_s + time.monotonic()
        return now if now > self._floor_s else self._floor_s

    def reach(self, moment: float) -> None:
        """It is this late, at least: a deadline is met, not undercut by the rounding of clocks."""
        self._floor_s = max(self._floor_s, moment)


class CoreDriver:
    """Drives the core of one node. See the rules at the top of this module."""

    def __init__(
        self, log: NodeLog, counters: NodeCounters, steps: StepMeter, fail: Callable[[str], None]
    ) -> None:
        self._log = log
        self._throttle = Throttle(log)
        self._counters = counters
        self.steps = steps
        self._fail = fail
        self.clock = CoreClock()
        self._loop = asyncio.get_running_loop()
        #: Done when the life is on disk.
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        #: Whether the sockets are looked at before a late timer counts.
        self._is_looking = False
        #: Whose frames come next.
        self.turns = FrameQueue(self._is_working)
        self._waiting: deque[contract.Stimulus] = deque()
        self._is_busy = False
        self._is_settling = False
        self._is_publishing = False
        #: Whether nothing reaches the core any more.
        self.is_over = False
        #: (number, when it was asked for, events taken before it), oldest first.
        self._syncs: deque[tuple[int, float, int]] = deque()
        self._all_synced = asyncio.Event()
        self._doing: dict[type[contract.Effect], Callable[..., None]] = {
            contract.Send: self._send,
            contract.SendClient: self._send_client,
            contract.Append: self._append,
            contract.Put: self._put,
            contract.Sync: self._sync,
            contract.Read: self._read,
            contract.Forget: self._forget,
            contract.CutLink: self._cut_link,
            contract.CutClient: self._cut_client,
            contract.Note: self._note,
        }

    def begin(self, broker: Broker, store: Store, links: NodeLinks, sessions: NodeSessions) -> None:
        """The life begins; `ready` tells when it is on disk."""
        self._broker = broker
        self._store = store
        self._links = links
        self._sessions = sessions
        self.handle(contract.Started())

    def _is_working(self) -> bool:
        return self._broker.is_working and not self.is_over

    def end(self) -> None:
        """Nothing reaches the core from now on."""
        self.is_over = True
        self.turns.close()
        if self._timer is not None:
            self._timer.cancel()
        self._all_synced.set()

    # -- stimuli --------------------------------------------------------------------------------

    def handle(self, stimulus: contract.Stimulus) -> None:
        """Let the core handle something, now or as soon as it is done with what it is at."""
        self._waiting.append(stimulus)
        if self._is_busy or self.is_over:
            return
        self._is_busy = True
        try:
            while self._waiting:
                self._step(self._waiting.popleft())
        except Exception as error:
            # The core may be half through a step: nothing it says from now on can be trusted.
            self._log.exception("a mistake in the broker")
            self._fail(f"a mistake in the broker: {type(error).__name__}: {error}")
            raise
        finally:
            self._is_busy = False
        if not self._is_settling:
            self._is_settling = True
            self._loop.call_soon(self._settle)

    def _step(self, stimulus: contract.Stimulus) -> None:
        doing = self._doing
        # What a client publishes becomes ticks at once; marks do not come of that.
        self._is_publishing = type(stimulus) is contract.ClientFrameReceived
        began = self.steps.begin()
        for effect in self._broker.handle(self.clock.now(), stimulus):
            doing[type(effect)](effect)
        self.steps.end(stimulus, began)

    def from_store(self, stimulus: contract.Stimulus) -> None:
        """The store has news."""
        if isinstance(stimulus, contract.Synced):
            syncs, counters = self._syncs, self._counters
            while syncs and syncs[0][0] <= stimulus.number:
                _, asked_at, counters.events_confirmed = syncs.popleft()
                counters.sync_s.add(time.monotonic() - asked_at)
        self.handle(stimulus)
        if not self._syncs:
            self._all_synced.set()

    @property
    def syncs(self) -> int:
        """Syncs that the disk owes."""
        return len(self._syncs)

    async def all_synced(self) -> None:
        """Return when the disk owes nothing, or when it is over."""
        while self._syncs and not self.is_over:
            self._all_synced.clear()
            await self._all_synced.wait()

    # -- time -----------------------------------------------------------------------------------

    def _settle(self) -> None:
        """A turn is over: see when the core wants to be woken."""
        self._is_settling = False
        if not self.ready.done() and self._broker.is_ready:
            self.ready.set_result(None)
        self.turns.give()
        deadline = self._broker.next_deadline()
        if deadline is not None and deadline < self._timer_at - _TIMER_SLACK_S:
            self._set_timer(deadline)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        if not self.is_over:
            self._timer = self._loop.call_later(max(0.0, deadline - self.clock.now()), self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_at = None, _NEVER
        was_looking, self._is_looking = self._is_looking, False
        deadline = self._broker.next_deadline()
        if deadline is None:
            return
        late_s = self.clock.now() - deadline
        if late_s < -_TIMER_SLACK_S:
            self._set_timer(deadline)
        elif late_s > self._broker.config.options.heartbeat_s / 2 and not was_looking:
            self._is_looking = True
            self._timer_at = deadline
            self._timer = self._loop.call_later(_LOOK_S, self._wake)
        else:
            self.clock.reach(deadline)
            self.handle(contract.TimePassed())

    # -- effects --------------------------------------------------------------------------------

    def _send(self, effect: contract.Send) -> None:
        self._links.send(effect.peer, effect.frame)

    def _send_client(self, effect: contract.SendClient) -> None:
        self._sessions.send(effect.session, effect.frame)

    def _append(self, effect: contract.Append) -> None:
        self._counters.ticks_appended += 1
        self._counters.events_taken += self._is_publishing
        self._store.append(effect.tick, effect.record)

    def _put(self, effect: contract.Put) -> None:
        self._store.put(effect.table, effect.key, effect.value)

    def _sync(self, effect: contract.Sync) -> None:
        self._syncs.append((effect.number, time.monotonic(), self._counters.events_taken))
        self._store.sync(effect.number)

    def _read(self, effect: contract.Read) -> None:
        self._store.read(effect.request, effect.first, effect.last, effect.bytes_max)

    def _forget(self, effect: contract.Forget) -> None:
        self._store.forget(effect.tick)

    def _cut_link(self, effect: contract.CutLink) -> None:
        self._links.cut(effect.peer, effect.reason)

    def _cut_client(self, effect: contract.CutClient) -> None:
        self._sessions.cut(effect.session, effect.reason)

    def _note(self, effect: contract.Note) -> None:
        if effect.level == "info":
            # Near a broker that is down, every message to it is worth one.
            self._throttle.info(effect.text)
        else:
            self._log.log(LEVELS.get(effect.level, logging.INFO), "%s", effect.text)
