"""A presence: one broker's share of one site (a *virtual broker*), and the interest it keeps.

A presence keeps, for every direction, the conjunctions wanted there (Λ), and for every edge the
version of its interest that they include (V^b). Invariant S-Λ: every subscription that its edge's
version contains, and that had not ended by then, is covered by the conjunctions of that edge's
direction. Rules:

1. A change applies only if this presence has exactly the versions of the constraint vector. The
   presence then forwards it unchanged to the other brokers of the site, and sends every other
   direction the resulting change of that direction's view. Only the broker that received the change
   from outside the site does this.
2. The change for another direction advances the same versions, even if it contains nothing else.
   If everything passed through unchanged, its constraint is the one it came with; otherwise it is
   the vector this presence had before, restricted to the edges on this side.
3. A state replaces everything known of a direction, conjunctions and versions together, unless one
   of its versions is older than the current one. The difference is propagated like a change.
4. A frame that neither applies nor is old reveals a lag; see *Repair* below.
5. A request is answered if the requester lacks something.
6. Interest beyond this broker's limits is not learned, with a note: ticks are then forwarded
   unfiltered.
7. An identical request or state within a short time has no effect.

Rule 2 needs only equality because equal versions imply equal roots: the receiver has the roots that
this presence sent, or the same roots from another broker.

*Repair.* Changes of interest may be lost, refused or reordered. That is safe, but ticks are then
forwarded unfiltered and subscriptions wait for their start. Two mechanisms restore progress:

- *Requests* (`PresenceLag`, every presence). A version that appears anywhere (in a mark, a change,
  a constraint or a request) and is later than the presence's own reveals a lag. The presence sends
  a request in the direction of that edge: at once if it refused a change, otherwise after a grace
  period (the change may be in transit), and again with exponential backoff while it lags. A request
  carries the requester's versions and the versions it has seen, so that the broker that receives it
  notices its own lag and sends a request onward, if necessary up to the edge itself.
- *Repetition* (`InterestRepetition`, the edge). The marks of each origin show which version of the
  edge's interest has reached it. If ticks still arrive with an older version after the usual delay,
  the edge sends its whole interest through the network again. The usual delay is estimated like a
  TCP round-trip time, with smoothed mean and deviation; each repetition without effect doubles it.

State: volatile. A presence starts with nothing and is insufficient for everything.

Prior art: Zhao 2006, §3.3–3.4, §4.1.6, §4.3 (repair in §4.3.2); virtual brokers in §3.1.1;
Jacobson 1988 for the delay estimate.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from anabranch.core.contract import Note
from anabranch.core.routing.contract import WorkDone
from anabranch.core.routing.interest_clock import (
    Conjunct,
    InterestClock,
    encode_interest,
    encode_removals,
    unpack_in_slices,
)
from anabranch.core.routing.tree.forwarding import Forwarding, Sufficiency
from anabranch.core.routing.tree.interest import DirectionChange, Interest
from anabranch.core.routing.tree.shared import InterestFrame, SiteView, TreeState
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.frames import AskInterest, InterestChange, InterestState
from anabranch.model.version import NOTHING, Version

#: As factors of `lag_after_s`: grace period before the first request, first backoff, longest one.
_GRACE = 0.05
_PAUSE = 0.25
_PAUSE_MAX = 8.0
#: Propagations whose time is remembered, to measure delays.
_TIMES_MAX = 64
_DOUBLINGS_MAX = 6


class PresenceLag:
    """Versions that a presence has seen but not received, and when to request them."""

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
        #: Edge → the latest version seen, if later than the presence's own.
        self._seen: dict[str, Version] = {}
        #: Direction → when to send the next request.
        self._ask_at: dict[str, float] = {}
        #: Direction → the earliest time of another request, and the backoff after it.
        self._pauses: dict[str, tuple[float, float]] = {}

    def record_seen(
        self, now: float, vector: Mapping[str, Version], is_urgent: bool = False
    ) -> None:
        """Record versions that some other broker has."""
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
        """The presence has learned more of a direction."""
        seen, versions = self._seen, self._versions
        for edge in self._behind[direction]:
            if edge in seen and versions.get(edge, NOTHING) >= seen[edge]:
                del seen[edge]
        if not any(edge in seen for edge in self._behind[direction]):
            self._ask_at.pop(direction, None)
            self._pauses.pop(direction, None)

    def seen(self, edges: Sequence[str]) -> dict[str, Version]:
        """The versions of these edges that were seen but not received."""
        return {edge: self._seen[edge] for edge in edges if edge in self._seen}

    def due(self, now: float) -> list[str]:
        """Directions to send a request to now; schedules the next request after a backoff."""
        due = [direction for direction, at in self._ask_at.items() if at <= now]
        for direction in due:
            _, pause = self._pauses.get(direction, (0.0, 0.0))
            pause = min(pause * 2, _PAUSE_MAX * self._lag_after_s) or _PAUSE * self._lag_after_s
            self._pauses[direction] = (now + pause, pause)
            self._ask_at[direction] = now + pause
        return due

    def next_deadline(self) -> float | None:
        return min(self._ask_at.values()) if self._ask_at else None


class InterestRepetition:
    """When an edge has to send its whole interest again."""

    def __init__(self, lag_after_s: float) -> None:
        self._mean_s = 0.0
        self._deviation_s = 0.0
        #: Timeout before the first measurement.
        self._first_s = lag_after_s
        self._least_s = lag_after_s / 4
        #: Version → when it was propagated, oldest first.
        self._times: dict[Version, float] = {}
        self._last: tuple[Version, float] = (NOTHING, 0.0)
        #: Origin → the version that its marks have.
        self._reached: dict[str, Version] = {}
        self._doublings = 0
        self._not_before = 0.0

    @property
    def timeout_s(self) -> float:
        """How long a version may take until it appears in marks."""
        if self._mean_s == 0.0:
            return self._first_s
        return max(self._mean_s + 4 * self._deviation_s, self._least_s)

    def propagated(self, now: float, version: Version) -> None:
        self._times[version] = now
        self._last = (version, now)
        if len(self._times) > _TIMES_MAX:
            del self._times[next(iter(self._times))]

    def heard(self, now: float, origin: str, version: Version) -> bool:
        """Ticks of an origin arrived with this version; returns True if the edge has to repeat its
        interest."""
        before = self._reached.get(origin, NOTHING)
        if version > before:
            self._reached[origin] = version
            # A repeated propagation is not a sample of the usual delay.
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


#: Window of rule 7, as a factor of `lag_after_s`.
_REPEAT_WINDOW = 0.1


class Presence:
    """One broker in one site. See the rules at the top of this module."""

    def __init__(self, shared: TreeState, site: str, clock: InterestClock | None) -> None:
        options = shared.options
        self.site = site
        self.view = view = SiteView(shared.topology, site)
        #: At a leaf: the clock of the interest that originates here.
        self.clock = clock
        #: V^b: edge → version; a missing edge is at NOTHING. Versions never decrease.
        self.versions: dict[str, Version] = {}
        receivers = () if clock is not None else view.client_directions
        self.interest = Interest(receivers, shared.limits, options.covering)
        self.lag = PresenceLag(self.versions, view.behind, view.direction_of, options.lag_after_s)
        self._sufficiency = Sufficiency(
            shared.marks,
            self.versions,
            view.edges_behind,
            shared.counters,
            options.sufficiency_cache,
        )
        self.forwarding = Forwarding(shared, view, self.interest, self._sufficiency)
        self._shared = shared
        #: Increases with every change of the interest.
        self.revision = 0
        #: Direction → number of requests sent.
        self._turns: dict[str, int] = {}
        #: Peer or source → the last request or state, and its time; see rule 7.
        self._repeated: dict[str, tuple[object, float]] = {}

    # -- versions ---------------------------------------------------------------------------------

    def vector_for(self, direction: str) -> dict[str, Version]:
        """The versions that a direction can learn through here: of all edges not behind it."""
        constraint = self._constraint_for(direction)
        return {edge: version for edge, version in constraint.items() if version != NOTHING}

    def _constraint_for(self, direction: str) -> dict[str, Version]:
        """`vector_for`, including edges at NOTHING: a constraint requires equality there too."""
        return {edge: self._version(edge) for edge in self.view.not_behind[direction]}

    def _version(self, edge: str) -> Version:
        if self.clock is not None and edge == self.clock.edge:
            return self.clock.propagated
        return self.versions.get(edge, NOTHING)

    def _roots_for(self, direction: str) -> list[Conjunct]:
        return self.clock.roots() if self.clock is not None else self.interest.roots(direction)

    # -- propagation ------------------------------------------------------------------------------

    def propagate(self) -> Version | None:
        """Send the changes since the last propagation; returns the version that contains them."""
        clock = self.clock
        assert clock is not None
        step = clock.propagate()
        if step is None:
            return None
        if self.view.is_client_site:
            self._shared.vector_advanced()
        for direction in self.view.directions:
            if step.before == NOTHING:
                self.send_whole_interest(direction)
            else:
                advance, constraint = {clock.edge: step.version}, {clock.edge: step.before}
                self._send_change(
                    direction, advance, DirectionChange(step.plus, step.minus, False), constraint
                )
        return step.version

    # -- sending ----------------------------------------------------------------------------------

    def send_whole_interest(self, direction: str, onward: bool = False) -> None:
        """Send a direction the whole interest that it can learn through here."""
        broker = self._shared.overlay.designated(direction)
        if broker is not None:
            self._send_state(broker, direction, onward)

    def request_interest(self, direction: str, broker: str | None = None) -> None:
        """Request all the interest of a direction, from a different broker each time."""
        if broker is None:
            turn = self._turns.get(direction, 0)
            self._turns[direction] = turn + 1
            broker = self._shared.overlay.designated(direction, turn)
        if broker is None:
            return
        behind = self.view.behind[direction]
        known = {edge: self.versions[edge] for edge in behind if edge in self.versions}
        request = AskInterest(direction, self.site, known, self.lag.seen(behind))
        self._shared.send_interest(broker, request)

    def _send_state(self, broker: str, direction: str, onward: bool) -> None:
        vector = self.vector_for(direction)
        roots = encode_interest(self._roots_for(direction), self._shared.limits)
        state = InterestState(direction, self.site, vector, roots, False, onward)
        self._shared.send_interest(broker, state)

    def _send_change(
        self,
        direction: str,
        advance: dict[str, Version],
        change: DirectionChange,
        constraint: dict[str, Version],
    ) -> None:
        broker = self._shared.overlay.designated(direction)
        if broker is not None:
            limits = self._shared.limits
            parts = (
                encode_interest(change.plus, limits),
                encode_removals(change.minus, limits),
                constraint,
            )
            frame = InterestChange(direction, self.site, advance, *parts)
            self._shared.send_interest(broker, frame)

    def _send_to_peers(self, frame: InterestChange | InterestState) -> None:
        peers = self._shared.overlay.reachable_members(self.site)
        if not peers:
            return
        if isinstance(frame, InterestState):
            copy: InterestFrame = msgspec.structs.replace(frame, from_peer=True, onward=False)
        else:
            copy = msgspec.structs.replace(frame, from_peer=True)
        for peer in peers:
            self._shared.send_interest(peer, copy)

    # -- receiving --------------------------------------------------------------------------------

    def receive(self, now: float, peer: str, frame: InterestFrame) -> Iterator[WorkDone]:
        self._check(peer, frame)
        if isinstance(frame, InterestChange):
            yield from self._change(now, frame)
        elif isinstance(frame, InterestState):
            yield from self._state(now, frame)
        else:
            self._interest_requested(now, peer, frame)

    def _change(self, now: float, frame: InterestChange) -> Iterator[WorkDone]:
        known = self.versions
        if all(known.get(edge, NOTHING) >= v for edge, v in frame.advance.items()):
            self.lag.record_seen(now, frame.constraint)
            return
        if not self._applies(frame):
            self._shared.counters.changes_refused += 1
            # The missing change may be in transit, but not from a sender that lags itself.
            lags = any(known.get(e, NOTHING) < v for e, v in frame.constraint.items())
            self.lag.record_seen(now, frame.constraint)
            self.lag.record_seen(now, frame.advance, is_urgent=not lags)
            return
        limits, source = self._shared.limits, frame.source
        plus = yield from unpack_in_slices(frame.plus, limits)
        minus = yield from unpack_in_slices(frame.minus, limits)
        self._shared.counters.changes_applied += 1
        before = {d: self._constraint_for(d) for d in self.view.client_directions if d != source}
        try:
            changes = yield from self.interest.change_in_slices(source, plus, minus)
        except LocalError as error:
            self._refuse(source, error)
            return
        self._advance(source, frame.advance)
        if not frame.from_peer:
            self._send_to_peers(frame)
            self._pass_on(frame.advance, changes, frame.constraint, before)

    def _pass_on(
        self,
        advance: dict[str, Version],
        changes: Mapping[str, DirectionChange],
        constraint: dict[str, Version],
        before: Mapping[str, dict[str, Version]],
    ) -> None:
        """Send a change to the other directions (rule 2); `before` holds their vectors before."""
        for direction, change in changes.items():
            known = before[direction] if change.aggregated else constraint
            self._send_change(direction, advance, change, known)

    def _applies(self, frame: InterestChange) -> bool:
        known = self.versions
        if any(known.get(edge, NOTHING) >= v for edge, v in frame.advance.items()):
            return False
        return all(known.get(edge, NOTHING) == v for edge, v in frame.constraint.items())

    def _state(self, now: float, frame: InterestState) -> Iterator[WorkDone]:
        source, known = frame.source, self.versions
        behind = self.view.behind[source]
        advance = {e: v for e, v in frame.vector.items() if v > known.get(e, NOTHING)}
        is_late = any(frame.vector.get(edge, NOTHING) < known.get(edge, NOTHING) for edge in behind)
        if is_late or not advance:
            self._shared.counters.states_ignored += 1
            self.lag.record_seen(now, advance, is_urgent=True)
            if frame.onward and not self._is_repeated(now, f"onward {source}", frame.vector):
                self._offer_onward(source)
            return
        conjuncts = yield from unpack_in_slices(frame.conjunctions, self._shared.limits)
        self._shared.counters.states_applied += 1
        before = {d: self._constraint_for(d) for d in self.view.client_directions if d != source}
        constraint = {edge: known.get(edge, NOTHING) for edge in behind}
        try:
            changes = yield from self.interest.replace_in_slices(source, conjuncts)
        except LocalError as error:
            self._refuse(source, error)
            return
        self._advance(source, advance)
        if frame.from_peer:
            return
        self._send_to_peers(frame)
        if frame.onward:
            self._offer_onward(source)
        else:
            self._pass_on(advance, changes, constraint, before)

    def _refuse(self, source: str, error: LocalError) -> None:
        """Rule 6: discard interest beyond the limits and forward ticks unfiltered."""
        self._shared.counters.changes_refused += 1
        text = f"interest of {source!r} at {self.site!r} exceeds the limits, not filtering: {error}"
        self._shared.emit(Note("warning", text))

    def _offer_onward(self, source: str) -> None:
        for direction in self.view.client_directions:
            if direction != source and self.clock is None:
                self.send_whole_interest(direction, onward=True)

    def _interest_requested(self, now: float, peer: str, frame: AskInterest) -> None:
        direction = frame.source
        self.lag.record_seen(now, frame.known)
        self.lag.record_seen(now, frame.seen)
        if direction not in self.view.client_directions:
            return
        mine = self.vector_for(direction)
        if any(version > frame.known.get(edge, NOTHING) for edge, version in mine.items()):
            if self._is_repeated(now, f"{peer} in {direction}", (frame.known, mine)):
                return
            self._shared.counters.answers_sent += 1
            self._send_state(peer, direction, onward=False)

    def link_down(self) -> None:
        """Frames sent over the link may be lost, so their repetitions must have an effect."""
        self._repeated.clear()

    def _is_repeated(self, now: float, key: str, content: object) -> bool:
        """Rule 7. The window is shorter than the backoff between intended requests."""
        before, at = self._repeated.get(key, (None, now))
        if before == content and now < at + _REPEAT_WINDOW * self._shared.options.lag_after_s:
            return True
        self._repeated[key] = (content, now)
        return False

    def _advance(self, direction: str, advance: Mapping[str, Version]) -> None:
        self.revision += 1
        self.versions.update(advance)
        self._sufficiency.drop_failures(direction)
        self.lag.learned(direction)
        if self.view.is_client_site:
            self._shared.vector_advanced()

    # -- checking ---------------------------------------------------------------------------------

    def _check(self, peer: str, frame: InterestFrame) -> None:
        """Raise `RemoteError` unless this frame can come from that neighbour."""
        source, members = frame.source, self._shared.overlay.members
        vectors: tuple[Mapping[str, Version], ...]
        if source not in self.view.directions:
            raise RemoteError(
                f"{peer!r} sends site {self.site!r} interest of {source!r}, which is not adjacent"
            )
        if isinstance(frame, AskInterest):
            is_member = peer in members(source)
            # `seen` is hearsay: it may be wrong without a fault of the sender, so check names only.
            self._check_names(peer, frame.seen, self.view.not_behind[source])
            vectors, allowed = (frame.known,), self.view.not_behind[source]
        elif isinstance(frame, InterestState):
            is_member = peer in members(self.site if frame.from_peer else source)
            vectors, allowed = (frame.vector,), self.view.behind[source]
        else:
            is_member = peer in members(self.site if frame.from_peer else source)
            vectors, allowed = (frame.advance, frame.constraint), self.view.behind[source]
            if any(edge not in frame.constraint for edge in frame.advance) or not frame.advance:
                raise RemoteError(f"{peer!r} sends a change of interest without valid versions")
        if not is_member:
            raise RemoteError(f"{peer!r} sends for site {source!r} but is not a member of it")
        for vector in vectors:
            self._check_names(peer, vector, allowed)
            self._shared.check_own(vector)

    def _check_names(
        self, peer: str, vector: Mapping[str, Version], allowed: tuple[str, ...]
    ) -> None:
        for edge in vector:
            if edge not in allowed:
                raise RemoteError(f"{peer!r} sends site {self.site!r} interest of {edge!r}")
