"""`anabranch up` and `anabranch demo`, as people run them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.cli import demo
from anabranch.cli.main import app
from anabranch.config.network_file import dump, load, loads
from anabranch.config.ports import with_free_ports

pytestmark = pytest.mark.slow

EXIT_BOUND_S = 180.0


def documents(process: subprocess.Popen[str]) -> Iterator[dict[str, object]]:
    """What a command prints, line by line; it ends with the command."""
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_up_restarts_what_dies_and_leaves_nothing_when_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "anabranch", "up", "pair", "--state", str(tmp_path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:
        try:
            said = documents(up)
            pids = {}
            for document in said:
                if "addresses" in document:
                    break
                pids[document["name"]] = int(str(document["pid"]))
            assert len(pids) == 2
            victim, pid = next(iter(pids.items()))
            os.kill(pid, signal.SIGKILL)
            again = next(d for d in said if d["name"] == victim and d["state"] == "ready")
            assert again["restarts"] == 1
            pids[victim] = int(str(again["pid"]))
            up.send_signal(signal.SIGINT)
            assert [d["state"] for d in said] == ["stopped", "stopped"]
            assert up.wait(EXIT_BOUND_S) == 0
            assert [each for each in pids.values() if is_alive(each)] == []
        finally:
            up.kill()


@contextmanager
def running(path: Path, state: Path) -> Iterator[int]:
    """`up` of a file, while it runs; its process."""
    command = [sys.executable, "-m", "anabranch", "up", str(path), "--state", str(state), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:
        try:
            assert any("addresses" in document for document in documents(up))
            yield up.pid
        finally:
            up.terminate()
            assert up.wait(EXIT_BOUND_S) == 0


def refused(*arguments: str) -> str:
    """The one line with which `up` ends."""
    done = CliRunner().invoke(app, ["up", *arguments])
    assert done.exit_code == 2, done.output
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_a_second_up_is_refused_its_directory_and_its_ports(tmp_path: Path) -> None:
    text = '[network]\nname = "one"\n[tree]\na = []\n'
    path, state = tmp_path / "one.toml", tmp_path / "state"
    # The ports are given, so that a second network wants the same ones.
    path.write_text(dump(with_free_ports(loads(text, path))))
    with running(path, state) as pid:
        written = (state / "network.toml").read_bytes()
        port = load(path).broker("a").clients_port
        said = refused(str(path), "--state", str(tmp_path / "other"))
        assert "a did not start: cannot listen for clients of broker 'a'" in said
        assert f"127.0.0.1:{port}: Address already in use" in said
        for again in (str(path), "star"):
            said = refused(again, "--state", str(state))
            assert f"{state} is in use by process {pid}, network one;" in said
        assert (state / "network.toml").read_bytes() == written
    said = refused("star", "--state", str(state))
    assert f"{state} belongs to network 'one', not to 'star'" in said


def test_the_demo_ends_with_a_clean_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "CALM_S", 0.5)
    monkeypatch.setattr(demo, "AWAY_S", 0.5)
    done = CliRunner().invoke(app, ["demo", "--rate", "150", "--no-pipeline", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["brokers"] >= 7
    assert report["verdict"]["published"] == report["verdict"]["confirmed"] > 0
    assert set(report["verdict"]["anomalies"].values()) == {0}
    assert sum("kill -9" in event["text"] for event in report["events"]) == 3
