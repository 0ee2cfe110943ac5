"""Durable files and the state directory of a broker.

Durable files are written at offsets, synced, reserved ahead, and replaced atomically. Rules:

1. When `sync` returns, the data is on disk. A name in a directory is on disk after
   `sync_directory`.
2. `reserve` allocates space for later writes; it returns False if there is none. Every other
   failure is an `OSError` with the file's name, after which the content of the file is undefined
   (see `segment`, W4).
3. `write_whole` replaces a file atomically: a crash leaves the old or the new one.

`DiskFile` is also the seam at which tests inject failing disks.

State directory:

4. One process at a time uses a directory. The operating system releases the lock when its holder
   dies.
5. A directory belongs permanently to one broker of one network. Another broker is refused, because
   its ticks and cursors have a different meaning.
6. All names on the path to a new directory are synced, because it is unknown which of them this
   start created, or an interrupted one before it.
7. In a new directory, the identity is written after the catalog and before the log. If the identity
   exists, the catalog must exist too; a log without an identity means that something was removed.
"""

import errno
import os
import shutil
import tomllib
from pathlib import Path
from typing import Protocol
from zlib import crc32

from anabranch.model.durable_files import sync_names, take_lock, write_whole
from anabranch.model.errors import LocalError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class DiskFile:
    """A file that one thread writes at given offsets."""

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if fresh else 0)
        self._descriptor = os.open(path, flags, 0o644)

    def write(self, data: bytes, offset: int) -> None:
        """Write bytes at an offset, unsynced."""
        try:
            written = os.pwrite(self._descriptor, data, offset)
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], offset + written)
        except OSError as error:
            raise self._named(error) from error

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._named(error) from error

    def reserve(self, start: int, end: int) -> bool:
        """Allocate space up to `end`, zeros from `start` on; return False if there is none."""
        try:
            os.posix_fallocate(self._descriptor, start, end - start)
        except OSError as error:
            if error.errno in _NO_ROOM:
                return False
            raise self._named(error) from error
        return True

    def cut(self, length: int) -> None:
        """Truncate or extend the file, unsynced."""
        os.ftruncate(self._descriptor, length)

    def _named(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, str(self.path))

    def close(self) -> None:
        os.close(self._descriptor)


def link_or_copy(old: Path, new: Path) -> None:
    """Give a synced file a second name; copy it if the file system has no such thing. The name is
    on disk after a sync of its directory.
    """
    try:
        os.link(old, new)
    except FileNotFoundError:
        raise
    except OSError as error:
        if is_no_room(error):
            raise
        shutil.copyfile(old, new)
        copied = os.open(new, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fdatasync(copied)
        finally:
            os.close(copied)


class OpenFile(Protocol):
    """Opens files of the log. Tests replace it."""

    def __call__(self, path: Path, *, fresh: bool = False) -> DiskFile:
        """Open the file; a `fresh` one must not exist yet."""


def is_no_room(error: OSError) -> bool:
    return error.errno in _NO_ROOM


def free_bytes(path: Path) -> int:
    """Free bytes on the file system of a path, available to this user."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def disk_bytes(path: Path) -> int:
    """Size of the file system of a path; 0 if unknown."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_blocks * found.f_frsize


DIRECTORY_FORMAT = 1
LOG = "log"
COPIES = "copies"
CATALOG = "catalog.sqlite"
_IDENTITY = "identity.toml"


class StateDirectory:
    """A state directory that this process has locked."""

    __slots__ = ("_lock", "is_new", "path")

    def __init__(self, path: Path, network: str, broker: str) -> None:
        self.path = path
        try:
            (path / LOG).mkdir(parents=True, exist_ok=True)
            self._lock = take_lock(path, f"broker {broker} of network {network}")
        except OSError as error:
            raise LocalError(
                f"the state directory {path} cannot be used: {error.strerror}"
                f" ({error.filename}); fix that, or give the broker another directory"
            ) from error
        try:
            self.is_new = not _has_identity(path, network, broker)
        except BaseException:
            self.release()
            raise

    def establish(self, network: str, broker: str) -> None:
        """Write the identity of a new directory, once its catalog exists."""
        if self.is_new:
            write_whole(self.path / _IDENTITY, _identity(network, broker))
            sync_names(self.path)
            self.is_new = False

    def release(self) -> None:
        os.close(self._lock)


def read_identity(path: Path) -> tuple[str, str]:
    """Return network and broker of a state directory."""
    file = path / _IDENTITY
    try:
        data = file.read_bytes()
        found = tomllib.loads(data.decode())
        format_version, network, broker = found["format"], found["network"], found["broker"]
    except FileNotFoundError:
        raise LocalError(f"{path} is not a state directory: {_IDENTITY} is missing") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError) as error:
        raise _damaged(file, str(error)) from None
    if not (isinstance(network, str) and isinstance(broker, str)):
        raise _damaged(file, "names are not text")
    if data != _identity(network, broker, format_version):
        raise _damaged(file, "its CRC is wrong")
    if format_version != DIRECTORY_FORMAT:
        raise LocalError(
            f"{path} has format {format_version}, this program supports only {DIRECTORY_FORMAT};"
            " start the version that wrote it"
        )
    return network, broker


def _has_identity(path: Path, network: str, broker: str) -> bool:
    """Return whether the directory is this broker's; False if it has no owner yet."""
    if not (path / _IDENTITY).exists():
        if any((path / LOG).glob("*.segment")):
            raise LocalError(
                f"{path} contains a log, but {_IDENTITY}, which names its owner, is missing;"
                " restore it from a copy"
            )
        return False
    found = read_identity(path)
    if found != (network, broker):
        raise LocalError(
            f"the state directory {path} belongs to broker {found[1]!r} of network {found[0]!r},"
            f" not to {broker!r} of {network!r}; give this broker its own directory"
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
