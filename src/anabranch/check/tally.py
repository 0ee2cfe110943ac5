"""Expected and actual deliveries per subscriber.

A subscriber may have several episodes (`history`, rule 4), whose names are its own name, a `#` and
a suffix. An episode covers the ticks from its start on each stream to its end there: the reported
end, the last tick delivered if it was cut, the newest tick if it is alive.

Rules

1. `matching` counts the ticks that some episode covers and whose events match, each once; optional
   events count only if they were delivered.
2. `delivered` counts the delivered ticks, each once, and `again` the redeliveries: a client that
   lost its state receives unacknowledged events again.

So `delivered` equals `matching` unless events were withheld, are in flight, or are missing; the
checker decides which.
"""

from collections.abc import Iterable

import msgspec

from anabranch.check import history as saw
from anabranch.check.facts import Facts

#: Stream and tick.
_Position = tuple[str, int]


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one subscriber, over all of its episodes."""

    subscriber: str
    quality: saw.Quality
    episodes: int
    matching: int
    delivered: int
    again: int


def tallies(history: saw.History) -> list[Tally]:
    """The counts of every subscriber, in order of appearance."""
    facts = Facts(history, 0.0)
    groups: dict[str, list[saw.Subscribed]] = {}
    for name, asked in facts.subscriptions.items():
        groups.setdefault(name.partition("#")[0], []).append(asked)
    return [_tally(facts, subscriber, episodes) for subscriber, episodes in groups.items()]


def _tally(facts: Facts, subscriber: str, episodes: list[saw.Subscribed]) -> Tally:
    received = [position for episode in episodes for position in _delivered(facts, episode)]
    delivered = set(received)
    matching: set[_Position] = set()
    for episode in episodes:
        matching.update(_covered(facts, episode, delivered))
    return Tally(
        subscriber=subscriber,
        quality=episodes[0].quality,
        episodes=len(episodes),
        matching=len(matching),
        delivered=len(delivered),
        again=len(received) - len(delivered),
    )


def _delivered(facts: Facts, episode: saw.Subscribed) -> Iterable[_Position]:
    for stream in facts.streams:
        for record in facts.delivered.get((episode.subscription, stream), ()):
            yield stream, record.tick


def _covered(
    facts: Facts, episode: saw.Subscribed, delivered: set[_Position]
) -> Iterable[_Position]:
    who = episode.subscription
    for stream in facts.streams:
        start = facts.started.get((who, stream))
        if start is None:
            continue
        latest = max((each.tick for each in facts.delivered.get((who, stream), ())), default=0)
        is_over = who in facts.over
        end = facts.ended.get((who, stream), latest) if is_over else float("inf")
        for tick, event in facts.matching(episode.filter, stream).items():
            if start <= tick <= end and (not event.optional or (stream, tick) in delivered):
                yield stream, tick
