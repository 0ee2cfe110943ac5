"""Matching index inside a Spark task: Arrow batches in, matches out.

    matcher = matcher_of(path)
    owners, ends = matcher.match(events)

`events` are `ColumnEvents` (one column per attribute) or `EncodedEvents` (a column of encoded
events). Kernels search both directly in the Arrow arrays. Python evaluates an event only where the
index is in doubt, because a filter calculates or compares attributes with each other, or where an
encoded event is not in plain form. Rules:

1. The result is that of `MatchIndex.match` for each event.
2. The snapshot is memory-mapped, so all tasks of a machine share it. It is opened once per process
   and not verified again: the driver has verified it.
3. Use from one thread at a time.

Counting sweeps the index with tiles of events (`kernels.row_search`). The more events a tile
holds, the fewer times the index is read; a tile of a few megabytes fits into the shared CPU cache.
An index can be swept if every subscription is a single conjunction that the kernels decide alone,
without patterns.

State: the mapped index, work arrays, and the counts so far. Safe to lose.

Batches. A `Reader` selects the columns of a batch that an index needs and creates `Events` from it.
Only attributes that filters name are read. Rules:

1. A column is searched in place. Only narrower types and dictionary-encoded columns are converted
   first.
2. The arrays of a batch are kept alive as long as its events.
3. An encoded event has the encoding of `model.encoding`; an invalid one is an error that names its
   row.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anabranch.matching.compiled import CompiledEngine
from anabranch.matching.identities import StoredIdentities, StoredIds
from anabranch.matching.index import MatchIndex
from anabranch.matching.kernels import layout as at
from anabranch.matching.kernels import read_event as bound
from anabranch.matching.memory import Memory
from anabranch.model.encoding import decode_event
from anabranch.model.errors import RemoteError
from anabranch.model.event import Attributes, Value
from anabranch.model.limits import STORED_LIMITS
from anabranch.spark.attribute_columns import AttributeColumn
from anabranch.spark.column_types import Kind
from anabranch.spark.kernels import row_search
from anabranch.spark.kernels.row_search import search_rows, sweep_rows

_TILE_BYTES: Final = 8 << 20
_ROWS_MIN: Final = 64
_ROWS_MAX: Final = 16_384
#: Bytes per event and axis.
_AXIS_BYTES: Final = 33


def can_be_swept(memory: Memory, subscriptions: int) -> bool:
    """Whether an index can be swept; `subscriptions` is the number of those with an entry."""
    context = memory.context
    if context[at.DOUBT_ENTRIES] or context[at.LIVE_ENTRIES] != subscriptions:
        return False
    # A pattern axis remains after its patterns are removed, and a long text may not fit on it.
    axes = memory.arrays[at.ATTRIBUTE_AXES].reshape(-1, at.SPACES)
    return not bool((axes[:, at.PATTERN] >= 0).any())


class Tiles:
    """Work arrays for one tile of events, and the match counts."""

    def __init__(self, memory: Memory) -> None:
        axes = max(int(memory.context[at.AXIS_COUNT]), 1)
        clusters = int(memory.context[at.CLUSTER_COUNT])
        self.rows = min(max(_TILE_BYTES // (axes * _AXIS_BYTES), _ROWS_MIN), _ROWS_MAX)
        links = self.rows * (2 * axes + 1)
        cells = np.zeros((self.rows + 1) * axes, np.uint8)
        unplaced = memory.arrays[at.CELL][: memory.context[at.AXIS_COUNT]]
        cells[self.rows * axes :][: len(unplaced)] = unplaced
        self._arrays: dict[int, NDArray[np.int64] | NDArray[np.int32] | NDArray[np.uint8]] = {
            each: np.empty(self.rows * axes, np.int64)
            for each in (row_search.LOWS, row_search.HIGHS, row_search.RESTS)
        }
        self._arrays |= {
            row_search.CELLS: cells,
            row_search.UPPERS: np.empty(2 * self.rows * axes, np.int32),
            row_search.HEADS: np.full(clusters + 1, -1, np.int32),
            row_search.LINKS: np.empty(links, np.int32),
            row_search.LINK_ROWS: np.empty(links, np.int32),
            row_search.REACHED: np.empty(min(links, clusters + 1), np.int32),
            row_search.HERE: np.empty(self.rows, np.int32),
        }
        #: Match counts by slot.
        self.counts = np.zeros(int(memory.context[at.SLOT_COUNT]), np.int64)
        #: Addresses of the arrays, as the kernels expect them.
        self.words = np.zeros(row_search.TILE_WORDS, np.int64)
        for number, array in self._arrays.items():
            self.words[number] = array.ctypes.data
        self.words[row_search.ROWS] = self.rows

    def by_entry(self, memory: Memory, entries: int) -> NDArray[np.int64]:
        slots = np.nonzero(self.counts)[0]
        found = np.zeros(entries, np.int64)
        found[memory.arrays[at.SLOT_ENTRY][slots]] = self.counts[slots]
        return found


Words = NDArray[np.int64]
Integers = NDArray[np.int32]


_NO_COUNTS: Words = np.zeros(0, np.int64)
#: Accept every event that a broker has accepted.
_NO_BOUNDS: Words = np.full(bound.BOUNDS, np.iinfo(np.int64).max, np.int64)


class _Found(NamedTuple):
    """Search result: owners and doubtful entries, and the end of each row's share."""

    owners: Integers
    ends: Words
    doubts: Integers
    doubt_ends: Words
    #: ODD where Python has to decode the event.
    states: NDArray[np.uint8]


class Events(Protocol):
    """A batch of events that kernels can search."""

    @property
    def rows(self) -> int: ...

    @property
    def plan(self) -> Words:
        """Addresses of the columns, see `kernels.row_search`."""
        ...

    @property
    def is_encoded(self) -> bool:
        """Whether the events are encoded rather than columns."""
        ...

    def attributes(self, rows: Words) -> list[Attributes]: ...


class Matcher:
    """A read-only index. See the rules at the top of this module."""

    def __init__(self, path: Path) -> None:
        index = MatchIndex.load(path, verify=False)
        engine, identities = index._engine, index._identities
        assert isinstance(engine, CompiledEngine)
        assert isinstance(identities, StoredIdentities)
        self._index, self._engine = index, engine
        self.ids: StoredIds = identities.stored
        #: Attribute → its number.
        self.attributes = index._schema.attributes
        #: Match counts by owner, from searches other than sweeps.
        self.counts: Words = np.zeros(max(len(self.ids.by_entry), 1), np.int64)
        self.doubts_decided = 0
        entries = int(np.count_nonzero(self.ids.firsts >= 0))
        self._tiles = Tiles(engine.memory) if can_be_swept(engine.memory, entries) else None

    @property
    def is_swept(self) -> bool:
        """Whether columns are counted by sweeping tiles."""
        return self._tiles is not None

    # -- matching -------------------------------------------------------------------------------

    def match(self, events: Events) -> tuple[Integers, Words]:
        """The owners of all rows, concatenated, and the offsets of each row."""
        found = self._searched(events, _NO_COUNTS)
        decided = self._decided(events, found)
        if not decided:
            return found.owners, found.ends
        return _inserted(found.owners, found.ends, decided)

    def count(self, events: Events) -> Words:
        """Add the matches to the counts. Returns the number of matches per row."""
        if self._tiles is not None and not events.is_encoded:
            return self._swept(events, self._tiles)
        found = self._searched(events, self.counts)
        sizes = found.ends[1:]
        for row, owner in self._decided(events, found):
            self.counts[owner] += 1
            sizes[row] += 1
        return sizes

    def _swept(self, events: Events, tiles: Tiles) -> Words:
        """`count` for an index that can be swept."""
        sizes = np.zeros(events.rows, np.int64)
        context = self._engine.memory.context
        for first in range(0, events.rows, tiles.rows):
            stop = min(first + tiles.rows, events.rows)
            sweep_rows(context, events.plan, tiles.words, first, stop, sizes, tiles.counts)
        return sizes

    def _searched(self, events: Events, counts: Words) -> _Found:
        """Run the search kernel, again after each time its output is full."""
        rows = events.rows
        ends, doubt_ends, all_ends, all_doubt_ends = np.zeros((4, rows + 1), np.int64)
        states = np.zeros(rows, np.uint8)
        owners: list[Integers] = []
        doubts: list[Integers] = []
        first = 0
        while first < rows:
            self._engine.reserve_output()
            done, problem = search_rows(
                self._engine.memory.context, events.plan, _NO_BOUNDS, first, ends, doubt_ends,
                states, counts,
            )  # fmt: skip
            span = slice(first + 1, done + 1)
            all_doubt_ends[span] = all_doubt_ends[first] + doubt_ends[span]
            doubts.append(self._taken(at.DOUBTS, doubt_ends, first, done))
            if not len(counts):
                all_ends[span] = all_ends[first] + ends[span]
                owners.append(self._taken(at.OUTPUT, ends, first, done))
            self._grow(problem)
            first = done
        all_ends = ends if len(counts) else all_ends
        return _Found(_joined(owners), all_ends, _joined(doubts), all_doubt_ends, states)

    def _taken(self, array: int, ends: Words, first: int, done: int) -> Integers:
        count = ends[done] if done > first else 0
        return self._engine.memory.integers(array)[:count].copy()

    def _grow(self, problem: int) -> None:
        if problem == at.TEXT_FULL:
            memory = self._engine.memory
            memory.grow(at.TEXT_CAPACITY, int(memory.context[at.TEXT_NEEDED]))

    # -- doubtful entries -----------------------------------------------------------------------

    def _decided(self, events: Events, found: _Found) -> list[tuple[int, int]]:
        """(row, owner) of all matches decided in Python, ascending by row."""
        ends, states = found.doubt_ends, found.states
        rows = np.nonzero((np.diff(ends) > 0) | (states != 0))[0]
        if not len(rows):
            return []
        decided: list[tuple[int, int]] = []
        for row, attributes in zip(rows.tolist(), events.attributes(rows), strict=True):
            if states[row]:
                decided += [(row, owner) for owner in self._owners_of(attributes)]
            else:
                entries = found.doubts[ends[row] : ends[row + 1]]
                decided += [(row, owner) for owner in self._sure(entries, attributes)]
        return decided

    def _sure(self, entries: Integers, attributes: Attributes) -> set[int]:
        """The owners of the doubtful entries that match."""
        owners: set[int] = set()
        owner_of, decide = self._engine.owner_of, self._index._doubts.decide
        self.doubts_decided += len(entries)
        for entry in entries.tolist():
            owner = owner_of(entry)
            if owner not in owners and decide(entry, attributes):
                owners.add(owner)
        return owners

    def _owners_of(self, attributes: Attributes) -> list[int]:
        """The owners that match an event which the kernels could not parse."""
        self.doubts_decided += 1
        count, doubtful = self._engine.search_one(dict(attributes))
        owners: list[int] = self._engine.owners(count).tolist()
        sure = self._sure(self._engine.doubts(doubtful).copy(), attributes)
        return [*owners, *sure.difference(owners)]

    # -- ids ------------------------------------------------------------------------------------

    def named(self, owners: Integers) -> pa.Array:
        numbers = self._engine.named(owners, self.ids.by_entry)
        return pa.array(numbers) if self.ids.are_integers else self.texts.take(pa.array(numbers))

    def counted(self) -> Words:
        firsts, counts = self.ids.firsts, self.counts
        if self._tiles is not None:
            counts = counts + self._tiles.by_entry(self._engine.memory, len(counts))
        return np.where(firsts >= 0, counts[firsts], 0)

    def forget(self) -> None:
        self.counts[:] = 0
        self.doubts_decided = 0
        if self._tiles is not None:
            self._tiles.counts[:] = 0

    @cached_property
    def texts(self) -> pa.Array:
        """The ids of all subscriptions as texts, by number."""
        ids = self.ids
        if bool(ids.kinds.all()):
            buffers = [None, pa.py_buffer(ids.texts.stops), pa.py_buffer(ids.texts.letters)]
            table = pa.Array.from_buffers(pa.large_string(), len(ids.kinds), buffers)
            return table.cast(pa.string())
        return pa.array([str(ids.of_number(number)) for number in range(len(ids.firsts))])


@lru_cache(maxsize=2)
def _opened(path: Path, _stamp: tuple[int, int]) -> Matcher:
    return Matcher(path)


def matcher_of(path: Path) -> Matcher:
    """The matcher for a snapshot, cached per process, with its counts reset."""
    status = path.stat()
    matcher = _opened(path, (status.st_mtime_ns, status.st_size))
    matcher.forget()
    return matcher


def _joined(parts: Sequence[Integers]) -> Integers:
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _inserted(
    owners: Integers, ends: Words, decided: list[tuple[int, int]]
) -> tuple[Integers, Words]:
    rows = np.array([row for row, _ in decided], np.int64)
    added = np.array([owner for _, owner in decided], np.int32)
    whole = np.insert(owners, ends[rows + 1], added)
    shifts = np.zeros(len(ends), np.int64)
    np.add.at(shifts, rows + 1, 1)
    return whole, ends + np.cumsum(shifts)


Reader = Callable[[pa.RecordBatch], Events]

#: Kind → Arrow type that is searched, and its number in the kernels.
_PLAIN: dict[Kind, tuple[pa.DataType, int]] = {
    "text": (pa.string(), row_search.TEXT),
    "integer": (pa.int64(), row_search.INTEGER),
    "float": (pa.float64(), row_search.FLOAT),
    "truth": (pa.bool_(), row_search.TRUTH),
}


class ColumnEvents:
    """Events with one column per attribute."""

    is_encoded = False

    def __init__(
        self, batch: pa.RecordBatch, columns: Sequence[AttributeColumn], numbers: Mapping[str, int]
    ) -> None:
        self.rows: int = batch.num_rows
        self._batch = batch
        self._columns = [each for each in columns if each.attribute in numbers]
        self._arrays = [_plain(batch.column(each.column), each.kind) for each in self._columns]
        words = [
            _words(array, _PLAIN[each.kind][1], numbers[each.attribute])
            for array, each in zip(self._arrays, self._columns, strict=True)
        ]
        self.plan: Words = np.array(words, np.int64).reshape(-1)

    def attributes(self, rows: Words) -> list[Attributes]:
        found: list[dict[str, Value]] = [{} for _ in range(len(rows))]
        chosen = pa.array(rows)
        for each, array in zip(self._columns, self._arrays, strict=True):
            for attributes, value in zip(found, array.take(chosen).to_pylist(), strict=True):
                if value is not None:
                    attributes.setdefault(each.attribute, value)
        return list(found)


def _plain(array: pa.Array, kind: Kind) -> pa.Array:
    wanted = _PLAIN[kind][0]
    if array.type == wanted or (kind == "text" and array.type == pa.large_string()):
        return array
    return array.cast(wanted)


def _words(array: pa.Array, kind: int, attribute: int) -> list[int]:
    """The plan entry of one column."""
    buffers = array.buffers()
    validity = buffers[0] if array.null_count else None
    letters = buffers[2] if kind in (row_search.TEXT, row_search.ENCODED) else None
    if array.type in (pa.large_string(), pa.large_binary()):
        kind += 1
    words = [0] * row_search.PLAN_WORDS
    words[row_search.ATTRIBUTE] = attribute
    words[row_search.KIND] = kind
    words[row_search.VALUES] = buffers[1].address
    words[row_search.VALID] = 0 if validity is None else validity.address
    words[row_search.LETTERS] = 0 if letters is None else letters.address
    words[row_search.SKIP] = array.offset
    return words


class EncodedEvents:
    """Events in their published encoding, as a binary column."""

    is_encoded = True

    def __init__(self, bodies: pa.Array) -> None:
        self.rows: int = len(bodies)
        self._bodies = bodies
        self.plan: Words = np.array(_words(bodies, row_search.ENCODED, 0), np.int64)

    def attributes(self, rows: Words) -> list[Attributes]:
        return [self._decoded(row) for row in rows.tolist()]

    def _decoded(self, row: int) -> Attributes:
        body = self._bodies[row].as_py()
        try:
            return decode_event(body or b"", STORED_LIMITS).attributes
        except RemoteError as error:
            raise RemoteError(f"row {row} of a batch is not a valid event: {error}") from error


def column_reader(columns: Sequence[AttributeColumn], numbers: Mapping[str, int]) -> Reader:
    """Reader for attribute columns; `numbers` maps the attributes of the index to their numbers."""
    return lambda batch: ColumnEvents(batch, columns, numbers)


def encoded_reader(column: str) -> Reader:
    """Reader for encoded events in one column."""
    return lambda batch: EncodedEvents(batch.column(column))
