"""The state directory of one broker: whose it is, and who uses it now.

    lock             held by the process that uses the directory; says which one that is
    identity.toml    format, network, broker, and a CRC of these
    catalog.sqlite   see `catalog`
    log              see `log`

Rules:

1. One process at a time. The operating system gives the lock back when its holder dies.
2. A directory belongs to one broker of one network for good. Another one is refused, because its
   ticks and cursors would mean something else.
3. The names that lead to a new directory are synced too, all of them: which ones this start made,
   and which ones a start before it that was interrupted, is not known.
4. When a directory is made, the identity is written after the catalog and before the log. So where
   it is, the catalog must be too; and where there is a log without it, something was taken away.
"""

import fcntl
import os
import tomllib
from pathlib import Path
from zlib import crc32

from anabranch.model.errors import LocalError
from anabranch.store.files import sync_names, write_whole

DIRECTORY_FORMAT = 1
LOG = "log"
CATALOG = "catalog.sqlite"
LOCK = "lock"
_IDENTITY = "identity.toml"


class StateDirectory:
    """A state directory that this process holds."""

    __slots__ = ("_lock", "is_new", "path")

    def __init__(self, path: Path, network: str, broker: str) -> None:
        self.path = path
        try:
            (path / LOG).mkdir(parents=True, exist_ok=True)
            self._lock = take_lock(path, f"broker {broker} of network {network}")
        except OSError as error:
            raise LocalError(
                f"the state directory {path} cannot be used: {error.strerror}"
                f" ({error.filename}); mend that, or give the broker another directory"
            ) from error
        try:
            self.is_new = not _has_identity(path, network, broker)
        except BaseException:
            self.release()
            raise

    def establish(self, network: str, broker: str) -> None:
        """The catalog of a new directory is there: say whose it is."""
        if self.is_new:
            write_whole(self.path / _IDENTITY, _identity(network, broker))
            sync_names(self.path)
            self.is_new = False

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._lock)


def take_lock(
    path: Path,
    who: str,
    *,
    taken: str = "",
    advice: str = "stop that first, or give another directory",
) -> int:
    """Hold the directory until the descriptor that is returned is closed.

    `taken` and `advice` are for whoever comes second, with the holder in between."""
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
        os.close(descriptor)
        taken = taken or f"the state directory {path} is in use by"
        raise LocalError(f"{taken} {holder or 'another process'}; {advice}") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()}, {who}\n".encode(), 0)
    return descriptor


def read_identity(path: Path) -> tuple[str, str]:
    """Network and broker of a state directory."""
    file = path / _IDENTITY
    try:
        data = file.read_bytes()
        found = tomllib.loads(data.decode())
        format_version, network, broker = found["format"], found["network"], found["broker"]
    except FileNotFoundError:
        raise LocalError(f"{path} is no state directory: {_IDENTITY} is missing") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError) as error:
        raise _damaged(file, str(error)) from None
    if not (isinstance(network, str) and isinstance(broker, str)):
        raise _damaged(file, "names are no text")
    if data != _identity(network, broker, format_version):
        raise _damaged(file, "its CRC is wrong")
    if format_version != DIRECTORY_FORMAT:
        raise LocalError(
            f"{path} has format {format_version}, this program knows only {DIRECTORY_FORMAT};"
            " start the version that wrote it"
        )
    return network, broker


def _has_identity(path: Path, network: str, broker: str) -> bool:
    """Whether the directory is this broker's; False if it is nobody's yet."""
    if not (path / _IDENTITY).exists():
        if any((path / LOG).glob("*.segment")):
            raise LocalError(
                f"{path} holds a log, but {_IDENTITY} is missing, which says whose it is;"
                " restore it from a copy"
            )
        return False
    found = read_identity(path)
    if found != (network, broker):
        raise LocalError(
            f"the state directory {path} belongs to broker {found[1]!r} of network {found[0]!r},"
            f" not to {broker!r} of {network!r}; give this broker a directory of its own"
        )
    if not (path / CATALOG).exists():
        raise LocalError(f"{path / CATALOG} is missing; restore it from a copy")
    return True


def _identity(network: str, broker: str, format_version: object = DIRECTORY_FORMAT) -> bytes:
    lines = f"format = {format_version}\nnetwork = {_quoted(network)}\nbroker = {_quoted(broker)}\n"
    return f'{lines}crc = "{crc32(lines.encode()):08x}"\n'.encode()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _damaged(file: Path, reason: str) -> LocalError:
    return LocalError(f"{file} was changed or damaged ({reason}); restore it from a copy")
