"""Binding: an edge tells every origin what it wants of it.

The edge's interest has versions, as in all routing (`clock`). An origin is told of every version,
but only of the conjunctions that could match something advertised there. Rules:

1. A conjunction is bound to every origin whose advertisements it meets. When advertisements change,
   the edge considers all of its conjunctions again and tells the origin so, even if nothing
   changed: until then the origin sends everything.
2. One frame goes to each next hop, for all origins in that direction; it is split where their trees
   part. Brokers on the way follow the trees and match nothing.
3. A change is told against what was told last. The origin answers; if no answer comes in time, or
   one that says that something is lacking, it is told everything. It is asked for an answer more
   and more seldom, and not while there is no way to it.
4. An origin with a new life knows nothing, and is told everything.
5. What is too much for one frame is told as wanting everything.

The edge also *joins* the trees of the advertisements it meets, and the first tree of every origin:
silence and versions come over that one.

State: volatile, as the interest itself.

Prior art: binding of subscriptions to tree ids, spec PADRES section 2; the answers are ours.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from anabranch.core.earliest import earliest
from anabranch.core.routing.clock import Clock, Propagation
from anabranch.core.routing.conjuncts import EVERYTHING, Conjunct, fits, unpack
from anabranch.core.routing.mesh.advertisements import Advertisements, Budget, Table
from anabranch.core.routing.mesh.surroundings import Surroundings
from anabranch.core.routing.mesh.trees import Trees
from anabranch.core.routing.mesh.wishes import Key
from anabranch.model.carried import Known
from anabranch.model.frame_parts import Conjuncts
from anabranch.model.limits import Limits
from anabranch.model.mesh_frames import Bind, Binding, Bound
from anabranch.model.version import NOTHING, Version

#: The pause between two repetitions grows to two to this power of the first one.
DOUBLINGS_MAX = 3

_Parts = dict[Key, tuple[Conjunct, list[int]]]


class _Told:
    """What one origin was told."""

    __slots__ = ("attempts", "bound", "due", "edition", "is_coarse", "version")

    def __init__(self) -> None:
        self.version = NOTHING
        self.edition = NOTHING
        self.bound: dict[Key, Conjunct] = {}
        #: When to tell it everything again; None once it has answered.
        self.due: float | None = None
        self.attempts = 0
        #: It was told that everything is wanted (rule 5).
        self.is_coarse = False


class Bindings:
    """The interest of one edge, as all origins are told. See the rules above."""

    def __init__(
        self, around: Surroundings, trees: Trees, advertisements: Advertisements, clock: Clock
    ) -> None:
        self._around = around
        self._trees = trees
        self._advertisements = advertisements
        self._clock = clock
        self._told: dict[str, _Told] = {}
        #: When changes are told; None while there are none.
        self._tell_at: float | None = None
        self._due: float | None = None

    # -- what happens -----------------------------------------------------------------------------

    def plan(self, now: float) -> None:
        """There is something to tell, soon."""
        if self._tell_at is None:
            self._tell_at = now + self._around.options.interest_after_s

    def answered(self, now: float, origin: str, known: Known) -> None:
        """An origin says what it knows."""
        told = self._told.get(origin)
        if told is None or told.due is None:
            return
        if (known.version, known.edition) == (told.version, told.edition):
            told.due, told.attempts = None, 0
            self._due = self._first_due()
        elif known.is_lacking and told.attempts == 0:
            told.due = self._due = now

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever told."""
        return self._clock.propagated == NOTHING

    def is_settled(self) -> bool:
        """Whether every origin has answered, and there is nothing to tell."""
        return self._tell_at is None and not any(t.due is not None for t in self._told.values())

    # -- time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> Propagation | None:
        """Tell what is due; what changed of the own interest, if it has another version now."""
        step: Propagation | None = None
        is_time = self._tell_at is not None and self._tell_at <= now
        if is_time:
            self._tell_at = None
            step = self._clock.propagate()
        if is_time or (self._due is not None and self._due <= now):
            self._tell(now, step)
        return step

    def next_deadline(self) -> float | None:
        """When `time_passed` is wanted."""
        return earliest(self._tell_at, self._due)

    def _first_due(self) -> float | None:
        return earliest(*(told.due for told in self._told.values()))

    # -- telling ----------------------------------------------------------------------------------

    def _tell(self, now: float, step: Propagation | None) -> None:
        version = self._clock.propagated
        if version == NOTHING:
            return
        budget = Budget()
        bindings: list[Binding] = []
        plus: _Parts = {}
        minus: _Parts = {}
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
            is_whole = is_due or told.is_coarse or told.edition.life != table.edition.life
            bindings.append(Binding(origin, table.edition, told.version, told.edition, is_whole))
            place = len(bindings) - 1
            added, removed = self._changes(told, table, step, is_whole, budget)
            _note(plus, added, place)
            _note(minus, removed, place)
            told.version, told.edition = version, table.edition
            doublings = min(told.attempts, DOUBLINGS_MAX)
            told.attempts += is_due
            told.due = now + self._around.options.lag_after_s * 2**doublings
        self._due = self._first_due()
        if bindings:
            self._send(version, bindings, plus, minus)

    def _changes(
        self, told: _Told, table: Table, step: Propagation | None, is_whole: bool, budget: Budget
    ) -> tuple[list[Conjunct], list[Conjunct]]:
        """What an origin is to know more, and what less."""
        is_next = step is not None and told.version == step.before
        if step is not None and is_next and told.edition == table.edition and not is_whole:
            added = [c for c in step.plus if table.meets(c.conjunction, budget)]
            gone = (*step.minus, *step.covered)
            removed = [c for c in gone if (c.text, c.place) in told.bound]
            if "no-rebinding" in self._around.plants and table.edition.counter > 2:
                added = []
        else:
            met = self._met(table, budget)
            before = {} if is_whole else told.bound
            added = [c for key, c in met.items() if key not in before]
            removed = [c for key, c in before.items() if key not in met]
            if "no-rebinding" in self._around.plants and not is_whole:
                added = []
            if is_whole:
                told.bound = {}
        for conjunct in removed:
            told.bound.pop((conjunct.text, conjunct.place), None)
        for conjunct in added:
            told.bound[conjunct.text, conjunct.place] = conjunct
        return added, removed

    def _met(self, table: Table, budget: Budget) -> dict[Key, Conjunct]:
        roots = self._clock.roots()
        return {(c.text, c.place): c for c in roots if table.meets(c.conjunction, budget)}

    def _send(self, version: Version, bindings: list[Binding], plus: _Parts, minus: _Parts) -> None:
        more, less = _packed(plus), _packed(minus)
        too_much = not _fits([*more, *less], self._around.limits)
        if too_much:
            bindings = [replace(binding, is_whole=True) for binding in bindings]
            places = list(range(len(bindings)))
            more, less = [Bound(EVERYTHING.text, list(EVERYTHING.places), places)], []
        for binding in bindings:
            self._told[binding.origin].is_coarse = too_much
        hops = len(self._around.brokers)
        frame = Bind(self._around.name, version, bindings, more, less, hops)
        spread(self._around, self._trees, frame)


def spread(
    around: Surroundings, trees: Trees, frame: Bind, meant: Iterable[int] | None = None
) -> None:
    """Send bindings on, all or some, in one frame to each next hop (rule 2)."""
    by_hop: dict[str, list[int]] = {}
    for place in range(len(frame.bindings)) if meant is None else meant:
        hop = trees.way_to(frame.bindings[place].origin)
        if hop is None or frame.hops == 0:
            around.counters.carries_dropped += 1
        else:
            by_hop.setdefault(hop, []).append(place)
    for hop, places in by_hop.items():
        around.send(hop, _part_of(frame, places))


def _part_of(frame: Bind, places: Sequence[int]) -> Bind:
    """What of a frame is meant for some of its bindings."""
    if len(places) == len(frame.bindings):
        return replace(frame, hops=frame.hops - 1)
    renumbered = {old: new for new, old in enumerate(places)}
    return Bind(
        frame.edge,
        frame.version,
        [frame.bindings[place] for place in places],
        _for_some(frame.plus, renumbered),
        _for_some(frame.minus, renumbered),
        frame.hops - 1,
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


def _note(parts: _Parts, conjuncts: Iterable[Conjunct], place: int) -> None:
    for conjunct in conjuncts:
        key = (conjunct.text, conjunct.place)
        parts.setdefault(key, (conjunct, []))[1].append(place)


def _packed(parts: _Parts) -> list[Bound]:
    """Conjunctions of one filter for the same bindings travel together."""
    grouped: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for conjunct, bindings in parts.values():
        grouped.setdefault((conjunct.text, tuple(bindings)), []).append(conjunct.place)
    return [Bound(text, places, list(bindings)) for (text, bindings), places in grouped.items()]


def _fits(bounds: Sequence[Bound], limits: Limits) -> bool:
    """Whether a frame has room for these: the places of bindings count like those of filters."""
    return fits([Conjuncts(b.text, (*b.places, *b.bindings)) for b in bounds], limits)
