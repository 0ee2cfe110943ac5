"""Bindings: an edge sends each origin the interest that is relevant there.

The edge's interest has versions, as in all routing (`interest_clock`). An origin gets every
version, but only the conjunctions that could match something advertised there. Rules:

1. A conjunction is bound to every origin whose advertisements it meets (`relevance`). When these
   change, the edge compares its conjunctions again and reports to the origin, even if nothing
   changed: until then the origin sends everything. Conjunctions not compared yet are bound too.
   Once all are compared, unnecessary ones are withdrawn with a new version: for each version and
   edition there is exactly one interest, however often it is sent.
2. Each next hop gets one frame for all origins in that direction; brokers split it where the trees
   diverge. Brokers on the path follow the trees and do not match anything.
3. A change is relative to the interest sent last. The origin acknowledges it. If no acknowledgement
   arrives in time, or one that reports a gap, the edge sends the whole interest, with exponential
   backoff, and not while there is no path. (Most edges do not notice that there is none, since only
   the neighbours of a broker see that it disconnected.) The edge retries at once when a later wave
   of the origin or another path arrives, or when the origin answers anything, and soon when events
   of its stream arrive.
4. An origin with a new life has no interest, and gets the whole interest.
5. Bindings that do not fit into one frame are sent in one frame per origin; interest that does not
   fit into that either is sent as a filter that matches everything. Notes report the start and the
   end of this state. While it lasts only versions are sent, no changes; the whole interest is sent
   again when it has shrunk by `_RETRY_FRACTION`. The state starts and ends with a new version, as
   rule 1 requires: a repetition equals the original, and if it cannot, there is a new version.

A frame contains a conjunction for several origins once, with the positions of its bindings.

State: volatile, like the interest itself.

Prior art: binding of subscriptions to tree ids, spec PADRES section 2; the acknowledgements are
our addition.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from anabranch.core.contract import Note, earliest
from anabranch.core.routing.interest_clock import (
    EVERYTHING,
    Conjunct,
    InterestClock,
    Propagation,
    fits,
    unpack,
)
from anabranch.core.routing.mesh.advertisements import Advertisements, AdvertisementTable
from anabranch.core.routing.mesh.origin_interest import Key
from anabranch.core.routing.mesh.relevance import RelevantInterest
from anabranch.core.routing.mesh.shared import MeshState
from anabranch.core.routing.mesh.trees import Trees
from anabranch.model.frame_parts import Conjuncts
from anabranch.model.frames import Known
from anabranch.model.limits import Limits
from anabranch.model.mesh_frames import Bind, Binding, Bound
from anabranch.model.version import NOTHING

#: Conjunctions with the positions of their bindings.
Parts = dict[Key, tuple[Conjunct, list[int]]]


def forward_bindings(
    shared: MeshState, trees: Trees, frame: Bind, selected: Iterable[int] | None = None
) -> None:
    """Forward all or some bindings, in one frame per next hop."""
    by_hop: dict[str, list[int]] = {}
    for place in range(len(frame.bindings)) if selected is None else selected:
        hop = trees.next_hop(frame.bindings[place].origin)
        if hop is None or frame.hops == 0:
            shared.counters.carries_dropped += 1
        else:
            by_hop.setdefault(hop, []).append(place)
    for hop, places in by_hop.items():
        shared.send(hop, replace(select_bindings(frame, places), hops=frame.hops - 1))


def select_bindings(frame: Bind, places: Sequence[int]) -> Bind:
    """The part of a frame for some of its bindings."""
    if len(places) == len(frame.bindings):
        return frame
    renumbered = {old: new for new, old in enumerate(places)}
    return Bind(
        frame.edge,
        frame.version,
        [frame.bindings[place] for place in places],
        _for_some(frame.plus, renumbered),
        _for_some(frame.minus, renumbered),
        frame.hops,
    )


def _for_some(bounds: Iterable[Bound], renumbered: dict[int, int]) -> list[Bound]:
    found = []
    for bound in bounds:
        kept = [renumbered[place] for place in bound.bindings if place in renumbered]
        if kept:
            found.append(Bound(bound.text, bound.places, kept))
    return found


def conjuncts_for(bounds: Iterable[Bound], place: int, limits: Limits) -> list[Conjunct]:
    """The conjunctions for one binding."""
    items = [Conjuncts(b.text, tuple(b.places)) for b in bounds if place in b.bindings]
    return unpack(items, limits)


def add_parts(parts: Parts, conjuncts: Iterable[Conjunct], place: int) -> None:
    """Add conjunctions for the binding at this position."""
    for conjunct in conjuncts:
        key = (conjunct.text, conjunct.place)
        parts.setdefault(key, (conjunct, []))[1].append(place)


def packed(parts: Parts) -> list[Bound]:
    """Group conjunctions by filter and bindings, as frames contain them."""
    grouped: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for conjunct, bindings in parts.values():
        grouped.setdefault((conjunct.text, tuple(bindings)), []).append(conjunct.place)
    return [Bound(text, places, list(bindings)) for (text, bindings), places in grouped.items()]


def fits_in_frame(frame: Bind, limits: Limits) -> bool:
    """Whether everything fits into a frame; positions of bindings count like those of filters."""
    bounds = (*frame.plus, *frame.minus)
    return fits([Conjuncts(b.text, (*b.places, *b.bindings)) for b in bounds], limits)


#: The backoff between repetitions grows up to two to this power times the first one.
DOUBLINGS_MAX = 10
#: Upper bound of doublings for an origin whose events arrive.
_ATTEMPTS_WHILE_ACTIVE = 3
#: Coarse interest is sent in full again when it has shrunk by this fraction.
_RETRY_FRACTION = 1 / 32

#: The content of a single binding that matches everything.
_ALL = [Bound(EVERYTHING.text, list(EVERYTHING.places), [0])]


class _SentInterest:
    """The interest that was sent to one origin."""

    __slots__ = (
        "attempts",
        "bound",
        "coarse_at",
        "due",
        "edition",
        "size",
        "version",
        "wants_whole",
    )

    def __init__(self) -> None:
        self.version = NOTHING
        self.edition = NOTHING
        self.bound: dict[Key, Conjunct] = {}
        #: Size of the bound conjunctions in characters.
        self.size = 0
        #: When to send the whole interest again; None once acknowledged.
        self.due: float | None = None
        self.attempts = 0
        #: The size at the last attempt to send it in full (rule 5); None if it is not coarse.
        self.coarse_at: int | None = None
        #: Send the next version as a whole, because the last one cannot be repeated.
        self.wants_whole = False

    def add(self, conjuncts: Iterable[Conjunct]) -> None:
        for conjunct in conjuncts:
            key = (conjunct.text, conjunct.place)
            self.size += len(conjunct.text) if key not in self.bound else 0
            self.bound[key] = conjunct

    def remove(self, conjuncts: Iterable[Conjunct]) -> None:
        for conjunct in conjuncts:
            if self.bound.pop((conjunct.text, conjunct.place), None) is not None:
                self.size -= len(conjunct.text)

    def forget(self) -> None:
        self.bound, self.size = {}, 0


class Bindings:
    """The interest of one edge, as sent to all origins. See the rules above."""

    def __init__(
        self, shared: MeshState, trees: Trees, advertisements: Advertisements, clock: InterestClock
    ) -> None:
        self._shared = shared
        self._trees = trees
        self._advertisements = advertisements
        self._clock = clock
        self.relevance = RelevantInterest(shared)
        self._sent: dict[str, _SentInterest] = {}
        #: Whether unnecessary conjunctions are bound (rule 1).
        self._is_too_wide = False
        #: When to send changes; None if there are none.
        self._send_at: float | None = None
        self._due: float | None = None

    # -- events -----------------------------------------------------------------------------------

    def plan(self, now: float) -> None:
        """Schedule the sending of changes."""
        if self._send_at is None:
            self._send_at = now + self._shared.options.interest_after_s

    def plan_now(self, now: float) -> None:
        """Send changes at the next opportunity."""
        self._send_at = now

    def advertisements_changed(self, now: float, origins: Iterable[str]) -> None:
        """Handle changed advertisements of these origins."""
        others = [origin for origin in origins if origin != self._shared.name]
        self.relevance.tables(now, self._advertisements.tables, others)
        self.plan(now)

    def acknowledged(self, now: float, origin: str, known: Known) -> None:
        """Handle an acknowledgement from an origin."""
        sent = self._sent.get(origin)
        if sent is None:
            return
        is_last = (known.version, known.edition) == (sent.version, sent.edition)
        if is_last and known.is_lacking:
            # It lacked capacity before, and has capacity now.
            sent.due = now
        elif sent.due is None:
            return
        elif is_last:
            sent.due, sent.attempts = None, 0
        elif not known.is_lacking:
            # It is behind, but progressing.
            sent.due, sent.attempts = now + self._shared.options.lag_after_s, 0
        elif sent.attempts != 1:
            # After the whole interest was sent once, answers to earlier frames are outdated.
            sent.due, sent.attempts = now, 0
        self._due = self._first_due()

    def ticks_arrived(self, now: float, origin: str) -> None:
        """Ticks of an origin arrived, so it is alive (rule 3)."""
        sent = self._sent.get(origin)
        if sent is not None and sent.attempts > _ATTEMPTS_WHILE_ACTIVE and sent.due is not None:
            sent.attempts = _ATTEMPTS_WHILE_ACTIVE
            pause_s = self._shared.options.lag_after_s * 2**_ATTEMPTS_WHILE_ACTIVE
            sent.due = min(sent.due, now + pause_s)
            self._due = earliest(self._due, sent.due)

    def paths_changed(self, now: float, origins: Iterable[str]) -> None:
        """These origins have a new path or a later wave (rule 3)."""
        for origin in origins:
            sent = self._sent.get(origin)
            if sent is not None and sent.due is not None and sent.attempts:
                sent.attempts, sent.due = 0, now
                self._due = earliest(self._due, now)

    @property
    def is_new(self) -> bool:
        """Whether no interest was ever sent."""
        return self._clock.propagated == NOTHING

    def is_settled(self) -> bool:
        """Whether every origin has acknowledged everything, and there are no changes to send."""
        is_sent = self._send_at is None and self.relevance.due is None
        return is_sent and not any(sent.due is not None for sent in self._sent.values())

    # -- time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> Propagation | None:
        """Send what is due; returns the change of the interest if it has a new version."""
        step: Propagation | None = None
        if self.relevance.review(now) and self._is_wide():
            self._is_too_wide = True
            self.plan(now)
        is_time = self._send_at is not None and self._send_at <= now
        if is_time:
            self._send_at = None
            step = self._clock.propagate(anyway=self._is_too_wide)
            self._is_too_wide = False
            if step is not None:
                self.relevance.interest(now, step)
        if is_time or (self._due is not None and self._due <= now):
            self._send_due(now, step)
        return step

    def next_deadline(self) -> float | None:
        return earliest(self._send_at, self._due, self.relevance.due)

    def _first_due(self) -> float | None:
        return earliest(*(sent.due for sent in self._sent.values()))

    def _is_wide(self) -> bool:
        """Whether an origin has conjunctions that turned out to meet nothing there."""
        refuted = self.relevance.refuted
        return any(k in sent.bound for origin, sent in self._sent.items() for k in refuted(origin))

    # -- sending ----------------------------------------------------------------------------------

    def _send_due(self, now: float, step: Propagation | None) -> None:
        version = self._clock.propagated
        if version == NOTHING:
            return
        bindings: list[Binding] = []
        plus: Parts = {}
        minus: Parts = {}
        repeated: set[str] = set()
        for origin, table in self._advertisements.tables.items():
            if origin == self._shared.name:
                continue
            sent = self._sent.setdefault(origin, _SentInterest())
            is_due = sent.due is not None and sent.due <= now
            if (sent.version, sent.edition) == (version, table.edition) and not is_due:
                continue
            if is_due and self._trees.next_hop(origin) is None:
                sent.due = now + self._shared.options.lag_after_s
                continue
            if (sent.version, sent.edition) == (version, table.edition):
                repeated.add(origin)
            is_whole = is_due or sent.wants_whole or sent.edition.life != table.edition.life
            sent.wants_whole = False
            added, removed = self._changes(origin, table, step, is_whole)
            if sent.coarse_at is not None and not is_whole:
                is_whole = sent.size < sent.coarse_at * (1 - _RETRY_FRACTION)
                added, removed = list(sent.bound.values()) if is_whole else [], []
            add_parts(plus, added, len(bindings))
            add_parts(minus, removed, len(bindings))
            bindings.append(Binding(origin, table.edition, sent.version, sent.edition, is_whole))
            sent.version, sent.edition = version, table.edition
            doublings = min(sent.attempts, DOUBLINGS_MAX)
            sent.attempts += is_due
            due = now + self._shared.options.lag_after_s * 2**doublings
            sent.due = due if is_due or sent.due is None else min(sent.due, due)
        self._due = self._first_due()
        if bindings:
            parts = bindings, packed(plus), packed(minus), len(self._shared.brokers)
            self._send(now, Bind(self._shared.name, version, *parts), repeated)

    def _changes(
        self, origin: str, table: AdvertisementTable, step: Propagation | None, is_whole: bool
    ) -> tuple[list[Conjunct], list[Conjunct]]:
        """The conjunctions that an origin has to add and to remove."""
        sent, wants = self._sent[origin], self.relevance.wants
        if is_whole and (sent.version, sent.edition) == (self._clock.propagated, table.edition):
            # A repetition: an origin that has this version accepts nothing else for it.
            return list(sent.bound.values()), []
        is_next = step is not None and sent.version == step.before
        if step is not None and is_next and sent.edition == table.edition and not is_whole:
            added = [c for c in step.plus if wants(origin, (c.text, c.place))]
            refuted = self.relevance.refuted(origin).items()
            gone = (*step.minus, *step.covered, *(c for k, c in refuted if not wants(origin, k)))
            removed = [c for c in gone if (c.text, c.place) in sent.bound]
        else:
            met = self.relevance.wanted(origin)
            before = {} if is_whole else sent.bound
            added = [c for key, c in met.items() if key not in before]
            removed = [c for key, c in before.items() if key not in met]
            if is_whole:
                sent.forget()
        self.relevance.refuted_withdrawn(origin)
        sent.remove(removed)
        sent.add(added)
        return added, removed

    def _send(self, now: float, frame: Bind, repeated: set[str]) -> None:
        """Send a frame, or one per binding if it is too large. Some are repetitions."""
        frames = [frame]
        is_coarse = any(self._sent[origin].coarse_at is not None for origin in repeated)
        if is_coarse or not fits_in_frame(frame, self._shared.limits):
            frames = []
            for place, binding in enumerate(frame.bindings):
                is_repeated = binding.origin in repeated
                single = self._single(select_bindings(frame, [place]), is_repeated=is_repeated)
                if single is not None:
                    frames.append(single)
                else:
                    # The interest can only be sent with another version.
                    self._sent[binding.origin].wants_whole = self._is_too_wide = True
                    self.plan(now)
        for sent_frame in frames:
            for binding in sent_frame.bindings:
                if binding.is_whole and sent_frame.plus is not _ALL:
                    self._ends_coarse(binding.origin)
            forward_bindings(self._shared, self._trees, sent_frame)

    def _single(self, frame: Bind, *, is_repeated: bool) -> Bind | None:
        """A frame for a single binding: unchanged, or whole, or matching everything (rule 5); None
        if it cannot be repeated."""
        origin = frame.bindings[0].origin
        sent = self._sent[origin]
        if is_repeated and sent.coarse_at is not None:
            return replace(frame, plus=_ALL, minus=[])
        if fits_in_frame(frame, self._shared.limits):
            return frame
        parts: Parts = {}
        add_parts(parts, sent.bound.values(), 0)
        bindings = [replace(frame.bindings[0], is_whole=True)]
        whole = replace(frame, bindings=bindings, plus=packed(parts), minus=[])
        if fits_in_frame(whole, self._shared.limits):
            return whole
        if is_repeated:
            return None
        if sent.coarse_at is None:
            self._shared.counters.bindings_coarse += 1
            text = (
                f"interest in the advertisements of {origin!r} ({len(sent.bound)} conjunctions)"
                " exceeds a frame: requesting all its events; use fewer or wider filters, or raise"
                " frame_bytes_max"
            )
            self._shared.emit(Note("warning", text))
        sent.coarse_at = sent.size
        return replace(whole, plus=_ALL)

    def _ends_coarse(self, origin: str) -> None:
        """The whole interest of an origin fits again (rule 5)."""
        sent = self._sent[origin]
        if sent.coarse_at is not None:
            sent.coarse_at = None
            text = f"interest in the advertisements of {origin!r} fits into a frame again"
            self._shared.emit(Note("info", text))
