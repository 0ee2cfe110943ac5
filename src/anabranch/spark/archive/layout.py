"""The directory of an archive: where what stands, and who may write there.

    _archive/archive.json                     format and network; whose it is
    _archive/lock                             held by the one process that writes
    _archive/commits/<20 digits>.json         see `manifest`
    date=2026-01-31/stream=edge-1/<first tick>-<last tick>-<letters>.parquet

Names that begin with an underscore are passed over by Spark, Arrow and most other readers. So the
directory as a whole is a partitioned Parquet table for anybody. Rules:

1. A file is written as `_NAME.part`, and synced. It exists from the commit on that names it, and is
   renamed afterwards; so whoever looks at names only never sees an event twice, and may see the
   newest commit a moment late.
2. A file that a commit removes becomes `_NAME.old`, for readers that are still at it, and is
   deleted when that was `OLD_KEPT_S` ago.
3. `settle` brings names in line with the commits: what a killed process left is renamed or deleted.
   It is done by the process that has the lock, and by nobody else.
4. One writer at a time. The operating system gives the lock back when its holder dies. On file
   systems without locks the numbers of commits still let only one of two writers win.

The date is that of the origin's clock, in UTC. It never goes back within a stream.
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
_HOME: Final = "_archive"
_IDENTITY: Final = "archive.json"
_PART, _OLD = ".part", ".old"
_DAY_NS: Final = 86_400 * 10**9
_OURS = re.compile(r"_?\d{20}-\d{20}-[0-9a-f]{12}\.parquet(\.part|\.old)?")


class PutAsideError(LocalError):
    """A file that a later commit has replaced."""


class Identity(msgspec.Struct, frozen=True):
    """Whose archive it is."""

    format: int
    network: str


def commits_directory(directory: Path) -> Path:
    """Where the commits are."""
    return directory / _HOME / "commits"


def identity_of(directory: Path) -> Identity:
    """Whose archive a directory is; `LocalError` if it is none."""
    path = directory / _HOME / _IDENTITY
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Identity)
    except FileNotFoundError:
        raise LocalError(
            f"{directory} is no archive: {_HOME}/{_IDENTITY} is missing; `anabranch pipeline"
            " archive` makes one"
        ) from None
    except msgspec.DecodeError as error:
        raise LocalError(
            f"{path} was changed or damaged ({error}); restore it from a copy"
        ) from error
    if found.format != FORMAT:
        raise LocalError(
            f"{directory} has format {found.format}, this program knows only {FORMAT}; use the"
            " version that wrote it"
        )
    return found


# -- one writer ----------------------------------------------------------------------------------


@contextlib.contextmanager
def held(directory: Path, network: str = "") -> Iterator[Identity]:
    """The right to write, for as long as the block runs. A directory that is none yet becomes an
    archive of the network; one of another network is an error."""
    if network:
        commits_directory(directory).mkdir(parents=True, exist_ok=True)
    elif not (directory / _HOME).is_dir():
        identity_of(directory)
    lock = take_lock(
        directory / _HOME,
        f"on {socket.gethostname()}",
        taken=f"the archive {directory} is being written by",
        advice="only one may write: wait for it, or stop it",
    )
    try:
        if network and not (directory / _HOME / _IDENTITY).exists():
            _establish(directory, network)
        found = identity_of(directory)
        if network and found.network != network:
            raise LocalError(
                f"{directory} is an archive of the network {found.network!r}, and the brokers are"
                f" of {network!r}; give each network a directory of its own"
            )
        yield found
    finally:
        os.close(lock)


def _establish(directory: Path, network: str) -> None:
    if any(commits_directory(directory).glob("*.json")):
        raise LocalError(f"{directory} has commits, but {_IDENTITY} is missing; restore it")
    write_whole(directory / _HOME / _IDENTITY, msgspec.json.encode(Identity(FORMAT, network)))
    sync_directory(directory)


# -- files ---------------------------------------------------------------------------------------


def new_path(day: date, stream: str, first: int, last: int) -> str:
    """The path of a new file, from the directory of the archive on."""
    name = f"{first:020}-{last:020}-{secrets.token_hex(6)}.parquet"
    return f"date={day.isoformat()}/stream={stream}/{name}"


def day_of(time_ns: int) -> date:
    """The day of a moment."""
    return datetime.fromtimestamp(time_ns // 10**9, UTC).date()


def day_number(time_ns: int) -> int:
    """The same as a number that is easily compared."""
    return time_ns // _DAY_NS


def part_of(directory: Path, path: str) -> Path:
    """Where a file is before its commit."""
    return _beside(directory / path, _PART)


def check_written(directory: Path, sizes: Mapping[str, int]) -> None:
    """`LocalError` unless files that tasks say they have written are here, as large as they say:
    tasks may run on other machines, and nothing is committed that nobody can read."""
    for path, size in sizes.items():
        place = part_of(directory, path)
        if not place.exists() or place.stat().st_size != size:
            raise LocalError(
                f"{place} was written by a task, and is not here: all machines of the cluster need"
                f" {directory} on a file system that they share, and one writer at a time"
            )


def located(directory: Path, path: str) -> Path:
    """Where a committed file is now; `LocalError` if it is nowhere."""
    final = directory / path
    for place in (final, _beside(final, _PART), final, _beside(final, _OLD)):
        # The name may change while it is looked for: so the final one is asked for again.
        if place.exists():
            return place
    raise LocalError(
        f"{final} is missing, which a commit of the archive names: restore it from a copy, or, if"
        " the archive was compacted meanwhile, read it again"
    )


def finished(directory: Path, path: str) -> Path:
    """Where a committed file is, under its own name: for readers that do not take another. If its
    writer has not come to renaming it, that is done here; the commit has decided. One that a
    compaction has put aside is a `PutAsideError`."""
    final = directory / path
    place = located(directory, path)
    if place == _beside(final, _OLD):
        raise PutAsideError(f"a compaction has replaced {final} meanwhile; read the archive again")
    if place == part_of(directory, path):
        try:
            part_of(directory, path).rename(final)
        except FileNotFoundError:
            # Its writer was quicker.
            return finished(directory, path)
        except OSError as error:
            raise LocalError(
                f"{final} was committed, but its writer died before it gave the file its name, and"
                f" that cannot be done from here ({error.strerror}); run the archiver once"
            ) from error
    return final


def publish(directory: Path, paths: Iterable[str]) -> None:
    """Give committed files their names (rule 1)."""
    _renamed([(part_of(directory, path), directory / path) for path in paths])


def retire(directory: Path, paths: Iterable[str]) -> None:
    """Put files aside that a commit has removed (rule 2)."""
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
    """Bring names in line with the commits, of which `named` are the files (rule 3); what was
    deleted."""
    known = set(named)
    deleted = []
    for path in sorted(directory.glob("date=*/stream=*/*")):
        if not _OURS.fullmatch(path.name):
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
