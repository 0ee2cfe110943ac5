"""Advertisements: what each origin may publish, replicated to all brokers.

Every origin numbers the changes of its advertisements. An *edition* is its life and the number of
changes in it, and a table of one edition is the same at every broker. Rules:

1. A change goes to all brokers: a broker that has the preceding edition applies it and forwards it
   to all other neighbours; a broker that already has it drops it. So it crosses each link once per
   direction.
2. Links preserve order and brokers forward changes in order, so changes are only missing after a
   link broke. Neighbours that connect exchange their editions, and the one with the later edition
   sends the whole table. A broker that sees a gap before a change requests the table likewise.
3. Advertisements that exceed a third of a frame, or `advertisements_max`, or `CONJUNCTIONS_MAX`
   conjunctions in total, are announced as a single one that matches everything: that costs traffic
   but loses no event. Notes report the start and the end of this state.
4. Each advertisement is assigned to a tree, the one with the fewest: the first `trees_max` get one
   each, further ones share them. An advertisement of everything uses the first tree, which always
   exists.
5. The statistics of an origin's stream, as in its file, travel with its whole table, which every
   broker gets once per life of the origin. Brokers on the path do not decode them.

State: volatile. An origin starts with the advertisements it received in this life.

Prior art: advertisements of PADRES, spec PADRES sections 1 and 2; the editions are our addition.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from anabranch.core.contract import Note
from anabranch.core.routing.mesh.shared import MeshState
from anabranch.model.errors import FilterError, RemoteError
from anabranch.model.filter import Filter
from anabranch.model.mesh_frames import Advertise, Advertised, Editions
from anabranch.model.normal.conjunction import Conjunction, intersects
from anabranch.model.normal.value_set import ValueSet
from anabranch.model.version import NOTHING, Version

#: Conjunctions of an origin's advertisements that are announced singly. After every change all
#: brokers sort all of them again, a few µs each.
CONJUNCTIONS_MAX = 8_192
#: Cost of a comparison with a residue, in comparisons.
RESIDUE_COMPARISONS = 8
#: Comparisons that the last conjunction of a step may need beyond the budget.
OVERRUN_MAX = 4_096
#: Lists of advertisements that can be visited in the time of one comparison.
_LISTS_PER_COMPARISON = 16


class ComparisonBudget:
    """The comparisons left in one step."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    @property
    def is_gone(self) -> bool:
        return self.left <= 0

    def spend(self, count: int) -> bool:
        """Spend comparisons; returns whether enough were left."""
        self.left -= count
        return self.left >= 0


class AdvertisedConjunction(NamedTuple):
    """One conjunction of one advertisement."""

    number: int
    tree: int
    conjunction: Conjunction


#: Conjunctions by the bit of their tree, highest number first.
_ByTree = dict[int, list[AdvertisedConjunction]]
_NONE: _ByTree = {}


class _EqualityLists(NamedTuple):
    """Advertised conjunctions that require a single value of one attribute."""

    all_values: _ByTree
    by_value: dict[ValueSet, _ByTree]


class AdvertisementComparison:
    """Compares conjunctions with the advertisements of one origin, without trying all of them.

    The result for a conjunction is the set of *trees* it meets: those of the advertisements that
    some event could match together with it. It is a number with a bit for each tree. Rules:

    1. An advertisement that requires one value of an attribute is in a list with all that require
       the same value. A conjunction that requires one value too can only meet the list of that
       value; the others are skipped. An advertisement of everything meets all conjunctions without
       a comparison.
    2. Lists are divided by tree. A tree that is known to be met is not tried again; when all are
       met, the comparison ends.
    3. Numbers of advertisements increase, and lists start with the highest: a conjunction that has
       been compared with all below a number tries only the others.
    4. A `ComparisonBudget` counts comparisons, those of residues several times. It is checked
       between conjunctions. A conjunction that exceeds it by more than `OVERRUN_MAX` counts as
       meeting every tree: that costs traffic but loses no event.

    Immutable; created from a table of one edition on first use.

    Prior art: the equality lists of counting algorithms (Yan, Garcia-Molina 1994), used the other
    way.
    """

    def __init__(self, conjunctions: Iterable[AdvertisedConjunction]) -> None:
        #: Bit set of the trees in use.
        self.trees = 0
        #: Bit set of the trees that all conjunctions meet.
        self._always = 0
        self._lists: dict[str, _EqualityLists] = {}
        self._others: _ByTree = {}
        for advertised in sorted(conjunctions, key=lambda advertised: -advertised.number):
            bit = 1 << advertised.tree
            self.trees |= bit
            constraints = advertised.conjunction.constraints
            if not constraints and not advertised.conjunction.residue:
                self._always |= bit
                continue
            single = next((pair for pair in constraints if pair[1].is_single()), None)
            if single is None:
                self._others.setdefault(bit, []).append(advertised)
            else:
                lists = self._lists.setdefault(single[0], _EqualityLists({}, {}))
                lists.all_values.setdefault(bit, []).append(advertised)
                lists.by_value.setdefault(single[1], {}).setdefault(bit, []).append(advertised)

    def trees_met(
        self, conjunction: Conjunction, budget: ComparisonBudget, since: int = 0, known: int = 0
    ) -> int:
        """The trees that a conjunction meets. It is known to meet some, and was compared with all
        advertisements below the number `since`."""
        # Visiting a list is cheap: many of them take as long as one comparison.
        budget.left -= 1 + len(self._lists) // _LISTS_PER_COMPARISON
        found = known | self._always
        for by_tree in self._candidates(conjunction):
            if found == self.trees:
                break
            for bit, conjunctions in by_tree.items():
                if found & bit:
                    continue
                for advertised in conjunctions:
                    if advertised.number < since:
                        break
                    has_residue = bool(conjunction.residue or advertised.conjunction.residue)
                    budget.left -= RESIDUE_COMPARISONS if has_residue else 1
                    if budget.left < -OVERRUN_MAX:
                        return self.trees
                    if intersects(conjunction, advertised.conjunction):
                        found |= bit
                        break
        return found

    def _candidates(self, conjunction: Conjunction) -> Iterator[_ByTree]:
        """The lists that may contain advertisements that a conjunction meets (rule 1)."""
        yield self._others
        box = dict(conjunction.constraints) if self._lists else {}
        for name, lists in self._lists.items():
            values = box.get(name)
            if values is not None and values.is_single():
                yield lists.by_value.get(values, _NONE)
            else:
                yield lists.all_values


_EVERYTHING = Advertised(0, "TRUE", 0)


class AdvertisementEntry:
    """One advertisement, parsed."""

    __slots__ = ("advertised", "conjunctions", "is_everything")

    def __init__(self, advertised: Advertised, filter: Filter) -> None:
        self.advertised = advertised
        self.conjunctions = filter.conjunctions
        self.is_everything = any(not c.constraints and not c.residue for c in self.conjunctions)

    def meets(self, conjunction: Conjunction) -> bool:
        """Whether an event could match both."""
        return self.is_everything or any(intersects(conjunction, c) for c in self.conjunctions)


class AdvertisementTable:
    """The advertisements of one origin, in one edition."""

    __slots__ = ("_comparison", "edition", "entries", "statistics", "trees")

    def __init__(
        self, edition: Version, entries: dict[int, AdvertisementEntry], statistics: bytes = b""
    ) -> None:
        self.edition = edition
        self.entries = entries
        self.statistics = statistics
        #: The trees in use.
        self.trees = frozenset(entry.advertised.tree for entry in entries.values())
        self._comparison: AdvertisementComparison | None = None

    @property
    def comparison(self) -> AdvertisementComparison:
        """Comparison with conjunctions, created on first use."""
        if self._comparison is None:
            self._comparison = AdvertisementComparison(
                AdvertisedConjunction(entry.advertised.number, entry.advertised.tree, conjunction)
                for entry in self.entries.values()
                for conjunction in entry.conjunctions
            )
        return self._comparison


class Advertisements:
    """The tables that one broker has. See the rules at the top of this module."""

    def __init__(self, shared: MeshState, life: int) -> None:
        self._shared = shared
        self.tables: dict[str, AdvertisementTable] = {}
        #: Origins whose table changed.
        self._changed: dict[str, None] = {}
        #: Advertisements of this origin by text, whether or not they are announced singly; their
        #: size in bytes and conjunctions, and the number in each tree.
        self._own: dict[str, AdvertisementEntry] = {}
        self._own_bytes = 0
        self._own_conjunctions = 0
        self._in_tree = [0] * (shared.options.trees_max + 1)
        self._next_number = 1
        #: Whether one advertisement of everything stands for them (rule 3).
        self._is_coarse = False
        if shared.name in shared.edges:
            is_open = not shared.options.advertisements
            entries = {0: self._entry("", _EVERYTHING)} if is_open else {}
            self.tables[shared.name] = AdvertisementTable(Version(life, 1), entries)

    def take_changed(self) -> dict[str, None]:
        """Origins whose table changed since the last call."""
        changed, self._changed = self._changed, {}
        return changed

    # -- this origin ------------------------------------------------------------------------------

    @property
    def edition(self) -> Version:
        """The edition of this origin's table."""
        return self.tables[self._shared.name].edition

    def set_statistics(self, statistics: bytes) -> None:
        """Set the statistics of this stream, before anything is announced (rule 5)."""
        if self._shared.name in self.tables:
            self.tables[self._shared.name].statistics = statistics

    def change(self, added: Iterable[str], removed: Iterable[str]) -> bool:
        """Add and remove advertisements of this origin; returns True if the announced table
        changed."""
        for text in removed:
            entry = self._own.pop(text, None)
            if entry is not None:
                self._own_bytes -= _size_of(text)
                self._own_conjunctions -= len(entry.conjunctions)
                self._in_tree[entry.advertised.tree] -= 1
        for text in added:
            if text not in self._own:
                advertised = Advertised(self._next_number, text, self._free_tree(text))
                self._own[text] = entry = self._entry("", advertised)
                self._next_number += 1
                self._own_bytes += _size_of(text)
                self._own_conjunctions += len(entry.conjunctions)
                self._in_tree[advertised.tree] += 1
        return self._publish_own()

    def _free_tree(self, text: str) -> int:
        """The tree with the fewest advertisements (rule 4)."""
        trees_max = self._shared.options.trees_max
        if text == _EVERYTHING.text or not trees_max:
            return 0
        return min(range(1, trees_max + 1), key=self._in_tree.__getitem__)

    def _publish_own(self) -> bool:
        name = self._shared.name
        table = self.tables[name]
        wanted = self._announced_own()
        plus = [item for number, item in wanted.items() if number not in table.entries]
        minus = [number for number in table.entries if number not in wanted]
        if not plus and not minus:
            return False
        edition = Version(table.edition.life, table.edition.counter + 1)
        change = Advertise(name, edition, plus, minus)
        self._apply(name, change)
        self._shared.send_all(change)
        return True

    def _announced_own(self) -> dict[int, Advertised]:
        """The advertisements of this origin as announced to others (rule 3)."""
        shared = self._shared
        if not shared.options.advertisements:
            return {0: _EVERYTHING}
        too_many = (
            len(self._own) > shared.options.advertisements_max
            or self._own_conjunctions > CONJUNCTIONS_MAX
        )
        too_long = 3 * self._own_bytes > shared.limits.frame_bytes_max
        if (too_many or too_long) != self._is_coarse:
            self._is_coarse = not self._is_coarse
            shared.counters.advertisements_coarse += self._is_coarse
            shared.emit(self._coarse_note())
        if self._is_coarse:
            return {0: _EVERYTHING}
        return {entry.advertised.number: entry.advertised for entry in self._own.values()}

    def _coarse_note(self) -> Note:
        count = (
            f"{len(self._own)} advertisements of {self._own_conjunctions} conjunctions and"
            f" {self._own_bytes} bytes"
        )
        if not self._is_coarse:
            return Note("info", f"{count} are announced one by one again")
        bounds = self._shared.options.advertisements_max, self._shared.limits.frame_bytes_max // 3
        text = (
            f"{count} exceed the limit for announcing them ({bounds[0]}, of {CONJUNCTIONS_MAX}"
            f" conjunctions and {bounds[1]} bytes): announcing that any event may be published"
            " here, which attracts all interest; let publishers advertise fewer and wider filters,"
            " or raise advertisements_max"
        )
        return Note("warning", text)

    # -- other origins ----------------------------------------------------------------------------

    def link_up(self, peer: str) -> None:
        """Send a new neighbour the known editions (rule 2)."""
        known = {origin: table.edition for origin, table in self.tables.items()}
        self._shared.send(peer, Editions(known))

    def receive_editions(self, peer: str, frame: Editions) -> None:
        """Send a neighbour the tables that are later here than its own."""
        for origin, table in self.tables.items():
            if frame.is_question and origin not in frame.known:
                continue
            if table.edition > frame.known.get(origin, NOTHING):
                advertised = [entry.advertised for entry in table.entries.values()]
                whole = Advertise(
                    origin,
                    table.edition,
                    advertised,
                    [],
                    is_whole=True,
                    statistics=table.statistics,
                )
                self._shared.send(peer, whole)

    def receive(self, peer: str, frame: Advertise) -> None:
        """Handle a change of an origin's advertisements."""
        origin, edition = frame.origin, frame.edition
        self._shared.check_edge(peer, origin)
        table = self.tables.get(origin)
        known = NOTHING if table is None else table.edition
        if origin == self._shared.name:
            if edition > known:
                raise RemoteError(f"{peer!r} sends advertisements that this origin never made")
            return
        if edition <= known:
            return
        if not frame.is_whole and edition != Version(known.life, known.counter + 1):
            self._shared.send(peer, Editions({origin: known}, is_question=True))
            return
        self._apply(peer, frame)
        self._shared.send_all(frame, but=peer)

    def _apply(self, peer: str, frame: Advertise) -> None:
        before = self.tables.get(frame.origin)
        entries = {} if frame.is_whole or before is None else dict(before.entries)
        for number in frame.minus:
            entries.pop(number, None)
        for advertised in frame.plus:
            entries[advertised.number] = self._entry(peer, advertised)
        statistics = frame.statistics if frame.is_whole or before is None else before.statistics
        self.tables[frame.origin] = AdvertisementTable(frame.edition, entries, statistics)
        self._changed[frame.origin] = None

    def _entry(self, peer: str, advertised: Advertised) -> AdvertisementEntry:
        if advertised.tree > self._shared.options.trees_max:
            raise RemoteError(f"{peer!r} advertises tree {advertised.tree}, beyond trees_max")
        try:
            filter = Filter.parse(advertised.text, self._shared.limits)
        except FilterError as error:
            raise RemoteError(f"{peer!r} advertises an invalid filter: {error.message}") from error
        return AdvertisementEntry(advertised, filter)


def _size_of(text: str) -> int:
    """Estimate of the encoded size of an advertisement."""
    return len(text.encode()) + 16
