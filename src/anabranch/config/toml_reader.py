"""A typed TOML reader whose errors name the file, the line, the key and the remedy.

    root = read(path)
    network = root.table("network")
    network.only(("name", "revision"))
    name = network.text("name")

A `Table` is one table of the file with its position. Its methods return a value of the requested
type, or a default if the key is absent, or raise `ConfigError`. Values are not converted: text is
not parsed as a number, and 1 is not true. The one exception is an integer where a float is
expected.

`tomllib` returns values without positions, so `key_lines` scans the text for them. It scans text
that `tomllib` has already accepted, and therefore needs to recognise only where keys, values,
arrays and tables begin and end.

Rules of the scanner

1. A position is a path: names of tables and keys, and indexes of array elements, starting at 0.
2. The scanner finds every path of the parsed value: implicit tables (`a` in `[a.b]`), dotted keys,
   inline tables, elements of arrays, arrays of tables.
3. A table that is named several times has the line of the first.
4. For text that is not TOML the result is undefined, but the scan terminates.
"""

import difflib
import os.path
import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from anabranch.config.errors import ConfigError
from anabranch.model.names import clipped

#: Names of tables and keys, indexes of elements.
KeyPath = tuple[str | int, ...]

_BLANK = re.compile(r"[ \t]*")
#: White space, line ends and comments between two tokens.
_BETWEEN = re.compile(r"(?:[ \t\n]+|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
#: A multi-line string may end with up to two quotes that belong to it.
_STRING = re.compile(
    r'"""(?:\\[\s\S]|(?!""")[^\\])*"{3,5}'
    r"|'''(?:(?!''')[\s\S])*'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
)
_SCALAR = re.compile(r"[^,\]}#\n]+")
_REST_OF_LINE = re.compile(r"[^\n]*\n?")


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line of every key, table and array element, starting at 1."""
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.document()
    return scanner.lines


def key_text(path: KeyPath) -> str:
    """A path as text: `sites.core.brokers[1]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + quoted_key(part)
    return text


def quoted_key(name: str) -> str:
    """A name as a key, quoted if necessary."""
    return name if _BARE_KEY.fullmatch(name) else quoted_text(name)


def quoted_text(text: str) -> str:
    return '"' + "".join(_ESCAPES.get(c) or _escaped(c) for c in text) + '"'


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escaped(character: str) -> str:
    control = character < " " or character == "\x7f"
    return f"\\u{ord(character):04x}" if control else character


class _Scanner:
    """The scanner: its position in the text and the lines found so far."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line_starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self.lines: dict[KeyPath, int] = {}
        #: The index of the newest table of each array of tables.
        self._newest: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        while self._skip(_BETWEEN) < len(self._text):
            start = self._at
            if self._next("["):
                table = self._header()
                self._skip(_REST_OF_LINE)
            else:
                self._pair(table)
            if self._at == start:  # not TOML; make progress anyway
                self._at += 1

    # -- parts ----------------------------------------------------------------------------------

    def _header(self) -> KeyPath:
        """`[a.b]` or `[[a.b]]`, after its first bracket."""
        line = self._line()
        in_array = self._next("[")
        path: KeyPath = ()
        parts = self._key()
        for number, part in enumerate(parts, 1):
            path = (*path, part)
            self.lines.setdefault(path, line)
            if in_array and number == len(parts):
                self._newest[path] = self._newest.get(path, -1) + 1
            if path in self._newest:
                path = (*path, self._newest[path])
                self.lines.setdefault(path, line)
        return path

    def _pair(self, table: KeyPath) -> None:
        """`a.b = value`."""
        line = self._line()
        path = table
        for part in self._key():
            path = (*path, part)
            self.lines.setdefault(path, line)
        self._skip(_BLANK)
        if self._next("="):
            self._skip(_BLANK)
            self._value(path)

    def _key(self) -> list[str]:
        parts: list[str] = []
        while True:
            self._skip(_BLANK)
            start = self._at
            if self._skip(_BARE_KEY) > start:
                parts.append(self._text[start : self._at])
            elif self._skip(_STRING) > start:
                parts.append(_unquoted(self._text[start : self._at]))
            self._skip(_BLANK)
            if not self._next("."):
                return parts

    def _value(self, path: KeyPath) -> None:
        if self._next("["):
            self._array(path)
        elif self._next("{"):
            self._inline_table(path)
        elif not self._skipped(_STRING):
            self._skip(_SCALAR)

    def _array(self, path: KeyPath) -> None:
        number = 0
        while self._skip(_BETWEEN) < len(self._text) and not self._next("]"):
            start = self._at
            self.lines[*path, number] = self._line()
            self._value((*path, number))
            self._skip(_BETWEEN)
            self._next(",")
            number += 1
            if self._at == start:
                return

    def _inline_table(self, path: KeyPath) -> None:
        while self._skip(_BETWEEN) < len(self._text) and not self._next("}"):
            start = self._at
            self._pair(path)
            self._skip(_BETWEEN)
            self._next(",")
            if self._at == start:
                return

    # -- tokens ---------------------------------------------------------------------------------

    def _line(self) -> int:
        return bisect_right(self._line_starts, self._at)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        """Skip a match; returns the new position."""
        found = pattern.match(self._text, self._at)
        if found:
            self._at = found.end()
        return self._at

    def _skipped(self, pattern: re.Pattern[str]) -> bool:
        start = self._at
        return self._skip(pattern) > start

    def _next(self, character: str) -> bool:
        """Whether this character is next; if so, skip it."""
        if not self._text.startswith(character, self._at):
            return False
        self._at += 1
        return True


def _unquoted(token: str) -> str:
    try:
        value = tomllib.loads(f"key = {token}")["key"]
    except tomllib.TOMLDecodeError:
        return token
    return str(value)


#: Maximum bytes of a network file; the largest permitted network needs a tenth of it.
FILE_BYTES_MAX = 4 * 1024 * 1024
INTEGER_MAX = 2**63 - 1
#: Names listed in an error; a network may have hundreds.
_LISTED_MAX = 40
_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_KINDS: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    list: "an array",
    dict: "a table",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed file and the lines of its keys."""

    path: Path
    lines: Mapping[KeyPath, int]

    def error(self, key: KeyPath, message: str) -> ConfigError:
        """An error about a key. A missing key gets the line of the closest enclosing table."""
        near = key
        while near and near not in self.lines:
            near = near[:-1]
        line = self.lines.get(near, 1)
        return ConfigError(message, path=self.path, line=line, key=key_text(key))


@dataclass(frozen=True, slots=True)
class Table:
    """One table of a file. See the top of this module."""

    source: Source
    place: KeyPath
    values: Mapping[str, object]

    def error(self, key: KeyPath | str, message: str) -> ConfigError:
        """An error about a key of this table; `()` is the table itself."""
        path = (key,) if isinstance(key, str) else key
        return self.source.error((*self.place, *path), message)

    def has(self, key: str) -> bool:
        return key in self.values

    def only(self, known: Iterable[str]) -> None:
        """Reject any other keys."""
        names = list(known)
        for key in self.values:
            if key not in names:
                raise self.error(key, f"unknown key; {nearest(key, names)}")

    # -- values ---------------------------------------------------------------------------------

    def text(self, key: str, default: str | None = None) -> str:
        """A string; required without a default."""
        if key not in self.values and default is None:
            raise self.error(key, 'is missing; give it a string, such as "quotes"')
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self._wrong_type(key, 'a string, such as "quotes"')
        return value

    def choice(self, key: str, choices: Iterable[str], default: str) -> str:
        words = list(choices)
        value = self.text(key, default)
        if value not in words:
            raise self.error(key, f"{clipped(value)} is not valid; choose one of {listed(words)}")
        return value

    def truth(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong_type(key, "true or false")
        return value

    def integer(self, key: str, default: int, lowest: int, highest: int = INTEGER_MAX) -> int:
        value = self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong_type(key, "an integer, such as 100")
        if not lowest <= value <= highest:
            raise self.error(key, f"{_number(value)} is out of range; give {lowest} to {highest}")
        return value

    def number(self, key: str, default: float, lowest: float, highest: float) -> float:
        """An integer or a float within a range."""
        value = self.values.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong_type(key, "a number, such as 0.5")
        if not lowest <= value <= highest:  # also rejects NaN
            raise self.error(
                key, f"{_number(value)} is out of range; give {lowest:g} to {highest:g}"
            )
        return float(value)

    def texts(self, key: str) -> list[str]:
        """An array of strings; empty if absent."""
        value = self.values.get(key, [])
        if not isinstance(value, list):
            raise self._wrong_type(key, 'an array of names, such as ["a", "b"]')
        for number, each in enumerate(value):
            if not isinstance(each, str):
                raise self.error((key, number), f"{_kind(each)}; write a name in quotes")
        return [each for each in value if isinstance(each, str)]

    def pairs(self, key: str) -> list[tuple[str, str]]:
        """An array of pairs of strings; empty if absent."""
        value = self.values.get(key, [])
        if not isinstance(value, list):
            raise self._wrong_type(key, 'an array of pairs, such as [["a", "b"]]')
        return [self._pair((key, number), each) for number, each in enumerate(value)]

    def _pair(self, key: KeyPath, value: object) -> tuple[str, str]:
        if not isinstance(value, list):
            raise self.error(key, f'{_kind(value)}; write two names, such as ["a", "b"]')
        for number, each in enumerate(value):
            if not isinstance(each, str):
                raise self.error((*key, number), f"{_kind(each)}; write a name in quotes")
        if len(value) != 2:
            raise self.error(key, f'has {len(value)} names; write two: ["a", "b"]')
        return value[0], value[1]

    def file(self, key: str, default: str | None = None) -> Path:
        """The path of a file or directory, relative to the directory of this file."""
        value = self.text(key, default)
        if not value or "\0" in value:
            raise self.error(key, "is not a path; give the path of a file or directory")
        return Path(os.path.normpath(self.source.path.parent.absolute() / value))

    # -- tables ---------------------------------------------------------------------------------

    def table(self, key: str) -> "Table":
        """A nested table; empty if absent."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            name = key_text((*self.place, key))
            raise self._wrong_type(key, f"a table: write [{name}] on a separate line")
        return Table(self.source, (*self.place, key), value)

    def tables(self) -> Iterator[tuple[str, "Table"]]:
        """All nested tables; any other value is an error."""
        for key in self.values:
            yield key, self.table(key)

    def _wrong_type(self, key: str, wanted: str) -> ConfigError:
        return self.error(key, f"{_kind(self.values.get(key))}; it must be {wanted}")


def read(path: Path) -> Table:
    """Read a file as a table."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        what = error.strerror or type(error).__name__
        raise ConfigError(f"cannot be read: {what}", path=path) from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(
            f"is larger than {FILE_BYTES_MAX} bytes; this is not a network file", path=path
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"byte {error.start} is not UTF-8; save the file as UTF-8"
        raise ConfigError(message, path=path, line=line) from None
    return parse(text, path)


def parse(text: str, path: Path) -> Table:
    """Parse text as a table, as if it had been read from this file."""
    try:
        values: dict[str, object] = tomllib.loads(text)
        lines = key_lines(text)
    except ValueError as error:
        raise _invalid_toml(text, path, str(error)) from None
    except RecursionError:
        raise ConfigError("nested too deeply to be a network file", path=path) from None
    return Table(Source(path, lines), (), values)


def nearest(name: str, known: Iterable[str]) -> str:
    """A suggestion for an unknown name: the closest known name, or all of them."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {listed(names)}"


def listed(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - _LISTED_MAX} more" if len(known) > _LISTED_MAX else ""
    return (", ".join(known[:_LISTED_MAX]) or "none") + more


def _invalid_toml(text: str, path: Path, message: str) -> ConfigError:
    place = _PLACE.search(message)
    what = f"not valid TOML: {message[: place.start()] if place else message}"
    if place is None:
        return ConfigError(what, path=path)
    if place.group(1) is None:
        last = text.rstrip("\n").count("\n") + 1
        return ConfigError(f"{what}, at the end of the file", path=path, line=last)
    return ConfigError(f"{what}, at column {place.group(2)}", path=path, line=int(place.group(1)))


def _kind(value: object) -> str:
    return f"this is {_KINDS.get(type(value), 'a date or time')}"


def _number(value: float) -> str:
    # Do not print an integer with thousands of digits.
    return f"{value}" if not abs(value) > 10**30 else "this number"
