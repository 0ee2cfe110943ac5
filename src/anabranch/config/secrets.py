"""The shared secret of a network: a file that every broker has, and nobody else.

Brokers prove on each link that they know it (`wire.greeting`). The network file names the file and
never holds the secret itself: network files are shown, copied and put under version control.

    file    one or two lines, each a secret: at least 64 hexadecimal digits, chosen at random

Rules:

1. The file belongs to one user: it is refused if its group or others may do anything with it.
2. A secret has at least 32 bytes. Whoever dials a broker is given a proof made with it, and could
   try short ones at leisure.
3. A file with two secrets is for changing them: two brokers need one in common. So the new one goes
   to all brokers beside the old one first, and then the old one is removed.
4. A secret is never overwritten, and appears in no message: errors name the file and the line.
"""

import hmac
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from anabranch.config.errors import ConfigError
from anabranch.model.errors import LocalError

SECRET_BYTES_MIN = 32
SECRETS_MAX = 2
#: No byte of a random secret comes often; this many of them differ in any that is one.
_DISTINCT_MIN = 8
_FILE_BYTES_MAX = 4_096
_ADVICE = "`openssl rand -hex 32` prints one"


class Secret:
    """What the brokers of a network know: one secret, or two while it is changed. It does not tell
    what it is: neither printing nor copying it to another process is possible."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = tuple(keys)
        assert 1 <= len(self._keys) <= SECRETS_MAX
        assert all(len(key) >= SECRET_BYTES_MIN for key in self._keys)

    @classmethod
    def fresh(cls) -> "Secret":
        """One that nobody else has."""
        return cls([secrets.token_bytes(SECRET_BYTES_MIN)])

    def proofs(self, message: bytes) -> tuple[bytes, ...]:
        """That a message comes from somebody who knows a secret: one proof for each of ours."""
        return tuple(hmac.digest(key, message, "sha256") for key in self._keys)

    def common(self, message: bytes, proofs: Iterable[bytes]) -> "Secret | None":
        """The secret with which one of these proofs was made; None if it is none of ours."""
        shown = list(proofs)
        for key, own in zip(self._keys, self.proofs(message), strict=True):
            if any(hmac.compare_digest(own, proof) for proof in shown):
                return Secret([key])
        return None

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not copied to other processes")


def read_secret(path: Path) -> Secret:
    """The secret in a file, or a `ConfigError` that says what is wrong with the file."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"the secret of the network cannot be read: {error.strerror or type(error).__name__};"
            " copy the file here from another broker, or make it for all of them anew",
            path=path,
        ) from None
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"the secret of the network is open to others (mode {mode:04o});"
            f" run `chmod 600 {path}`, and change the secret if somebody may have read it",
            path=path,
        )
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"larger than {_FILE_BYTES_MAX} bytes; no secret", path=path)
    lines = [line.strip() for line in data.split(b"\n")]
    found = [_key(path, number, line) for number, line in enumerate(lines, 1) if line]
    if not 1 <= len(found) <= SECRETS_MAX:
        raise ConfigError(
            f"it has {len(found)} secrets; one is wanted, and two while it is changed; {_ADVICE}",
            path=path,
        )
    return Secret(found)


def _key(path: Path, number: int, line: bytes) -> bytes:
    try:
        key = bytes.fromhex(line.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) < SECRET_BYTES_MIN or len(set(key)) < _DISTINCT_MIN:
        digits = 2 * SECRET_BYTES_MIN
        raise ConfigError(
            f"no secret: {digits} random hexadecimal digits or more are wanted; {_ADVICE}",
            path=path,
            line=number,
        )
    return key


def create_secret(path: Path) -> None:
    """Make a file with a new secret, which only its owner may read. `FileExistsError` if there is
    a file: a secret is never overwritten."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(f"{secrets.token_hex(SECRET_BYTES_MIN)}\n")
        file.flush()
        os.fsync(file.fileno())


# Bearer tokens in files: read by a broker that asks for one, and by whoever shows it.
#
# A token is one line of printable ASCII without spaces. Only the owner of the file may read it; a
# file that others can read is refused, by both sides. A token is never part of a network file, a
# status, a log line or an error.
#
# This module keeps no state.


TOKEN_BYTES_MIN = 16
TOKEN_BYTES_MAX = 1_024


def read_token(path: Path) -> str:
    """The token in this file; `LocalError` if there is none to be used."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            data = file.read(TOKEN_BYTES_MAX + 2)
    except OSError as error:
        reason = error.strerror or str(error)
        raise LocalError(f"the token file {path} cannot be read: {reason}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise LocalError(
            f"others may use the token file {path} (mode {mode:04o}); make it private: chmod 600"
        )
    token = data.removesuffix(b"\n").removesuffix(b"\r")
    is_text = all(0x21 <= byte <= 0x7E for byte in token)
    if not is_text or not TOKEN_BYTES_MIN <= len(token) <= TOKEN_BYTES_MAX:
        raise LocalError(
            f"the token file {path} holds no token: write one line of {TOKEN_BYTES_MIN} to"
            f" {TOKEN_BYTES_MAX} printable ASCII characters without spaces, such as the output of"
            " `openssl rand -hex 32`"
        )
    return token.decode("ascii")
