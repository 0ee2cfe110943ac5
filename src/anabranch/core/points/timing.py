"""How far time is at a join point: what it may decide, and what it still waits for.

Time passes with the streams: each is known up to when its origin said that nothing earlier will
come. One that is being read again, after a start or a move, is where its last event was, since a
stream never goes back. The watermark is the least of all, but for those that are not waited for any
longer because there is no more room (`room`).

What the broker knows of a stream holds when all that it has given was taken, as at a look. Between
two looks, while events are being taken, a stream is where it was then, or where its last event is.

State: how far streams were at the last look, and that of `room`. Safe to lose.
"""

from collections.abc import Mapping

from anabranch.core.options import Options
from anabranch.core.points.outlook import Outlook
from anabranch.core.points.room import Room
from anabranch.core.points.watch import Watch
from anabranch.model.event import INT_MIN
from anabranch.model.pattern.match import Match


class Timing:
    """Tells one watch how far time is. See the top of this module."""

    def __init__(self, subscription: str, outlook: Outlook, watch: Watch, options: Options) -> None:
        self._subscription = subscription
        self._outlook = outlook
        self._watch = watch
        self._options = options
        self._room = Room(options.head_every_s)
        #: How far streams were at the last look.
        self._looked: dict[str, int] = {}
        #: There was no room, and to look for some before this time is no use.
        self._crowded_until = 0.0

    def look(self, now: float) -> list[Match]:
        """See how far streams are; what is final now."""
        reach, watch = self._outlook.reach(self._subscription), self._watch
        self._looked = {
            stream: (reach[stream][1] or INT_MIN)
            if stream in watch.starts and stream in reach
            else INT_MIN
            for stream in self._outlook.streams
        }
        times = self._times()
        self._room.seen(now, times, watch.counters.by_stream)
        live = {each: at for each, at in self._looked.items() if at != INT_MIN}
        watch.far_is(self._room.far_ns(now, live, watch.retention_ns))
        return self._advance(times)

    def _times(self) -> dict[str, int]:
        """Stream → before when nothing more will come of it; `INT_MIN` if that is not known."""
        last_ns = self._watch.last_ns
        return {each: max(at, last_ns.get(each, INT_MIN)) for each, at in self._looked.items()}

    def _advance(self, times: Mapping[str, int]) -> list[Match]:
        watermark_ns = self._room.watermark_ns(times)
        return self._watch.advance(watermark_ns) if watermark_ns != INT_MIN else []

    def make_room(self, now: float, time_ns: int) -> list[Match]:
        """For an event of this time, let time pass; where that is not enough, go on without those
        that everybody waits for. What is final then."""
        watch = self._watch
        if now < self._crowded_until:
            return []
        times = self._times()
        found = self._advance(times)
        if watch.is_full_for(time_ns):
            self._room.seen(now, times, watch.counters.by_stream)
            replayed = [each for each, at in self._looked.items() if at == INT_MIN]
            for stream in self._room.give_up(now, times, replayed, watch.retention_ns):
                text = "there is no more room, and it goes on; what comes of it from before is late"
                watch.say(f"{stream!r} is not waited for any longer: {text}")
            found += self._advance(times)
        if watch.is_full_for(time_ns):
            self._crowded_until = now + self._options.pattern_look_s
        return found
