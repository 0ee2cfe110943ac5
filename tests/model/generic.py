"""The generic algorithm of subscription propagation, with sets where the product has vectors.

This is an executable model, for tests only; it says what is right, slowly. A broker knows, for each
of its directions e,

    S(e)  the subscriptions that were ever made behind e, as far as it has heard,
    S̄(e)  those of them that have ended,
    Λ(e)  the conjunctions it matches events against before it sends them towards e.

Both S and S̄ only grow. A subscription is *active* at e if it is in S(e) − S̄(e). The invariant
S-Λ: Λ(e) covers every conjunction of every subscription that is active at e. Rules:

1. A *change* holds ΔS, ΔS̄, the conjunctions to add and to remove, and conditions on what its
   receiver knows of the direction it comes from. A receiver for which a condition fails ignores
   the change. Otherwise it applies all of it, and then drops, within that direction, every
   conjunction that another one there covers (*minimisation*).
2. What a direction t is told are the *roots* of all other directions together: what no other
   conjunction there covers. A change that was applied is told to t as the change of the roots for
   t, with the conditions it came with and those that `aggregate` adds.
3. A *state* holds S, S̄ and the roots. It replaces what was known of a direction if it knows of
   everything that was known there. (The source leaves states to its encoding.)
4. A message carries S(m), the subscriptions it has to be matched for. A broker may drop it in a
   direction e only if it is *sufficient*, S(m) − S̄(e) ⊆ S(e) − S̄(e), and nothing in Λ(e) matches.
5. A subscription that its edge found covered is not told at all. It joins S(e) and S(m) wherever
   some earlier subscription of that edge, its *witness*, is in them.

Conditions, by the source's numbers:

    I    something was left out because surviving conjunctions cover it: one of the subscriptions
         that have those is active at the receiver.
    II   a root was removed: the receiver has no active subscription that is not active here. It
         is read as a condition on the edges behind this broker. (Taken literally further up, it
         would fail as soon as anybody else subscribes there.)
    III  a root was removed, and what it covered has other coverers: as I. (III' is the same for
         what minimisation dropped; `aggregation` says why the source needs it and lacks it.)
    IV   a root was removed, and what it covered becomes a root: one of the subscriptions that have
         it is active at the receiver.

I, II and III together keep S-Λ. IV keeps out conjunctions that no active subscription has.

Prior art: Zhao 2006, Chapter 3; proofs in the technical report that preceded it.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from anabranch.model.normal.conjunction import Conjunction
from tests.model.aggregation import Holders, Step, aggregate, having, roots_of
from tests.model.conditions import Condition, Known, Only, Subscription


class Change(NamedTuple):
    """Rule 1."""

    delta: Known
    plus: tuple[Conjunction, ...]
    minus: tuple[Conjunction, ...]
    conditions: tuple[Condition, ...]

    def join(self, subscription: Subscription, witness: str) -> None:
        self.delta.join(subscription, witness)
        for condition in self.conditions:
            condition.join(subscription, witness)


class State(NamedTuple):
    """Rule 3."""

    known: Known
    roots: tuple[Conjunction, ...]

    def join(self, subscription: Subscription, witness: str) -> None:
        self.known.join(subscription, witness)


class Side:
    """What a broker knows of one direction: S, S̄ and Λ."""

    def __init__(self) -> None:
        self.known = Known()
        self.conjunctions: tuple[Conjunction, ...] = ()


class Broker:
    """A broker in a site of the tree. `behind` maps each direction to the edges there."""

    def __init__(self, behind: Mapping[str, Iterable[str]]) -> None:
        self.behind = {direction: tuple(edges) for direction, edges in behind.items()}
        self.sides = {direction: Side() for direction in behind}

    # -- questions

    def failing(self, source: str, change: Change) -> list[Condition]:
        """The conditions of a change that do not hold here."""
        known = self.sides[source].known
        return [each for each in change.conditions if not each.holds(known)]

    def takes(self, source: str, state: State) -> bool:
        """Whether a state knows of everything that is known here."""
        return self.sides[source].known.is_within(state.known)

    def is_sufficient(self, direction: str, header: Mapping[str, Subscription]) -> bool:
        """Rule 4: the projection of S(m) on a direction is known there, or over."""
        known = self.sides[direction].known
        return all(
            name in known.subscribed or name in known.ended
            for name, each in header.items()
            if each.edge in self.behind[direction]
        )

    def presumed(self, direction: str) -> State:
        """What a direction knows, if it knows all that is known here."""
        known = Known()
        for other, side in self.sides.items():
            if other != direction:
                known.add(side.known)
        return State(known, roots_of(self._all(direction)))

    # -- changes

    def apply(self, source: str, change: Change) -> dict[str, Change]:
        """Take a change; what to tell each other direction."""
        side = self.sides[source]
        wanted = [*side.conjunctions, *(c for c in change.plus if c not in side.conjunctions)]
        wanted = [each for each in wanted if each not in change.minus]
        before = self._befores(source)
        side.known.add(change.delta)
        side.conjunctions = roots_of(wanted)
        return self._told(source, change, before)

    def install(self, source: str, state: State) -> dict[str, Change]:
        """Take a state; what to tell each other direction."""
        side = self.sides[source]
        before = self._befores(source)
        old, delta = side.conjunctions, state.known.minus(side.known)
        side.known, side.conjunctions = state.known.copy(), state.roots
        # What the state says of its subscriptions was said of the roots; here it is said of all.
        arrived = {c: None for s in state.known.active().values() for c in s.conjunctions}
        fresh = {c: None for s in delta.active().values() for c in s.conjunctions}
        plus = [*(c for c in state.roots if c not in old), *fresh]
        minus = [each for each in old if each not in arrived and each not in state.roots]
        change = Change(delta, tuple(dict.fromkeys(plus)), tuple(minus), ())
        return self._told(source, change, before)

    def _befores(self, source: str) -> dict[str, tuple[Holders, Only]]:
        """Per direction to be told: what the others want, for whom; and condition II."""
        found: dict[str, tuple[Holders, Only]] = {}
        for direction in self.sides:
            if direction == source:
                continue
            edges = [e for other, names in self.behind.items() if other != direction for e in names]
            only = Only("II", frozenset(edges), self.presumed(direction).known)
            found[direction] = self._holders(direction), only
        return found

    def _told(
        self, source: str, change: Change, before: Mapping[str, tuple[Holders, Only]]
    ) -> dict[str, Change]:
        changes = {}
        for direction, (holders, only) in before.items():
            after, active = self._all(direction), self._active(direction)
            fresh = change.delta.subscribed
            step = Step(holders, after, change.plus, change.minus, active, fresh)
            plus, minus, added = aggregate(step, only)
            conditions = (*change.conditions, *added)
            changes[direction] = Change(change.delta.copy(), plus, minus, conditions)
        return changes

    def _all(self, direction: str) -> tuple[Conjunction, ...]:
        """The conjunctions of all other directions, each once."""
        others = [side for other, side in self.sides.items() if other != direction]
        return tuple(dict.fromkeys(c for side in others for c in side.conjunctions))

    def _holders(self, direction: str) -> dict[Conjunction, tuple[str, ...]]:
        """The same, each with the active subscriptions for which it is kept.

        Only those of a direction that keeps it: a subscription of another one may have it too,
        hidden below a coverer, and lose that coverer next.
        """
        holders: dict[Conjunction, tuple[str, ...]] = {}
        for other, side in self.sides.items():
            if other != direction:
                active = side.known.active()
                for each in side.conjunctions:
                    holders[each] = holders.get(each, ()) + having(each, active)
        return holders

    def _active(self, direction: str) -> dict[str, Subscription]:
        """The active subscriptions of all other directions."""
        others = [side for other, side in self.sides.items() if other != direction]
        return {name: s for side in others for name, s in side.known.active().items()}


class Leaf:
    """The own edge of a broker: its subscriptions, and what the network was told of them."""

    def __init__(self, edge: str) -> None:
        self.edge = edge
        #: All that happened here,
        self.known = Known()
        #: and what of it was told, with all its conjunctions.
        self.told = State(Known(), ())
        self._conjunctions: tuple[Conjunction, ...] = ()

    def subscribe(self, subscription: Subscription) -> None:
        """It is in the next change."""
        self.known.subscribed[subscription.name] = subscription

    def join(self, subscription: Subscription, witness: str) -> bool:
        """It is in what was told already (rule 5)."""
        self.subscribe(subscription)
        self._conjunctions = tuple(dict.fromkeys((*self._conjunctions, *subscription.conjunctions)))
        return self.told.known.join(subscription, witness)

    def end(self, name: str) -> None:
        """A subscription is over."""
        self.known.ended[name] = None

    def propagate(self) -> Change:
        """Tell what happened since the last time."""
        delta, active = self.known.minus(self.told.known), self.known.active()
        after = tuple(dict.fromkeys(c for each in active.values() for c in each.conjunctions))
        fresh = {c: None for each in delta.subscribed.values() for c in each.conjunctions}
        before = self.told.known.active()
        step = Step(
            {each: having(each, before) for each in self._conjunctions},
            after,
            [each for each in fresh if each in after],
            [each for each in self._conjunctions if each not in after],
            active,
            delta.subscribed,
        )
        only = Only("II", frozenset([self.edge]), self.told.known)
        plus, minus, conditions = aggregate(step, only)
        self._conjunctions = after
        self.told = State(self.known.copy(), roots_of(after))
        return Change(delta, plus, minus, tuple(conditions))
