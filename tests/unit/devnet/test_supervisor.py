"""The supervisor starts, restarts and ends processes, and leaves none behind."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from anabranch.devnet.child import Program
from anabranch.devnet.supervisor import Change, Supervisor, SupervisorTimeouts
from anabranch.model.errors import LocalError

BOUND_S = 120.0
SERVE = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SERVE
#: Starts a supervised process, says its id, and waits to be killed itself.
NEST = """
import asyncio, sys
from pathlib import Path
from anabranch.devnet.child import Child, Program

async def main():
    async def ready(pid): return True
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    log = Path(sys.argv[1])
    child = Child(Program(name="inner", command=command, log=log, is_ready=ready))
    print(child.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def program(folder: Path, name: str = "one", code: str = SERVE, rank: int = 0) -> Program:
    """It is ready as soon as its file is there; being asked takes the file away."""
    sign = folder / f"{name}.ready"

    async def is_ready(_pid: int) -> bool:
        is_there = sign.exists()
        sign.unlink(missing_ok=True)
        return is_there

    command = (sys.executable, "-c", code, str(sign))
    return Program(
        name=name, command=command, log=folder / f"{name}.log", is_ready=is_ready, rank=rank
    )


def run(work: Coroutine[None, None, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work, BOUND_S)

    asyncio.run(bounded())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_program_is_started_again(tmp_path: Path) -> None:
    async def work() -> None:
        supervisor = Supervisor([program(tmp_path)])
        await supervisor.start()
        first = supervisor.pid("one")
        supervisor.send("one", signal.SIGKILL)
        await supervisor.reaches("one", "down", BOUND_S)
        await supervisor.reaches("one", "ready", BOUND_S)
        assert supervisor.pid("one") not in {0, first}
        assert supervisor.restarts("one") == 1
        await supervisor.stop()

    run(work())


def test_a_held_program_stays_down_until_it_is_released(tmp_path: Path) -> None:
    async def work() -> None:
        patience = SupervisorTimeouts(delay_s=0.001, delay_s_max=0.001)
        supervisor = Supervisor([program(tmp_path)], patience=patience)
        await supervisor.start()
        supervisor.hold("one")
        supervisor.send("one", signal.SIGKILL)
        await supervisor.reaches("one", "down", BOUND_S)
        with pytest.raises(LocalError, match="one is down, not starting"):
            await supervisor.reaches("one", "starting", 0.2)
        supervisor.release("one")
        await supervisor.reaches("one", "ready", BOUND_S)
        await supervisor.stop()

    run(work())


def test_stopping_leaves_no_process_even_if_one_does_not_listen(tmp_path: Path) -> None:
    async def work() -> None:
        programs = [program(tmp_path), program(tmp_path, "deaf", DEAF)]
        supervisor = Supervisor(programs, patience=SupervisorTimeouts(stop_bound_s=0.2))
        await supervisor.start()
        pids = [supervisor.pid(name) for name in supervisor.names]
        await supervisor.stop()
        assert [pid for pid in pids if is_alive(pid)] == []
        assert [supervisor.state(name) for name in supervisor.names] == ["stopped", "stopped"]

    run(work())


def test_higher_ranks_start_later_and_stop_earlier(tmp_path: Path) -> None:
    changes: list[Change] = []

    async def work() -> None:
        programs = [program(tmp_path, "edge", rank=1), program(tmp_path, "relay")]
        supervisor = Supervisor(programs, changes.append)
        await supervisor.start()
        await supervisor.stop()

    run(work())
    seen = [(change.name, change.state) for change in changes]
    states = ("starting", "ready", "stopped")
    order = [("relay", s) for s in states[:2]] + [("edge", s) for s in states]
    assert seen == [*order, ("relay", "stopped")]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import sys; sys.exit('the port is taken')", "the port is taken"),
        ("import os; os._exit(3)", "exited with code 3.*no output"),
        ("import os; os._exit(2)", "exited with code 2.*no output"),
    ],
)
def test_a_program_that_never_starts_is_an_error_with_its_last_words(
    tmp_path: Path, code: str, expected: str
) -> None:
    async def work() -> None:
        supervisor = Supervisor([program(tmp_path, "good"), program(tmp_path, "bad", code)])
        with pytest.raises(LocalError, match=expected):
            await supervisor.start()
        assert supervisor.pid("good") == 0

    run(work())


REFUSE = """
import os
print("long ago")
print("anabranch: error: the port is taken; take another one", flush=True)
os._exit(2)
"""


def test_a_program_that_refuses_to_start_is_an_error_with_its_last_line(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(LocalError) as caught:
            await Supervisor([program(tmp_path, code=REFUSE)]).start()
        assert str(caught.value) == "one did not start: the port is taken; take another one"

    run(work())


def test_last_words_are_not_those_of_an_earlier_life(tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text("anabranch: error: of yesterday\n")

    async def work() -> None:
        with pytest.raises(LocalError, match="no output"):
            await Supervisor([program(tmp_path, code="import os; os._exit(2)")]).start()

    run(work())


def test_a_program_is_ready_only_if_its_own_process_is(tmp_path: Path) -> None:
    """Somebody else serves where it should, and it dies."""
    asked: list[int] = []

    async def is_ready(pid: int) -> bool:
        asked.append(pid)
        return pid == 1

    async def work() -> None:
        command = (sys.executable, "-c", REFUSE)
        one = Program(name="one", command=command, log=tmp_path / "log", is_ready=is_ready)
        changes: list[Change] = []
        with pytest.raises(LocalError, match="the port is taken"):
            await Supervisor([one], changes.append).start()
        assert set(asked) == {changes[0].pid}
        assert [change.state for change in changes] == ["starting", "down", "stopped"]

    run(work())


def test_waiting_in_vain_says_what_the_program_said(tmp_path: Path) -> None:
    async def work() -> None:
        mute = program(tmp_path, code="import time; print('thinking', flush=True); time.sleep(600)")
        supervisor = Supervisor(
            [mute], patience=SupervisorTimeouts(ready_bound_s=1.0, stop_bound_s=5.0)
        )
        with pytest.raises(LocalError, match=r"one is starting, not ready, after 1 s.*thinking"):
            await supervisor.start()
        assert supervisor.pid("one") == 0

    run(work())


def test_a_child_dies_with_its_parent_even_by_sigkill(
    tmp_path: Path, wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    command = [sys.executable, "-c", NEST, str(tmp_path / "inner.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        inner = int(outer.stdout.readline())
        assert is_alive(inner)
        outer.kill()
    wait_until(lambda: not is_alive(inner) or is_zombie(inner), "the child of a killed parent dies")


def is_zombie(pid: int) -> bool:
    """Dead, and not yet buried by whoever inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_programs_join_and_leave_while_others_go_on(tmp_path: Path) -> None:
    async def work() -> None:
        supervisor = Supervisor([program(tmp_path)])
        await supervisor.start()
        first = supervisor.pid("one")
        await supervisor.take([program(tmp_path), program(tmp_path, "two", rank=1)])
        assert list(supervisor.names) == ["one", "two"]
        assert (supervisor.pid("one"), supervisor.state("two")) == (first, "ready")
        await supervisor.drop(["one"])
        assert list(supervisor.names) == ["two"]
        assert not is_alive(first)
        await supervisor.stop()

    run(work())


def test_a_program_that_cannot_join_is_not_there(tmp_path: Path) -> None:
    async def work() -> None:
        supervisor = Supervisor([program(tmp_path)])
        await supervisor.start()
        bad = program(tmp_path, "bad", "import sys; sys.exit('no room')")
        with pytest.raises(LocalError, match="no room"):
            await supervisor.take([bad])
        assert supervisor.names == ("one",)
        await supervisor.stop()

    run(work())
