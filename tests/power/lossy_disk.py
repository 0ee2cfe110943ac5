"""A disk that loses power: what may be on it after any call of a write stream.

The disk is given the calls of a stream one by one. At any time it can be asked what it may hold if
the power fails now: an `Image`, the content of every file that has a name. What was synced is in
every image. Of the rest:

1. Data of a file is kept or lost sector by sector (512 bytes), in any order. A sector holds what it
   held after some number of the calls that wrote it, and never a mix of two calls, since the page
   cache has one copy of it: a sector with a later write has the earlier ones too.
2. The length of a file is what it was after some number of calls. Where it is longer than what was
   written, there are zeros. So a file may have its new length and none of its new data.
3. Where a shorter length was lost, nothing that was written behind it later is there, because it
   would be in blocks that the file gets afterwards. Stale data never reappears.
4. Names of a directory are kept or lost each by itself, but of one name in order; a rename happens
   as a whole. File systems with a journal keep a beginning of all changes: that is among it.
5. A sync of a file does not sync its name, and a sync of a directory does not sync what its files
   hold: ext4 and XFS do more than that, POSIX does not.
6. A sync covers the calls that were recorded before it began, when it has returned. fdatasync
   covers the length too, as it does wherever the length is needed to read the data.

The shared memory of sqlite (`-shm`) is written through a mapping and not recorded. sqlite makes it
again when the first connection opens, so an image has either none or one full of nonsense.

A `Choice` says what is lost. Some are adversaries that are tried everywhere; `Chance` draws.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from tests.power.write_stream import Call

SECTOR_BYTES = 512
_SHARED_MEMORY = "-shm"
#: Path below the root → content; None is a directory.
Image = dict[str, bytes | None]
#: How many calls of those that are pending are seen by a sector.
Seen = Callable[[int], int]


class _File:
    """A file, named or not."""

    def __init__(self, content: bytes = b"") -> None:
        self.synced = bytearray(content)
        #: As the process sees it.
        self.content = bytearray(content)
        #: (serial number, call), oldest first.
        self.pending: list[tuple[int, Call]] = []


class _Directory:
    """The names in a directory."""

    def __init__(self) -> None:
        self.synced: dict[str, _File | _Directory] = {}
        self.names: dict[str, _File | _Directory] = {}
        #: (serial number, names and what they mean from now on), oldest first.
        self.pending: list[tuple[int, dict[str, _File | _Directory | None]]] = []


class Choice:
    """What is lost of what was not synced. This one keeps everything: the write stream as it is."""

    name = "as written"

    def data(self, path: str, calls: int) -> tuple[int, Seen]:
        """How many pending calls the length of a file has seen, and each of its sectors."""
        return calls, lambda _sector: calls

    def names(self, path: str, changes: int) -> Sequence[bool]:
        """Which pending changes of a directory are kept."""
        return [True] * changes

    def nonsense(self) -> bytes | None:
        """What stands in the shared memory of sqlite, if there is any."""
        return None


class Disk:
    """See the rules at the top of this module."""

    def __init__(self, image: Image, inodes: Mapping[str, int]) -> None:
        """A disk that holds an image; `inodes` are the numbers of its files and directories."""
        self._root = _Directory()
        self._inodes: dict[int, _File | _Directory] = {}
        self._syncs: dict[int, tuple[_File | _Directory, int]] = {}
        self._serial = 0
        for path, content in sorted(image.items()):
            made = _Directory() if content is None else _File(content)
            parent, name = self._parent(path)
            parent.names[name] = parent.synced[name] = made
            if path in inodes:
                self._inodes[inodes[path]] = made

    # -- the process writes ---------------------------------------------------------------------

    def take(self, call: Call) -> bool:
        """The next call of the stream; whether it changed what may be on the disk."""
        if call.kind in "WTA":
            file = self._inodes[call.inode]
            assert isinstance(file, _File)
            _apply(file.content, call)
            self._serial += 1
            file.pending.append((self._serial, call))
        elif call.kind in "CD":
            made = _File() if call.kind == "C" else _Directory()
            self._inodes[call.inode] = made
            self._change({call.text: made})
        elif call.kind == "R":
            self._change({call.text: None, call.data.decode(): self._inodes[call.inode]})
        elif call.kind == "L":
            self._change({call.text: self._inodes[call.inode]})
        elif call.kind == "U":
            self._change({call.text: None})
        elif call.kind == "B":
            # The root itself is there before anything is recorded.
            found = self._find(call.text) if call.text else self._inodes.get(call.inode, self._root)
            self._syncs[call.one] = (found, self._serial)
        elif call.kind == "S":
            _settle(*self._syncs.pop(call.one))
        else:
            return False
        return call.kind != "B"

    def _change(self, paths: dict[str, _File | _Directory | None]) -> None:
        parents = {path.rpartition("/")[0] for path in paths}
        assert len(parents) == 1, f"{[*paths]} are in two directories"
        parent = self._find(parents.pop())
        assert isinstance(parent, _Directory)
        change = {path.rpartition("/")[2]: meant for path, meant in paths.items()}
        self._serial += 1
        parent.pending.append((self._serial, change))
        _rename(parent.names, change)

    def _parent(self, path: str) -> tuple[_Directory, str]:
        folder, _, name = path.rpartition("/")
        parent = self._find(folder)
        assert isinstance(parent, _Directory)
        return parent, name

    def _find(self, path: str) -> "_File | _Directory":
        found: _File | _Directory = self._root
        for part in path.split("/") if path else ():
            assert isinstance(found, _Directory)
            found = found.names[part]
        return found

    # -- the power fails ------------------------------------------------------------------------

    def image(self, choice: Choice) -> Image:
        """What the disk holds after a power cut."""
        image: Image = {}
        self._collect(self._root, "", choice, image)
        return image

    def _collect(self, directory: _Directory, path: str, choice: Choice, image: Image) -> None:
        for name, found in _kept_names(directory, path, choice).items():
            inside = f"{path}/{name}" if path else name
            if isinstance(found, _Directory):
                image[inside] = None
                self._collect(found, inside, choice, image)
            elif not name.endswith(_SHARED_MEMORY):
                image[inside] = _kept_data(found, inside, choice)
            elif (nonsense := choice.nonsense()) is not None:
                image[inside] = nonsense

    def seen_by_process(self) -> Image:
        """What the process itself would read now."""
        return self.image(Choice())


def _apply(content: bytearray, call: Call) -> None:
    length = _length(len(content), call)
    del content[length:]
    content += bytes(length - len(content))
    if call.kind == "W":
        content[call.one : call.one + len(call.data)] = call.data


def _length(length: int, call: Call) -> int:
    """The length of a file of this length, after a call."""
    if call.kind == "T":
        return call.one
    end = call.one + (len(call.data) if call.kind == "W" else call.two)
    return max(length, end)


def _rename(
    names: "dict[str, _File | _Directory]", change: "dict[str, _File | _Directory | None]"
) -> None:
    for name, meant in change.items():
        if meant is None:
            names.pop(name, None)
        else:
            names[name] = meant


def _settle(found: "_File | _Directory", serial: int) -> None:
    """What was there when a sync began is on disk."""
    if isinstance(found, _File):
        while found.pending and found.pending[0][0] <= serial:
            _apply(found.synced, found.pending.pop(0)[1])
    else:
        while found.pending and found.pending[0][0] <= serial:
            _rename(found.synced, found.pending.pop(0)[1])


def _kept_names(
    directory: _Directory, path: str, choice: Choice
) -> "dict[str, _File | _Directory]":
    names = dict(directory.synced)
    lost: set[str] = set()
    wanted = choice.names(path, len(directory.pending))
    for is_kept, (_, change) in zip(wanted, directory.pending, strict=True):
        # Of one name the changes are in order.
        if is_kept and not lost & change.keys():
            _rename(names, change)
        else:
            lost |= change.keys()
    return names


def _kept_data(file: _File, path: str, choice: Choice) -> bytes:
    pending = [call for _, call in file.pending]
    sized, seen = choice.data(path, len(pending))
    content = bytearray(file.synced)
    length = len(content)
    #: Where a shorter length was lost: rule 3.
    lost_from = sys.maxsize
    #: Sector → how many calls it has seen.
    chosen: dict[int, int] = {}
    for place, call in enumerate(pending):
        if place < sized:
            length = _length(length, call)
        if call.kind == "T" and place < sized:
            del content[call.one :]
        elif call.kind == "T":
            lost_from = min(lost_from, call.one)
        elif call.kind == "W":
            for sector in _sectors(call):
                if sector not in chosen:
                    chosen[sector] = seen(sector)
                if place < chosen[sector] and (sector + 1) * SECTOR_BYTES <= lost_from:
                    _write_sector(content, call, sector)
    del content[length:]
    return bytes(content) + bytes(length - len(content))


def _sectors(call: Call) -> range:
    """The sectors that a call writes."""
    return range(call.one // SECTOR_BYTES, (call.one + len(call.data) - 1) // SECTOR_BYTES + 1)


def _write_sector(content: bytearray, call: Call, sector: int) -> None:
    """Write what a call has for a sector."""
    start, end = call.one, call.one + len(call.data)
    first = max(start, sector * SECTOR_BYTES)
    last = min(end, (sector + 1) * SECTOR_BYTES)
    content += bytes(max(last - len(content), 0))
    content[first:last] = call.data[first - start : last - start]


# -- what is lost ---------------------------------------------------------------------------------


class Nothing(Choice):
    """Everything that was not synced is lost."""

    name = "nothing unsynced"

    def data(self, path: str, calls: int) -> tuple[int, Seen]:
        return 0, lambda _sector: 0

    def names(self, path: str, changes: int) -> Sequence[bool]:
        return [False] * changes


class OneSide(Choice):
    """The log is kept as written and all else as synced; or the other way round."""

    def __init__(self, *, log: bool) -> None:
        self._log = log
        self.name = "only the log" if log else "all but the log"

    def _keeps(self, path: str) -> bool:
        return ("log" in path.split("/")) == self._log

    def data(self, path: str, calls: int) -> tuple[int, Seen]:
        kept = calls if self._keeps(path) else 0
        return kept, lambda _sector: kept

    def names(self, path: str, changes: int) -> Sequence[bool]:
        return [self._keeps(path)] * changes


class NamesOnly(Choice):
    """Names and lengths are kept, data is lost: files full of zeros; or the other way round."""

    def __init__(self, *, names: bool) -> None:
        self._names = names
        self.name = "names and lengths without data" if names else "data without names"

    def data(self, path: str, calls: int) -> tuple[int, Seen]:
        return calls, lambda _sector: 0 if self._names else calls

    def names(self, path: str, changes: int) -> Sequence[bool]:
        return [self._names] * changes


class OneOfEach(Choice):
    """Of each file and directory the last call is lost; or every second sector, and all changes of
    a directory but the last."""

    def __init__(self, *, kept: bool) -> None:
        self._kept = kept
        self.name = "every second sector" if kept else "all but the last of each"

    def data(self, path: str, calls: int) -> tuple[int, Seen]:
        if self._kept:
            return calls, lambda sector: calls if sector % 2 else 0
        return max(calls - 1, 0), lambda _sector: max(calls - 1, 0)

    def names(self, path: str, changes: int) -> Sequence[bool]:
        return [(place == changes - 1) == self._kept for place in range(changes)]


class Chance(Choice):
    """Each file and each directory has its own way of losing, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._draw = Random(seed)
        self.name = f"chance {seed}"

    def data(self, path: str, calls: int) -> tuple[int, Seen]:
        draw = self._draw
        way = draw.randrange(5)
        if way == 0:
            return calls, lambda _sector: calls
        if way == 1:
            return 0, lambda _sector: 0
        if way == 2:
            seen = draw.randint(0, calls)
            return draw.randint(0, calls), lambda _sector: seen
        likely = draw.random()
        sized = calls if way == 3 else draw.randint(0, calls)
        return sized, lambda _sector: calls if draw.random() < likely else draw.randint(0, calls)

    def names(self, path: str, changes: int) -> Sequence[bool]:
        draw = self._draw
        way = draw.randrange(4)
        if way == 0:
            return [True] * changes
        if way == 1:
            kept = draw.randint(0, changes)
            return [place < kept for place in range(changes)]
        likely = draw.random()
        return [draw.random() < likely for _ in range(changes)]

    def nonsense(self) -> bytes | None:
        return self._draw.randbytes(32_768) if self._draw.random() < 0.3 else None


AS_WRITTEN = Choice()
ADVERSARIES: tuple[Choice, ...] = (
    Nothing(),
    OneSide(log=True),
    OneSide(log=False),
    NamesOnly(names=True),
    NamesOnly(names=False),
    OneOfEach(kept=True),
    OneOfEach(kept=False),
)


# -- images in real directories -------------------------------------------------------------------


def lay_out(image: Image, root: Path) -> dict[str, int]:
    """Write an image into an empty directory; the inode numbers of what is in it."""
    for path, content in sorted(image.items()):
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
    return {path: (root / path).stat().st_ino for path in image}


def read_back(root: Path) -> Image:
    """What a directory holds, as an image; without the shared memory of sqlite."""
    return {
        path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in root.rglob("*")
        if not path.name.endswith(_SHARED_MEMORY)
    }
