"""Subscription sets for bulk matching: loads them from files, and writes a snapshot that tasks map.

    subscriptions = prepared("subscriptions.jsonl")

Supported inputs:

    JSON lines file          {"id": "cheap", "filter": "price < 50"}, one subscription per line
    Parquet file             with the columns id and filter
    snapshot                 as `MatchIndex.save` writes it
    index, or mapping        of ids to filters

Rules:

1. An id is a text or an integer, and unique. If one id is a text, results contain all ids as texts;
   5 and '5' would then be the same, so that is an error.
2. An invalid subscription is an error with the file, the line, and the position in the filter. With
   `skip_invalid` it is recorded and skipped.
3. A snapshot passed as input is verified once and used in place. Any other input is written to a
   temporary directory, which is removed when the subscriptions are closed, or at process exit: a
   data frame may be evaluated long after its creation.

State: that directory.
"""

import atexit
import shutil
import tempfile
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.matching.identities import StoredIdentities, StoredIds
from anabranch.matching.index import MatchIndex
from anabranch.matching.snapshot import copy, is_snapshot
from anabranch.model.errors import DuplicateIdError, FilterError, LocalError
from anabranch.model.filter import Filter

Source = str | Path | MatchIndex | Mapping[str, str | Filter] | Mapping[int, str | Filter]
#: Characters of a filter that an error shows on either side of the error position.
_CONTEXT_CHARACTERS = 20
_PARQUET = b"PAR1"
_BATCH_ROWS = 8_192


class SubscriptionsError(LocalError):
    """Subscriptions that cannot be used."""


class Problem(msgspec.Struct, frozen=True):
    """A subscription that was skipped: its location, and why."""

    place: str
    reason: str


class _Entry(msgspec.Struct, frozen=True):
    """A subscription and its location, or an error at that location."""

    place: str
    id: Hashable = None
    filter: str | Filter = ""
    error_text: str = ""


class _Line(msgspec.Struct, frozen=True):
    id: str | int
    filter: str


class Subscriptions:
    """Subscriptions in a snapshot. See the rules at the top of this module."""

    def __init__(
        self, path: Path, *, verify: bool, directory: Path | None, problems: list[Problem]
    ) -> None:
        index = MatchIndex.load(path, verify=verify)
        identities = index._identities
        assert isinstance(identities, StoredIdentities)
        self.path = path
        self.ids: StoredIds = identities.stored
        #: Attributes that filters name.
        self.attributes = frozenset(index._schema.attributes)
        self.problems = problems
        self._directory = directory
        self._check_ids()

    def __len__(self) -> int:
        return len(self.ids.firsts)

    def _check_ids(self) -> None:
        ids = self.ids
        if ids.are_integers or bool(ids.kinds.all()):
            return
        texts = {ids.of_number(number) for number in ids.kinds.nonzero()[0].tolist()}
        for name in ids.names[ids.kinds == 0].tolist():
            if str(name) in texts:
                raise SubscriptionsError(f"ids {name} and '{name}' are ambiguous; keep only one")

    def keep(self, path: Path) -> None:
        copy(self.path, path)

    def close(self) -> None:
        if self._directory is not None:
            atexit.unregister(self.close)
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def prepared(source: Source | Subscriptions, *, skip_invalid: bool = False) -> Subscriptions:
    """Load subscriptions so that tasks can match with them."""
    if isinstance(source, Subscriptions):
        return source
    problems: list[Problem] = []
    if isinstance(source, MatchIndex):
        return _written(source, problems)
    if isinstance(source, Mapping):
        return _written(_index_of(_in_mapping(source), skip_invalid, problems), problems)
    path = Path(source)
    if is_snapshot(path):
        return Subscriptions(path, verify=True, directory=None, problems=problems)
    return _written(_index_of(_in_file(path), skip_invalid, problems), problems)


def _written(index: MatchIndex, problems: list[Problem]) -> Subscriptions:
    directory = Path(tempfile.mkdtemp(prefix="anabranch-match-"))
    try:
        index.save(directory / "subscriptions")
        subscriptions = Subscriptions(
            directory / "subscriptions", verify=False, directory=directory, problems=problems
        )
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    atexit.register(subscriptions.close)
    return subscriptions


def _index_of(entries: Iterator[_Entry], skip_invalid: bool, problems: list[Problem]) -> MatchIndex:
    index = MatchIndex(engine="numba")
    for entry in entries:
        error_text = entry.error_text or _problem(index, entry)
        if error_text and not skip_invalid:
            raise SubscriptionsError(f"{entry.place}: {error_text}")
        if error_text:
            problems.append(Problem(entry.place, error_text))
    return index


def _problem(index: MatchIndex, entry: _Entry) -> str:
    """Add a subscription. Returns the error, or "" if it was added."""
    try:
        index.add(entry.id, entry.filter)
    except FilterError as error:
        return _explained(error)
    except DuplicateIdError:
        return f"duplicate id {entry.id!r}"
    return ""


def _explained(error: FilterError) -> str:
    """The error in one line, with the text around its position in the filter."""
    summary = str(error).split("\n", 1)[0]
    if error.position < 0 or not error.text:
        return summary
    near = error.text[
        max(0, error.position - _CONTEXT_CHARACTERS) : error.position + _CONTEXT_CHARACTERS
    ]
    return f"{summary}; near: {' '.join(near.split())}"


# -- inputs ----------------------------------------------------------------------------------------


def _in_mapping(
    source: Mapping[str, str | Filter] | Mapping[int, str | Filter],
) -> Iterator[_Entry]:
    for identity, filter in source.items():
        yield _Entry(f"subscription {identity!r}", identity, filter)


def _in_file(path: Path) -> Iterator[_Entry]:
    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(_PARQUET)) == _PARQUET
    except IsADirectoryError:
        is_parquet = True
    except OSError as error:
        raise SubscriptionsError(f"{path} cannot be read: {error.strerror}") from error
    return _in_table(path) if is_parquet else _in_lines(path)


def _in_lines(path: Path) -> Iterator[_Entry]:
    decoder = msgspec.json.Decoder(_Line)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            place = f"{path}, line {number}"
            try:
                found = decoder.decode(line)
                yield _Entry(place, found.id, found.filter)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                yield _Entry(place, error_text=f'not {{"id": …, "filter": …}}: {error}')


def _in_table(path: Path) -> Iterator[_Entry]:
    try:
        files = sorted(path.glob("**/*.parquet")) if path.is_dir() else [path]
        if not files:
            raise SubscriptionsError(f"{path} contains no Parquet file")
        for file in files:
            yield from _in_parquet(file)
    except (pa.ArrowException, OSError) as error:
        raise SubscriptionsError(f"{path} cannot be read as Parquet: {error}") from error


def _in_parquet(path: Path) -> Iterator[_Entry]:
    with pq.ParquetFile(path) as table:
        missing = {"id", "filter"} - set(table.schema_arrow.names)
        if missing:
            raise SubscriptionsError(
                f"{path} has no column {' and no column '.join(sorted(missing))}"
            )
        row = 0
        for batch in table.iter_batches(_BATCH_ROWS, columns=["id", "filter"]):
            pairs = zip(
                batch.column("id").to_pylist(), batch.column("filter").to_pylist(), strict=True
            )
            for identity, filter in pairs:
                row += 1
                place = f"{path}, row {row}"
                if not isinstance(identity, str | int) or not isinstance(filter, str):
                    yield _Entry(
                        place, error_text="a row needs an id (text or integer) and a filter"
                    )
                else:
                    yield _Entry(place, identity, filter)
