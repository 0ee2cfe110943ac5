"""The verdict on a run: who was given how much, and which promises were broken.

The judgement is the checker's (`check.checker`); here its findings are counted for people. This
module keeps no state.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from anabranch.check import history as saw
from anabranch.check.checker import Anomaly, check
from anabranch.check.reference import matches

#: Examples kept of each kind of anomaly.
EXAMPLES_MAX = 5
#: What a verdict always names, found or not.
ALWAYS_NAMED = ("lost", "gap", "duplicate", "reordered")


class SubscriptionAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One subscription, and what it came to."""

    subscription: str
    quality: saw.Quality
    #: Logged events that match its filter, whenever they were logged.
    matching: int
    delivered: int
    anomalies: dict[str, int]


class RunVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a history came to."""

    published: int
    confirmed: int
    logged: int
    delivered: int
    accounts: tuple[SubscriptionAccount, ...]
    #: Name → how many.
    anomalies: dict[str, int]
    #: At most `EXAMPLES_MAX` of each name.
    examples: tuple[Anomaly, ...]
    #: Whether the history ends by itself, so that what is missing at its end is missing.
    finished: bool

    @property
    def clean(self) -> bool:
        """Whether every promise was kept."""
        return not self.examples


def judge(history: Sequence[saw.Record], bound_s: float = 10.0) -> RunVerdict:
    """Check a history and count what is in it."""
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
    """The history with an end: nothing that its records demand may be outstanding any more.

    The streams are those that something was logged in or published at. What follows the last
    fault (`Healed`, if the history has one) is due."""
    times = [getattr(record, "time", None) or 0.0 for record in history]
    streams = {r.stream for r in history if isinstance(r, saw.Logged)}
    healed = [r.time for r in history if isinstance(r, saw.Healed)]
    end = max([*times, *healed], default=0.0) + 2 * bound_s
    added: list[saw.Record] = [] if healed else [saw.Healed(max(times, default=0.0))]
    return [*history, *added, saw.Finished(end, tuple(sorted(streams)))]
