"""One stream as an edge knows it: how far it is known without a gap, and what lies beyond.

Knowledge of a stream comes as *runs*: one tick with its event, a range of silence, or a range that
is withheld; late, repeated, out of order or not at all. A `ReorderBuffer` puts it into the order of
the stream. Its *position* is the tick up to which everything has been passed on; what lies beyond a
gap waits. Rules:

1. A run is passed on once, when everything before it has been. Ticks at or below the position are
   repetitions and are dropped. Of two runs for one tick the first to come counts.
2. A line that knows nothing yet is placed by the first knowledge that comes: just before its first
   tick, or at the head if it says only how far the stream goes (but see rule 7).
3. A gap is what is not known up to the *head*, the newest tick known to exist. Whoever needs the
   ticks asks for them (`wanted`): a bounded number at a time, none of them twice before a pause,
   which doubles up to eight times while nothing comes. If nobody needs them, the line jumps over.
4. Every run has the version of the edge's interest that its silence is good for. The version of the
   line is that of its last tick; all later ticks have it or a higher one.
5. What is in order may be held back as well, if it is too much for one step. It waits like what is
   beyond a gap, and is passed on in portions; the position moves with them.
6. What waits is bounded. When there is more, the farthest is dropped: it will be
   missing, and asked for again.
7. A head is a claim, not a tick. It makes a line ask; it never makes it skip what anybody who is
   live and not best-effort needs. Where nobody does, or before it is placed, a line follows a head
   for at most `HEAD_LEAP_MAX` ticks. For a farther one the origin is asked for that very tick
   (`doubted`), and the line moves when it has come. A head far below the one believed takes its
   place: so a wild head is forgotten when a true one comes, at the price of asking twice where
   heads overtake each other.

The last runs that were passed on are kept for a while (`RecentRuns`), for those who are a little
behind.

State: safe to lose. After a restart a line is placed anew; durable subscriptions have cursors.
"""

from collections import deque
from collections.abc import Sequence

from anabranch.core.ranges import RangeSet
from anabranch.core.routing.contract import Arrival
from anabranch.model.encoding import Envelope
from anabranch.model.errors import RemoteError
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.version import NOTHING, Version

#: Ranges that one request for missing ticks names.
WANTED_RANGES_MAX = 256
#: Runs that are kept after they were passed on.
RECENT_RUNS_MAX = 512
#: A head may be this far beyond a line that nobody needs, and is believed.
HEAD_LEAP_MAX = 65_536
#: The pause between requests grows to two to this power of the first one.
DOUBLINGS_MAX = 3


class Run:
    """Some neighbouring ticks that are alike: an event, silence, or withheld."""

    __slots__ = ("datum", "envelope", "first", "last", "reason", "version")

    def __init__(
        self, first: int, last: int, version: Version, datum: Datum | None = None, reason: str = ""
    ) -> None:
        self.first = first
        self.last = last
        self.version = version
        #: None for silence and for what is withheld.
        self.datum = datum
        #: The datum's event, once somebody has read it.
        self.envelope: Envelope | None = None
        #: Why it is withheld; "" otherwise.
        self.reason = reason

    @property
    def size(self) -> int:
        """Bytes of its event."""
        return 0 if self.datum is None else len(self.datum.body)

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing here to tell anybody."""
        return self.datum is None and not self.reason


def runs_of(arrival: Arrival) -> list[Run]:
    """What arrived, in the order of ticks."""
    version = arrival.version
    runs = [Run(datum.tick, datum.tick, version, datum) for datum in arrival.data]
    runs += [Run(first, last, version) for first, last in arrival.silent]
    runs += hole_runs(arrival.withheld, version)
    for run in runs:
        if not 1 <= run.first <= run.last:
            raise RemoteError(f"ticks {run.first} to {run.last} of {arrival.stream!r} are no range")
    if len(runs) > 1:
        runs.sort(key=_first_of)
    return runs


def hole_runs(holes: Sequence[Hole], version: Version) -> list[Run]:
    """Withheld ticks as runs."""
    return [Run(each.first, each.last, version, None, each.reason or "unknown") for each in holes]


def _first_of(run: Run) -> int:
    return run.first


class RecentRuns:
    """The runs that were passed on last, without a gap, up to the line's position."""

    __slots__ = ("_bytes", "_bytes_max", "_runs")

    def __init__(self, bytes_max: int) -> None:
        self._runs: deque[Run] = deque()
        self._bytes = 0
        self._bytes_max = bytes_max

    def add(self, run: Run) -> None:
        """Keep one more; drop the oldest ones that are too many."""
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
        """All runs beyond a tick; None if they do not reach back so far."""
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
        """Forget them all."""
        self._runs.clear()
        self._bytes = 0


class ReorderBuffer:
    """The order of one stream at an edge. See the rules at the top of this module."""

    __slots__ = (
        "_again_at",
        "_asked",
        "_known",
        "_pending",
        "_pending_bytes",
        "_pending_bytes_max",
        "_ticks_max",
        "attempts",
        "dropped",
        "head",
        "head_version",
        "is_placed",
        "look_at",
        "position",
        "recent",
        "version",
    )

    def __init__(self, ticks_max: int, bytes_max: int, recent_bytes_max: int) -> None:
        self.is_placed = False
        #: Everything up to this tick has been passed on.
        self.position = 0
        self.version = NOTHING
        #: Invariant: position ≤ head, and everything pending lies between them.
        self.head = 0
        #: What ticks after the head have at least.
        self.head_version = NOTHING
        #: First tick → run. Invariant: their ticks are those of `_known`, each in one run.
        self._pending: dict[int, Run] = {}
        self._known = RangeSet()
        self._ticks_max = ticks_max
        self._pending_bytes = 0
        self._pending_bytes_max = bytes_max
        self.recent = RecentRuns(recent_bytes_max)
        #: Runs dropped for want of room, so far.
        self.dropped = 0
        #: When to look after the gap; None if there is none.
        self.look_at: float | None = None
        #: Requests since the position moved last.
        self.attempts = 0
        self._asked = RangeSet()
        self._again_at = 0.0

    @property
    def has_gap(self) -> bool:
        """Whether a tick is known to exist before which something is missing."""
        return self.head > self.position

    @property
    def is_head_doubtful(self) -> bool:
        """Whether there is nothing but a head, too far away, to move on to."""
        return not self._pending and self.head - self.position > HEAD_LEAP_MAX

    # -- knowledge ------------------------------------------------------------------------------

    def take(
        self, runs: list[Run], head: int, version: Version, *, holds_back: bool = False
    ) -> list[Run]:
        """Take in what arrived, ascending; returns what is in order now, or nothing if that is to
        be held back. Runs become the line's."""
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
                self._pass_on(run, ready)
            else:
                self._store(run)
                self._drain(ready)
        self._raise_head(head, version)
        if len(self._pending) > self._ticks_max or self._pending_bytes > self._pending_bytes_max:
            # The head stays: it is known that they exist.
            self._drop_farthest()
        return ready

    @property
    def waiting(self) -> int:
        """Runs that wait, for a gap to be filled or because they are held back."""
        return len(self._pending)

    @property
    def has_ready(self) -> bool:
        """Whether something is held back that could be passed on."""
        return self.position + 1 in self._pending

    def peek(self, count: int) -> list[Run]:
        """The next runs that could be passed on, this many at most."""
        found: list[Run] = []
        after = self.position + 1
        while len(found) < count and (run := self._pending.get(after)) is not None:
            found.append(run)
            after = run.last + 1
        return found

    def pass_on(self, runs: list[Run]) -> None:
        """These, which are the next ones, are held back no longer."""
        for run in runs:
            del self._pending[run.first]
            self._known.remove(run.first, run.last)
            self._pending_bytes -= run.size
            self._pass_on(run, [])

    def jump(self, *, holds_back: bool = False) -> list[Run]:
        """Give up the first gap; returns what is in order then. Not for a doubtful head."""
        assert not self.is_head_doubtful
        ready: list[Run] = []
        self.recent.clear()
        if self._pending:
            self.position = self._known.first() - 1
            if not holds_back:
                self._drain(ready)
        else:
            self.position = self.head
            self.version = max(self.version, self.head_version)
        self.attempts = 0
        self.look_at = None
        return ready

    def _place(self, runs: list[Run], head: int) -> None:
        if runs or 0 < head <= HEAD_LEAP_MAX:
            self.is_placed = True
            self.position = runs[0].first - 1 if runs else head
            self.head = self.position

    def _pass_on(self, run: Run, ready: list[Run]) -> None:
        self.position = run.last
        self.version = run.version
        self.recent.add(run)
        self.attempts = 0
        self.look_at = None
        ready.append(run)

    def _store(self, run: Run) -> None:
        for first, last in self._known.missing(run.first, run.last):
            whole = first == run.first and last == run.last
            self._pending[first] = (
                run if whole else Run(first, last, run.version, run.datum, run.reason)
            )
            self._known.add(first, last)
            self._pending_bytes += run.size

    def _drain(self, ready: list[Run]) -> None:
        while (run := self._pending.pop(self.position + 1, None)) is not None:
            self._known.remove(run.first, run.last)
            self._pending_bytes -= run.size
            self._pass_on(run, ready)

    def _drop_farthest(self) -> None:
        """Make room for a quarter more, so that this is not to be done for every run."""
        ticks_max, bytes_max = self._ticks_max * 3 // 4, self._pending_bytes_max * 3 // 4
        for first in sorted(self._pending, reverse=True):
            if len(self._pending) <= ticks_max and self._pending_bytes <= bytes_max:
                break
            run = self._pending.pop(first)
            self._known.remove(run.first, run.last)
            self._pending_bytes -= run.size
            self.dropped += 1

    def _raise_head(self, head: int, version: Version) -> None:
        if head:
            if head <= self.position and version > self.version:
                # The head's version is that of a tick at or before it.
                self.version = version
            if head >= self.head:
                self.head_version = max(self.head_version, version)
                self.head = head
            elif self.head - head > HEAD_LEAP_MAX:
                self.head_version = version
                self.head = max(head, self.position)
        reach = self._known.last() if self._known else self.position
        self.head = max(self.head, reach)

    # -- gaps -----------------------------------------------------------------------------------

    def watch(self, now: float, after_s: float) -> None:
        """Note when to look after the gap, if there is one."""
        if not self.has_gap:
            self.look_at = None
            if self._asked:
                self._asked = RangeSet()
        elif self.look_at is None:
            self.look_at = now + after_s

    def wanted(
        self, now: float, after_s: float, again_s: float, ticks_max: int
    ) -> list[tuple[int, int]]:
        """The missing ticks to ask for now, and when to look again."""
        if not self.has_gap:
            self.watch(now, after_s)
            return []
        if self._asked and now >= self._again_at:
            self._asked = RangeSet()
        if self._asked and self._asked.first() <= self.position:
            self._asked.remove(self._asked.first(), self.position)
        if not self._asked:
            self._again_at = now + again_s * 2 ** min(self.attempts, DOUBLINGS_MAX)
        ranges = self._unasked(ticks_max - self._asked.count())
        if ranges:
            self.attempts += 1
            for first, last in ranges:
                self._asked.add(first, last)
        self.look_at = self._again_at
        return ranges

    def doubted(self, now: float, again_s: float) -> list[tuple[int, int]]:
        """The head's own tick, to ask for; and when to look again."""
        self.look_at = now + again_s * 2 ** min(self.attempts, DOUBLINGS_MAX)
        self.attempts += 1
        return [(self.head, self.head)]

    def _unasked(self, ticks_max: int) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        for gap in self._known.missing(self.position + 1, self.head):
            for first, last in self._asked.missing(*gap):
                if ticks_max < 1 or len(ranges) >= WANTED_RANGES_MAX:
                    return ranges
                last = min(last, first + ticks_max - 1)
                ranges.append((first, last))
                ticks_max -= last - first + 1
        return ranges
