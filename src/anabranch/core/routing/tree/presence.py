"""A presence: one broker's part in one site (a *virtual broker*), as far as interest goes.

A presence knows, for every direction, the conjunctions wanted there (Λ), and for every edge the
version of its interest that this is good for (V^b). The promise it keeps, S-Λ: every subscription
that its edge's version contains, and that has not ended by then, is covered by the conjunctions of
that edge's direction. Rules:

1. A change applies only where exactly the versions of its constraint are known. It is then told to
   the other brokers of the site as it is, and to every other direction as the change of what that
   direction is to know. Only who got it from outside the site does this.
2. The change for another direction leads to the same versions, even if nothing else is left of it.
   Its constraint is the one it came with, if all of it passed through here untouched; otherwise it
   is what was known here before, of all edges on this side.
3. A state replaces all that was known of a direction, conjunctions and versions at once, if none
   of its versions is older than what is known. What it brought is told like a change.
4. What neither applies nor is old shows a lag: see `repair`.
5. A question is answered if there is news for the asker.
6. Interest beyond our own limits is not learned, with a note: ticks are then sent on unfiltered.
7. What is repeated word by word within a moment causes nothing a second time.

Why rule 2 needs no more than equality: where versions are equal, the roots are. So the receiver has
what was told from here, or what somebody else with the same roots told it.

State: volatile. A presence starts with nothing and is insufficient for everything.

Prior art: Zhao 2006, §3.3–3.4, §4.1.6, §4.3; virtual brokers in §3.1.1.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from anabranch.core.contract import Note
from anabranch.core.routing.contract import WorkDone
from anabranch.core.routing.interest_clock import Conjunct, InterestClock, ended, unpacking, wanted
from anabranch.core.routing.tree.forwarding import Forwarding, Sufficiency
from anabranch.core.routing.tree.interest import DirectionChange, Interest
from anabranch.core.routing.tree.shared import InterestFrame, SiteView, TreeState
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.frames import AskInterest, InterestChange, InterestState
from anabranch.model.version import NOTHING, Version

# Liveness: how interest that got lost on the way is noticed and asked for.
#
# Changes of interest may be lost, refused or overtaken. Nothing goes wrong then, but ticks are sent
# on unfiltered, and subscriptions wait for their start. Two mechanisms end that:
#
# *Asking* (every presence). A version that is seen anywhere, in a mark, a change, a constraint or a
# question, and that is later than what is known here, shows a lag. The presence asks in the
# direction of that edge, at once if a change was refused, after a grace otherwise (the change may
# be on its way), and again with growing pauses as long as it lags. A question says what the asker
# knows and what it has seen, so that whoever is asked notices a lag of its own and asks onward: in
# the end the edge itself, which knows.
#
# *Repeating* (the edge). Every origin's marks show which version of the edge's interest reached it.
# If ticks still arrive with an older one after the time this usually takes, the edge sends its
# whole interest through the network once more. The usual time is estimated like a round trip of
# TCP: mean and deviation, smoothed; each repetition without effect doubles it.
#
# State: volatile.
#
# Prior art: Zhao 2006, §4.3.2; Jacobson 1988 for the estimate.


#: Parts of the first timeout: grace before the first question, pause after it, and its growth.
_GRACE = 0.05
_PAUSE = 0.25
_PAUSE_MAX = 8.0
#: Propagations whose time is remembered.
_TIMES_MAX = 64
_DOUBLINGS_MAX = 6


class PresenceLag:
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


class InterestRepetition:
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


#: Part of the first timeout of repair.
_MOMENT = 0.1


class Presence:
    """One broker in one site. See the rules at the top of this module."""

    def __init__(self, around: TreeState, site: str, clock: InterestClock | None) -> None:
        options = around.options
        self.site = site
        self.outlook = outlook = SiteView(around.topology, site)
        #: At a leaf: the interest that begins here.
        self.clock = clock
        #: V^b: edge → version; an edge that is missing is at NOTHING. Never goes back.
        self.versions: dict[str, Version] = {}
        told = () if clock is not None else outlook.listening
        self.interest = Interest(told, around.limits, options.covering)
        self.lag = PresenceLag(self.versions, outlook.behind, outlook.toward, options.lag_after_s)
        self._sufficiency = Sufficiency(
            around.marks,
            self.versions,
            outlook.edges_behind,
            around.counters,
            options.sufficiency_cache,
        )
        self.forwarding = Forwarding(around, outlook, self.interest, self._sufficiency)
        self._around = around
        #: Grows with everything that is learned.
        self.revision = 0
        #: Direction → how often it was asked.
        self._turns: dict[str, int] = {}
        #: Who asked or was repeated to → what, and when; see rule 7.
        self._repeated: dict[str, tuple[object, float]] = {}

    # -- what is known ----------------------------------------------------------------------------

    def vector_for(self, direction: str) -> dict[str, Version]:
        """What a direction may know through here: versions of all edges that are not there."""
        every = self._constraint_for(direction)
        return {edge: version for edge, version in every.items() if version != NOTHING}

    def _constraint_for(self, direction: str) -> dict[str, Version]:
        """The same, with every edge named: NOTHING is a version to be equal to, too."""
        return {edge: self._version(edge) for edge in self.outlook.before[direction]}

    def _version(self, edge: str) -> Version:
        if self.clock is not None and edge == self.clock.edge:
            return self.clock.propagated
        return self.versions.get(edge, NOTHING)

    def _roots_for(self, direction: str) -> list[Conjunct]:
        return self.clock.roots() if self.clock is not None else self.interest.roots(direction)

    # -- the own clock ----------------------------------------------------------------------------

    def propagate(self) -> Version | None:
        """Tell what changed since the last propagation; the version that has it."""
        clock = self.clock
        assert clock is not None
        step = clock.propagate()
        if step is None:
            return None
        if self.outlook.is_client_site:
            self._around.has_advanced = True
        for direction in self.outlook.directions:
            if step.before == NOTHING:
                self.offer(direction)
            else:
                advance, constraint = {clock.edge: step.version}, {clock.edge: step.before}
                self._send_change(
                    direction, advance, DirectionChange(step.plus, step.minus, False), constraint
                )
        return step.version

    # -- sending ----------------------------------------------------------------------------------

    def offer(self, direction: str, onward: bool = False) -> None:
        """Send all that a direction may know through here."""
        broker = self._around.overlay.agreed(direction)
        if broker is not None:
            self._send_state(broker, direction, onward)

    def ask(self, direction: str, broker: str | None = None) -> None:
        """Ask a direction for all it knows; any broker there, another one each time."""
        if broker is None:
            turn = self._turns.get(direction, 0)
            self._turns[direction] = turn + 1
            broker = self._around.overlay.agreed(direction, turn)
        if broker is None:
            return
        behind = self.outlook.behind[direction]
        known = {edge: self.versions[edge] for edge in behind if edge in self.versions}
        question = AskInterest(direction, self.site, known, self.lag.seen(behind))
        self._around.send_interest(broker, question)

    def _send_state(self, broker: str, direction: str, onward: bool) -> None:
        vector = self.vector_for(direction)
        roots = wanted(self._roots_for(direction), self._around.limits)
        state = InterestState(direction, self.site, vector, roots, False, onward)
        self._around.send_interest(broker, state)

    def _send_change(
        self,
        direction: str,
        advance: dict[str, Version],
        change: DirectionChange,
        constraint: dict[str, Version],
    ) -> None:
        broker = self._around.overlay.agreed(direction)
        if broker is not None:
            limits = self._around.limits
            parts = wanted(change.plus, limits), ended(change.minus, limits), constraint
            frame = InterestChange(direction, self.site, advance, *parts)
            self._around.send_interest(broker, frame)

    def _tell_peers(self, frame: InterestChange | InterestState) -> None:
        peers = self._around.overlay.peers(self.site)
        if not peers:
            return
        if isinstance(frame, InterestState):
            told: InterestFrame = msgspec.structs.replace(frame, from_peer=True, onward=False)
        else:
            told = msgspec.structs.replace(frame, from_peer=True)
        for peer in peers:
            self._around.send_interest(peer, told)

    # -- receiving --------------------------------------------------------------------------------

    def receive(self, now: float, peer: str, frame: InterestFrame) -> Iterator[WorkDone]:
        """A frame about interest came for this site."""
        self._check(peer, frame)
        if isinstance(frame, InterestChange):
            yield from self._change(now, frame)
        elif isinstance(frame, InterestState):
            yield from self._state(now, frame)
        else:
            self._asked(now, peer, frame)

    def _change(self, now: float, frame: InterestChange) -> Iterator[WorkDone]:
        known = self.versions
        if all(known.get(edge, NOTHING) >= v for edge, v in frame.advance.items()):
            self.lag.see(now, frame.constraint)
            return
        if not self._applies(frame):
            self._around.counters.changes_refused += 1
            # What is missing may be on its way; a sender that lags itself will not send it.
            lags = any(known.get(e, NOTHING) < v for e, v in frame.constraint.items())
            self.lag.see(now, frame.constraint)
            self.lag.see(now, frame.advance, is_urgent=not lags)
            return
        limits, source = self._around.limits, frame.source
        plus = yield from unpacking(frame.plus, limits)
        minus = yield from unpacking(frame.minus, limits)
        self._around.counters.changes_applied += 1
        before = {d: self._constraint_for(d) for d in self.outlook.listening if d != source}
        try:
            changes = yield from self.interest.changing(source, plus, minus)
        except LocalError as error:
            self._cannot_know(source, error)
            return
        self._advance(source, frame.advance)
        if not frame.from_peer:
            self._tell_peers(frame)
            self._pass_on(frame.advance, changes, frame.constraint, before)

    def _pass_on(
        self,
        advance: dict[str, Version],
        changes: Mapping[str, DirectionChange],
        constraint: dict[str, Version],
        before: Mapping[str, dict[str, Version]],
    ) -> None:
        """Tell other directions of a change (rule 2); `before` is what was known, for each."""
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
        behind = self.outlook.behind[source]
        advance = {e: v for e, v in frame.vector.items() if v > known.get(e, NOTHING)}
        is_late = any(frame.vector.get(edge, NOTHING) < known.get(edge, NOTHING) for edge in behind)
        if is_late or not advance:
            self._around.counters.states_ignored += 1
            self.lag.see(now, advance, is_urgent=True)
            if frame.onward and not self._is_repeated(now, f"onward {source}", frame.vector):
                self._offer_onward(source)
            return
        conjuncts = yield from unpacking(frame.conjunctions, self._around.limits)
        self._around.counters.states_applied += 1
        before = {d: self._constraint_for(d) for d in self.outlook.listening if d != source}
        constraint = {edge: known.get(edge, NOTHING) for edge in behind}
        try:
            changes = yield from self.interest.replacing(source, conjuncts)
        except LocalError as error:
            self._cannot_know(source, error)
            return
        self._advance(source, advance)
        if frame.from_peer:
            return
        self._tell_peers(frame)
        if frame.onward:
            self._offer_onward(source)
        else:
            self._pass_on(advance, changes, constraint, before)

    def _cannot_know(self, source: str, error: LocalError) -> None:
        """Interest is beyond our limits: go on as if it had not come, and let everything pass."""
        self._around.counters.changes_refused += 1
        text = f"the interest of {source!r} at {self.site!r} is too much to know: {error}"
        self._around.out.append(Note("warning", text))

    def _offer_onward(self, source: str) -> None:
        for direction in self.outlook.listening:
            if direction != source and self.clock is None:
                self.offer(direction, onward=True)

    def _asked(self, now: float, peer: str, frame: AskInterest) -> None:
        direction = frame.source
        self.lag.see(now, frame.known)
        self.lag.see(now, frame.seen)
        if direction not in self.outlook.listening:
            return
        mine = self.vector_for(direction)
        if any(version > frame.known.get(edge, NOTHING) for edge, version in mine.items()):
            if self._is_repeated(now, f"{peer} in {direction}", (frame.known, mine)):
                return
            self._around.counters.answers_sent += 1
            self._send_state(peer, direction, onward=False)

    def link_down(self) -> None:
        """Whatever was said over a link may be lost with it, so a repetition is no repetition."""
        self._repeated.clear()

    def _is_repeated(self, now: float, who: str, what: object) -> bool:
        """Rule 7. The moment is shorter than any pause between questions that are meant."""
        before, at = self._repeated.get(who, (None, now))
        if before == what and now < at + _MOMENT * self._around.options.lag_after_s:
            return True
        self._repeated[who] = (what, now)
        return False

    def _advance(self, direction: str, advance: Mapping[str, Version]) -> None:
        self.revision += 1
        self.versions.update(advance)
        self._sufficiency.learned(direction)
        self.lag.learned(direction)
        if self.outlook.is_client_site:
            self._around.has_advanced = True

    # -- checking ---------------------------------------------------------------------------------

    def _check(self, peer: str, frame: InterestFrame) -> None:
        """Whether this frame can come from there and say such things."""
        source, members = frame.source, self._around.overlay.members
        vectors: tuple[Mapping[str, Version], ...]
        if source not in self.outlook.directions:
            raise RemoteError(
                f"{peer!r} tells site {self.site!r} of {source!r}, no neighbour of it"
            )
        if isinstance(frame, AskInterest):
            is_there = peer in members(source)
            # What the asker has seen it has from others: it may be wrong, and no fault of its own.
            self._check_names(peer, frame.seen, self.outlook.before[source])
            vectors, allowed = (frame.known,), self.outlook.before[source]
        elif isinstance(frame, InterestState):
            is_there = peer in members(self.site if frame.from_peer else source)
            vectors, allowed = (frame.vector,), self.outlook.behind[source]
        else:
            is_there = peer in members(self.site if frame.from_peer else source)
            vectors, allowed = (frame.advance, frame.constraint), self.outlook.behind[source]
            if any(edge not in frame.constraint for edge in frame.advance) or not frame.advance:
                raise RemoteError(f"{peer!r} tells a change of interest from nowhere to nowhere")
        if not is_there:
            raise RemoteError(f"{peer!r} speaks for site {source!r}, where it is not")
        for vector in vectors:
            self._check_names(peer, vector, allowed)
            self._around.check_own(vector)

    def _check_names(
        self, peer: str, vector: Mapping[str, Version], allowed: tuple[str, ...]
    ) -> None:
        for edge in vector:
            if edge not in allowed:
                raise RemoteError(f"{peer!r} tells site {self.site!r} of interest of {edge!r}")
