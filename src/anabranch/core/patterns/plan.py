"""How much is looked at for one event, and the end of it.

Whatever a search looks at is taken from one number: a slot that the event might fill, a place of a
shelf that is looked up, an event that might belong there or might be a witness, and a match that is
found, by its size. So what an event costs is bounded by `pattern_tries_max`, whatever the pattern
is and whatever came before. Rules:

1. One try is about one comparison of an event, or one look-up. Where much has to be compared for
   one, because it has many joins, every eight count as one more (`weight_of`).
2. Who spends more than is left has not finished (`TriesExceeded`), and somebody is told.
3. All detectors of a broker share one `StepAllowance`: what they may try in one step. The current
   event is finished; the rest waits for the next step. So it changes when, and never what.

State: what is left for the event that is looked at, and for the step.
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

#: What it counts to look up a place of a shelf, in the time that it takes to look at one entry.
LOOK_UP_TRIES: Final = 3


class TriesExceeded(Exception):  # noqa: N818  # nothing is wrong, but a bound is reached
    """More would have to be tried for one event than is allowed."""


class MatchesExceeded(Exception):  # noqa: N818  # nothing is wrong, but a bound is reached
    """More was found for one event than is reported."""


class StepAllowance:
    """What is left of a step, in tries, for all detectors that share it."""

    __slots__ = ("_size", "left")

    def __init__(self, size: int) -> None:
        self._size = size
        self.left = size

    @property
    def is_spent(self) -> bool:
        """Whether the rest waits for the next step."""
        return self.left <= 0

    def renew(self) -> None:
        """Another step begins."""
        self.left = self._size


class TriesLeft:
    """What is left to be tried. Searches count it down themselves where that is their loop."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0

    def spend(self, count: int) -> None:
        """So many things are about to be looked at."""
        self.left -= count
        if self.left < 0:
            raise TriesExceeded


def weight_of(compared: int) -> int:
    """How many tries it is to look at something with so many comparisons."""
    return 1 + (compared >> 3)


_OPEN = -1


class Absence(NamedTuple):
    """No event of the part after some slots, and before others or the end of a window."""

    part: int
    after: tuple[int, ...]
    #: Empty: until the end of the window,
    before: tuple[int, ...]
    #: which begins with the first event of these
    group: tuple[int, ...]
    #: and is so long.
    window_ns: int


class _Gap(NamedTuple):
    """An absence in a fragment, its slots as bits; `_OPEN` where the window is not known yet."""

    part: int
    after: int
    before: int
    group: int = 0
    window_ns: int = _OPEN

    def moved(self, by: int) -> "_Gap":
        """The same, its slots renumbered."""
        return self._replace(
            after=self.after << by, before=self.before << by, group=self.group << by
        )


class _Fragment(NamedTuple):
    """One way to match a node: the parts of its slots, and what holds between these."""

    parts: tuple[int, ...]
    #: Slot → the slots before it, and behind it, as bits.
    earlier: tuple[int, ...] = (0,)
    later: tuple[int, ...] = (0,)
    #: The slots within one window, as bits, and how long it is; inner ones first.
    windows: tuple[tuple[int, int], ...] = ()
    gaps: tuple[_Gap, ...] = ()


@dataclass(frozen=True, slots=True)
class Alternative:
    """A pattern's tree as alternatives of slots: the form that is searched.

    OR is a choice, and a repetition is its item several times over. So a tree stands for a number
    of *alternatives*, none of which has an OR or a repetition in it any more. An alternative is a
    list of *slots*, each to be filled with an event of one part, and what must hold between them:

    1. `earlier[slot]` are the slots whose events are before the slot's own, `later[slot]` those
       behind; both are complete, not only the neighbours. Slots are numbered so that those before
       one have smaller numbers. All slots of one part are in order, one behind the other.
    2. The innermost of the `windows` around two slots bounds how far apart they are.
    3. Absences are about the slots around them. Of these the outermost are named: what is after the
       last of them is after all.

    Sets of slots are the bits of a number, so that an order of a hundred slots is a hundred
    numbers, and what follows from it is a few operations for each (`first_of`, `last_of`).

    A match of the tree is a way to fill the slots of one alternative, with different events. No
    match comes from two alternatives, or in two ways from one: a part stands in the tree once, so
    the names in a match tell which side of an OR was taken, and the order of events where one
    repetition ends and the next begins. `model.pattern.tree` bounds how many alternatives and slots
    there are. Nothing changes here after it was made.
    """

    #: Slot → its part.
    parts: tuple[int, ...]
    #: Slot → the slots before it, and behind it, as bits.
    earlier: tuple[int, ...]
    later: tuple[int, ...]
    #: The slots within one window, as bits, and how long it is; inner ones first.
    windows: tuple[tuple[int, int], ...]
    #: Those between slots, and those that last to the end of a window.
    inner_absences: tuple[Absence, ...]
    final_absences: tuple[Absence, ...]


def alternatives_of(pattern: PatternTree) -> tuple[Alternative, ...]:
    """All alternatives of `pattern`, each once."""
    numbers = {part.name: number for number, part in enumerate(pattern.parts)}
    whole = Within(pattern.root, pattern.window_ns)
    return tuple(_alternative(fragment) for fragment in _fragments(whole, numbers))


def slots_of(bits: int) -> Iterator[int]:
    """The slots (or parts) that these bits are, from the left."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def bits_of(slots: tuple[int, ...]) -> int:
    """Some slots as bits."""
    bits = 0
    for slot in slots:
        bits |= 1 << slot
    return bits


def first_of(bits: int, later: tuple[int, ...]) -> tuple[int, ...]:
    """Those of some slots that none of the others is before."""
    found = []
    while bits:
        slot = (bits & -bits).bit_length() - 1
        found.append(slot)
        bits &= ~(later[slot] | 1 << slot)
    return tuple(found)


def last_of(bits: int, earlier: tuple[int, ...]) -> tuple[int, ...]:
    """Those of some slots that none of the others is behind."""
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
            for some in product(*(tuple(_fragments(item, numbers)) for item in items)):
                yield _beside(some)
        case Then(items):
            present = [
                tuple(_fragments(item, numbers)) for item in items if not isinstance(item, Absent)
            ]
            for some in product(*present):
                yield _behind(some, tuple(_gaps(items, some, numbers)))
        case Times(count, item):
            for some in product(tuple(_fragments(item, numbers)), repeat=count):
                yield _behind(some, ())
        case Within(item, window_ns):
            for fragment in _fragments(item, numbers):
                yield _closed(fragment, window_ns)


def _beside(some: tuple[_Fragment, ...]) -> _Fragment:
    """All slots of all fragments, renumbered."""
    parts: list[int] = []
    earlier: list[int] = []
    later: list[int] = []
    windows: list[tuple[int, int]] = []
    gaps: list[_Gap] = []
    for fragment in some:
        by = len(parts)
        parts += fragment.parts
        earlier += [bits << by for bits in fragment.earlier]
        later += [bits << by for bits in fragment.later]
        windows += [(bits << by, length) for bits, length in fragment.windows]
        gaps += [gap.moved(by) for gap in fragment.gaps]
    return _Fragment(tuple(parts), tuple(earlier), tuple(later), tuple(windows), tuple(gaps))


def _behind(some: tuple[_Fragment, ...], gaps: tuple[_Gap, ...]) -> _Fragment:
    """The same, and all slots of a fragment are before all of the next one."""
    whole = _beside(some)
    every = (1 << len(whole.parts)) - 1
    earlier: list[int] = []
    later: list[int] = []
    end = 0
    for fragment in some:
        before = (1 << end) - 1
        end += len(fragment.parts)
        behind = every & -(1 << end)
        earlier += [bits | before for bits in whole.earlier[len(earlier) : end]]
        later += [bits | behind for bits in whole.later[len(later) : end]]
    return whole._replace(earlier=tuple(earlier), later=tuple(later), gaps=whole.gaps + gaps)


def _gaps(
    items: tuple[Node | Absent, ...], some: tuple[_Fragment, ...], numbers: dict[str, int]
) -> Iterator[_Gap]:
    """The absences of a sequence, of which `some` are the other items."""
    place = end = before = 0
    for item in items:
        if isinstance(item, Absent):
            size = len(some[place].parts) if place < len(some) else 0
            yield _Gap(numbers[item.part.name], before, ((1 << size) - 1) << end)
        else:
            size = len(some[place].parts)
            before = ((1 << size) - 1) << end
            end += size
            place += 1


def _closed(fragment: _Fragment, window_ns: int) -> _Fragment:
    """The fragment within a window, with which its open absences end."""
    every = (1 << len(fragment.parts)) - 1
    gaps = tuple(
        gap._replace(group=every, window_ns=window_ns)
        if not gap.before and gap.window_ns == _OPEN
        else gap
        for gap in fragment.gaps
    )
    return fragment._replace(windows=(*fragment.windows, (every, window_ns)), gaps=gaps)


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


# Equality joins as keys: which events can stand in one match, found by looking them up.
#
# `a.symbol = b.symbol AND b.symbol = c.name` makes one *class* of three terms, whose values are
# equal in every match that has all three parts. So an event is kept under its values (*keys*), and
# what belongs to it is looked up instead of searched. Rules:
#
# 1. A key stands for exactly the values that compare as equal: integers and floats by value, a
#    truth never with a number. An absent attribute and NaN equal nothing, and have no key (None).
# 2. Classes belong to an alternative: a join with a part that the alternative has no slot of says
#    nothing there, and does not tie others together.
# 3. An absent part makes no class. Its joins (`AbsenceJoins`) apply when an event might witness it.


#: What a value is looked up by. A truth is put in a tuple, since Python takes it for a number.
KeyValue = str | int | float | tuple[bool]
#: The keys of one event, one for each attribute that some join names.
Keys = tuple[KeyValue | None, ...]
#: A part and the number of an attribute.
TermNumber = tuple[int, int]


def key_of(value: Value | None) -> KeyValue | None:
    """The key of a value; None if it equals nothing."""
    if isinstance(value, bool):
        return (value,)
    return value if value == value else None


def join_attributes(pattern: PatternTree) -> tuple[str, ...]:
    """The attributes that joins name, each once."""
    return tuple(
        dict.fromkeys(term.attribute for join in pattern.joins for term in (join.left, join.right))
    )


class JoinTerms(NamedTuple):
    """The joins of a pattern, parts and attributes as numbers."""

    pairs: tuple[tuple[TermNumber, TermNumber], ...]

    @classmethod
    def of(cls, pattern: PatternTree) -> "JoinTerms":
        """The joins of `pattern`."""
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
    """Part → (class, attribute) of each of its terms; parts without a slot are left out."""
    present = dict.fromkeys(alternative.parts)
    leader: dict[TermNumber, TermNumber] = {}

    def find(term: TermNumber) -> TermNumber:
        top = leader.setdefault(term, term)
        while leader[top] != top:
            top = leader[top]
        # Whoever was passed on the way knows the top from now on: chains stay short.
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

    #: Its attribute, and the slots and their attribute whose key it has to have.
    outer: tuple[tuple[int, tuple[int, ...], int], ...]
    #: Attributes of its own that have to be equal.
    inner: tuple[tuple[int, int], ...]
    #: How many tries it is to find out the keys; and to look at an event, 0 if one key says all.
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


# An alternative with its joins, in the forms that the searches ask for: its layout.
#
# What is told here follows from the alternative and the joins alone: classes of equal attributes
# per slot, the neighbours of each in the order, the windows around it, and the ties of absent
# parts. All of it grows with the slots and the joins, not with pairs of them. `needs_of` says which
# shelves a search will ask for:
#
# 1. A slot is looked up by any of its attributes that a join names; and without a key, if it could
#    come to be filled when no slot that shares a class with it is.
# 2. An absent part is looked up by any of its joins, or without a key if it has none.
# 3. A single slot needs nothing: the event that fills it is there.
#
# Nothing changes here after it was made.


@dataclass(frozen=True, slots=True)
class Layout:
    """One alternative, with what joins say about its slots."""

    number: int
    alternative: Alternative
    #: How many slots there are.
    size: int
    #: Slot → class and attribute of each of its terms; the same for all slots of a part.
    terms: tuple[tuple[tuple[int, int], ...], ...]
    #: Part → class → an attribute of the part that belongs to it.
    keys: dict[int, dict[int, int]]
    #: Class → its slots, as bits.
    class_bits: tuple[int, ...]
    #: Part → its slots, as bits.
    part_bits: dict[int, int]
    #: The slots that nothing is before, and those that nothing is behind.
    firsts: tuple[int, ...]
    lasts: tuple[int, ...]
    #: Slot → those right before it, and right behind it.
    previous: tuple[tuple[int, ...], ...]
    following: tuple[tuple[int, ...], ...]
    #: The same, as bits. All that follow a slot, or precede it, come from one THEN: they follow the
    #: same slots, or precede the same.
    previous_bits: tuple[int, ...]
    following_bits: tuple[int, ...]
    #: Slot → other slots, as bits, and the innermost window around them and it; inner ones first.
    scales: tuple[tuple[tuple[int, int], ...], ...]
    #: The same, without the window of the whole.
    near: tuple[tuple[tuple[int, int], ...], ...]
    #: How long the window of the whole is, and whether there is no other.
    window_ns: int
    is_flat: bool
    #: Slot → how many tries it is to look at an event for it.
    weights: tuple[int, ...]
    inner: tuple[tuple[Absence, AbsenceJoins], ...]
    final: tuple[tuple[Absence, AbsenceJoins], ...]


def layout_of(number: int, alternative: Alternative, terms: JoinTerms) -> Layout:
    """The layout of an alternative, with joins as `terms`."""
    parts, earlier, later = alternative.parts, alternative.earlier, alternative.later
    part_bits: dict[int, int] = {}
    for slot, part in enumerate(parts):
        part_bits[part] = part_bits.get(part, 0) | 1 << slot
    of_part = classes_of(terms, alternative)
    slots = {part: tuple(slots_of(bits)) for part, bits in part_bits.items()}
    window_ns = alternative.windows[-1][1]
    scales = tuple(_scales(alternative, slot) for slot in range(len(parts)))
    near = tuple(tuple(each for each in some if each[1] < window_ns) for some in scales)
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
    """The shelves that are asked for: part and attribute, or all of a part."""
    for absence, links in (*layout.inner, *layout.final):
        yield from ((absence.part, attribute) for attribute, _, _ in links.outer)
        if not links.outer:
            yield absence.part, None
    if layout.size == 1:
        return
    everyone = (1 << layout.size) - 1
    for part, own in layout.part_bits.items():
        terms = layout.terms[own.bit_length() - 1]
        yield from ((part, attribute) for _, attribute in terms)
        tied = 0
        for number, _ in terms:
            tied |= layout.class_bits[number]
        if tied != everyone:
            yield part, None


# In which order the slots of a layout are filled, and what bounds each of them: a plan.
#
# Begun with the slot that an event fills, slots that share a key with filled ones come first, since
# they can be looked up; then those that are before or behind a filled one. A *step* says all that
# is known of its slot when those of the steps before are filled, so that the search has nothing to
# work out. Rules:
#
# 1. A step is worked out when a search comes to it for the first time, and kept. Most events end at
#    the first or the second, and so do most plans.
# 2. Of windows and orders only those are kept that the others do not say already. All slots of a
#    part are in order, so no step has more of them than the pattern has parts; and what is worked
#    out for one step is a few operations for each of these and for each of its joins.
#
# State: the steps so far, and what is filled after them. Lost without harm.


class PlanStep(NamedTuple):
    """How to fill one slot when those of the steps before are filled."""

    slot: int
    part: int
    #: Attribute, and the filled slot and its attribute that have the same key.
    links: tuple[tuple[int, int, int], ...]
    #: Attributes that must have a key, and pairs that must have the same.
    fresh: tuple[int, ...]
    equal: tuple[tuple[int, int], ...]
    #: Filled slots that are before this one, and behind it.
    after: tuple[int, ...]
    before: tuple[int, ...]
    #: Filled slots, and how much earlier or later this one may be.
    floor: tuple[tuple[int, int], ...]
    ceiling: tuple[tuple[int, int], ...]
    #: How many tries it is to look the slot up, and to look at one entry for it.
    look_up: int
    weight: int


class SearchPlan:
    """The steps that fill all slots of a layout, beginning with one of them."""

    __slots__ = (
        "_beside",
        "_filled",
        "_joined",
        "_known",
        "layout",
        "size",
        "steps",
        "weight",
    )

    def __init__(self, layout: Layout, first: int) -> None:
        self.layout = layout
        self.size = layout.size
        #: How many tries a step is at most, compared to one without joins.
        self.weight = max(layout.weights)
        self.steps: list[PlanStep] = []
        #: As bits: slots that are filled; that share a class with these; that are in order with.
        self._filled = 0
        self._joined = 0
        self._beside = 0
        #: Class → the first filled slot that has it, and its attribute.
        self._known: dict[int, tuple[int, int]] = {}
        self._add(first)

    def next_step(self) -> PlanStep:
        """Work out one step more; there are less than slots."""
        remaining = ~self._filled & ((1 << self.size) - 1)
        best = remaining & self._joined
        best = best & self._beside or best or remaining & self._beside or remaining
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
        self._beside |= earlier[slot] | later[slot]
        for number, attribute in layout.terms[slot]:
            self._known.setdefault(number, (slot, attribute))
            self._joined |= layout.class_bits[number]
        return step

    def _nearest(
        self, slot: int, filled: int, implied: tuple[int, ...], *, is_down: bool
    ) -> tuple[tuple[int, int], ...]:
        """Those of `filled` whose windows bound the slot; others say no more than these."""
        found: list[tuple[int, int]] = []
        for bits, length in self.layout.scales[slot]:
            wanted = bits & filled
            for one in last_of(wanted, implied) if is_down else first_of(wanted, implied):
                found.append((one, length))
                # A longer window around what is beyond it says less.
                filled &= ~implied[one]
        return tuple(found)

    def _keys(
        self, slot: int
    ) -> tuple[tuple[tuple[int, int, int], ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
        """What joins say of a slot: links to filled ones, keys it needs, and keys alike."""
        links = []
        fresh: dict[int, int] = {}
        equal = []
        for number, attribute in self.layout.terms[slot]:
            if number in self._known:
                links.append((attribute, *self._known[number]))
            elif number in fresh:
                equal.append((fresh[number], attribute))
            else:
                fresh[number] = attribute
        return tuple(links), tuple(fresh.values()), tuple(equal)
