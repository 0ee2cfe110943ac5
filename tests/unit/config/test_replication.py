"""`[replication]` and its keys in `[brokers.NAME]`."""

from pathlib import Path

import pytest

from anabranch.config import network_edit as editing
from anabranch.config.errors import ConfigError
from anabranch.config.network_edit import At
from anabranch.config.network_file import NetworkFile, dump, load, loads
from anabranch.config.replication import Stream, streams_kept
from anabranch.node.settings import config_of

PATH = Path("/srv/n.toml")
TREE = '[network]\nname = "n"\n[tree]\na = ["b", "c"]\n'
#: With tables for all brokers, of which that of `a` is open.
TABLES = TREE + "[brokers.b]\nlinks = 2\n[brokers.c]\nlinks = 3\n[brokers.a]\nlinks = 1\n"
SITES = """[network]
name = "n"
[sites.core]
brokers = ["r1", "r2", "r3"]
joins = ["e1", "e2"]
[sites.e1]
brokers = ["e1"]
[sites.e2]
brokers = ["e2"]
[brokers.r1]
[brokers.r2]
[brokers.r3]
[brokers.e2]
[brokers.e1]
"""


def file(text: str) -> NetworkFile:
    loaded = loads(text, PATH)
    assert loads(dump(loaded), PATH) == loaded
    return loaded


def test_streams_have_one_copy_by_default() -> None:
    assert file(TREE).stream("a") == Stream(1, 1, ())
    assert "replication" not in dump(file(TREE))
    assert file(TREE + "[replication]\n") == file(TREE)


@pytest.mark.parametrize(("copies", "confirm"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (7, 4)])
def test_a_majority_confirms_by_default(copies: int, confirm: int) -> None:
    star = '[network]\nname = "n"\n[tree]\na = ["b", "c", "d", "e", "f", "g"]\n'
    loaded = file(f"{star}[replication]\ncopies = {copies}\n")
    assert (loaded.options.copies, loaded.options.confirm) == (copies, confirm)


def test_all_streams_have_the_copies_of_the_network() -> None:
    loaded = file(f"{TREE}[replication]\ncopies = 3\nconfirm = 1\n")
    assert loaded.stream("b") == Stream(3, 1, ("a", "c"))
    assert streams_kept({edge: loaded.stream(edge) for edge in "abc"}) == {
        "a": ["b", "c"],
        "b": ["a", "c"],
        "c": ["a", "b"],
    }
    assert "copies = 3\nconfirm = 1\n" in dump(loaded)


def test_edges_may_prefer_near_keepers() -> None:
    loaded = file(f'{TREE}[replication]\ncopies = 2\nprefer = "near"\n')
    assert loaded.options.prefer == "near"
    assert loaded.options_of("a").prefer == "near"
    assert 'prefer = "near"\n' in dump(loaded)
    assert "prefer" not in dump(file(f"{TREE}[replication]\ncopies = 2\n"))


def test_the_core_of_every_broker_knows_the_keepers_of_every_stream() -> None:
    loaded = file(f"{TREE}[replication]\ncopies = 2\n")
    keepers = {edge: loaded.stream(edge).keepers for edge in "abc"}
    assert loaded.broker_config("a").keepers == keepers
    assert file(TREE).broker_config("a").keepers == {}


def test_a_broker_may_have_copies_of_its_own() -> None:
    own = "copies = 3\nconfirm = 3\n[replication]\ncopies = 2\nconfirm = 1\n"
    loaded = file(TABLES + own)
    assert loaded.stream("a") == Stream(3, 3, ("c", "b"))
    assert loaded.stream("b") == Stream(2, 1, ("a",))


@pytest.mark.parametrize(
    ("own", "stream"),
    [
        ("copies = 3", (3, 2)),  # a majority, not the 1 of the network
        ("copies = 1", (1, 1)),
        ("confirm = 2", (2, 2)),
        ("copies = 2", (2, 2)),
    ],
)
def test_confirm_follows_the_copies_of_the_same_table(own: str, stream: tuple[int, int]) -> None:
    loaded = file(f"{TABLES}{own}\n[replication]\ncopies = 2\nconfirm = 1\n")
    assert (loaded.stream("a").copies, loaded.stream("a").confirm) == stream
    assert (loaded.stream("b").copies, loaded.stream("b").confirm) == (2, 1)


def test_a_broker_may_name_its_keepers() -> None:
    loaded = file(SITES + 'keepers = ["e2", "r3"]\n[replication]\ncopies = 3\n')
    assert loaded.stream("e1").keepers == ("e2", "r3")
    assert set(loaded.stream("e2").keepers) < {"r1", "r2", "r3"}
    assert 'keepers = ["e2", "r3"]' in dump(loaded)


def test_brokers_start_with_the_replication_of_their_stream() -> None:
    loaded = file(TABLES + 'copies = 2\nkeepers = ["c"]\nconfirm = 1\n')
    for options in (config_of(loaded, "a").options, loaded.broker_config("a").options):
        assert (options.copies, options.confirm, options.keepers) == (2, 1, ("c",))
    for options in (config_of(loaded, "b").options, loaded.broker_config("b").options):
        assert (options.copies, options.confirm, options.keepers) == (1, 1, ())


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("copies = 0", "replication.copies: 0 is out of range; give 1 to 7"),
        ("copies = -1", "replication.copies: -1 is out of range; give 1 to 7"),
        ("copies = 8", "replication.copies: 8 is out of range; give 1 to 7"),
        ("copies = 2.0", "replication.copies: this is a number; it must be an integer"),
        ("copies = true", "replication.copies: this is a boolean; it must be an integer"),
        ('copies = "2"', "replication.copies: this is a string; it must be an integer"),
        ("copies = 4", "replication.copies: a stream has 4 copies, .* the network has 3 brokers; "),
        ("copys = 2", "replication.copys: unknown key; did you mean 'copies'?"),
        ('keepers = ["b"]', r"replication.keepers: belongs to one broker; write it in \[brokers"),
        ("confirm = 0", "replication.confirm: 0 is out of range; give 1 to 7"),
        ("confirm = 2", "replication.confirm: confirm = 2 exceeds copies = 1; give at most"),
    ],
)
def test_mistakes_in_the_table_are_named(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=rf"^/srv/n.toml:6: {error}"):
        loads(f"{TREE}[replication]\n{text}\n", PATH)


def test_confirm_must_not_exceed_copies() -> None:
    with pytest.raises(ConfigError, match=r":7: replication.confirm: .* or copies = 3$"):
        loads(f"{TREE}[replication]\ncopies = 2\nconfirm = 3\n", PATH)


@pytest.mark.parametrize("key", ["copies = 2", "confirm = 1", 'keepers = ["b"]'])
def test_replication_is_no_option(key: str) -> None:
    with pytest.raises(ConfigError, match=r":6: options\.[a-z]+: .*write it in \[replication\]"):
        loads(f"{TREE}[options]\n{key}\n", PATH)


def test_a_misspelt_table_is_named() -> None:
    with pytest.raises(ConfigError, match=":5: replicaton: unknown key; did you mean 'replication"):
        loads(f"{TREE}[replicaton]\ncopies = 2\n", PATH)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("copies = 0", "11: brokers.a.copies: 0 is out of range; give 1 to 7"),
        ("copies = 5", "11: brokers.a.copies: a stream has 5 copies, .* give at most copies = 3"),
        ("copeis = 2", "11: brokers.a.copeis: unknown key; did you mean 'copies'"),
        ("confirm = 2", "11: brokers.a.confirm: confirm = 2 exceeds copies = 1"),
        ("copies = 2\nconfirm = 3", "12: brokers.a.confirm: confirm = 3 exceeds copies = 2"),
        ('copies = 2\nkeepers = ["a"]', r"12: brokers.a.keepers\[0\]: broker 'a' always has"),
        ('copies = 2\nkeepers = ["z"]', r"12: brokers.a.keepers\[0\]: unknown broker 'z'; known"),
        ('copies = 3\nkeepers = ["b", "b"]', r"12: brokers.a.keepers\[1\]: duplicate keeper 'b'"),
        ('copies = 3\nkeepers = ["b"]', "12: brokers.a.keepers: 1 keeper for copies = 3; name 2"),
        ('copies = 2\nkeepers = ["b", "c"]', "12: brokers.a.keepers: 2 keepers for copies = 2"),
        ('keepers = ["b"]', "11: brokers.a.keepers: copies = 1 has no keepers; remove them"),
        ('copies = 2\nkeepers = "b"', "12: brokers.a.keepers: this is a string; it must be an arr"),
        ("copies = 2\nkeepers = [2]", r"12: brokers.a.keepers\[0\]: this is an integer; write a"),
    ],
)
def test_mistakes_in_the_table_of_a_broker_are_named(text: str, error: str) -> None:
    with pytest.raises(ConfigError, match=rf"^/srv/n.toml:{error}"):
        loads(f"{TABLES}{text}\n", PATH)


def test_the_keepers_must_fit_the_copies_of_the_network() -> None:
    with pytest.raises(ConfigError, match=r"brokers.a.keepers: 1 keeper for copies = 3; name 2"):
        loads(TABLES + 'keepers = ["b"]\n[replication]\ncopies = 3\n', PATH)


@pytest.mark.parametrize("key", ["copies = 2", "confirm = 1", 'keepers = ["e1"]'])
def test_relays_have_no_stream(key: str) -> None:
    text = SITES.replace("[brokers.r1]\n", f"[brokers.r1]\n{key}\n")
    with pytest.raises(ConfigError, match=r":11: brokers.r1.[a-z]+: .* it has no stream; remove"):
        loads(text, PATH)


# -- edits ---------------------------------------------------------------------------------------

NAMED = SITES + 'keepers = ["e2", "r3"]\n[replication]\ncopies = 3  # two keepers\n'


def test_a_named_keeper_is_not_removed() -> None:
    for name in ("e2", "r3"):
        with pytest.raises(ConfigError, match=rf"'{name}' keeps a copy .* 'e1'; name another"):
            editing.remove_broker(file(NAMED), name)
    with pytest.raises(ConfigError, match=r"'e2' keeps a copy of the stream of 'e1'"):
        editing.remove_site(file(NAMED), "e2")


def test_a_named_keeper_is_removed_with_the_origin() -> None:
    after = editing.remove_broker(file(NAMED), "e1")
    assert set(editing.remove_broker(after, "r3").network.brokers) == {"r1", "r2", "e2"}


def test_other_brokers_are_replaced_as_keepers() -> None:
    loaded = file(NAMED)
    gone = loaded.stream("e2").keepers[0]
    if gone == "r3":
        gone = loaded.stream("e2").keepers[1]
    after = editing.remove_broker(loaded, gone)
    assert gone not in after.stream("e2").keepers
    assert len(after.stream("e2").keepers) == 2


def test_a_network_keeps_as_many_brokers_as_copies() -> None:
    loaded = file(f"{TREE}[replication]\ncopies = 3\n")
    with pytest.raises(ConfigError, match=r"replication.copies: .* has 2 brokers; give at most"):
        editing.remove_broker(loaded, "c")


def test_edits_keep_the_replication_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "n.toml"
    path.write_text(NAMED)
    editing.rewrite(editing.add_relay(load(path), "r4", "core", At()))
    assert "[replication]\ncopies = 3  # two keepers\n" in path.read_text()
    assert "confirm" not in path.read_text()
    assert load(path).stream("e1") == Stream(3, 2, ("e2", "r3"))
