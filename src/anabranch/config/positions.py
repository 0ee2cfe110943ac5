"""On which line of a TOML text each key stands.

The library that reads TOML gives values without their places; an error needs both. This scanner
walks over a text that the library has already accepted, and so needs to know only where keys,
values, arrays and tables begin and end, not what they mean. Rules:

1. A place is a path: names of tables and keys, and numbers of array elements, from 0 on.
2. Every path that the parsed value has is found: tables made by the way (`a` in `[a.b]`), dotted
   keys, inline tables, elements of arrays, arrays of tables.
3. A table named in several places has the line where it is named first.
4. For a text that is no TOML the answer means nothing, but there is one.

It keeps nothing.
"""

import re
import tomllib
from bisect import bisect_right

#: Names of tables and keys, numbers of elements.
KeyPath = tuple[str | int, ...]

_BLANK = re.compile(r"[ \t]*")
#: White space, ends of lines and comments: what may stand between two things.
_BETWEEN = re.compile(r"(?:[ \t\n]+|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
#: A string of several lines may end with up to two quotes of its own.
_STRING = re.compile(
    r'"""(?:\\[\s\S]|(?!""")[^\\])*"{3,5}'
    r"|'''(?:(?!''')[\s\S])*'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
)
_SCALAR = re.compile(r"[^,\]}#\n]+")
_REST_OF_LINE = re.compile(r"[^\n]*\n?")


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line of every key, table and array element, from 1 on."""
    scanner = _Scanner(text.replace("\r\n", "\n"))
    scanner.document()
    return scanner.lines


def key_text(path: KeyPath) -> str:
    """A path as it would be written: `sites.core.brokers[1]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + quoted_key(part)
    return text


def quoted_key(name: str) -> str:
    """A name as a key, in quotes where it needs them."""
    return name if _BARE_KEY.fullmatch(name) else quoted_text(name)


def quoted_text(text: str) -> str:
    """A text as a TOML string."""
    return '"' + "".join(_ESCAPES.get(c) or _escaped(c) for c in text) + '"'


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _escaped(character: str) -> str:
    control = character < " " or character == "\x7f"
    return f"\\u{ord(character):04x}" if control else character


class _Scanner:
    """A place in the text, and what was found up to there."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line_starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self.lines: dict[KeyPath, int] = {}
        #: The number of the newest table of each array of tables.
        self._newest: dict[KeyPath, int] = {}

    def document(self) -> None:
        """Everything."""
        table: KeyPath = ()
        while self._skip(_BETWEEN) < len(self._text):
            start = self._at
            if self._next("["):
                table = self._header()
                self._skip(_REST_OF_LINE)
            else:
                self._pair(table)
            if self._at == start:  # no TOML; do not stay here for ever
                self._at += 1

    # -- parts ----------------------------------------------------------------------------------

    def _header(self) -> KeyPath:
        """`[a.b]` or `[[a.b]]`, behind its first bracket."""
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

    # -- steps ----------------------------------------------------------------------------------

    def _line(self) -> int:
        return bisect_right(self._line_starts, self._at)

    def _skip(self, pattern: re.Pattern[str]) -> int:
        """Go over what fits; where that ends."""
        found = pattern.match(self._text, self._at)
        if found:
            self._at = found.end()
        return self._at

    def _skipped(self, pattern: re.Pattern[str]) -> bool:
        start = self._at
        return self._skip(pattern) > start

    def _next(self, character: str) -> bool:
        """Whether this character is next; if so, go over it."""
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
