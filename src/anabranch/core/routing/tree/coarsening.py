"""Merging brokers: a relay that stands for many narrow conjunctions with a few wide ones.

Where many conjunctions meet, every broker behind has to match against all of them. A relay may
instead subscribe, on its own account, to conjunctions that cover many of them (`hulls`): brokers
behind it then know the wide ones only. It does so as a *merging broker*: a leaf of the tree of its
own, `broker~site`, with a clock, whose interest travels like that of an edge. So everything that
keeps narrow interest safe keeps the exchange of narrow for wide safe too, and back again.

The policy, deliberately simple:

1. With more than `coarsen_above` conjunctions, the largest groups are coarsened first, down to
   that number. A group has at least `GROUP_MIN` members. Brokers that no events come through have
   nothing to save, and could not see what it costs; they coarsen nothing.
2. A hull only grows as members come; it is given up when half of them are gone.
3. Wide interest draws events that nobody wants. They are counted, over `WINDOW_EVENTS` events each
   time. A group is given up if these events cost more than it saves: one event too many counts like
   matching one event against `EVENT_COST` conjunctions. It is not tried again for a while, which
   doubles each time.

After a restart the merging broker has no interest, and its first state says so to everybody.

State: volatile.

Prior art: Zhao 2006, §3.5 (which leaves the policy open); imperfect merging, Mühl 2001.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from anabranch.core.routing.interest_clock import InterestClock, ended, wanted
from anabranch.core.routing.tree.interest import Directions
from anabranch.core.routing.tree.presence import Presence
from anabranch.core.routing.tree.shared import InterestFrame, TreeState, merging_name
from anabranch.model.errors import RemoteError
from anabranch.model.event import INFINITY, Attributes, text_after
from anabranch.model.filter import Filter
from anabranch.model.frames import AskInterest, InterestChange, InterestState
from anabranch.model.language.builder import Condition, Scalar, all_of, attr
from anabranch.model.limits import Limits
from anabranch.model.normal.conjunction import Conjunction, covers
from anabranch.model.normal.value_set import ValueSet
from anabranch.model.version import NOTHING, Version

# Wide conjunctions in place of many narrow ones: what to put together, and what covers it.
#
# Conjunctions that differ in one attribute only, such as `symbol = 'A' AND price > 5` and `symbol =
# 'B' AND price > 5`, form a *group*. Its *hull* is one conjunction that covers them all: the common
# constraints, and for the attribute in which they differ one range from the lowest start to the
# highest end. Only conjunctions whose constraints are single ranges of numbers or of texts take
# part, because a hull must be said as text again.
#
# Pure functions; no state.


Constraint = tuple[str, ValueSet]


class GroupKey(NamedTuple):
    """What the members of a group have in common."""

    #: The attribute in which they differ.
    attribute: str
    is_numeric: bool
    #: All other constraints.
    others: tuple[Constraint, ...]


def groups_of(conjunctions: Iterable[Conjunction]) -> dict[GroupKey, list[Conjunction]]:
    """All groups, with their members; a conjunction may be in several."""
    groups: dict[GroupKey, list[Conjunction]] = {}
    for conjunction in conjunctions:
        constraints = conjunction.constraints
        if conjunction.residue or not all(_is_range(values) for _, values in constraints):
            continue
        for place, (name, values) in enumerate(constraints):
            others = constraints[:place] + constraints[place + 1 :]
            key = GroupKey(name, bool(values.numbers), others)
            groups.setdefault(key, []).append(conjunction)
    return groups


def hull_of(key: GroupKey, members: Sequence[Conjunction], limits: Limits) -> Filter:
    """A filter of one conjunction that covers all members of a group."""
    sets = [dict(member.constraints)[key.attribute] for member in members]
    if key.is_numeric:
        numbers = [values.numbers[0] for values in sets]
        low, high = min(low for low, _ in numbers), max(high for _, high in numbers)
        widest = ValueSet(numbers=((low, high),))
    else:
        texts = [values.texts[0] for values in sets]
        ends = [end for _, end in texts if end is not None]
        end = max(ends) if len(ends) == len(texts) else None
        widest = ValueSet(texts=((min(start for start, _ in texts), end),))
    parts = [_said(name, values) for name, values in (*key.others, (key.attribute, widest))]
    hull = Filter.of(all_of(parts), limits)
    assert all(covers(hull.conjunctions[0], member) for member in members)
    return hull


def _is_range(values: ValueSet) -> bool:
    """One range of numbers, or one of texts, and nothing else."""
    if values.truths or values.nan or values.absent:
        return False
    return len(values.numbers) + len(values.texts) == 1


def _said(name: str, values: ValueSet) -> Condition:
    """A range as the condition that names it, or a wider one."""
    low: Scalar | None
    high: Scalar | None
    attribute = attr(name)
    if values.numbers:
        first, last = values.numbers[0]
        low = None if first == -INFINITY else first
        high = None if last == INFINITY else last
        if low is not None and low == high:
            return attribute == low
        below = None if high is None else attribute <= high
    else:
        low, high = values.texts[0]
        if high is not None and high == text_after(str(low)):
            return attribute == low
        low = low or None
        below = None if high is None else _below(name, high)
    above = None if low is None else attribute >= low
    ends = [end for end in (above, below) if end is not None]
    return all_of(ends) if ends else ~attribute.is_null()


def _below(name: str, end: str) -> Condition:
    """All texts before an end; written without the character that only an end after a text has."""
    last = end[:-1]
    return attr(name) <= last if end == text_after(last) else attr(name) < end


GROUP_MIN = 4
WINDOW_EVENTS = 256
EVENT_COST = 1_000
#: Parts of the first timeout of repair: from a change to its review, and how long a group that did
#: not pay is left alone.
_REVIEW = 0.25
_REST = 16.0
_REST_MAX = 1_024.0


class _Group(NamedTuple):
    hull: Filter
    #: Members when the hull was made, or more.
    size: int


class MergingBroker:
    """The merging broker of one presence."""

    def __init__(self, around: TreeState, presence: Presence, life: int) -> None:
        options = around.options
        self.leaf = merging_name(around.name, presence.site)
        self.clock = InterestClock(self.leaf, life, around.limits, options.covering)
        self._around = around
        self._presence = presence
        self._revision = -1
        self._review_at: float | None = None
        self._groups: dict[GroupKey, _Group] = {}
        #: Group → events that only its hull drew here, in this window.
        self._wasted: dict[GroupKey, int] = {}
        self._events = 0
        #: Whether any event came through.
        self._is_used = False
        #: Group → until when it is left alone, and for how long that was.
        self._resting: dict[GroupKey, tuple[float, float]] = {}

    # -- the leaf ---------------------------------------------------------------------------------

    def receive(self, peer: str, frame: InterestFrame) -> None:
        """Somebody asks for the interest of this leaf."""
        if not isinstance(frame, AskInterest) or frame.source != self._presence.site:
            raise RemoteError(f"{peer!r} tells the leaf {self.leaf!r} something")
        if peer not in self._around.overlay.members(frame.source):
            raise RemoteError(f"{peer!r} speaks for site {frame.source!r}, where it is not")
        self._around.check_own(frame.known)
        version = self.clock.propagated
        if version > frame.known.get(self.leaf, NOTHING):
            self._around.send_interest(peer, self._state(version))

    def _state(self, version: Version) -> InterestState:
        roots = wanted(self.clock.roots(), self._around.limits)
        return InterestState(self._presence.site, self.leaf, {self.leaf: version}, roots)

    def _propagate(self) -> None:
        step = self.clock.propagate()
        if step is None:
            return
        frame: InterestFrame = self._state(step.version)
        if step.before != NOTHING:
            frame = InterestChange(
                self._presence.site,
                self.leaf,
                {self.leaf: step.version},
                wanted(step.plus, self._around.limits),
                ended(step.minus, self._around.limits),
                {self.leaf: step.before},
            )
        self._around.send_interest(self._around.name, frame)

    # -- the policy -------------------------------------------------------------------------------

    def notice(self, now: float) -> None:
        """Plan a review if the presence has learned anything."""
        if self._revision != self._presence.revision and self._review_at is None:
            self._review_at = now + _REVIEW * self._around.options.lag_after_s

    def next_deadline(self) -> float | None:
        """When the next review is."""
        return self._review_at

    def time_passed(self, now: float) -> None:
        """Review what is coarsened."""
        if self._review_at is None or self._review_at > now:
            return
        self._review_at = None
        self._revision = self._presence.revision
        known = self._conjunctions()
        groups = groups_of(known)
        self._give_up_small(groups)
        self._widen(groups)
        self._coarsen(now, known, groups)
        self._propagate()

    def _conjunctions(self) -> list[Conjunction]:
        """What real neighbours want, each once."""
        presence = self._presence
        wanted = [presence.interest.of(d) for d in presence.outlook.listening]
        return list(dict.fromkeys(each.conjunction for some in wanted for each in some))

    def _give_up_small(self, groups: dict[GroupKey, list[Conjunction]]) -> None:
        for key, group in list(self._groups.items()):
            if len(groups.get(key, ())) * 2 < group.size:
                self._give_up(key)

    def _widen(self, groups: dict[GroupKey, list[Conjunction]]) -> None:
        for key, group in self._groups.items():
            members = [*groups[key], group.hull.conjunctions[0]]
            hull = hull_of(key, members, self._around.limits)
            if hull != group.hull:
                self.clock.add(str(key), hull)
            self._groups[key] = _Group(hull, max(group.size, len(groups[key])))

    def _coarsen(
        self,
        now: float,
        known: list[Conjunction],
        groups: dict[GroupKey, list[Conjunction]],
    ) -> None:
        """Rule 1."""
        if not self._is_used:
            return
        merged = {member for key in self._groups for member in groups[key]}
        left = len(known) - len(merged) + len(self._groups)
        for key, members in sorted(groups.items(), key=lambda item: -len(item[1])):
            if left <= self._around.options.coarsen_above or len(members) < GROUP_MIN:
                return
            fresh = [member for member in members if member not in merged]
            resting_until, _ = self._resting.get(key, (now, 0.0))
            if key in self._groups or len(fresh) < GROUP_MIN or now < resting_until:
                continue
            hull = hull_of(key, members, self._around.limits)
            self.clock.add(str(key), hull)
            self._groups[key] = _Group(hull, len(members))
            merged.update(fresh)
            left -= len(fresh) - 1

    def _give_up(self, key: GroupKey) -> None:
        del self._groups[key]
        self._wasted.pop(key, None)
        self.clock.remove(str(key))

    # -- does it pay? -----------------------------------------------------------------------------

    def observe(
        self, now: float, attributes: Attributes, wanted: Directions, directions: tuple[str, ...]
    ) -> None:
        """An event was matched here: was it wanted, or drawn by a hull?"""
        if not self._is_used:
            self._is_used = True
            self._review_at = now
        if not self._groups:
            return
        self._events += 1
        if self.leaf in wanted and not any(direction in wanted for direction in directions):
            for key, group in self._groups.items():
                if group.hull.conjunctions[0].matches(attributes):
                    self._wasted[key] = self._wasted.get(key, 0) + 1
        if self._events >= WINDOW_EVENTS:
            self._judge(now)

    def _judge(self, now: float) -> None:
        """Rule 3."""
        for key, wasted in list(self._wasted.items()):
            if wasted * EVENT_COST > (self._groups[key].size - 1) * self._events:
                _, rest = self._resting.get(key, (0.0, 0.0))
                rest = min(rest * 2, _REST_MAX) or _REST
                self._resting[key] = now + rest * self._around.options.lag_after_s, rest
                self._give_up(key)
                self._review_at = now
        self._wasted.clear()
        self._events = 0
