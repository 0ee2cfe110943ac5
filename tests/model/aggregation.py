"""Covering aggregation in the generic model: which conjunctions are told, and on what conditions.

A direction is told the roots, conjunctions that no other one covers. So when conjunctions come and
go, three things can happen to what a receiver knows, and each has its condition (see `generic`):

- something is left out, because surviving conjunctions cover it (I);
- a root goes, and the receiver is left with what this broker tells it in its place (II);
- what the root covered is not told, since something else covers it (III), or is told anew (IV).

The DAG from coverers to covered is there by its roots and by what is directly below one of them.

The source looks for III only among the conjunctions a broker has. But minimisation has dropped
those that another conjunction of the same direction covers, and a receiver that has never heard of
that other one relies on the root for them. They are *hidden* children of the root, and the
condition for them is called III' here; without it S-Λ fails. (Where vectors must be equal, the
receiver has heard of everything, and nothing is missing.)

Covering is as the product's own test has it; the model is right for any test that never claims it
wrongly.

Prior art: Zhao 2006, §3.4.1.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from anabranch.model.normal import conjunction
from anabranch.model.normal.conjunction import Conjunction
from tests.model.conditions import Condition, Only, Some, Subscription

_covering: dict[tuple[Conjunction, Conjunction], bool] = {}


def covers(ours: Conjunction, other: Conjunction) -> bool:
    """Whether one conjunction covers another, as far as the product's test can tell."""
    pair = ours, other
    known = _covering.get(pair)
    if known is None:
        _covering[pair] = known = conjunction.covers(ours, other)
    return known


def having(conjunction: Conjunction, active: Mapping[str, Subscription]) -> tuple[str, ...]:
    """sub(λ): those of some subscriptions that have a conjunction, in these or other words."""
    return tuple(
        name
        for name, each in active.items()
        if any(c == conjunction or _are_same(c, conjunction) for c in each.conjunctions)
    )


def _are_same(one: Conjunction, other: Conjunction) -> bool:
    return covers(one, other) and covers(other, one)


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
