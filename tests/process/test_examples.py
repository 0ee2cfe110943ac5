"""The programs and scripts of examples/ run as they are, against the network that they ask for.

They run in a copy of the folder, because the state of a network is beside its file. Those on Spark
run in tests/spark/test_examples.py.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.broker_parts import environment

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
BOUND_S = 400.0
#: Program → what it prints.
OUTPUT = {
    "quotes": "IBM 99.5\nHPQ 98.0\n",
    "script": "room 3 has 35.0\nroom 4 has 40.0\n",
    "ask": "3 squared is 9 says squares\n7 squared is 49 says squares\n",
    "rises": "IBM rose from 12 to 40\n",
    "order_notice": "notice about writer\nreceived step 2\nreceived step 1\n",
}
SCRIPTS = {"first_hour.sh", "survive.sh"}
#: The first runs in survive.sh, the others with Spark.
ELSEWHERE = {"orders", "sql", "quotes_pipeline"}


def copied(folder: Path) -> Path:
    """A copy of the examples, with the commands `anabranch` and `python` of this environment."""
    state = shutil.ignore_patterns("anabranch-*", "books.sqlite", "spark-warehouse")
    place = Path(shutil.copytree(EXAMPLES, folder / "examples", ignore=state))
    for name, arguments in (("python", ""), ("anabranch", " -m anabranch")):
        command = folder / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{arguments} "$@"\n')
        command.chmod(0o755)
    return place


@contextmanager
def running(place: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A command in the copied folder; what it leaves running is killed."""
    variables = environment()
    variables["PATH"] = f"{place.parent / 'bin'}{os.pathsep}{variables['PATH']}"
    with subprocess.Popen(
        command,
        cwd=place,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def run(place: Path, *command: str) -> tuple[str, str]:
    """What a command printed to stdout and stderr, if it ends well."""
    with running(place, *command) as process:
        printed, complaint = process.communicate(timeout=BOUND_S)
    assert process.returncode == 0, f"{command}: {printed}{complaint}"
    return printed, complaint


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the examples whose network runs, started as the programs say."""
    copy = copied(tmp_path_factory.mktemp("programs"))
    with running(copy, "anabranch", "up", "network.toml") as up:
        assert up.stdout is not None
        assert any(" is up. " in line for line in up.stdout), up.communicate()[1]
        yield copy
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=BOUND_S)
        assert up.returncode == 0


def test_every_example_is_run_and_listed() -> None:
    files = {path for path in EXAMPLES.iterdir() if path.suffix in {".py", ".sh"}}
    assert {path.stem for path in files if path.suffix == ".py"} == OUTPUT.keys() | ELSEWHERE
    assert {path.name for path in files if path.suffix == ".sh"} == SCRIPTS
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"[{path.name}]({path.name})" in listed for path in files)


@pytest.mark.parametrize("name", OUTPUT)
def test_a_program_prints_what_it_should(place: Path, name: str) -> None:
    assert run(place, "python", f"{name}.py") == (OUTPUT[name], "")


def test_the_first_hour_in_a_shell(tmp_path: Path) -> None:
    printed, complaint = run(copied(tmp_path), "sh", "first_hour.sh")
    parts = {part.split("\n", 1)[0]: part for part in printed.split("# ")}
    _, check, publish, read, mistake, pattern, look = parts.values()
    assert "5 brokers: 3 edges with clients; 2 relays" in check
    assert [line.split(" at ")[0] for line in publish.splitlines()[1:]] == [
        "published 1 event",
        "published 3 events",
    ]
    events = [line.split(maxsplit=3)[3] for line in read.splitlines()[1:] if "=" in line]
    assert sorted(events[:3]) == [
        "symbol=DEC price=17.25",
        "symbol=HPQ price=31",
        "symbol=IBM price=12.5",
    ]
    assert events[3:] == ["symbol=IBM price=13"]
    assert mistake.endswith("exit code 2\n")
    assert "  price => 10\n        ^\n" in complaint
    match = json.loads(next(line for line in pattern.splitlines() if line.startswith("{")))
    assert [event["attributes"]["price"] for event in match["events"]] == [7, 31]
    assert "client is" in look
    assert "5/5 up" in look


def test_orders_are_booked_once_and_in_order_while_a_program_and_a_broker_are_killed(
    tmp_path: Path,
) -> None:
    place = copied(tmp_path)
    for _ in range(2):  # what the first run left does not disturb the second
        lines = run(place, "sh", "survive.sh")[0].splitlines()
        assert set(lines[:-1]) == {
            "killed the accounts",
            "killed north, the broker of the accounts",
            "sold 400 orders",
        }
        assert lines[-1] == "400 orders, each once, in order"
