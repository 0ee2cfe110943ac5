"""Reorder buffer: puts the ticks of one stream in order and detects gaps.

Input arrives as *runs*: one tick with its event, a silent range, or a withheld range. Runs may be
late, duplicated, out of order or missing. A `ReorderBuffer` releases them in stream order. Its
*position* is the tick up to which everything has been released; runs beyond a gap wait. Rules:

1. A run is released once, when everything before it has been released. Ticks at or below the
   position are duplicates and are dropped. If two runs cover a tick, the first to arrive counts.
2. The first input places an empty buffer: just before the first tick of the first run, or at the
   head if the input has only a head (but see rule 7).
3. A gap is the ticks missing up to the *head*, the newest tick known to exist. If a subscription
   needs them, the edge requests them (`ranges_to_request`): a bounded number at a time, no tick
   twice within a pause, which doubles up to three times while nothing arrives. If none does, the
   buffer skips the gap.
4. Every run carries the version of the edge's interest that its silence is valid for. The version
   of the buffer is that of its last tick; all later ticks have the same or a higher version. A
   *complete* run, from a keeper, has all events of its ticks, so its silence is valid for any
   version. It takes that of the tick before it, which leaves the versions in order.
5. Runs that are in order may be held back too, if delivering them is too much work for one step.
   They wait like runs beyond a gap and are released in portions; the position advances with them.
6. The number and bytes of waiting runs are bounded. Beyond the bound the farthest runs are dropped;
   they become part of a gap and are requested again.
7. A head is a claim, not a tick. It triggers requests; it never makes the buffer skip ticks that a
   live subscription other than a best-effort one needs. If there is no such subscription, or before
   the buffer is placed, the buffer follows a head for at most `HEAD_LEAP_MAX` ticks. For a farther
   head the edge requests that very tick from the origin (`head_to_request`), and the buffer moves
   when it arrives. A head far below the current one replaces it, so a wrong head is forgotten when
   a correct one arrives; the price is a second request where heads overtake each other.

The most recent released runs are kept (`RecentRuns`) for subscriptions that are slightly behind.

State: safe to lose. After a restart the buffer is placed again; durable subscriptions have cursors.
"""

from collections import deque
from collections.abc import Sequence

from anabranch.core.ranges import RangeSet
from anabranch.core.routing.contract import Arrival
from anabranch.model.encoding import Envelope, decode_envelope
from anabranch.model.errors import RemoteError
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.limits import Limits
from anabranch.model.version import NOTHING, Version

#: Ranges in one request for missing ticks.
WANTED_RANGES_MAX = 256
#: Released runs that are kept.
RECENT_RUNS_MAX = 512
#: Largest distance over which a head is believed without its tick.
HEAD_LEAP_MAX = 65_536
#: The pause between requests doubles at most this often.
DOUBLINGS_MAX = 3


class Run:
    """Consecutive ticks of one kind: one event, a silent range, or a withheld range."""

    __slots__ = ("datum", "envelope", "first", "is_complete", "last", "reason", "version")

    def __init__(
        self, first: int, last: int, version: Version, datum: Datum | None = None, reason: str = ""
    ) -> None:
        self.first = first
        self.last = last
        self.version = version
        #: Whether its silence is valid for any version of the interest (rule 4).
        self.is_complete = False
        #: None for silent and withheld ranges.
        self.datum = datum
        #: The decoded event, once it has been read.
        self.envelope: Envelope | None = None
        #: Why the range is withheld; "" otherwise.
        self.reason = reason

    @property
    def size(self) -> int:
        """Bytes of the event."""
        return 0 if self.datum is None else len(self.datum.body)

    def read(self, limits: Limits) -> Envelope | None:
        """Decode the event, without its attributes; None if it is unreadable."""
        if self.envelope is None and self.datum is not None and not self.reason:
            try:
                self.envelope = decode_envelope(self.datum.body, limits)
            except RemoteError:
                self.mark_unreadable()
        return self.envelope

    def mark_complete(self) -> None:
        self.is_complete = True

    def follow(self, version: Version) -> None:
        """The tick before this complete run has that version."""
        assert self.is_complete
        self.version = version

    def part(self, first: int, last: int) -> "Run":
        """The same for some of its ticks."""
        part = Run(first, last, self.version, self.datum, self.reason)
        part.is_complete = self.is_complete
        return part

    def mark_unreadable(self) -> None:
        # Keep the datum: the owner of the run has counted its bytes.
        self.reason = "unreadable"
        self.envelope = None

    @property
    def is_silent(self) -> bool:
        return self.datum is None and not self.reason


def runs_of(arrival: Arrival) -> list[Run]:
    """The runs of an arrival, in tick order."""
    version = arrival.version
    runs = [Run(datum.tick, datum.tick, version, datum) for datum in arrival.data]
    runs += [Run(first, last, version) for first, last in arrival.silent]
    runs += withheld_runs(arrival.withheld, version)
    for run in runs:
        if not 1 <= run.first <= run.last:
            raise RemoteError(f"invalid tick range {run.first} to {run.last} of {arrival.stream!r}")
    if len(runs) > 1:
        runs.sort(key=_first_of)
    return runs


def withheld_runs(holes: Sequence[Hole], version: Version) -> list[Run]:
    return [Run(each.first, each.last, version, None, each.reason or "unknown") for each in holes]


def _first_of(run: Run) -> int:
    return run.first


class RecentRuns:
    """The most recently released runs, without a gap, up to the position of the buffer."""

    __slots__ = ("_bytes", "_bytes_max", "_runs")

    def __init__(self, bytes_max: int) -> None:
        self._runs: deque[Run] = deque()
        self._bytes = 0
        self._bytes_max = bytes_max

    def add(self, run: Run) -> None:
        """Append a run and evict the oldest ones beyond the bounds."""
        runs = self._runs
        last = runs[-1] if runs else None
        if last is not None and last.last + 1 != run.first:
            self.clear()
            last = None
        if run.datum is not None:
            self._bytes += len(run.datum.body)
        elif last is not None and run.is_silent and last.is_silent and last.version == run.version:
            runs[-1] = Run(last.first, run.last, run.version)
            return
        runs.append(run)
        if len(runs) > RECENT_RUNS_MAX or self._bytes > self._bytes_max:
            self._bytes -= runs.popleft().size
            while self._bytes > self._bytes_max:
                self._bytes -= runs.popleft().size

    def after(self, tick: int) -> list[Run] | None:
        """All runs after a tick; None if the oldest ones have been evicted."""
        if not self._runs or self._runs[0].first > tick + 1:
            return None
        found = []
        for run in reversed(self._runs):
            if run.last <= tick:
                break
            found.append(run)
        found.reverse()
        return found

    def clear(self) -> None:
        self._runs.clear()
        self._bytes = 0


class ReorderBuffer:
    """Orders one stream at an edge. See the rules at the top of this module."""

    __slots__ = (
        "_pending",
        "_pending_bytes",
        "_pending_bytes_max",
        "_pending_ticks",
        "_requested",
        "_retry_at",
        "_ticks_max",
        "attempts",
        "dropped",
        "gap_check_at",
        "head",
        "head_version",
        "is_placed",
        "position",
        "recent",
        "version",
    )

    def __init__(self, ticks_max: int, bytes_max: int, recent_bytes_max: int) -> None:
        self.is_placed = False
        #: Everything up to this tick has been released.
        self.position = 0
        self.version = NOTHING
        #: Invariant: position ≤ head, and everything pending lies between them.
        self.head = 0
        #: Ticks after the head have this version or a higher one.
        self.head_version = NOTHING
        #: First tick → run. Invariant: `_pending_ticks` has exactly their ticks, each once.
        self._pending: dict[int, Run] = {}
        self._pending_ticks = RangeSet()
        self._ticks_max = ticks_max
        self._pending_bytes = 0
        self._pending_bytes_max = bytes_max
        self.recent = RecentRuns(recent_bytes_max)
        #: Runs dropped so far because the buffer was full.
        self.dropped = 0
        #: When to check the gap; None if there is no gap.
        self.gap_check_at: float | None = None
        #: Requests since the position last advanced.
        self.attempts = 0
        self._requested = RangeSet()
        self._retry_at = 0.0

    @property
    def has_gap(self) -> bool:
        """Whether ticks are missing before the head."""
        return self.head > self.position

    @property
    def is_head_doubtful(self) -> bool:
        """Whether nothing is pending and the head is too far away to be believed."""
        return not self._pending and self.head - self.position > HEAD_LEAP_MAX

    # -- input ----------------------------------------------------------------------------------

    def take(
        self, runs: list[Run], head: int, version: Version, *, holds_back: bool = False
    ) -> list[Run]:
        """Take runs in ascending order; returns the runs that are in order now, or none if they
        are to be held back. The buffer takes ownership of the runs."""
        if not self.is_placed:
            self._place(runs, head)
        ready: list[Run] = []
        for run in runs:
            if run.last <= self.position:
                continue
            if run.first <= self.position:
                run.first = self.position + 1
            if holds_back:
                self._store(run)
            elif run.first == self.position + 1 and not self._pending:
                self._release(run, ready)
            else:
                self._store(run)
                self._drain(ready)
        self._raise_head(head, version)
        if len(self._pending) > self._ticks_max or self._pending_bytes > self._pending_bytes_max:
            # Keep the head: the dropped ticks exist.
            self._drop_farthest()
        return ready

    @property
    def waiting(self) -> int:
        """Number of runs that wait for a gap to be filled or are held back."""
        return len(self._pending)

    @property
    def has_ready(self) -> bool:
        """Whether the next run in order is held back."""
        return self.position + 1 in self._pending

    def peek(self, count: int) -> list[Run]:
        """The next runs in order, at most `count`."""
        found: list[Run] = []
        after, version = self.position + 1, self.version
        while len(found) < count and (run := self._pending.get(after)) is not None:
            if run.is_complete:
                run.follow(version)
            found.append(run)
            after, version = run.last + 1, run.version
        return found

    def release(self, runs: list[Run]) -> None:
        """Release held runs, which are the next ones in order."""
        for run in runs:
            del self._pending[run.first]
            self._pending_ticks.remove(run.first, run.last)
            self._pending_bytes -= run.size
            self._release(run, [])

    def skip_gap(self, *, holds_back: bool = False) -> list[Run]:
        """Skip the first gap; returns the runs that are in order then. Not for a doubtful head."""
        assert not self.is_head_doubtful
        ready: list[Run] = []
        self.recent.clear()
        if self._pending:
            self.position = self._pending_ticks.first() - 1
            if not holds_back:
                self._drain(ready)
        else:
            self.position = self.head
            self.version = max(self.version, self.head_version)
        self.attempts = 0
        self.gap_check_at = None
        return ready

    def _place(self, runs: list[Run], head: int) -> None:
        if runs or 0 < head <= HEAD_LEAP_MAX:
            self.is_placed = True
            self.position = runs[0].first - 1 if runs else head
            self.head = self.position

    def _release(self, run: Run, ready: list[Run]) -> None:
        self.position = run.last
        if run.is_complete:
            run.follow(self.version)
        self.version = run.version
        self.recent.add(run)
        self.attempts = 0
        self.gap_check_at = None
        ready.append(run)

    def _store(self, run: Run) -> None:
        for first, last in self._pending_ticks.missing(run.first, run.last):
            whole = first == run.first and last == run.last
            self._pending[first] = run if whole else run.part(first, last)
            self._pending_ticks.add(first, last)
            self._pending_bytes += run.size

    def _drain(self, ready: list[Run]) -> None:
        while (run := self._pending.pop(self.position + 1, None)) is not None:
            self._pending_ticks.remove(run.first, run.last)
            self._pending_bytes -= run.size
            self._release(run, ready)

    def _drop_farthest(self) -> None:
        """Drop to three quarters of the bounds, so that not every run repeats this."""
        ticks_max, bytes_max = self._ticks_max * 3 // 4, self._pending_bytes_max * 3 // 4
        for first in sorted(self._pending, reverse=True):
            if len(self._pending) <= ticks_max and self._pending_bytes <= bytes_max:
                break
            run = self._pending.pop(first)
            self._pending_ticks.remove(run.first, run.last)
            self._pending_bytes -= run.size
            self.dropped += 1

    def _raise_head(self, head: int, version: Version) -> None:
        if head:
            if head <= self.position and version > self.version:
                # The version belongs to a tick at or before the head.
                self.version = version
            if head >= self.head:
                self.head_version = max(self.head_version, version)
                self.head = head
            elif self.head - head > HEAD_LEAP_MAX:
                self.head_version = version
                self.head = max(head, self.position)
        progress = self._pending_ticks.last() if self._pending_ticks else self.position
        self.head = max(self.head, progress)

    # -- gaps -----------------------------------------------------------------------------------

    def schedule_gap_check(self, now: float, after_s: float) -> None:
        """Set the time to check the gap, if there is one."""
        if not self.has_gap:
            self.gap_check_at = None
            if self._requested:
                self._requested = RangeSet()
        elif self.gap_check_at is None:
            self.gap_check_at = now + after_s

    def postpone_gap_check(self, at: float) -> None:
        """Check the gap, if there is one, not before this time."""
        if self.gap_check_at is not None:
            self.gap_check_at = at

    def ranges_to_request(
        self, now: float, after_s: float, repeat_s: float, ticks_max: int
    ) -> list[tuple[int, int]]:
        """The missing ticks to request now; also schedules the next check."""
        if not self.has_gap:
            self.schedule_gap_check(now, after_s)
            return []
        if self._requested and now >= self._retry_at:
            self._requested = RangeSet()
        if self._requested and self._requested.first() <= self.position:
            self._requested.remove(self._requested.first(), self.position)
        if not self._requested:
            self._retry_at = now + repeat_s * 2 ** min(self.attempts, DOUBLINGS_MAX)
        ranges = self._unrequested(ticks_max - self._requested.count())
        if ranges:
            self.attempts += 1
            for first, last in ranges:
                self._requested.add(first, last)
        self.gap_check_at = self._retry_at
        return ranges

    def head_to_request(self, now: float, repeat_s: float) -> list[tuple[int, int]]:
        """The tick of the head itself, to be requested; also schedules the next check."""
        self.gap_check_at = now + repeat_s * 2 ** min(self.attempts, DOUBLINGS_MAX)
        self.attempts += 1
        return [(self.head, self.head)]

    def _unrequested(self, ticks_max: int) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        for gap in self._pending_ticks.missing(self.position + 1, self.head):
            for first, last in self._requested.missing(*gap):
                if ticks_max < 1 or len(ranges) >= WANTED_RANGES_MAX:
                    return ranges
                last = min(last, first + ticks_max - 1)
                ranges.append((first, last))
                ticks_max -= last - first + 1
        return ranges
