"""The generic algorithm of subscription propagation, with sets where the product has vectors.

This is an executable model, for tests only; it says what is right, slowly. A broker knows, for each
of its directions e,

    S(e)  the subscriptions that were ever made behind e, as far as it has heard,
    S̄(e)  those of them that have ended,
    Λ(e)  the conjunctions it matches events against before it sends them towards e.

Both S and S̄ only grow. A subscription is *active* at e if it is in S(e) − S̄(e). The invariant S-Λ:
Λ(e) covers every conjunction of every subscription that is active at e. Rules:

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
    III  a root was removed, and what it covered has other coverers: as I.
    IV   a root was removed, and what it covered becomes a root: one of the subscriptions that have
         it is active at the receiver.

I, II and III together keep S-Λ. IV keeps out conjunctions that no active subscription has.

Prior art: Zhao 2006, Chapter 3; proofs in the technical report that preceded it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from anabranch.model.normal import relations
from anabranch.model.normal.conjunction import Conjunction

_covering: dict[tuple[Conjunction, Conjunction], bool] = {}


def covers(ours: Conjunction, other: Conjunction) -> bool:
    """Whether one conjunction covers another, as far as the product's test can tell."""
    pair = ours, other
    known = _covering.get(pair)
    if known is None:
        _covering[pair] = known = relations.covers(ours, other)
    return known


class Subscription(NamedTuple):
    """A name that is never used twice, the edge it is at, and what it wants."""

    name: str
    edge: str
    conjunctions: tuple[Conjunction, ...]


class Known:
    """A pair of S and S̄."""

    def __init__(self) -> None:
        self.subscribed: dict[str, Subscription] = {}
        self.ended: dict[str, None] = {}

    def copy(self) -> "Known":
        return Known().add(self)

    def add(self, other: "Known") -> "Known":
        self.subscribed.update(other.subscribed)
        self.ended.update(other.ended)
        return self

    def minus(self, other: "Known") -> "Known":
        """What is here and not there. What is new and has ended is both."""
        result = Known()
        result.subscribed = {n: s for n, s in self.subscribed.items() if n not in other.subscribed}
        result.ended = {
            n: None for n in self.ended if n not in other.ended or n in result.subscribed
        }
        return result

    def is_within(self, other: "Known") -> bool:
        return all(n in other.subscribed for n in self.subscribed) and all(
            n in other.ended for n in self.ended
        )

    def active(self) -> dict[str, Subscription]:
        return {name: s for name, s in self.subscribed.items() if name not in self.ended}

    def join(self, subscription: Subscription, witness: str) -> bool:
        """Rule 5; whether it joined."""
        if witness in self.subscribed:
            self.subscribed[subscription.name] = subscription
            return True
        return False


class Some(NamedTuple):
    """Conditions I, III and IV: one of these subscriptions is active."""

    kind: str
    names: tuple[str, ...]

    def holds(self, known: Known) -> bool:
        return any(name in known.subscribed and name not in known.ended for name in self.names)

    def join(self, subscription: Subscription, witness: str) -> None:
        """One more could only make it weaker."""


class Only(NamedTuple):
    """Condition II: of these edges, nothing is active but what is active in `known`."""

    kind: str
    edges: frozenset[str]
    known: Known

    def holds(self, known: Known) -> bool:
        allowed = self.known.active()
        return all(
            name in allowed for name, each in known.active().items() if each.edge in self.edges
        )

    def join(self, subscription: Subscription, witness: str) -> None:
        self.known.join(subscription, witness)


Condition = Some | Only


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


# -- aggregation ----------------------------------------------------------------------------------


def coverers_of(conjunction: Conjunction, among: Iterable[Conjunction]) -> list[Conjunction]:
    """The others that cover it. Of several that cover each other only the first one does."""
    found = []
    is_before = True
    for other in among:
        if other == conjunction:
            is_before = False
        elif covers(other, conjunction) and (is_before or not covers(conjunction, other)):
            found.append(other)
    return found


def roots_of(conjunctions: Sequence[Conjunction]) -> tuple[Conjunction, ...]:
    """What no other one covers."""
    return tuple(each for each in conjunctions if not coverers_of(each, conjunctions))


Holders = Mapping[Conjunction, tuple[str, ...]]


class Step(NamedTuple):
    """What happens to the conjunctions that one direction is told of."""

    #: Those there were, and the active subscriptions for which each of them was kept.
    before: Holders
    after: tuple[Conjunction, ...]
    #: What came in, before anything was left out.
    plus: Sequence[Conjunction]
    minus: Sequence[Conjunction]
    #: The active subscriptions, after it; and those that come with it.
    active: Mapping[str, Subscription]
    fresh: Mapping[str, Subscription]


Told = tuple[tuple[Conjunction, ...], tuple[Conjunction, ...], list[Condition]]


def aggregate(step: Step, only: Only) -> Told:
    """What is told of a step: roots that came, roots that went, and the conditions for it.

    `only` is condition II, if it is needed.
    """
    told, roots = roots_of(tuple(step.before)), roots_of(step.after)
    plus = tuple(each for each in roots if each not in told)
    minus = tuple(each for each in told if each not in step.after)
    conditions: list[Condition] = [
        Some("I", (*step.before.get(each, ()), *_names_above(each, step)))
        for each in step.plus
        if each not in plus and _is_known(each, step, plus)
    ]
    for each in step.minus:
        if each not in minus and _is_known(each, step, plus):
            names = [*step.before.get(each, ()), *_names_above(each, step)]
            conditions += _lasting("I", names, step)
    removed = [each for each in minus if not any(covers(new, each) for new in plus)]
    if removed:
        conditions.append(only)
    for root in removed:
        for child in _children(root, step):
            if child in plus:
                conditions += _lasting("IV", having(child, step.active), step)
            elif _is_known(child, step, plus):
                kind = "III" if child in step.after else "III'"
                conditions.append(Some(kind, _names_above(child, step)))
    return plus, minus, conditions


def _lasting(kind: str, names: Iterable[str], step: Step) -> list[Condition]:
    """That one of these is active, and stays so; no condition if one of them is only coming."""
    lasting = tuple(name for name in names if name in step.active)
    return [] if any(name in step.fresh for name in lasting) else [Some(kind, lasting)]


def _is_known(conjunction: Conjunction, step: Step, plus: Sequence[Conjunction]) -> bool:
    """Whether it is still there or covered, and not by anything that is told right now."""
    coverers = coverers_of(conjunction, step.after)
    is_there = conjunction in step.after
    return (is_there or bool(coverers)) and not any(each in plus for each in coverers)


def _names_above(conjunction: Conjunction, step: Step) -> tuple[str, ...]:
    """The subscriptions that have what covers a conjunction, or had it until now."""
    names: dict[str, None] = {}
    for each in coverers_of(conjunction, step.after):
        names.update(dict.fromkeys((*step.before.get(each, ()), *having(each, step.active))))
    return tuple(names)


def _children(root: Conjunction, step: Step) -> list[Conjunction]:
    """What a removed root covered: what stays directly below it, and what minimisation hid."""
    below = [c for c in step.before if c in step.after and covers(root, c)]
    direct = [child for child in below if not coverers_of(child, below)]
    hidden = {
        c: None
        for each in step.active.values()
        for c in each.conjunctions
        if c not in step.after and covers(root, c)
    }
    return [*direct, *hidden]


# -- brokers --------------------------------------------------------------------------------------


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
        found = {}
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


def having(conjunction: Conjunction, active: Mapping[str, Subscription]) -> tuple[str, ...]:
    """sub(λ): those of some subscriptions that have a conjunction, in these or other words."""
    return tuple(
        name
        for name, each in active.items()
        if any(c == conjunction or _are_same(c, conjunction) for c in each.conjunctions)
    )


def _are_same(one: Conjunction, other: Conjunction) -> bool:
    return covers(one, other) and covers(other, one)


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
