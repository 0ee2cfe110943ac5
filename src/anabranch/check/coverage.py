"""Whether a set of conjunctions lets through all that a subscription wants.

The S-Λ invariant says of a broker: whenever it uses its set S of conjunctions to filter for an
edge, every event that matches a subscription which the edge may rely on (those in Λ) matches some
conjunction of S. It is checked by trying: a `Domain` is a list of events that holds, for the
filters in use, every case that can differ. Which subscriptions may be relied upon at which broker
is for whoever knows the protocol to say; here is only the set arithmetic.

The events that match are kept as the bits of one integer, per filter and per conjunction, so that
a check after every step of a simulation costs little more than a few ORs. Nothing here uses
covering, the matching index, or the compiled form of filters.

Prior art: Zhao 2006, §3.3.
"""

from collections.abc import Iterable

from anabranch.model.event import Attributes
from anabranch.model.filter import Filter
from anabranch.model.language.evaluate import evaluate
from anabranch.model.normal.conjunction import Conjunction


class Domain:
    """Events to try, and what is known about them so far."""

    def __init__(self, events: Iterable[Attributes]) -> None:
        self.events = tuple(events)
        self._by_filter: dict[Filter, int] = {}
        self._by_conjunction: dict[Conjunction, int] = {}

    def matching_filter(self, subscription_filter: Filter) -> int:
        """The events that match, the n-th as bit n."""
        known = self._by_filter.get(subscription_filter)
        if known is None:
            tree = subscription_filter.expression
            known = _bits(evaluate(tree, event) is True for event in self.events)
            self._by_filter[subscription_filter] = known
        return known

    def matching_conjunction(self, conjunction: Conjunction) -> int:
        """The events that match, the n-th as bit n."""
        known = self._by_conjunction.get(conjunction)
        if known is None:
            known = _bits(conjunction.matches(event) for event in self.events)
            self._by_conjunction[conjunction] = known
        return known


def uncovered(
    subscription_filter: Filter, conjunctions: Iterable[Conjunction], domain: Domain
) -> Attributes | None:
    """The first event that matches the filter and none of the conjunctions; None if all is well."""
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
