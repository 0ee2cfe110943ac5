"""The copies of other brokers' streams that a broker keeps, each in a log of its own.

    copies/tokyo.3/00000000000000000007.segment     copy 3, of the stream of broker "tokyo"
    copies/tokyo.1.damaged/…                        an earlier copy of this stream, set aside

A copy is a `log.SegmentedLog` with the owner of its stream, and a row in the catalog
(`catalog.CopyFacts`). Rules:

1. The row decides whether a copy exists. It is committed together with the puts before it. A
   directory without a row is what an interrupted opening or drop left, and is deleted at the start.
2. An empty copy has no files: its first append creates them. The catalog learns the beginning of
   every segment, so that a segment that disappears later is noticed.
3. Every copy has its own number, which is part of the name of its directory, and files are deleted
   after the commit that drops their copy. So a drop happens completely or not at all, and a reader
   of a dropped copy finds no file rather than one of the next copy.
4. The oldest tick is in the row before older segments are deleted, so that a copy whose head is
   missing is noticed. A copy is as strict as the log of the own stream in every other respect too
   (`log.Examination`).
5. A damaged copy does not prevent a start. It is *lost*: its row says so until the core drops it or
   opens it again, and its directory is renamed to `….damaged`, one for each stream. It may still
   hold what no other broker has; it is safe to delete. If rows are damaged, directories without a
   row are lost copies too.
6. A copy never waits for space. An append that finds none is refused, and so are all later ones of
   that copy, until the core has learned it and appends again after the last tick in the copy.
   Copies leave some space (`margin_bytes`) to the own stream and the catalog, and take none while
   the own log is full. Only a cut may use that space, and waits for it like a put: it needs less
   than one segment for a moment, and nothing can continue without it.
7. There can be thousands of copies. At most `open_max` files are open, segments and reserves are
   small, and only the last segment of one copy at a time is in memory at a start. An idle copy that
   was closed in order is neither opened nor synced then.
8. A cut makes another copy of the same stream that holds what remains, in a directory with another
   number, and drops the old one. The commit of the row decides which of them exists, so a cut
   happens completely or not at all, together with the puts around it. A reader of the old one finds
   its records, or no file.

Names. Letters from a to z, digits, `_` and `-` stay, so that names of copies differ on file systems
that ignore case; of every other character, each byte of its UTF-8 form becomes `%` and two digits.
A name that gets too long for a file system is shortened, with a hash; the row has all of it.

State: what is in the catalog and the directories. One thread uses `Copies`, except for `pieces`.
"""

import contextlib
import errno
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

import msgspec
from msgspec.structs import replace

from anabranch.core.contract import RecoveredCopy
from anabranch.model.durable_files import sync_directory
from anabranch.model.errors import LocalError
from anabranch.store.catalog import Catalog, CopyFacts, CopyRows
from anabranch.store.files import COPIES, DiskFile, OpenFile, free_bytes, is_no_room
from anabranch.store.log import (
    LogOptions,
    Opened,
    Piece,
    SegmentedLog,
    record_time_ns,
    segment_paths,
)
from anabranch.store.segment import (
    ENTRY_OVERHEAD_BYTES,
    CorruptError,
    TimeOf,
    segment_owner,
)

DAMAGED_SUFFIX = ".damaged"
_BAD_ROW = "its row in the catalog was changed after it was written"
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_-")
_NAME_CHARACTERS_MAX = 160
_KEPT_CHARACTERS = 120
_DIRECTORY = re.compile(r"([a-z0-9_%~-]+)\.([1-9][0-9]*)")
#: What a disk reports that cannot read back what it stored.
_UNREADABLE = {errno.EIO, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO)}


def directory_name(stream: str, number: int) -> str:
    """Return the name of the directory of a copy."""
    return f"{_encoded(stream)}.{number}"


def _encoded(stream: str) -> str:
    name = "".join(
        character if character in _PLAIN else "".join(f"%{byte:02x}" for byte in character.encode())
        for character in stream
    )
    if len(name) > _NAME_CHARACTERS_MAX:
        return f"{name[:_KEPT_CHARACTERS]}~{sha256(stream.encode()).hexdigest()[:32]}"
    return name


def stream_of(name: str) -> str:
    """Return the stream of a copy with this directory; "" if the name is shortened."""
    encoded = name.partition(".")[0]
    return "" if "~" in encoded else unquote(encoded)


def _number_of(name: str) -> int:
    """Return the number in the name of a directory; 0 if it is not the name of a copy."""
    found = _DIRECTORY.fullmatch(name.removesuffix(DAMAGED_SUFFIX))
    return 0 if found is None else int(found[2])


class CopyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of all copies together, and the sizes of each."""

    log: LogOptions = LogOptions(
        segment_bytes=4 * 2**20,
        reserve_bytes=64 * 2**10,
        blank_bytes=16 * 2**10,
        stride_bytes=128 * 2**10,
    )
    #: Files that stay open for writing.
    open_max: int = 64
    #: Copies leave this much space to everything else.
    margin_bytes: int = 32 * 2**20


class Refusal(msgspec.Struct, frozen=True):
    """All queued appends to a copy after this tick were dropped, because there is no space."""

    stream: str
    number: int
    last_tick: int


class CutFullError(LocalError):
    """There is no space to cut a copy; it is unchanged."""


class CopyWork:
    """What a batch does to one copy: cut or drop it, open it, append and delete, in this order."""

    __slots__ = (
        "cut_number",
        "cut_tick",
        "first_tick",
        "forget_tick",
        "is_dropped",
        "number",
        "open_first",
        "records",
    )

    def __init__(self) -> None:
        #: The last tick that remains, and the number of the directory with the rest; 0: no cut.
        self.cut_tick = self.cut_number = 0
        self.is_dropped = False
        #: The first tick of the new copy; 0 if none is opened.
        self.open_first = 0
        #: The number of the new copy.
        self.number = 0
        #: The tick of the first record.
        self.first_tick = 0
        self.records: list[bytes] = []
        self.forget_tick = 0

    @property
    def size(self) -> int:
        """The bytes that the records take in the copy, seal included."""
        return sum(map(len, self.records)) + (len(self.records) + 1) * ENTRY_OVERHEAD_BYTES

    def append(self, tick: int, records: Sequence[bytes]) -> None:
        """Add records. A tick out of sequence is the first one after a refusal, which concerns all
        earlier records here.
        """
        if tick != self.first_tick + len(self.records):
            self.records.clear()
        if not self.records:
            self.first_tick = tick
        self.records += records

    def cut(self, tick: int, number: int) -> None:
        """Cut off the records after a tick: those here, and those in the copy before this work."""
        del self.records[max(tick + 1 - self.first_tick, 0) :]
        if self.open_first:
            # Everything in the copy is here.
            return
        self.cut_tick = min(self.cut_tick, tick) if self.cut_number else tick
        self.cut_number = number

    def take_in(self, later: "CopyWork") -> None:
        """Merge the work of a later batch into this one."""
        if later.is_dropped:
            # What was done to the copy before has no effect.
            self.is_dropped, self.open_first, self.forget_tick = True, 0, 0
            self.cut_tick = self.cut_number = 0
            self.records = []
        if later.cut_number:
            self.cut(later.cut_tick, later.cut_number)
        if later.open_first:
            self.open_first, self.number = later.open_first, later.number
        if later.records:
            self.append(later.first_tick, later.records)
        self.forget_tick = max(self.forget_tick, later.forget_tick)


class _Copy:
    """One copy."""

    __slots__ = ("facts", "is_refusing", "log", "number")

    def __init__(self, facts: CopyFacts, log: SegmentedLog | None) -> None:
        #: As they are in the catalog, or will be after the next commit.
        self.facts = facts
        #: None before the first append.
        self.log = log
        #: The number for `Refusal`; unlike that of the directory, cuts do not change it.
        self.number = facts.number
        #: Whether appends were refused, and the core has not started again.
        self.is_refusing = False

    @property
    def last_tick(self) -> int:
        return self.facts.first_tick - 1 if self.log is None else self.log.last_tick

    def current_facts(self) -> CopyFacts:
        """The facts about the copy, all of which is synced."""
        if self.log is None:
            return self.facts
        begun, synced = self.log.begun_tick, self.log.last_tick
        return replace(self.facts, synced_tick=synced, begun_tick=begun)


class Copies:
    """All copies of one broker. See the rules at the top of this module."""

    def __init__(
        self,
        state: Path,
        catalog: Catalog,
        network: str,
        *,
        options: CopyOptions,
        time_of: TimeOf = record_time_ns,
        open_file: OpenFile = DiskFile,
        look: Callable[[Path], int] = free_bytes,
    ) -> None:
        """Examine what is on disk. `settle` must be called after the next commit of `rows`."""
        self._directory = state / COPIES
        self._network = network
        self._options = options
        self._time_of = time_of
        self._open_file = open_file
        self._look = look
        self._copies: dict[str, _Copy] = {}
        self.lost: set[str] = set()
        self.notes: list[str] = []
        #: Rows of copies that were opened, dropped or lost: they must be committed.
        self._due: dict[str, CopyFacts | None] = {}
        #: Copies whose facts are newer than their rows.
        self._stale: set[str] = set()
        #: Whether a row is worth a commit of its own, if there is space.
        self.wants_commit = False
        #: Directories to delete, and to set aside, after the commit.
        self._dropped: list[Path] = []
        self._aside: list[Path] = []
        #: Copies whose file may be open, the one that was written last at the end.
        self._awake: dict[str, _Copy] = {}
        #: The bytes that copies may still take, as of the current batch.
        self._space_left = 0
        #: Larger than the number of every copy so far.
        self.next_number = 1
        self._examine(catalog)

    # -- opening --------------------------------------------------------------------------------

    def _examine(self, catalog: Catalog) -> None:
        found = {path.name: path for path in _directories(self._directory)}
        for facts in catalog.copies.values():
            path = found.pop(directory_name(facts.stream, facts.number), None)
            self.next_number = max(self.next_number, facts.number + 1)
            if facts.is_lost:
                self.lost.add(facts.stream)
                self._aside += [] if path is None else [path]
            else:
                self._find(facts, path)
        for name, path in found.items():
            self.next_number = max(self.next_number, _number_of(name) + 1)
            if not name.endswith(DAMAGED_SUFFIX):
                self._judge_rowless(path, catalog)
        for stream in catalog.damaged_copies:
            if stream not in self.lost and stream not in catalog.copies:
                self._lose(CopyFacts(stream, 0, 1, 0), _BAD_ROW)
        if catalog.damaged_copies:
            # The commit replaces the whole table.
            for stream, facts in catalog.copies.items():
                self._due.setdefault(stream, facts)

    def _judge_rowless(self, path: Path, catalog: Catalog) -> None:
        """Delete a directory without a row; set it aside if rows are damaged."""
        stream = stream_of(path.name)
        if not catalog.damaged_copies or stream in catalog.copies:
            self._dropped.append(path)
        elif stream:
            self._lose(CopyFacts(stream, _number_of(path.name), 1, 0), _BAD_ROW, path)
        else:
            self._aside.append(path)

    def _find(self, facts: CopyFacts, path: Path | None) -> None:
        """Open a copy; count it as lost if it is damaged."""
        try:
            log = self._found_log(facts, path)
        except LocalError as error:
            self._lose(facts, _reason(error), path)
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            self._lose(facts, f"{error.filename}: {error.strerror}", path)
        else:
            copy = self._copies[facts.stream] = _Copy(facts, log)
            if copy.current_facts() != facts:
                self._stale.add(facts.stream)

    def _found_log(self, facts: CopyFacts, path: Path | None) -> SegmentedLog | None:
        if path is None or not segment_paths(path):
            if facts.begun_tick:
                place = self._directory / directory_name(facts.stream, facts.number)
                reason = "its segments are missing"
                raise CorruptError(reason, path=str(place), offset=0, tick=facts.begun_tick)
            return None
        log = self._log(facts)
        log.take_recent()
        log.rest()
        # An interrupted deletion ends here.
        log.forget(facts.first_tick - 1)
        self.notes += log.notes
        return log

    def _log(self, facts: CopyFacts, opened: Opened | None = None) -> SegmentedLog:
        return SegmentedLog(
            self._directory / directory_name(facts.stream, facts.number),
            owner=segment_owner(self._network, facts.stream),
            facts=facts.log_facts,
            options=self._options.log,
            time_of=self._time_of,
            open_file=self._open_file,
            first_tick=facts.first_tick,
            is_copy=True,
            opened=opened,
        )

    def _lose(self, facts: CopyFacts, reason: str, path: Path | None = None) -> None:
        self.lost.add(facts.stream)
        self._due[facts.stream] = replace(facts, is_lost=True)
        where = ""
        if path is not None:
            self._aside.append(path)
            where = f"; it is set aside in {path.name}{DAMAGED_SUFFIX}"
        self.notes.append(f"lost the copy of stream {facts.stream!r}: {reason}{where}")

    def recovered(self) -> dict[str, RecoveredCopy]:
        """Return the copies for the core."""
        found = {}
        for stream, copy in self._copies.items():
            first_tick = copy.facts.first_tick if copy.log is None else copy.log.first_tick
            found[stream] = RecoveredCopy(first_tick, copy.last_tick)
        return found

    def numbered(self) -> dict[str, tuple[int, int]]:
        """Return number and next tick of every copy."""
        return {stream: (copy.number, copy.last_tick + 1) for stream, copy in self._copies.items()}

    # -- reading, from any thread ---------------------------------------------------------------

    def pieces(self, stream: str) -> Sequence[Piece]:
        """Return the readable pieces of a copy; none if there is no such copy."""
        copy = self._copies.get(stream)
        return () if copy is None or copy.log is None else copy.log.pieces

    # -- the catalog ----------------------------------------------------------------------------

    @property
    def must_commit(self) -> bool:
        """Whether a sync depends on a commit of `rows`."""
        return bool(self._due)

    def rows(self) -> CopyRows:
        """Return the rows to commit. Everything in the copies is synced."""
        if not self._due and not self._stale:
            return {}
        newer = {stream: self._copies[stream].current_facts() for stream in self._stale}
        return {**self._due, **newer}

    def settle(self) -> None:
        """Delete and set aside what the commit of `rows` allows."""
        self._due = {}
        self._stale.clear()
        if self.wants_commit:
            self.wants_commit = False
            for copy in self._copies.values():
                if copy.log is not None and copy.log.first_tick < copy.facts.first_tick:
                    copy.log.forget(copy.facts.first_tick - 1)
        for path in self._aside:
            for old in self._directory.glob(f"{path.name.partition('.')[0]}.*{DAMAGED_SUFFIX}"):
                shutil.rmtree(old, ignore_errors=True)
            path.rename(path.with_name(path.name + DAMAGED_SUFFIX))
            sync_directory(self._directory)
        for path in self._dropped:
            # The rest is deleted at the next start.
            shutil.rmtree(path, ignore_errors=True)
        self._aside, self._dropped = [], []

    # -- writing --------------------------------------------------------------------------------

    def cut(self, works: Mapping[str, CopyWork]) -> None:
        """Make the cuts of a batch durable, except for the rows. If there is no space, raise
        `CutFullError`; this may be called again then.
        """
        for stream, work in works.items():
            copy = self._copies.get(stream)
            if work.cut_number and copy is not None and work.cut_tick < copy.last_tick:
                self._cut(copy, work)

    def _cut(self, copy: _Copy, work: CopyWork) -> None:
        """Replace a copy by one with the records up to a tick (rule 8)."""
        old, log, facts = self._place(copy), self._log_of(copy), copy.facts
        log.rest()
        self._awake.pop(facts.stream, None)
        facts = replace(facts, number=work.cut_number, synced_tick=work.cut_tick, begun_tick=0)
        shorter = None
        if work.cut_tick >= facts.first_tick:
            try:
                shorter = self._shorter(log, facts)
            except OSError as error:
                if not is_no_room(error):
                    raise
                raise CutFullError(f"no room to cut the copy of {facts.stream!r}") from error
        copy.facts, copy.log, copy.is_refusing = facts, shorter, False
        self._stale.discard(facts.stream)
        self._due[facts.stream] = copy.facts = copy.current_facts()
        self._dropped.append(old)

    def _shorter(self, log: SegmentedLog, facts: CopyFacts) -> SegmentedLog:
        """Write the log that a cut leaves, or nothing."""
        directory = self._directory / directory_name(facts.stream, facts.number)
        try:
            directory.mkdir()
            opened = log.write_beginning(directory, facts.first_tick, facts.synced_tick)
            sync_directory(self._directory)
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        shorter = self._log(facts, opened)
        shorter.take_recent()
        shorter.rest()
        return shorter

    def write(self, works: Mapping[str, CopyWork], *, is_tight: bool) -> list[Refusal]:
        """Make the work of a batch durable, except for cuts and the rows. `is_tight`: no further
        space may be taken.
        """
        for stream, work in works.items():
            if work.is_dropped:
                self._drop(stream)
            if work.open_first:
                self._open(stream, work)
        appending = [stream for stream, work in works.items() if work.records]
        if appending:
            space = 0 if is_tight else self._look(self._directory.parent)
            self._space_left = space - self._options.margin_bytes
        refused: list[Refusal] = []
        group_size = self._options.open_max
        for start in range(0, len(appending), group_size):
            group = appending[start : start + group_size]
            self._append([(stream, works[stream]) for stream in group], refused)
        for stream, work in works.items():
            if work.forget_tick:
                self._forget(stream, work.forget_tick)
        return refused

    def _drop(self, stream: str) -> None:
        self.lost.discard(stream)
        self._stale.discard(stream)
        self._awake.pop(stream, None)
        self._due[stream] = None
        copy = self._copies.pop(stream, None)
        if copy is not None and copy.log is not None:
            copy.log.rest()
            self._dropped.append(self._place(copy))

    def _open(self, stream: str, work: CopyWork) -> None:
        assert stream not in self._copies, f"the copy of {stream!r} is open already"
        self.lost.discard(stream)
        facts = CopyFacts(stream, work.number, work.open_first, work.open_first - 1)
        self._copies[stream] = _Copy(facts, None)
        self._due[stream] = facts

    def _append(self, group: Sequence[tuple[str, CopyWork]], refused: list[Refusal]) -> None:
        """Append to a group of copies and sync them."""
        self._make_directories(stream for stream, _ in group)
        written = []
        for stream, work in group:
            copy = self._copies[stream]
            if work.first_tick != copy.last_tick + 1:
                # The core did not know yet.
                assert copy.is_refusing, f"a gap in the copy of {stream!r}"
                continue
            copy.is_refusing = not self._has_space(copy, work.size)
            if copy.is_refusing:
                refused.append(Refusal(stream, copy.number, copy.last_tick))
                continue
            log = self._woken(copy)
            log.append(work.records)
            written.append((stream, log))
        for stream, log in written:
            log.sync()
            self._stale.add(stream)
            if self._space_left >= 2 * self._options.log.reserve_bytes:
                self.wants_commit |= log.rotate()
        while len(self._awake) > self._options.open_max:
            oldest = next(iter(self._awake))
            self._log_of(self._awake.pop(oldest)).rest()

    def _make_directories(self, streams: Iterable[str]) -> None:
        """Create the missing directories of copies, as far as there is space."""
        missing = [copy for copy in map(self._copies.__getitem__, streams) if copy.log is None]
        if not missing or self._space_left < self._options.log.reserve_bytes:
            return
        try:
            if not self._directory.is_dir():
                self._directory.mkdir()
                sync_directory(self._directory.parent)
            for copy in missing:
                self._place(copy).mkdir(exist_ok=True)
            sync_directory(self._directory)
        except OSError as error:
            if not is_no_room(error):
                raise

    def _place(self, copy: _Copy) -> Path:
        return self._directory / directory_name(copy.facts.stream, copy.facts.number)

    def _has_space(self, copy: _Copy, size: int) -> bool:
        """Return whether an append finds space, and reserve it."""
        if copy.log is not None and copy.log.reserve_left >= size:
            return True
        wanted = size + self._options.log.reserve_bytes
        if wanted > self._space_left or not (copy.log or self._create(copy)):
            return False
        self._space_left -= wanted
        return self._woken(copy).reserve(size)

    def _create(self, copy: _Copy) -> bool:
        """Create the first segment of a copy; return False if there is no space."""
        directory = self._place(copy)
        if not directory.is_dir():
            return False
        try:
            copy.log = self._log(copy.facts)
        except OSError as error:
            if not is_no_room(error):
                raise
            shutil.rmtree(directory, ignore_errors=True)
            return False
        self._stale.add(copy.facts.stream)
        self.wants_commit = True
        return True

    def _log_of(self, copy: _Copy) -> SegmentedLog:
        assert copy.log is not None
        return copy.log

    def _woken(self, copy: _Copy) -> SegmentedLog:
        """Return the log of a copy, ready to be written."""
        log = self._log_of(copy)
        self._awake[copy.facts.stream] = self._awake.pop(copy.facts.stream, copy)
        log.wake()
        return log

    def _forget(self, stream: str, tick: int) -> None:
        """Let segments be deleted after the next commit (rule 4)."""
        copy = self._copies.get(stream)
        if copy is None or copy.log is None:
            return
        kept = copy.log.kept_after(tick)
        if kept > copy.facts.first_tick:
            copy.facts = replace(copy.facts, first_tick=kept)
            self._stale.add(stream)
            self.wants_commit = True

    # -- closing --------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Close all files as they are, after an error."""
        for copy in self._awake.values():
            self._log_of(copy).abandon()

    def close(self) -> None:
        """Release the reserved space and close all files."""
        for copy in self._copies.values():
            if copy.log is not None:
                copy.log.close()


def _directories(directory: Path) -> Iterator[Path]:
    """Yield the directories of copies."""
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(directory.iterdir()):
            if _number_of(path.name) and path.is_dir():
                yield path


def _reason(error: LocalError) -> str:
    if isinstance(error, CorruptError):
        return f"{error.path}, byte {error.offset}, tick {error.tick}: {error.reason}"
    return str(error)
