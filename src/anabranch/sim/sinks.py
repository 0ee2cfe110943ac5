"""Simulated sinks: programs that write batches through several tasks.

A sink is a driver with tasks, each of which is a separate client at the broker of the sink. For
every batch the tasks stage events with new tokens; when all are staged, the driver commits. The
failures of real pipelines occur: a task dies with half of its chunks staged and is retried; a
driver dies while it waits, or after it received the answer and before it recorded it, and the batch
is executed again with other tokens or only committed again; clients lose their connection and
reconnect. A sink stays with its broker; if the broker has left the network, another sink starts at
another broker.

Events carry the attribute `draft`, which identifies them in the log.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from anabranch.check import history as told
from anabranch.core.session.effects import BatchCommitted, ChunkStaged, StagingRefused
from anabranch.core.session.session import ClientSession
from anabranch.model.encoding import encode_draft
from anabranch.model.event import Event, Value
from anabranch.sim.applications import Application
from anabranch.sim.workload import draw_event
from anabranch.sim.world import World

#: The attribute that tells where an event was staged.
DRAFT = "draft"
_TASKS_MAX = 3
_EVENTS_MAX = 8
_CHUNK_EVENTS = 3
Drafts = Sequence[Mapping[str, Value]]


def draft_in(attributes: Mapping[str, Value]) -> tuple[str, int] | None:
    """Where an event was staged: token and place."""
    token, _, place = str(attributes.get(DRAFT, "")).rpartition("/")
    return (token, int(place)) if token else None


class SinkTask(Application):
    """Stages what it is given, one token at a time."""

    def __init__(
        self, driver: "SimSink", name: str, ended: Callable[["SinkTask", bool], None]
    ) -> None:
        super().__init__(driver.world, name, driver.home, driver.history)
        #: Told whether all is staged.
        self._ended = ended
        self._waiting: set[int] = set()
        self.token = ""

    def stage(self, token: str, drafts: Drafts, *, is_half: bool = False) -> None:
        """Stage events, or only a part of them."""
        self.token = token
        bodies = [encode_draft(Event(each)) for each in drafts]
        last = max(0, (len(bodies) - 1) // _CHUNK_EVENTS)
        for index in range(last + (not is_half)):
            chunk = bodies[index * _CHUNK_EVENTS : (index + 1) * _CHUNK_EVENTS]
            number, effects = self.session.staging.stage(token, index, chunk, index == last)
            self._waiting.add(number)
            self.perform(effects)

    def handle_effect(self, effect: object) -> None:
        """An answer."""
        if isinstance(effect, ChunkStaged):
            self._waiting.discard(effect.request)
            if not self._waiting:
                self._ended(self, True)
        elif isinstance(effect, StagingRefused) and effect.final:
            self.forget()
            self._ended(self, False)

    def discard(self) -> None:
        """Nobody will commit what was staged last."""
        self.perform(self.session.staging.discard([self.token]))

    def forget(self) -> None:
        """A new process takes its place."""
        self.leave()
        self._waiting.clear()
        self.session = ClientSession(self.name, options=self.options)


class SimSink(Application):
    """The driver of one sink. See the top of this module."""

    def __init__(
        self,
        world: World,
        name: str,
        home: str,
        history: list[told.Record],
        rng: Random,
        *,
        rate: float,
    ) -> None:
        super().__init__(world, name, home, history)
        self._rng = rng
        #: Batches per second, if each is done at once.
        self._rate = rate
        #: How often it had to begin elsewhere.
        self._moves = 0
        self._batch = 0
        #: Counts the executions, so that every token is used once.
        self._execution = 0
        self._tasks = [SinkTask(self, f"{name}.{n}", self._task_ended) for n in range(_TASKS_MAX)]
        #: Task → its token, of those that have not staged everything yet; and all tokens in order.
        self._staging: dict[SinkTask, str] = {}
        self._tokens: tuple[str, ...] = ()
        self._request = 0
        #: Whether a batch is to be written that nobody was told of, and whether one ever was.
        self._is_busy = False
        self.told = 0
        world.after(rng.random(), self._next)

    @property
    def sink(self) -> str:
        """The name under which it commits."""
        return f"{self.name}.to.{self._moves}" if self._moves else self.name

    def connect_in(self, delay_s: float) -> None:
        """Connect, the tasks too."""
        super().connect_in(delay_s)
        for task in self._tasks:
            if task.connection is None:
                task.connect_in(delay_s + self._rng.random() * 0.1)

    # -- a batch --------------------------------------------------------------------------------

    def _next(self) -> None:
        """The next batch, if there is to be any."""
        if not self.is_calm and not self._is_busy:
            self._is_busy = True
            self._execute()

    def _execute(self) -> None:
        """Let the tasks stage a batch, with new tokens."""
        self._execution += 1
        self._withdraw()
        count = self._rng.choice((0, 1, 1, 2, 2, 3, 3))
        self._staging.clear()
        tokens = []
        for place, task in enumerate(self._tasks[:count]):
            if self._rng.random() < 0.2:
                self._stage_in_vain(task, place)
            tokens.append(self._stage(task, f"{self.sink}.{self._execution}.{place}"))
        self._tokens = tuple(tokens)
        if not tokens:
            self._commit(self._execution)

    def _stage(self, task: SinkTask, token: str) -> str:
        drafts = self._draw(token)
        self._staging[task] = token
        task.stage(token, drafts)
        return token

    def _stage_in_vain(self, task: SinkTask, place: int) -> None:
        """An attempt of a task that comes to nothing."""
        token = f"{self.sink}.{self._execution}.{place}.in-vain"
        task.stage(token, self._draw(token), is_half=self._rng.random() < 0.5)
        if self._rng.random() < 0.5:
            task.discard()
        task.forget()
        task.connect_in(0.05)

    def _draw(self, token: str) -> Drafts:
        count = self._rng.randint(0, _EVENTS_MAX)
        drafts = [draw_event(self._rng) | {DRAFT: f"{token}/{place}"} for place in range(count)]
        self.history.append(told.Drafted(self.world.now, token, tuple(drafts)))
        return drafts

    def _task_ended(self, task: SinkTask, is_staged: bool) -> None:
        if self._staging.get(task) != task.token:
            return
        if not is_staged:
            self._execute_later()
            return
        del self._staging[task]
        if not self._staging:
            self.world.after(self._rng.random() * 0.1, self._commit, self._execution)

    def _commit(self, execution: int) -> None:
        """Everything is staged."""
        if execution != self._execution or self._request:
            return
        what = (self.sink, self._batch, self._tokens)
        self.history.append(told.BatchAsked(self.world.now, *what, self.home))
        staging = self.session.staging
        self._request, effects = staging.commit(self.sink, "query", self._batch, self._tokens)
        self.perform(effects)

    def _execute_later(self) -> None:
        self._execution += 1
        self._withdraw()
        self.world.after(0.2 + self._rng.random() * 0.5, self._execute_again, self._execution)

    def _execute_again(self, execution: int) -> None:
        if execution == self._execution:
            self._execute()

    def _withdraw(self) -> None:
        if self._request:
            self.session.staging.withdraw([self._request])
            self._request = 0

    # -- what it hears --------------------------------------------------------------------------

    def handle_effect(self, effect: object) -> None:
        """An answer to a commit."""
        if isinstance(effect, BatchCommitted) and effect.request == self._request:
            self._request = 0
            ticks = (effect.first, effect.last, effect.was_known)
            what = (effect.sink, effect.batch, self._tokens, *ticks)
            self.history.append(told.BatchTold(self.world.now, *what))
            self.told += 1
            self._go_on()
        elif isinstance(effect, StagingRefused) and effect.final:
            self._request = 0
            self._execute_later()

    def _go_on(self) -> None:
        """It was told: go to the next batch, unless it dies before it has written that down."""
        kind = 1.0 if self.is_calm else self._rng.random()
        if kind < 0.2:
            self._execute_later()
        elif kind < 0.3:
            self.world.after(self._rng.random(), self._commit, self._execution)
        else:
            self._batch += 1 if self._rng.random() < 0.9 else 3
            self._is_busy = False
            self._execution += 1
            self.world.after(self._rng.expovariate(self._rate), self._next)

    # -- what people do -------------------------------------------------------------------------

    def act(self, rng: Random, edges: list[str]) -> None:  # noqa: ARG002 - as all others
        """Lose a connection, or everything."""
        kind = self._rng.random()
        if kind < 0.25:
            self.leave()
        elif kind < 0.5:
            self._rng.choice(self._tasks).leave()
        elif self._is_busy:
            self._forget(is_exact=kind < 0.65)

    def _forget(self, *, is_exact: bool) -> None:
        """A new driver: it executes the batch again, or repeats the commit."""
        had_asked = self._request != 0
        self._request = 0
        self.leave()
        self.session = ClientSession(self.name, options=self.options)
        if is_exact and had_asked:
            self.world.after(self._rng.random() * 0.5, self._commit, self._execution)
        else:
            for task in self._tasks:
                task.forget()
            self._execute_later()
        self.connect_in(0.05)

    def leave_home(self, edge: str) -> None:
        """Move only if the broker is no longer an edge: no other broker has the sink's batches."""
        host = self.world.hosts[self.home]
        if not host.is_gone and self.home in host.config.network.edges:
            return
        self.history.append(told.SinkLeft(self.world.now, self.sink))
        self._moves += 1
        self.home = edge
        self.session = ClientSession(self.name, options=self.options)
        self._request = 0
        for task in self._tasks:
            task.forget()
            task.home = edge
        if self._is_busy:
            self._execute_later()

    def calm(self) -> None:
        """Begin no other batch."""
        super().calm()
        for task in self._tasks:
            task.calm()

    def is_settled(self) -> bool:
        """Whether it was told of all its batches."""
        return not self._is_busy
