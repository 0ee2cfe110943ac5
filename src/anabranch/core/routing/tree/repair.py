"""Liveness: how interest that got lost on the way is noticed and asked for.

Changes of interest may be lost, refused or overtaken. Nothing goes wrong then, but ticks are sent
on unfiltered, and subscriptions wait for their start. Two mechanisms end that:

*Asking* (every presence). A version that is seen anywhere, in a mark, a change, a constraint or a
question, and that is later than what is known here, shows a lag. The presence asks in the
direction of that edge, at once if a change was refused, after a grace otherwise (the change may be
on its way), and again with growing pauses as long as it lags. A question says what the asker knows
and what it has seen, so that whoever is asked notices a lag of its own and asks onward: in the end
the edge itself, which knows.

*Repeating* (the edge). Every origin's marks show which version of the edge's interest reached it.
If ticks still arrive with an older one after the time this usually takes, the edge sends its whole
interest through the network once more. The usual time is estimated like a round trip of TCP: mean
and deviation, smoothed; each repetition without effect doubles it.

State: volatile.

Prior art: Zhao 2006, §4.3.2; Jacobson 1988 for the estimate.
"""

from collections.abc import Mapping, Sequence

from anabranch.model.version import NOTHING, Version

#: Parts of the first timeout: grace before the first question, pause after it, and its growth.
_GRACE = 0.05
_PAUSE = 0.25
_PAUSE_MAX = 8.0
#: Propagations whose time is remembered.
_TIMES_MAX = 64
_DOUBLINGS_MAX = 6


class Lag:
    """What a presence has seen but does not know, and when to ask for it."""

    def __init__(
        self,
        versions: Mapping[str, Version],
        behind: Mapping[str, Sequence[str]],
        toward: Mapping[str, str],
        lag_after_s: float,
    ) -> None:
        self._versions = versions
        self._behind = behind
        self._toward = toward
        self._lag_after_s = lag_after_s
        #: Edge → the latest version seen, where that is later than what is known.
        self._seen: dict[str, Version] = {}
        #: Direction → when to ask there.
        self._ask_at: dict[str, float] = {}
        #: Direction → the earliest time for another question, and the pause after that.
        self._pauses: dict[str, tuple[float, float]] = {}

    def see(self, now: float, vector: Mapping[str, Version], is_urgent: bool = False) -> None:
        """Somebody knows these versions."""
        for edge, version in vector.items():
            if version > self._versions.get(edge, NOTHING) and edge in self._toward:
                if version > self._seen.get(edge, NOTHING):
                    self._seen[edge] = version
                self._plan(now, self._toward[edge], is_urgent)

    def _plan(self, now: float, direction: str, is_urgent: bool) -> None:
        free_at, _ = self._pauses.get(direction, (now, 0.0))
        at = max(now if is_urgent else now + _GRACE * self._lag_after_s, free_at)
        if at < self._ask_at.get(direction, at + 1):
            self._ask_at[direction] = at

    def learned(self, direction: str) -> None:
        """More is known of a direction."""
        seen, versions = self._seen, self._versions
        for edge in self._behind[direction]:
            if edge in seen and versions.get(edge, NOTHING) >= seen[edge]:
                del seen[edge]
        if not any(edge in seen for edge in self._behind[direction]):
            self._ask_at.pop(direction, None)
            self._pauses.pop(direction, None)

    def seen(self, edges: Sequence[str]) -> dict[str, Version]:
        """Of these edges, the versions that were seen and are not known."""
        return {edge: self._seen[edge] for edge in edges if edge in self._seen}

    def due(self, now: float) -> list[str]:
        """Directions to ask in now; they are asked again after a pause."""
        due = [direction for direction, at in self._ask_at.items() if at <= now]
        for direction in due:
            _, pause = self._pauses.get(direction, (0.0, 0.0))
            pause = min(pause * 2, _PAUSE_MAX * self._lag_after_s) or _PAUSE * self._lag_after_s
            self._pauses[direction] = (now + pause, pause)
            self._ask_at[direction] = now + pause
        return due

    def next_deadline(self) -> float | None:
        """When something is due."""
        return min(self._ask_at.values()) if self._ask_at else None


class Repetition:
    """When an edge has to say its whole interest again."""

    def __init__(self, lag_after_s: float) -> None:
        self._mean_s = 0.0
        self._deviation_s = 0.0
        #: Nothing was measured yet.
        self._first_s = lag_after_s
        self._least_s = lag_after_s / 4
        #: Version → when it was propagated, oldest first.
        self._times: dict[Version, float] = {}
        self._last: tuple[Version, float] = (NOTHING, 0.0)
        #: Origin → the version its marks have.
        self._reached: dict[str, Version] = {}
        self._doublings = 0
        self._not_before = 0.0

    @property
    def timeout_s(self) -> float:
        """How long a version may take until it is back in marks."""
        if self._mean_s == 0.0:
            return self._first_s
        return max(self._mean_s + 4 * self._deviation_s, self._least_s)

    def propagated(self, now: float, version: Version) -> None:
        """The edge told the network a version."""
        self._times[version] = now
        self._last = (version, now)
        if len(self._times) > _TIMES_MAX:
            del self._times[next(iter(self._times))]

    def heard(self, now: float, origin: str, version: Version) -> bool:
        """Ticks of an origin arrived with this version; True if interest is to be repeated."""
        before = self._reached.get(origin, NOTHING)
        if version > before:
            self._reached[origin] = version
            # What was repeated says nothing about the usual time.
            if not self._doublings:
                self._measure(now, version)
            self._doublings = 0
        last, _ = self._last
        if version >= last or now < self._not_before:
            return False
        missing_since = next((t for v, t in self._times.items() if v > version), self._last[1])
        wait_s = self.timeout_s * 2**self._doublings
        if now < missing_since + wait_s:
            return False
        self._doublings = min(self._doublings + 1, _DOUBLINGS_MAX)
        self._not_before = now + wait_s
        return True

    def _measure(self, now: float, version: Version) -> None:
        sent_at = self._times.get(version)
        if sent_at is None:
            return
        sample = now - sent_at
        if self._mean_s == 0.0:
            self._mean_s, self._deviation_s = sample, sample / 2
        else:
            self._deviation_s += (abs(sample - self._mean_s) - self._deviation_s) / 4
            self._mean_s += (sample - self._mean_s) / 8
        for old in [v for v in self._times if all(r >= v for r in self._reached.values())]:
            if old != self._last[0] and old < version:
                del self._times[old]
