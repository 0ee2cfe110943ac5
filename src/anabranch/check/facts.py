"""Indexes of a history for the checker.

A history is read once, in order. Facts that depend on the order are recorded on the way: whether a
delivery came before the start was reported or after the end, and which ticks each log lacked when a
record referred to it. This module reports no anomalies.
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
    """The indexes of one history."""

    def __init__(self, history: saw.History, bound_s: float) -> None:
        self.bound_s = bound_s
        self.healed = self.finished = self.settled = _NEVER
        self.all_streams: tuple[str, ...] = ()
        self.published: dict[Id, saw.Published] = {}
        #: (publisher, incarnation) → highest sequence
        self.confirmed: dict[tuple[str, int], int] = {}
        #: The same → (highest sequence, time of the confirmation), ascending.
        self.confirmations: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
        self.abandoned: set[tuple[str, int]] = set()
        #: Publisher and incarnation → the first sequence that is in no log, as it was told.
        self.withdrawn: dict[tuple[str, int], int] = {}
        #: Stream → when it joined the network, if not at the beginning.
        self.joined: dict[str, float] = {}
        self.logged: list[saw.Logged] = []
        self.subscriptions: dict[str, saw.Subscribed] = {}
        self.started: dict[Place, int] = {}
        self.delivered: dict[Place, list[saw.Delivered]] = defaultdict(list)
        self.withheld: dict[Place, list[saw.WithheldTold]] = defaultdict(list)
        #: Subscription → deliveries of all streams, and notices about their order.
        self.arrivals: dict[str, list[saw.Delivered | saw.OrderNotKept]] = defaultdict(list)
        #: The number of records so far, and its value when an event was published, when events up
        #: to a sequence were confirmed (ascending), and when an incarnation was abandoned.
        self._count = 0
        self.published_at: dict[Id, int] = {}
        self.confirmed_at: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        self.abandoned_at: dict[tuple[str, int], int] = {}
        self.ended: dict[Place, int] = {}
        #: Subscriptions that are not alive at the end of the history → since when.
        self.over: dict[str, float] = {}
        #: Those of them whose ends were reported.
        self.told_ends: set[str] = set()
        #: Subscription → its edges, with the time of each move.
        self.edges: dict[str, list[tuple[float, str]]] = defaultdict(list)
        #: Ticks delivered or withheld before the start was reported, or after the end.
        self.too_early: dict[Place, set[int]] = defaultdict(set)
        self.too_late: dict[Place, set[int]] = defaultdict(set)
        self._begin_retention()
        self._begin_batches()
        for record in history:
            self._take(record)
        self._sort_logs()

    def _begin_retention(self) -> None:
        #: Stream → the last tick its log may lack: by lossy retention; for any reason, with the
        #: time of the last decision; and permanently.
        self.lossy: dict[str, int] = defaultdict(int)
        self.gone: dict[str, tuple[int, float]] = {}
        self.deleted: dict[str, int] = defaultdict(int)
        #: Stream → ranges of ticks that are lost.
        self.lost: dict[str, list[tuple[int, int]]] = defaultdict(list)
        #: The same when a start was requested, refused, or reported.
        self.deleted_when_asked: dict[str, dict[str, int]] = {}
        self.gone_when_refused: dict[str, dict[str, tuple[int, float]]] = {}
        self.gone_when_started: dict[Place, int] = {}
        #: Ranges that were withheld before the log was permitted to lack them.
        self.unfounded: dict[Place, list[saw.WithheldTold]] = defaultdict(list)

    def _begin_batches(self) -> None:
        #: Token → the events staged with it.
        self.drafted: dict[str, saw.Drafted] = {}
        #: Sink → its commits, and the answers.
        self.asked: dict[str, list[saw.BatchAsked]] = defaultdict(list)
        self.told: dict[str, list[saw.BatchTold]] = defaultdict(list)
        self.sinks_left: set[str] = set()

    def _publish_batches(self) -> None:
        """Treat events of batches as published at their first commit."""
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
            # Single events of a batch are not confirmed.
            self.abandoned.add(name[:2])

    def _sort_logs(self) -> None:
        self._publish_batches()
        self.logs: dict[str, dict[int, Id]] = defaultdict(dict)
        #: Stream → tick → its time, if known.
        self.times: dict[str, dict[int, float]] = defaultdict(dict)
        for entry in sorted(self.logged, key=lambda entry: entry.tick):
            name = (entry.publisher, entry.incarnation, entry.sequence)
            self.logs[entry.stream].setdefault(entry.tick, name)
            if entry.time is not None:
                self.times[entry.stream][entry.tick] = entry.time
        self.ticks = {stream: list(log) for stream, log in self.logs.items()}
        #: Parallel to `ticks`: a lower bound of the time of each tick.
        self.made_after = {
            stream: list(accumulate((self.time_of(stream, tick) for tick in ticks), max))
            for stream, ticks in self.ticks.items()
        }
        places = [*self.started, *self.delivered, *self.withheld, *self.ended]
        self.streams = sorted({*self.logs, *self.all_streams, *(stream for _, stream in places)})
        self._matching: dict[tuple[saw.AnyFilter, str], dict[int, saw.Published]] = {}

    # -- reading --------------------------------------------------------------------------------

    def _take(self, record: saw.Record) -> None:
        self._count += 1
        match record:
            case saw.Delivered():
                place = (record.subscription, record.stream)
                self.delivered[place].append(record)
                self.arrivals[record.subscription].append(record)
                self._note_order(place, record.tick)
            case saw.Logged():
                self.logged.append(record)
            case saw.Published():
                name = (record.publisher, record.incarnation, record.sequence)
                self.published.setdefault(name, record)
                self.published_at.setdefault(name, self._count)
            case saw.Confirmed():
                life = (record.publisher, record.incarnation)
                if record.sequence > self.confirmed.get(life, 0):
                    self.confirmed[life] = record.sequence
                    self.confirmations[life].append((record.sequence, record.time))
                    self.confirmed_at[life].append((record.sequence, self._count))
            case saw.Abandoned():
                life = (record.publisher, record.incarnation)
                self.abandoned.add(life)
                self.abandoned_at.setdefault(life, self._count)
            case saw.Withdrawn():
                life = (record.publisher, record.incarnation)
                first = self.withdrawn.get(life, record.sequence)
                self.withdrawn[life] = min(first, record.sequence)
            case saw.Forgotten():
                self._take_forgotten(record)
            case saw.Restored():
                self._take_restored(record.stream)
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
            case saw.OrderNotKept():
                self.arrivals[record.subscription].append(record)
            case saw.Ended():
                self.ended[record.subscription, record.stream] = record.tick
                self.told_ends.add(record.subscription)
                self.over.setdefault(record.subscription, record.time)
            case saw.Cut():
                self.over.setdefault(record.subscription, record.time)

    def _is_lost(self, told: saw.WithheldTold) -> bool:
        """Whether every tick of a withheld range is lost. Adjacent ranges count as one."""
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

    def _take_restored(self, stream: str) -> None:
        """What was deleted may be back, for later starts and for those that are not told yet."""
        self.deleted.pop(stream, None)
        for subscription, deleted in self.deleted_when_asked.items():
            if (subscription, stream) not in self.started:
                deleted.pop(stream, None)

    def _note_order(self, place: Place, tick: int) -> None:
        if place[0] in self.over:
            self.too_late[place].add(tick)
        elif place not in self.started:
            self.too_early[place].add(tick)

    # -- looking up -----------------------------------------------------------------------------

    def is_due(self, cause_time: float) -> bool:
        """Whether the effect of a cause at this time must have happened by the end."""
        return self.finished < _NEVER and self.is_due_by(cause_time, self.finished)

    def is_due_by(self, cause_time: float, time: float) -> bool:
        """Whether the effect of a cause must have happened by this time."""
        return max(cause_time, self.healed) + self.bound_s <= time

    def time_of(self, stream: str, tick: int) -> float:
        """When the event in this tick was published."""
        event = self.published.get(self.logs[stream][tick])
        return -_NEVER if event is None else event.time

    def safe_at(self, stream: str, tick: int) -> float:
        """When the event in this tick was confirmed; it was logged by then."""
        publisher, incarnation, sequence = self.logs[stream][tick]
        confirmed = self.confirmations.get((publisher, incarnation), [])
        index = bisect_left(confirmed, (sequence, -_NEVER))
        return confirmed[index][1] if index < len(confirmed) else _NEVER

    def edge_at(self, subscription: str, time: float) -> str:
        """The edge of a subscription at this time."""
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
        """Logged tick of the stream → its event, for events that match."""
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
