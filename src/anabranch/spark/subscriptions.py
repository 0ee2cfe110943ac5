"""Subscriptions for bulk matching: from a file, a table, or an index, to a snapshot that tasks map.

    subscriptions = prepared("subscriptions.jsonl")

What can be given:

    a file of JSON lines     {"id": "cheap", "filter": "price < 50"}, one subscription per line
    a Parquet file           with the columns id and filter
    a snapshot               as `MatchIndex.save` writes it
    an index, or a mapping   of ids to filters

Rules:

1. An id is a text or an integer, and comes once. If one of them is a text, the answer has all of
   them as texts; then 5 and '5' would be the same, and are an error.
2. What is wrong is an error with the file, the line, and the position in the filter. With
   `skip_invalid` it is noted, and the rest is taken.
3. A snapshot that is given is verified once, here, and used where it is. Any other is written to a
   temporary directory, which goes when the subscriptions are closed, or with the process: a data
   frame may be asked for its rows long after it was made.

State: that directory.
"""

import atexit
import shutil
import tempfile
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
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
#: Characters of a filter that an error shows on either side of the place where it is wrong.
_AROUND = 20
_PARQUET = b"PAR1"
_BATCH_ROWS = 8_192


class SubscriptionsError(LocalError):
    """Subscriptions that cannot be used."""


class Problem(msgspec.Struct, frozen=True):
    """A subscription that was left out: where it stands, and why."""

    place: str
    reason: str


class _Given(msgspec.Struct, frozen=True):
    """One subscription, and where it stands; or what is wrong with that place."""

    place: str
    id: Hashable = None
    filter: str | Filter = ""
    wrong: str = ""


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
        #: Attributes that some filter names.
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
                raise SubscriptionsError(f"there are the ids {name} and '{name}'; keep one of them")

    def keep(self, path: Path) -> None:
        """Write the snapshot to a place where it stays."""
        copy(self.path, path)

    def close(self) -> None:
        """Remove what was written for this run."""
        if self._directory is not None:
            atexit.unregister(self.close)
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def prepared(source: Source | Subscriptions, *, skip_invalid: bool = False) -> Subscriptions:
    """Subscriptions that tasks can match with."""
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
        made = Subscriptions(
            directory / "subscriptions", verify=False, directory=directory, problems=problems
        )
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    atexit.register(made.close)
    return made


def _index_of(given: Iterator[_Given], skip_invalid: bool, problems: list[Problem]) -> MatchIndex:
    index = MatchIndex(engine="numba")
    for each in given:
        wrong = each.wrong or _problem(index, each)
        if wrong and not skip_invalid:
            raise SubscriptionsError(f"{each.place}: {wrong}")
        if wrong:
            problems.append(Problem(each.place, wrong))
    return index


def _problem(index: MatchIndex, given: _Given) -> str:
    """Add a subscription; what is wrong with it, or "" if it was added."""
    try:
        index.add(given.id, given.filter)
    except FilterError as error:
        return _explained(error)
    except DuplicateIdError:
        return f"the id {given.id!r} is there already"
    return ""


def _explained(error: FilterError) -> str:
    """In one line, with the words around the place where the filter is wrong."""
    summary = str(error).split("\n", 1)[0]
    if error.position < 0 or not error.text:
        return summary
    near = error.text[max(0, error.position - _AROUND) : error.position + _AROUND]
    return f"{summary}; near: {' '.join(near.split())}"


# -- where they stand ------------------------------------------------------------------------------


def _in_mapping(
    source: Mapping[str, str | Filter] | Mapping[int, str | Filter],
) -> Iterator[_Given]:
    for identity, filter in source.items():
        yield _Given(f"subscription {identity!r}", identity, filter)


def _in_file(path: Path) -> Iterator[_Given]:
    try:
        with path.open("rb") as file:
            is_parquet = file.read(len(_PARQUET)) == _PARQUET
    except IsADirectoryError:
        is_parquet = True
    except OSError as error:
        raise SubscriptionsError(f"{path} cannot be read: {error.strerror}") from error
    return _in_table(path) if is_parquet else _in_lines(path)


def _in_lines(path: Path) -> Iterator[_Given]:
    decoder = msgspec.json.Decoder(_Line)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            place = f"{path}, line {number}"
            try:
                found = decoder.decode(line)
                yield _Given(place, found.id, found.filter)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                yield _Given(place, wrong=f'this is no {{"id": …, "filter": …}}: {error}')


def _in_table(path: Path) -> Iterator[_Given]:
    try:
        files = sorted(path.glob("**/*.parquet")) if path.is_dir() else [path]
        if not files:
            raise SubscriptionsError(f"{path} has no Parquet file in it")
        for file in files:
            yield from _in_parquet(file)
    except (pa.ArrowException, OSError) as error:
        raise SubscriptionsError(f"{path} cannot be read as Parquet: {error}") from error


def _in_parquet(path: Path) -> Iterator[_Given]:
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
                    yield _Given(place, wrong="a row has an id, a text or an integer, and a filter")
                else:
                    yield _Given(place, identity, filter)
