"""A pattern's tree as alternatives of slots: the form that is searched.

OR is a choice, and a repetition is its item several times over. So a tree stands for a number of
*alternatives*, none of which has an OR or a repetition in it any more. An alternative is a list of
*slots*, each to be filled with an event of one part, and what must hold between them:

1. `earlier[slot]` are the slots whose events are before the slot's own, `later[slot]` those behind;
   both are complete, not only the neighbours. Slots are numbered so that those before one have
   smaller numbers. All slots of one part are in order, one behind the other.
2. The innermost of the `windows` around two slots bounds how far apart they are.
3. Absences are about the slots around them. Of these the outermost are named: what is after the
   last of them is after all.

Sets of slots are the bits of a number, so that an order of a hundred slots is a hundred numbers,
and what follows from it is a few operations for each (`first_of`, `last_of`).

A match of the tree is a way to fill the slots of one alternative, with different events. No match
comes from two alternatives, or in two ways from one: a part stands in the tree once, so the names
in a match tell which side of an OR was taken, and the order of events where one repetition ends and
the next begins.
`model.pattern.tree` bounds how many alternatives and slots there are. Nothing changes here
after it was made.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from anabranch.model.pattern.tree import (
    Absent,
    And,
    Node,
    Or,
    Part,
    PatternTree,
    Then,
    Times,
    Within,
)

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
    """One way to match the whole pattern. See the rules at the top of this module."""

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
