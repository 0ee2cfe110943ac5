"""The catalog: the durable state of a broker besides its log, in SQLite.

It holds tables of keys and values, as the core puts them, two facts about the log, and the table of
the copies that the broker keeps, with such facts for each. Rules:

1. SQLite runs in WAL mode with `synchronous=FULL`: when `commit` returns, everything is on disk.
2. Puts are applied in order, all of one commit or none.
3. Every commit includes the newest tick of the log that was synced before it, and every new segment
   records its first tick. After a crash the log must have both; otherwise it lost its end, which
   the log alone could not detect (rule 7 of `segment`).
4. Every row has its own CRC, because SQLite has none. A row with a wrong CRC, or whose name, key or
   value has an unexpected type, is *damaged*: it is kept apart, and the core decides what follows
   (`core.catalog_recovery`). A file that SQLite cannot read, or that lacks the facts about the log,
   is refused.
5. The row of a copy is the proof that the copy exists. It is written in one transaction with the
   puts before it. The table of copies is created with the first one.
6. If a row of a copy is damaged, the first commit with rows of copies has all of them, and replaces
   the whole table (`copies`).
7. Tables of `contract.UNLOADED_TABLES` are not loaded. `CatalogReader` reads them, in another
   thread, and verifies each row. A row whose name or key was changed would be missing, and hide
   others from a search. So SQLite verifies first that all rows are in order, and the rows before
   and after those that were asked for are verified too.
8. `reset_tick` says that the log is about to be replaced by an empty one with this first tick.
   Until a commit says that it was, the facts are those of the old log. Its table is created when it
   is used first.

`Catalog` is used by one thread at a time. All of it survives a crash.
"""

import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from zlib import crc32

import msgspec

from anabranch.core.contract import UNLOADED_TABLES, DamagedRecord, ReadRows, RowsRead
from anabranch.model.errors import LocalError


class DeleteRows(NamedTuple):
    """Deletes the rows of a table whose keys begin with a prefix."""

    table: str
    prefix: str


#: Table, key, value; None deletes the key.
PutRow = tuple[str, str, bytes | None] | DeleteRows
Tables = dict[str, dict[str, bytes]]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entry (
    name TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, crc INTEGER NOT NULL,
    PRIMARY KEY (name, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log (
    only INTEGER PRIMARY KEY CHECK (only = 1), synced INTEGER NOT NULL, begun INTEGER NOT NULL
);
INSERT OR IGNORE INTO log VALUES (1, 0, 0);
PRAGMA user_version = 1;
"""
#: Created with the first copy, so that a catalog without copies is as it was before they existed.
_COPY_SCHEMA = """
CREATE TABLE IF NOT EXISTS copy (
    stream TEXT PRIMARY KEY, number INTEGER NOT NULL, first INTEGER NOT NULL,
    synced INTEGER NOT NULL, begun INTEGER NOT NULL, lost INTEGER NOT NULL, crc INTEGER NOT NULL
) WITHOUT ROWID
"""
COPY_TABLE_QUERY = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = 'copy'"
COPY_QUERY = "SELECT stream, number, first, synced, begun, lost, crc FROM copy"
_RESET_SCHEMA = """
CREATE TABLE IF NOT EXISTS reset (
    only INTEGER PRIMARY KEY CHECK (only = 1), first INTEGER NOT NULL, crc INTEGER NOT NULL
)
"""
_VERSION = 1
_NO_ROOM = sqlite3.SQLITE_FULL
#: What SQLite reports about a file that was changed, or that the disk cannot read.
_UNREADABLE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR}


class CatalogFullError(LocalError):
    """There is no space for a commit; the catalog is unchanged."""


class LogFacts(msgspec.Struct, frozen=True):
    """The facts about a log in the catalog."""

    #: Ticks up to this one were synced.
    synced_tick: int = 0
    #: The first tick of the newest segment, whose header is on disk; 0 if there is none.
    begun_tick: int = 0
    #: The log begins with this tick or an earlier one; 0 if that is not recorded.
    kept_tick: int = 0


class CopyFacts(msgspec.Struct, frozen=True):
    """A copy of a stream, as the catalog describes it."""

    stream: str
    #: Distinguishes it from all other copies, such as earlier ones of the same stream.
    number: int
    #: The oldest tick that must be present; if it is empty, the tick of its first record.
    first_tick: int
    #: Ticks up to this one were synced; `first_tick` − 1 if none was.
    synced_tick: int
    #: The first tick of its newest segment, whose header is on disk; 0 if it has none.
    begun_tick: int = 0
    #: Whether it was damaged and set aside.
    is_lost: bool = False

    @property
    def log_facts(self) -> LogFacts:
        return LogFacts(self.synced_tick, self.begun_tick, self.first_tick)


#: Stream → its copy; None deletes the row.
CopyRows = Mapping[str, CopyFacts | None]


class Catalog:
    """Keys and values on disk. See the rules at the top of this module."""

    __slots__ = (
        "_connection",
        "_damaged_keys",
        "_has_copies",
        "_page_bytes",
        "_path",
        "copies",
        "damaged",
        "damaged_copies",
        "facts",
        "reset_tick",
        "tables",
        "unused_bytes",
    )

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=5.0
            )
            self._prepare()
            self.facts = self._read_facts()
            #: The first tick of the empty log that replaces the log (rule 8); 0: nothing does.
            self.reset_tick = self._read_reset()
            #: Reported name and key of damaged rows → as they are in the file.
            self._damaged_keys: dict[tuple[str, str], tuple[object, object]] = {}
            #: Damaged rows, which are not in `tables`.
            self.damaged: list[DamagedRecord] = []
            self.tables = self._read()
            #: Streams in damaged rows of copies, as far as the names are readable.
            self.damaged_copies: list[str] = []
            #: The copies when the catalog was opened, apart from damaged rows.
            self.copies = self._read_copies()
            (self._page_bytes,) = self._one("PRAGMA page_size")
            self._count_unused()
        except sqlite3.Error as error:
            raise LocalError(
                f"the catalog {path} cannot be read: {error}; put a good copy in its place"
            ) from error

    def _prepare(self) -> None:
        execute = self._connection.execute
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        # If SQLite is built to overwrite deleted data, deleting takes as much space in the journal
        # as writing did; staged events can be hundreds of megabytes.
        execute("PRAGMA secure_delete = OFF")
        version = self._one("PRAGMA user_version")[0]
        if version == 0:
            self._connection.executescript(f"BEGIN;{_SCHEMA}COMMIT;")
        elif version != _VERSION:
            raise LocalError(
                f"{self._path} has format {version}, this program supports only {_VERSION};"
                " start the version that wrote it"
            )

    def _one(self, query: str) -> tuple[int, ...]:
        row: tuple[int, ...] | None = self._connection.execute(query).fetchone()
        if row is None:
            raise LocalError(
                f"the catalog {self._path} is incomplete; put a good copy in its place"
            )
        return row

    def _read_facts(self) -> LogFacts:
        facts: list[object] = [*self._one("SELECT synced, begun FROM log")]
        numbers = [fact for fact in facts if isinstance(fact, int) and fact >= 0]
        if len(numbers) != len(facts):
            raise LocalError(
                f"the catalog {self._path} is corrupt: its facts about the log are not numbers;"
                " put a good copy in its place"
            )
        return LogFacts(*numbers)

    def _read_reset(self) -> int:
        if not self._has_table("reset"):
            return 0
        row = self._connection.execute("SELECT first, crc FROM reset").fetchone()
        if row is None:
            return 0
        if row != (row[0], crc32(str(row[0]).encode())) or not row[0] > 0:
            raise LocalError(
                f"the catalog {self._path} is corrupt: its table 'reset' was changed after it was"
                " written; put a good copy in its place"
            )
        return int(row[0])

    def _has_table(self, name: str) -> bool:
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = ?"
        return self._connection.execute(query, (name,)).fetchone() is not None

    def _read(self) -> Tables:
        tables: Tables = {}
        # Text that is not UTF-8 makes a damaged row, not an error.
        self._connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        # A search by name could miss rows beside a damaged one.
        unloaded = ", ".join(f"'{table}'" for table in UNLOADED_TABLES)
        for name, key, value, crc in self._connection.execute(
            f"SELECT name, key, value, crc FROM entry WHERE name NOT IN ({unloaded})"
        ):
            flaw = _flaw(name, key, value, crc)
            if flaw:
                self._set_apart(name, key, value, flaw)
            else:
                tables.setdefault(name, {})[key] = value
        self._connection.text_factory = str
        return tables

    def _read_copies(self) -> dict[str, CopyFacts]:
        self._has_copies = self._has_table("copy")
        if not self._has_copies:
            return {}
        self._connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        found = {}
        for row in self._connection.execute(COPY_QUERY):
            facts = copy_facts(row)
            if facts is None:
                self.damaged_copies.append(_printable(row[0]))
            else:
                found[facts.stream] = facts
        self._connection.text_factory = str
        return found

    def _set_apart(self, name: object, key: object, value: object, flaw: str) -> None:
        reported = _printable(name), _printable(key)
        while reported in self._damaged_keys:
            reported = reported[0], f"{reported[1]}'"
        self._damaged_keys[reported] = name, key
        data = value if isinstance(value, bytes) else _printable(value).encode()
        self.damaged.append(DamagedRecord(*reported, data, flaw))

    def _delete(self, name: str, key: str) -> None:
        found = self._damaged_keys.pop((name, key), None)
        if found is None:
            self._connection.execute("DELETE FROM entry WHERE name = ? AND key = ?", (name, key))
            return
        # As text that SQLite does not decode, or as its actual type.
        is_text = [isinstance(part, str) for part in found]
        self._connection.execute(
            "DELETE FROM entry WHERE name = iif(?, CAST(? AS TEXT), ?)"
            " AND key = iif(?, CAST(? AS TEXT), ?)",
            (
                is_text[0],
                _raw(found[0]),
                found[0] if not is_text[0] else None,
                is_text[1],
                _raw(found[1]),
                found[1] if not is_text[1] else None,
            ),
        )

    def commit(
        self,
        puts: Iterable[PutRow],
        facts: LogFacts,
        copies: CopyRows = MappingProxyType({}),
        reset_tick: int | None = None,
    ) -> None:
        """Write all of this to disk; raise `CatalogFullError` if there is no space. `reset_tick`:
        None leaves it as it is.
        """
        connection = self._connection
        if reset_tick is None:
            reset_tick = self.reset_tick
        try:
            connection.execute("BEGIN IMMEDIATE")
            if copies:
                self._write_copies(copies)
            for put in puts:
                if isinstance(put, DeleteRows):
                    self._delete_rows(put)
                    continue
                name, key, value = put
                if value is None or (name, key) in self._damaged_keys:
                    self._delete(name, key)
                if value is not None:
                    row = (name, key, value, _crc(name, key, value))
                    connection.execute("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?)", row)
            if reset_tick != self.reset_tick:
                self._write_reset(reset_tick)
            connection.execute(
                "UPDATE log SET synced = ?, begun = ?", (facts.synced_tick, facts.begun_tick)
            )
            connection.execute("COMMIT")
            self._count_unused()
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF != _NO_ROOM:
                raise LocalError(f"{self._path} cannot be written: {error}") from error
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise CatalogFullError(f"no room for {self._path}") from error
        self.facts, self.reset_tick = facts, reset_tick
        if copies:
            self._has_copies = True
            self.damaged_copies = []

    def _write_copies(self, copies: CopyRows) -> None:
        execute = self._connection.execute
        if not self._has_copies:
            execute(_COPY_SCHEMA)
        if self.damaged_copies:
            execute("DELETE FROM copy")
        for stream, facts in copies.items():
            if facts is None:
                execute("DELETE FROM copy WHERE stream = ?", (stream,))
            else:
                execute("INSERT OR REPLACE INTO copy VALUES (?, ?, ?, ?, ?, ?, ?)", _row_of(facts))

    def _write_reset(self, tick: int) -> None:
        execute = self._connection.execute
        if tick:
            execute(_RESET_SCHEMA)
            row = (tick, crc32(str(tick).encode()))
            execute("INSERT OR REPLACE INTO reset VALUES (1, ?, ?)", row)
        else:
            execute("DELETE FROM reset")

    def _delete_rows(self, rows: DeleteRows) -> None:
        query, values = "DELETE FROM entry WHERE name = ? AND key >= ?", [*rows]
        if after := _after_prefix(rows.prefix):
            query, values = f"{query} AND key < ?", [*values, after]
        self._connection.execute(query, values)

    def _count_unused(self) -> None:
        """Update the free space in the file, which does not shrink after deletions."""
        (pages,) = self._one("PRAGMA freelist_count")
        #: Bytes that can be written before the file grows. Other threads may read it.
        self.unused_bytes = pages * self._page_bytes

    def close(self) -> None:
        self._connection.close()


class CatalogReader:
    """Reads committed rows of tables that are not loaded (rule 7), in one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def read(self, read: ReadRows) -> RowsRead:
        try:
            found = self._found(read) if read.after or self._is_in_order() else None
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF not in _UNREADABLE:
                raise LocalError(f"{self._path} cannot be read: {error}") from error
            found = None
        return found or RowsRead(read.request, (), is_last=True, is_damaged=True)

    def _is_in_order(self) -> bool:
        """Whether all rows are in the order of their keys. This reads the whole table."""
        result: object = self._execute("PRAGMA integrity_check(entry)", ()).fetchone()
        return result == ("ok",)

    def _found(self, read: ReadRows) -> RowsRead | None:
        """Return the rows; None if one is damaged."""
        after = max(read.after, read.prefix)
        # The prefix may be a key itself.
        comparison = ">" if read.after >= read.prefix else ">="
        opposite = "<=" if comparison == ">" else "<"
        found: list[tuple[str, bytes]] = []
        size = 0
        for is_before, rows in (
            (True, self._rows(f"{opposite} (?, ?) ORDER BY name DESC, key DESC", read, after)),
            (False, self._rows(f"{comparison} (?, ?) ORDER BY name, key", read, after)),
        ):
            for name, key, value, crc in rows:
                if _flaw(name, key, value, crc):
                    return None
                if is_before or name != read.table or not str(key).startswith(read.prefix):
                    break
                assert isinstance(key, str)
                assert isinstance(value, bytes)
                size += len(key.encode()) + len(value)
                if found and size > read.bytes_max:
                    return RowsRead(read.request, tuple(found), is_last=False)
                found.append((key, value))
        return RowsRead(read.request, tuple(found), is_last=True)

    def _rows(self, where: str, read: ReadRows, after: str) -> Iterator[tuple[object, ...]]:
        query = f"SELECT name, key, value, crc FROM entry WHERE (name, key) {where}"
        return self._execute(query, (read.table, after))

    def _execute(self, query: str, values: tuple[str, ...]) -> sqlite3.Cursor:
        if self._connection is None:
            self._connection = sqlite3.connect(
                f"{self._path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False
            )
            self._connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        return self._connection.execute(query, values)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _after_prefix(prefix: str) -> str:
    """Return the first text after all texts with a prefix; "" if there is none."""
    for place in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[place]) + 1
        if code <= sys.maxunicode:
            # Surrogates are not text.
            return prefix[:place] + chr(0xE000 if 0xD800 <= code <= 0xDFFF else code)
    return ""


def copy_facts(row: Sequence[object]) -> CopyFacts | None:
    """Return the copy that a row describes; None if the row is damaged."""
    stream, *numbers = row
    counts = [number for number in numbers if isinstance(number, int)]
    if not isinstance(stream, str) or len(counts) < len(numbers):
        return None
    number, first_tick, synced_tick, begun_tick, is_lost, _ = counts
    facts = CopyFacts(stream, number, first_tick, synced_tick, begun_tick, bool(is_lost))
    try:
        return facts if tuple(row) == _row_of(facts) else None
    except UnicodeEncodeError:
        return None


def _row_of(facts: CopyFacts) -> tuple[str, int, int, int, int, int, int]:
    numbers = facts.number, facts.first_tick, facts.synced_tick, facts.begun_tick
    crc = crc32(f"{facts.stream}\0{numbers}{facts.is_lost:d}".encode())
    return (facts.stream, *numbers, int(facts.is_lost), crc)


def _crc(name: str, key: str, value: bytes) -> int:
    return crc32(value, crc32(f"{name}\0{key}".encode()))


def _flaw(name: object, key: object, value: object, crc: object) -> str:
    """Return what is wrong with a row; "" if nothing is."""
    if not (isinstance(name, str) and isinstance(key, str) and isinstance(value, bytes)):
        return "its name, key or value has an unexpected type"
    try:
        is_same = _crc(name, key, value) == crc
    except UnicodeEncodeError:
        return "its name or key is not text"
    return "" if is_same else "it was changed after it was written"


def _raw(value: object) -> object:
    """Return text as its bytes in the file; other values unchanged."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _printable(value: object) -> str:
    """Return a value as text that can be reported and stored."""
    raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "backslashreplace")
