"""The verdict on a run: deliveries per subscription and broken guarantees.

`check.checker` finds the anomalies; this module counts them.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from anabranch.check import history as saw
from anabranch.check.checker import Anomaly, check
from anabranch.check.reference import matches

#: Examples kept of each kind of anomaly.
EXAMPLES_MAX = 5
#: Anomalies that a verdict always lists, even with a count of 0.
ALWAYS_NAMED = ("lost", "gap", "duplicate", "reordered")


class SubscriptionAccount(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one subscription."""

    subscription: str
    quality: saw.Quality
    #: Logged events that match its filter, at any time.
    matching: int
    delivered: int
    anomalies: dict[str, int]


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a history."""

    published: int
    confirmed: int
    logged: int
    delivered: int
    accounts: tuple[SubscriptionAccount, ...]
    #: Name → count.
    anomalies: dict[str, int]
    #: At most `EXAMPLES_MAX` of each name.
    examples: tuple[Anomaly, ...]
    #: Whether the history is complete, so that events missing at its end are lost.
    finished: bool

    @property
    def clean(self) -> bool:
        """Whether every guarantee was kept."""
        return not self.examples


def judge(history: Sequence[saw.Record], bound_s: float = 10.0) -> RunVerdict:
    """Check a history and count its records."""
    found = check(history, bound_s)
    published = {_name(r): r for r in history if isinstance(r, saw.Published)}
    logged = {_name(r) for r in history if isinstance(r, saw.Logged)}
    delivered = Counter(r.subscription for r in history if isinstance(r, saw.Delivered))
    counts = Counter(anomaly.name for anomaly in found)
    events = [event for name, event in published.items() if name in logged]
    return RunVerdict(
        published=len(published),
        confirmed=_confirmed(history, published),
        logged=len(logged),
        delivered=delivered.total(),
        accounts=_accounts(history, events, delivered, found),
        anomalies=dict.fromkeys(ALWAYS_NAMED, 0) | dict(sorted(counts.items())),
        examples=_examples(found),
        finished=any(isinstance(record, saw.Finished) for record in history),
    )


def _name(record: saw.Published | saw.Logged) -> tuple[str, int, int]:
    return (record.publisher, record.incarnation, record.sequence)


def _confirmed(
    history: Sequence[saw.Record], published: dict[tuple[str, int, int], saw.Published]
) -> int:
    highest: dict[tuple[str, int], int] = {}
    for record in history:
        if isinstance(record, saw.Confirmed):
            life = (record.publisher, record.incarnation)
            highest[life] = max(record.sequence, highest.get(life, 0))
    return sum(name[2] <= highest.get(name[:2], 0) for name in published)


def _accounts(
    history: Sequence[saw.Record],
    events: list[saw.Published],
    delivered: Counter[str],
    found: list[Anomaly],
) -> tuple[SubscriptionAccount, ...]:
    by_subscription: dict[str, Counter[str]] = {}
    for anomaly in found:
        by_subscription.setdefault(anomaly.subscription, Counter())[anomaly.name] += 1
    matching: dict[saw.AnyFilter, int] = {}
    accounts: dict[str, SubscriptionAccount] = {}
    for record in history:
        if not isinstance(record, saw.Subscribed) or record.subscription in accounts:
            continue
        plain = record.filter
        if plain not in matching:
            matching[plain] = sum(matches(plain, event.attributes) for event in events)
        accounts[record.subscription] = SubscriptionAccount(
            subscription=record.subscription,
            quality=record.quality,
            matching=matching[plain],
            delivered=delivered[record.subscription],
            anomalies=dict(sorted(by_subscription.get(record.subscription, Counter()).items())),
        )
    return tuple(accounts.values())


def _examples(found: list[Anomaly]) -> tuple[Anomaly, ...]:
    kept: list[Anomaly] = []
    seen: Counter[str] = Counter()
    for anomaly in found:
        seen[anomaly.name] += 1
        if seen[anomaly.name] <= EXAMPLES_MAX:
            kept.append(anomaly)
    return tuple(kept)


def concluded(history: list[saw.Record], bound_s: float = 10.0) -> list[saw.Record]:
    """The history with an end: everything that its records require is due.

    The streams are those with logged events. Deliveries are due after the last fault (`Healed`, if
    the history has one)."""
    times = [getattr(record, "time", None) or 0.0 for record in history]
    streams = {r.stream for r in history if isinstance(r, saw.Logged)}
    healed = [r.time for r in history if isinstance(r, saw.Healed)]
    end = max([*times, *healed], default=0.0) + 2 * bound_s
    added: list[saw.Record] = [] if healed else [saw.Healed(max(times, default=0.0))]
    return [*history, *added, saw.Finished(end, tuple(sorted(streams)))]
