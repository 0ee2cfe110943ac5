"""`[mesh]`: graphs of brokers, and what is said about what is none."""

from pathlib import Path

import pytest

from anabranch.config.errors import ConfigError
from anabranch.config.network_file import loads
from anabranch.config.shape import LINKS_MAX

PATH = Path("/srv/net.toml")
HEAD = '[network]\nname = "n"\n'
RING = (
    HEAD
    + """[mesh]
links = [
    ["a", "b"],
    ["b", "c"],
    ["c", "a"],
]
"""
)
LINE = '[mesh]\nlinks = [["a", "b"], ["c", "b"], ["c", "d"]]\n'


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        loads(text, PATH)
    return str(raised.value).removeprefix("/srv/net.toml:")


def test_a_mesh_is_a_graph_of_brokers_with_clients_and_routed_as_one() -> None:
    file = loads(RING, PATH)
    assert file.routing == "mesh"
    assert file.network.edges == ("a", "b", "c")
    assert set(file.network.links_of("a")) == {"b", "c"}
    assert list(file.brokers) == ["a", "b", "c"]
    assert file.broker_config("b").routing == "mesh"


def test_relays_serve_no_clients_and_have_no_port_for_them() -> None:
    file = loads(RING + 'relays = ["b"]\n', PATH)
    assert file.network.edges == ("a", "c")
    assert ("b", "links") in file.unchosen_ports()
    assert ("b", "clients") not in file.unchosen_ports()


@pytest.mark.parametrize("routing", ["tree", "flood"])
def test_a_mesh_without_a_cycle_can_be_routed_as_a_tree(routing: str) -> None:
    text = f'{HEAD}routing = "{routing}"\n{LINE}relays = ["c"]\n'
    file = loads(text, PATH)
    assert file.routing == routing
    assert file.network.is_tree
    assert file.network.edges == ("a", "b", "d")
    assert set(file.network.links_of("c")) == {"b", "d"}


@pytest.mark.parametrize("shape", ['[tree]\na = ["b"]\n', '[sites.a]\nbrokers = ["a"]\n'])
def test_mesh_routing_runs_on_trees_too(shape: str) -> None:
    assert loads(f'{HEAD}routing = "mesh"\n{shape}', PATH).network.is_tree


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (RING + "[tree]\na = []\n", "9: tree: the file also has [mesh]; describe"),
        (RING + "[sites.x]\n", "9: sites: the file also has [mesh]; describe"),
        (HEAD + "mesh = 3\n", "3: network.mesh: unknown key"),
        (HEAD + "[mesh]\n", "3: mesh.links: has no broker; write links"),
        (HEAD + "[mesh]\nlink = []\n", "4: mesh.link: unknown key; did you mean 'links'?"),
        (
            HEAD + "[mesh]\nlinks = 'a'\n",
            "4: mesh.links: this is a string; it must be an array of pa",
        ),
        (HEAD + "[mesh]\nlinks = ['a']\n", "4: mesh.links[0]: this is a string; write two names"),
        (HEAD + "[mesh]\nlinks = [\n['a', 3]]\n", "5: mesh.links[0][1]: this is an integer; wri"),
        (HEAD + "[mesh]\nlinks = [['a']]\n", "4: mesh.links[0]: has 1 names; write t"),
        (
            HEAD + "[mesh]\nlinks = [['a', 'b', 'c']]\n",
            "4: mesh.links[0]: has 3 names; write two",
        ),
        (HEAD + "[mesh]\nlinks = [['a', 'b c']]\n", "4: mesh.links[0][1]: invalid name 'b c'"),
        (
            RING.replace('"c", "a"', '"c", "c"'),
            "7: mesh.links[2]: broker 'c' is linked to itself; remove",
        ),
        (
            RING.replace('"c", "a"', '"b", "a"'),
            "7: mesh.links[2]: 'b' and 'a' are already linked by links[0]; links go both ways",
        ),
        (
            RING.replace('"c", "a"', '"d", "e"'),
            "7: mesh.links[2]: d, e cannot be reached from 'a'; add a link between",
        ),
        (RING + "relays = 'a'\n", "9: mesh.relays: this is a string; it must be an array of names"),
        (RING + "relays = ['a', 'x']\n", "9: mesh.relays[1]: no link names broker 'x'; known"),
        (RING + "relays = ['a', 'a']\n", "9: mesh.relays[1]: duplicate relay 'a'"),
        (RING + "relays = ['a', 'b', 'c']\n", "9: mesh.relays: every broker is a relay, so no c"),
        (
            RING.replace('"n"\n', '"n"\nrouting = "tree"\n'),
            "8: mesh.links[2]: closes a cycle: c – b – a – c; tree routing requires a tree: remov",
        ),
        (
            RING.replace('"n"\n', '"n"\nrouting = "flood"\n'),
            "8: mesh.links[2]: closes a cycle: c – b – a – c; flood routing requires a tree: remov",
        ),
        (RING + "[brokers.a]\n[brokers.b]\n", "6: mesh.links[1][1]: broker 'c' has no table"),
        (
            RING + "relays = ['b']\n[brokers.a]\n[brokers.b]\nclients = 1\n[brokers.c]\n",
            "12: brokers.b.clients: broker 'b' has no client site, so clients cannot connect to it",
        ),
        (
            RING.replace('"n"\n', '"n"\nleft = ["b"]\n'),
            "3: network.left[0]: 'b' is the name of a former edge",
        ),
    ],
)
def test_wrong_mesh_is_told_with_line_and_key(text: str, expected: str) -> None:
    assert complaint(text).startswith(expected)


def test_a_port_for_clients_of_a_relay_is_told_what_a_mesh_can_do_about_it() -> None:
    tables = "[brokers.a]\n[brokers.b]\nclients = 1\n[brokers.c]\n"
    said = complaint(f"{RING}relays = ['b']\n{tables}")
    assert said.endswith("remove this port, or remove it from mesh.relays")


def test_a_mesh_has_bounds() -> None:
    star = ", ".join(f'["hub", "b{number}"]' for number in range(1_024))
    assert complaint(f"{HEAD}[mesh]\nlinks = [{star}]\n") == (
        "3: mesh: 1025 brokers; a mesh has at most 1024"
    )
    many = ", ".join(f'["a{number}", "b{number}"]' for number in range(LINKS_MAX + 1))
    assert complaint(f"{HEAD}[mesh]\nlinks = [{many}]\n") == (
        "4: mesh.links: 16385 links; a mesh has at most 16384"
    )


def test_a_parted_mesh_names_a_few_of_many() -> None:
    star = ", ".join(f'["hub", "b{number}"]' for number in range(100))
    said = complaint(f'{HEAD}[mesh]\nlinks = [["x", "y"], {star}]\n')
    assert "and 61 more cannot be reached from 'x'" in said
