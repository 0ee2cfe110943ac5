"""Input of `pub`: `name=value` arguments, JSON lines, or the rows of a CSV file.

Rules

1. A file is read line by line. `-` is stdin; its lines are published as they arrive.
2. Attributes from the arguments are added to every event. A line or row overrides them.
3. A duplicate name in an object or in the header row is an error.
4. The first row of a CSV file has the names. A cell has its declared type or an inferred one
   (`values`). An empty cell is an absent attribute. A quoted cell may span lines. An attribute of
   JSON lines may have a declared type too; one that no line has is an error at the end.
5. Errors refer to line numbers; a row that spans lines has the number of its first. `from_line`
   skips rows that begin before that line, except the header row.
6. A regular file can be validated to its end before any of its events is published; input from a
   pipe cannot.
7. Sizes are not checked here: the network has the limits.

A thread reads stdin, because a blocking read would stall the event loop and delay events that are
already published. The loop receives whole lines. The thread waits while the loop lags behind, and
does not keep the process alive.
"""

import asyncio
import csv
import io
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TextIO

import msgspec

from anabranch.cli.errors import CommandError
from anabranch.cli.output import counted
from anabranch.cli.values import Type, json_problem, redeclared, value_of
from anabranch.model.errors import EventError
from anabranch.model.event import Event, Value
from anabranch.model.limits import Limits

_CHUNK_BYTES = 65_536
_CHUNKS_MAX = 4


async def piped_lines() -> AsyncIterator[bytes]:
    """The lines of stdin, without their line ends."""
    loop = asyncio.get_running_loop()
    source = sys.stdin
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    free_chunks = threading.Semaphore(_CHUNKS_MAX)

    def read() -> None:
        # The loop may be closed, or stdin may be, before stdin ends.
        with suppress(RuntimeError, ValueError, OSError):
            while True:
                free_chunks.acquire()
                chunk = _read_some(source)
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
                if not chunk:
                    return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    rest = b""
    while chunk := await chunks.get():
        free_chunks.release()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


def _read_some(source: TextIO) -> bytes:
    try:
        file = source.fileno()
    except io.UnsupportedOperation:
        return source.buffer.read(_CHUNK_BYTES)
    # Bypass the buffer: this thread would hold its lock when the interpreter exits.
    return os.read(file, _CHUNK_BYTES)


Attributes = dict[str, Value]
STDIN = "-"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: The message of `csv` for a quoted cell that continues on the next line.
_UNCLOSED = "unexpected end of data"
_decoder = msgspec.json.Decoder(dict[str, Value])
_ANY = 2**31
#: Limits that admit events of any size (rule 7).
ANY_SIZE = Limits(
    attributes_max=_ANY,
    name_bytes_max=_ANY,
    value_bytes_max=_ANY,
    payload_bytes_max=_ANY,
    event_bytes_max=_ANY,
)


class LineError(CommandError):
    """A line of the input is invalid."""

    def __init__(self, place: str, line: int, reason: str) -> None:
        super().__init__(f"{place}, line {line}: {reason}")
        self.line = line


class Item(msgspec.Struct, frozen=True):
    """One event to publish, and its line; 0 if it comes from the arguments alone."""

    line: int
    attributes: Attributes


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one run. See the rules at the top of this module."""

    given: Attributes
    types: dict[str, Type] = {}
    #: File name or `STDIN`; "" if not given. At most one of the two is given.
    json_lines: str = ""
    table: str = ""
    from_line: int = 1
    repeats: int = 1

    def __post_init__(self) -> None:
        """Reject contradictory options."""
        if not self.given and not self.file:
            raise CommandError("nothing to publish; give name=value, --json-lines or --csv")
        if self.json_lines and self.table:
            raise CommandError("--json-lines and --csv are mutually exclusive")
        if self.file == STDIN and self.repeats > 1:
            raise CommandError("stdin can be read only once; --repeat needs a file")
        if self.from_line > 1 and (not self.file or self.repeats > 1):
            raise CommandError("--from-line requires --json-lines or --csv, without --repeat")
        if not self.file:
            _check_types(self.types, self.given)

    @property
    def file(self) -> str:
        """The file, or `STDIN`; "" if there are only arguments."""
        return self.json_lines or self.table

    @property
    def place(self) -> str:
        """The name of the file in error messages."""
        return "stdin" if self.file == STDIN else self.file

    @property
    def can_be_checked(self) -> bool:
        """Whether the input can be validated before it is published: rule 6."""
        return not self.file or (self.file != STDIN and Path(self.file).is_file())

    def at_once(self) -> Iterator[Item]:
        """All events of one pass through an input that can be validated."""
        if not self.file:
            yield Item(0, self.given)
            return
        lines = _lines_of(self)
        with Path(self.file).open("rb") as file:
            for number, line in enumerate(file, 1):
                yield from self._wanted(lines.take(number, _bare(number, line)))
        lines.end()

    async def items(self) -> AsyncIterator[Item]:
        if self.file == STDIN:
            lines, number = _lines_of(self), 0
            async for line in piped_lines():
                number += 1
                for item in self._wanted(lines.take(number, _bare(number, line))):
                    yield item
            lines.end()
            return
        for _ in range(self.repeats):
            for item in self.at_once():
                yield item

    def _wanted(self, item: Item | None) -> Iterator[Item]:
        if item is not None and item.line >= self.from_line:
            yield item


def _bare(number: int, line: bytes) -> bytes:
    """A line without its line end and without a byte order mark."""
    line = line.removesuffix(b"\n")
    return line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line


def _check_types(types: dict[str, Type], *known: Attributes) -> None:
    for name in types:
        if not any(name in names for names in known):
            raise CommandError(f"--types declares {name!r}, which no input has")


class _Lines(Protocol):
    """Parses lines into events."""

    def take(self, number: int, line: bytes) -> Item | None:
        """The event that this line completes."""

    def end(self) -> None:
        """Called after the last line."""


def _lines_of(source: Source) -> _Lines:
    return _Rows(source) if source.table else _Objects(source)


class _Objects:
    """One JSON object per line."""

    def __init__(self, source: Source) -> None:
        self._source = source
        #: Attributes of lines that have a declared type, but were in no line yet.
        self._unseen = source.types.keys() - source.given.keys()

    def take(self, number: int, line: bytes) -> Item | None:
        source = self._source
        if number < source.from_line or not line.strip():
            return None
        try:
            attributes = _decoder.decode(line)
            # Every name is followed by a colon. More colons than names: strings or duplicates.
            if line.count(b":") > len(attributes):
                json.loads(line, object_pairs_hook=_check_repeated)
            self._convert(attributes)
            return Item(number, dict(Event(source.given | attributes, limits=ANY_SIZE).attributes))
        except (EventError, CommandError) as error:
            raise LineError(source.place, number, str(error)) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise LineError(source.place, number, json_problem(line, error)) from None

    def _convert(self, attributes: Attributes) -> None:
        for name, kind in self._source.types.items():
            if name in attributes:
                attributes[name] = redeclared(name, attributes[name], kind)
                self._unseen.discard(name)

    def end(self) -> None:
        if self._source.from_line == 1:
            _check_types(dict.fromkeys(self._unseen, Type.string))


def _check_repeated(pairs: list[tuple[str, object]]) -> None:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise EventError(f"duplicate name {name!r}; give each attribute once")


class _Rows:
    """CSV rows; the first one has the names."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._names: list[str] = []
        #: The text so far of a row whose last cell is not closed, and its first line.
        self._open = ""
        self._first = 0

    def take(self, number: int, line: bytes) -> Item | None:
        text = self._text(number, line)
        if not self._open:
            self._first, self._open = number, text
        else:
            self._open += f"\n{text}"
            if '"' not in text:
                return None
        try:
            (row,) = csv.reader([self._open], strict=True)
        except csv.Error as error:
            if str(error) == _UNCLOSED:
                return None
            raise self._error(str(error)) from None
        self._open = ""
        return self._event(row) if row else None

    def end(self) -> None:
        if self._open:
            raise self._error("unclosed double quote")

    def _text(self, number: int, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            reason = f"byte {error.start + 1} is not UTF-8; save the file as UTF-8"
            raise LineError(self._source.place, number, reason) from None

    def _error(self, reason: str) -> LineError:
        return LineError(self._source.place, self._first, reason)

    def _event(self, row: list[str]) -> Item | None:
        source = self._source
        if not self._names:
            self._take_names(row)
            return None
        if len(row) != len(self._names):
            raise self._error(
                f"{counted(len(row), 'cell')}, but the first row has {len(self._names)}"
            )
        if self._first < source.from_line:
            return None
        try:
            cells = {
                name: value_of(name, cell, source.types)
                for name, cell in zip(self._names, row, strict=True)
                if cell != ""
            }
            return Item(self._first, dict(Event(source.given | cells, limits=ANY_SIZE).attributes))
        except (EventError, CommandError) as error:
            raise self._error(str(error)) from None

    def _take_names(self, row: list[str]) -> None:
        for column, name in enumerate(row, 1):
            if not name:
                raise self._error(f"column {column} has no name; the first row has the names")
            if row.count(name) > 1:
                raise self._error(f"duplicate name {name!r}; give each attribute once")
        self._names = row
        _check_types(self._source.types, self._source.given, dict.fromkeys(row, ""))
