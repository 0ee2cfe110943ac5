"""Free ports for a network on this machine."""

import socket
from pathlib import Path

import pytest

from anabranch.config import ports
from anabranch.config.errors import ConfigError
from anabranch.config.network_file import loads
from anabranch.config.ports import with_free_ports

PATH = Path("/srv/n.toml")
TREE = '[network]\nname = "n"\n[tree]\na = ["b", "c"]\n'


def test_every_port_that_is_needed_is_chosen_and_can_be_had() -> None:
    file = with_free_ports(loads(TREE, PATH))
    assert file.unchosen_ports() == []
    chosen = [
        port
        for b in file.brokers.values()
        for port in (b.clients_port, b.links_port, b.observe_port)
    ]
    assert len(set(chosen)) == 9
    for port in chosen:
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", port))


def test_no_port_is_one_that_outgoing_connections_get() -> None:
    lowest = ports._outgoing_lowest()
    file = with_free_ports(loads(TREE, PATH))
    assert all(b.links_port < lowest for b in file.brokers.values()) or lowest < 11_000


def test_given_ports_stay() -> None:
    text = TREE + "[brokers.a]\nclients = 4100\n[brokers.b]\n[brokers.c]\nlinks = 4101\n"
    file = with_free_ports(loads(text, PATH))
    assert file.broker("a").clients_port == 4100
    assert file.broker("c").links_port == 4101


def test_taken_ports_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        taken = holder.getsockname()[1]
        monkeypatch.setattr(ports, "_candidates", lambda: [taken, 0, 0])
        file = with_free_ports(loads('[network]\nname = "n"\n[tree]\na = []\n', PATH))
    assert taken not in (file.broker("a").clients_port, file.broker("a").observe_port)


def test_address_of_another_machine_is_named() -> None:
    text = TREE + '[brokers.a]\nhost = "192.0.2.1"\n[brokers.b]\n[brokers.c]\n'
    with pytest.raises(ConfigError, match=r"no free port on 192\.0\.2\.1: .*another machine"):
        with_free_ports(loads(text + "[tls]\nplaintext = true\n", PATH))
