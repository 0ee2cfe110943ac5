"""The supervisor: keeps a set of programs running, until it is told to stop.

    supervisor = Supervisor(programs, report)
    await supervisor.start()        # returns when every program is ready
    …
    await supervisor.stop()

Each program is in one of these states:

    starting ──► ready ──► down ──► starting …
        └────────────────► down          stopped: for good

Rules:

1. Programs are started by rank, those of one rank together, and stopped the other way round: first
   asked (SIGTERM), then, after `stop_bound_s`, killed. Nothing is left when `stop` returns, and
   nothing survives this process either (`child`).
2. A program that dies is started again: at once if it was ready for `steady_s`, otherwise after a
   delay that doubles from `delay_s` to `delay_s_max`.
3. A program that dies before it was ever ready is mistaken rather than unlucky: `start` stops the
   others and raises an error with its last words; with the very last line if its exit code says
   that somebody has to mend something (2, as with every command of ours).
4. `hold` keeps a program down when it dies next; `release` lets it start again. So whoever kills
   a program on purpose decides how long it stays away.
5. Every change of a state is reported, in order.
6. `take` makes another set of programs of this one: new ones are started, others go on as they are
   and are only started differently next time. `drop` stops programs for good.

State kept: processes, which end with this one.
"""

import asyncio
import signal
from collections.abc import Callable, Iterable
from functools import partial
from itertools import groupby
from typing import Literal

import msgspec

from anabranch.devnet.child import Child, Program
from anabranch.model.errors import LocalError

State = Literal["starting", "ready", "down", "stopped"]
#: What a command ends with if its user has to mend something, and what its last line begins with.
_EXIT_REFUSED = 2
_REFUSAL = "anabranch: error: "


class Change(msgspec.Struct, frozen=True):
    """A program is in another state now."""

    name: str
    state: State
    #: 0 if there is no process.
    pid: int
    #: How often it was started again.
    restarts: int
    #: What more there is to say; often nothing.
    text: str


class SupervisorTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long things may take. Times are in seconds."""

    ready_bound_s: float = 60.0
    poll_s: float = 0.05
    steady_s: float = 5.0
    delay_s: float = 0.1
    delay_s_max: float = 5.0
    stop_bound_s: float = 10.0


def _ignore(_change: Change) -> None:
    """Nobody wants to know."""


class Supervisor:
    """Keeps programs running. See the rules at the top of this module."""

    def __init__(
        self,
        programs: Iterable[Program],
        report: Callable[[Change], None] = _ignore,
        patience: SupervisorTimeouts = SupervisorTimeouts(),  # noqa: B008
    ) -> None:
        self._new_watch = partial(_Watch, report=report, patience=patience)
        self._watches: dict[str, _Watch] = {}
        self._join(programs)

    def _join(self, programs: Iterable[Program]) -> list["_Watch"]:
        """Watch these too, or as they are now; those that are new."""
        given = {program.name: program for program in programs}
        new = [self._new_watch(p) for name, p in given.items() if name not in self._watches]
        for watch in self._watches.values():
            watch.program = given.get(watch.program.name, watch.program)
        every = sorted([*self._watches.values(), *new], key=lambda watch: watch.program.rank)
        self._watches = {watch.program.name: watch for watch in every}
        return new

    async def start(self) -> None:
        """Start everything, and wait until everything is ready."""
        for rank in self._ranks():
            tasks = [asyncio.create_task(watch.start()) for watch in rank]
            try:
                await asyncio.gather(*tasks)
            except BaseException:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self.stop()
                raise

    async def take(self, programs: Iterable[Program]) -> None:
        """Have these programs too; returns when those that are new are ready."""
        new = self._join(programs)
        try:
            await asyncio.gather(*(watch.start() for watch in new))
        except BaseException:
            await self.drop(watch.program.name for watch in new)
            raise

    async def drop(self, names: Iterable[str]) -> None:
        """Stop some programs for good."""
        for name in names:
            await self._watches[name].stop()
            del self._watches[name]

    async def stop(self) -> None:
        """Stop everything."""
        for rank in reversed(self._ranks()):
            await asyncio.gather(*(watch.stop() for watch in rank))

    def _ranks(self) -> list[list["_Watch"]]:
        by_rank = groupby(self._watches.values(), lambda watch: watch.program.rank)
        return [list(watches) for _, watches in by_rank]

    # -- one program ----------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The programs."""
        return tuple(self._watches)

    def state(self, name: str) -> State:
        """Which state a program is in."""
        return self._watches[name].state

    def pid(self, name: str) -> int:
        """The process of a program; 0 if it has none."""
        return self._watches[name].pid

    def restarts(self, name: str) -> int:
        """How often a program was started again."""
        return self._watches[name].restarts

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a program, if it has a process."""
        self._watches[name].send(number)

    def hold(self, name: str) -> None:
        """Do not start it again when it dies."""
        self._watches[name].may_run.clear()

    def release(self, name: str) -> None:
        """Start it again if it is dead."""
        self._watches[name].may_run.set()

    async def reaches(self, name: str, state: State, bound_s: float) -> None:
        """Wait until a program is in this state; `LocalError` if it takes too long."""
        await self._watches[name].reaches(state, bound_s)


class _Watch:
    """One program, and the task that keeps it running."""

    def __init__(
        self, program: Program, report: Callable[[Change], None], patience: SupervisorTimeouts
    ) -> None:
        self.program = program
        self.state: State = "stopped"
        self.restarts = 0
        self.may_run = asyncio.Event()
        self.may_run.set()
        self._report = report
        self._patience = patience
        self._child: Child | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()
        self._was_ready = False

    @property
    def pid(self) -> int:
        return 0 if self._child is None or self._child.ended.done() else self._child.pid

    def send(self, number: signal.Signals) -> None:
        if self._child is not None:
            self._child.send(number)

    async def start(self) -> None:
        self._keeper = asyncio.create_task(self._keep(), name=f"keep {self.program.name}")
        ready = asyncio.create_task(self.reaches("ready", self._patience.ready_bound_s))
        try:
            await asyncio.wait({self._keeper, ready}, return_when=asyncio.FIRST_COMPLETED)
            await (self._keeper if self._keeper.done() else ready)
        finally:
            ready.cancel()

    async def stop(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        if self._child is not None and not self._child.ended.done():
            await self._child.stop(self._patience.stop_bound_s)
        if self.state != "stopped":
            await self._change("stopped")

    async def reaches(self, state: State, bound_s: float) -> None:
        try:
            async with asyncio.timeout(bound_s), self._changed:
                await self._changed.wait_for(lambda: self.state == state)
        except TimeoutError:
            raise LocalError(
                f"{self.program.name} is {self.state}, not {state}, after {bound_s:.0f} s;"
                f" the end of {self.program.log}: {self._last_words()}"
            ) from None

    def _last_words(self, lines: int = 5) -> str:
        return "" if self._child is None else self._child.last_words(lines)

    async def _change(self, state: State, text: str = "") -> None:
        self.state = state
        self._report(Change(self.program.name, state, self.pid, self.restarts, text))
        async with self._changed:
            self._changed.notify_all()

    # -- keeping it running ---------------------------------------------------------------------

    async def _keep(self) -> None:
        delay_s = self._patience.delay_s
        while True:
            child = self._child = Child(self.program)
            await self._change("starting", f"process {child.pid}")
            ready_for_s = await self._live(child)
            code = await asyncio.shield(child.ended)
            await self._change("down", _cause(code))
            self._complain_if_never_ready(code)
            if ready_for_s >= self._patience.steady_s:
                delay_s = self._patience.delay_s
            else:
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, self._patience.delay_s_max)
            await self.may_run.wait()
            self.restarts += 1

    async def _live(self, child: Child) -> float:
        """Until it is dead; how long it was ready."""
        while not child.ended.done():
            if await self.program.is_ready(child.pid):
                break
            await asyncio.wait({child.ended}, timeout=self._patience.poll_s)
        if child.ended.done():
            return 0.0
        clock = asyncio.get_running_loop().time
        since = clock()
        self._was_ready = True
        await self._change("ready")
        await asyncio.shield(child.ended)
        return clock() - since

    def _complain_if_never_ready(self, code: int) -> None:
        if self._was_ready:
            return
        name, refusal = self.program.name, self._last_words(lines=1)
        if code == _EXIT_REFUSED and refusal:
            raise LocalError(f"{name} did not start: {refusal.removeprefix(_REFUSAL)}")
        raise LocalError(
            f"{name} did not start ({_cause(code)}): {self._last_words() or 'it said nothing'};"
            f" all it said is in {self.program.log}"
        )


def _cause(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
