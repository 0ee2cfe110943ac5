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
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

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


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_names(path: Path) -> None:
    """Wait until the names that lead to a directory are on disk, as far as that can be asked for.

    A directory above that this process may not read, or that cannot be synced, was not made by
    it."""
    parent, *above = path.absolute().parents
    sync_directory(parent)
    for directory in above:
        try:
            sync_directory(directory)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS):
                raise


def write_whole(path: Path, data: bytes) -> None:
    """Write a file as a whole or not at all, and have it on disk."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_directory(path.parent)


def read_pieces(path: Path, piece_bytes: int, see: Callable[[bytes], None]) -> int:
    """Show a file piece by piece; returns its length."""
    length = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(piece_bytes):
            length += len(piece)
            see(piece)
    return length
