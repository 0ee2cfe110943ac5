"""What the README and `anabranch up` tell people to type does what they say.

The lines are taken from where people read them, and typed as they stand there; only the shape of
the network is a smaller one, with free ports too. (What is particular about the files of all shapes
is in tests/unit/devnet/test_directory.py.)
"""

import json
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import msgspec
import pytest

from anabranch.config.certificates import make_certificates
from anabranch.config.network_file import NetworkFile, load
from anabranch.config.network_location import running_file
from anabranch.devnet.observe import ask
from anabranch.node.status import Status
from tests.broker_parts import environment
from tests.process_parts import run, until_asked

pytestmark = pytest.mark.slow

README = Path(__file__).resolve().parents[2] / "README.md"
BOUND_S = 180.0
#: With a blank in its place, which has to survive the way to another terminal.
FOLDER = "my networks"
TLS = """
[network]
name = "safe"
[tree]
a = []
[tls]
ca = "certificates/ca.pem"
certificate = "certificates/{broker}.pem"
key = "certificates/{broker}.key"
"""


def of_readme() -> list[str]:
    """The lines below "As a network"."""
    section = README.read_text().split("\n## As a network\n")[1].split("\n## ")[0]
    return [line.strip() for line in section.splitlines() if line.startswith("    ")]


class Terminals:
    """A terminal for each command, all in one directory. What still runs ends with the block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[str]] = []

    def begin(self, line: str) -> subprocess.Popen[str]:
        """Begin a command; it is killed if it takes too long."""
        program, *words = shlex.split(line, comments=True)
        assert program == "anabranch"
        process = subprocess.Popen(
            [sys.executable, "-m", "anabranch", *words],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self._running.append(process)
        bound = threading.Timer(BOUND_S, process.kill)
        bound.daemon = True
        bound.start()
        return process

    def finish(self, line: str) -> str:
        """Run a command to its end, which is a good one; what it printed."""
        process = self.begin(line)
        printed, complaint = process.communicate()
        assert process.returncode == 0, f"{line}: {complaint}"
        return printed

    def __enter__(self) -> "Terminals":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # The last one that was begun first: readers go before the network.
        for process in reversed(self._running):
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.communicate()


def welcome(up: subprocess.Popen[str]) -> list[str]:
    """What `up` says when everything runs."""
    assert up.stdout is not None
    for line in up.stdout:
        if " is up. " in line:
            return [up.stdout.readline() for _ in range(4)]
    raise AssertionError(f"it did not start: {up.communicate()[1]}")


async def started(sub: subprocess.Popen[str], file: NetworkFile) -> None:
    """Wait until there is a subscription, and it has started on every stream."""

    async def is_so() -> bool:
        assert sub.poll() is None, sub.communicate()[1]
        for edge in file.network.edges:
            settings = file.broker(edge)
            answer = await ask(settings.observe_host, settings.observe_port, "/status")
            status = answer and msgspec.json.decode(answer[1], type=Status)
            if status and status.subscriptions:
                return all(stream.live for stream in status.streams)
        return False

    await until_asked(is_so, "the subscription has started", BOUND_S)


async def detects(file: NetworkFile) -> None:
    """Wait until there is a pattern, and it counts the events of every stream."""

    async def is_so() -> bool:
        for edge in file.network.edges:
            settings = file.broker(edge)
            answer = await ask(settings.observe_host, settings.observe_port, "/status")
            status = answer and msgspec.json.decode(answer[1], type=Status)
            if status and status.patterns and status.patterns.points:
                return all(each.started == each.streams for each in status.patterns.points)
        return False

    await until_asked(is_so, "the pattern is detected", BOUND_S)


def find_a_match(terminals: Terminals, line: str, publish: str, path: Path) -> None:
    """Type what asks for a pattern, and publish a match of it."""
    sub = terminals.begin(line)
    run(detects(running_file(path, "observe")))
    terminals.finish(publish)
    terminals.finish(publish.replace("price=12.5", "price=40"))
    assert sub.stdout is not None
    match = json.loads(sub.stdout.readline())
    assert [each["attributes"]["price"] for each in match["events"]] == [12.5, 40]


def carry_out(terminals: Terminals, lines: Iterable[str], path: Path) -> None:
    """Type `sub`, `pub` and `status` as they are written, and see that they do their work."""
    subscribe, publish, *patterns, status = lines
    sub = terminals.begin(subscribe)
    run(started(sub, running_file(path, "observe")))
    assert terminals.finish(publish).startswith("published 1 event")
    assert sub.stdout is not None
    event = json.loads(sub.stdout.readline())
    assert event["attributes"] == {"symbol": "IBM", "price": 12.5}
    for line in patterns:
        find_a_match(terminals, line, publish, path)
    table = terminals.finish(status)
    for broker in load(path).brokers:
        assert f"\n{broker} " in table
    assert "does not answer" not in table


def test_the_lines_of_the_readme_work_as_they_are_written(tmp_path: Path) -> None:
    new, up, *others = of_readme()
    smaller = new.replace(" new redundant ", " new star ")
    assert smaller != new
    with Terminals(tmp_path) as terminals:
        terminals.finish(smaller)
        welcome(terminals.begin(up))
        carry_out(terminals, others, tmp_path / "network.toml")


def test_what_up_suggests_works_in_any_terminal_also_with_tls(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    path = folder / "safe.toml"
    path.write_text(TLS)
    with Terminals(folder) as here, Terminals(tmp_path) as elsewhere:
        make_certificates(load(path))
        said = welcome(here.begin("anabranch up safe.toml"))
        suggested = [line.strip() for line in said if line.startswith("  ")]
        carry_out(elsewhere, suggested, path)
