"""A pattern made ready for detection: worked out once, and shared by all detectors of it.

The scheme knows what does not depend on events: the alternatives with their joins (a *layout*
each), the compiled filters, which shelves are needed, which slots an event can fill first, and how
long events are kept. One scheme serves many detectors (Spark has one per bucket), and never
changes, but for what it works out when it is first asked for (`plan_from`, `outlook_of`). Rules:

1. A filter that several parts have is evaluated once.
2. A pattern is *eager* if a match is final as soon as all its events are there: policy ALL and no
   absence. Any other needs to know what lies between, and waits for the order of events.
3. Events are kept for the window. Where a choice waits for absences to end (FIRST and LAST with an
   absence at the end), what it will choose from is kept for as long again.
4. Plans are kept, but for no more than `_STEPS_MAX` steps; beyond that all are begun anew.
"""

from collections.abc import Iterator
from typing import Final

from anabranch.core.patterns.alternatives import alternatives_of
from anabranch.core.patterns.joins import JoinTerms, join_attributes
from anabranch.core.patterns.layouts import Layout, layout_of, needs_of
from anabranch.core.patterns.outlook import Outlook
from anabranch.core.patterns.steps import Plan, Step
from anabranch.model.filter import Filter
from anabranch.model.language.evaluate import Condition, compile_condition
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from anabranch.model.pattern.pattern import Pattern
from anabranch.model.pattern.tree import absent_names, check_pattern

#: Steps that are kept, of all plans; some hundred bytes each.
_STEPS_MAX: Final = 20_000


class Scheme:
    """A pattern, ready. See the rules at the top of this module."""

    def __init__(
        self, pattern: Pattern, pattern_id: str = "", limits: Limits = DEFAULT_LIMITS
    ) -> None:
        check_pattern(pattern, limits=limits)
        self.pattern = pattern
        #: Its canonical text.
        self.text = str(pattern)
        self.pattern_id = pattern_id
        self.limits = limits
        self.names = tuple(part.name for part in pattern.parts)
        self.attributes = join_attributes(pattern)
        self.conditions = _conditions(pattern)
        terms = JoinTerms.of(pattern)
        self.layouts = tuple(
            layout_of(number, alternative, terms)
            for number, alternative in enumerate(alternatives_of(pattern))
        )
        self.needed = frozenset(need for layout in self.layouts for need in needs_of(layout))
        #: Layout and slot → its plan, if there is one.
        self.plans: dict[tuple[int, int], Plan] = {}
        self._step_count = 0
        self._outlooks: dict[tuple[int, int, bool], Outlook] = {}
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
        #: Whether it may take more than a look-up to decide the absences that a match ends with.
        self.final_is_long = any(
            links.event_weight or links.weight > 1 for each in layouts for _, links in each.final
        )
        self.retention_ns = pattern.window_ns + self.delay_ns
        #: Part → the slots that an event of it can fill; where events have their turn in order,
        #: only those that end a match.
        anchors: list[list[tuple[Layout, int]]] = [[] for _ in self.names]
        for part, layout, slot in self._anchors_of():
            anchors[part].append((layout, slot))
        self.anchors = tuple(map(tuple, anchors))
        #: The same, of slots that end a match, in any case.
        self.ends = tuple(
            tuple((layout, slot) for layout, slot in each if not layout.alternative.later[slot])
            for each in self.anchors
        )
        #: The parts that have any, as bits.
        self.anchor_bits = _bits_of(self.anchors)
        self.end_bits = _bits_of(self.ends)

    def plan_from(self, layout: Layout, slot: int) -> Plan:
        """How to fill all slots of a layout, beginning with `slot`."""
        plan = self.plans.get((layout.number, slot))
        if plan is None:
            plan = self.plans[layout.number, slot] = Plan(layout, slot)
        return plan

    def next_step(self, plan: Plan) -> Step:
        """Work out one step more of a plan."""
        self._step_count += 1
        if self._step_count > _STEPS_MAX:
            # Whoever is using a plan goes on with it; others begin anew.
            self._step_count = 0
            self.plans.clear()
        return plan.next_step()

    def outlook_of(self, layout: Layout, slot: int, *, is_last: bool) -> Outlook:
        """What has to be there for a match with an event in `slot`, which ends it or may not."""
        outlook = self._outlooks.get((layout.number, slot, is_last))
        if outlook is None:
            outlook = Outlook(layout, slot, is_last=is_last)
            self._outlooks[layout.number, slot, is_last] = outlook
        return outlook

    def _anchors_of(self) -> Iterator[tuple[int, Layout, int]]:
        for layout in self.layouts:
            for slot, part in enumerate(layout.alternative.parts):
                # Where events have their turn in order, what must be behind one is never there.
                if self.is_eager or not layout.alternative.later[slot]:
                    yield part, layout, slot


def _bits_of(slots: tuple[tuple[tuple[Layout, int], ...], ...]) -> int:
    """The parts that have slots, as bits."""
    return sum(1 << part for part, each in enumerate(slots) if each)


def _conditions(pattern: Pattern) -> tuple[tuple[Condition, int], ...]:
    """Each filter once, and its parts as bits."""
    bits: dict[Filter, int] = {}
    for number, part in enumerate(pattern.parts):
        bits[part.filter] = bits.get(part.filter, 0) | 1 << number
    return tuple((compile_condition(wanted.expression), parts) for wanted, parts in bits.items())
