"""Search plans: how the slots of a pattern are filled, and the limit on tries per event.

A pattern's tree is expanded into alternatives of slots (`Alternative`), joins become keys
(`JoinTerms`), both form a `Layout`, and a `SearchPlan` orders the slots of a layout.

Every operation of a search is charged to one number: a slot that the event might fill, a lookup in
a list, an event that is examined as a member or a witness, and a match that is found, by its size.
So the cost of an event is bounded by `pattern_tries_max`, regardless of the pattern and of earlier
events. Rules of the limit:

1. One try is about one comparison of an event, or one lookup. If an event has many joins to
   compare, every eight count as one more try (`weight_of`).
2. A search that exceeds the limit is incomplete (`TriesExceeded`), and that is reported.
3. All detectors of a broker share one `StepAllowance`: their tries in one step. The current event
   is finished; the rest waits for the next step. So the allowance affects when matches are found,
   never which.

Rules of joins. `a.symbol = b.symbol AND b.symbol = c.name` forms one *class* of three terms, whose
values are equal in every match that has all three parts. So events are stored under their values
(*keys*), and candidates are looked up instead of searched.

4. A key stands for exactly the values that compare as equal: integers and floats by value, a
   boolean never equals a number. An absent attribute and NaN equal nothing, and have no key (None).
5. Classes belong to an alternative: a join with a part that has no slot in the alternative has no
   effect there, and does not tie others together.
6. An absent part forms no class. Its joins (`AbsenceJoins`) apply to possible witnesses.

State: the tries left for the current event and for the step, and the steps of plans.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final, NamedTuple

from anabranch.model.event import Value
from anabranch.model.pattern.tree import (
    Absent,
    And,
    Join,
    Node,
    Or,
    Part,
    PatternTree,
    Then,
    Times,
    Within,
)

#: Cost of a lookup in a list, in units of one examined entry.
LOOK_UP_TRIES: Final = 3


class TriesExceeded(Exception):  # noqa: N818  # not an error: a limit is reached
    """The search for one event exceeds the limit of tries."""


class MatchesExceeded(Exception):  # noqa: N818  # not an error: a limit is reached
    """One event has more matches than are reported."""


class StepAllowance:
    """Tries left in a step, for all detectors that share it."""

    __slots__ = ("_size", "left")

    def __init__(self, size: int) -> None:
        self._size = size
        self.left = size

    @property
    def is_spent(self) -> bool:
        """Whether the remaining work waits for the next step."""
        return self.left <= 0

    def spend(self, tries: int) -> None:
        self.left -= tries

    def renew(self) -> None:
        """Start another step."""
        self.left = self._size


class TriesLeft:
    """Tries left for an event. Searches decrement `left` themselves in their inner loops."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0

    def spend(self, count: int) -> None:
        """Charge tries; raises `TriesExceeded` if none are left."""
        self.left -= count
        if self.left < 0:
            raise TriesExceeded


def weight_of(compared: int) -> int:
    """Tries to examine something with this many comparisons."""
    return 1 + (compared >> 3)


_OPEN = -1


class Absence(NamedTuple):
    """No event of the part after some slots, and before others or the end of a window."""

    part: int
    after: tuple[int, ...]
    #: Empty: until the end of the window,
    before: tuple[int, ...]
    #: which begins with the first event of these slots
    group: tuple[int, ...]
    #: and has this length.
    window_ns: int


class _Gap(NamedTuple):
    """An absence in a fragment, its slots as bits; `_OPEN` if the window is not known yet."""

    part: int
    after: int
    before: int
    group: int = 0
    window_ns: int = _OPEN

    def moved(self, by: int) -> "_Gap":
        """The same absence with renumbered slots."""
        return self._replace(
            after=self.after << by, before=self.before << by, group=self.group << by
        )


class _Fragment(NamedTuple):
    """One way to match a node: the parts of its slots, and the constraints between these."""

    parts: tuple[int, ...]
    #: Slot → the slots before it, and after it, as bits.
    earlier: tuple[int, ...] = (0,)
    later: tuple[int, ...] = (0,)
    #: The slots within one window, as bits, and its length; inner windows first.
    windows: tuple[tuple[int, int], ...] = ()
    gaps: tuple[_Gap, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternative:
    """One alternative of a pattern's tree: a list of slots, the form that is searched.

    OR is a choice, and a repetition is its item several times over. So a tree expands into
    *alternatives* without OR and repetition. An alternative is a list of *slots*, each to be filled
    with an event of one part, with constraints between them:

    1. `earlier[slot]` are the slots whose events precede that of the slot, `later[slot]` those
       whose events follow it; both are transitive. Slots are numbered so that predecessors have
       smaller numbers. All slots of one part are totally ordered.
    2. The innermost of the `windows` around two slots bounds their distance.
    3. Absences refer to the slots around them. Only the outermost are named: an event after the
       last of them is after all of them.

    Sets of slots are bits of a number, so an order of a hundred slots is a hundred numbers, and
    operations on it are cheap (`first_of`, `last_of`).

    A match of the tree is a way to fill the slots of one alternative with different events. No
    match comes from two alternatives, or in two ways from one: a part occurs once in the tree, so
    the names in a match determine the side of each OR, and the order of events determines where one
    repetition ends and the next begins. `model.pattern.tree` bounds the number of alternatives and
    slots. Immutable.
    """

    #: Slot → its part.
    parts: tuple[int, ...]
    #: Slot → the slots before it, and after it, as bits.
    earlier: tuple[int, ...]
    later: tuple[int, ...]
    #: The slots within one window, as bits, and its length; inner windows first.
    windows: tuple[tuple[int, int], ...]
    #: Absences between slots, and absences that last to the end of a window.
    inner_absences: tuple[Absence, ...]
    final_absences: tuple[Absence, ...]


def alternatives_of(pattern: PatternTree) -> tuple[Alternative, ...]:
    """All alternatives of `pattern`, each once."""
    numbers = {part.name: number for number, part in enumerate(pattern.parts)}
    whole = Within(pattern.root, pattern.window_ns)
    return tuple(_alternative(fragment) for fragment in _fragments(whole, numbers))


def slots_of(bits: int) -> Iterator[int]:
    """The slots (or parts) of these bits, in ascending order."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def bits_of(slots: tuple[int, ...]) -> int:
    bits = 0
    for slot in slots:
        bits |= 1 << slot
    return bits


def first_of(bits: int, later: tuple[int, ...]) -> tuple[int, ...]:
    """The minimal slots among these: no other one precedes them."""
    found = []
    while bits:
        slot = (bits & -bits).bit_length() - 1
        found.append(slot)
        bits &= ~(later[slot] | 1 << slot)
    return tuple(found)


def last_of(bits: int, earlier: tuple[int, ...]) -> tuple[int, ...]:
    """The maximal slots among these: no other one follows them."""
    found = []
    while bits:
        slot = bits.bit_length() - 1
        found.append(slot)
        bits &= ~(earlier[slot] | 1 << slot)
    return tuple(found)


def _fragments(node: Node, numbers: dict[str, int]) -> Iterator[_Fragment]:
    match node:
        case Part(name):
            yield _Fragment((numbers[name],))
        case Or(items):
            for item in items:
                yield from _fragments(item, numbers)
        case And(items):
            for fragments in product(*(tuple(_fragments(item, numbers)) for item in items)):
                yield _side_by_side(fragments)
        case Then(items):
            present = [
                tuple(_fragments(item, numbers)) for item in items if not isinstance(item, Absent)
            ]
            for fragments in product(*present):
                yield _sequence_of(fragments, tuple(_gaps(items, fragments, numbers)))
        case Times(count, item):
            for fragments in product(tuple(_fragments(item, numbers)), repeat=count):
                yield _sequence_of(fragments, ())
        case Within(item, window_ns):
            for fragment in _fragments(item, numbers):
                yield _in_window(fragment, window_ns)


def _side_by_side(fragments: tuple[_Fragment, ...]) -> _Fragment:
    """All slots of all fragments, renumbered."""
    parts: list[int] = []
    earlier: list[int] = []
    later: list[int] = []
    windows: list[tuple[int, int]] = []
    gaps: list[_Gap] = []
    for fragment in fragments:
        by = len(parts)
        parts += fragment.parts
        earlier += [bits << by for bits in fragment.earlier]
        later += [bits << by for bits in fragment.later]
        windows += [(bits << by, length) for bits, length in fragment.windows]
        gaps += [gap.moved(by) for gap in fragment.gaps]
    return _Fragment(tuple(parts), tuple(earlier), tuple(later), tuple(windows), tuple(gaps))


def _sequence_of(fragments: tuple[_Fragment, ...], gaps: tuple[_Gap, ...]) -> _Fragment:
    """The same, with all slots of a fragment before all of the next one."""
    whole = _side_by_side(fragments)
    all_bits = (1 << len(whole.parts)) - 1
    earlier: list[int] = []
    later: list[int] = []
    end = 0
    for fragment in fragments:
        before = (1 << end) - 1
        end += len(fragment.parts)
        behind = all_bits & -(1 << end)
        earlier += [bits | before for bits in whole.earlier[len(earlier) : end]]
        later += [bits | behind for bits in whole.later[len(later) : end]]
    return whole._replace(earlier=tuple(earlier), later=tuple(later), gaps=whole.gaps + gaps)


def _gaps(
    items: tuple[Node | Absent, ...], fragments: tuple[_Fragment, ...], numbers: dict[str, int]
) -> Iterator[_Gap]:
    """The absences of a sequence; `fragments` are its other items."""
    index = end = before = 0
    for item in items:
        if isinstance(item, Absent):
            size = len(fragments[index].parts) if index < len(fragments) else 0
            yield _Gap(numbers[item.part.name], before, ((1 << size) - 1) << end)
        else:
            size = len(fragments[index].parts)
            before = ((1 << size) - 1) << end
            end += size
            index += 1


def _in_window(fragment: _Fragment, window_ns: int) -> _Fragment:
    """The fragment within a window, which ends its open absences."""
    all_bits = (1 << len(fragment.parts)) - 1
    gaps = tuple(
        gap._replace(group=all_bits, window_ns=window_ns)
        if not gap.before and gap.window_ns == _OPEN
        else gap
        for gap in fragment.gaps
    )
    return fragment._replace(windows=(*fragment.windows, (all_bits, window_ns)), gaps=gaps)


def _alternative(fragment: _Fragment) -> Alternative:
    earlier, later = fragment.earlier, fragment.later
    absences = [
        Absence(
            gap.part,
            last_of(gap.after, earlier),
            first_of(gap.before, later),
            first_of(gap.group, later),
            gap.window_ns,
        )
        for gap in fragment.gaps
    ]
    return Alternative(
        fragment.parts,
        earlier,
        later,
        fragment.windows,
        tuple(absence for absence in absences if absence.before),
        tuple(absence for absence in absences if not absence.before),
    )


#: What a value is looked up by. A boolean is put in a tuple, since Python equates it with a number.
KeyValue = str | int | float | tuple[bool]
#: The keys of one event, one for each attribute that occurs in a join.
Keys = tuple[KeyValue | None, ...]
#: A part and the number of an attribute.
TermNumber = tuple[int, int]


def key_of(value: Value | None) -> KeyValue | None:
    """The key of a value; None if it equals nothing."""
    if isinstance(value, bool):
        return (value,)
    return value if value == value else None


def join_attributes(pattern: PatternTree) -> tuple[str, ...]:
    """The attributes that occur in joins, each once."""
    return tuple(
        dict.fromkeys(term.attribute for join in pattern.joins for term in (join.left, join.right))
    )


class JoinTerms(NamedTuple):
    """The joins of a pattern, with parts and attributes as numbers."""

    pairs: tuple[tuple[TermNumber, TermNumber], ...]

    @classmethod
    def of(cls, pattern: PatternTree) -> "JoinTerms":
        parts = {part.name: number for number, part in enumerate(pattern.parts)}
        attributes = {name: number for number, name in enumerate(join_attributes(pattern))}

        def numbered(join: Join) -> tuple[TermNumber, TermNumber]:
            left, right = join.left, join.right
            return (
                (parts[left.part], attributes[left.attribute]),
                (parts[right.part], attributes[right.attribute]),
            )

        return cls(tuple(numbered(join) for join in pattern.joins))


def classes_of(
    terms: JoinTerms, alternative: Alternative
) -> dict[int, tuple[tuple[int, int], ...]]:
    """Part → (class, attribute) of each of its terms; parts without a slot are omitted."""
    present = dict.fromkeys(alternative.parts)
    leader: dict[TermNumber, TermNumber] = {}

    def find(term: TermNumber) -> TermNumber:
        top = leader.setdefault(term, term)
        while leader[top] != top:
            top = leader[top]
        # Path compression: chains stay short.
        while term != top:
            leader[term], term = top, leader[term]
        return top

    for left, right in terms.pairs:
        if left[0] in present and right[0] in present:
            leader[find(left)] = find(right)
    numbers = {top: number for number, top in enumerate(dict.fromkeys(map(find, leader)))}
    found: dict[int, list[tuple[int, int]]] = {part: [] for part in present}
    for term in leader:
        found[term[0]].append((numbers[find(term)], term[1]))
    return {part: tuple(each) for part, each in found.items()}


class AbsenceJoins(NamedTuple):
    """How an event of an absent part is tied to a match."""

    #: Its attribute, and the slots and their attribute whose key it must have.
    outer: tuple[tuple[int, tuple[int, ...], int], ...]
    #: Pairs of its own attributes that must be equal.
    inner: tuple[tuple[int, int], ...]
    #: Tries to determine the keys, and to examine an event; 0 if one key is sufficient.
    weight: int
    event_weight: int


def links_of(terms: JoinTerms, slots: dict[int, tuple[int, ...]], part: int) -> AbsenceJoins:
    """The joins of an absent part with itself, and with parts that have slots."""
    outer: dict[tuple[int, tuple[int, ...], int], None] = {}
    inner: dict[tuple[int, int], None] = {}
    for left, right in terms.pairs:
        if left[0] == right[0] == part:
            inner[left[1], right[1]] = None
            continue
        for (own, attribute), (other, other_attribute) in ((left, right), (right, left)):
            if own == part and other in slots:
                outer[attribute, slots[other], other_attribute] = None
    attributes = {attribute for attribute, _, _ in outer}
    is_plain = len(attributes) < 2 and not inner
    return AbsenceJoins(
        tuple(outer),
        tuple(inner),
        weight_of(sum(len(each) for _, each, _ in outer)),
        0 if is_plain else weight_of(len(attributes) + len(inner)),
    )


@dataclass(frozen=True, slots=True)
class Layout:
    """An alternative with its joins, in the forms that the searches use.

    Everything follows from the alternative and the joins alone: classes of equal attributes per
    slot, the neighbours of each in the order, the windows around it, and the joins of absent parts.
    Its size grows with the number of slots and joins, not with pairs of them. `needs_of` lists the
    lists that a search uses:

    1. A slot is looked up by any of its attributes that occurs in a join; and without a key, if it
       may be filled before any slot that shares a class with it.
    2. An absent part is looked up by any of its joins, or without a key if it has none.
    3. A single slot needs no list: the event that fills it is given.

    Immutable.
    """

    number: int
    alternative: Alternative
    #: Number of slots.
    size: int
    #: Slot → class and attribute of each of its terms; the same for all slots of a part.
    terms: tuple[tuple[tuple[int, int], ...], ...]
    #: Part → class → an attribute of the part that belongs to it.
    keys: dict[int, dict[int, int]]
    #: Class → its slots, as bits.
    class_bits: tuple[int, ...]
    #: Part → its slots, as bits.
    part_bits: dict[int, int]
    #: The slots without predecessors, and those without successors.
    firsts: tuple[int, ...]
    lasts: tuple[int, ...]
    #: Slot → its direct predecessors, and direct successors.
    previous: tuple[tuple[int, ...], ...]
    following: tuple[tuple[int, ...], ...]
    #: The same, as bits. All direct successors of a slot come from one THEN and have the same
    #: predecessors; likewise its direct predecessors.
    previous_bits: tuple[int, ...]
    following_bits: tuple[int, ...]
    #: Slot → other slots, as bits, and the innermost window around them and it; inner ones first.
    scales: tuple[tuple[tuple[int, int], ...], ...]
    #: The same, without the pattern's own window.
    near: tuple[tuple[tuple[int, int], ...], ...]
    #: Length of the pattern's own window, and whether there is no other.
    window_ns: int
    is_flat: bool
    #: Slot → tries to examine an event for it.
    weights: tuple[int, ...]
    inner: tuple[tuple[Absence, AbsenceJoins], ...]
    final: tuple[tuple[Absence, AbsenceJoins], ...]


def layout_of(number: int, alternative: Alternative, terms: JoinTerms) -> Layout:
    parts, earlier, later = alternative.parts, alternative.earlier, alternative.later
    part_bits: dict[int, int] = {}
    for slot, part in enumerate(parts):
        part_bits[part] = part_bits.get(part, 0) | 1 << slot
    of_part = classes_of(terms, alternative)
    slots = {part: tuple(slots_of(bits)) for part, bits in part_bits.items()}
    window_ns = alternative.windows[-1][1]
    scales = tuple(_scales(alternative, slot) for slot in range(len(parts)))
    near = tuple(tuple(each for each in windows if each[1] < window_ns) for windows in scales)
    previous = tuple(last_of(bits, earlier) for bits in earlier)
    following = tuple(first_of(bits, later) for bits in later)
    return Layout(
        number,
        alternative,
        len(parts),
        tuple(of_part[part] for part in parts),
        {part: dict(each) for part, each in of_part.items()},
        _class_bits(of_part, part_bits),
        part_bits,
        tuple(slot for slot, bits in enumerate(earlier) if not bits),
        tuple(slot for slot, bits in enumerate(later) if not bits),
        previous,
        following,
        tuple(map(bits_of, previous)),
        tuple(map(bits_of, following)),
        scales,
        near,
        window_ns,
        not any(near),
        tuple(
            weight_of(len(of_part[part]) + sum(bits.bit_count() for bits, _ in near[slot]))
            for slot, part in enumerate(parts)
        ),
        tuple((each, links_of(terms, slots, each.part)) for each in alternative.inner_absences),
        tuple((each, links_of(terms, slots, each.part)) for each in alternative.final_absences),
    )


def _scales(alternative: Alternative, slot: int) -> tuple[tuple[int, int], ...]:
    own = 1 << slot
    seen = own
    found: dict[int, int] = {}
    for bits, length in alternative.windows:
        if bits & own and bits & ~seen:
            found[length] = found.get(length, 0) | bits & ~seen
            seen |= bits
    return tuple((bits, length) for length, bits in found.items())


def _class_bits(
    of_part: dict[int, tuple[tuple[int, int], ...]], part_bits: dict[int, int]
) -> tuple[int, ...]:
    found: dict[int, int] = {}
    for part, terms in of_part.items():
        for number, _ in terms:
            found[number] = found.get(number, 0) | part_bits[part]
    return tuple(found[number] for number in range(len(found)))


def needs_of(layout: Layout) -> Iterator[tuple[int, int | None]]:
    """The lists that searches use: part and attribute, or None for all entries of a part."""
    for absence, links in (*layout.inner, *layout.final):
        yield from ((absence.part, attribute) for attribute, _, _ in links.outer)
        if not links.outer:
            yield absence.part, None
    if layout.size == 1:
        return
    all_bits = (1 << layout.size) - 1
    for part, own in layout.part_bits.items():
        terms = layout.terms[own.bit_length() - 1]
        yield from ((part, attribute) for _, attribute in terms)
        tied = 0
        for number, _ in terms:
            tied |= layout.class_bits[number]
        if tied != all_bits:
            yield part, None


class PlanStep(NamedTuple):
    """How to fill one slot when those of the previous steps are filled."""

    slot: int
    part: int
    #: Attribute, and the filled slot and its attribute that have the same key.
    links: tuple[tuple[int, int, int], ...]
    #: Attributes that must have a key, and pairs that must have the same.
    fresh: tuple[int, ...]
    equal: tuple[tuple[int, int], ...]
    #: Filled slots before this one, and after it.
    after: tuple[int, ...]
    before: tuple[int, ...]
    #: Filled slots, and how much earlier or later than these this one may be.
    floor: tuple[tuple[int, int], ...]
    ceiling: tuple[tuple[int, int], ...]
    #: Tries to look the slot up, and to examine one entry for it.
    look_up: int
    weight: int


class SearchPlan:
    """The order in which the slots of a layout are filled, and the bounds of each.

    After the slot that an event fills, slots that share a key with filled ones come first, since
    they can be looked up; then those before or after a filled one. A *step* holds everything that
    is known about its slot when the previous steps are done, so that the search computes nothing.
    Rules:

    1. A step is computed when a search reaches it for the first time, and kept. Most events end at
       the first or second step, and so do most plans.
    2. Redundant windows and orders are omitted. All slots of a part are totally ordered, so no step
       has more of them than the pattern has parts, and computing a step takes a few operations for
       each of these and for each of its joins.

    State: the steps so far, and the slots filled after them. Safe to lose.
    """

    __slots__ = (
        "_filled",
        "_joined",
        "_ordered",
        "_slot_of_class",
        "layout",
        "size",
        "steps",
        "weight",
    )

    def __init__(self, layout: Layout, first: int) -> None:
        self.layout = layout
        self.size = layout.size
        #: Maximum tries of a step, relative to one without joins.
        self.weight = max(layout.weights)
        self.steps: list[PlanStep] = []
        #: As bits: filled slots; slots that share a class with these; slots ordered with these.
        self._filled = 0
        self._joined = 0
        self._ordered = 0
        #: Class → the first filled slot that has it, and its attribute.
        self._slot_of_class: dict[int, tuple[int, int]] = {}
        self._add(first)

    def next_step(self) -> PlanStep:
        """Compute the next step; there are fewer steps than slots."""
        remaining = ~self._filled & ((1 << self.size) - 1)
        best = remaining & self._joined
        best = best & self._ordered or best or remaining & self._ordered or remaining
        return self._add((best & -best).bit_length() - 1)

    def _add(self, slot: int) -> PlanStep:
        layout, filled = self.layout, self._filled
        earlier, later = layout.alternative.earlier, layout.alternative.later
        links, fresh, equal = self._keys(slot)
        floor = self._nearest(slot, filled & ~earlier[slot], earlier, is_down=True)
        ceiling = self._nearest(slot, filled & ~later[slot], later, is_down=False)
        after = last_of(filled & earlier[slot], earlier)
        before = first_of(filled & later[slot], later)
        compared = len(links) + len(fresh) + len(equal)
        step = PlanStep(
            slot,
            layout.alternative.parts[slot],
            links,
            fresh,
            equal,
            after,
            before,
            floor,
            ceiling,
            LOOK_UP_TRIES
            * weight_of(len(links) + len(floor) + len(ceiling) + len(after) + len(before)),
            weight_of(compared),
        )
        self.steps.append(step)
        self._filled |= 1 << slot
        self._ordered |= earlier[slot] | later[slot]
        for number, attribute in layout.terms[slot]:
            self._slot_of_class.setdefault(number, (slot, attribute))
            self._joined |= layout.class_bits[number]
        return step

    def _nearest(
        self, slot: int, filled: int, implied: tuple[int, ...], *, is_down: bool
    ) -> tuple[tuple[int, int], ...]:
        """Those of `filled` whose windows bound the slot; the others are redundant."""
        found: list[tuple[int, int]] = []
        for bits, length in self.layout.scales[slot]:
            wanted = bits & filled
            for one in last_of(wanted, implied) if is_down else first_of(wanted, implied):
                found.append((one, length))
                # A longer window around slots beyond it is weaker.
                filled &= ~implied[one]
        return tuple(found)

    def _keys(
        self, slot: int
    ) -> tuple[tuple[tuple[int, int, int], ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
        """The joins of a slot: links to filled slots, keys that it needs, and equal keys."""
        links = []
        fresh: dict[int, int] = {}
        equal = []
        for number, attribute in self.layout.terms[slot]:
            if number in self._slot_of_class:
                links.append((attribute, *self._slot_of_class[number]))
            elif number in fresh:
                equal.append((fresh[number], attribute))
            else:
                fresh[number] = attribute
        return tuple(links), tuple(fresh.values()), tuple(equal)
