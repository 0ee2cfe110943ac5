"""Verification of an archive: every commit, every file, every tick.

Checks that commits are consecutive and consistent, that each file exists bit by bit as it was
written, with the expected rows and ticks, and that no tick of a stream is in two files. Files that
no commit names are listed but are not an error: a killed writer leaves them, and the next one
removes them. Verification does not need Spark, and changes nothing.

This module keeps no state.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import msgspec

from anabranch.model.errors import LocalError
from anabranch.spark.archive.columns import ColumnName, columns_in
from anabranch.spark.archive.files import check_file, schema_of
from anabranch.spark.archive.manifest import (
    File,
    State,
    identity_of,
    located,
    read_commit,
    read_state,
    unseen,
)

Progress = Callable[[int, int], None]


class Verified(msgspec.Struct, kw_only=True):
    """Result of a verification."""

    network: str
    commits: int
    files: int
    rows: int
    bytes: int
    #: Stream → first and last archived tick.
    streams: dict[str, tuple[int, int]]
    missing: list[str] = []
    problems: list[str] = []
    #: Files that no commit names.
    unnamed: list[str] = []


def verify(directory: str | Path, progress: Progress | None = None) -> Verified:
    """Verify an archive. Raises `LocalError` if the commits themselves are unreadable."""
    place = Path(directory).absolute()
    network = identity_of(place).network
    state, problems = _replayed(place)
    files = list(state.files.values())
    problems += _overlaps(files)
    columns = {column.name: column for column in state.columns}
    with ThreadPoolExecutor(max(os.cpu_count() or 1, 1)) as threads:
        found = threads.map(lambda file: _file_problem(place, file, columns), files)
        for done, problem in enumerate(found, 1):
            problems += [problem] if problem else []
            if progress is not None:
                progress(done, len(files))
    return Verified(
        network=network,
        commits=state.number,
        files=len(files),
        rows=state.rows,
        bytes=sum(file.bytes for file in files),
        streams=dict(sorted(state.ranges.items())),
        missing=list(map(str, state.missing)),
        problems=problems,
        unnamed=list(_unnamed(place, state)),
    )


def _replayed(place: Path) -> tuple[State, list[str]]:
    """The sum of all commits, and inconsistencies between them."""
    claimed = read_state(place)
    state, problems = State(), []
    for number in range(1, claimed.number + 1):
        commit = read_commit(place, number)
        if commit.number != number:
            problems.append(f"commit {number} has the number {commit.number}")
        try:
            if commit.kind == "append":
                unseen(state, commit.spans, commit.missing)
        except LocalError as error:
            problems.append(f"commit {number}: {error}")
        problems += [
            f"commit {number} removes {path}, which does not exist"
            for path in commit.removed
            if path not in state.files
        ]
        rows = sum(state.files[path].rows for path in commit.removed if path in state.files)
        if commit.removed and rows != sum(file.rows for file in commit.added):
            problems.append(f"commit {number} removes {rows} events and adds a different number")
        state = state.after(commit)
    if state != claimed:
        problems.append("a snapshot differs from the commits; delete it")
    return state, problems


def _overlaps(files: list[File]) -> Iterator[str]:
    for one, other in pairwise(files):
        if one.stream == other.stream and other.first <= one.last:
            yield f"{one.path} and {other.path} have ticks in common"


def _file_problem(place: Path, file: File, columns: dict[str, ColumnName]) -> str:
    try:
        path = located(place, file.path)
        check_file(path, file)
        for column in columns_in(schema_of(path)):
            if columns.get(column.name) != column:
                return f"{file.path}: column {column.name!r} differs from that of the archive"
    except (LocalError, OSError) as error:
        return str(error)
    return ""


def _unnamed(place: Path, state: State) -> Iterator[str]:
    for path in sorted(place.glob("date=*/stream=*/*")):
        name = path.relative_to(place).as_posix()
        own = path.name.removeprefix("_").removesuffix(".part")
        is_named = path.with_name(own).relative_to(place).as_posix() in state.files
        if not is_named:
            yield name
