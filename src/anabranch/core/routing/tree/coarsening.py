"""Coarsening: a merging broker replaces many narrow conjunctions by a few wide ones.

At a relay with many conjunctions, every broker beyond it has to match against all of them. The
relay may instead subscribe, on its own account, to hulls that cover many of them, so that brokers
beyond it keep only the hulls. It does so as a *merging broker*: a separate leaf of the tree,
`broker~site`, with its own interest clock, whose interest propagates like that of an edge. So the
rules that keep narrow interest safe also keep the replacement safe, in both directions.

*Hulls.* Conjunctions that differ in one attribute only, such as `symbol = 'A' AND price > 5` and
`symbol = 'B' AND price > 5`, form a *group*. Its *hull* is one conjunction that covers them all:
the common constraints, and for the differing attribute one range from the lowest start to the
highest end. Only conjunctions whose constraints are single ranges of numbers or texts take part,
because a hull must be expressible as text.

The policy is deliberately simple:

1. Above `coarsen_above` conjunctions, coarsen the largest groups first, down to that number. A
   group has at least `GROUP_MIN` members. A broker that no events pass through does not coarsen: it
   has nothing to save and could not measure the cost.
2. A hull only grows as members join; it is dissolved when half of them have left.
3. Wide interest attracts events that no subscription wants. They are counted over windows of
   `WINDOW_EVENTS` events. A group is dissolved if these events cost more than it saves: one
   unwanted event costs as much as matching one event against `EVENT_COST` conjunctions. The group
   is not tried again for a period that doubles each time.

After a restart the merging broker has no interest, and its first state announces that.

State: volatile.

Prior art: Zhao 2006, §3.5 (which leaves the policy open); imperfect merging, Mühl 2001.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from anabranch.core.routing.interest_clock import InterestClock, encode_interest, encode_removals
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

Constraint = tuple[str, ValueSet]


class GroupKey(NamedTuple):
    """The common part of the members of a group."""

    #: The attribute in which they differ.
    attribute: str
    is_numeric: bool
    #: All other constraints.
    others: tuple[Constraint, ...]


def groups_of(conjunctions: Iterable[Conjunction]) -> dict[GroupKey, list[Conjunction]]:
    """All groups with their members; a conjunction may be in several groups."""
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
    parts = [_condition(name, values) for name, values in (*key.others, (key.attribute, widest))]
    hull = Filter.of(all_of(parts), limits)
    assert all(covers(hull.conjunctions[0], member) for member in members)
    return hull


def _is_range(values: ValueSet) -> bool:
    """Whether the set is exactly one range of numbers or one range of texts."""
    if values.truths or values.nan or values.absent:
        return False
    return len(values.numbers) + len(values.texts) == 1


def _condition(name: str, values: ValueSet) -> Condition:
    """The condition for a range, or for a wider one."""
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
    """All texts before `end`, written without the character that marks the successor of a text."""
    last = end[:-1]
    return attr(name) <= last if end == text_after(last) else attr(name) < end


GROUP_MIN = 4
WINDOW_EVENTS = 256
EVENT_COST = 1_000
#: As factors of `lag_after_s`: delay from a change to its review, and how long a dissolved group
#: is not tried again, at first and at most.
_REVIEW = 0.25
_REST = 16.0
_REST_MAX = 1_024.0


class _Group(NamedTuple):
    hull: Filter
    #: Number of members; does not decrease.
    size: int


class MergingBroker:
    """The merging broker of one presence."""

    def __init__(self, shared: TreeState, presence: Presence, life: int) -> None:
        options = shared.options
        self.leaf = merging_name(shared.name, presence.site)
        self.clock = InterestClock(self.leaf, life, shared.limits, options.covering)
        self._shared = shared
        self._presence = presence
        self._revision = -1
        self._review_at: float | None = None
        self._groups: dict[GroupKey, _Group] = {}
        #: Group → events in this window that only its hull attracted.
        self._wasted: dict[GroupKey, int] = {}
        self._events = 0
        #: Whether any event has passed through.
        self._is_used = False
        #: Group → until when it is not tried again, and the length of that period.
        self._resting: dict[GroupKey, tuple[float, float]] = {}

    # -- the leaf ---------------------------------------------------------------------------------

    def receive(self, peer: str, frame: InterestFrame) -> None:
        """Answer a request for the interest of this leaf."""
        if not isinstance(frame, AskInterest) or frame.source != self._presence.site:
            raise RemoteError(f"{peer!r} sends leaf {self.leaf!r} a frame other than its request")
        if peer not in self._shared.overlay.members(frame.source):
            raise RemoteError(f"{peer!r} sends for site {frame.source!r} but is not a member of it")
        self._shared.check_own(frame.known)
        version = self.clock.propagated
        if version > frame.known.get(self.leaf, NOTHING):
            self._shared.send_interest(peer, self._state(version))

    def _state(self, version: Version) -> InterestState:
        roots = encode_interest(self.clock.roots(), self._shared.limits)
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
                encode_interest(step.plus, self._shared.limits),
                encode_removals(step.minus, self._shared.limits),
                {self.leaf: step.before},
            )
        self._shared.send_interest(self._shared.name, frame)

    # -- the policy -------------------------------------------------------------------------------

    def plan_review(self, now: float) -> None:
        """Schedule a review if the interest of the presence has changed."""
        if self._revision != self._presence.revision and self._review_at is None:
            self._review_at = now + _REVIEW * self._shared.options.lag_after_s

    def next_deadline(self) -> float | None:
        return self._review_at

    def time_passed(self, now: float) -> None:
        """Review the groups, if due."""
        if self._review_at is None or self._review_at > now:
            return
        self._review_at = None
        self._revision = self._presence.revision
        known = self._conjunctions()
        groups = groups_of(known)
        self._dissolve_small(groups)
        self._widen(groups)
        self._coarsen(now, known, groups)
        self._propagate()

    def _conjunctions(self) -> list[Conjunction]:
        """The conjunctions of all real neighbours, without duplicates."""
        presence = self._presence
        wanted = [presence.interest.conjuncts(d) for d in presence.view.client_directions]
        return list(
            dict.fromkeys(conjunct.conjunction for conjuncts in wanted for conjunct in conjuncts)
        )

    def _dissolve_small(self, groups: dict[GroupKey, list[Conjunction]]) -> None:
        for key, group in list(self._groups.items()):
            if len(groups.get(key, ())) * 2 < group.size:
                self._dissolve(key)

    def _widen(self, groups: dict[GroupKey, list[Conjunction]]) -> None:
        for key, group in self._groups.items():
            members = [*groups[key], group.hull.conjunctions[0]]
            hull = hull_of(key, members, self._shared.limits)
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
            if left <= self._shared.options.coarsen_above or len(members) < GROUP_MIN:
                return
            fresh = [member for member in members if member not in merged]
            resting_until, _ = self._resting.get(key, (now, 0.0))
            if key in self._groups or len(fresh) < GROUP_MIN or now < resting_until:
                continue
            hull = hull_of(key, members, self._shared.limits)
            self.clock.add(str(key), hull)
            self._groups[key] = _Group(hull, len(members))
            merged.update(fresh)
            left -= len(fresh) - 1

    def _dissolve(self, key: GroupKey) -> None:
        del self._groups[key]
        self._wasted.pop(key, None)
        self.clock.remove(str(key))

    # -- cost and benefit -------------------------------------------------------------------------

    def observe(
        self, now: float, attributes: Attributes, wanted: Directions, directions: tuple[str, ...]
    ) -> None:
        """Count a matched event that only a hull attracted."""
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
                self._resting[key] = now + rest * self._shared.options.lag_after_s, rest
                self._dissolve(key)
                self._review_at = now
        self._wasted.clear()
        self._events = 0
