"""A network file's next revision, with a broker or a site more or less."""

from collections.abc import Callable
from pathlib import Path

import pytest

import anabranch.config
from anabranch.config import network_edit as editing
from anabranch.config.errors import ConfigError
from anabranch.config.network_edit import At
from anabranch.config.network_file import NetworkFile, load, loads
from anabranch.config.shape import MeshShape, TreeShape

EXAMPLES = Path(anabranch.config.__file__).parent / "examples"

TREE = '[network]\nname = "t"\nrevision = 4\n[tree]\na = ["b", "c"]\n'
SITES = """
# who is where
[network]
name = "s"
[sites.core]
brokers = ["r1", "r2"]
joins = ["e1", "e2"]
[sites.e1]
brokers = ["e1"]
[sites.e2]
brokers = ["e2"]
[brokers.r1]
links = 4101
[brokers.r2]
[brokers.e1]
state = "elsewhere/e1"
[brokers.e2]
"""
MESH = """
[network]
name = "m"
revision = 2
[mesh]
links = [["a", "b"], ["b", "c"], ["c", "a"], ["c", "d"]]
relays = ["b"]
"""
Change = Callable[[NetworkFile], NetworkFile]


def file(text: str) -> NetworkFile:
    return loads(text, Path("nets/n.toml"))


def test_a_relay_joins_a_site() -> None:
    after = editing.add_relay(file(SITES), "r3", "core", At(host="127.0.0.2", links=4200))
    assert after.network.members("core") == ("r1", "r2", "r3")
    assert after.network.edges == ("e1", "e2")
    assert (after.revision, after.broker("r3").host, after.broker("r3").links_port) == (
        2,
        "127.0.0.2",
        4200,
    )
    assert after.broker("r1") == file(SITES).broker("r1")


def test_an_edge_joins_below_a_site_and_below_a_broker_of_a_tree() -> None:
    sites = editing.add_edge(file(SITES), "e3", "core", At(clients=4300))
    assert sites.network.edges == ("e1", "e2", "e3")
    assert sites.network.neighbours("e3") == ("core",)
    tree = editing.add_edge(file(TREE), "d", "b", At())
    assert tree.network.edges == ("a", "b", "c", "d")
    assert set(tree.network.links_of("d")) == {"b"}
    assert tree.revision == 5


def test_a_site_joins_with_its_brokers() -> None:
    after = editing.add_site(file(SITES), "south", ["s1", "s2"], ["core"], At())
    assert after.network.members("south") == ("s1", "s2")
    assert after.network.neighbours("south") == ("core",)


def test_what_goes_is_gone_and_an_edge_is_remembered() -> None:
    after = editing.remove_broker(file(SITES), "r1")
    assert (after.network.members("core"), after.left) == (("r2",), ())
    after = editing.remove_broker(after, "e2")
    assert (after.network.edges, after.left, after.revision) == (("e1",), ("e2",), 3)
    assert set(after.brokers) == {"r2", "e1"}
    after = editing.remove_site(file(SITES), "e1")
    assert (after.network.edges, after.left) == (("e2",), ("e1",))
    after = editing.remove_broker(file(TREE), "c")
    assert (after.network.edges, after.left) == (("a", "b"), ("c",))
    alone = editing.remove_broker(after, "a")
    assert (alone.network.edges, alone.left) == (("b",), ("c", "a"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda f: editing.add_relay(f, "r1", "core", At()), "already"),
        (lambda f: editing.add_relay(f, "r3", "cor", At()), "unknown site 'cor'"),
        (lambda f: editing.add_relay(f, "r3", "e1", At()), "client site"),
        (lambda f: editing.add_relay(f, "no name", "core", At()), "invalid name"),
        (lambda f: editing.add_relay(f, "r3", "core", At(links=4101)), "4101 is already used"),
        (
            lambda f: editing.add_relay(f, "r3", "core", At(host="10.0.0.1")),
            "TLS is not configured",
        ),
        (lambda f: editing.add_edge(f, "e1", "core", At()), "already"),
        (lambda f: editing.add_site(f, "core", ["x"], ["e1"], At()), "already"),
        (lambda f: editing.remove_site(f, "core"), "joined to one tree"),
        (lambda f: editing.remove_broker(f, "r9"), "unknown broker 'r9'"),
        (lambda f: editing.remove_broker(editing.remove_broker(f, "r1"), "r2"), "remove the site"),
        (
            lambda f: editing.add_edge(editing.remove_broker(f, "e2"), "e2", "core", At()),
            "is the name of a former edge",
        ),
    ],
)
def test_what_cannot_be_is_an_error_of_that_file(change: Change, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as error:
        change(file(SITES))
    assert str(error.value).startswith("nets/n.toml: ")


def test_a_broker_that_joins_others_stays_in_a_tree_and_trees_have_no_sites() -> None:
    with pytest.raises(ConfigError, match="removing it would split the network"):
        editing.remove_broker(file(TREE), "a")
    with pytest.raises(ConfigError, match="has no sites"):
        editing.add_relay(file(TREE), "r", "core", At())


# -- meshes


def test_links_come_and_go_in_a_mesh() -> None:
    more = editing.add_link(file(MESH), "d", "a")
    assert set(more.network.links_of("d")) == {"c", "a"}
    less = editing.remove_link(more, "d", "c")
    assert set(less.network.links_of("d")) == {"a"}
    assert (less.revision, less.left, less.network.edges) == (4, (), ("a", "c", "d"))
    assert less.brokers == file(MESH).brokers


def test_brokers_come_to_a_mesh_with_their_links_and_take_them_along() -> None:
    more = editing.add_linked(file(MESH), "e", ["d", "a"], At(clients=4300))
    assert (more.network.links_of("e"), "e" in more.network.edges) == (("d", "a"), True)
    assert more.broker("e").clients_port == 4300
    relayed = editing.add_linked(more, "r", ["a", "c"], At(), is_relay=True)
    assert "r" not in relayed.network.edges
    less = editing.remove_broker(editing.remove_broker(relayed, "b"), "c")
    assert (set(less.brokers), less.left) == ({"a", "d", "e", "r"}, ("c",))
    assert set(less.network.links_of("a")) == {"e", "r"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda f: editing.add_link(f, "a", "x"), "unknown broker 'x'"),
        (lambda f: editing.add_link(f, "c", "b"), "'c' and 'b' are already linked"),
        (lambda f: editing.add_link(f, "a", "a"), "link to itself"),
        (lambda f: editing.remove_link(f, "x", "a"), "unknown broker 'x'"),
        (
            lambda f: editing.remove_link(f, "a", "d"),
            "'a' and 'd' are not linked; 'a' has links to b, c",
        ),
        (
            lambda f: editing.remove_link(f, "d", "c"),
            "split the network: d would be cut off from a, b, c",
        ),
        (lambda f: editing.remove_broker(f, "c"), "split the network: a, b | d; add links"),
        (lambda f: editing.add_linked(f, "a", ["b"], At()), "already"),
        (lambda f: editing.add_linked(f, "e", [], At()), "'e' needs a link"),
        (lambda f: editing.add_linked(f, "e", ["x"], At()), "unknown broker 'x'"),
        (lambda f: editing.add_linked(f, "e", ["a", "a"], At()), "duplicate link to 'a'"),
        (lambda f: editing.add_linked(f, "no name", ["a"], At()), "invalid name"),
        (
            lambda f: editing.add_edge(f, "e", "a", At()),
            "a mesh and has no sites; give the brokers",
        ),
        (lambda f: editing.add_relay(f, "e", "a", At()), "a mesh and has no sites"),
        (lambda f: editing.add_site(f, "s", ["e"], ["a"], At()), "a mesh and has no sites"),
        (lambda f: editing.remove_site(f, "a"), "a mesh and has no sites; remove brokers"),
    ],
)
def test_what_a_mesh_cannot_become_is_an_error_of_its_file(change: Change, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected.replace("|", r"\|")) as error:
        change(file(MESH))
    assert str(error.value).startswith("nets/n.toml: ")


def test_a_mesh_keeps_two_brokers_and_one_with_clients() -> None:
    pair = file('[network]\nname = "p"\n[mesh]\nlinks = [["a", "b"]]\nrelays = ["b"]\n')
    with pytest.raises(ConfigError, match="would leave one broker"):
        editing.remove_broker(pair, "b")
    three = editing.add_linked(pair, "r", ["a", "b"], At(), is_relay=True)
    with pytest.raises(ConfigError, match="every broker is a relay"):
        editing.remove_broker(three, "a")


def test_links_of_trees_stay_as_they_are() -> None:
    with pytest.raises(ConfigError, match="a tree, not a mesh; another link would close a cycle"):
        editing.add_link(file(TREE), "b", "c")
    with pytest.raises(ConfigError, match="a tree, not a mesh; removing a link"):
        editing.remove_link(file(SITES), "r1", "e1")


def test_a_mesh_that_is_routed_as_a_tree_gets_no_cycle() -> None:
    text = '[network]\nname = "p"\nrouting = "tree"\n[mesh]\nlinks = [["a", "b"], ["b", "c"]]\n'
    with pytest.raises(ConfigError, match="tree routing requires a tree"):
        editing.add_link(file(text), "c", "a")


def test_a_file_is_rewritten_beside_the_old_one_and_stays_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "n.toml"
    path.write_text(SITES)
    kept = editing.rewrite(editing.add_relay(load(path), "r3", "core", At()))
    assert (kept, kept.read_text()) == (tmp_path / "n.toml.1", SITES)
    again = load(path)
    assert again.revision == 2
    assert again.broker("r3").state == tmp_path / "state" / "r3"
    assert 'state = "elsewhere/e1"' in path.read_text()
    moved = tmp_path / "there"
    moved.mkdir()
    path.rename(moved / "n.toml")
    assert load(moved / "n.toml").broker("e1").state == moved / "elsewhere" / "e1"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["n.toml.1", "there"]


def _edits(now: NetworkFile) -> list[Change]:
    """Changes that suit the shape of a network."""
    edge = now.network.edges[0]
    if isinstance(now.shape, MeshShape):
        return [
            lambda f: editing.add_linked(f, "fresh", [edge], At()),
            lambda f: editing.remove_broker(editing.add_linked(f, "fresh", [edge], At()), "fresh"),
            lambda f: editing.remove_broker(f, edge),
        ]
    if isinstance(now.shape, TreeShape):
        return [lambda f: editing.add_edge(f, "fresh", edge, At())]
    site = next(name for name in now.shape.sites if name not in now.network.edges)
    return [
        lambda f: editing.add_relay(f, "fresh", site, At(host="127.0.0.7", links=4200)),
        lambda f: editing.add_edge(f, "fresh", site, At()),
        lambda f: editing.remove_broker(f, edge),
    ]


@pytest.mark.parametrize("example", sorted(path.stem for path in EXAMPLES.glob("*.toml")))
def test_edited_examples_keep_their_comments_and_say_what_is_meant(
    example: str, tmp_path: Path
) -> None:
    original = (EXAMPLES / f"{example}.toml").read_text(encoding="utf-8")
    path = tmp_path / "n.toml"
    path.write_text(original, encoding="utf-8")
    edits = _edits(load(path))
    for edit in edits:
        path.write_text(original, encoding="utf-8")
        wanted = edit(load(path))
        editing.rewrite(wanted)
        assert load(path) == wanted
        text = path.read_text(encoding="utf-8")
        comments = [line for line in original.splitlines() if line.startswith("#")]
        assert comments
        assert [line for line in comments if line not in text.splitlines()] == []


def test_an_edited_mesh_keeps_the_comments_of_its_other_links(tmp_path: Path) -> None:
    path = tmp_path / "n.toml"
    brokers = "".join(f"[brokers.{name}]  # {name}\n" for name in "abc")
    path.write_text(
        '[network]\nname = "m"  # ours\n[mesh]\nlinks = [\n    ["a", "b"],  # short\n'
        f'    # the long way\n    ["b", "c"],\n    ["c", "a"],\n]\n{brokers}',
        encoding="utf-8",
    )
    editing.rewrite(editing.remove_link(load(path), "a", "c"))
    editing.rewrite(editing.add_linked(load(path), "d", ["c"], At(links=4300)))
    assert path.read_text(encoding="utf-8") == (
        '[network]\nname = "m"  # ours\nrevision = 3\n[mesh]\nlinks = [\n    ["a", "b"],  # short\n'
        f'    # the long way\n    ["b", "c"],\n    ["d", "c"],\n]\n{brokers}'
        '\n[brokers.d]\nhost = "127.0.0.1"\nlinks = 4300\nstate = "state/d"\n\n'
    )
