"""Files that survive: written at a place, synced, reserved ahead, replaced as a whole.

Nothing here knows what is in the files. Rules:

1. What `sync` returned from is on disk. A name in a directory is, after `sync_directory`.
2. `reserve` makes room that a later write cannot be denied; it says False if there is none. Every
   other failure is an `OSError` with the file's name, and what the file then holds is not known
   (see `segment`, W4).
3. `write_whole` replaces a file by another in one step: a crash leaves the old or the new one.

`DiskFile` is also the seam at which tests put disks that fail.
"""

import errno
import os
import tomllib
from pathlib import Path
from typing import Protocol
from zlib import crc32

from anabranch.model.durable_files import sync_names, take_lock, write_whole
from anabranch.model.errors import LocalError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class DiskFile:
    """A file that is written at given places by one thread."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if fresh else 0)
        self._descriptor = os.open(path, flags, 0o644)

    def write(self, data: bytes, offset: int) -> None:
        """Put these bytes there, unsynced."""
        try:
            written = os.pwrite(self._descriptor, data, offset)
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], offset + written)
        except OSError as error:
            raise self._named(error) from error

    def sync(self) -> None:
        """Wait until everything written is on disk."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._named(error) from error

    def reserve(self, start: int, end: int) -> bool:
        """Make room for bytes up to `end`, zeros from `start` on; False if there is none."""
        try:
            os.posix_fallocate(self._descriptor, start, end - start)
        except OSError as error:
            if error.errno in _NO_ROOM:
                return False
            raise self._named(error) from error
        return True

    def cut(self, length: int) -> None:
        """Let the file end there, unsynced."""
        os.ftruncate(self._descriptor, length)

    def _named(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, str(self.path))

    def close(self) -> None:
        """Done with it."""
        os.close(self._descriptor)


class OpenFile(Protocol):
    """How files of the log are opened. Tests bring one of their own."""

    def __call__(self, path: Path, *, fresh: bool = False) -> DiskFile:
        """The file there; a `fresh` one must not exist yet."""


def is_no_room(error: OSError) -> bool:
    """Whether this error says that the disk is full."""
    return error.errno in _NO_ROOM


# The state directory of one broker: whose it is, and who uses it now.
#
#
# Rules:
#
# 1. One process at a time. The operating system gives the lock back when its holder dies.
# 2. A directory belongs to one broker of one network for good. Another one is refused, because its
#    ticks and cursors would mean something else.
# 3. The names that lead to a new directory are synced too, all of them: which ones this start made,
#    and which ones a start before it that was interrupted, is not known.
# 4. When a directory is made, the identity is written after the catalog and before the log. So
#    where it is, the catalog must be too; and where there is a log without it, something was taken
#    away.


DIRECTORY_FORMAT = 1
LOG = "log"
CATALOG = "catalog.sqlite"
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
