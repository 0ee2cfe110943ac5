"""`anabranch network`: checking, beginning, certificates."""

import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.cli.main import app
from anabranch.cli.network import SHAPES
from anabranch.config.network_file import load
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
    assert done.stdout.startswith(f"network {shape}, revision 1, tree routing\n")
    assert "note:" not in done.stdout
    assert runner.invoke(app, ["network", "new", shape]).stdout == path.read_text()


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
    assert "is there already" in done.stderr
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
    assert "  r1 r2: nobody is cut off\n" in done.stdout
    assert "6 sites, " in done.stdout
    assert "  s1: cut off from each other: hub e1 | e2 | e3\n" in done.stdout
    assert "longest path: 3 hops: " in done.stdout


def test_check_draws_a_tree_of_brokers_without_its_sites(tmp_path: Path) -> None:
    done = runner.invoke(app, ["network", "check", written(tmp_path, '[tree]\na = ["b", "c"]\n')])
    assert "\na (clients)\n├─ b (clients)\n└─ c (clients)\n" in done.stdout
    assert "\n3 brokers: 3 edges with clients\n2 links\n" in done.stdout
    assert "  a: cut off from each other: b | c\n" in done.stdout


def test_check_says_whether_connections_are_encrypted(tmp_path: Path) -> None:
    far = '[tree]\na = []\n[brokers.a]\nhost = "10.0.0.1"\nclients = 4100\n[tls]\n'
    plain = runner.invoke(app, ["network", "check", written(tmp_path, far + "plaintext = true\n")])
    assert "connections: plain, also between machines" in plain.stdout
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


TLS = '[tls]\nca = "ca.pem"\ncertificate = "{broker}.pem"\nkey = "{broker}.key"\n'


def test_certificates_are_made_once(tmp_path: Path) -> None:
    path = written(tmp_path, '[tree]\na = ["b"]\n' + TLS)
    first = runner.invoke(app, ["network", "certificates", path])
    assert first.exit_code == 0
    assert first.stdout.count("wrote ") == 6
    tls = load(Path(path)).tls
    assert tls is not None
    rehearse(tls, "b")
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
