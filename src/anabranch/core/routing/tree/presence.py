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

from collections.abc import Iterator, Mapping

import msgspec

from anabranch.core.contract import Note
from anabranch.core.routing.clock import Clock
from anabranch.core.routing.conjuncts import Conjunct, ended, unpacking, wanted
from anabranch.core.routing.contract import Spent
from anabranch.core.routing.tree.forwarding import Forwarding
from anabranch.core.routing.tree.interest import Interest, RootChange
from anabranch.core.routing.tree.repair import Lag
from anabranch.core.routing.tree.sufficiency import Sufficiency
from anabranch.core.routing.tree.surroundings import InterestFrame, Surroundings
from anabranch.core.routing.tree.topology import Outlook
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.frames import AskInterest, InterestChange, InterestState
from anabranch.model.version import NOTHING, Version

#: Part of the first timeout of repair.
_MOMENT = 0.1


class Presence:
    """One broker in one site. See the rules at the top of this module."""

    def __init__(self, around: Surroundings, site: str, clock: Clock | None) -> None:
        options = around.options
        self.site = site
        self.outlook = outlook = Outlook(around.topology, site)
        #: At a leaf: the interest that begins here.
        self.clock = clock
        #: V^b: edge → version; an edge that is missing is at NOTHING. Never goes back.
        self.versions: dict[str, Version] = {}
        told = () if clock is not None else outlook.listening
        self.interest = Interest(told, around.limits, options.covering)
        self.lag = Lag(self.versions, outlook.behind, outlook.toward, options.lag_after_s)
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
                    direction, advance, RootChange(step.plus, step.minus, False), constraint
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
        change: RootChange,
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

    def receive(self, now: float, peer: str, frame: InterestFrame) -> Iterator[Spent]:
        """A frame about interest came for this site."""
        self._check(peer, frame)
        if isinstance(frame, InterestChange):
            yield from self._change(now, frame)
        elif isinstance(frame, InterestState):
            yield from self._state(now, frame)
        else:
            self._asked(now, peer, frame)

    def _change(self, now: float, frame: InterestChange) -> Iterator[Spent]:
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
        changes: Mapping[str, RootChange],
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

    def _state(self, now: float, frame: InterestState) -> Iterator[Spent]:
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
