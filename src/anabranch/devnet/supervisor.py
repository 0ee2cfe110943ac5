"""A process supervisor: starts programs, restarts those that die, and stops them.

    supervisor = Supervisor(programs, report)
    await supervisor.start()        # returns when every program is ready
    …
    await supervisor.stop()

Each program is in one of these states:

    starting ──► ready ──► down ──► starting …
        └────────────────► down          stopped: final

Rules

1. Programs start in order of rank, those of one rank in parallel, and stop in reverse order: first
   SIGTERM, then SIGKILL after `stop_bound_s`. No process remains when `stop` returns, and none
   survives this process (`child`).
2. A program that dies is restarted: at once if it was ready for `steady_s`, otherwise after a delay
   that doubles from `delay_s` to `delay_s_max`.
3. A program that dies before it was ever ready is misconfigured: `start` stops the others and
   raises an error with the end of its output, or with its last line if the exit code is 2, which
   anabranch commands use for errors that the user can fix.
4. `hold` keeps a program down after its next exit; `release` lets it start again.
5. Every state change is reported, in order.
6. `take` updates the set of programs: new ones start, existing ones continue and use their new
   command at the next restart. `drop` stops programs permanently.

State: the processes, which end with this one.
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
#: The exit code for errors that the user can fix, and the prefix of the error line.
_EXIT_REFUSED = 2
_REFUSAL = "anabranch: error: "


class Change(msgspec.Struct, frozen=True):
    """A state change of a program."""

    name: str
    state: State
    #: 0 if there is no process.
    pid: int
    restarts: int
    #: Details; may be empty.
    text: str


class SupervisorTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Time limits and delays, in seconds."""

    ready_bound_s: float = 60.0
    poll_s: float = 0.05
    steady_s: float = 5.0
    delay_s: float = 0.1
    delay_s_max: float = 5.0
    stop_bound_s: float = 10.0


def _ignore(_change: Change) -> None:
    pass


class Supervisor:
    """Keeps programs running. See the rules at the top of this module."""

    def __init__(
        self,
        programs: Iterable[Program],
        report: Callable[[Change], None] = _ignore,
        patience: SupervisorTimeouts = SupervisorTimeouts(),  # noqa: B008
    ) -> None:
        self._new_supervised = partial(_Supervised, report=report, patience=patience)
        self._supervised: dict[str, _Supervised] = {}
        self._join(programs)

    def _join(self, programs: Iterable[Program]) -> list["_Supervised"]:
        """Add new programs and update existing ones; returns the new ones."""
        given = {program.name: program for program in programs}
        new = [self._new_supervised(p) for name, p in given.items() if name not in self._supervised]
        for each in self._supervised.values():
            each.program = given.get(each.program.name, each.program)
        ranked = sorted([*self._supervised.values(), *new], key=lambda each: each.program.rank)
        self._supervised = {each.program.name: each for each in ranked}
        return new

    async def start(self) -> None:
        """Start all programs and wait until they are ready."""
        for rank in self._ranks():
            tasks = [asyncio.create_task(each.start()) for each in rank]
            try:
                await asyncio.gather(*tasks)
            except BaseException:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self.stop()
                raise

    async def take(self, programs: Iterable[Program]) -> None:
        """Add or update programs; returns when new ones are ready."""
        new = self._join(programs)
        try:
            await asyncio.gather(*(each.start() for each in new))
        except BaseException:
            await self.drop(each.program.name for each in new)
            raise

    async def drop(self, names: Iterable[str]) -> None:
        """Stop programs permanently."""
        for name in names:
            await self._supervised[name].stop()
            del self._supervised[name]

    async def stop(self) -> None:
        for rank in reversed(self._ranks()):
            await asyncio.gather(*(each.stop() for each in rank))

    def _ranks(self) -> list[list["_Supervised"]]:
        by_rank = groupby(self._supervised.values(), lambda each: each.program.rank)
        return [list(group) for _, group in by_rank]

    # -- one program ----------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._supervised)

    def state(self, name: str) -> State:
        return self._supervised[name].state

    def pid(self, name: str) -> int:
        """The process id of a program; 0 if it has no process."""
        return self._supervised[name].pid

    def restarts(self, name: str) -> int:
        return self._supervised[name].restarts

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a program if it has a process."""
        self._supervised[name].send(number)

    def hold(self, name: str) -> None:
        """Do not restart a program when it dies."""
        self._supervised[name].may_run.clear()

    def release(self, name: str) -> None:
        """Let a held program start again."""
        self._supervised[name].may_run.set()

    async def reaches(self, name: str, state: State, bound_s: float) -> None:
        """Wait until a program is in this state; raises `LocalError` after `bound_s`."""
        await self._supervised[name].reaches(state, bound_s)


class _Supervised:
    """One program and the task that restarts it."""

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
                f" last lines of {self.program.log}: {self._last_words()}"
            ) from None

    def _last_words(self, lines: int = 5) -> str:
        return "" if self._child is None else self._child.last_words(lines)

    async def _change(self, state: State, text: str = "") -> None:
        self.state = state
        self._report(Change(self.program.name, state, self.pid, self.restarts, text))
        async with self._changed:
            self._changed.notify_all()

    # -- the restart loop -----------------------------------------------------------------------

    async def _keep(self) -> None:
        delay_s = self._patience.delay_s
        while True:
            child = self._child = Child(self.program)
            await self._change("starting", f"process {child.pid}")
            ready_for_s = await self._run_once(child)
            code = await asyncio.shield(child.ended)
            await self._change("down", _cause(code))
            self._raise_if_never_ready(code)
            if ready_for_s >= self._patience.steady_s:
                delay_s = self._patience.delay_s
            else:
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, self._patience.delay_s_max)
            await self.may_run.wait()
            self.restarts += 1

    async def _run_once(self, child: Child) -> float:
        """Wait until the process exits; returns how long it was ready."""
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

    def _raise_if_never_ready(self, code: int) -> None:
        if self._was_ready:
            return
        name, refusal = self.program.name, self._last_words(lines=1)
        if code == _EXIT_REFUSED and refusal:
            raise LocalError(f"{name} did not start: {refusal.removeprefix(_REFUSAL)}")
        raise LocalError(
            f"{name} did not start ({_cause(code)}): {self._last_words() or 'no output'};"
            f" see {self.program.log}"
        )


def _cause(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"
