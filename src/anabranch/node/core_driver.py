"""The core driver: turns events into stimuli for the core, and performs its effects.

The driver makes no decisions. It performs effects in order, with the store, the links and the
sessions that it is given. Rules:

1. One stimulus at a time: stimuli that occur while effects are performed are queued.
2. There is one timer. It is set after a loop iteration with stimuli, for the core's deadline. A
   deadline that moves to a later time costs one idle wake-up, not a new timer.
3. The clock is the machine's time at the start of the life, and monotonic from then on.
4. After a pause of this process (the timer is late by half a heartbeat or more) the sockets are
   read once before the core learns the time: otherwise all neighbours would seem dead, although
   their frames are already there.
5. An internal error in the core ends the life at once: the core may be in the middle of a step, and
   its further output cannot be trusted.
6. If the core wants a restart, the node ends this life in order. Until then the core is driven as
   before, because that needs its confirmations.

State: stimuli and syncs in progress. Safe to lose.
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
from anabranch.store.copies import Refusal
from anabranch.store.store import Store

#: A timer that is later than the deadline by less than this is not reset.
_TIMER_SLACK_S = 1e-4
_NEVER = float("inf")
#: Long enough for the loop to poll all sockets.
_POLL_S = 1e-3


class CoreClock:
    """The clock of a broker (rule 3)."""

    __slots__ = ("_floor_s", "_offset_s")

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()
        #: Lower bound of the time.
        self._floor_s = 0.0

    def now(self) -> float:
        """The time in seconds."""
        now = self._offset_s + time.monotonic()
        return now if now > self._floor_s else self._floor_s

    def reach(self, moment: float) -> None:
        """Set a lower bound: at a deadline, rounding must not put the time before it."""
        self._floor_s = max(self._floor_s, moment)


class CoreDriver:
    """Drives the core of one node. See the rules at the top of this module."""

    def __init__(
        self,
        log: NodeLog,
        counters: NodeCounters,
        steps: StepMeter,
        fail: Callable[[str], None],
        restart: Callable[[str], None],
    ) -> None:
        self._log = log
        self._throttle = Throttle(log)
        self._counters = counters
        self.steps = steps
        self._fail = fail
        self._restart_node = restart
        self.clock = CoreClock()
        self._loop = asyncio.get_running_loop()
        #: Done when the start of the life is on disk.
        self.ready: asyncio.Future[None] = self._loop.create_future()
        #: Done when the broker serves clients, if it has any.
        self.serving: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = _NEVER
        #: Whether the sockets are read before a late timer counts (rule 4).
        self._is_polling = False
        #: Connections waiting to pass frames to the core.
        self.turns = FrameQueue(self._is_working)
        self._waiting: deque[contract.Stimulus] = deque()
        self._is_busy = False
        self._is_settling = False
        self._is_publishing = False
        #: Whether stimuli no longer reach the core.
        self.is_over = False
        #: (number, time of the request, events taken before it), oldest first.
        self._syncs: deque[tuple[int, float, int]] = deque()
        self._all_synced = asyncio.Event()
        self._perform: dict[type[contract.Effect], Callable[..., None]] = {
            contract.Send: self._send,
            contract.SendClient: self._send_client,
            contract.Append: self._append,
            contract.Put: self._put,
            contract.OpenCopy: self._open_copy,
            contract.CutCopy: self._cut_copy,
            contract.DropCopy: self._drop_copy,
            contract.Sync: self._sync,
            contract.Read: self._read,
            contract.ReadRows: self._read_rows,
            contract.Restart: self._restart,
            contract.DeleteThrough: self._forget,
            contract.CutLink: self._cut_link,
            contract.CutClient: self._cut_client,
            contract.Note: self._note,
        }

    def begin(self, broker: Broker, store: Store, links: NodeLinks, sessions: NodeSessions) -> None:
        """Begin the life; `ready` is done when that is on disk."""
        self._broker = broker
        self._store = store
        self._links = links
        self._sessions = sessions
        self.handle(contract.Started())

    def _is_working(self) -> bool:
        return self._broker.is_working and not self.is_over

    def end(self) -> None:
        """Stop: no further stimuli reach the core."""
        self.is_over = True
        self.turns.close()
        if self._timer is not None:
            self._timer.cancel()
        self._all_synced.set()

    # -- stimuli --------------------------------------------------------------------------------

    def handle(self, stimulus: contract.Stimulus) -> None:
        """Let the core handle a stimulus, now or after the current one."""
        self._waiting.append(stimulus)
        if self._is_busy or self.is_over:
            return
        self._is_busy = True
        try:
            while self._waiting:
                self._step(self._waiting.popleft())
        except Exception as error:
            # The core may be in the middle of a step: its further output cannot be trusted.
            self._log.exception("internal error in the broker")
            self._fail(f"internal error in the broker: {type(error).__name__}: {error}")
            raise
        finally:
            self._is_busy = False
        if not self._is_settling:
            self._is_settling = True
            self._loop.call_soon(self._settle)

    def _step(self, stimulus: contract.Stimulus) -> None:
        perform = self._perform
        # Appends caused by a client's frame are events; marks have other causes.
        self._is_publishing = type(stimulus) is contract.ClientFrameReceived
        began = self.steps.begin()
        for effect in self._broker.handle(self.clock.now(), stimulus):
            perform[type(effect)](effect)
        self.steps.end(stimulus, began)

    def from_store(self, stimulus: contract.Stimulus | Refusal) -> None:
        """Handle a completion from the store."""
        if isinstance(stimulus, Refusal):
            if self._store.learn(stimulus):
                where = f"{stimulus.stream!r} after tick {stimulus.last_tick}"
                self._throttle.warning(f"the disk has no space for the copy of stream {where}")
                self.handle(contract.CopyFull(stimulus.stream, stimulus.last_tick))
            return
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
        """Number of pending syncs."""
        return len(self._syncs)

    async def all_synced(self) -> None:
        """Wait until no sync is pending, or the life has ended."""
        while self._syncs and not self.is_over:
            self._all_synced.clear()
            await self._all_synced.wait()

    # -- time -----------------------------------------------------------------------------------

    def _settle(self) -> None:
        """At the end of a loop iteration: set the timer for the core's next deadline."""
        self._is_settling = False
        if not self.serving.done():
            self._note_start(self._broker)
        self.turns.give()
        deadline = self._broker.next_deadline()
        if deadline is not None and deadline < self._timer_at - _TIMER_SLACK_S:
            self._set_timer(deadline)

    def _note_start(self, broker: Broker) -> None:
        if broker.is_ready and not self.ready.done():
            self.ready.set_result(None)
        if broker.is_ready and (broker.is_serving or not broker.is_edge):
            self.serving.set_result(None)

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        if not self.is_over:
            self._timer = self._loop.call_later(max(0.0, deadline - self.clock.now()), self._wake)

    def _wake(self) -> None:
        self._timer, self._timer_at = None, _NEVER
        was_polling, self._is_polling = self._is_polling, False
        deadline = self._broker.next_deadline()
        if deadline is None:
            return
        late_s = self.clock.now() - deadline
        if late_s < -_TIMER_SLACK_S:
            self._set_timer(deadline)
        elif late_s > self._broker.config.options.heartbeat_s / 2 and not was_polling:
            self._is_polling = True
            self._timer_at = deadline
            self._timer = self._loop.call_later(_POLL_S, self._wake)
        else:
            self.clock.reach(deadline)
            self.handle(contract.TimePassed())

    # -- effects --------------------------------------------------------------------------------

    def _send(self, effect: contract.Send) -> None:
        self._links.send(effect.peer, effect.frame)

    def _send_client(self, effect: contract.SendClient) -> None:
        self._sessions.send(effect.session, effect.frame)

    def _append(self, effect: contract.Append) -> None:
        if effect.stream:
            self._store.append(effect.tick, effect.record, effect.stream)
            return
        self._counters.ticks_appended += 1
        self._counters.events_taken += self._is_publishing
        self._store.append(effect.tick, effect.record)

    def _open_copy(self, effect: contract.OpenCopy) -> None:
        if effect.stream:
            self._store.open_copy(effect.stream, effect.first_tick)
        else:
            self._store.reset(effect.first_tick)

    def _cut_copy(self, effect: contract.CutCopy) -> None:
        self._store.cut_copy(effect.stream, effect.last_tick)

    def _drop_copy(self, effect: contract.DropCopy) -> None:
        # The own log is dropped and opened at once.
        if effect.stream:
            self._store.drop_copy(effect.stream)

    def _put(self, effect: contract.Put) -> None:
        self._store.put(effect.table, effect.key, effect.value)

    def _sync(self, effect: contract.Sync) -> None:
        self._syncs.append((effect.number, time.monotonic(), self._counters.events_taken))
        self._store.sync(effect.number)

    def _read(self, effect: contract.Read) -> None:
        self._store.read(effect.request, effect.first, effect.last, effect.bytes_max, effect.stream)

    def _read_rows(self, effect: contract.ReadRows) -> None:
        self._store.read_rows(
            effect.request, effect.table, effect.prefix, effect.after, effect.bytes_max
        )

    def _restart(self, effect: contract.Restart) -> None:
        self._restart_node(effect.reason)

    def _forget(self, effect: contract.DeleteThrough) -> None:
        self._store.forget(effect.tick, effect.stream)

    def _cut_link(self, effect: contract.CutLink) -> None:
        self._links.cut(effect.peer, effect.reason)

    def _cut_client(self, effect: contract.CutClient) -> None:
        self._sessions.cut(effect.session, effect.reason)

    def _note(self, effect: contract.Note) -> None:
        if effect.level == "info":
            # Near a broker that is down, every message to it causes one.
            self._throttle.info(effect.text)
        else:
            self._log.log(LEVELS.get(effect.level, logging.INFO), "%s", effect.text)
