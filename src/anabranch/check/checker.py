"""The checker of promises: finds in a history what must not be there, and names it.

It knows sets of ticks and nothing about brokers. In what follows a subscription *wants* a tick if
the tick is logged, its event matches the filter and is not optional, and the tick is neither
before the start nor after the end that was told on that stream. The end is

    the tick of `Ended`                   for one that was ended;
    the last tick delivered               for one that was cut, or ended without naming the stream;
    the newest logged tick that is *due*  for one that lives when the history is finished.

Something is *due* if it must have happened by now: `bound_s` have passed since its cause and since
`Healed`. A history without `Healed` and `Finished` has nothing due: only what was promised until
its last record counts. The anomalies:

- `lost`: a confirmed event is in no log; or a wanted tick was neither delivered nor withheld, and
  nothing after it was delivered.
- `gap`: the same, but something after it was delivered.
- `duplicate`: a tick, or an event, was delivered twice to one subscription; or an event is in the
  logs twice.
- `reordered`: a tick was delivered after a later one of its stream; or a log has events of one
  incarnation against the order of their sequences.
- `phantom`: delivered, but not what the log has at that tick; logged, but never published; said
  about a subscription that nobody made.
- `unmatched`: delivered, but the filter does not match it; or the tick is outside of start and end.
- `wrongly-withheld`: a wanted tick was withheld although its log was not allowed to forget it; or
  a withheld tick was delivered.
- `stuck`: a confirmation is due and the publisher was not abandoned; or a subscription lives at the
  end, its start on every stream is due, and on one of those that `Finished` names it has none.
- `late-start`: a subscription has started after a tick of an event that was
  published more than `bound_s` after both `Subscribed` and `Healed`: it should have started there
  or before. Or it started after the latest start it asked for.

Best-effort subscriptions are promised only the absence of `duplicate`, `reordered`, `phantom` and
`unmatched`, and start and end do not bind them.

The work is sorting the history, and matching each event once with each distinct filter.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate

import msgspec

from anabranch.check import history as saw
from anabranch.check.matches import matches

#: Publisher, incarnation, sequence.
_Id = tuple[str, int, int]
#: Subscription, stream.
_Place = tuple[str, str]


class Anomaly(msgspec.Struct, frozen=True):
    """One broken promise. Fields that do not apply are empty or 0."""

    name: str
    subscription: str
    stream: str
    tick: int
    text: str


def check(history: saw.History, bound_s: float = 10.0) -> list[Anomaly]:
    """Every anomaly of the history: of logs first, then of subscriptions as they were made."""
    facts = _Facts(history, bound_s)
    found = [*_check_logs(facts), *_check_confirmations(facts), *_check_strangers(facts)]
    for subscription in facts.subscriptions.values():
        names: set[_Id] = set()
        for stream in facts.streams:
            found += _check_deliveries(facts, subscription, stream, names)
            if subscription.quality != "best-effort":
                found += _check_promise(facts, subscription, stream)
                found += _check_start(facts, subscription, stream)
    return found


class _Facts:
    """A history, sorted by what it is about."""

    def __init__(self, history: saw.History, bound_s: float) -> None:
        self.bound_s = bound_s
        self.healed = self.finished = float("inf")
        self.all_streams: tuple[str, ...] = ()
        self.published: dict[_Id, saw.Published] = {}
        #: (publisher, incarnation) → highest sequence
        self.confirmed: dict[tuple[str, int], int] = {}
        self.abandoned: set[tuple[str, int]] = set()
        self.logged: list[saw.Logged] = []
        self.forgotten: dict[str, int] = defaultdict(int)
        self.subscriptions: dict[str, saw.Subscribed] = {}
        self.started: dict[_Place, int] = {}
        self.delivered: dict[_Place, list[saw.Delivered]] = defaultdict(list)
        self.withheld: dict[_Place, list[saw.WithheldTold]] = defaultdict(list)
        self.ended: dict[_Place, int] = {}
        #: Subscriptions that do not live at the end of the history.
        self.over: set[str] = set()
        for record in history:
            self._take(record)
        self.logs: dict[str, dict[int, _Id]] = defaultdict(dict)
        for entry in sorted(self.logged, key=lambda entry: entry.tick):
            name = (entry.publisher, entry.incarnation, entry.sequence)
            self.logs[entry.stream].setdefault(entry.tick, name)
        self.ticks = {stream: list(log) for stream, log in self.logs.items()}
        #: Beside `ticks`: no tick was made before its event or one before it was published.
        self.made_after = {
            stream: list(accumulate((self.time_of(stream, tick) for tick in ticks), max))
            for stream, ticks in self.ticks.items()
        }
        places = [*self.started, *self.delivered, *self.withheld, *self.ended]
        self.streams = sorted({*self.logs, *self.all_streams, *(stream for _, stream in places)})
        self._matching: dict[tuple[saw.PlainFilter, str], dict[int, bool]] = {}

    def _take(self, record: saw.Record) -> None:
        match record:
            case saw.Delivered():
                self.delivered[record.subscription, record.stream].append(record)
            case saw.Logged():
                self.logged.append(record)
            case saw.Published():
                name = (record.publisher, record.incarnation, record.sequence)
                self.published.setdefault(name, record)
            case saw.Confirmed():
                life = (record.publisher, record.incarnation)
                self.confirmed[life] = max(record.sequence, self.confirmed.get(life, 0))
            case saw.Abandoned():
                self.abandoned.add((record.publisher, record.incarnation))
            case saw.Forgotten():
                forgotten = max(record.tick, self.forgotten[record.stream])
                self.forgotten[record.stream] = forgotten
            case saw.Subscribed():
                self.subscriptions.setdefault(record.subscription, record)
            case saw.Started():
                self.started.setdefault((record.subscription, record.stream), record.tick)
            case saw.WithheldTold():
                self.withheld[record.subscription, record.stream].append(record)
            case saw.Ended():
                self.ended[record.subscription, record.stream] = record.tick
                self.over.add(record.subscription)
            case saw.Cut():
                self.over.add(record.subscription)
            case saw.Healed():
                self.healed = record.time
            case saw.Finished():
                self.finished = record.time
                self.all_streams = record.streams

    def is_due(self, cause_time: float) -> bool:
        """Whether what follows from something at this time must have happened."""
        due_at = max(cause_time, self.healed) + self.bound_s
        return due_at <= self.finished < float("inf")

    def time_of(self, stream: str, tick: int) -> float:
        """When the event in this tick was published."""
        event = self.published.get(self.logs[stream][tick])
        return -float("inf") if event is None else event.time

    def between(self, stream: str, first: int, last: int) -> set[int]:
        """The logged ticks from first to last."""
        ticks = self.ticks.get(stream, [])
        return set(ticks[bisect_left(ticks, first) : bisect_right(ticks, last)])

    def matching(self, plain: saw.PlainFilter, stream: str) -> dict[int, bool]:
        """The logged ticks of the stream whose events match → whether they must be delivered."""
        known = self._matching.get((plain, stream))
        if known is None:
            events = [(t, self.published.get(name)) for t, name in self.logs[stream].items()]
            known = {
                tick: not event.optional
                for tick, event in events
                if event is not None and matches(plain, event.attributes)
            }
            self._matching[plain, stream] = known
        return known


# -- logs and publishers ------------------------------------------------------------------------


def _check_logs(facts: _Facts) -> Iterator[Anomaly]:
    seen: dict[_Id, tuple[str, int]] = {}
    highest: dict[tuple[str, str, int], int] = {}
    for entry in sorted(facts.logged, key=lambda entry: (entry.stream, entry.tick)):
        name = (entry.publisher, entry.incarnation, entry.sequence)
        place = (entry.stream, entry.tick)
        if facts.logs[entry.stream][entry.tick] != name:
            yield Anomaly("phantom", "", *place, f"the tick holds {name} and another event")
        if name not in facts.published:
            yield Anomaly("phantom", "", *place, f"{name} is logged but was never published")
        if seen.setdefault(name, place) != place:
            yield Anomaly("duplicate", "", *place, f"{name} is logged at {seen[name]} already")
        line = (entry.stream, entry.publisher, entry.incarnation)
        if entry.sequence < highest.get(line, 0):
            yield Anomaly("reordered", "", *place, f"{name} is logged after {highest[line]}")
        highest[line] = max(entry.sequence, highest.get(line, 0))


def _check_confirmations(facts: _Facts) -> Iterator[Anomaly]:
    safe = {name for log in facts.logs.values() for name in log.values()}
    for name, event in facts.published.items():
        life, sequence = name[:2], name[2]
        if sequence <= facts.confirmed.get(life, 0):
            if name not in safe:
                yield Anomaly("lost", "", event.broker, 0, f"{name} is confirmed but in no log")
        elif facts.is_due(event.time) and life not in facts.abandoned:
            yield Anomaly("stuck", "", event.broker, 0, f"{name} was never confirmed")


def _check_strangers(facts: _Facts) -> Iterator[Anomaly]:
    for subscription, stream in [*facts.delivered, *facts.started, *facts.withheld, *facts.ended]:
        if subscription not in facts.subscriptions:
            yield Anomaly("phantom", subscription, stream, 0, "nobody made this subscription")


# -- subscriptions ------------------------------------------------------------------------------


def _check_deliveries(
    facts: _Facts, subscription: saw.Subscribed, stream: str, names: set[_Id]
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
            text = f"delivered {name}, but the log has {log.get(tick, 'no event there')}"
            yield Anomaly("phantom", who, stream, tick, text)
        elif tick not in matching:
            text = f"{facts.published[name].attributes} does not match {subscription.filter}"
            yield Anomaly("unmatched", who, stream, tick, text)
        elif subscription.quality != "best-effort" and not _is_asked_for(facts, who, stream, tick):
            yield Anomaly("unmatched", who, stream, tick, _bounds_text(facts, who, stream))
        if tick in ticks or name in names:
            yield Anomaly("duplicate", who, stream, tick, f"{name} was delivered again")
        elif tick < latest:
            yield Anomaly("reordered", who, stream, tick, f"delivered after tick {latest}")
        ticks.add(tick)
        names.add(name)
        latest = max(latest, tick)


def _is_asked_for(facts: _Facts, who: str, stream: str, tick: int) -> bool:
    start = facts.started.get((who, stream))
    return start is not None and start <= tick <= facts.ended.get((who, stream), tick)


def _bounds_text(facts: _Facts, who: str, stream: str) -> str:
    start = facts.started.get((who, stream), "not told")
    return f"outside of its start ({start}) and end ({facts.ended.get((who, stream), 'none')})"


def _check_promise(facts: _Facts, subscription: saw.Subscribed, stream: str) -> Iterator[Anomaly]:
    """What is wrong with what was not delivered."""
    place = (subscription.subscription, stream)
    start = facts.started.get(place)
    if start is None:
        return
    delivered = {delivered.tick for delivered in facts.delivered.get(place, ())}
    latest = max(delivered, default=0)
    excused: set[int] = set()
    for hole in facts.withheld.get(place, ()):
        ticks = facts.between(stream, hole.first, hole.last)
        for tick in sorted(ticks & delivered):
            yield Anomaly("wrongly-withheld", *place, tick, f"delivered, but {hole.reason}")
        excused |= ticks
    lives = subscription.subscription not in facts.over
    end = float("inf") if lives else facts.ended.get(place, latest)
    for tick, must_come in facts.matching(subscription.filter, stream).items():
        if tick in delivered or not must_come or not start <= tick <= end:
            continue
        if tick in excused:
            if tick > facts.forgotten.get(stream, 0):
                yield Anomaly("wrongly-withheld", *place, tick, "the log still has to have it")
        elif tick < latest:
            yield Anomaly("gap", *place, tick, f"not delivered, but {latest} was")
        elif not lives or facts.is_due(facts.time_of(stream, tick)):
            yield Anomaly("lost", *place, tick, f"not delivered; nothing came after {latest}")


def _check_start(facts: _Facts, subscription: saw.Subscribed, stream: str) -> Iterator[Anomaly]:
    place = (subscription.subscription, stream)
    start = facts.started.get(place)
    limit = subscription.latest_start.get(stream)
    if start is not None and limit is not None and start > limit:
        yield Anomaly("late-start", *place, start, f"it should start at {limit} or before")
        return
    lives = subscription.subscription not in facts.over
    if start is None and lives and stream in facts.all_streams and facts.is_due(subscription.time):
        yield Anomaly("stuck", *place, 0, "it has not started here")
    # The first tick that was certainly made after it should have started everywhere.
    from_time = max(subscription.time, facts.healed) + facts.bound_s
    times = facts.made_after.get(stream, [])
    ticks = facts.ticks.get(stream, [])
    index = max(bisect_right(times, from_time), bisect_left(ticks, limit or 0))
    if start is not None and index < len(ticks) and start > ticks[index]:
        text = f"tick {ticks[index]} was published late enough for it to start there"
        yield Anomaly("late-start", *place, start, text)
