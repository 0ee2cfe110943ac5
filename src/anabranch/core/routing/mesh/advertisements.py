"""Advertisements: what is published at which origin, the same table everywhere.

Every origin numbers the changes of its advertisements. An *edition* is its life and the number of
changes in it, and a table of one edition is the same wherever it is known. Rules:

1. A change goes to all brokers: whoever has the edition before it takes it and tells all others;
   whoever has it drops it. So it goes over each link once in a direction.
2. Links keep their order and brokers pass changes on in order, so none is missing but where a link
   broke. Neighbours that meet tell each other the editions they have, and whoever has a later one
   sends the whole table. Whoever sees a change beyond the next one asks for it likewise.
3. More advertisements than fit into a frame (a third of it), or than `advertisements_max`, or with
   more than `CONJUNCTIONS_MAX` conjunctions together, are told as one that promises everything:
   that costs traffic, and no event. It is noted when it begins and when it ends.
4. Each advertisement names a tree, the one with the fewest: the first `trees_max` have one each,
   further ones share these. What promises everything uses the first tree, which is always there.
5. What is known of an origin's stream (statistics, as its file has them) travels with its table:
   the whole of it, which everybody gets once in a life of the origin. Nobody on the way reads it.

State: volatile. An origin starts with what it was told in this life.

Prior art: advertisements of PADRES, spec PADRES sections 1 and 2; the editions are ours.
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

#: Conjunctions of all advertisements of an origin that are told one by one. After every change all
#: brokers put all of them in order again, a few µs each.
CONJUNCTIONS_MAX = 8_192
#: What a comparison with a residue counts for.
RESIDUE_COMPARISONS = 8
#: Comparisons that the last conjunction of a step may need beyond the budget.
OVERRUN_MAX = 4_096
#: Lists of advertisements that are looked at in the time of a comparison.
_LISTS_PER_COMPARISON = 16


class ComparisonBudget:
    """The comparisons that are left in one step."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    @property
    def is_gone(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0

    def spend(self, count: int) -> bool:
        """Whether there are so many left; they are gone then."""
        self.left -= count
        return self.left >= 0


class AdvertisedConjunction(NamedTuple):
    """One conjunction of one advertisement."""

    number: int
    tree: int
    conjunction: Conjunction


#: Conjunctions by the bit of their tree; those of a tree begin with the highest number.
_ByTree = dict[int, list[AdvertisedConjunction]]
_NONE: _ByTree = {}


class _List(NamedTuple):
    """Promises that ask for one value of the same attribute: all, and by that value."""

    every: _ByTree
    by_values: dict[ValueSet, _ByTree]


class AdvertisementComparison:
    """Comparing conjunctions with the advertisements of one origin, without trying all of them.

    What is asked of a conjunction is which *trees* it meets: those of the advertisements that some
    event could match together with it. The answer is a number with a bit for each tree. Rules:

    1. An advertisement that asks for one value of an attribute stands in a list with all that ask
       for the same one. A conjunction that asks for one value too meets none of the other lists,
       and they are not looked at. What promises everything is met by everybody, and compared with
       nobody.
    2. Lists are divided by tree. A tree that is known to be met is not tried again; when all are,
       there is nothing left to try.
    3. Numbers of advertisements rise, and lists begin with the highest: whoever has been compared
       with all below a number tries only the others.
    4. A `ComparisonBudget` counts comparisons, those of residues several times. It is checked
       between conjunctions. One that needs more than `OVERRUN_MAX` beyond it counts as meeting
       every tree: that costs traffic, and no event.

    Immutable, made of a table of one edition when it is asked for first.

    Prior art: the equality lists of counting algorithms (Yan, Garcia-Molina 1994), used the other
    way.
    """

    def __init__(self, promises: Iterable[AdvertisedConjunction]) -> None:
        #: The trees that are in use,
        self.trees = 0
        #: and those that everybody meets.
        self._always = 0
        self._lists: dict[str, _List] = {}
        self._others: _ByTree = {}
        for promise in sorted(promises, key=lambda each: -each.number):
            bit = 1 << promise.tree
            self.trees |= bit
            constraints = promise.conjunction.constraints
            if not constraints and not promise.conjunction.residue:
                self._always |= bit
                continue
            single = next((pair for pair in constraints if pair[1].is_single()), None)
            if single is None:
                self._others.setdefault(bit, []).append(promise)
            else:
                among = self._lists.setdefault(single[0], _List({}, {}))
                among.every.setdefault(bit, []).append(promise)
                among.by_values.setdefault(single[1], {}).setdefault(bit, []).append(promise)

    def met(
        self, conjunction: Conjunction, budget: ComparisonBudget, since: int = 0, known: int = 0
    ) -> int:
        """The trees that a conjunction meets; it is known to meet some, and was compared with all
        advertisements below a number."""
        # Lists are only looked at here: many of them take as long as one comparison.
        budget.left -= 1 + len(self._lists) // _LISTS_PER_COMPARISON
        found = known | self._always
        for lists in self._near(conjunction):
            if found == self.trees:
                break
            for bit, promises in lists.items():
                if found & bit:
                    continue
                for promise in promises:
                    if promise.number < since:
                        break
                    is_dear = bool(conjunction.residue or promise.conjunction.residue)
                    budget.left -= RESIDUE_COMPARISONS if is_dear else 1
                    if budget.left < -OVERRUN_MAX:
                        return self.trees
                    if intersects(conjunction, promise.conjunction):
                        found |= bit
                        break
        return found

    def _near(self, conjunction: Conjunction) -> Iterator[_ByTree]:
        """The lists in which there may be something that it meets (rule 1)."""
        yield self._others
        box = dict(conjunction.constraints) if self._lists else {}
        for name, among in self._lists.items():
            values = box.get(name)
            if values is not None and values.is_single():
                yield among.by_values.get(values, _NONE)
            else:
                yield among.every


_EVERYTHING = Advertised(0, "TRUE", 0)


class _Entry:
    """One advertisement, understood."""

    __slots__ = ("conjunctions", "is_everything", "said")

    def __init__(self, said: Advertised, filter: Filter) -> None:
        self.said = said
        self.conjunctions = filter.conjunctions
        self.is_everything = any(not c.constraints and not c.residue for c in self.conjunctions)

    def meets(self, conjunction: Conjunction) -> bool:
        """Whether an event could match both."""
        return self.is_everything or any(intersects(conjunction, c) for c in self.conjunctions)


class AdvertisementTable:
    """The advertisements of one origin, in one edition."""

    __slots__ = ("_comparison", "edition", "entries", "statistics", "trees")

    def __init__(
        self, edition: Version, entries: dict[int, _Entry], statistics: bytes = b""
    ) -> None:
        self.edition = edition
        self.entries = entries
        self.statistics = statistics
        #: The trees that are in use.
        self.trees = frozenset(entry.said.tree for entry in entries.values())
        self._comparison: AdvertisementComparison | None = None

    @property
    def comparison(self) -> AdvertisementComparison:
        """For whoever wants to know what conjunctions meet."""
        if self._comparison is None:
            self._comparison = AdvertisementComparison(
                AdvertisedConjunction(entry.said.number, entry.said.tree, conjunction)
                for entry in self.entries.values()
                for conjunction in entry.conjunctions
            )
        return self._comparison


class Advertisements:
    """The tables that one broker knows. See the rules at the top of this module."""

    def __init__(self, around: MeshState, life: int) -> None:
        self._around = around
        self.tables: dict[str, AdvertisementTable] = {}
        #: Origins whose table changed since somebody looked.
        self.changed: dict[str, None] = {}
        #: What is advertised at the own origin, whether or not it is told one by one, by its text;
        #: how many bytes and conjunctions that is, and how many each tree has.
        self._own: dict[str, _Entry] = {}
        self._own_bytes = 0
        self._own_conjunctions = 0
        self._in_tree = [0] * (around.options.trees_max + 1)
        self._next_number = 1
        #: They are told as one that promises everything, because they are too many or too long.
        self._is_coarse = False
        if around.name in around.edges:
            is_open = not around.options.advertisements
            entries = {0: self._entry("", _EVERYTHING)} if is_open else {}
            self.tables[around.name] = AdvertisementTable(Version(life, 1), entries)

    # -- the own origin ---------------------------------------------------------------------------

    @property
    def edition(self) -> Version:
        """The edition of the own table."""
        return self.tables[self._around.name].edition

    def know(self, statistics: bytes) -> None:
        """What is known of the own stream, before anybody is told anything (rule 5)."""
        if self._around.name in self.tables:
            self.tables[self._around.name].statistics = statistics

    def change(self, added: Iterable[str], removed: Iterable[str]) -> bool:
        """These filters are advertised here from now on, and those not any more; True if the
        table told to others changed."""
        for text in removed:
            entry = self._own.pop(text, None)
            if entry is not None:
                self._own_bytes -= _size_of(text)
                self._own_conjunctions -= len(entry.conjunctions)
                self._in_tree[entry.said.tree] -= 1
        for text in added:
            if text not in self._own:
                said = Advertised(self._next_number, text, self._free_tree(text))
                self._own[text] = entry = self._entry("", said)
                self._next_number += 1
                self._own_bytes += _size_of(text)
                self._own_conjunctions += len(entry.conjunctions)
                self._in_tree[said.tree] += 1
        return self._publish_own()

    def _free_tree(self, text: str) -> int:
        """The tree with the fewest advertisements (rule 4)."""
        trees_max = self._around.options.trees_max
        if text == _EVERYTHING.text or not trees_max:
            return 0
        return min(range(1, trees_max + 1), key=self._in_tree.__getitem__)

    def _publish_own(self) -> bool:
        name = self._around.name
        table = self.tables[name]
        wanted = self._told_own()
        plus = [each for number, each in wanted.items() if number not in table.entries]
        minus = [number for number in table.entries if number not in wanted]
        if not plus and not minus:
            return False
        edition = Version(table.edition.life, table.edition.counter + 1)
        change = Advertise(name, edition, plus, minus)
        self._apply(name, change)
        self._around.tell_all(change)
        return True

    def _told_own(self) -> dict[int, Advertised]:
        """What others are told of the own advertisements (rule 3)."""
        around = self._around
        if not around.options.advertisements:
            return {0: _EVERYTHING}
        too_many = (
            len(self._own) > around.options.advertisements_max
            or self._own_conjunctions > CONJUNCTIONS_MAX
        )
        too_long = 3 * self._own_bytes > around.limits.frame_bytes_max
        if (too_many or too_long) != self._is_coarse:
            self._is_coarse = not self._is_coarse
            around.counters.advertisements_coarse += self._is_coarse
            around.out.append(self._told_coarsely())
        if self._is_coarse:
            return {0: _EVERYTHING}
        return {entry.said.number: entry.said for entry in self._own.values()}

    def _told_coarsely(self) -> Note:
        count = (
            f"{len(self._own)} advertisements of {self._own_conjunctions} conjunctions and"
            f" {self._own_bytes} bytes"
        )
        if not self._is_coarse:
            return Note("info", f"{count} are told to others one by one again")
        bounds = self._around.options.advertisements_max, self._around.limits.frame_bytes_max // 3
        text = (
            f"{count} are more than others can be told ({bounds[0]}, of {CONJUNCTIONS_MAX}"
            f" conjunctions and {bounds[1]} bytes): they are told that everything may be published"
            " here, and all interest comes here; let publishers advertise fewer and wider filters,"
            " or raise advertisements_max"
        )
        return Note("warning", text)

    # -- others -----------------------------------------------------------------------------------

    def link_up(self, peer: str) -> None:
        """A neighbour is there: say what is known (rule 2)."""
        known = {origin: table.edition for origin, table in self.tables.items()}
        self._around.send(peer, Editions(known))

    def compared(self, peer: str, frame: Editions) -> None:
        """A neighbour says what it knows: send it what is later here."""
        for origin, table in self.tables.items():
            if frame.is_question and origin not in frame.known:
                continue
            if table.edition > frame.known.get(origin, NOTHING):
                every = [entry.said for entry in table.entries.values()]
                whole = Advertise(
                    origin, table.edition, every, [], is_whole=True, statistics=table.statistics
                )
                self._around.send(peer, whole)

    def receive(self, peer: str, frame: Advertise) -> None:
        """An origin's advertisements changed."""
        origin, edition = frame.origin, frame.edition
        self._around.check_edge(peer, origin)
        table = self.tables.get(origin)
        known = NOTHING if table is None else table.edition
        if origin == self._around.name:
            if edition > known:
                raise RemoteError(f"{peer!r} tells of advertisements that were never made here")
            return
        if edition <= known:
            return
        if not frame.is_whole and edition != Version(known.life, known.counter + 1):
            self._around.send(peer, Editions({origin: known}, is_question=True))
            return
        self._apply(peer, frame)
        self._around.tell_all(frame, but=peer)

    def _apply(self, peer: str, frame: Advertise) -> None:
        before = self.tables.get(frame.origin)
        entries = {} if frame.is_whole or before is None else dict(before.entries)
        for number in frame.minus:
            entries.pop(number, None)
        for said in frame.plus:
            entries[said.number] = self._entry(peer, said)
        told = frame.statistics if frame.is_whole or before is None else before.statistics
        self.tables[frame.origin] = AdvertisementTable(frame.edition, entries, told)
        self.changed[frame.origin] = None

    def _entry(self, peer: str, said: Advertised) -> _Entry:
        if said.tree > self._around.options.trees_max:
            raise RemoteError(f"{peer!r} names tree {said.tree}, beyond those that there are")
        try:
            return _Entry(said, Filter.parse(said.text, self._around.limits))
        except FilterError as error:
            raise RemoteError(f"{peer!r} advertises what is no filter: {error.message}") from error


def _size_of(text: str) -> int:
    """About what an advertisement takes in a frame."""
    return len(text.encode()) + 16
