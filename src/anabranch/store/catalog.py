"""The catalog: what a broker remembers beside its log, in sqlite.

Tables of keys and values, as the core puts them, and two facts about the log. Rules:

1. sqlite in WAL mode with `synchronous=FULL`: what `commit` returned from is on disk.
2. Puts go in in their order, all of one commit or none.
3. With every commit goes the newest tick of the log that was synced before it, and with every new
   segment its first tick. After a crash the log has to have both; if not, it lost its end, which
   the log alone could not tell (rule 7 of `segment`).
4. Every row has a CRC of its own, because sqlite has none. A row whose CRC is wrong, or whose name,
   key or value has another type than it was given, is *damaged*: it is told apart from the others,
   and what follows is for the core to say (`core.catalog_recovery`). A file that sqlite cannot
   read, or that lacks the facts about the log, is refused.

One thread at a time uses it. All of it survives a crash, that is what it is for.
"""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from zlib import crc32

import msgspec

from anabranch.core.contract import DamagedRecord
from anabranch.model.errors import LocalError

#: Table, key, value; None forgets the key.
PutRow = tuple[str, str, bytes | None]
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
_VERSION = 1
_NO_ROOM = sqlite3.SQLITE_FULL


class CatalogFullError(LocalError):
    """There is no room for a commit; the catalog is as it was before."""


class LogFacts(msgspec.Struct, frozen=True):
    """What the catalog knows of the log."""

    #: Ticks up to this one were synced.
    synced_tick: int = 0
    #: The first tick of the newest segment, which is there with its header; 0 if none is.
    begun_tick: int = 0


class Catalog:
    """Keys and values on disk. See the rules at the top of this module."""

    __slots__ = (
        "_connection",
        "_odd",
        "_page_bytes",
        "_path",
        "damaged",
        "facts",
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
            #: Name and key of damaged rows as they are told → as they are in the file.
            self._odd: dict[tuple[str, str], tuple[object, object]] = {}
            #: Rows that are not in `tables` because they cannot be believed.
            self.damaged: list[DamagedRecord] = []
            self.tables = self._read()
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
        # Where sqlite was built to overwrite what is deleted, forgetting would take as much room in
        # the journal as remembering did; what was staged can be hundreds of megabytes.
        execute("PRAGMA secure_delete = OFF")
        version = self._one("PRAGMA user_version")[0]
        if version == 0:
            self._connection.executescript(f"BEGIN;{_SCHEMA}COMMIT;")
        elif version != _VERSION:
            raise LocalError(
                f"{self._path} has format {version}, this program knows only {_VERSION};"
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
                f"the catalog {self._path} is corrupt: what it says about the log is no number;"
                " put a good copy in its place"
            )
        return LogFacts(*numbers)

    def _read(self) -> Tables:
        tables: Tables = {}
        # Text that is not UTF-8 is a damaged row, and no reason to stop.
        self._connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        for name, key, value, crc in self._connection.execute(
            "SELECT name, key, value, crc FROM entry"
        ):
            flaw = _flaw(name, key, value, crc)
            if flaw:
                self._set_apart(name, key, value, flaw)
            else:
                tables.setdefault(name, {})[key] = value
        self._connection.text_factory = str
        return tables

    def _set_apart(self, name: object, key: object, value: object, flaw: str) -> None:
        told = _printable(name), _printable(key)
        while told in self._odd:
            told = told[0], f"{told[1]}'"
        self._odd[told] = name, key
        data = value if isinstance(value, bytes) else _printable(value).encode()
        self.damaged.append(DamagedRecord(*told, data, flaw))

    def _delete(self, name: str, key: str) -> None:
        found = self._odd.pop((name, key), None)
        if found is None:
            self._connection.execute("DELETE FROM entry WHERE name = ? AND key = ?", (name, key))
            return
        # As text that sqlite does not look into, or as whatever else it was.
        is_text = [isinstance(each, str) for each in found]
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

    def commit(self, puts: Iterable[PutRow], facts: LogFacts) -> None:
        """Have all of this on disk; `CatalogFullError` if there is no room."""
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")
            for name, key, value in puts:
                if value is None or (name, key) in self._odd:
                    self._delete(name, key)
                if value is not None:
                    row = (name, key, value, _crc(name, key, value))
                    connection.execute("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?)", row)
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
        self.facts = facts

    def _count_unused(self) -> None:
        """What was deleted leaves room in the file, which does not shrink."""
        (pages,) = self._one("PRAGMA freelist_count")
        #: Bytes that can be put before the file grows. Other threads may look.
        self.unused_bytes = pages * self._page_bytes

    def close(self) -> None:
        """Done with it."""
        self._connection.close()


def _crc(name: str, key: str, value: bytes) -> int:
    return crc32(value, crc32(f"{name}\0{key}".encode()))


def _flaw(name: object, key: object, value: object, crc: object) -> str:
    """What is wrong with a row; "" if nothing is."""
    if not (isinstance(name, str) and isinstance(key, str) and isinstance(value, bytes)):
        return "its name, key or value has a type that nobody wrote"
    try:
        is_same = _crc(name, key, value) == crc
    except UnicodeEncodeError:
        return "its name or key is no text"
    return "" if is_same else "it was changed after it was written"


def _raw(value: object) -> object:
    """A value as the bytes it is in the file, if it is text."""
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _printable(value: object) -> str:
    """A text that can be told and stored, whatever was in the file."""
    raw = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "backslashreplace")
