"""What `up` says about its brokers, and what it tells people to type."""

import asyncio
import io
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from anabranch.cli.up import line_of, next_steps, table_of
from anabranch.devnet.network import LocalNetwork
from anabranch.devnet.sample_data import network_from
from anabranch.devnet.supervisor import Change


@pytest.fixture
def network(tmp_path: Path) -> Iterator[LocalNetwork]:
    """Eleven brokers, none of which is started."""
    network = LocalNetwork(network_from("redundant"), tmp_path / "a b")
    yield network
    asyncio.run(network.stop())


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (Change("a", "starting", 7, 0, "process 7"), "a: starting, process 7"),
        (Change("a", "ready", 7, 0, ""), "a: ready"),
        (Change("a", "down", 0, 0, "killed by SIGKILL"), "a: down, killed by SIGKILL"),
        (Change("a", "stopped", 0, 0, ""), "a: stopped"),
    ],
)
def test_a_change_is_a_line_that_says_everything_once(change: Change, line: str) -> None:
    assert line_of(change) == line


def test_the_table_fits_80_columns_with_every_port(network: LocalNetwork) -> None:
    changes = {name: Change(name, "starting", 1234567, 12, "") for name in network.brokers}
    screen = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    screen.print(table_of(network, changes, 80))
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    for name, settings in network.file.brokers.items():
        (row,) = (line.split() for line in shown.splitlines() if line.split()[0] == name)
        assert "starting" in row
        assert f"127.0.0.1:{settings.observe_port}" in row
        if settings.clients_port:
            assert f"127.0.0.1:{settings.clients_port}" in row


def test_every_command_it_suggests_is_given_the_file_whatever_its_name(
    network: LocalNetwork,
) -> None:
    commands = [shlex.split(line) for line in next_steps(network) if line.startswith("  ")]
    assert [words[:2] for words in commands] == [
        ["anabranch", "sub"],
        ["anabranch", "pub"],
        ["anabranch", "status"],
    ]
    for words in commands:
        assert words[words.index("--network") + 1] == str(network.path)
