"""The file with the secret of a network: who may read it, what it may hold, and what is said of
it.
"""

import pickle
from pathlib import Path

import pytest

from anabranch.config.errors import ConfigError
from anabranch.config.network_file import loads
from anabranch.config.secrets import Secret, create_secret, read_secret
from anabranch.node.settings import config_of

GOOD = bytes(range(32)).hex()
OTHER = bytes(range(48)).hex()[::-1]


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "n.secret"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_secret_that_was_created_can_be_read_and_belongs_to_its_owner_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "n.secret"
    create_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    one, again = read_secret(path), read_secret(path)
    assert one.common(b"message", again.proofs(b"message")) is not None
    with pytest.raises(FileExistsError):
        create_secret(path)
    assert read_secret(path).common(b"message", one.proofs(b"message")) is not None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o666, 0o777])
def test_a_file_that_is_open_to_others_is_refused_with_the_remedy(
    tmp_path: Path, mode: int
) -> None:
    path = written(tmp_path, GOOD, mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:04o}.*chmod 600") as caught:
        read_secret(path)
    assert GOOD not in str(caught.value)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_a_file_of_its_owner_alone_is_read(tmp_path: Path, mode: int) -> None:
    assert read_secret(written(tmp_path, f"{GOOD}\n", mode)).proofs(b"m")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has 0 secrets"),
        ("\n\n", "has 0 secrets"),
        (GOOD[:-2], "is not a secret: write 64"),
        (f"{GOOD[:-1]}\n", "is not a secret: write 64"),
        ("correct horse battery staple, and a lot of other words", "is not a secret: write 64"),
        ("00" * 32, "is not a secret: write 64"),
        ("é" * 64, "is not a secret: write 64"),
        (f"{GOOD}\n{OTHER}\n{OTHER[::-1]}", "has 3 secrets"),
        (f"{GOOD}\nshort\n", "is not a secret: write 64"),
        (GOOD * 100, "larger than 4096 bytes"),
    ],
)
def test_what_is_no_secret_is_refused_and_not_shown(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        read_secret(written(tmp_path, text))
    assert not text.strip() or text.strip() not in str(caught.value)
    assert GOOD not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"n\.secret: the secret .* cannot be read: No such file"):
        read_secret(tmp_path / "n.secret")


def test_two_brokers_need_one_secret_in_common(tmp_path: Path) -> None:
    old = read_secret(written(tmp_path, GOOD))
    both = read_secret(written(tmp_path, f"{GOOD}\n{OTHER}\n"))
    turned = read_secret(written(tmp_path, f"\n {OTHER} \n{GOOD}\n"))
    new = read_secret(written(tmp_path, OTHER))
    for one, other in [(old, both), (both, old), (both, turned), (turned, new), (new, both)]:
        common = one.common(b"m", other.proofs(b"m"))
        assert common is not None
        # What was common to both is what the other side knows as well.
        assert other.common(b"n", common.proofs(b"n")) is not None
    assert old.common(b"m", new.proofs(b"m")) is None
    assert old.common(b"m", old.proofs(b"n")) is None
    assert old.common(b"m", []) is None


def test_a_secret_does_not_show_itself() -> None:
    key = bytes(range(32))
    secret = Secret([key])
    for shown in (repr(secret), str(secret), f"{[secret]}"):
        assert shown in {"Secret(…)", "[Secret(…)]"}
    with pytest.raises(TypeError):
        pickle.dumps(secret)


TEXT = '[network]\nname = "n"\nsecret_file = "keys/n.secret"\n[tree]\n'
PORTS = "[brokers.a]\nlinks = 4101\n[brokers.b]\nlinks = 4201\n"


def test_a_broker_with_neighbours_reads_the_secret_and_one_alone_does_not(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    pair = loads(TEXT + 'a = ["b"]\n' + PORTS, tmp_path / "n.toml")
    assert pair.secret_file == tmp_path / "keys" / "n.secret"
    with pytest.raises(ConfigError, match="cannot be read"):
        config_of(pair, "a")
    written(tmp_path / "keys", GOOD)
    config = config_of(pair, "a")
    assert config.secret is not None
    assert GOOD not in repr(config)
    assert bytes.fromhex(GOOD).hex()[:16] not in repr(config)
    alone = loads(TEXT + "a = []\n", tmp_path / "elsewhere" / "n.toml")
    assert config_of(alone, "a").secret is None
