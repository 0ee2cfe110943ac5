"""The matching index: finds the filters, among millions, that an event matches.

    index = MatchIndex()
    index.add("cheap-ibm", "symbol = 'IBM' AND price < 50")
    index.match({"symbol": "IBM", "price": 49.5})        # ["cheap-ibm"]

An event is an `Event`, a mapping of names to values, or an `Envelope`, which is matched without
decoding its attributes; invalid attributes raise a `RemoteError`.

Rules

1. Results are exact for the whole language. If an engine cannot decide a condition (a residue, a
   long text bound), it narrows down the candidates, and the filter itself is evaluated.
2. An id is added once and removed once; adding it twice or removing an unknown one is an error and
   changes nothing. A failed `add` changes nothing either.
3. Single writer, any number of readers: every operation holds one lock, so that it sees an update
   completely or not at all, from any thread. To match in parallel, `save` the index and `load` it
   in other processes.
4. The order of ids in a result is not specified, but equal sequences of calls give equal results.
5. Losing an index only costs adding the filters again; `save` writes a copy for other readers.
6. While the kernels are deferred (`kernel_state`), an index with the engine `auto` starts with
   numpy. The first operation after they are loaded moves it to numba: all filters are added again,
   in order.
"""

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import numpy as np

from anabranch.matching import kernel_state, snapshot
from anabranch.matching.engine import (
    Engine,
    EngineName,
    Found,
    Integers,
    engine_over,
    joined,
    make_engine,
    memory_of,
    numba_is_here,
)
from anabranch.matching.events import (
    Asked,
    Events,
    attributes_of,
    bodies_of,
    cut,
    encoded,
    own_attributes,
)
from anabranch.matching.groups import Groups
from anabranch.matching.identities import (
    Identities,
    Matches,
    StoredIdentities,
    stored_ids,
    table_of_raw,
)
from anabranch.matching.kernels.layout import DOUBT, ENTRY_OWNER, MANY
from anabranch.matching.residual_checks import Check, Doubts, left_of
from anabranch.matching.schema import Schema, Spelling
from anabranch.matching.snapshot import Snapshot, SnapshotError, check_id
from anabranch.model.encoding import Envelope
from anabranch.model.errors import (
    DuplicateIdError,
    FilterError,
    FilterLimitError,
    LocalError,
    UnknownIdError,
)
from anabranch.model.event import Attributes
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.normal.plain_normal_form import Demands, read_plain

#: What is asked about without further ado.
_AS_IT_IS = (dict, Envelope)

#: What a subscription says: its conjunctions, or the demands of a plain one.
_Said = TypeVar("_Said")


class _Added(NamedTuple):
    """What was added under an id."""

    #: A filter, or what a plain text demands.
    source: Filter | tuple[Demands, ...]
    destination: Hashable
    #: The only conjunction that counts; None: all of them do.
    place: int | None


class MatchIndex:
    """Subscriptions by id; events in, ids out. See the rules at the top of this module."""

    def __init__(self, engine: EngineName = "auto", limits: Limits = DEFAULT_LIMITS) -> None:
        is_early = engine == "auto" and numba_is_here() and kernel_state.are_deferred()
        self._assemble(make_engine("numpy" if is_early else engine), limits, is_early=is_early)

    def _assemble(self, engine: Engine, limits: Limits, *, is_early: bool = False) -> None:
        self._limits = limits
        self._engine = engine
        self._schema = Schema(
            engine.open_axis,
            limits.index_attributes_max,
            engine.learn_code,
            engine.learn_pattern,
            engine.learn_name,
        )
        self._identities: Identities = Identities(engine.name_by)
        self._doubts = Doubts()
        self._groups = Groups()
        self._entry_count = 0
        self._is_snapshot = False
        #: What was added before the kernels were loaded, by id (rule 6); None: nothing is to move.
        self._early: dict[Hashable, _Added] | None = {} if is_early else None
        self._lock = threading.Lock()

    def _move(self) -> None:
        """Move to the kernels, unless they are still deferred (rule 6)."""
        if self._early is None or kernel_state.are_deferred():
            return
        other = MatchIndex("numba", self._limits)
        for id, added in self._early.items():
            # There is room: both engines count attributes and conjunctions alike.
            other._put(id, added)
        self._early = None
        self._engine, self._schema = other._engine, other._schema
        self._identities = other._identities
        self._doubts, self._groups = other._doubts, other._groups
        assert self._entry_count == other._entry_count

    # -- subscriptions ------------------------------------------------------------------------

    def add(
        self,
        id: Hashable,
        filter: Filter | str,
        *,
        destination: Hashable = None,
        place: int | None = None,
    ) -> None:
        """Add a subscription. `destination` is what `destinations` answers with; `place` takes
        only that conjunction of the filter."""
        source = self._source_of(filter) if place is None else self._filter_of(filter)
        hash(destination)  # what cannot be one is refused before anything has changed
        with self._lock:
            self._move()
            self._check_writable()
            if id in self._identities.entries:
                raise DuplicateIdError(f"subscription {id!r} is in the index already")
            added = _Added(source, destination, place)
            self._put(id, added)
            if self._early is not None:
                self._early[id] = added

    def add_many(self, subscriptions: Iterable[tuple[Hashable, Filter | str]]) -> None:
        """Add one after the other; an error leaves those before it in the index."""
        for identity, filter in subscriptions:
            self.add(identity, filter)

    def remove(self, id: Hashable) -> None:
        with self._lock:
            self._move()
            self._check_writable()
            if id not in self._identities.entries:
                raise UnknownIdError(f"subscription {id!r} is not in the index")
            if self._early is not None:
                del self._early[id]
            first = self._identities.drop(id)
            if first >= 0:
                self._remove(first)

    def __len__(self) -> int:
        return len(self._identities)

    def __contains__(self, id: object) -> bool:
        return id in self._identities.entries

    def _put(self, id: Hashable, added: _Added) -> None:
        """Add the entries of a new subscription, and its id."""
        source, destination, place = added
        if isinstance(source, Filter):
            conjunctions = source.conjunctions
            if place is not None:
                conjunctions = (_at(conjunctions, place),)
            first = self._insert(conjunctions, destination)
        else:
            first = self._insert_plain(source, destination)
        self._identities.put(id, first)

    def _source_of(self, filter: Filter | str) -> Filter | tuple[Demands, ...]:
        """A filter whose normal form is known, or what a plain text demands."""
        if isinstance(filter, str):
            plain = read_plain(filter, self._limits)
            if plain is not None:
                return plain
        return self._filter_of(filter)

    def _filter_of(self, filter: Filter | str) -> Filter:
        if isinstance(filter, str):
            filter = Filter.parse(filter, self._limits)
        if not isinstance(filter, Filter):
            raise FilterError(f"expected a Filter or its text, not {filter!r}")
        _ = filter.conjunctions  # found now, so that a filter without one changes nothing
        return filter

    def _check_writable(self) -> None:
        if self._is_snapshot:
            raise LocalError("this index is a snapshot of another one and cannot be changed")

    def _insert(self, conjunctions: tuple[Conjunction, ...], destination: Hashable) -> int:
        """Add the entries of a new subscription; returns the first, or -1 if it has none."""
        self._check_room(len(conjunctions))
        spelled = self._spell(self._schema.spell, conjunctions)
        group = self._groups.join(destination)
        many = MANY if len(spelled) > 1 else 0
        first = -1
        for spelling in spelled:
            left = left_of(spelling)
            entry = self._engine.insert(spelling, many | (DOUBT if left else 0), first, group)
            if left is not None:
                self._doubts.put(entry, left)
            first = entry if first < 0 else first
        self._entry_count += len(spelled)
        return first

    def _insert_plain(self, plain: tuple[Demands, ...], destination: Hashable) -> int:
        """Add the entries of a plain subscription, none of which is in doubt; returns the first."""
        self._check_room(len(plain))
        spelled = self._spell(self._schema.spell_plain, plain)
        group = self._groups.join(destination)
        many = MANY if len(spelled) > 1 else 0
        first = self._engine.insert(spelled[0], many, -1, group)
        for spelling in spelled[1:]:
            self._engine.insert(spelling, many, first, group)
        self._entry_count += len(spelled)
        return first

    def _check_room(self, conjunctions: int) -> None:
        if self._entry_count + conjunctions > self._limits.index_conjunctions_max:
            raise FilterLimitError(
                f"the index holds {self._entry_count} conjunctions;"
                f" its limit is {self._limits.index_conjunctions_max}"
            )

    def _spell(self, spell: Callable[[_Said], Spelling], parts: Sequence[_Said]) -> list[Spelling]:
        """The parts as words; where names run out, unused ones are given back first."""
        self._schema.fresh.clear()
        try:
            spelled = [spell(part) for part in parts]
        except FilterLimitError:
            self._unspell()
            self._sweep()
            try:
                spelled = [spell(part) for part in parts]
            except FilterLimitError:
                self._unspell()
                raise
        if self._schema.fresh:
            self._engine.reserve_codes(len(self._schema.texts))
        return spelled

    def _unspell(self) -> None:
        """Give back the codes of a filter that could not be spelled to its end."""
        self._engine.drop_codes(self._schema.fresh)
        for code in self._schema.fresh:
            self._schema.free_code(code)
        self._schema.fresh.clear()

    def _remove(self, first: int) -> None:
        self._groups.leave(self._engine.group_of(first))
        for entry in self._engine.chain(first):
            self._engine.remove(entry)
            self._doubts.drop(entry)
            self._entry_count -= 1
        for code in self._engine.freed_codes():
            self._schema.free_code(code)

    def _sweep(self) -> None:
        """Release attributes that no filter names any longer."""
        for attribute, space in self._schema.free_unused(self._engine.axis_is_used):
            self._engine.close_axis(attribute, space)
        self._engine.rewrite_names(self._schema.names)

    # -- matching -----------------------------------------------------------------------------

    def match(self, event: Asked) -> list[Hashable]:
        """The ids of all subscriptions whose filter the event satisfies."""
        asked = event if type(event) in _AS_IT_IS else own_attributes(event)
        with self._lock:
            if self._early is not None:
                self._move()
            owner_count, doubt_count = self._engine.search_one(asked)  # type: ignore[arg-type]
            if doubt_count == 0:
                known = self._engine.ids(owner_count)
                if known is not None:
                    return known  # type: ignore[return-value]
            owners = self._engine.owners(owner_count)
            if doubt_count:
                doubts = self._engine.doubts(doubt_count)
                owners = self._decided(owners, doubts, attributes_of(event))
            ids: list[Hashable] = self._identities.of(owners, self._engine.named).tolist()
        return ids

    @property
    def has_doubts(self) -> bool:
        """Whether there is a filter that evaluation has the last word on."""
        return bool(self._doubts)

    def narrow(self, event: Asked) -> tuple[list[Hashable], list[tuple[Hashable, Check]]]:
        """`match` without its last step: ids that match for sure, and those in doubt, each with the
        check that decides it on the attributes of the event. An id in doubt may occur more than
        once. The checks do not change when the index does."""
        asked = event if type(event) in _AS_IT_IS else own_attributes(event)
        with self._lock:
            if self._early is not None:
                self._move()
            owner_count, doubt_count = self._engine.search_one(asked)  # type: ignore[arg-type]
            owners = self._engine.owners(owner_count).copy()
            doubts = self._engine.doubts(doubt_count).tolist()
            sure = set(owners.tolist())
            decided_by = [(self._engine.owner_of(entry), entry) for entry in doubts]
            left = [(owner, self._doubts.check(e)) for owner, e in decided_by if owner not in sure]
            named = self._engine.named
            ids: list[Hashable] = self._identities.of(owners, named).tolist()
            open_owners = np.array([owner for owner, _ in left], np.int32)
            open_ids: list[Hashable] = self._identities.of(open_owners, named).tolist()
        return ids, [(id, check) for id, (_, check) in zip(open_ids, left, strict=True)]

    def match_batch(self, events: Sequence[Asked] | Events) -> Matches:
        """`match` for many events at once: a sequence with a list of ids for each."""
        batch = encoded(events)
        with self._lock:
            if self._early is not None:
                self._move()
            found = self._engine.search(batch)
            if len(found.doubts):
                found = self._settle(batch, found)
            return Matches(self._identities.of(found.owners, self._engine.named), found.offsets)

    def encode(self, events: Sequence[Asked]) -> Events:
        """The events as `match_batch` wants them, for matching the same ones repeatedly."""
        return encoded(events)

    def destinations(self, event: Asked) -> set[Hashable]:
        """The destinations of all subscriptions the event satisfies; stops when all are found."""
        asked = event if isinstance(event, Envelope) else own_attributes(event)
        with self._lock:
            if self._early is not None:
                self._move()
            hits, open_bits = self._groups.unhit()
            doubts = self._engine.reach(asked, hits, open_bits).tolist()
            attributes = attributes_of(event) if doubts else {}
            for entry in doubts:
                group = self._engine.group_of(entry)
                if not hits[group]:
                    hits[group] = self._doubts.decide(entry, attributes)
            return self._groups.names(hits)

    def destinations_within(
        self, event: Asked, size: int, work_max: int
    ) -> tuple[set[Hashable], int, bool]:
        """`destinations` with a limit on the cost of residual checks; filters beyond it count as
        satisfied. Also the cost, and whether the limit was reached. `size` is that of the event in
        bytes."""
        asked = event if isinstance(event, Envelope) else own_attributes(event)
        with self._lock:
            if self._early is not None:
                self._move()
            hits, open_bits = self._groups.unhit()
            doubts = self._engine.reach(asked, hits, open_bits).tolist()
            attributes = attributes_of(event) if doubts else {}
            work, is_short = 0, False
            for entry in doubts:
                group = self._engine.group_of(entry)
                if hits[group]:
                    continue
                check = self._doubts.check(entry)
                if work + check.work(size) > work_max:
                    hits[group] = is_short = True
                    continue
                work += check.work(size)
                hits[group] = check(attributes)
            return self._groups.names(hits), work, is_short

    def match_bodies(
        self, bodies: Sequence[bytes], limits: Limits
    ) -> list[Sequence[Hashable] | None]:
        """`match` for encoded events; None for one that has to be decoded: it is not plain, or it
        limits its life or its way, or a filter of a rare form may match."""
        with self._lock:
            if self._early is not None:
                self._move()
            owners, ends = self._engine.search_bodies(bodies_of(bodies, limits))
            return cut(self._identities.of(owners, self._engine.named).tolist(), ends)

    def destinations_of(
        self, bodies: Sequence[bytes], limits: Limits
    ) -> list[frozenset[Hashable] | None]:
        """`destinations` for encoded events; None for one that has to be decoded, likewise."""
        with self._lock:
            if self._early is not None:
                self._move()
            named, asked = self._groups.named, self._groups.in_use()
            if asked is None:
                return [None] * len(bodies)
            reached = self._engine.reach_many(bodies_of(bodies, limits), asked)
            return [None if each < 0 else named(each) for each in reached]

    def _decided(self, owners: Integers, doubts: Integers, attributes: Attributes) -> Integers:
        """The owners, and those of doubtful entries that do match."""
        known = set(owners.tolist())
        more = []
        for entry in doubts.tolist():
            owner = self._engine.owner_of(entry)
            if owner not in known and self._doubts.decide(entry, attributes):
                known.add(owner)
                more.append(owner)
        return np.concatenate((owners, np.array(more, np.int32)))

    def _settle(self, events: Events, found: Found) -> Found:
        """The same find with its doubts decided."""
        parts = []
        offsets = np.zeros_like(found.offsets)
        for i, attributes in enumerate(events.attributes):
            owners = found.owners[found.offsets[i] : found.offsets[i + 1]]
            doubts = found.doubts[found.doubt_offsets[i] : found.doubt_offsets[i + 1]]
            if len(doubts):
                owners = self._decided(owners, doubts, attributes)
            parts.append(owners)
            offsets[i + 1] = offsets[i] + len(owners)
        return Found(joined(parts), offsets, found.doubts[:0], offsets)

    # -- the index itself ---------------------------------------------------------------------

    @property
    def engine(self) -> str:
        return self._engine.name

    @property
    def nbytes(self) -> int:
        """Bytes the index holds: arrays in use, and the maps of ids (not the ids themselves)."""
        return self._engine.nbytes + self._identities.nbytes

    def save(self, path: str | PathLike[str]) -> None:
        """Write a snapshot, a file that `load` can match with; needs the numba engine."""
        with self._lock:
            self._move()
            memory = memory_of(self._engine)
            if memory is None:
                raise SnapshotError("only an index with the numba engine can be saved")
            snapshot.write(Path(path), memory, self._snapshot(len(memory.used()[ENTRY_OWNER])))

    def _snapshot(self, entries: int) -> Snapshot:
        ids = ((check_id(i), entry) for i, entry in self._identities.entries.items())
        groups = self._groups.members()
        numbers = [(check_id(name), number) for name, number, _ in groups]
        left = list(self._doubts.written())
        return Snapshot(
            self._schema.names,
            stored_ids(ids, entries),
            np.array([entry for entry, _ in left], np.int32),
            table_of_raw(raw for _, raw in left),
            stored_ids(numbers, max((number for _, number in numbers), default=-1) + 1),
            np.array([members for _, _, members in groups], np.int64),
        )

    @classmethod
    def load(cls, path: str | PathLike[str], *, verify: bool = True) -> Self:
        """The index that was saved there, for matching only; its arrays are memory-mapped.

        `verify` compares every part with its checksum first; leave it out where start-up counts
        and the file is known to be whole.
        """
        memory, stored = snapshot.read(Path(path), verify)
        index = cls.__new__(cls)
        index._assemble(engine_over(memory), DEFAULT_LIMITS)
        index._schema.restore(stored.names)
        index._engine.rewrite_names(stored.names)
        index._identities = StoredIdentities(index._engine.name_by, stored.ids)
        index._doubts.restore(stored.doubtful, stored.left)
        for place, members in enumerate(stored.members.tolist()):
            name, number = stored.destinations.of_number(place), stored.destinations.firsts[place]
            index._groups.restore(name, int(number), members)
        index._entry_count = len(stored.ids.by_entry)
        index._is_snapshot = True
        return index


def _at(conjunctions: tuple[Conjunction, ...], place: int) -> Conjunction:
    if not 0 <= place < len(conjunctions):
        raise LocalError(f"conjunction {place} is out of range; the filter has {len(conjunctions)}")
    return conjunctions[place]
