"""A pattern made ready for detection: worked out once, and shared by all detectors of it.

The scheme knows what does not depend on events: the alternatives with their joins (a *layout*
each), the compiled filters, which shelves are needed, which slots an event can fill first, and how
long events are kept. One scheme serves many detectors (Spark has one per bucket), and never
changes, but for what it works out when it is first asked for (`steps_from`). Rules:

1. A filter that several parts have is evaluated once.
2. A pattern is *eager* if a match is final as soon as all its events are there: policy ALL and no
   absence. Any other needs to know what lies between, and waits for the order of events.
3. Events are kept for the window. Where a choice waits for absences to end (FIRST and LAST with an
   absence at the end), what it will choose from is kept for as long again.
4. `plants` are mistakes that tests switch on by name; see docs/PATTERNS.md.
"""

from collections.abc import Iterator

from anabranch.core.patterns.alternatives import alternatives_of
from anabranch.core.patterns.joins import JoinTerms, join_attributes
from anabranch.core.patterns.layouts import Layout, layout_of, needs_of
from anabranch.core.patterns.steps import Step, steps_of
from anabranch.model.filter import Filter
from anabranch.model.language.compiled import Condition, compile_condition
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.pattern.tree import absent_names
from anabranch.model.pattern.validity import check_pattern


class Scheme:
    """A pattern, ready. See the rules at the top of this module."""

    def __init__(
        self,
        pattern: Pattern,
        pattern_id: str = "",
        limits: Limits = DEFAULT_LIMITS,
        plants: frozenset[str] = frozenset(),
    ) -> None:
        check_pattern(pattern, limits=limits)
        self.pattern = pattern
        #: Its canonical text.
        self.text = str(pattern)
        self.pattern_id = pattern_id
        self.limits = limits
        self.plants = plants
        self.names = tuple(part.name for part in pattern.parts)
        self.attributes = join_attributes(pattern)
        self.conditions = _conditions(pattern)
        terms = JoinTerms.of(pattern)
        self.layouts = tuple(
            layout_of(number, alternative, terms)
            for number, alternative in enumerate(alternatives_of(pattern))
        )
        self.needed = frozenset(need for layout in self.layouts for need in needs_of(layout))
        self._steps: dict[tuple[int, int], tuple[Step, ...]] = {}
        self._set_modes(absent_names(pattern.root))

    def _set_modes(self, absent: frozenset[str]) -> None:
        pattern, layouts = self.pattern, self.layouts
        #: Whether one match is chosen of those that end with the same event.
        self.is_choosing = pattern.policy != "ALL"
        self.is_eager = not self.is_choosing and not absent
        #: The parts that must not be there, as bits.
        self.absent_bits = sum(1 << self.names.index(name) for name in absent)
        #: How long after an event it can be chosen what ends with it.
        lengths = [absence.window_ns for layout in layouts for absence, _ in layout.final]
        self.delay_ns = max(lengths, default=0) if self.is_choosing else 0
        #: How long after its last event a match is final, at the latest.
        self.final_ns = max(lengths, default=0)
        self.retention_ns = pattern.window_ns + self.delay_ns
        #: Part → the slots that an event of it can fill; the last ones only, where one is chosen.
        self.anchors = tuple(tuple(self._anchors_of(part)) for part in range(len(self.names)))
        #: The parts that have any, as bits.
        self.anchor_bits = sum(1 << part for part, slots in enumerate(self.anchors) if slots)

    def steps_from(self, layout: Layout, slot: int) -> tuple[Step, ...]:
        """How to fill all slots of a layout, beginning with `slot`."""
        steps = self._steps.get((layout.number, slot))
        if steps is None:
            steps = self._steps[layout.number, slot] = steps_of(layout, slot, self.plants)
        return steps

    def _anchors_of(self, part: int) -> Iterator[tuple[Layout, int]]:
        for layout in self.layouts:
            for slot, of_part in enumerate(layout.alternative.parts):
                if of_part == part and not (self.is_choosing and layout.alternative.later[slot]):
                    yield layout, slot


def _conditions(pattern: Pattern) -> tuple[tuple[Condition, int], ...]:
    """Each filter once, and its parts as bits."""
    bits: dict[Filter, int] = {}
    for number, part in enumerate(pattern.parts):
        bits[part.filter] = bits.get(part.filter, 0) | 1 << number
    return tuple((compile_condition(wanted.expression), parts) for wanted, parts in bits.items())
