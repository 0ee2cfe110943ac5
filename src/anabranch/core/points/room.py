"""What a join point does that has no more room: whom it stops waiting for.

A join point keeps events until no stream can bring an earlier one that belongs to them. A broker
that is away, or whose clock is far behind, makes it keep everything, although that broker may have
nothing to do with the pattern. Its room is bounded, and to refuse what comes from everybody else
would be worse than to go on without a few. Rules:

1. Nobody is given up while there is room.
2. Who does not get on is given up first: a stream whose time has stood still for `STILL` times the
   pause between two heads. Who brings nothing that the pattern wants counts as little. Who is less
   than that time behind is not given up.
3. Of those that bring something and get on, half are kept waiting for, at least: a clock that is
   far ahead does not make all others late.
4. A stream that is being read again, after a start or a move, is waited for while it gets on. Its
   clock says nothing yet; it is where its last event was.
5. Who is given up counts again as soon as it gets on. What it brings from before is late.
6. What is far ahead of the middle of all that get on gets half of the room only. Nobody is given
   up for the sake of a stream that is far ahead of the own broker's clock.

State: when each stream got on last, and brought something last. Safe to lose.

Prior art: idle sources in stream processors, which are left out of watermarks after a time; here
they are when room runs out.
"""

from collections.abc import Iterable, Mapping

from anabranch.model.event import INT_MAX, INT_MIN

#: Heads that a stream may fail to tell before it counts as standing still.
STILL = 10
#: Clocks that are this far apart share the room, and more than the window between them.
_AHEAD_NS = 60 * 10**9


class Room:
    """Remembers which streams get on. See the rules at the top of this module."""

    def __init__(self, head_every_s: float) -> None:
        self._still_s = STILL * head_every_s
        #: Stream → its time, and since when it is that.
        self._times: dict[str, tuple[int, float]] = {}
        #: Stream → how many events it has brought, and when the last one was seen.
        self._brought: dict[str, tuple[int, float]] = {}
        self.given_up: set[str] = set()

    def seen(self, now: float, times: Mapping[str, int], events: Mapping[str, int]) -> None:
        """How far streams are, and how much they have brought so far (rule 5)."""
        for stream, time_ns in times.items():
            if self._times.get(stream, (None, 0.0))[0] != time_ns:
                self._times[stream] = (time_ns, now)
                self.given_up.discard(stream)
        for stream, count in events.items():
            if stream in times and self._brought.get(stream, (0, 0.0))[0] != count:
                self._brought[stream] = (count, now)
        for gone in [each for each in self._times if each not in times]:
            del self._times[gone]
            self._brought.pop(gone, None)
            self.given_up.discard(gone)

    def watermark_ns(self, times: Mapping[str, int]) -> int:
        """Up to when everything is known, but for those that are given up."""
        waited_for = [each for stream, each in times.items() if stream not in self.given_up]
        return min(waited_for or times.values(), default=INT_MIN)

    def give_up(
        self, now: float, times: Mapping[str, int], replayed: Iterable[str], window_ns: int
    ) -> list[str]:
        """There is no room: stop waiting for some streams. Returns who is given up now."""
        kept = [times[each] for each in replayed if each in times and self._gets_on(now, each)]
        middle_ns = self._middle_ns(now, times, int(now * 1e9) + window_ns + _AHEAD_NS)
        if middle_ns is not None:
            kept.append(middle_ns)
        # Who is about as far as the others is waited for: there would be nothing to gain.
        least_ns = min(kept, default=INT_MIN) - int(self._still_s * 1e9)
        found = [each for each, time_ns in times.items() if time_ns < least_ns]
        fresh = [each for each in found if each not in self.given_up]
        self.given_up |= set(fresh)
        return fresh

    def far_ns(self, now: float, live: Mapping[str, int], window_ns: int) -> int:
        """What is later than this is far ahead (rule 6)."""
        middle_ns = _lower_middle([t for s, t in live.items() if self._gets_on(now, s)])
        return INT_MAX if middle_ns is None else min(middle_ns + window_ns + _AHEAD_NS, INT_MAX)

    def _middle_ns(self, now: float, times: Mapping[str, int], far_ns: int) -> int | None:
        """Where the lower half ends of those that get on and bring something (rule 3); of those
        that get on, if none of them brings anything; of all, if nobody gets on."""
        near = {s: t for s, t in times.items() if INT_MIN < t <= far_ns}
        moving = [s for s in near if self._gets_on(now, s)]
        busy = [s for s in moving if self._brings(now, s)]
        return _lower_middle([near[each] for each in busy or moving or near])

    def _gets_on(self, now: float, stream: str) -> bool:
        return now - self._times.get(stream, (0, now))[1] < self._still_s

    def _brings(self, now: float, stream: str) -> bool:
        return now - self._brought.get(stream, (0, -self._still_s))[1] < self._still_s


def _lower_middle(times: list[int]) -> int | None:
    return sorted(times)[(len(times) - 1) // 2] if times else None
