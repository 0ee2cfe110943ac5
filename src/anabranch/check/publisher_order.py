"""Anomalies of the order in which a subscription receives one publisher's events.

A publisher that asked for order (`Published.ordered_from`) must not be seen in another order by a
subscription that receives several of its events, wherever it published them. An event e *had to
precede* a later one f of the same publisher if f asked to follow the incarnation of e, and before f
was published e was either confirmed, or not yet confirmed and not given up (`Abandoned`). The
anomaly is

- `publisher-reordered`: an event was delivered after one that it had to precede, and the
  subscription was not told (`OrderNotKept`) that the incarnation of the later one comes out of
  order.

Events of one incarnation are in one stream; `checker` checks these.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator

from anabranch.check import history as saw
from anabranch.check.facts import Facts, Id


def check_publisher_order(
    facts: Facts, subscription: saw.Subscribed
) -> Iterator[tuple[str, int, str]]:
    """The events that a subscription received too late: stream, tick and text."""
    #: Publisher → incarnation → its first event that was delivered.
    first_of: dict[str, dict[int, Id]] = defaultdict(dict)
    told: set[tuple[str, int]] = set()
    had: set[Id] = set()
    for record in facts.arrivals.get(subscription.subscription, ()):
        publisher, incarnation = record.publisher, record.incarnation
        if isinstance(record, saw.OrderNotKept):
            told.add((publisher, incarnation))
            continue
        event = (publisher, incarnation, record.sequence)
        if event in had or event not in facts.published:
            continue
        had.add(event)
        for later, other in first_of[publisher].items():
            if later <= incarnation or (publisher, later) in told:
                continue
            if _had_to_precede(facts, event, other):
                one, two = (":".join(map(str, name)) for name in (event, other))
                yield record.stream, record.tick, f"{one} was delivered after {two}"
        first_of[publisher].setdefault(incarnation, event)


def _had_to_precede(facts: Facts, event: Id, later: Id) -> bool:
    ordered_from = facts.published[later].ordered_from
    if not 0 < ordered_from <= event[1]:
        return False
    at = facts.published_at[later]
    confirmed = facts.confirmed_at.get(event[:2], [])
    index = bisect_left(confirmed, (event[2], -1))
    if index < len(confirmed) and confirmed[index][1] < at:
        return True
    return facts.abandoned_at.get(event[:2], at) >= at
