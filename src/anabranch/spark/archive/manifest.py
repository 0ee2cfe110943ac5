"""Manifest of an archive: numbered commits that record what is archived, and in which files.

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

State: the directory of commits.
"""

import os
import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from anabranch.model.durable_files import sync_directory, write_whole
from anabranch.model.errors import LocalError
from anabranch.spark.archive.columns import ColumnName
from anabranch.spark.archive.layout import check_written, commits_directory

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
