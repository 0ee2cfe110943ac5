"""Tokens in files: one private line, or an error that does not tell it."""

from pathlib import Path

import pytest

from anabranch.config.network_file import dump, loads
from anabranch.config.secrets import read_token
from anabranch.model.errors import LocalError

TOKEN = "0123456789abcdef"
HEAD = '[network]\nname = "n"\n[tree]\na = []\n[brokers.a]\n'


def private(path: Path, data: bytes) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_token_is_one_line(tmp_path: Path, end: bytes) -> None:
    assert read_token(private(tmp_path / "t", TOKEN.encode() + end)) == TOKEN


@pytest.mark.parametrize(
    "data",
    [b"", b"short", b"two words that are long", b"x" * 1_025, "schlüssel-schlüssel".encode()],
)
def test_what_is_no_token_is_refused_without_telling_it(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(LocalError, match="has no valid token") as found:
        read_token(private(tmp_path / "t", data))
    assert not data or data.decode() not in str(found.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = private(tmp_path / "t", TOKEN.encode())
    path.chmod(mode)
    with pytest.raises(LocalError, match="chmod 600"):
        read_token(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="nowhere cannot be read: No such file"):
        read_token(tmp_path / "nowhere")


def test_a_network_file_names_the_token_file_and_hosts_of_each_broker() -> None:
    text = (
        f'{HEAD}observe_hosts = ["a.example.org"]\nobserve_token_file = "keys/{{broker}}.token"\n'
    )
    file = loads(text, Path("/srv/n.toml"))
    found = file.broker("a")
    assert found.observe_hosts == ("a.example.org",)
    assert found.observe_token_file == Path("/srv/keys/a.token")
    assert loads(dump(file), Path("/srv/other.toml")).broker("a") == found


def test_a_host_of_the_observe_port_is_a_name() -> None:
    with pytest.raises(LocalError, match=r"observe_hosts\[0\]: 'a:80' is not a host name"):
        loads(f'{HEAD}observe_hosts = ["a:80"]\n', Path("/srv/n.toml"))
