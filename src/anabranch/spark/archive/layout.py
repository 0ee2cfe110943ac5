"""Directory layout of an archive, and its writer lock.

    _archive/archive.json                     format and network
    _archive/lock                             held by the one process that writes
    _archive/commits/<20 digits>.json         see `manifest`
    date=2026-01-31/stream=edge-1/<first tick>-<last tick>-<letters>.parquet

Spark, Arrow and most other readers ignore names that begin with an underscore, so the directory as
a whole is a partitioned Parquet table. Rules:

1. A file is written as `_NAME.part` and synced. It becomes part of the archive with the commit that
   names it, and is renamed afterwards. A reader that looks only at names therefore never reads an
   event twice, and may see the newest commit slightly late.
2. A file that a commit removes is renamed to `_NAME.old`, for readers that still use it, and is
   deleted after `OLD_KEPT_S`.
3. `settle` brings names in line with the commits: it renames or deletes leftovers of killed
   processes. Only the process that holds the lock does this.
4. One writer at a time. The operating system releases the lock when its holder dies. On file
   systems without locks, commit numbers still let only one of two writers win.

Dates are those of the origin's clock, in UTC. They never decrease within a stream.
"""

import contextlib
import os
import re
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

import msgspec

from anabranch.model.durable_files import sync_directory, take_lock, write_whole
from anabranch.model.errors import LocalError

FORMAT: Final = 1
OLD_KEPT_S: Final = 3_600.0
_DIRECTORY: Final = "_archive"
_IDENTITY: Final = "archive.json"
_PART, _OLD = ".part", ".old"
_DAY_NS: Final = 86_400 * 10**9
_FILE_NAME = re.compile(r"_?\d{20}-\d{20}-[0-9a-f]{12}\.parquet(\.part|\.old)?")


class FileReplacedError(LocalError):
    """A file that a later commit has replaced."""


class Identity(msgspec.Struct, frozen=True):
    """Format and network of an archive."""

    format: int
    network: str


def commits_directory(directory: Path) -> Path:
    return directory / _DIRECTORY / "commits"


def identity_of(directory: Path) -> Identity:
    """The identity of an archive. Raises `LocalError` if the directory is not an archive."""
    path = directory / _DIRECTORY / _IDENTITY
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Identity)
    except FileNotFoundError:
        raise LocalError(
            f"{directory} is not an archive: {_DIRECTORY}/{_IDENTITY} is missing; create one with"
            " `anabranch pipeline archive`"
        ) from None
    except msgspec.DecodeError as error:
        raise LocalError(
            f"{path} is modified or damaged ({error}); restore it from a copy"
        ) from error
    if found.format != FORMAT:
        raise LocalError(
            f"{directory} has format {found.format}, but this version supports only {FORMAT}; use"
            " the version that wrote it"
        )
    return found


# -- writer lock -----------------------------------------------------------------------------------


@contextlib.contextmanager
def held(directory: Path, network: str = "") -> Iterator[Identity]:
    """Hold the writer lock during the block. With `network`, a new directory becomes an archive of
    that network; an archive of another network is an error."""
    if network:
        commits_directory(directory).mkdir(parents=True, exist_ok=True)
    elif not (directory / _DIRECTORY).is_dir():
        identity_of(directory)
    lock = take_lock(
        directory / _DIRECTORY,
        f"on {socket.gethostname()}",
        taken=f"the archive {directory} is being written by",
        advice="only one process may write: wait for it, or stop it",
    )
    try:
        if network and not (directory / _DIRECTORY / _IDENTITY).exists():
            _establish(directory, network)
        found = identity_of(directory)
        if network and found.network != network:
            raise LocalError(
                f"{directory} is an archive of network {found.network!r}, but the brokers belong to"
                f" {network!r}; use a separate directory per network"
            )
        yield found
    finally:
        os.close(lock)


def _establish(directory: Path, network: str) -> None:
    if any(commits_directory(directory).glob("*.json")):
        raise LocalError(f"{directory} has commits but no {_IDENTITY}; restore it from a copy")
    write_whole(directory / _DIRECTORY / _IDENTITY, msgspec.json.encode(Identity(FORMAT, network)))
    sync_directory(directory)


# -- files ---------------------------------------------------------------------------------------


def new_path(day: date, stream: str, first: int, last: int) -> str:
    """The path of a new file, relative to the directory of the archive."""
    name = f"{first:020}-{last:020}-{secrets.token_hex(6)}.parquet"
    return f"date={day.isoformat()}/stream={stream}/{name}"


def day_of(time_ns: int) -> date:
    return datetime.fromtimestamp(time_ns // 10**9, UTC).date()


def day_number(time_ns: int) -> int:
    """The day as a number."""
    return time_ns // _DAY_NS


def part_of(directory: Path, path: str) -> Path:
    """The path of a file before its commit."""
    return _beside(directory / path, _PART)


def check_written(directory: Path, sizes: Mapping[str, int]) -> None:
    """Raise `LocalError` unless the files that tasks report exist here with the reported size:
    tasks may run on other machines, and a commit must name only readable files."""
    for path, size in sizes.items():
        place = part_of(directory, path)
        if not place.exists() or place.stat().st_size != size:
            raise LocalError(
                f"a task has written {place}, but it does not exist here: all machines of the"
                f" cluster need {directory} on a shared file system, and one writer at a time"
            )


def located(directory: Path, path: str) -> Path:
    """The current path of a committed file. Raises `LocalError` if it is missing."""
    final = directory / path
    for place in (final, _beside(final, _PART), final, _beside(final, _OLD)):
        # The file may be renamed during the search, so the final name is tried again.
        if place.exists():
            return place
    raise LocalError(
        f"{final} is missing, but a commit of the archive names it: restore it from a copy or, if"
        " the archive was compacted meanwhile, read it again"
    )


def finished(directory: Path, path: str) -> Path:
    """The path of a committed file under its final name, for readers that accept no other. Renames
    the file if its writer has not done so; the commit is decisive. Raises `FileReplacedError` if a
    compaction has replaced the file."""
    final = directory / path
    place = located(directory, path)
    if place == _beside(final, _OLD):
        raise FileReplacedError(f"a compaction has replaced {final}; read the archive again")
    if place == part_of(directory, path):
        try:
            part_of(directory, path).rename(final)
        except FileNotFoundError:
            # The writer has renamed it meanwhile.
            return finished(directory, path)
        except OSError as error:
            raise LocalError(
                f"{final} is committed, but its writer died before renaming it, and it cannot be"
                f" renamed from here ({error.strerror}); run the archiver once"
            ) from error
    return final


def publish(directory: Path, paths: Iterable[str]) -> None:
    """Rename committed files to their final names (rule 1)."""
    _renamed([(part_of(directory, path), directory / path) for path in paths])


def retire(directory: Path, paths: Iterable[str]) -> None:
    """Rename files that a commit has removed (rule 2)."""
    _renamed([(directory / path, _beside(directory / path, _OLD)) for path in paths])
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.utime(_beside(directory / path, _OLD))


def _renamed(pairs: list[tuple[Path, Path]]) -> None:
    for old, new in pairs:
        with contextlib.suppress(FileNotFoundError):
            old.rename(new)
    for folder in {new.parent for _, new in pairs}:
        if folder.exists():
            sync_directory(folder)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"_{path.name}{suffix}")


def settle(directory: Path, named: Iterable[str], old_kept_s: float = OLD_KEPT_S) -> list[str]:
    """Bring names in line with the commits, which name the files `named` (rule 3). Returns the
    deleted files."""
    known = set(named)
    deleted = []
    for path in sorted(directory.glob("date=*/stream=*/*")):
        if not _FILE_NAME.fullmatch(path.name):
            continue
        own = path.name.removeprefix("_").removesuffix(_PART).removesuffix(_OLD)
        final = path.with_name(own)
        is_named = final.relative_to(directory).as_posix() in known
        if path.name.endswith(_OLD):
            is_due = time.time() - path.stat().st_mtime >= old_kept_s
        elif is_named:
            if path != final:
                path.rename(final)
            continue
        else:
            is_due = True
        if is_due and not is_named:
            path.unlink()
            deleted.append(path.relative_to(directory).as_posix())
    for path in commits_directory(directory).glob(".*"):
        path.unlink()
    return deleted
