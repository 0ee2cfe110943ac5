"""Snapshots: an index as one file of arrays, for matching in other processes.

    head    magic 16   format 4   bytes of the contents 4   bytes of the file 8   CRC-32s 4 + 4
    contents, as JSON: what parts there are, and the names of attributes
    parts, each at a multiple of 64 bytes: the arrays of a compiled index, ids, what is left to
    evaluate, destinations

`write` creates such a file, and `read` maps it into memory, so that any number of processes share
one copy. Opening takes some milliseconds, regardless of the number of subscriptions. A loaded index
gives the same results as the saved one and rejects changes. Numbers are little-endian.

1. The file is written under another name and renamed atomically; a reader that has mapped the
   previous file keeps using it.
2. Ids and destinations must be texts or 64-bit integers.
3. A file that is truncated, of another format, or not a snapshot is an error. The head and the
   contents are always verified, the parts only with `verify`, because reading all of them takes
   time.
4. A snapshot replaces only another snapshot; any other file or directory is left unchanged.
5. For filters that the kernels cannot decide alone, the residual conditions are stored, and the
   reader evaluates them.
"""

import mmap
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from anabranch.matching.identities import StoredIds, TextTable
from anabranch.matching.kernels import layout as at
from anabranch.matching.memory import STORED, Array, Memory, stored_sizes
from anabranch.model.errors import LocalError
from anabranch.model.event import INT_MAX, INT_MIN

#: Grows whenever an older program could not read what this one writes, or the other way round.
FORMAT: Final = 4
_MAGIC = b"anabranch index\n"
#: Magic, format, bytes of the contents, bytes of the file, CRC-32 of the contents.
_HEAD = struct.Struct("<16sIIQI")
_CHECK = struct.Struct("<I")
_ALIGNED = 64
_TYPES = {"i32": np.int32, "i64": np.int64, "u64": np.uint64, "u8": np.uint8}
_TYPE_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}

Parts = dict[str, NDArray[np.generic]]


class SnapshotError(LocalError):
    """A snapshot that cannot be written or read."""


class Part(msgspec.Struct, frozen=True):
    """One array of the file."""

    name: str
    type: str
    first: int
    count: int
    checksum: int


class Contents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file says of itself."""

    subscriptions: int
    conjunctions: int
    #: By attribute; None where a number is free.
    names: list[str | None]
    parts: list[Part]


class Snapshot(NamedTuple):
    """What an index is made of, but for its memory."""

    names: list[str | None]
    ids: StoredIds
    #: Entries in doubt, ascending, and what is left of each.
    doubtful: NDArray[np.int32]
    left: TextTable
    #: Destinations, and by their place (number, members).
    destinations: StoredIds
    members: NDArray[np.int64]


def check_id(identity: Hashable) -> str | int:
    """An id or destination that can be stored."""
    if isinstance(identity, str):
        return identity
    if type(identity) is int and INT_MIN <= identity <= INT_MAX:
        return identity
    raise SnapshotError(f"{identity!r} cannot be stored in a snapshot; use texts or integers")


# -- writing ---------------------------------------------------------------------------------------


def write(path: Path, memory: Memory, snapshot: Snapshot) -> None:
    """Write a snapshot to a file that does not exist yet, or replace the one there."""
    context = memory.context.copy()
    context[: at.ARRAYS] = 0  # addresses, which mean nothing elsewhere
    parts: Parts = {"context": context}
    parts |= {str(number): array for number, array in memory.used().items()}
    parts |= _ids_parts("ids", snapshot.ids) | _ids_parts("destinations", snapshot.destinations)
    parts |= {"doubtful": snapshot.doubtful, "members": snapshot.members}
    parts |= _table_parts("left", snapshot.left)
    _put(path, lambda fresh: _write_file(fresh, snapshot, parts))


def copy(source: Path, path: Path) -> None:
    """Write a snapshot that is there once more, to another place."""
    if path.exists() and path.samefile(source):
        return
    _put(path, lambda fresh: shutil.copyfile(source, fresh))


def _put(path: Path, write: Callable[[Path], object]) -> None:
    """Let a file be there as a whole (rules 1 and 4)."""
    if path.exists() and not is_snapshot(path):
        raise SnapshotError(f"{path} exists and is not a snapshot; choose another path")
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    fresh.parent.mkdir(parents=True, exist_ok=True)
    try:
        write(fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def _ids_parts(name: str, ids: StoredIds) -> Parts:
    arrays = {field: getattr(ids, field) for field in ("names", "kinds", "firsts", "by_entry")}
    parts = {f"{name}.{field}": array for field, array in arrays.items()}
    return parts | _table_parts(f"{name}.texts", ids.texts)


def _table_parts(name: str, table: TextTable) -> Parts:
    return {f"{name}.stops": table.stops, f"{name}.letters": table.letters}


def _write_file(path: Path, snapshot: Snapshot, parts: Parts) -> None:
    whole = {name: np.ascontiguousarray(array) for name, array in parts.items()}
    sums = {name: zlib.crc32(array.data) for name, array in whole.items()}
    # How far the contents reach depends on the numbers in them; so room is left for all digits.
    first = _aligned(_HEAD.size + _CHECK.size + len(_contents(snapshot, whole, sums, 1 << 60)))
    contents = _contents(snapshot, whole, sums, first)
    size = first + sum(_aligned(array.nbytes) for array in whole.values())
    head = _HEAD.pack(_MAGIC, FORMAT, len(contents), size, zlib.crc32(contents))
    with path.open("wb") as file:
        file.write(head + _CHECK.pack(zlib.crc32(head)) + contents)
        for array in whole.values():
            file.seek(first)
            file.write(array.data)
            first += _aligned(array.nbytes)
        file.truncate(size)


def _contents(snapshot: Snapshot, parts: Parts, sums: dict[str, int], first: int) -> bytes:
    described = []
    for name, array in parts.items():
        kind = _TYPE_NAMES[array.dtype]
        described.append(Part(name, kind, first, len(array), sums[name]))
        first += _aligned(array.nbytes)
    entries = len(snapshot.ids.by_entry)
    contents = Contents(len(snapshot.ids.firsts), entries, snapshot.names, described)
    return msgspec.json.encode(contents)


def _aligned(position: int) -> int:
    return -(-position // _ALIGNED) * _ALIGNED


# -- reading ---------------------------------------------------------------------------------------


def is_snapshot(path: Path) -> bool:
    """Whether what is there was written by `write`, whole or damaged since."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read(path: Path, verify: bool) -> tuple[Memory, Snapshot]:
    """The arrays of a snapshot, mapped into memory, and the rest of it.

    With `verify` every part is read once and compared with its checksum. A reader that trusts the
    writer and the disk starts faster without.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except IsADirectoryError:
        raise SnapshotError(f"{path} is a directory; a snapshot is one file") from None
    except (OSError, ValueError) as error:
        raise SnapshotError(f"{path} cannot be read as a snapshot: {error}") from error
    contents = _read_contents(path, mapped)
    parts = {part.name: _array(path, mapped, part, verify) for part in contents.parts}
    try:
        return _memory(path, parts), _snapshot(contents, parts)
    except KeyError as error:
        raise SnapshotError(f"{path} has no part {error}; it is of another version") from None


def _read_contents(path: Path, mapped: mmap.mmap | bytes) -> Contents:
    start = _HEAD.size + _CHECK.size
    if mapped[: len(_MAGIC)] != _MAGIC or len(mapped) < start:
        raise SnapshotError(f"{path} is not a snapshot of an index")
    magic_to_sum = mapped[: _HEAD.size]
    _, format, length, size, checksum = _HEAD.unpack(magic_to_sum)
    if format != FORMAT:
        raise SnapshotError(
            f"{path} is a snapshot of format {format}, and this version reads format {FORMAT};"
            " write it again from the subscriptions"
        )
    if _CHECK.unpack(mapped[_HEAD.size : start])[0] != zlib.crc32(magic_to_sum):
        raise SnapshotError(f"{path} is damaged: the checksum of its head differs")
    if len(mapped) != size:
        raise SnapshotError(f"{path} has {len(mapped)} bytes of {size}; it is not whole")
    contents = mapped[start : start + length]
    if zlib.crc32(contents) != checksum:
        raise SnapshotError(f"{path} is damaged: the checksum of its contents differs")
    try:
        return msgspec.json.decode(contents, type=Contents)
    except (msgspec.DecodeError, RecursionError) as error:
        raise SnapshotError(f"{path} is damaged: its contents say nothing: {error}") from error


def _array(path: Path, mapped: mmap.mmap | bytes, part: Part, verify: bool) -> NDArray[np.generic]:
    kind = np.dtype(_TYPES.get(part.type, np.void))
    end = part.first + part.count * kind.itemsize
    if kind == np.void or part.first % _ALIGNED or not 0 <= part.first <= end <= len(mapped):
        raise SnapshotError(f"{path} is damaged: part {part.name} lies where nothing can be")
    array = np.frombuffer(mapped, kind, part.count, part.first)
    if verify and zlib.crc32(array.data) != part.checksum:
        raise SnapshotError(f"{path} is damaged: the checksum of part {part.name} differs")
    return array


def _memory(path: Path, parts: Parts) -> Memory:
    context = parts["context"]
    if context.dtype != np.int64 or len(context) != at.CONTEXT_WORDS:
        raise SnapshotError(f"{path} was written by another version of the index")
    words = context.astype(np.int64)
    kinds = {number: array.dtype for number, array in Memory().arrays.items()}
    arrays: dict[int, Array] = {}
    for number, expected in stored_sizes(words).items():
        array = parts[str(number)]
        if len(array) != expected or array.dtype != kinds[number]:
            raise SnapshotError(f"{path} is damaged: part {number} is not what it should be")
        arrays[number] = array  # type: ignore[assignment]
    assert arrays.keys() == STORED
    return Memory.of_stored(words, arrays)


def _snapshot(contents: Contents, parts: Parts) -> Snapshot:
    return Snapshot(
        contents.names,
        _ids_in("ids", parts),
        parts["doubtful"],  # type: ignore[arg-type]
        _table_in("left", parts),
        _ids_in("destinations", parts),
        parts["members"],  # type: ignore[arg-type]
    )


def _ids_in(name: str, parts: Parts) -> StoredIds:
    names, kinds, firsts, by_entry = (
        parts[f"{name}.{field}"] for field in ("names", "kinds", "firsts", "by_entry")
    )
    texts = _table_in(f"{name}.texts", parts)
    return StoredIds(names, kinds, texts, firsts, by_entry)  # type: ignore[arg-type]


def _table_in(name: str, parts: Parts) -> TextTable:
    return TextTable(parts[f"{name}.stops"], parts[f"{name}.letters"])  # type: ignore[arg-type]
