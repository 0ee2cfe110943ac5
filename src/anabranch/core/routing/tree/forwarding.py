"""Forwarding of ticks at one site: filter where sufficient, and replace dropped data by silence.

For each direction away from the origin, ticks are filtered if this presence passes the sufficiency
test, and forwarded unchanged if it does not. Rules:

1. Filtered ticks become silence with the same mark: the claim that no tick in the range matches the
   interest of the mark's vector. No tick disappears without such a claim.
2. Silence is delayed briefly, to be sent along with data of the same stream and mark, or with more
   silence. Data is never delayed, and neither are the first ticks of a mark, because subscriptions
   wait for them. Marks do not mix: pending silence of another mark is sent first.
3. Ticks for one edge (an answer to a nack) go only towards that edge, at once, filtered as usual.
4. A hand-over to this broker's own presence in the next site uses no link; it is filtered only if
   the match result is already available.
5. Filters that the index leaves undecided are checked within the work limit of one step; the rest
   count as matching. That may forward more than necessary, and is counted.
6. An undecodable event goes in all directions: edges report it to their clients as withheld.

*Sufficiency.* A broker may filter ticks in a direction if it has the interest of every edge behind
that direction in the version of the ticks' vector, or a later one. Then no subscription that relies
on these ticks wants anything it drops. If not, or if the vector is unknown, it forwards all ticks.
The results are cached:

7. Per stream and direction, the cache holds the result for the newest mark that was tested.
8. A success for a mark holds for all earlier marks, since vectors grow along a stream, and stays
   valid, since a broker's versions only grow.
9. A failure is tested again when the broker has learned more, or for a later mark.

State: volatile. Pending silence, at most `RANGES_MAX` ranges per direction and stream; if it is
lost, edges request the ticks. Cached results.

Prior art: Zhao 2006, §3.1.2 (silence), §3.2.3, §4.1.7, §6.1.3 (the cache).
"""

from collections.abc import Callable, Mapping, Sequence

from anabranch.core.contract import Note
from anabranch.core.ranges import RangeSet
from anabranch.core.routing.tree.interest import Directions, Interest
from anabranch.core.routing.tree.shared import KnownMarks, SiteView, TreeCounters, TreeState
from anabranch.model.encoding import decode_envelope
from anabranch.model.errors import RemoteError
from anabranch.model.event import Attributes
from anabranch.model.frame_parts import Datum
from anabranch.model.frames import Knowledge
from anabranch.model.version import NOTHING, Version


class Sufficiency:
    """The sufficiency test of one site, with its cache (rules 7 to 9)."""

    def __init__(
        self,
        marks: KnownMarks,
        versions: Mapping[str, Version],
        behind: Mapping[str, Sequence[str]],
        counters: TreeCounters,
        remembers: bool,
    ) -> None:
        self._marks = marks
        #: V^b of the site; its presence updates it.
        self._versions = versions
        self._behind = behind
        self._counters = counters
        self._remembers = remembers
        #: (stream, direction) → (mark, result)
        self._results: dict[tuple[str, str], tuple[int, bool]] = {}

    def holds(self, stream: str, mark: int, direction: str) -> bool:
        """Whether ticks with this mark may be filtered."""
        self._counters.sufficiency_asked += 1
        key = stream, direction
        if self._remembers:
            result = self._results.get(key)
            if result is not None and mark <= result[0]:
                return result[1]
        vector = self._marks.vector(stream, mark)
        if vector is None:
            return False
        answer = self._test(vector, direction)
        if self._remembers:
            self._results[key] = (mark, answer)
        return answer

    def drop_failures(self, direction: str) -> None:
        """The presence has learned more of a direction: drop its cached failures."""
        failed = [
            key for key, (_, held) in self._results.items() if not held and key[1] == direction
        ]
        for key in failed:
            del self._results[key]

    def _test(self, vector: Mapping[str, Version], direction: str) -> bool:
        self._counters.sufficiency_tests += 1
        versions = self._versions
        for edge in self._behind[direction]:
            self._counters.sufficiency_elements += 1
            wanted = vector.get(edge)
            if wanted is not None and versions.get(edge, NOTHING) < wanted:
                return False
        return True


#: Pending ranges of silence per direction and stream.
RANGES_MAX = 512

#: For each event, the directions that want it.
Answers = Sequence[Directions]
Observer = Callable[[float, Attributes, Directions, tuple[str, ...]], None]


class _PendingSilence:
    """Pending silence for one direction and stream."""

    __slots__ = ("due", "head", "mark", "silent", "time_ns")

    def __init__(self, due: float, mark: int) -> None:
        self.due = due
        self.mark = mark
        self.silent = RangeSet()
        self.head = 0
        self.time_ns = 0


class Forwarding:
    """Forwards the ticks that pass one site. See the rules at the top of this module."""

    def __init__(
        self, shared: TreeState, view: SiteView, interest: Interest, sufficiency: Sufficiency
    ) -> None:
        self._shared = shared
        self._view = view
        self._interest = interest
        self._sufficiency = sufficiency
        #: Work left for checks in this step.
        self._checks_work = 0
        #: Called for every matched event, with the directions that want it and those it may take.
        self._observer: Observer | None = None
        #: (direction, stream) → pending silence, ordered by due time.
        self._pending_silence: dict[tuple[str, str], _PendingSilence] = {}
        #: (direction, stream) → the latest mark that was sent.
        self._latest: dict[tuple[str, str], int] = {}
        #: Directions without a usable broker; noted once.
        self._unreachable: dict[str, None] = {}

    def set_observer(self, observer: Observer) -> None:
        self._observer = observer

    def knowledge(self, now: float, frame: Knowledge) -> None:
        """Forward ticks from this site."""
        stream, mark, target = frame.stream, frame.mark, frame.target
        directions = self._view.downstream(stream)
        if target:
            toward = self._view.direction_of.get(target)
            directions = (toward,) if toward is not None and toward in directions else ()
        if not directions:
            return
        is_own = self._shared.overlay.is_own
        may_filter = [self._sufficiency.holds(stream, mark, d) for d in directions]
        answers: Answers | None = None
        if frame.data and any(
            may and not is_own(d) for may, d in zip(may_filter, directions, strict=True)
        ):
            answers = self._match(now, frame.data, directions)
        for direction, may in zip(directions, may_filter, strict=True):
            self._forward(now, frame, direction, answers if may else None)

    def _match(self, now: float, data: Sequence[Datum], directions: tuple[str, ...]) -> Answers:
        interest = self._interest
        self._shared.counters.matches += len(data)
        if not interest:
            return [frozenset()] * len(data)
        self._checks_work = self._shared.options.step_work_max
        if self._observer is not None:
            return [self._match_one(now, datum, directions) for datum in data]
        found = interest.destinations_of([datum.body for datum in data])
        if None not in found:
            return found  # type: ignore[return-value]
        return [
            self._match_one(now, datum, directions) if to is None else to
            for datum, to in zip(data, found, strict=True)
        ]

    def _match_one(self, now: float, datum: Datum, directions: tuple[str, ...]) -> Directions:
        """Decode one event and return the directions that want it."""
        try:
            envelope = decode_envelope(datum.body, self._shared.limits)
            wanted, work, is_short = self._interest.destinations_within(
                envelope, len(datum.body), self._checks_work
            )
            self._checks_work -= work
            self._shared.counters.matches_assumed += is_short
        except RemoteError:
            # Its origin is at fault, not the neighbour that forwarded it; edges report it (rule 6).
            return frozenset(directions)
        if self._observer is not None:
            self._observer(now, envelope.attributes(), wanted, directions)
        return wanted

    def _forward(
        self, now: float, frame: Knowledge, direction: str, answers: Answers | None
    ) -> None:
        counters = self._shared.counters
        silent = frame.silent
        if answers is None:
            data = frame.data
            counters.data_unfiltered += len(data)
        else:
            data = [d for d, to in zip(frame.data, answers, strict=True) if direction in to]
            if len(data) < len(frame.data):
                counters.data_filtered += len(frame.data) - len(data)
                silent = _with_dropped(silent, frame.data, answers, direction)
        counters.data_forwarded += len(data)
        mark = frame.mark
        key = direction, frame.stream
        is_prompt = bool(data or frame.withheld or frame.target)
        if mark > self._latest.get(key, 0):
            self._latest[key] = mark
            is_prompt = True
        if self._shared.overlay.is_own(direction):
            self._send(direction, _onward(frame, direction, mark, data, silent))
        elif not is_prompt:
            self._hold_silence(now, direction, frame, mark, silent)
        else:
            waiting = None if frame.target else self._pending_silence.pop(key, None)
            if waiting is not None and waiting.mark == mark:
                silent = _joined(waiting.silent, silent)
            elif waiting is not None:
                self._release(direction, frame.stream, waiting)
            self._send(direction, _onward(frame, direction, mark, data, silent))

    # -- silence ----------------------------------------------------------------------------------

    def _hold_silence(
        self,
        now: float,
        direction: str,
        frame: Knowledge,
        mark: int,
        silent: Sequence[tuple[int, int]],
    ) -> None:
        key = direction, frame.stream
        waiting = self._pending_silence.get(key)
        if waiting is not None and (
            waiting.mark != mark or len(waiting.silent) + len(silent) > RANGES_MAX
        ):
            self._release(direction, frame.stream, self._pending_silence.pop(key))
            waiting = None
        if waiting is None:
            due = now + self._shared.options.silence_after_s
            self._pending_silence[key] = waiting = _PendingSilence(due, mark)
        for first, last in silent:
            waiting.silent.add(first, last)
        if frame.head >= waiting.head:
            waiting.head, waiting.time_ns = frame.head, frame.time_ns

    def _release(self, direction: str, stream: str, waiting: _PendingSilence) -> None:
        frame = Knowledge(
            stream,
            direction,
            "",
            waiting.mark,
            [],
            list(waiting.silent),
            [],
            waiting.head,
            waiting.time_ns,
        )
        self._send(direction, frame)

    def time_passed(self, now: float) -> None:
        """Send the silence that is due."""
        while self._pending_silence:
            key = next(iter(self._pending_silence))
            if self._pending_silence[key].due > now:
                return
            self._release(*key, self._pending_silence.pop(key))

    def next_deadline(self) -> float | None:
        return next(iter(self._pending_silence.values())).due if self._pending_silence else None

    # -- sending ----------------------------------------------------------------------------------

    def _send(self, direction: str, frame: Knowledge) -> None:
        shared = self._shared
        broker = shared.overlay.next_broker(direction, frame.stream)
        if broker is not None:
            self._unreachable.pop(direction, None)
            shared.send_knowledge(broker, frame)
            return
        shared.counters.knowledge_dropped += 1
        if direction not in self._unreachable:
            self._unreachable[direction] = None
            shared.emit(Note("info", f"no broker of site {direction!r} accepts ticks"))


def _onward(
    frame: Knowledge, site: str, mark: int, data: list[Datum], silent: list[tuple[int, int]]
) -> Knowledge:
    """The rest of a frame, addressed to the next site."""
    parts = frame.withheld, frame.head, frame.time_ns
    return Knowledge(frame.stream, site, frame.target, mark, data, silent, *parts)


def _with_dropped(
    silent: list[tuple[int, int]], data: Sequence[Datum], answers: Answers, direction: str
) -> list[tuple[int, int]]:
    """Add the ticks that a direction does not want to the silence."""
    ranges = RangeSet(silent)
    for datum, wanted in zip(data, answers, strict=True):
        if direction not in wanted:
            ranges.add(datum.tick, datum.tick)
    return list(ranges)


def _joined(ranges: RangeSet, more: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    for first, last in more:
        ranges.add(first, last)
    return list(ranges)
