"""`anabranch network`: checking, beginning, certificates."""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.cli.main import app
from anabranch.cli.network import SHAPES
from anabranch.config.network_file import load
from anabranch.config.secrets import read_secret
from anabranch.config.tls import rehearse

runner = CliRunner()


def written(directory: Path, text: str) -> str:
    path = directory / "n.toml"
    path.write_text('[network]\nname = "quotes"\n' + text)
    return str(path)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_example_loads_and_checks_cleanly(shape: str, tmp_path: Path) -> None:
    path = tmp_path / f"{shape}.toml"
    assert runner.invoke(app, ["network", "new", shape, "--out", str(path)]).exit_code == 0
    done = runner.invoke(app, ["network", "check", str(path)])
    assert done.exit_code == 0
    routing = "mesh" if shape in ("mesh", "braided") else "tree"
    assert done.stdout.startswith(f"network {shape}, revision 1, {routing} routing\n")
    assert "note:" not in done.stdout
    plain = runner.invoke(app, ["network", "new", shape]).stdout
    lines = path.read_text().splitlines()
    assert f'secret_file = "{shape}.secret"' in lines
    assert [line for line in lines if line not in plain.splitlines()] == lines[
        (place := lines.index(f'secret_file = "{shape}.secret"')) - 1 : place + 1
    ]
    bare = tmp_path / "bare.toml"
    made = runner.invoke(app, ["network", "new", shape, "--no-secret", "--out", str(bare)])
    assert made.exit_code == 0
    assert bare.read_text() == plain
    assert not bare.with_suffix(".secret").exists()


def test_a_new_network_has_a_secret_of_its_own_that_only_its_owner_can_read(
    tmp_path: Path,
) -> None:
    texts = []
    for name in ("one", "other"):
        path = tmp_path / f"{name}.toml"
        done = runner.invoke(app, ["network", "new", "pair", "--out", str(path)])
        assert done.exit_code == 0
        secret = path.with_suffix(".secret")
        assert secret.stat().st_mode & 0o777 == 0o600
        texts.append(secret.read_text().strip())
        assert load(path).secret_file == secret
        read_secret(secret)
        assert texts[-1] not in done.stdout + done.stderr + path.read_text()
        for arguments in (["check", str(path)], ["check", "--json", str(path)]):
            shown = runner.invoke(app, ["network", *arguments])
            assert shown.exit_code == 0
            assert f"{name}.secret" in shown.stdout
            assert texts[-1] not in shown.stdout
    assert texts[0] != texts[1]


def test_a_secret_is_not_overwritten(tmp_path: Path) -> None:
    secret = tmp_path / "mine.secret"
    secret.write_text("precious")
    path = tmp_path / "mine.toml"
    done = runner.invoke(app, ["network", "new", "pair", "--out", str(path)])
    assert done.exit_code == 2
    assert "not overwritten" in done.stderr
    assert secret.read_text() == "precious"
    assert not path.exists()


def test_a_changed_network_keeps_the_name_of_its_secret(tmp_path: Path) -> None:
    path = tmp_path / "n.toml"
    assert runner.invoke(app, ["network", "new", "pair", "--out", str(path)]).exit_code == 0
    done = runner.invoke(app, ["network", "add-broker", str(path), "c", "--below", "a"])
    assert done.exit_code == 0, done.stderr
    assert 'secret_file = "n.secret"' in path.read_text()
    assert load(path).secret_file == tmp_path / "n.secret"


COMMENTED_OUT = re.compile(r"^# (?=\[|[a-z_]+ = )")


@pytest.mark.parametrize("shape", SHAPES)
def test_lines_commented_out_in_the_examples_are_valid_too(shape: str, tmp_path: Path) -> None:
    path = tmp_path / "n.toml"
    lines = runner.invoke(app, ["network", "new", shape]).stdout.splitlines()
    path.write_text("\n".join(lines))
    brokers = load(path).brokers
    opened = [COMMENTED_OUT.sub("", line) for line in lines]
    tables = [f"[brokers.{name}]" for name in brokers]
    if set(tables) & set(opened):
        opened += [table for table in tables if table not in opened]
    path.write_text("\n".join(opened))
    assert load(path).name == shape
    assert opened != lines or not any(COMMENTED_OUT.match(line) for line in lines)


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("precious")
    done = runner.invoke(app, ["network", "new", "pair", "--out", str(path)])
    assert done.exit_code == 2
    assert "already exists" in done.stderr
    assert path.read_text() == "precious"


def test_check_draws_sites_and_says_whose_death_cuts_off_whom(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """[sites.core]
brokers = ["r1", "r2", "hub"]
joins = ["hub", "side", "e1"]
[sites.side]
brokers = ["s1"]
joins = ["e2", "e3"]
[sites]
hub = { brokers = ["hub"] }
e1 = { brokers = ["e1"] }
e2 = { brokers = ["e2"] }
e3 = { brokers = ["e3"] }
""",
    )
    done = runner.invoke(app, ["network", "check", path])
    assert done.exit_code == 0
    drawing = """
core: r1 r2 hub (clients at hub)
├─ side: s1
│  ├─ e2 (clients)
│  └─ e3 (clients)
└─ e1 (clients)
"""
    assert drawing in done.stdout
    assert "7 brokers: 4 edges with clients; 3 relays\n" in done.stdout
    assert "  r1 r2: no broker is cut off\n" in done.stdout
    assert "6 sites, " in done.stdout
    assert "  s1: splits the network: hub e1 | e2 | e3\n" in done.stdout
    assert "longest path: 3 hops: " in done.stdout


def test_check_draws_a_tree_of_brokers_without_its_sites(tmp_path: Path) -> None:
    done = runner.invoke(app, ["network", "check", written(tmp_path, '[tree]\na = ["b", "c"]\n')])
    assert "\na (clients)\n├─ b (clients)\n└─ c (clients)\n" in done.stdout
    assert "\n3 brokers: 3 edges with clients\n2 links\n" in done.stdout
    assert "  a: splits the network: b | c\n" in done.stdout


def test_check_says_whether_connections_are_encrypted(tmp_path: Path) -> None:
    far = '[tree]\na = []\n[brokers.a]\nhost = "10.0.0.1"\nclients = 4100\n[tls]\n'
    plain = runner.invoke(app, ["network", "check", written(tmp_path, far + "plaintext = true\n")])
    assert "connections: plaintext between machines" in plain.stdout
    assert "10.0.0.1:4100" in plain.stdout
    files = 'ca = "ca"\ncertificate = "{broker}"\nkey = "{broker}.key"\n'
    safe = runner.invoke(app, ["network", "check", written(tmp_path, far + files)])
    assert "connections: TLS 1.3" in safe.stdout


def test_check_notes_a_leaf_where_nobody_can_attach(tmp_path: Path) -> None:
    text = '[sites.a]\nbrokers = ["a"]\njoins = ["x"]\n[sites.x]\nbrokers = ["y"]\n'
    done = runner.invoke(app, ["network", "check", written(tmp_path, text)])
    assert "note: site x is a leaf without clients" in done.stdout


def test_check_prints_json(tmp_path: Path) -> None:
    path = written(tmp_path, '[tree]\na = ["b"]\nb = ["c"]\n')
    done = runner.invoke(app, ["network", "check", path, "--json"])
    document = json.loads(done.stdout)
    assert document["network"] == "quotes"
    assert document["edges"] == ["a", "b", "c"]
    assert document["links"] == [["a", "b"], ["b", "c"]]
    assert document["longest_path"] == {"hops": 2, "brokers": ["a", "b", "c"]}
    assert document["cuts"] == {"b": [["a"], ["c"]]}
    assert document["brokers"]["a"]["ports"] == {"clients": 0, "links": 0, "observe": 0}


def test_a_cycle_is_one_line_with_file_line_and_key(tmp_path: Path) -> None:
    path = written(tmp_path, '[tree]\na = ["b"]\nb = ["c"]\nc = ["a"]\n')
    done = runner.invoke(app, ["network", "check", path])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith(
        f"anabranch: error: {path}:6: tree.c[0]: closes a cycle: c – b – a – c;"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["check", "gone.toml"], "gone.toml: cannot be read: No such file"),
        (["new", "ring"], "'ring' is not one of"),
        (["new", "pair", "--out", "no/such/folder.toml"], "No such file"),
        (["certificates", "gone.toml"], "gone.toml: cannot be read"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], complaint: str) -> None:
    done = runner.invoke(app, ["network", *arguments])
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


# -- meshes


def mesh(links: Iterable[tuple[str, str]], relays: Sequence[str] = ()) -> str:
    pairs = ", ".join(f'["{a}", "{b}"]' for a, b in links)
    return f"[mesh]\nlinks = [{pairs}]\nrelays = {list(relays)}\n"


#: A triangle and a broker that hangs on its relay.
OFFICE = mesh([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")], ["c"])


def test_check_lists_the_links_of_a_mesh_and_whose_loss_cuts_off_whom(tmp_path: Path) -> None:
    done = runner.invoke(app, ["network", "check", written(tmp_path, OFFICE)])
    assert done.exit_code == 0
    said = """network quotes, revision 1, mesh routing
4 brokers: 3 edges with clients; 1 relay
4 links; 1 to 3 at each broker
longest path: 2 hops: a – c – d
connections: plaintext, on this machine only; brokers are not authenticated
if one broker dies:
  c: splits the network: a b | d
  an edge: its clients roam to another edge, if they have its address
if one link is lost:
  c – d: splits the network: a b | d

broker     links  to
a              2  b c
b              2  a c
c (relay)      3  a b d
d              1  c
"""
    assert done.stdout.startswith(said)


def ring_of(size: int) -> list[tuple[str, str]]:
    names = [f"broker{number}" for number in range(size)]
    return list(zip(names, [*names[1:], names[0]], strict=True))


@pytest.mark.parametrize(
    "links",
    [
        ring_of(3),
        ring_of(50),
        [(f"broker{n}", f"broker{n + 1}") for n in range(49)],
        [("hub", f"broker{n}") for n in range(49)],
        [(f"b{a}", f"b{b}") for b in range(50) for a in range(b)],
        [(f"b{a}", f"b{b}") for b in range(50) for a in range(b) if (a + b) % 3],
    ],
)
def test_what_check_says_of_a_mesh_fits_into_80_columns(
    links: list[tuple[str, str]], tmp_path: Path
) -> None:
    path = written(tmp_path, mesh(links))
    done = runner.invoke(app, ["network", "check", path], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.stderr
    words = done.stdout.split("┏")[0].splitlines()
    assert max(map(len, words)) <= 80
    assert len(words) < 300


def test_check_says_that_a_ring_bears_every_loss_and_that_everybody_knows_everybody(
    tmp_path: Path,
) -> None:
    done = runner.invoke(app, ["network", "check", written(tmp_path, mesh(ring_of(10)))])
    assert "if one broker dies:\n  no broker is cut off\n  an edge: " in done.stdout
    assert "if one link is lost:\n  no broker is cut off\n" in done.stdout
    assert "\n10 links; 2 at each broker\nlongest path: 5 hops: " in done.stdout
    triangle = runner.invoke(app, ["network", "check", written(tmp_path, mesh(ring_of(3)))])
    everybody = "every broker has a link to all 2 others:\n  broker0 broker1 broker2\n"
    assert everybody in triangle.stdout


def test_brokers_of_a_mesh_are_listed_in_the_order_in_which_people_count(tmp_path: Path) -> None:
    links = [("b10", "b2"), ("b2", "a"), ("b2", "b1"), ("b10", "b11"), ("b2", "b"), ("b2", "01")]
    done = runner.invoke(app, ["network", "check", written(tmp_path, mesh(links))])
    assert "\nb2          5  01 a b b1 b10\n" in done.stdout
    rows = done.stdout.partition("links  to\n")[2].partition("\n\n")[0].splitlines()
    assert [row.split()[0] for row in rows] == ["01", "a", "b", "b1", "b2", "b10", "b11"]


def test_of_many_cuts_of_a_mesh_the_gravest_are_told(tmp_path: Path) -> None:
    chain = [(f"b{number:02}", f"b{number + 1:02}") for number in range(29)]
    done = runner.invoke(app, ["network", "check", written(tmp_path, mesh(chain))])
    assert "if one broker dies:\n  b14: splits the network: " in done.stdout
    assert "  and 20 more that split the network; --json lists all\n" in done.stdout
    assert "  and 21 more that split the network; --json lists all\n" in done.stdout


def test_a_mesh_without_a_cycle_reads_the_same_under_every_routing(tmp_path: Path) -> None:
    text = mesh([("a", "b"), ("b", "c"), ("b", "d"), ("d", "e")], ["d"])
    said = [
        runner.invoke(app, ["network", "check", written(tmp_path, f'routing = "{each}"\n{text}')])
        for each in ("mesh", "tree", "flood")
    ]
    rest = {each.stdout.partition("\n")[2].partition("┏")[0] for each in said}
    assert len(rest) == 1
    assert "  d: splits the network: a b c | e\n" in rest.pop()


def test_check_notes_a_relay_on_no_way(tmp_path: Path) -> None:
    path = written(tmp_path, mesh([("a", "b"), ("b", "r")], ["r"]))
    done = runner.invoke(app, ["network", "check", path])
    assert "note: relay r has only one link and carries no events" in done.stdout


def test_check_prints_the_json_of_a_mesh(tmp_path: Path) -> None:
    done = runner.invoke(app, ["network", "check", written(tmp_path, OFFICE), "--json"])
    document = json.loads(done.stdout)
    assert document["routing"] == "mesh"
    assert document["links"] == [["a", "b"], ["a", "c"], ["b", "c"], ["c", "d"]]
    assert document["brokers"]["c"]["links"] == ["b", "a", "d"]
    assert document["cuts"] == {"c": [["a", "b"], ["d"]]}
    assert document["link_cuts"] == [{"link": ["c", "d"], "parts": [["a", "b"], ["d"]]}]


def change(*words: str) -> str:
    """What a command says; it ends well or badly."""
    return runner.invoke(app, ["network", *words]).stderr


def test_commands_change_the_links_and_brokers_of_a_mesh(tmp_path: Path) -> None:
    path = written(tmp_path, OFFICE)
    assert "revision 2; the previous revision is" in change("add-link", path, "a", "d")
    assert "revision 3" in change("remove-link", path, "c", "d")
    assert "revision 4" in change("add-broker", path, "e", "--link-to", "a", "--link-to", "d")
    assert "revision 5" in change("add-broker", path, "m", "--link-to", "e", "--relay")
    assert "revision 6" in change("remove-broker", path, "b")
    file = load(Path(path))
    assert (file.revision, file.left, file.network.edges) == (6, ("b",), ("a", "d", "e"))
    assert set(file.network.links_of("e")) == {"a", "d", "m"}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["add-link", "a", "x"], "unknown broker 'x'"),
        (["add-link", "a", "b"], "'a' and 'b' are already linked"),
        (
            ["remove-link", "d", "c"],
            "split the network: d would be cut off from a, b, c; add another",
        ),
        (["remove-link", "a", "d"], "'a' and 'd' are not linked; 'a' has links to b, c"),
        (
            ["remove-broker", "c"],
            "removing 'c' would split the network: a, b | d; add links between",
        ),
        (["add-broker", "e"], "give the place of the broker"),
        (["add-broker", "e", "--below", "a"], "a mesh and has no sites; give the brokers"),
        (["add-broker", "e", "--site", "a", "--link-to", "a"], "give the place of the broker"),
        (["add-broker", "e", "--below", "a", "--relay"], "--relay requires --link-to"),
    ],
)
def test_a_change_that_cannot_be_is_one_line_and_changes_nothing(
    words: list[str], complaint: str, tmp_path: Path
) -> None:
    path = written(tmp_path, OFFICE)
    before = Path(path).read_text()
    done = runner.invoke(app, ["network", words[0], path, *words[1:]])
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1
    assert Path(path).read_text() == before


TLS = '[tls]\nca = "ca.pem"\ncertificate = "{broker}.pem"\nkey = "{broker}.key"\n'


def test_certificates_are_made_once(tmp_path: Path) -> None:
    path = written(tmp_path, '[tree]\na = ["b"]\n' + TLS)
    first = runner.invoke(app, ["network", "certificates", path])
    assert first.exit_code == 0
    assert first.stdout.count("wrote ") == 6
    tls = load(Path(path)).tls
    assert tls is not None
    rehearse(tls, "b")
    told = json.loads(runner.invoke(app, ["network", "certificates", path, "--json"]).stdout)
    assert told == {"written": [], "kept": [str(tmp_path / f"{name}.pem") for name in "ab"]}
    again = runner.invoke(app, ["network", "certificates", path])
    assert (again.stdout.count("wrote "), again.stdout.count("kept ")) == (0, 2)


def test_certificates_say_which_package_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "anabranch.config.certificates", None)
    path = written(tmp_path, "[tree]\na = []\n" + TLS)
    done = runner.invoke(app, ["network", "certificates", path])
    assert done.exit_code == 2
    assert "pip install 'anabranch[certificates]'" in done.stderr


REPLICATED = """[tree]
hub = ["a", "b", "c"]
[brokers.hub]
[brokers.a]
[brokers.b]
[brokers.c]
copies = 1
[replication]
copies = 3
"""


def test_check_shows_copies_and_keepers(tmp_path: Path) -> None:
    path = written(tmp_path, REPLICATED)
    done = runner.invoke(app, ["network", "check", path])
    assert done.exit_code == 0
    assert (
        "streams of hub a b: 3 copies, 2 to confirm an event\n"
        "  confirmed events survive 1 lost disk; publishing waits while 2 keepers are away\n"
        "streams of c: 1 copy, 1 to confirm an event\n"
        "  a lost disk can lose confirmed events; publishing waits for no keeper\n"
    ) in done.stdout
    stream = load(Path(path)).stream("a")
    assert stream.keepers[0] == "hub"
    rows = [line.split("│")[1:-1] for line in done.stdout.splitlines() if line.startswith("│")]
    cells = {row[0].strip(): [cell.strip() for cell in row[-2:]] for row in rows}
    assert cells["a"][0] == " ".join(stream.keepers)
    assert cells["c"][0] == "–"
    assert cells["hub"][1] == "2"


def test_check_shows_no_keepers_without_copies(tmp_path: Path) -> None:
    done = runner.invoke(app, ["network", "check", written(tmp_path, '[tree]\na = ["b"]\n')])
    assert "keepers" not in done.stdout
    assert "streams" not in done.stdout


def test_check_prints_streams_as_json(tmp_path: Path) -> None:
    path = written(tmp_path, REPLICATED + "[options]\nkeep_s = 1\n")
    done = runner.invoke(app, ["network", "check", "--json", path])
    brokers = json.loads(done.stdout)["brokers"]
    keepers = list(load(Path(path)).stream("a").keepers)
    assert brokers["a"]["stream"] == {"copies": 3, "confirm": 2, "keepers": keepers}
    assert brokers["c"]["stream"] == {"copies": 1, "confirm": 1, "keepers": []}
    assert all("a" in brokers[keeper]["keeps"] for keeper in keepers)
    assert "c" not in [name for broker in brokers.values() for name in broker["keeps"]]


def test_check_prints_no_stream_of_a_relay(tmp_path: Path) -> None:
    path = written(
        tmp_path, '[mesh]\nlinks = [["a", "r"]]\nrelays = ["r"]\n[replication]\ncopies = 2\n'
    )
    brokers = json.loads(runner.invoke(app, ["network", "check", "--json", path]).stdout)["brokers"]
    assert brokers["r"]["stream"] is None
    assert brokers["r"]["keeps"] == ["a"]
    assert runner.invoke(app, ["network", "check", path]).exit_code == 0


def test_a_named_keeper_is_not_removed_from_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, REPLICATED.replace("copies = 1", 'copies = 2\nkeepers = ["a"]'))
    before = Path(path).read_text()
    done = runner.invoke(app, ["network", "remove-broker", path, "a"])
    assert done.exit_code == 2
    assert "'a' keeps a copy of the stream of 'c'; name another broker" in done.stderr
    assert Path(path).read_text() == before
