"""The checker: finds violations of the delivery guarantees in a history.

It works on sets of ticks and uses no code of the brokers. A subscription *wants* a tick if the tick
is logged, its event matches the filter, and the tick is neither before the start nor after the end
of the subscription on that stream. The end is

    the tick of `Ended`          if the subscription ended;
    the last tick delivered      if it was cut;
    the newest logged tick       if it is alive when the history is finished.

In the first two cases, the subscription also wants later ticks that were *due* when it was over; in
the last case it wants only ticks that are due. A delivery is due if it must have happened by now:
`bound_s` have passed since its cause (for a subscription that is over: since the confirmation) and
since `Healed`, or the history is finished and all clients were informed that nothing more follows.
In a history without `Healed` and `Finished` nothing is due; only the guarantees up to its last
record count. An event may be missing if it is optional, if it may have expired before delivery, or
if it cannot reach an edge where the subscription has been; an event addressed to other clients must
not be delivered. The anomalies:

- `lost`: a confirmed event is in no log; or a wanted tick was neither delivered nor withheld, and
  no later tick was delivered; or a subscription ended without an end for a stream that had started.
- `gap`: a wanted tick was neither delivered nor withheld, but a later one was delivered.
- `duplicate`: a tick or an event was delivered twice to one subscription; or an event is in the
  logs twice.
- `reordered`: a tick was delivered after a later one of its stream; or a log has events of one
  incarnation out of sequence.
- `phantom`: a delivered event is not the one logged at its tick; or a logged event was never
  published, or withdrawn by its publisher; or a record names a subscription that was never created.
- `unmatched`: a delivered event does not match the filter; or its tick is outside of start and end,
  or was delivered before the start or after the end was reported; or the event was sent after its
  time limit, to an edge out of its reach, or to a client that it is not addressed to.
- `wrongly-withheld`: ticks were withheld that their log was not permitted to lack at that time, or
  that were delivered; or a tick was withheld as transient although its event is persistent.
- `wrongly-refused`: the requested start was available, or none was requested.
- `wrongly-granted`: the requested start was granted at a tick that had already been deleted.
- `stuck`: a confirmation is due and the publisher was not abandoned; or a subscription is alive at
  the end, its start is due, and it has not started on one of the streams that `Finished` names.
- `late-start`: a subscription started after the tick of an event that was published more than
  `bound_s` after both `Subscribed` and `Healed`; or after the latest start that it requested.

`publisher_order` adds `publisher-reordered`, and `batches` the anomalies of batches: `torn-batch`,
`double-batch`, `lost-batch`, `wrongly-known`.

For best-effort subscriptions only `duplicate`, `reordered`, `phantom` and `unmatched` are checked;
their start is not binding, and they may end anywhere.

The cost is sorting the history (`facts`) and matching each event once with each distinct filter.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import msgspec

from anabranch.check import history as saw
from anabranch.check.batches import check_batches
from anabranch.check.facts import Facts, Id, Place
from anabranch.check.publisher_order import check_publisher_order

#: Clocks are compared with this precision.
_INSTANT_S = 1e-6
#: A start at a time may be this much earlier, at a tick that was not on disk yet.
_UNSYNCED_S = 1.0


class Anomaly(msgspec.Struct, frozen=True):
    """One violation of a guarantee. Fields that do not apply are empty or 0."""

    name: str
    subscription: str
    stream: str
    tick: int
    text: str


def check(history: saw.History, bound_s: float = 10.0) -> list[Anomaly]:
    """All anomalies of a history: first of logs, then of subscriptions in order of creation."""
    facts = Facts(history, bound_s)
    found = [
        *_check_logs(facts),
        *_check_confirmations(facts),
        *_check_unknown_subscriptions(facts),
    ]
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
        if subscription.quality != "best-effort":
            late = check_publisher_order(facts, subscription)
            who = subscription.subscription
            found += [Anomaly("publisher-reordered", who, *each) for each in late]
    return found


def _text(name: Id) -> str:
    """The id of an event as text."""
    return ":".join(map(str, name))


# -- logs and publishers ------------------------------------------------------------------------


def _check_logs(facts: Facts) -> Iterator[Anomaly]:
    seen: dict[Id, tuple[str, int]] = {}
    highest: dict[tuple[str, str, int], int] = {}
    for entry in sorted(facts.logged, key=lambda entry: (entry.stream, entry.tick)):
        name = (entry.publisher, entry.incarnation, entry.sequence)
        place = (entry.stream, entry.tick)
        if facts.logs[entry.stream][entry.tick] != name:
            text = f"the tick has {_text(name)} and another event"
            yield Anomaly("phantom", "", *place, text)
        if name not in facts.published:
            text = f"{_text(name)} is logged but was never published"
            yield Anomaly("phantom", "", *place, text)
        if name[2] >= facts.withdrawn.get(name[:2], name[2] + 1):
            text = f"{_text(name)} is logged, but its publisher was told that it is not"
            yield Anomaly("phantom", "", *place, text)
        if seen.setdefault(name, place) != place:
            before = "tick {1} of {0}".format(*seen[name])
            text = f"{_text(name)} is already logged at {before}"
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


def _check_unknown_subscriptions(facts: Facts) -> Iterator[Anomaly]:
    for subscription, stream in [*facts.delivered, *facts.started, *facts.withheld, *facts.ended]:
        if subscription not in facts.subscriptions:
            yield Anomaly("phantom", subscription, stream, 0, "this subscription was never created")


# -- subscriptions ------------------------------------------------------------------------------


def _check_deliveries(
    facts: Facts, subscription: saw.Subscribed, stream: str, names: set[Id]
) -> Iterator[Anomaly]:
    """Check the deliveries on one stream. `names`: the events delivered on all streams so far."""
    who = subscription.subscription
    log = facts.logs[stream]
    matching = facts.matching(subscription.filter, stream)
    ticks: set[int] = set()
    latest = 0
    for delivered in facts.delivered.get((who, stream), ()):
        tick = delivered.tick
        name = (delivered.publisher, delivered.incarnation, delivered.sequence)
        if log.get(tick) != name or name not in facts.published:
            logged = _text(log[tick]) if tick in log else "no event at this tick"
            text = f"delivered {_text(name)}, but the log has {logged}"
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
            return f"sent {age_s:.3f} s after its tick; its limit is {event.time_limit_s}"
    if tick in facts.too_late.get((who, stream), ()):
        return "delivered after the end"
    if subscription.quality == "best-effort":
        return ""
    # A start time in the future means the next tick on disk.
    from_time = min(subscription.start_time, subscription.time) - _UNSYNCED_S
    if subscription.start == "time" and made is not None and made < from_time:
        return f"logged at {made:.3f}; the requested start is {from_time:.3f}"
    if subscription.start == "tick" and tick < subscription.latest_start.get(stream, 0):
        return f"the requested start is {subscription.latest_start[stream]}"
    return _out_of_bounds(facts, (who, stream), tick)


def _out_of_bounds(facts: Facts, place: Place, tick: int) -> str:
    start, end = facts.started.get(place), facts.ended.get(place)
    if start is None or tick < start or (end is not None and tick > end):
        first = "none" if start is None else start
        return f"outside of its start ({first}) and end ({'none' if end is None else end})"
    is_early = tick in facts.too_early.get(place, ())
    return "delivered before the start was reported" if is_early else ""


def _check_withheld(facts: Facts, subscription: saw.Subscribed, stream: str) -> Iterator[Anomaly]:
    """Check the withheld ranges on one stream."""
    place = (subscription.subscription, stream)
    delivered = {delivered.tick for delivered in facts.delivered.get(place, ())}
    misplaced = facts.too_early.get(place, set()) | facts.too_late.get(place, set())
    log = facts.logs[stream]
    for hole in facts.withheld.get(place, ()):
        if hole.first in misplaced and hole.first not in delivered:
            text = "withheld before the start or after the end"
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
        text = f"{hole.first} to {hole.last} are withheld ({hole.reason}), but still retained"
        yield Anomaly("wrongly-withheld", *place, hole.last, text)


def _check_promise(facts: Facts, subscription: saw.Subscribed, stream: str) -> Iterator[Anomaly]:
    """Check for missing deliveries on one stream."""
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
        yield Anomaly("lost", *place, latest, "ended without an end for this stream")
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
            # An event may have waited long for its tick, and is not due before it has one.
            is_wanted = tick <= end or facts.is_due_by(facts.safe_at(stream, tick), over)
        else:
            is_wanted = tick < latest or facts.is_due(cause) or cause < facts.settled < float("inf")
        if is_wanted and tick < latest:
            yield Anomaly("gap", *place, tick, f"not delivered, but {latest} was")
        elif is_wanted:
            yield Anomaly("lost", *place, tick, f"not delivered; no delivery after {latest}")


def _is_addressed(event: saw.Published, subscription: saw.Subscribed) -> bool:
    return not event.destinations or subscription.client in event.destinations


def _must_come(
    facts: Facts, subscription: saw.Subscribed, stream: str, tick: int, event: saw.Published
) -> bool:
    """Whether an event must be delivered or explicitly withheld."""
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
    """Check that only an unavailable start is refused."""
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
    """The latest permitted start, by the request; None if any start is permitted."""
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
        yield Anomaly("late-start", *place, start, f"should start at {limit} or before")
        return
    deleted = facts.deleted_when_asked[who].get(stream, 0)
    names_tick = subscription.start == "tick" and stream in subscription.latest_start
    is_asked_for = names_tick or subscription.start == "time"
    if start is not None and start <= deleted and is_asked_for:
        yield Anomaly("wrongly-granted", *place, start, f"{deleted} was already deleted")
    is_over = who in facts.over
    is_awaited = stream in facts.all_streams and facts.is_due(subscription.time)
    if start is None and not is_over and is_awaited:
        yield Anomaly("stuck", *place, 0, "has not started on this stream")
    # The first tick that was certainly logged after it should have started on all streams.
    from_time = max(subscription.time, facts.healed) + facts.bound_s
    times = facts.made_after.get(stream, [])
    ticks = facts.ticks.get(stream, [])
    index = max(bisect_right(times, from_time), bisect_left(ticks, limit or 0))
    if start is not None and index < len(ticks) and start > ticks[index]:
        text = f"tick {ticks[index]} was published late enough for it to start there"
        yield Anomaly("late-start", *place, start, text)
