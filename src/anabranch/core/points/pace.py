"""How much join points do in one step, and how many matches they publish in one second.

A pattern can find many matches in few events, and a client can define many patterns. Neither is to
keep the broker from everything else, nor to fill its log faster than others can read. Rules:

1. All join points of a broker share what may be tried in one step (`pattern_step_tries`). An event
   that was begun is finished. What is left goes on in the next step, after whatever else has
   happened; who has waited longest comes first.
2. A pattern publishes `pattern_matches_per_s`, and all patterns that one client has defined, as far
   as they are detected here, `pattern_client_matches_per_s`. What was not used is saved up for a
   second.
3. Both only delay. What waits is bounded by the join point, which takes no more events then.

State: what is left of the step, and of each rate. Safe to lose: a broker that starts again begins
with a full second.

Prior art: token buckets, as of RFC 2697.
"""

from anabranch.core.options import Options
from anabranch.core.patterns.tries import Allowance

#: What it counts to read an event, and to publish a match, in the time that it takes to look at an
#: entry of a detector.
EVENT_TRIES = 50
PUBLISH_TRIES = 400


class Bucket:
    """So many in a second, and as many at once after a pause."""

    __slots__ = ("_at", "_level", "_per_s")

    def __init__(self, now: float, per_s: int) -> None:
        assert per_s >= 1, "a rate of nothing would never be ready"
        self._per_s = per_s
        self._level = float(per_s)
        self._at = now

    def ready_at(self, now: float) -> float:
        """When the next one is allowed; `now` if it is."""
        self._fill(now)
        return now if self._level >= 1.0 else now + (1.0 - self._level) / self._per_s

    def take(self) -> None:
        """One is done."""
        self._level -= 1.0

    def is_full(self, now: float) -> bool:
        """Whether nothing was done for a second; it need not be remembered then."""
        self._fill(now)
        return self._level >= self._per_s

    def _fill(self, now: float) -> None:
        if now > self._at:
            # A little more than the time says, so that who waits for a time is ready then.
            gained = (now - self._at) * self._per_s + 1e-6
            self._level = min(self._level + gained, float(self._per_s))
            self._at = now


class Pace:
    """Shared by all join points of a broker. See the rules at the top of this module."""

    def __init__(self, options: Options) -> None:
        self.allowance = Allowance(options.pattern_step_tries)
        self._per_s = options.pattern_client_matches_per_s
        #: Client → what it may still publish.
        self._clients: dict[str, Bucket] = {}

    def of_client(self, now: float, client: str) -> Bucket:
        """The rate that all patterns of a client share."""
        bucket = self._clients.get(client)
        if bucket is None:
            for name in [name for name, each in self._clients.items() if each.is_full(now)]:
                del self._clients[name]
            bucket = self._clients[client] = Bucket(now, self._per_s)
        return bucket
