"""Secret files: the shared secret of a network, and bearer tokens.

Brokers authenticate each other on every link with a shared secret (`wire.greeting`). The network
file names the file and never contains the secret itself, because network files are shown, copied
and kept under version control.

    file    one or two lines, each a secret: at least 64 random hexadecimal digits

Rules

1. Only the owner may access the file; it is rejected if its group or others have any permission.
2. A secret has at least 32 bytes. Anybody who connects to a broker receives a proof computed from
   the secret, and could try short secrets offline.
3. A file with two secrets is for rotation. Two brokers need one secret in common: first add the new
   secret on all brokers, then remove the old one.
4. A secret is never overwritten and never appears in a message; errors name the file and the line.
5. A token is one line of printable ASCII without spaces. Both the broker that requires it and the
   client that presents it reject a token file that others can read. A token never appears in a
   network file, a status, a log line or an error.
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
#: Minimum number of different bytes in a random secret.
_DISTINCT_MIN = 8
_FILE_BYTES_MAX = 4_096
_ADVICE = "`openssl rand -hex 32` prints one"


class Secret:
    """The secret of a network, or two during rotation. It can be neither printed nor pickled."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Iterable[bytes]) -> None:
        self._keys = tuple(keys)
        assert 1 <= len(self._keys) <= SECRETS_MAX
        assert all(len(key) >= SECRET_BYTES_MIN for key in self._keys)

    @classmethod
    def fresh(cls) -> "Secret":
        return cls([secrets.token_bytes(SECRET_BYTES_MIN)])

    def proofs(self, message: bytes) -> tuple[bytes, ...]:
        """Proofs that a message comes from a holder of the secret: one for each secret."""
        return tuple(hmac.digest(key, message, "sha256") for key in self._keys)

    def common(self, message: bytes, proofs: Iterable[bytes]) -> "Secret | None":
        """The secret that one of these proofs was computed with; None if none matches."""
        shown = list(proofs)
        for key, own in zip(self._keys, self.proofs(message), strict=True):
            if any(hmac.compare_digest(own, proof) for proof in shown):
                return Secret([key])
        return None

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be copied to other processes")


def read_secret(path: Path) -> Secret:
    """Read a secret file; raises `ConfigError` if it is not valid."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"the secret of the network cannot be read: {error.strerror or type(error).__name__};"
            " copy the file from another broker, or create a new one for all brokers",
            path=path,
        ) from None
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"the secret of the network is accessible to others (mode {mode:04o});"
            f" run `chmod 600 {path}`, and change the secret if it may have been read",
            path=path,
        )
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(
            f"is larger than {_FILE_BYTES_MAX} bytes; this is not a secret file", path=path
        )
    lines = [line.strip() for line in data.split(b"\n")]
    found = [_key(path, number, line) for number, line in enumerate(lines, 1) if line]
    if not 1 <= len(found) <= SECRETS_MAX:
        raise ConfigError(
            f"has {len(found)} secrets; write one, or two during rotation; {_ADVICE}",
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
            f"is not a secret: write {digits} or more random hexadecimal digits; {_ADVICE}",
            path=path,
            line=number,
        )
    return key


def create_secret(path: Path) -> None:
    """Create a file with a new secret, readable only by its owner. Raises `FileExistsError` if the
    file exists."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(f"{secrets.token_hex(SECRET_BYTES_MIN)}\n")
        file.flush()
        os.fsync(file.fileno())


TOKEN_BYTES_MIN = 16
TOKEN_BYTES_MAX = 1_024


def read_token(path: Path) -> str:
    """Read a token file; raises `LocalError` if it is not valid."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            data = file.read(TOKEN_BYTES_MAX + 2)
    except OSError as error:
        reason = error.strerror or str(error)
        raise LocalError(f"the token file {path} cannot be read: {reason}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise LocalError(
            f"the token file {path} is accessible to others (mode {mode:04o}); run `chmod 600`"
        )
    token = data.removesuffix(b"\n").removesuffix(b"\r")
    is_text = all(0x21 <= byte <= 0x7E for byte in token)
    if not is_text or not TOKEN_BYTES_MIN <= len(token) <= TOKEN_BYTES_MAX:
        raise LocalError(
            f"the token file {path} has no valid token: write one line of {TOKEN_BYTES_MIN} to"
            f" {TOKEN_BYTES_MAX} printable ASCII characters without spaces, such as the output of"
            " `openssl rand -hex 32`"
        )
    return token.decode("ascii")
