"""The directory of a network on this machine is found, held, and nobody else's."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anabranch.cli.network import SHAPES, ShapeName, example
from anabranch.config.addresses import PortName
from anabranch.config.network_file import load, loads
from anabranch.config.network_location import RUNNING_FILE, home_of, running_file
from anabranch.devnet.directory import hold
from anabranch.devnet.network import LocalNetwork
from anabranch.devnet.sample_data import network_from
from anabranch.model.errors import LocalError

PAIR = '[network]\nname = "pair"\n[tree]\na = ["b"]\n'
STAR = '[network]\nname = "star"\n[tree]\na = ["b"]\n'


@contextmanager
def settled(path: Path, directory: Path) -> Iterator[LocalNetwork]:
    """A network that has its directory; no broker is started."""
    network = LocalNetwork(load(path), directory)
    try:
        yield network
    finally:
        asyncio.run(network.stop())


def written(folder: Path, text: str = PAIR, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# -- where it is


def test_it_is_beside_the_file_and_for_a_shape_here(tmp_path: Path) -> None:
    assert home_of(load(written(tmp_path))) == tmp_path / "anabranch-pair"
    assert home_of(network_from("redundant")) == Path("anabranch-redundant")


def test_a_file_that_a_network_wrote_is_at_home(tmp_path: Path) -> None:
    with settled(written(tmp_path), tmp_path / "elsewhere") as network:
        assert home_of(load(network.path)) == network.directory


# -- whose it is


def test_a_directory_in_use_is_refused_with_process_and_network(tmp_path: Path) -> None:
    path = written(tmp_path)
    with settled(path, tmp_path / "p2") as network:
        before = network.path.read_bytes()
        holder = f"p2 is in use by process {os.getpid()}, network pair;"
        for text in (PAIR, STAR):
            with pytest.raises(LocalError, match=holder):
                LocalNetwork(loads(text, path), tmp_path / "p2")
        assert network.path.read_bytes() == before
    with settled(path, tmp_path / "p2"):
        pass


def test_a_directory_of_another_network_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = written(tmp_path)
    with settled(path, tmp_path / "p2") as network:
        before = network.path.read_bytes()
    for _ in range(2):
        with pytest.raises(LocalError, match=r"p2 belongs to network 'pair', not to 'star'"):
            LocalNetwork(loads(STAR, path), tmp_path / "p2")
    assert network.path.read_bytes() == before


def test_a_network_that_cannot_be_settled_lets_go_of_the_directory(tmp_path: Path) -> None:
    far = PAIR + '[tls]\nplaintext = true\n[brokers.a]\nhost = "192.0.2.1"\n[brokers.b]\n'
    with pytest.raises(LocalError, match="no free port on 192"):
        LocalNetwork(loads(far, tmp_path / "far.toml"), tmp_path / "p2")
    os.close(hold(tmp_path / "p2", "pair"))


# -- what it tells others


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("port", ["clients", "observe"])
def test_the_file_of_every_shape_leads_to_the_network_that_runs(
    tmp_path: Path, shape: ShapeName, port: PortName
) -> None:
    path = written(tmp_path, example(shape), RUNNING_FILE)
    file = load(path)
    with settled(path, home_of(file)) as network:
        found = running_file(path, port)
        assert {name: found.broker(name).port(port) for name in found.brokers} == {
            name: network.file.broker(name).port(port) for name in file.brokers
        }
        assert not [name for _, name in found.unchosen_ports() if name == port]


def test_a_file_that_says_the_port_is_taken_at_its_word(tmp_path: Path) -> None:
    fixed = "[brokers.a]\nclients = 4100\n[brokers.b]\nclients = 4200\n"
    path = written(tmp_path, PAIR + fixed)
    with settled(path, home_of(load(path))):
        found = running_file(path, "clients")
        assert found.path == path
        assert found.broker("b").clients_port == 4200
        assert running_file(path, "observe").path.name == RUNNING_FILE


def test_a_network_that_was_never_started_is_an_error_that_says_what_to_give(
    tmp_path: Path,
) -> None:
    path = written(tmp_path)
    with pytest.raises(LocalError) as caught:
        running_file(path, "clients")
    assert str(tmp_path / "anabranch-pair" / RUNNING_FILE) in str(caught.value)
    assert f"`anabranch up {path}`" in str(caught.value)
    assert "--network DIR/network.toml" in str(caught.value)


def test_ports_that_are_known_will_do_if_nothing_was_started_here(tmp_path: Path) -> None:
    path = written(tmp_path, PAIR + "[brokers.a]\nclients = 4100\n[brokers.b]\n")
    assert running_file(path, "clients").broker("a").clients_port == 4100
