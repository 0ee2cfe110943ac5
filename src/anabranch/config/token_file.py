"""Bearer tokens in files: read by a broker that asks for one, and by whoever shows it.

A token is one line of printable ASCII without spaces. Only the owner of the file may read it; a
file that others can read is refused, by both sides. A token is never part of a network file, a
status, a log line or an error.

This module keeps no state.
"""

import stat
from pathlib import Path

from anabranch.model.errors import LocalError

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
