"""`anabranch broker`, `status` and `top`: a real process, and what the commands say about it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.cli.main import app
from anabranch.cli.status import duration, size
from tests.broker_parts import Brokers

runner = CliRunner()
BOUND_S = 180.0


class Process:
    """A broker that serves."""

    def __init__(self, directory: Path) -> None:
        self.file = network_file(directory)
        self.child = start(self.file, "--log-format", "json")
        assert self.child.stdout is not None
        self.ready = self.child.stdout.readline().decode().split()
        self.places = dict(word.split("=") for word in self.ready[2:])

    def end(self, number: signal.Signals) -> tuple[int, str]:
        """Exit code, and what was logged."""
        self.child.send_signal(number)
        return end_of(self.child)


def end_of(child: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Exit code, and what was logged."""
    with child:
        _, said = child.communicate(timeout=BOUND_S)
    return child.returncode, said.decode()


def network_file(directory: Path) -> Path:
    path = directory / "one.toml"
    path.write_text('[network]\nname = "one"\n[tree]\na = []\n')
    return path


def start(file: Path, *more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "anabranch", "broker", "a", "-n", str(file), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One that no test ends."""
    process = Process(tmp_path_factory.mktemp("lasting"))
    yield process
    process.end(signal.SIGTERM)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    """One that a test may end."""
    process = Process(tmp_path)
    yield process
    if process.child.poll() is None:
        process.end(signal.SIGKILL)


def test_it_says_where_it_listens_and_ends_in_order(process: Process) -> None:
    assert process.ready[:2] == ["ready", "a"]
    assert set(process.places) == {"clients", "observe"}
    code, said = process.end(signal.SIGTERM)
    assert code == 0
    lines = [json.loads(line) for line in said.splitlines()]
    assert {line["broker"] for line in lines} == {"a"}
    assert "stopping" in lines[-1]["text"]


def test_what_it_is_told_by_ctrl_c_is_the_same(process: Process) -> None:
    assert process.end(signal.SIGINT)[0] == 0


def test_status_and_top_show_it(lasting: Process) -> None:
    place = lasting.places["observe"]
    table = runner.invoke(app, ["status", place])
    assert table.exit_code == 0
    assert "ready" in table.stdout
    told = json.loads(runner.invoke(app, ["status", place, "--json"]).stdout)
    assert (told["broker"], told["state"]) == ("a", "ready")
    top = runner.invoke(app, ["top", "--once", "--every", "0.1", place])
    assert top.exit_code == 0
    assert "1/1 up" in top.stdout
    rates = json.loads(
        runner.invoke(app, ["top", "--once", "--json", "--every", "0.1", place]).stdout
    )
    assert rates["taken/s"] == 0


class Top:
    """`top` as a process; its output goes to a pipe or to a terminal."""

    def __init__(self, *options: str, stdout: int = subprocess.PIPE, stdin: int | None = None):
        self.child = subprocess.Popen(
            [sys.executable, "-m", "anabranch", "top", "--every", "0.1", *options],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        )

    def end(self, number: signal.Signals | None = None) -> int:
        if number is not None:
            self.child.send_signal(number)
        with self.child:
            _, said = self.child.communicate(timeout=BOUND_S)
        assert said == b""
        return self.child.returncode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_top_into_a_pipe_prints_a_table_per_interval_until_interrupted(
    lasting: Process, number: signal.Signals
) -> None:
    top = Top(lasting.places["observe"])
    assert top.child.stdout is not None
    lines = [top.child.stdout.readline().decode().split() for _ in range(10)]
    for start in (0, 5):
        (time,), head, broker, whole, blank = lines[start : start + 5]
        assert datetime.fromisoformat(time).tzinfo is not None
        assert (head[0], broker[0], whole[0], blank) == ("broker", "a", "all", [])
    assert top.end(number) == 0


def test_top_prints_json_for_every_interval(lasting: Process) -> None:
    top = Top(lasting.places["observe"], "--json")
    assert top.child.stdout is not None
    first, second = (json.loads(top.child.stdout.readline()) for _ in range(2))
    assert (first["broker"], first["state"], second["taken/s"]) == ("a", "ready", 0)
    assert first["time_ns"] < second["time_ns"]
    whole = datetime.fromisoformat(first["time"][:19]).replace(tzinfo=UTC)
    assert whole.timestamp() == first["time_ns"] // 10**9
    assert top.end(signal.SIGINT) == 0


@pytest.mark.parametrize("keys", [b"q", b"wait, q"])
def test_top_on_a_terminal_ends_when_q_is_pressed(lasting: Process, keys: bytes) -> None:
    ours, theirs = os.openpty()
    top = Top(lasting.places["observe"], stdout=theirs, stdin=theirs)
    os.close(theirs)
    shown = b""
    while b"q quits" not in shown:
        shown += os.read(ours, 65_536)
    os.write(ours, keys)
    assert top.end() == 0
    os.close(ours)


def test_status_and_top_show_the_token_that_a_broker_wants(tmp_path: Path) -> None:
    token = "a-secret-of-some-length"
    secret, other = tmp_path / "a.token", tmp_path / "other.token"
    for path, text in (secret, token), (other, "another-secret-of-some-length"):
        path.touch(mode=0o600)
        path.write_text(f"{text}\n")
    lines = '[brokers.a]\nobserve_token_file = "{broker}.token"\n'
    with Brokers(tmp_path, f'[network]\nname = "one"\n[tree]\na = []\n{lines}') as brokers:
        brokers.start("a")
        place = str(brokers["a"].places["observe"])
        none = runner.invoke(app, ["status", place])
        assert none.exit_code == 1
        assert "it requires a token; give --token-file" in " ".join(none.stdout.split())
        wrong = runner.invoke(app, ["status", place, "--token-file", str(other)])
        assert wrong.exit_code == 1
        assert "it rejects the token in" in " ".join(wrong.stdout.split())
        shown = ["--token-file", str(secret)]
        for command in (
            ["status", place, "--json", *shown],
            ["status", "--network", str(brokers.path), "--json"],
            ["top", "--once", "--every", "0.1", "--json", place, *shown],
            ["pattern", "list", place, *shown],
        ):
            done = runner.invoke(app, command)
            assert done.exit_code == 0, done.stdout
            assert token not in done.stdout
        assert brokers["a"].end() == 0
        assert token not in brokers["a"].said()
    assert token not in brokers.path.read_text()


def test_a_broker_that_does_not_answer_is_down(tmp_path: Path) -> None:
    path = tmp_path / "one.toml"
    path.write_text(
        '[network]\nname = "one"\n[tree]\na = []\n[brokers.a]\nclients = 2\nobserve = 1\n'
    )
    done = runner.invoke(app, ["status", "--network", str(path)])
    assert done.exit_code == 1
    assert "a: does not answer at 127.0.0.1:1" in done.stdout
    told = runner.invoke(app, ["status", "--network", str(path), "--json"])
    assert json.loads(told.stdout) == {"broker": "a", "state": "down"}


@pytest.mark.parametrize("command", ["status", "top"])
@pytest.mark.parametrize("arguments", [[], ["nowhere"], ["127.0.0.1:99999"]])
def test_brokers_that_cannot_be_meant_are_refused(command: str, arguments: list[str]) -> None:
    done = runner.invoke(app, [command, *arguments])
    assert done.exit_code == 2
    assert "HOST:PORT" in done.stderr or "give --network FILE or" in done.stderr


def test_a_port_in_use_is_one_clear_line(lasting: Process, tmp_path: Path) -> None:
    port = lasting.places["clients"].rpartition(":")[2]
    path = tmp_path / "two.toml"
    path.write_text(f'[network]\nname = "one"\n[tree]\na = []\n[brokers.a]\nclients = {port}\n')
    code, said = end_of(start(path))
    assert code == 2
    assert said.count("\n") == 1
    assert f"127.0.0.1:{port}: Address already in use; another process listens" in said


def test_a_state_directory_in_use_is_one_clear_line(lasting: Process) -> None:
    code, said = end_of(start(lasting.file))
    assert code == 2
    assert said.count("\n") == 1
    assert "broker a of network one" in said


def test_an_unknown_broker_is_refused_with_those_there_are(tmp_path: Path) -> None:
    done = runner.invoke(app, ["broker", "b", "--network", str(network_file(tmp_path))])
    assert done.exit_code == 2
    assert "unknown broker 'b'" in done.stderr


def test_sizes_and_times_are_for_people() -> None:
    assert [size(n) for n in (0, 999, 1_500, 25_000, 3_000_000)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "25 kB",
        "3.0 MB",
    ]
    assert [duration(s) for s in (5.9, 65, 3_700, 90_000)] == [
        "5 s",
        "1 min 5 s",
        "1 h 1 min",
        "1 d 1 h",
    ]
