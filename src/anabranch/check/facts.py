"""The facts of a history, sorted by what they are about, for the checker to look up.

A history is read once, in order. What depends on the order is noted on the way: whether a delivery
came before its start was told or after the end, and what each log lacked when somebody spoke of
it. No judgement is made here.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import accumulate

from anabranch.check import history as saw
from anabranch.check.reference import matches

#: Publisher, incarnation, sequence.
Id = tuple[str, int, int]
#: Subscription, stream.
Place = tuple[str, str]

_NEVER = float("inf")


class Facts:
    """A history, sorted by what it is about."""

    def __init__(self, history: saw.History, bound_s: float) -> None:
        self.bound_s = bound_s
        self.healed = self.finished = self.settled = _NEVER
        self.all_streams: tuple[str, ...] = ()
        self.published: dict[Id, saw.Published] = {}
        #: (publisher, incarnation) → highest sequence
        self.confirmed: dict[tuple[str, int], int] = {}
        #: The same → (highest sequence, when that was told), ascending.
        self.confirmations: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
        self.abandoned: set[tuple[str, int]] = set()
        #: Stream → since when it is part of the network, if it was not from the beginning.
        self.joined: dict[str, float] = {}
        self.logged: list[saw.Logged] = []
        self.subscriptions: dict[str, saw.Subscribed] = {}
        self.started: dict[Place, int] = {}
        self.delivered: dict[Place, list[saw.Delivered]] = defaultdict(list)
        self.withheld: dict[Place, list[saw.WithheldTold]] = defaultdict(list)
        self.ended: dict[Place, int] = {}
        #: Subscriptions that do not live at the end of the history → since when.
        self.over: dict[str, float] = {}
        #: Those of them that were told their ends.
        self.told_ends: set[str] = set()
        #: Where each has been: since when, at which edge.
        self.edges: dict[str, list[tuple[float, str]]] = defaultdict(list)
        #: Ticks that were spoken of when the application had no start yet, or its end already.
        self.too_early: dict[Place, set[int]] = defaultdict(set)
        self.too_late: dict[Place, set[int]] = defaultdict(set)
        self._begin_forgetting()
        self._begin_batches()
        for record in history:
            self._take(record)
        self._sort_logs()

    def _begin_forgetting(self) -> None:
        #: Stream → what its log may lack: by lossy retention; for any reason, with the time of
        #: the last decision; and for good.
        self.lossy: dict[str, int] = defaultdict(int)
        self.gone: dict[str, tuple[int, float]] = {}
        self.deleted: dict[str, int] = defaultdict(int)
        #: Stream → ranges of ticks that are lost.
        self.lost: dict[str, list[tuple[int, int]]] = defaultdict(list)
        #: What was known of that when a start was asked for, refused, or told.
        self.deleted_when_asked: dict[str, dict[str, int]] = {}
        self.gone_when_refused: dict[str, dict[str, tuple[int, float]]] = {}
        self.gone_when_started: dict[Place, int] = {}
        #: Holes that were told before the log was allowed to lack them.
        self.unfounded: dict[Place, list[saw.WithheldTold]] = defaultdict(list)

    def _begin_batches(self) -> None:
        #: Token → what was staged with it.
        self.drafted: dict[str, saw.Drafted] = {}
        #: Sink → what was asked of it, and told.
        self.asked: dict[str, list[saw.BatchAsked]] = defaultdict(list)
        self.told: dict[str, list[saw.BatchTold]] = defaultdict(list)
        self.sinks_left: set[str] = set()

    def _publish_batches(self) -> None:
        """Events of batches are published when they are committed for the first time."""
        asked: dict[str, saw.BatchAsked] = {}
        for ask in (ask for asks in self.asked.values() for ask in asks):
            for token in ask.tokens:
                asked.setdefault(token, ask)
        for entry in self.logged:
            token, place = entry.draft or ("", 0)
            if token not in asked or place >= len(self.drafted[token].drafts):
                continue
            name = (entry.publisher, entry.incarnation, entry.sequence)
            what = (self.drafted[token].drafts[place], asked[token].broker)
            self.published.setdefault(name, saw.Published(asked[token].time, *name, *what))
            # Nobody waits for the confirmation of a single one.
            self.abandoned.add(name[:2])

    def _sort_logs(self) -> None:
        self._publish_batches()
        self.logs: dict[str, dict[int, Id]] = defaultdict(dict)
        #: Stream → tick → when it was made, where that is known.
        self.times: dict[str, dict[int, float]] = defaultdict(dict)
        for entry in sorted(self.logged, key=lambda entry: entry.tick):
            name = (entry.publisher, entry.incarnation, entry.sequence)
            self.logs[entry.stream].setdefault(entry.tick, name)
            if entry.time is not None:
                self.times[entry.stream][entry.tick] = entry.time
        self.ticks = {stream: list(log) for stream, log in self.logs.items()}
        #: Beside `ticks`: no tick was made before its event or one before it was published.
        self.made_after = {
            stream: list(accumulate((self.time_of(stream, tick) for tick in ticks), max))
            for stream, ticks in self.ticks.items()
        }
        places = [*self.started, *self.delivered, *self.withheld, *self.ended]
        self.streams = sorted({*self.logs, *self.all_streams, *(stream for _, stream in places)})
        self._matching: dict[tuple[saw.AnyFilter, str], dict[int, saw.Published]] = {}

    # -- reading --------------------------------------------------------------------------------

    def _take(self, record: saw.Record) -> None:
        match record:
            case saw.Delivered():
                place = (record.subscription, record.stream)
                self.delivered[place].append(record)
                self._note_order(place, record.tick)
            case saw.Logged():
                self.logged.append(record)
            case saw.Published():
                name = (record.publisher, record.incarnation, record.sequence)
                self.published.setdefault(name, record)
            case saw.Confirmed():
                life = (record.publisher, record.incarnation)
                if record.sequence > self.confirmed.get(life, 0):
                    self.confirmed[life] = record.sequence
                    self.confirmations[life].append((record.sequence, record.time))
            case saw.Abandoned():
                self.abandoned.add((record.publisher, record.incarnation))
            case saw.Forgotten():
                self._take_forgotten(record)
            case saw.Lost():
                self.lost[record.stream].append((record.first, record.last))
            case saw.Drafted() | saw.BatchAsked() | saw.BatchTold() | saw.SinkLeft():
                self._take_of_batch(record)
            case saw.Joined():
                self.joined.setdefault(record.stream, record.time)
            case saw.Healed():
                self.healed = record.time
            case saw.Finished():
                self.finished = record.time
                self.settled = _NEVER if record.settled is None else record.settled
                self.all_streams = record.streams
            case _:
                self._take_of_subscription(record)

    def _take_of_batch(
        self, record: saw.Drafted | saw.BatchAsked | saw.BatchTold | saw.SinkLeft
    ) -> None:
        match record:
            case saw.Drafted():
                self.drafted.setdefault(record.token, record)
            case saw.BatchAsked():
                self.asked[record.sink].append(record)
            case saw.BatchTold():
                self.told[record.sink].append(record)
            case saw.SinkLeft():
                self.sinks_left.add(record.sink)

    def _take_of_subscription(self, record: saw.Record) -> None:
        match record:
            case saw.Subscribed():
                self.subscriptions.setdefault(record.subscription, record)
                self.deleted_when_asked.setdefault(record.subscription, dict(self.deleted))
                self.edges[record.subscription].append((record.time, record.edge))
            case saw.Moved():
                self.edges[record.subscription].append((record.time, record.edge))
            case saw.Refused():
                self.gone_when_refused[record.subscription] = dict(self.gone)
            case saw.Started():
                place = (record.subscription, record.stream)
                self.started.setdefault(place, record.tick)
                self.gone_when_started.setdefault(place, self.gone.get(record.stream, (0, 0))[0])
            case saw.WithheldTold():
                place = (record.subscription, record.stream)
                self.withheld[place].append(record)
                self._note_order(place, record.first)
                is_founded = record.last <= self.lossy[record.stream] or self._is_lost(record)
                if not is_founded and record.reason != "transient":
                    self.unfounded[place].append(record)
            case saw.Ended():
                self.ended[record.subscription, record.stream] = record.tick
                self.told_ends.add(record.subscription)
                self.over.setdefault(record.subscription, record.time)
            case saw.Cut():
                self.over.setdefault(record.subscription, record.time)

    def _is_lost(self, told: saw.WithheldTold) -> bool:
        """Whether every tick of a hole is lost. Ranges that touch count as one."""
        expected = told.first
        for first, last in sorted(self.lost[told.stream]):
            if first <= expected:
                expected = max(expected, last + 1)
        return told.reason == "lost" and expected > told.last

    def _take_forgotten(self, record: saw.Forgotten) -> None:
        stream, tick = record.stream, record.tick
        if record.why == "deleted":
            self.deleted[stream] = max(tick, self.deleted[stream])
            return
        if record.why == "lossy":
            self.lossy[stream] = max(tick, self.lossy[stream])
        self.gone[stream] = (max(tick, self.gone.get(stream, (0, 0))[0]), record.time)

    def _note_order(self, place: Place, tick: int) -> None:
        if place[0] in self.over:
            self.too_late[place].add(tick)
        elif place not in self.started:
            self.too_early[place].add(tick)

    # -- looking up -----------------------------------------------------------------------------

    def is_due(self, cause_time: float) -> bool:
        """Whether what follows from something at this time must have happened."""
        return self.finished < _NEVER and self.is_due_by(cause_time, self.finished)

    def is_due_by(self, cause_time: float, time: float) -> bool:
        """Whether what follows from something must have happened at this time."""
        return max(cause_time, self.healed) + self.bound_s <= time

    def time_of(self, stream: str, tick: int) -> float:
        """When the event in this tick was published."""
        event = self.published.get(self.logs[stream][tick])
        return -_NEVER if event is None else event.time

    def safe_at(self, stream: str, tick: int) -> float:
        """When the event in this tick was confirmed: the tick was made by then."""
        publisher, incarnation, sequence = self.logs[stream][tick]
        told = self.confirmations.get((publisher, incarnation), [])
        index = bisect_left(told, (sequence, -_NEVER))
        return told[index][1] if index < len(told) else _NEVER

    def edge_at(self, subscription: str, time: float) -> str:
        """Where a subscription was at this time."""
        found = ""
        for since, edge in self.edges[subscription]:
            if since <= time or not found:
                found = edge
        return found

    def between(self, stream: str, first: int, last: int) -> set[int]:
        """The logged ticks from first to last."""
        ticks = self.ticks.get(stream, [])
        return set(ticks[bisect_left(ticks, first) : bisect_right(ticks, last)])

    def matching(self, plain: saw.AnyFilter, stream: str) -> dict[int, saw.Published]:
        """The logged ticks of the stream whose events match → the events."""
        known = self._matching.get((plain, stream))
        if known is None:
            events = [(t, self.published.get(name)) for t, name in self.logs[stream].items()]
            known = {
                tick: event
                for tick, event in events
                if event is not None and matches(plain, event.attributes)
            }
            self._matching[plain, stream] = known
        return known
