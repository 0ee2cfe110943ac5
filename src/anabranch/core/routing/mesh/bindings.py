"""Bindings: an edge sends each origin the interest that is relevant there.

The edge's interest has versions, as in all routing (`interest_clock`). An origin gets every
version, but only the conjunctions that could match something advertised there. Rules:

1. A conjunction is bound to every origin whose advertisements it meets (`RelevantInterest`). When
   these change, the edge compares its conjunctions again and reports to the origin, even if nothing
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

from collections.abc import Iterable, Mapping, Sequence

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
from anabranch.core.routing.mesh.advertisements import (
    Advertisements,
    AdvertisementTable,
    ComparisonBudget,
)
from anabranch.core.routing.mesh.origin_interest import Key
from anabranch.core.routing.mesh.shared import MeshState
from anabranch.core.routing.mesh.trees import Trees
from anabranch.model.frame_parts import Conjuncts
from anabranch.model.frames import Known
from anabranch.model.limits import Limits
from anabranch.model.mesh_frames import Bind, Binding, Bound
from anabranch.model.version import NOTHING

#: Comparisons per review step, a few µs each.
REVIEW_MAX = 4_096
#: Pause between review steps.
REVIEW_AFTER_S = 0.05


class _OriginRelevance:
    """The edge's conjunctions compared with the advertisements of one origin."""

    __slots__ = ("counts", "met", "refuted", "table", "uncompared")

    def __init__(self, table: AdvertisementTable) -> None:
        self.table = table
        #: Conjunction → bit set of the trees that it meets.
        self.met: dict[Key, int] = {}
        #: Conjunctions to compare → the lowest number of the advertisements to compare with; 0
        #: means all of them, discarding earlier results.
        self.uncompared: dict[Key, int] = {}
        #: Conjunctions that waited and were then found to meet nothing.
        self.refuted: dict[Key, Conjunct] = {}
        #: Tree → number of conjunctions that meet it, always positive.
        self.counts: dict[int, int] = {}

    def set(self, key: Key, met: int) -> bool:
        """Set the trees that a conjunction meets; returns True if the set of met trees changed."""
        before = self.met.get(key, 0)
        self.met[key] = met
        return before != met and self._count(before, met)

    def drop(self, key: Key) -> bool:
        """Remove a conjunction; returns True if the set of met trees changed."""
        self.uncompared.pop(key, None)
        before = self.met.pop(key, 0)
        return before != 0 and self._count(before, 0)

    def _count(self, before: int, after: int) -> bool:
        has_changed = False
        changed = before ^ after
        while changed:
            tree = changed.bit_length() - 1
            changed ^= 1 << tree
            count = self.counts.get(tree, 0) + (1 if after >> tree & 1 else -1)
            if count:
                has_changed |= tree not in self.counts
                self.counts[tree] = count
            else:
                has_changed = True
                del self.counts[tree]
        return has_changed

    def take(self, table: AdvertisementTable) -> None:
        """Adopt a new edition of the table: record what has to be compared (rule 1)."""
        before, self.table = self.table.entries, table
        fresh = [n for n, entry in table.entries.items() if before.get(n) is not entry]
        gone = sum(
            {1 << e.advertised.tree for n, e in before.items() if table.entries.get(n) is not e}
        )
        # Origins need not number advertisements in ascending order; if not, compare everything.
        if fresh and before and min(fresh) <= max(before):
            gone = -1
        since = min(fresh, default=0)
        trees = table.comparison.trees
        for key, met in self.met.items():
            if met & gone or (not met and gone < 0):
                self.uncompared[key] = 0
            elif fresh and met & trees != trees:
                self.uncompared[key] = min(since, self.uncompared.get(key, since))


class RelevantInterest:
    """For every origin, which of an edge's conjunctions meet its advertisements.

    The edge sends an origin only those conjunctions, and joins only the trees of advertisements
    that its interest meets. Both follow from one number per conjunction and origin: the set of
    trees it meets (`advertisements.AdvertisementComparison`). Rules:

    1. Every conjunction is compared with every advertisement once, and not again while both exist:
       a new conjunction is compared alone, a new advertisement with all conjunctions, and a
       withdrawn advertisement causes another comparison only of the conjunctions that met its tree.
    2. One step makes `comparisons_max` comparisons, plus those that its last conjunction needs
       beyond that. The other conjunctions wait and *count as wanted*: that costs traffic but loses
       no event. They are compared in separate steps, `REVIEW_MAX` at a time with pauses of
       `REVIEW_AFTER_S`, until none waits; then the unnecessary ones are withdrawn from the origin
       (`refuted`).
    3. A tree is joined once a conjunction is found to meet it, and left as soon as none does: the
       number of conjunctions that meet it is counted. A waiting conjunction keeps the trees that it
       was known to meet.

    So the work of a change does not grow with the existing interest, except when advertisements
    change: then every conjunction is visited, and those that may be affected are compared.

    State: volatile; recomputed from the interest and the tables.
    """

    def __init__(self, shared: MeshState) -> None:
        self._shared = shared
        self._by_origin: dict[str, _OriginRelevance] = {}
        #: The interest as of the last propagation.
        self.roots: dict[Key, Conjunct] = {}
        #: Origins whose set of met trees changed.
        self._changed: dict[str, None] = {}
        #: When to continue comparing; None if nothing waits.
        self.due: float | None = None

    # -- queries ----------------------------------------------------------------------------------

    def wants(self, origin: str, key: Key) -> bool:
        """Whether an origin has to get a conjunction: it meets something, or may do so."""
        meeting = self._by_origin.get(origin)
        return meeting is not None and (key in meeting.uncompared or meeting.met.get(key, 0) != 0)

    def wanted(self, origin: str) -> dict[Key, Conjunct]:
        """All conjunctions that an origin has to get."""
        meeting = self._by_origin.get(origin)
        if meeting is None:
            return {}
        met, waiting = meeting.met, meeting.uncompared
        return {key: c for key, c in self.roots.items() if met.get(key) or key in waiting}

    def trees_met(self, origin: str) -> set[int]:
        """The trees of an origin that are met and in use."""
        meeting = self._by_origin.get(origin)
        return set() if meeting is None else set(meeting.table.trees & meeting.counts.keys())

    @property
    def uncompared(self) -> int:
        """Number of conjunctions still to compare, over all origins."""
        return sum(len(meeting.uncompared) for meeting in self._by_origin.values())

    def refuted(self, origin: str) -> Mapping[Key, Conjunct]:
        """Conjunctions that waited and meet nothing of an origin."""
        meeting = self._by_origin.get(origin)
        return {} if meeting is None else meeting.refuted

    def take_changed(self) -> dict[str, None]:
        """Origins whose set of met trees changed since the last call."""
        changed, self._changed = self._changed, {}
        return changed

    # -- changes ----------------------------------------------------------------------------------

    def refuted_withdrawn(self, origin: str) -> None:
        """The refuted conjunctions have been withdrawn from an origin."""
        self._by_origin[origin].refuted.clear()

    def interest_changed(self, now: float, step: Propagation) -> None:
        """Apply a change of the interest."""
        budget = ComparisonBudget(self._shared.options.comparisons_max)
        gone = [(c.text, c.place) for c in (*step.minus, *step.covered)]
        fresh = {(c.text, c.place): c for c in step.plus}
        for key in gone:
            self.roots.pop(key, None)
        self.roots |= fresh
        keys = list(fresh)
        for origin, meeting in self._by_origin.items():
            for key in gone:
                if meeting.drop(key):
                    self._changed[origin] = None
            meeting.uncompared |= dict.fromkeys(keys, 0)
            self._defer(now, self._compare(origin, meeting, keys, budget))

    def tables_changed(
        self, now: float, tables: Mapping[str, AdvertisementTable], origins: Iterable[str]
    ) -> None:
        """Apply changed advertisements of some origins."""
        budget = ComparisonBudget(self._shared.options.comparisons_max)
        for origin in origins:
            table = tables[origin]
            meeting = self._by_origin.get(origin)
            if meeting is None or meeting.table.edition.life != table.edition.life:
                # Trees of another life are different trees.
                self._by_origin[origin] = meeting = _OriginRelevance(table)
                meeting.uncompared = dict.fromkeys(self.roots, 0)
            else:
                meeting.take(table)
            self._changed[origin] = None
            self._defer(now, self._compare(origin, meeting, list(meeting.uncompared), budget))

    def review(self, now: float) -> bool:
        """Continue comparing if due; returns True when no conjunction waits any longer."""
        if self.due is None or self.due > now:
            return False
        budget = ComparisonBudget(REVIEW_MAX)
        for origin, meeting in self._by_origin.items():
            if budget.is_gone:
                break
            keys = list(meeting.uncompared)
            left = self._compare(origin, meeting, keys, budget)
            for key in keys[: len(keys) - left]:
                if not meeting.met[key]:
                    meeting.refuted[key] = self.roots[key]
        self.due = now + REVIEW_AFTER_S if self.uncompared else None
        return self.due is None

    def _compare(
        self, origin: str, meeting: _OriginRelevance, keys: Sequence[Key], budget: ComparisonBudget
    ) -> int:
        """Compare waiting conjunctions in order; returns how many are left over."""
        comparison = meeting.table.comparison
        for place, key in enumerate(keys):
            if budget.is_gone:
                return len(keys) - place
            since = meeting.uncompared.pop(key)
            known = meeting.met.get(key, 0) & comparison.trees if since else 0
            met = comparison.trees_met(self.roots[key].conjunction, budget, since, known)
            if meeting.set(key, met):
                self._changed[origin] = None
        return 0

    def _defer(self, now: float, count: int) -> None:
        """Schedule the comparison of conjunctions beyond the budget (rule 2)."""
        if count:
            self._shared.counters.comparisons_put_off += count
            if self.due is None:
                self.due = now + REVIEW_AFTER_S


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
    """The interest of one edge, as sent to all origins. See the rules at the top of this module."""

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
        self.relevance.tables_changed(now, self._advertisements.tables, others)
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
                self.relevance.interest_changed(now, step)
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
