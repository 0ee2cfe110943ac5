"""Files that survive a crash: whole writes, synced directories, and a lock for one owner.

`write_whole` replaces a file atomically: it writes a temporary file, syncs it, renames it and syncs
the directory. `take_lock` holds a directory for one process; the operating system releases the lock
when that process dies.
"""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from anabranch.model.errors import LocalError

LOCK = "lock"


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_names(path: Path) -> None:
    """Sync the names on the path to a directory, as far as permitted.

    A parent directory that this process may not read or sync was not created by it.
    """
    parent, *above = path.absolute().parents
    sync_directory(parent)
    for directory in above:
        try:
            sync_directory(directory)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS):
                raise


def write_whole(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def read_pieces(path: Path, piece_bytes: int, see: Callable[[bytes], None]) -> int:
    """Pass a file to `see` in pieces; return its length."""
    length = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(piece_bytes):
            length += len(piece)
            see(piece)
    return length


def take_lock(
    path: Path,
    who: str,
    *,
    taken: str = "",
    advice: str = "stop that first, or give another directory",
) -> int:
    """Lock the directory until the returned descriptor is closed.

    `taken` and `advice` are the error for a second process, with the holder in between.
    """
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
