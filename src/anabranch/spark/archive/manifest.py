"""Manifest and directory of an archive: what is archived, in which files, and who may write.

A commit is an immutable JSON file, `commits/00000000000000000017.json`. The content of an archive
is the sum of its commits; a file that no commit names is not part of it. Rules:

1. A commit is created atomically, by a hard link to a finished file, which fails if the number is
   taken. Of two writers that create the same number, one wins and the other gets an error.
2. The archived ticks of each stream are one range without gaps, from the first tick that the log
   had when the archive was created. An append starts where the range ends and lists its ticks in
   `spans`, silence included. No tick is archived twice: an append that repeats archived ticks
   changes nothing, and one that overlaps or leaves a gap is refused.
3. Ticks that the log trimmed before they could be archived are recorded as `missing`, if the user
   has allowed that; they extend the range without events.
4. A compaction replaces files by others with the same rows.
5. Columns are named once (`columns`).
6. Every `SNAPSHOT_EVERY` commits, their sum is written next to the last of them, so that readers
   need not read all commits. A snapshot contains no other information.

 The directory and the lock of the writer:

    _archive/archive.json                     format and network
    _archive/lock                             held by the one process that writes
    _archive/commits/<20 digits>.json         one commit each
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

State: the directory.
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
from typing import Final, Literal

import msgspec

from anabranch.model.durable_files import sync_directory, take_lock, write_whole
from anabranch.model.errors import LocalError
from anabranch.spark.archive.columns import ColumnName

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


SNAPSHOT_EVERY: Final = 64
_SNAPSHOT: Final = ".snapshot.json"


class Span(msgspec.Struct, frozen=True):
    """A range of ticks of a stream, both ends included."""

    stream: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"ticks {self.first} to {self.last} of stream {self.stream!r}"


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file; its ticks ascend."""

    #: Relative to the directory of the archive.
    path: str
    stream: str
    #: First and last tick of its events.
    first: int
    last: int
    #: Log times of these events, in nanoseconds.
    first_ns: int
    last_ns: int
    rows: int
    bytes: int
    #: CRC-32 of the whole file.
    crc: int


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """One change of an archive. See the rules at the top of this module."""

    number: int
    kind: Literal["append", "compact"]
    #: Creation time in ISO 8601, informational.
    made: str = ""
    spans: list[Span] = []
    missing: list[Span] = []
    added: list[File] = []
    removed: list[str] = []
    columns: list[ColumnName] = []


class State(msgspec.Struct, frozen=True):
    """Content of an archive after `number` commits."""

    number: int = 0
    #: Stream → its first and last archived tick.
    ranges: dict[str, tuple[int, int]] = {}
    missing: list[Span] = []
    #: By path, ordered by stream and tick.
    files: dict[str, File] = {}
    columns: list[ColumnName] = []

    @property
    def rows(self) -> int:
        """Number of events in all files."""
        return sum(file.rows for file in self.files.values())

    def after(self, commit: Commit) -> "State":
        """The state after one more commit."""
        ranges = dict(self.ranges)
        for span in sorted([*commit.spans, *commit.missing], key=lambda span: span.first):
            first, last = ranges.get(span.stream, (span.first, span.first - 1))
            ranges[span.stream] = first, max(last, span.last)
        removed = set(commit.removed)
        files = [file for path, file in self.files.items() if path not in removed]
        files += commit.added
        files.sort(key=lambda file: (file.stream, file.first))
        return State(
            commit.number,
            ranges,
            [*self.missing, *commit.missing],
            {file.path: file for file in files},
            [*self.columns, *commit.columns],
        )


class ArchiveConflictError(LocalError):
    """Another writer has committed to the archive meanwhile."""


# -- reading -------------------------------------------------------------------------------------


def read_state(directory: Path, number: int | None = None) -> State:
    """The current content of an archive, or that after `number` commits."""
    place = commits_directory(directory)
    numbers = _numbers(place, number)
    if numbers != list(range(1, len(numbers) + 1)):
        # Commits that are created during the listing may appear in any order; list again.
        numbers = _numbers(place, number)
    if numbers != list(range(1, len(numbers) + 1)):
        lacking = next(n for n, each in enumerate(numbers, 1) if n != each)
        raise LocalError(
            f"{_path(place, lacking)} is missing, but later commits exist: restore it from a copy"
            " of the archive"
        )
    state = _newest_snapshot(place, len(numbers))
    for each in numbers[state.number :]:
        state = state.after(read_commit(directory, each))
    return state


def _numbers(place: Path, number_max: int | None) -> list[int]:
    found = sorted(int(path.stem) for path in place.glob("*.json") if path.stem.isdecimal())
    return [each for each in found if number_max is None or each <= number_max]


def read_commit(directory: Path, number: int) -> Commit:
    path = _path(commits_directory(directory), number)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Commit)
    except msgspec.DecodeError as error:
        raise LocalError(
            f"{path} is modified or damaged ({error}); restore it from a copy of the archive"
        ) from error


def _newest_snapshot(place: Path, number_max: int) -> State:
    number = number_max - number_max % SNAPSHOT_EVERY
    while number > 0:
        try:
            data = _path(place, number).with_suffix(_SNAPSHOT).read_bytes()
            return msgspec.json.decode(data, type=State)
        except (FileNotFoundError, msgspec.DecodeError):
            number -= SNAPSHOT_EVERY
    return State()


def _path(place: Path, number: int) -> Path:
    return place / f"{number:020}.json"


# -- writing -------------------------------------------------------------------------------------


def unseen(state: State, spans: Iterable[Span], missing: Iterable[Span] = ()) -> bool:
    """Whether an append adds ticks. Raises `LocalError` unless it follows the archived range."""
    ends = {stream: last for stream, (_, last) in state.ranges.items()}
    is_new = is_old = False
    for span in sorted([*spans, *missing], key=lambda span: (span.stream, span.first)):
        end = ends.get(span.stream, span.first - 1)
        if span.last <= end:
            is_old = True
            continue
        if span.first != end + 1:
            raise LocalError(
                f"{span} do not follow the archived range, which ends at tick {end}; archive from"
                f" tick {end + 1} on"
            )
        is_new = True
        ends[span.stream] = span.last
    if is_new and is_old:
        raise LocalError("some of these ticks are archived already; start after them")
    return is_new


def append_commit(directory: Path, state: State, commit: Commit) -> State:
    """Write a commit. Returns the new state. Raises `ArchiveConflictError` if its number is taken
    (rule 1)."""
    assert commit.number == state.number + 1
    check_written(directory, {file.path: file.bytes for file in commit.added})
    place = commits_directory(directory)
    moment = datetime.now(UTC).isoformat(timespec="milliseconds")
    data = msgspec.json.encode(msgspec.structs.replace(commit, made=moment))
    draft = place / f".{secrets.token_hex(8)}"
    with draft.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, _path(place, commit.number))
    except FileExistsError:
        raise ArchiveConflictError(
            f"another writer has created commit {commit.number} of the archive {directory}"
            " meanwhile; this commit was discarded: run only one archiver at a time, and run it"
            " again"
        ) from None
    finally:
        draft.unlink()
    sync_directory(place)
    after = state.after(commit)
    if after.number % SNAPSHOT_EVERY == 0:
        snapshot = _path(place, after.number).with_suffix(_SNAPSHOT)
        write_whole(snapshot, msgspec.json.encode(after))
    return after
