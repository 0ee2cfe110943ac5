"""An index as a directory of arrays, to be matched with elsewhere.

`save` writes every array of a compiled index as a `.npy` file and the rest (names, codes, ids,
the filters in doubt) as `index.json`; `load` maps the arrays into memory, so that any number of
processes share one copy. A loaded index answers like the one that was saved, and refuses
changes.

1. The directory is written beside its place and moved there whole; a reader never sees half of
   one.
2. Ids must be texts or integers of 64 bits: they are stored as JSON.
3. A snapshot names its format; another format or a damaged file is an error that says so.
4. Filters that the kernels do not decide alone are stored as text and evaluated by the reader.
"""

import json
import os
import shutil
import zlib
from collections.abc import Hashable
from pathlib import Path
from typing import TypedDict

import numpy as np

from anabranch.matching.kernels import layout as at
from anabranch.matching.memory import STORED, Memory
from anabranch.model.errors import LocalError
from anabranch.model.values import INT_MAX, INT_MIN

FORMAT = "anabranch-match-index-1"
_CONTEXT = "context.npy"
_INDEX = "index.json"


class SnapshotError(LocalError):
    """A snapshot that cannot be written or read."""


class Contents(TypedDict):
    """What `index.json` holds."""

    format: str
    names: list[str | None]
    #: Per space: [attribute, axis] pairs.
    axes: list[list[tuple[int, int]]]
    #: [attribute, text] by code; None for a free one.
    texts: list[tuple[int, str] | None]
    #: [id, first entry].
    ids: list[tuple[str | int, int]]
    #: [entry, text of what is left to evaluate].
    doubts: list[tuple[int, str]]
    #: [destination, number, members].
    groups: list[tuple[str | int, int, int]]
    #: CRC-32 of each array file.
    checksums: dict[str, int]


def check_id(identity: Hashable) -> str | int:
    """An id or destination that can be stored."""
    if isinstance(identity, str):
        return identity
    if type(identity) is int and INT_MIN <= identity <= INT_MAX:
        return identity
    raise SnapshotError(f"{identity!r} cannot be stored in a snapshot; use texts or integers")


def write(directory: Path, memory: Memory, contents: Contents) -> None:
    """Write a snapshot to a directory that does not exist yet, or replace the one there."""
    if directory.exists() and not (directory / _INDEX).exists():
        raise SnapshotError(f"{directory} exists and is no snapshot; it is left alone")
    fresh = directory.with_name(f"{directory.name}.{os.getpid()}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        np.save(fresh / _CONTEXT, memory.context)
        for number, array in memory.used().items():
            np.save(fresh / f"{number}.npy", array)
        contents["checksums"] = {file.name: _checksum(file) for file in sorted(fresh.glob("*.npy"))}
        (fresh / _INDEX).write_text(json.dumps(contents), encoding="utf-8")
        shutil.rmtree(directory, ignore_errors=True)
        fresh.rename(directory)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def read(directory: Path, verify: bool) -> tuple[Memory, Contents]:
    """The arrays of a snapshot, mapped into memory, and the rest of it.

    With `verify` every file is read once and compared with its checksum; without, only the sizes
    are. A reader that trusts the writer and the disk starts faster without.
    """
    try:
        contents: Contents = json.loads((directory / _INDEX).read_text(encoding="utf-8"))
        if contents["format"] != FORMAT:
            raise SnapshotError(f"{directory} is not a snapshot of format {FORMAT}")
        for name, checksum in contents["checksums"].items() if verify else ():
            if _checksum(directory / name) != checksum:
                raise SnapshotError(f"{directory / name} is damaged: its checksum differs")
        context = np.load(directory / _CONTEXT)
        if context.shape != (at.CONTEXT_WORDS,) or context.dtype != np.int64:
            raise SnapshotError(f"{directory} was written by another version of the index")
        arrays = {
            number: np.load(directory / f"{number}.npy", mmap_mode="r") for number in sorted(STORED)
        }
        memory = Memory.of_stored(context, arrays)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"{directory} cannot be read as a snapshot: {error}") from error
    for number, expected in memory.used().items():
        if len(arrays[number]) != len(expected):
            raise SnapshotError(f"{directory / f'{number}.npy'} is not as long as it should be")
    return memory, contents


def _checksum(file: Path) -> int:
    """CRC-32 of a file, read in pieces."""
    checksum = 0
    with file.open("rb") as stream:
        while piece := stream.read(1 << 20):
            checksum = zlib.crc32(piece, checksum)
    return checksum
