"""An index as a directory of arrays, to be matched with elsewhere.

`save` writes every array of a compiled index as a `.npy` file and the rest (names, codes, ids,
the filters in doubt) as `index.json`; `load` maps the arrays into memory, so that any number of
processes share one copy. A loaded index answers like the one that was saved, and refuses
changes.

1. The directory is written beside its place and moved there whole; a reader never sees half of
   one.
2. Ids must be texts or integers of 64 bits: they are stored as JSON.
3. A snapshot names its format, and each file has a checksum (that of `index.json` stands in a
   file of its own). Another format or a damaged file is an error that names it.
4. Only a snapshot is ever replaced by one; any other directory is left alone.
5. Filters that the kernels do not decide alone are stored as text and evaluated by the reader.
"""

import json
import os
import shutil
import zlib
from collections.abc import Hashable
from pathlib import Path
from typing import Literal, TypedDict, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from anabranch.matching.kernels import layout as at
from anabranch.matching.memory import STORED, Array, Memory, stored_sizes
from anabranch.model.errors import LocalError
from anabranch.model.limits import Limits
from anabranch.model.values import INT_MAX, INT_MIN

FORMAT = "anabranch-match-index-3"
_CONTEXT = "context.npy"
_INDEX = "index.json"
_INDEX_CHECKSUM = "index.crc32"

#: What was accepted once is accepted again: a snapshot does not say by which limits it was.
ANY_SIZE = Limits(
    filter_bytes_max=1 << 30,
    filter_depth_max=1 << 30,
    filter_nodes_max=1 << 30,
    name_bytes_max=1 << 30,
    value_bytes_max=1 << 30,
    attributes_max=1 << 30,
)


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
    if directory.exists() and not _is_snapshot(directory):
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
        (fresh / _INDEX_CHECKSUM).write_text(str(_checksum(fresh / _INDEX)), encoding="utf-8")
        shutil.rmtree(directory, ignore_errors=True)
        fresh.rename(directory)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _is_snapshot(directory: Path) -> bool:
    """Whether what is there was written by `write`, whole or damaged since."""
    return (directory / _INDEX).exists() and (directory / _CONTEXT).exists()


def read(directory: Path, verify: bool) -> tuple[Memory, Contents]:
    """The arrays of a snapshot, mapped into memory, and the rest of it.

    With `verify` every file is read once and compared with its checksum; without, only types and
    sizes are. A reader that trusts the writer and the disk starts faster without.
    """
    contents = _read_contents(directory, verify)
    if verify:
        for name, checksum in contents["checksums"].items():
            _verify(directory / name, checksum)
    context = cast("NDArray[np.int64]", _load(directory / _CONTEXT, np.dtype(np.int64)))
    if len(context) != at.CONTEXT_WORDS:
        raise SnapshotError(f"{directory} was written by another version of the index")
    kinds = {number: array.dtype for number, array in Memory().arrays.items()}
    arrays = {
        number: _load(directory / f"{number}.npy", kinds[number], "r") for number in sorted(STORED)
    }
    _check_sizes(directory, context, arrays)
    return Memory.of_stored(context, arrays), contents


def _read_contents(directory: Path, verify: bool) -> Contents:
    file = directory / _INDEX
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(found, dict) and found.get("format") != FORMAT:
            raise SnapshotError(f"{directory} is not a snapshot of format {FORMAT}")
        if verify:
            _verify(file, int((directory / _INDEX_CHECKSUM).read_text(encoding="utf-8")))
        return msgspec.convert(found, Contents)
    except (OSError, ValueError, RecursionError) as error:
        raise SnapshotError(f"{file} cannot be read as part of a snapshot: {error}") from error


def _load(file: Path, kind: np.dtype[np.generic], mode: Literal["r"] | None = None) -> Array:
    """The vector in a file."""
    try:
        array: Array = np.load(file, mmap_mode=mode)
    except (OSError, ValueError, EOFError) as error:
        raise SnapshotError(f"{file} cannot be read as part of a snapshot: {error}") from error
    if array.ndim != 1 or array.dtype != kind:
        raise SnapshotError(f"{file} holds {array.dtype} in {array.ndim} dimensions, not {kind}")
    return array


def _check_sizes(directory: Path, context: NDArray[np.int64], arrays: dict[int, Array]) -> None:
    for number, expected in stored_sizes(context).items():
        if len(arrays[number]) != expected:
            raise SnapshotError(f"{directory / f'{number}.npy'} is not as long as it should be")


def _verify(file: Path, checksum: int) -> None:
    try:
        found = _checksum(file)
    except OSError as error:
        raise SnapshotError(f"{file} cannot be read as part of a snapshot: {error}") from error
    if found != checksum:
        raise SnapshotError(f"{file} is damaged: its checksum differs")


def _checksum(file: Path) -> int:
    """CRC-32 of a file, read in pieces."""
    checksum = 0
    with file.open("rb") as stream:
        while piece := stream.read(1 << 20):
            checksum = zlib.crc32(piece, checksum)
    return checksum
