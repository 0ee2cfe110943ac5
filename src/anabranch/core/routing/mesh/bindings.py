"""Binding: an edge tells every origin what it wants of it.

The edge's interest has versions, as in all routing (`clock`). An origin is told of every version,
but only of the conjunctions that could match something advertised there. Rules:

1. A conjunction is bound to every origin whose advertisements it meets (`meetings`). When these
   change, the edge considers its conjunctions again and tells the origin so, even if nothing
   changed: until then the origin sends everything. What there was no time to compare is bound. Once
   all is compared, what was bound without need is taken back, with a version of its own: an origin
   knows the interest of a version and an edition, and there is one such interest only, however
   often it is told.
2. One frame goes to each next hop, for all origins in that direction; it is split where their trees
   part. Brokers on the way follow the trees and match nothing.
3. A change is told against what was told last. The origin answers; if no answer comes in time, or
   one that says that something is lacking, it is told everything. It is asked for an answer more
   and more seldom, and not while there is no way to it; most edges do not know that there is none,
   since only the neighbours of a broker see that it is gone. When a later wave of the origin comes,
   or there is another way to it, or it answers anything, it is asked at once; and before long when
   events of its stream come.
4. An origin with a new life knows nothing, and is told everything.
5. What is too much for one frame goes to each origin in one of its own; what is too much for that
   as well is told as wanting everything. It is noted when that begins and when it ends. While it
   lasts changes need not be told, versions only; all is told again when it has become less by a
   `_TRY_PART`. It begins and ends with a version of its own, as rule 1 wants: what is repeated is
   not told otherwise than before, and if it cannot be told so, there is another version.

State: volatile, as the interest itself.

Prior art: binding of subscriptions to tree ids, spec PADRES section 2; the answers are ours.
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

# Bundling: bindings for several origins in one frame, and apart again where their ways part.
#
# Conjunctions that are for several origins are in a frame once, with the places of their bindings.
# This module keeps no state.


#: Conjunctions, and the places of the bindings that they are for.
Parts = dict[Key, tuple[Conjunct, list[int]]]


def spread(
    around: MeshState, trees: Trees, frame: Bind, meant: Iterable[int] | None = None
) -> None:
    """Send bindings on, all or some, in one frame to each next hop."""
    by_hop: dict[str, list[int]] = {}
    for place in range(len(frame.bindings)) if meant is None else meant:
        hop = trees.way_to(frame.bindings[place].origin)
        if hop is None or frame.hops == 0:
            around.counters.carries_dropped += 1
        else:
            by_hop.setdefault(hop, []).append(place)
    for hop, places in by_hop.items():
        around.send(hop, replace(some_of(frame, places), hops=frame.hops - 1))


def some_of(frame: Bind, places: Sequence[int]) -> Bind:
    """What of a frame is meant for some of its bindings."""
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
        meant = [renumbered[place] for place in bound.bindings if place in renumbered]
        if meant:
            found.append(Bound(bound.text, bound.places, meant))
    return found


def meant_for(bounds: Iterable[Bound], place: int, limits: Limits) -> list[Conjunct]:
    """The conjunctions that are meant for one binding."""
    items = [Conjuncts(b.text, tuple(b.places)) for b in bounds if place in b.bindings]
    return unpack(items, limits)


def note_parts(parts: Parts, conjuncts: Iterable[Conjunct], place: int) -> None:
    """These are for the binding at this place, too."""
    for conjunct in conjuncts:
        key = (conjunct.text, conjunct.place)
        parts.setdefault(key, (conjunct, []))[1].append(place)


def packed(parts: Parts) -> list[Bound]:
    """Conjunctions of one filter for the same bindings travel together."""
    grouped: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for conjunct, bindings in parts.values():
        grouped.setdefault((conjunct.text, tuple(bindings)), []).append(conjunct.place)
    return [Bound(text, places, list(bindings)) for (text, bindings), places in grouped.items()]


def fits_in_frame(frame: Bind, limits: Limits) -> bool:
    """Whether a frame has room for all this: places of bindings count like those of filters."""
    bounds = (*frame.plus, *frame.minus)
    return fits([Conjuncts(b.text, (*b.places, *b.bindings)) for b in bounds], limits)


#: The pause between two repetitions grows to two to this power of the first one.
DOUBLINGS_MAX = 10
#: The same for an origin whose stream comes.
_ATTEMPTS_OF_LIVING = 3
#: Interest that was too much is tried again when it has become less by this part of it.
_TRY_PART = 1 / 32

#: What a single binding has that wants everything.
_ALL = [Bound(EVERYTHING.text, list(EVERYTHING.places), [0])]


class _Told:
    """What one origin was told."""

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
        #: How much these are, in characters.
        self.size = 0
        #: When to tell it everything again; None once it has answered.
        self.due: float | None = None
        self.attempts = 0
        #: The size with which it was too much, when that was tried last (rule 5); None: it is not.
        self.coarse_at: int | None = None
        #: The next version is to be told as a whole: the last one could not be repeated.
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
    """The interest of one edge, as all origins are told. See the rules above."""

    def __init__(
        self, around: MeshState, trees: Trees, advertisements: Advertisements, clock: InterestClock
    ) -> None:
        self._around = around
        self._trees = trees
        self._advertisements = advertisements
        self._clock = clock
        self.meetings = RelevantInterest(around)
        self._told: dict[str, _Told] = {}
        #: Something is bound that need not be (rule 1).
        self._is_too_wide = False
        #: When changes are told; None while there are none.
        self._tell_at: float | None = None
        self._due: float | None = None

    # -- what happens -----------------------------------------------------------------------------

    def plan(self, now: float) -> None:
        """There is something to tell, soon."""
        if self._tell_at is None:
            self._tell_at = now + self._around.options.interest_after_s

    def plan_now(self, now: float) -> None:
        """There is much to tell."""
        self._tell_at = now

    def advertised(self, now: float, origins: Iterable[str]) -> None:
        """Advertisements of these origins changed."""
        others = [origin for origin in origins if origin != self._around.name]
        self.meetings.tables(now, self._advertisements.tables, others)
        self.plan(now)

    def answered(self, now: float, origin: str, known: Known) -> None:
        """An origin says what it knows."""
        told = self._told.get(origin)
        if told is None:
            return
        is_last = (known.version, known.edition) == (told.version, told.edition)
        if is_last and known.is_lacking:
            # It had no room for it, and has now.
            told.due = now
        elif told.due is None:
            return
        elif is_last:
            told.due, told.attempts = None, 0
        elif not known.is_lacking:
            # It is behind, and keeps up.
            told.due, told.attempts = now + self._around.options.lag_after_s, 0
        elif told.attempts != 1:
            # Once it has been told everything, answers to what went before are no news.
            told.due, told.attempts = now, 0
        self._due = self._first_due()

    def heard(self, now: float, origin: str) -> None:
        """Something came from an origin: it is there (rule 3)."""
        told = self._told.get(origin)
        if told is not None and told.attempts > _ATTEMPTS_OF_LIVING and told.due is not None:
            told.attempts = _ATTEMPTS_OF_LIVING
            pause_s = self._around.options.lag_after_s * 2**_ATTEMPTS_OF_LIVING
            told.due = min(told.due, now + pause_s)
            self._due = earliest(self._due, told.due)

    def reached(self, now: float, origins: Iterable[str]) -> None:
        """There is a way to these origins, or another one than before (rule 3)."""
        for origin in origins:
            told = self._told.get(origin)
            if told is not None and told.due is not None and told.attempts:
                told.attempts, told.due = 0, now
                self._due = earliest(self._due, now)

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever told."""
        return self._clock.propagated == NOTHING

    def is_settled(self) -> bool:
        """Whether every origin has answered, and there is nothing to tell."""
        is_told = self._tell_at is None and self.meetings.due is None
        return is_told and not any(told.due is not None for told in self._told.values())

    # -- time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> Propagation | None:
        """Tell what is due; what changed of the own interest, if it has another version now."""
        step: Propagation | None = None
        if self.meetings.review(now) and self._is_wide():
            self._is_too_wide = True
            self.plan(now)
        is_time = self._tell_at is not None and self._tell_at <= now
        if is_time:
            self._tell_at = None
            step = self._clock.propagate(anyway=self._is_too_wide)
            self._is_too_wide = False
            if step is not None:
                self.meetings.interest(now, step)
        if is_time or (self._due is not None and self._due <= now):
            self._tell(now, step)
        return step

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        return earliest(self._tell_at, self._due, self.meetings.due)

    def _first_due(self) -> float | None:
        return earliest(*(told.due for told in self._told.values()))

    def _is_wide(self) -> bool:
        """Whether an origin was told of what turned out to meet nothing there."""
        refuted = self.meetings.refuted
        return any(k in told.bound for origin, told in self._told.items() for k in refuted(origin))

    # -- telling ----------------------------------------------------------------------------------

    def _tell(self, now: float, step: Propagation | None) -> None:
        version = self._clock.propagated
        if version == NOTHING:
            return
        bindings: list[Binding] = []
        plus: Parts = {}
        minus: Parts = {}
        repeated: set[str] = set()
        for origin, table in self._advertisements.tables.items():
            if origin == self._around.name:
                continue
            told = self._told.setdefault(origin, _Told())
            is_due = told.due is not None and told.due <= now
            if (told.version, told.edition) == (version, table.edition) and not is_due:
                continue
            if is_due and self._trees.way_to(origin) is None:
                told.due = now + self._around.options.lag_after_s
                continue
            if (told.version, told.edition) == (version, table.edition):
                repeated.add(origin)
            is_whole = is_due or told.wants_whole or told.edition.life != table.edition.life
            told.wants_whole = False
            added, removed = self._changes(origin, table, step, is_whole)
            if told.coarse_at is not None and not is_whole:
                is_whole = told.size < told.coarse_at * (1 - _TRY_PART)
                added, removed = list(told.bound.values()) if is_whole else [], []
            note_parts(plus, added, len(bindings))
            note_parts(minus, removed, len(bindings))
            bindings.append(Binding(origin, table.edition, told.version, told.edition, is_whole))
            told.version, told.edition = version, table.edition
            doublings = min(told.attempts, DOUBLINGS_MAX)
            told.attempts += is_due
            due = now + self._around.options.lag_after_s * 2**doublings
            told.due = due if is_due or told.due is None else min(told.due, due)
        self._due = self._first_due()
        if bindings:
            parts = bindings, packed(plus), packed(minus), len(self._around.brokers)
            self._send(now, Bind(self._around.name, version, *parts), repeated)

    def _changes(
        self, origin: str, table: AdvertisementTable, step: Propagation | None, is_whole: bool
    ) -> tuple[list[Conjunct], list[Conjunct]]:
        """What an origin is to know more, and what less."""
        told, wants = self._told[origin], self.meetings.wants
        if is_whole and (told.version, told.edition) == (self._clock.propagated, table.edition):
            # The same once more. An origin that has it would not take anything else for it.
            return list(told.bound.values()), []
        is_next = step is not None and told.version == step.before
        if step is not None and is_next and told.edition == table.edition and not is_whole:
            added = [c for c in step.plus if wants(origin, (c.text, c.place))]
            refuted = self.meetings.refuted(origin).items()
            gone = (*step.minus, *step.covered, *(c for k, c in refuted if not wants(origin, k)))
            removed = [c for c in gone if (c.text, c.place) in told.bound]
        else:
            met = self.meetings.wanted(origin)
            before = {} if is_whole else told.bound
            added = [c for key, c in met.items() if key not in before]
            removed = [c for key, c in before.items() if key not in met]
            if is_whole:
                told.forget()
        self.meetings.took_back(origin)
        told.remove(removed)
        told.add(added)
        return added, removed

    def _send(self, now: float, frame: Bind, repeated: set[str]) -> None:
        """Send a frame, or one for each binding where that is too much. Some are repeated."""
        frames = [frame]
        is_coarse = any(self._told[origin].coarse_at is not None for origin in repeated)
        if is_coarse or not fits_in_frame(frame, self._around.limits):
            frames = []
            for place, binding in enumerate(frame.bindings):
                is_repeated = binding.origin in repeated
                alone = self._alone(some_of(frame, [place]), is_repeated=is_repeated)
                if alone is not None:
                    frames.append(alone)
                else:
                    # Nothing but another version will do.
                    self._told[binding.origin].wants_whole = self._is_too_wide = True
                    self.plan(now)
        for each in frames:
            for binding in each.bindings:
                if binding.is_whole and each.plus is not _ALL:
                    self._ends_coarse(binding.origin)
            spread(self._around, self._trees, each)

    def _alone(self, frame: Bind, *, is_repeated: bool) -> Bind | None:
        """A binding in a frame of its own: as it is, or whole, or wanting everything (rule 5);
        None if it cannot be repeated as it was."""
        origin = frame.bindings[0].origin
        told = self._told[origin]
        if is_repeated and told.coarse_at is not None:
            return replace(frame, plus=_ALL, minus=[])
        if fits_in_frame(frame, self._around.limits):
            return frame
        every: Parts = {}
        note_parts(every, told.bound.values(), 0)
        bindings = [replace(frame.bindings[0], is_whole=True)]
        whole = replace(frame, bindings=bindings, plus=packed(every), minus=[])
        if fits_in_frame(whole, self._around.limits):
            return whole
        if is_repeated:
            return None
        if told.coarse_at is None:
            self._around.counters.bindings_coarse += 1
            text = (
                f"the interest in what {origin!r} advertises ({len(told.bound)} conjunctions) is"
                " too much for a frame: it is told to want everything; use fewer or wider filters,"
                " or raise frame_bytes_max"
            )
            self._around.out.append(Note("warning", text))
        told.coarse_at = told.size
        return replace(whole, plus=_ALL)

    def _ends_coarse(self, origin: str) -> None:
        """An origin is told all there is, one by one."""
        told = self._told[origin]
        if told.coarse_at is not None:
            told.coarse_at = None
            text = f"the interest in what {origin!r} advertises is told one by one again"
            self._around.out.append(Note("info", text))
