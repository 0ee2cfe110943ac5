"""The checker of promises: finds in a history what must not be there, and names it.

It knows sets of ticks and nothing about brokers. In what follows a subscription *wants* a tick if
the tick is logged, its event matches the filter, and the tick is neither before the start nor after
the end that was told on that stream. The end is

    the tick of `Ended`          for one that was ended;
    the last tick delivered      for one that was cut;
    the newest logged tick       for one that lives when the history is finished,

and in the first two cases whatever was *due* when it was over, if that is later; of the last only
what is due is wanted. Something is due if it must have happened by now: `bound_s` have passed since
its cause (for what is over: since the confirmation) and since `Healed`, or it is finished and
everybody was told that nothing more comes. A history without `Healed` and `Finished` has nothing
due: only what was promised until its last record counts. An event that is optional, that may have
lived too long before it could be delivered, or that is out of reach of an edge where the
subscription has been, may be missing; one that is addressed to others must be. The anomalies:

- `lost`: a confirmed event is in no log; or a wanted tick was neither delivered nor withheld, and
  nothing after it was delivered; or an end was told without a word about a stream that had begun.
- `gap`: the same, but something after it was delivered.
- `duplicate`: a tick, or an event, was delivered twice to one subscription; or an event is in the
  logs twice.
- `reordered`: a tick was delivered after a later one of its stream; or a log has events of one
  incarnation against the order of their sequences.
- `phantom`: delivered, but not what the log has at that tick; logged, but never published; said
  about a subscription that nobody made.
- `unmatched`: delivered, but the filter does not match it; or the tick is outside of start and end,
  or came before the one or after the other was told; or the event was sent past its time limit, to
  an edge out of its reach, or to a client that it was not addressed to.
- `wrongly-withheld`: ticks were withheld that their log was not allowed to lack at that moment, or
  that were delivered; or a tick as transient whose event is not.
- `wrongly-refused`: the start that was asked for was there, or none had been asked for.
- `wrongly-granted`: a start that was asked for was told at a tick that had been deleted before.
- `stuck`: a confirmation is due and the publisher was not abandoned; or a subscription lives at the
  end, its start on every stream is due, and on one of those that `Finished` names it has none.
- `late-start`: a subscription has started after a tick of an event that was
  published more than `bound_s` after both `Subscribed` and `Healed`: it should have started there
  or before. Or it started after the latest start it asked for.

Batches have anomalies of their own: `torn-batch`, `double-batch`, `lost-batch`, `wrongly-known`
(see `batches`).

Best-effort subscriptions are promised only the absence of `duplicate`, `reordered`, `phantom` and
`unmatched`; their start does not bind, and they may end anywhere.

The work is sorting the history (`facts`), and matching each event once with each distinct filter.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import msgspec

from anabranch.check import history as saw
from anabranch.check.batches import check_batches
from anabranch.check.facts import Facts, Id, Place

#: Clocks are compared with this precision.
_INSTANT_S = 1e-6
#: A start at a time may be at an earlier tick that was not on disk yet, but not at an older one.
_UNSYNCED_S = 1.0


class Anomaly(msgspec.Struct, frozen=True):
    """One broken promise. Fields that do not apply are empty or 0."""

    name: str
    subscription: str
    stream: str
    tick: int
    text: str


def check(history: saw.History, bound_s: float = 10.0) -> list[Anomaly]:
    """Every anomaly of the history: of logs first, then of subscriptions as they were made."""
    facts = Facts(history, bound_s)
    found = [*_check_logs(facts), *_check_confirmations(facts), *_check_strangers(facts)]
    batches = check_batches(facts)
    found += [Anomaly(name, "", stream, tick, text) for name, stream, tick, text in batches]
    for subscription in facts.subscriptions.values():
        names: set[Id] = set()
        found += _check_refusal(facts, subscription)
        for stream in facts.streams:
            found += _check_deliveries(facts, subscription, stream, names)
            if subscription.quality != "best-effort":
                found += _check_withheld(facts, subscription, stream)
                found += _check_promise(facts, subscription, stream)
                found += _check_start(facts, subscription, stream)
    return found


def _text(name: Id) -> str:
    """The name of an event as it is written everywhere."""
    return ":".join(map(str, name))


# -- logs and publishers ------------------------------------------------------------------------


def _check_logs(facts: Facts) -> Iterator[Anomaly]:
    seen: dict[Id, tuple[str, int]] = {}
    highest: dict[tuple[str, str, int], int] = {}
    for entry in sorted(facts.logged, key=lambda entry: (entry.stream, entry.tick)):
        name = (entry.publisher, entry.incarnation, entry.sequence)
        place = (entry.stream, entry.tick)
        if facts.logs[entry.stream][entry.tick] != name:
            text = f"the tick holds {_text(name)} and another event"
            yield Anomaly("phantom", "", *place, text)
        if name not in facts.published:
            text = f"{_text(name)} is logged but was never published"
            yield Anomaly("phantom", "", *place, text)
        if seen.setdefault(name, place) != place:
            before = "tick {1} of {0}".format(*seen[name])
            text = f"{_text(name)} is logged at {before} already"
            yield Anomaly("duplicate", "", *place, text)
        line = (entry.stream, entry.publisher, entry.incarnation)
        if entry.sequence < highest.get(line, 0):
            text = f"{_text(name)} is logged after sequence {highest[line]}"
            yield Anomaly("reordered", "", *place, text)
        highest[line] = max(entry.sequence, highest.get(line, 0))


def _check_confirmations(facts: Facts) -> Iterator[Anomaly]:
    safe = {name for log in facts.logs.values() for name in log.values()}
    for name, event in facts.published.items():
        life, sequence = name[:2], name[2]
        if sequence <= facts.confirmed.get(life, 0):
            if name not in safe:
                text = f"{_text(name)} is confirmed but in no log"
                yield Anomaly("lost", "", event.broker, 0, text)
        elif facts.is_due(event.time) and life not in facts.abandoned:
            yield Anomaly("stuck", "", event.broker, 0, f"{_text(name)} was never confirmed")


def _check_strangers(facts: Facts) -> Iterator[Anomaly]:
    for subscription, stream in [*facts.delivered, *facts.started, *facts.withheld, *facts.ended]:
        if subscription not in facts.subscriptions:
            yield Anomaly("phantom", subscription, stream, 0, "nobody made this subscription")


# -- subscriptions ------------------------------------------------------------------------------


def _check_deliveries(
    facts: Facts, subscription: saw.Subscribed, stream: str, names: set[Id]
) -> Iterator[Anomaly]:
    """What is wrong with what was delivered. `names` are those of all streams so far."""
    who = subscription.subscription
    log = facts.logs[stream]
    matching = facts.matching(subscription.filter, stream)
    ticks: set[int] = set()
    latest = 0
    for delivered in facts.delivered.get((who, stream), ()):
        tick = delivered.tick
        name = (delivered.publisher, delivered.incarnation, delivered.sequence)
        if log.get(tick) != name or name not in facts.published:
            there = _text(log[tick]) if tick in log else "no event there"
            text = f"delivered {_text(name)}, but the log has {there}"
            yield Anomaly("phantom", who, stream, tick, text)
        elif tick not in matching:
            text = f"{facts.published[name].attributes} does not match {subscription.filter}"
            yield Anomaly("unmatched", who, stream, tick, text)
        elif text := _forbidden(facts, subscription, delivered):
            yield Anomaly("unmatched", who, stream, tick, text)
        if tick in ticks or name in names:
            yield Anomaly("duplicate", who, stream, tick, f"{_text(name)} was delivered again")
        elif tick < latest:
            yield Anomaly("reordered", who, stream, tick, f"delivered after tick {latest}")
        ticks.add(tick)
        names.add(name)
        latest = max(latest, tick)


def _forbidden(facts: Facts, subscription: saw.Subscribed, delivered: saw.Delivered) -> str:
    """Why a match should not have been delivered; "" if it should."""
    who, stream, tick = subscription.subscription, delivered.stream, delivered.tick
    event = facts.published[facts.logs[stream][tick]]
    made = facts.times[stream].get(tick)
    if not _is_addressed(event, subscription):
        return f"it is addressed to {event.destinations}"
    if event.reach is not None and facts.edge_at(who, delivered.time) not in event.reach:
        return f"at {facts.edge_at(who, delivered.time)!r}, which is beyond its hop limit"
    if event.time_limit_s is not None and made is not None and delivered.sent:
        age_s = delivered.sent - made
        if age_s > event.time_limit_s + _INSTANT_S:
            return f"sent {age_s:.3f} s after its tick was made; its limit is {event.time_limit_s}"
    if tick in facts.too_late.get((who, stream), ()):
        return "it came after the end"
    if subscription.quality == "best-effort":
        return ""
    # A time that has not come yet means the next tick on disk.
    from_time = min(subscription.start_time, subscription.time) - _UNSYNCED_S
    if subscription.start == "time" and made is not None and made < from_time:
        return f"made at {made:.3f}; it was to start at {from_time:.3f}"
    if subscription.start == "tick" and tick < subscription.latest_start.get(stream, 0):
        return f"it was to start at {subscription.latest_start[stream]}"
    return _out_of_bounds(facts, (who, stream), tick)


def _out_of_bounds(facts: Facts, place: Place, tick: int) -> str:
    start, end = facts.started.get(place), facts.ended.get(place)
    if start is None or tick < start or (end is not None and tick > end):
        told = "not told" if start is None else start
        return f"outside of its start ({told}) and end ({'none' if end is None else end})"
    return "it came before the start was told" if tick in facts.too_early.get(place, ()) else ""


def _check_withheld(facts: Facts, subscription: saw.Subscribed, stream: str) -> Iterator[Anomaly]:
    """What is wrong with what was said not to come."""
    place = (subscription.subscription, stream)
    delivered = {delivered.tick for delivered in facts.delivered.get(place, ())}
    misplaced = facts.too_early.get(place, set()) | facts.too_late.get(place, set())
    log = facts.logs[stream]
    for hole in facts.withheld.get(place, ()):
        if hole.first in misplaced and hole.first not in delivered:
            text = "it was told before the start or after the end"
            yield Anomaly("wrongly-withheld", *place, hole.first, text)
        ticks = facts.between(stream, hole.first, hole.last)
        for tick in sorted(ticks & delivered):
            yield Anomaly("wrongly-withheld", *place, tick, f"delivered, but {hole.reason}")
        if hole.reason == "transient":
            for tick in sorted(ticks - delivered):
                event = facts.published.get(log[tick])
                if event is not None and not event.transient:
                    yield Anomaly("wrongly-withheld", *place, tick, "its event is persistent")
    for hole in facts.unfounded.get(place, ()):
        text = f"{hole.first} to {hole.last} are withheld ({hole.reason}), but not forgotten"
        yield Anomaly("wrongly-withheld", *place, hole.last, text)


def _check_promise(facts: Facts, subscription: saw.Subscribed, stream: str) -> Iterator[Anomaly]:
    """What is wrong with what was not delivered."""
    who = subscription.subscription
    place = (who, stream)
    start = facts.started.get(place)
    if start is None:
        return
    delivered = {delivered.tick for delivered in facts.delivered.get(place, ())}
    latest = max(delivered, default=0)
    over = facts.over.get(who)
    end = float("inf") if over is None else facts.ended.get(place, latest)
    if who in facts.told_ends and place not in facts.ended:
        yield Anomaly("lost", *place, latest, "it has ended without a word about this stream")
    holes = facts.withheld.get(place, ())
    for tick, event in facts.matching(subscription.filter, stream).items():
        if tick in delivered or tick < start:
            continue
        if any(hole.first <= tick <= hole.last for hole in holes):
            continue
        if not _must_come(facts, subscription, stream, tick, event):
            continue
        cause = facts.time_of(stream, tick)
        if over is not None:
            # An event may have waited long for its tick: nothing is due before there is one.
            is_wanted = tick <= end or facts.is_due_by(facts.safe_at(stream, tick), over)
        else:
            is_wanted = tick < latest or facts.is_due(cause) or cause < facts.settled < float("inf")
        if is_wanted and tick < latest:
            yield Anomaly("gap", *place, tick, f"not delivered, but {latest} was")
        elif is_wanted:
            yield Anomaly("lost", *place, tick, f"not delivered; nothing came after {latest}")


def _is_addressed(event: saw.Published, subscription: saw.Subscribed) -> bool:
    return not event.destinations or subscription.client in event.destinations


def _must_come(
    facts: Facts, subscription: saw.Subscribed, stream: str, tick: int, event: saw.Published
) -> bool:
    """Whether an event has to be delivered, or withheld in so many words."""
    if event.optional or not _is_addressed(event, subscription):
        return False
    who = subscription.subscription
    if event.reach is not None and any(edge not in event.reach for _, edge in facts.edges[who]):
        return False
    if event.time_limit_s is None:
        return True
    made = facts.times[stream].get(tick)
    return made is not None and made + event.time_limit_s > facts.finished


# -- starts -------------------------------------------------------------------------------------


def _check_refusal(facts: Facts, subscription: saw.Subscribed) -> Iterator[Anomaly]:
    """Only what is not in the log is refused."""
    who = subscription.subscription
    gone = facts.gone_when_refused.get(who)
    if gone is None:
        return
    if subscription.start == "tick":
        for stream, tick in subscription.latest_start.items():
            newest = facts.ticks.get(stream, [0])[-1]
            if tick <= gone.get(stream, (0, 0.0))[0] or tick > newest:
                return
    elif subscription.start == "time":
        until = max((time for _, time in gone.values()), default=0.0)
        if not any(facts.times.values()) or subscription.start_time <= until + _INSTANT_S:
            return
    text = f"its start ({subscription.start}) could have been granted"
    yield Anomaly("wrongly-refused", who, "", 0, text)


def _latest_start(facts: Facts, subscription: saw.Subscribed, stream: str) -> int | None:
    """The tick at which it has to start by what was asked for; None if anywhere."""
    place = (subscription.subscription, stream)
    if subscription.time <= facts.joined.get(stream, -1.0):
        return None
    if subscription.start == "beginning":
        return facts.gone_when_started.get(place, 0) + 1
    if subscription.start != "time":
        return subscription.latest_start.get(stream)
    from_time = subscription.start_time + _INSTANT_S
    made = facts.times[stream].items()
    return next((tick for tick, time in made if time >= from_time), None)


def _check_start(facts: Facts, subscription: saw.Subscribed, stream: str) -> Iterator[Anomaly]:
    who = subscription.subscription
    place = (who, stream)
    start = facts.started.get(place)
    limit = _latest_start(facts, subscription, stream)
    if start is not None and limit is not None and start > limit:
        yield Anomaly("late-start", *place, start, f"it should start at {limit} or before")
        return
    deleted = facts.deleted_when_asked[who].get(stream, 0)
    names_tick = subscription.start == "tick" and stream in subscription.latest_start
    is_asked_for = names_tick or subscription.start == "time"
    if start is not None and start <= deleted and is_asked_for:
        yield Anomaly("wrongly-granted", *place, start, f"{deleted} was deleted before")
    is_over = who in facts.over
    is_awaited = stream in facts.all_streams and facts.is_due(subscription.time)
    if start is None and not is_over and is_awaited:
        yield Anomaly("stuck", *place, 0, "it has not started here")
    # The first tick that was certainly made after it should have started everywhere.
    from_time = max(subscription.time, facts.healed) + facts.bound_s
    times = facts.made_after.get(stream, [])
    ticks = facts.ticks.get(stream, [])
    index = max(bisect_right(times, from_time), bisect_left(ticks, limit or 0))
    if start is not None and index < len(ticks) and start > ticks[index]:
        text = f"tick {ticks[index]} was published late enough for it to start there"
        yield Anomaly("late-start", *place, start, text)
