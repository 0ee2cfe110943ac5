"""How much each subscriber had to get, and how much it got: numbers that can be held together.

A subscriber may live through several episodes (`history`, rule 4), which are named like it up to a
`#`. An episode is answerable for the ticks from its start on each stream to its end there: the end
that was told, the last tick delivered if it was cut, the newest one if it lives. Rules:

1. `matching` counts the ticks that some episode is answerable for and whose events match, each
   once; those that need not come count only if they came.
2. `delivered` counts the ticks that came, each once, and `again` what came more often: a client
   that lost its memory is given once more what it had not acknowledged.

So `delivered` is `matching` unless something was withheld, is on its way, or is wrong; the checker
says which. This module keeps no state.
"""

from collections.abc import Iterable

import msgspec

from anabranch.check import history as saw
from anabranch.check.facts import Facts

#: Stream and tick.
_Spot = tuple[str, int]


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """One subscriber, over all of its episodes."""

    subscriber: str
    quality: saw.Quality
    episodes: int
    matching: int
    delivered: int
    again: int


def tallies(history: saw.History) -> list[Tally]:
    """The numbers of every subscriber, in the order in which they came."""
    facts = Facts(history, 0.0)
    groups: dict[str, list[saw.Subscribed]] = {}
    for name, asked in facts.subscriptions.items():
        groups.setdefault(name.partition("#")[0], []).append(asked)
    return [_tally(facts, subscriber, episodes) for subscriber, episodes in groups.items()]


def _tally(facts: Facts, subscriber: str, episodes: list[saw.Subscribed]) -> Tally:
    came = [spot for episode in episodes for spot in _delivered(facts, episode)]
    delivered = set(came)
    matching: set[_Spot] = set()
    for episode in episodes:
        matching.update(_answerable(facts, episode, delivered))
    return Tally(
        subscriber=subscriber,
        quality=episodes[0].quality,
        episodes=len(episodes),
        matching=len(matching),
        delivered=len(delivered),
        again=len(came) - len(delivered),
    )


def _delivered(facts: Facts, episode: saw.Subscribed) -> Iterable[_Spot]:
    for stream in facts.streams:
        for record in facts.delivered.get((episode.subscription, stream), ()):
            yield stream, record.tick


def _answerable(facts: Facts, episode: saw.Subscribed, delivered: set[_Spot]) -> Iterable[_Spot]:
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
