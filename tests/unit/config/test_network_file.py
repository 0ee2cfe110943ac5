"""Network files: what loads, and what is said about what does not."""

import os
import pickle
from pathlib import Path

import pytest

from anabranch.config.errors import ConfigError
from anabranch.config.network_file import NetworkFile, load, loads
from anabranch.core.options import Options
from anabranch.model.limits import Limits

PATH = Path("/srv/net.toml")
HEAD = '[network]\nname = "n"\n'
TREE = HEAD + '[tree]\na = ["b", "c"]\n'
SITES = """[network]
name = "n"
[sites.core]
brokers = ["r1", "r2"]
joins = ["e1", "e2"]
[sites.e1]
brokers = ["e1"]
[sites.e2]
brokers = ["e2"]
"""


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        loads(text, PATH)
    return str(raised.value).removeprefix("/srv/net.toml:")


# -- what loads


def test_short_form_is_a_tree_of_brokers_with_clients() -> None:
    file = loads(TREE, PATH)
    assert file.network.edges == ("a", "b", "c")
    assert file.network.links_of("a") == ("b", "c")
    assert file.routing == "tree"
    assert file.revision == 1


def test_long_form_has_relays() -> None:
    file = loads(SITES, PATH)
    assert file.network.edges == ("e1", "e2")
    assert file.network.members("core") == ("r1", "r2")


def test_everything_that_is_not_said_has_its_default() -> None:
    file = loads(TREE, PATH)
    assert file.options == Options()
    assert file.limits == Limits()
    settings = file.broker("b")
    assert (settings.host, settings.clients_port, settings.links_port) == ("127.0.0.1", 0, 0)
    assert settings.state == Path("/srv/state/b")


def test_paths_begin_at_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "n.toml").write_text(
        HEAD + '[tree]\na = []\n[brokers.a]\nstate = "../data/a"\n'
        '[tls]\nca = "ca.pem"\ncertificate = "{broker}/c.pem"\nkey = "/keys/{broker}"\n'
    )
    monkeypatch.chdir(tmp_path)
    file = load(Path("nets/n.toml"))
    assert file.broker("a").state == tmp_path / "data" / "a"
    assert file.tls is not None
    assert file.tls.ca == tmp_path / "nets" / "ca.pem"
    assert file.tls.certificate_of("a") == tmp_path / "nets" / "a" / "c.pem"
    assert file.tls.key_of("a") == Path("/keys/a")


def test_broker_config_is_what_the_core_wants() -> None:
    text = TREE + "[options]\nheartbeat_s = 1\n[limits]\nattributes_max = 7\n"
    config = loads(text.replace('"n"\n', '"n"\nrouting = "flood"\n'), PATH).broker_config("b")
    assert (config.name, config.routing) == ("b", "flood")
    assert config.options.heartbeat_s == 1.0
    assert config.limits.attributes_max == 7
    assert config.network.edges == ("a", "b", "c")


def test_unknown_broker_is_asked_for_in_vain() -> None:
    file = loads(HEAD + '[tree]\nboston = ["lima"]\n', PATH)
    for ask in (file.broker, file.broker_config):
        with pytest.raises(ConfigError, match="unknown broker 'bostn'; did you mean 'boston'"):
            ask("bostn")


def test_byte_order_mark_and_windows_lines_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "n.toml"
    path.write_bytes(b"\xef\xbb\xbf" + TREE.replace("\n", "\r\n").encode())
    assert load(path).name == "n"


# -- ports


def test_only_the_ports_that_are_needed_are_unchosen() -> None:
    assert loads(HEAD + "[tree]\na = []\n", PATH).unchosen_ports() == [
        ("a", "clients"),
        ("a", "observe"),
    ]
    unchosen = loads(SITES, PATH).unchosen_ports()
    assert ("r1", "links") in unchosen
    assert ("r1", "clients") not in unchosen


def test_ports_are_filled_in_and_the_original_stays() -> None:
    file = loads(TREE, PATH)
    filled = file.with_ports({key: 4000 + n for n, key in enumerate(file.unchosen_ports())})
    filled.check_ports()
    assert filled.unchosen_ports() == []
    assert filled.broker("a").clients_port == 4000
    assert len(file.unchosen_ports()) == 9


def test_a_port_that_is_filled_in_twice_is_refused() -> None:
    file = loads(TREE, PATH)
    with pytest.raises(
        ConfigError, match=r"127\.0\.0\.1:4000 is already used by 'clients' of broker 'a'"
    ):
        file.with_ports({("a", "clients"): 4000, ("b", "links"): 4000})
    with pytest.raises(ConfigError, match="unknown broker 'x'"):
        file.with_ports({("x", "links"): 4000})


def test_missing_port_is_named_where_it_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"brokers\.a\.clients: broker 'a' has no port for cli"):
        loads(TREE, PATH).check_ports()


def test_state_can_be_moved_as_a_whole() -> None:
    moved = loads(TREE, PATH).with_state(Path("/var/lib/n"))
    assert {b.state for b in moved.brokers.values()} == {Path(f"/var/lib/n/{x}") for x in "abc"}


# -- what does not load


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # the file as a whole
        ("a = \n", "1: not valid TOML: Invalid value, at column 5"),
        ("[network]\nname = 'x'\nname = 'y'\n", "3: not valid TOML: Cannot overwrite a value"),
        ("[network]\nname = '''x", "2: not valid TOML: Expected \"'''\", at the end of the file"),
        ("x = " + "[" * 5000, " nested too deeply"),
        ("[netwrk]\n", "1: netwrk: unknown key; did you mean 'network'?"),
        (
            "[network]\n\n[zzz]\n",
            "3: zzz: unknown key; known: network, tree, sites, mesh, brokers",
        ),
        ("network = 3\n", "1: network: this is an integer; it must be a table: write [network]"),
        # network
        ("[tree]\na = []\n", "1: network.name: is missing"),
        ("[network]\nname = 5\n", "2: network.name: this is an integer; it must be a str"),
        ("[network]\nname = 'a/b'\n", "2: network.name: invalid name 'a/b'; use 1 to 63"),
        ("[network]\nname = ''\n", "2: network.name: invalid name ''"),
        (HEAD + "revision = 0\n", "3: network.revision: 0 is out of range; give 1 to"),
        (HEAD + "revision = true\n", "3: network.revision: this is a boolean; it must be an"),
        (
            HEAD + "routing = 'ring'\n",
            "3: network.routing: 'ring' is not valid; choose one of flood, tree, mesh",
        ),
        (HEAD + "rooting = 'tree'\n", "3: network.rooting: unknown key; did you mean 'routing'?"),
        # shape
        (HEAD, "1: tree: is missing; add [tree]"),
        (TREE + "[sites.x]\n", "3: tree: the file also has [sites]"),
        (HEAD + "[tree]\n", "3: tree: has no broker"),
        (HEAD + "[tree]\na = 'b'\n", "4: tree.a: this is a string; it must be an array of names"),
        (HEAD + "[tree]\na = [\n 'b',\n 3]\n", "6: tree.a[1]: this is an integer; write a name"),
        (HEAD + "[tree]\na = ['b c']\n", "4: tree.a[0]: invalid name 'b c'"),
        (HEAD + "[tree]\na = ['..']\n", "4: tree.a[0]: invalid name '..'"),
        (HEAD + "[tree]\na = ['a']\n", "4: tree.a[0]: broker 'a' is joined to itself"),
        (
            HEAD + "[tree]\na = ['b']\nb = ['c']\nc = [\n'd',\n'a']\n",
            "8: tree.c[1]: closes a cycle: c – b – a – c; a tree has no cycles",
        ),
        (HEAD + "[tree]\na = ['b']\nb = ['a']\n", "5: tree.b[0]: 'b' and 'a' are already joined"),
        (
            HEAD + "[tree]\na = ['b']\nc = ['d']\n",
            "5: tree.c: c, d is not connected with 'a'",
        ),
        (
            HEAD + "[tree]\na = [" + ",".join(f"'b{n}'" for n in range(600)) + "]\n",
            "3: tree: 1202 sites; a network has at most 1024",
        ),
        (HEAD + "[sites]\n", "3: sites: has no site"),
        (HEAD + "[sites.x]\n", "3: sites.x.brokers: a site needs brokers"),
        (HEAD + "[sites.x]\nbroker = []\n", "4: sites.x.broker: unknown key; did you mean 'broke"),
        (HEAD + "[sites.x]\nbrokers = ['a', 'a']\n", "4: sites.x.brokers[1]: duplicate broker 'a'"),
        (HEAD + "[sites.'x y']\n", "3: sites.\"x y\": invalid name 'x y'"),
        (
            SITES.replace('"e2"]\n[', '"e3"]\n['),
            "5: sites.core.joins[1]: unknown site 'e3'; known: core, e1, e2",
        ),
        (
            SITES + "joins = ['e1']\n",
            "10: sites.e2.joins[0]: closes a cycle: e2 – core – e1 – e2; a tree of sites has no",
        ),
        (SITES + "joins = ['core']\n", "10: sites.e2.joins[0]: 'e2' and 'core' are already joine"),
        (SITES + "[sites.x]\nbrokers = ['x']\n", "10: sites.x: x is not connected with 'core'"),
        (
            HEAD + "[sites.x]\nbrokers = ['a', 'b']\n",
            "3: sites: has no client site, so no client could connect",
        ),
        (
            SITES.replace('["e1"]\n', '["e1", "e9"]\n'),
            "7: sites.e1.brokers: 'e1' is also the name of a broker, so this is its client site",
        ),
        (
            SITES + "[sites.e3]\nbrokers = ['e3']\njoins = ['e2']\n",
            "8: sites.e2: the client site of broker 'e2' must be a leaf, but it is joined to core",
        ),
        (
            SITES + "[sites.y]\nbrokers = ['e1']\njoins = ['core']\n",
            "11: sites.y.brokers[0]: broker 'e1' is also in 'e1', which is not adjacent",
        ),
        # brokers
        (TREE + "[brokers.aa]\n", "5: brokers.aa: this broker is in no site; did you mean 'a'?"),
        (
            SITES + "[brokers.r1]\n[brokers.e1]\n[brokers.e2]\n",
            "4: sites.core.brokers[1]: broker 'r2' has no table [brokers.r2]; known: r1",
        ),
        (TREE + "[brokers.a]\n[brokers.b]\n", "4: tree.a[1]: broker 'c' has no table"),
        (TREE + "[brokers.b]\n[brokers.c]\n", "4: tree.a: broker 'a' has no table"),
        (
            HEAD + "[tree]\na=[]\n[brokers.a]\nlinks = 1\n",
            "6: brokers.a.links: broker 'a' has no links",
        ),
        (
            SITES + "".join(f"[brokers.{b}]\nclients = 1\n" for b in ("r1", "r2", "e1", "e2")),
            "11: brokers.r1.clients: broker 'r1' has no client site",
        ),
        (
            HEAD + "[tree]\na = []\n[brokers]\na = 4100\n",
            "6: brokers.a: this is an integer; it must be a table: write [brokers.a]",
        ),
    ],
)
def test_wrong_file_is_told_with_line_and_key(text: str, expected: str) -> None:
    assert complaint(text).startswith(expected)


ONE = HEAD + "[tree]\na = []\n[brokers.a]\n"
TWO = HEAD + '[tree]\na = ["b"]\n[brokers.a]\nclients = 4100\n{}[brokers.b]\n{}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ONE + "clients = 70000\n", "6: brokers.a.clients: 70000 is out of range; give 0 to 65535"),
        (ONE + "clients = -1\n", "6: brokers.a.clients: -1 is out of range"),
        (
            ONE + "clients = '4100'\n",
            "6: brokers.a.clients: this is a string; it must be an integer",
        ),
        (ONE + f"clients = 0x{'f' * 9000}\n", "6: brokers.a.clients: this number is out of range"),
        (ONE + "client = 1\n", "6: brokers.a.client: unknown key; did you mean 'clients'?"),
        (
            ONE + "clients = 5\nobserve = 5\n",
            "7: brokers.a.observe: 127.0.0.1:5 is already used by 'clie",
        ),
        (ONE + "host = 'x:4100'\n", "6: brokers.a.host: 'x:4100' is not a host; give a name or an"),
        (ONE + "host = ''\n", "6: brokers.a.host: '' is not a host"),
        (ONE + "host = '0.0.0.0'\n", "6: brokers.a.host: others cannot connect to 0.0.0.0"),
        (ONE + "host = '10.0.0.1'\n", "6: brokers.a.host: 10.0.0.1 is not a loopback address, an"),
        (ONE + "host = 'a.example'\n", "6: brokers.a.host: a.example is not a loopback address"),
        (ONE + "listen = '0.0.0.0'\n", "6: brokers.a.listen: 0.0.0.0 is not a loopback address"),
        (ONE + "state = ''\n", "6: brokers.a.state: is not a path"),
        (ONE + 'state = "a\\u0000b"\n', "6: brokers.a.state: is not a path"),
        (
            TWO.format("", "links = 4100\n"),
            "8: brokers.b.links: 127.0.0.1:4100 is already used by 'clients' of broker 'a'",
        ),
        (
            TWO.format("", "host = 'localhost'\nlinks = 4100\n"),
            "9: brokers.b.links: localhost:4100 is already used by 'clients' of broker 'a'",
        ),
        (
            TWO.format("state = 'x'\n", "state = 'y/../x'\n"),
            "9: brokers.b.state: /srv/x is also the state directory of broker 'a'",
        ),
        (ONE + "[tls]\nca = 'x'\n", "6: tls.certificate: is missing; TLS requires ca, certificate"),
        (ONE + "[tls]\nca = 'x'\nplaintext = true\n", "8: tls.plaintext: contradicts ca"),
        (
            ONE + "[tls]\nplaintext = 'yes'\n",
            "7: tls.plaintext: this is a string; it must be true or",
        ),
        (
            ONE + "[tls]\nca = 'x'\ncertificate = 'y'\nkey = '{broker}'\n",
            "8: tls.certificate: each broker needs its own file; use {broker}",
        ),
        (
            TWO.format("", "host = 'a'\n")
            + "[tls]\nca = 'x'\ncertificate = '{broker}'\nkey = '{broker}'\n",
            "8: brokers.b.host: 'a' is also the name of another broker, so the certi",
        ),
        # limits and options
        (TREE + "[limits]\nattributes = 1\n", "6: limits.attributes: unknown key; did you mean 'a"),
        (TREE + "[limits]\nattributes_max = 0\n", "6: limits.attributes_max: 0 is out of range; g"),
        (TREE + "[limits]\nattributes_max = 1.5\n", "6: limits.attributes_max: this is a number;"),
        (TREE + "[limits]\ndestinations_max = 65536\n", "6: limits.destinations_max: 65536 is out"),
        (TREE + "[limits]\nframe_bytes_max = 9\n", "6: limits.frame_bytes_max: a frame of 9 bytes"),
        (TREE + "[limits]\nevent_bytes_max = 99999999\n", "6: limits.event_bytes_max: a frame of"),
        (
            TREE + "[options]\nretention = 'none'\n",
            "6: options.retention: 'none' is not valid; choose one of",
        ),
        (TREE + "[options]\nplants = ['skip-gap']\n", "6: options.plants: unknown key"),
        (TREE + "[options]\nheartbeat_s = 0\n", "6: options.heartbeat_s: 0 is out of range; give"),
        (TREE + "[options]\nheartbeat_s = nan\n", "6: options.heartbeat_s: nan is out of range"),
        (TREE + "[options]\nheartbeat_s = 1e9\n", "6: options.heartbeat_s: 1000000000.0 is out"),
        (
            TREE + f"[options]\nheartbeat_s = 1{'0' * 400}\n",
            "6: options.heartbeat_s: this number i",
        ),
        (
            TREE + "[options]\nheartbeat_s = 3\n",
            "6: options.heartbeat_s: links would be closed after",
        ),
        (
            TREE + "[options]\ndead_after_s = 0.2\n",
            "6: options.dead_after_s: links would be closed",
        ),
        (TREE + "[options]\ncovering = 1\n", "6: options.covering: this is an integer; it must be"),
        (TREE + "[options]\nheartbeat_s = 1979-05-27\n", "6: options.heartbeat_s: this is a date"),
    ],
)
def test_wrong_value_is_told_with_line_and_key(text: str, expected: str) -> None:
    assert complaint(text).startswith(expected)


def test_one_port_on_two_hosts_is_no_conflict() -> None:
    text = TWO.format("", "host = '127.0.0.2'\nclients = 4100\n")
    assert loads(text, PATH).broker("b").clients_port == 4100


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.8.8.8", "::1"])
def test_loopback_needs_no_tls(host: str) -> None:
    assert loads(ONE + f"host = '{host}'\n", PATH).broker("a").is_local


def test_plaintext_between_machines_must_be_said() -> None:
    file: NetworkFile = loads(ONE + "host = '10.0.0.1'\n[tls]\nplaintext = true\n", PATH)
    assert file.plaintext
    assert file.tls is None


def test_certificates_are_not_looked_for_when_a_file_is_loaded() -> None:
    tls = "[tls]\nca = 'x'\ncertificate = '{broker}'\nkey = '{broker}'\n"
    assert loads(ONE + "host = '10.0.0.1'\n" + tls, PATH).tls is not None


# -- files


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml: cannot be read: No such file"):
        load(tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "n.toml"
    path.write_text(TREE)
    path.chmod(0)
    with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        load(path)


def test_file_that_is_no_text_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "n.toml"
    path.write_bytes(b"[network]\nname = '\xff'\n")
    with pytest.raises(ConfigError, match=r"n\.toml:2: byte 18 is not UTF-8"):
        load(path)


def test_huge_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "n.toml"
    with path.open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(ConfigError, match="larger than 4194304 bytes"):
        load(path)


def test_error_survives_pickling() -> None:
    error = ConfigError("wrong", path=PATH, line=3, key="a.b")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "/srv/net.toml:3: a.b: wrong"
    assert (again.path, again.line, again.key) == (PATH, 3, "a.b")
