"""Checks whether a set of conjunctions passes every event that a subscription matches.

The S-Λ invariant says of a broker: whenever it uses its set S of conjunctions to filter for an
edge, every event that matches a subscription which the edge may rely on (those in Λ) matches some
conjunction of S. The check is exhaustive: a `Domain` is a list of events with every case that can
differ for the filters in use. The caller decides which subscriptions may be relied upon at which
broker; this module does only the set arithmetic.

The matching events are bits of one integer, per filter and per conjunction, so that a check after
every step of a simulation costs only a few OR operations. This module does not use covering, the
matching index, or the compiled form of filters.

Prior art: Zhao 2006, §3.3.
"""

from collections.abc import Iterable

from anabranch.model.event import Attributes
from anabranch.model.filter import Filter
from anabranch.model.language.evaluate import evaluate
from anabranch.model.normal.conjunction import Conjunction


class Domain:
    """Events to try, with cached match results."""

    def __init__(self, events: Iterable[Attributes]) -> None:
        self.events = tuple(events)
        self._by_filter: dict[Filter, int] = {}
        self._by_conjunction: dict[Conjunction, int] = {}

    def matching_filter(self, subscription_filter: Filter) -> int:
        """The matching events, event n as bit n."""
        known = self._by_filter.get(subscription_filter)
        if known is None:
            tree = subscription_filter.expression
            known = _bits(evaluate(tree, event) is True for event in self.events)
            self._by_filter[subscription_filter] = known
        return known

    def matching_conjunction(self, conjunction: Conjunction) -> int:
        """The matching events, event n as bit n."""
        known = self._by_conjunction.get(conjunction)
        if known is None:
            known = _bits(conjunction.matches(event) for event in self.events)
            self._by_conjunction[conjunction] = known
        return known


def uncovered(
    subscription_filter: Filter, conjunctions: Iterable[Conjunction], domain: Domain
) -> Attributes | None:
    """The first event that matches the filter but none of the conjunctions; None if covered."""
    missing = domain.matching_filter(subscription_filter)
    for conjunction in conjunctions:
        if not missing:
            return None
        missing &= ~domain.matching_conjunction(conjunction)
    if not missing:
        return None
    return domain.events[(missing & -missing).bit_length() - 1]


def _bits(answers: Iterable[bool]) -> int:
    return sum(1 << place for place, answer in enumerate(answers) if answer)
