"""Origin interest: the interest of edges in this origin's stream.

An event is matched once, here, when it enters the network; its copies name the edges that get it.
Each edge binds its interest to the origins whose advertisements it meets, with the edition that it
has considered (`bindings`). Bindings may be late. The origin filters an event for an edge only if

1. it has the edge's interest in the version that the event's mark has for it, or a later one,
2. the edge has considered the current advertisements: earlier bindings do not account for newer
   advertisements,
3. the event is newer than the last withdrawal of an advertisement: bindings sent since then may
   omit conjunctions that only matched under that advertisement.

Otherwise the edge gets all events and filters them itself.

4. A change applies only to exactly the version and edition of its base; a whole interest applies
   unless a later one is known. A binding that does not apply is answered, so that the edge sends
   its whole interest.
5. Interest beyond this broker's limits is not learned, with a note: that edge gets all events. When
   other interest has left, there may be capacity: such edges are asked for their interest again,
   one every `_ASK_PAUSES` times `lag_after_s`, until they have sent it.

State: volatile; every edge binds again when it learns of the origin's new life.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anabranch.core.contract import Note
from anabranch.core.routing.interest_clock import Conjunct, VersionSteps
from anabranch.core.routing.mesh.shared import MeshState
from anabranch.matching.index import MatchIndex
from anabranch.model.encoding import decode_envelope
from anabranch.model.errors import LocalError, RemoteError
from anabranch.model.event import Value
from anabranch.model.frame_parts import Datum
from anabranch.model.mesh_frames import Binding
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.version import NOTHING, Version

#: Interval between requests for interest that exceeded the limits, as a factor of `lag_after_s`.
_ASK_PAUSES = 64

Key = tuple[str, int]
Edges = set[object] | frozenset[object]
_NOBODY: frozenset[object] = frozenset()


class InterestView(NamedTuple):
    """The known interest of one edge, for checks."""

    edge: str
    version: Version
    conjunctions: list[Conjunction]


class _EdgeInterest:
    """The interest of one edge."""

    __slots__ = ("bound", "edition", "ids", "is_coarse", "version")

    def __init__(self) -> None:
        self.version = NOTHING
        self.edition = NOTHING
        #: (text, place) → id in the index.
        self.ids: dict[Key, int] = {}
        self.bound: dict[Key, Conjunct] = {}
        self.is_coarse = False


class OriginInterest:
    """The interest of all edges in one stream. See the rules at the top of this module."""

    def __init__(self, shared: MeshState) -> None:
        self._shared = shared
        self._interests: dict[str, _EdgeInterest] = {}
        self._index: MatchIndex | None = None
        self._next_id = 0
        #: Work left for checks in this step; beyond it an edge counts as interested.
        self._checks_work = 0
        #: Edge → how its element grows along the stream.
        self.steps: dict[str, VersionSteps] = {}
        #: The newest tick at the last withdrawal of an advertisement or start of a life (rule 3).
        self._withdrawn_at = 0
        #: Edges to ask for interest that exceeded the limits (rule 5), and when.
        self._to_ask: dict[str, None] = {}
        self._ask_at: float | None = None
        #: Increases with every change.
        self._changes = 0
        #: The last result of `unsure` with its arguments.
        self._unfiltered: tuple[tuple[object, ...], list[str]] = ((), [])

    # -- queries ----------------------------------------------------------------------------------

    def version_at(self, edge: str, mark: int) -> Version:
        steps = self.steps.get(edge)
        return NOTHING if steps is None else steps.at(mark)

    @property
    def is_empty(self) -> bool:
        """Whether no edge is known to want anything."""
        return not any(interest.ids or interest.is_coarse for interest in self._interests.values())

    def versions(self) -> dict[str, Version]:
        return {edge: interest.version for edge, interest in self._interests.items()}

    def known(self, edge: str) -> tuple[Version, Version]:
        """The version and edition of an edge's known interest."""
        interest = self._interests.get(edge)
        return (NOTHING, NOTHING) if interest is None else (interest.version, interest.edition)

    def views(self, edition: Version) -> list[InterestView]:
        """The interest of all edges for which events would be filtered; for checks."""
        return [
            InterestView(edge, interest.version, [c.conjunction for c in interest.bound.values()])
            for edge, interest in self._interests.items()
            if interest.edition >= edition and not interest.is_coarse
        ]

    def may_filter(self, edge: str, mark: int, first: int, edition: Version) -> bool:
        """Whether ticks from `first` on, with this mark, may be filtered for an edge."""
        interest = self._interests.get(edge)
        if interest is None or interest.is_coarse:
            return False
        is_current = interest.edition >= edition and first > self._withdrawn_at
        return is_current and interest.version >= self.version_at(edge, mark)

    def unfiltered(
        self, edges: Sequence[str], mark: int, first: int, edition: Version
    ) -> Sequence[str]:
        """The edges among these for which ticks from `first` on must not be filtered."""
        is_young = first > self._withdrawn_at
        key = (len(edges), edges[0], mark, edition, is_young, self._changes)
        if key != self._unfiltered[0]:
            found = [e for e in edges if not self.may_filter(e, mark, first, edition)]
            self._unfiltered = (key, found)
        return self._unfiltered[1]

    def match(self, data: Sequence[Datum]) -> list[Edges]:
        """The edges that want each event, among those with known interest."""
        index = self._index
        if index is None or not data or not len(index):
            return [_NOBODY] * len(data)
        self._shared.counters.matches += len(data)
        self._checks_work = self._shared.options.step_work_max
        found = index.destinations_of([datum.body for datum in data], self._shared.limits)
        return [
            self._match_one(index, datum) if edges is None else edges
            for datum, edges in zip(data, found, strict=True)
        ]

    def wanting(self, attributes: Mapping[str, Value]) -> list[str]:
        """The edges known to want an event with these attributes."""
        if self._index is None or not len(self._index):
            return []
        return sorted(str(edge) for edge in self._index.destinations(attributes))

    def _match_one(self, index: MatchIndex, datum: Datum) -> Edges:
        try:
            envelope = decode_envelope(datum.body, self._shared.limits)
            size = len(datum.body)
            found, work, is_short = index.destinations_within(envelope, size, self._checks_work)
            self._checks_work -= work
            self._shared.counters.matches_assumed += is_short
            return found
        except RemoteError:
            # Undecodable; edges report it to their clients as withheld.
            return set(self._shared.edges)

    # -- changes ----------------------------------------------------------------------------------

    def advertisement_withdrawn(self, newest: int) -> None:
        """An advertisement was withdrawn when this was the newest tick (rule 3)."""
        self._withdrawn_at = max(self._withdrawn_at, newest)

    def marked(self, mark: int, vector: Mapping[str, Version]) -> None:
        """Record a mark of the stream."""
        self._changes += 1
        for edge, version in vector.items():
            self.steps.setdefault(edge, VersionSteps()).learn(mark, version)

    def bind(
        self,
        edge: str,
        version: Version,
        binding: Binding,
        plus: Sequence[Conjunct],
        minus: Sequence[Conjunct],
        *,
        now: float,
    ) -> bool:
        """Apply an edge's interest or a change of it; returns False if it does not apply (rule
        4)."""
        interest = self._interests.get(edge)
        if interest is None:
            self._changes += 1
            self._interests[edge] = interest = _EdgeInterest()
        is_same = (version, binding.edition) == (interest.version, interest.edition)
        is_requested = is_same and interest.is_coarse and binding.is_whole
        if version <= interest.version and binding.edition <= interest.edition and not is_requested:
            return True
        if version < interest.version or binding.edition < interest.edition:
            return False
        is_base = (binding.base, binding.base_edition) == (interest.version, interest.edition)
        if not binding.is_whole and not is_base:
            return False
        removed = [(c.text, c.place) for c in minus]
        was_coarse = interest.is_coarse
        if binding.is_whole:
            kept = {(c.text, c.place) for c in plus}
            removed = [key for key in interest.ids if key not in kept]
            interest.is_coarse = False
            self._to_ask.pop(edge, None)
        for key in removed:
            interest.bound.pop(key, None)
            id = interest.ids.pop(key, None)
            if id is not None and self._index is not None:
                self._index.remove(id)
        error = self._add(edge, interest, plus)
        interest.version, interest.edition = version, binding.edition
        self._changes += 1
        if interest.is_coarse != was_coarse:
            self._note_change(edge, error)
        if removed:
            self._retry_coarse(now)
        return True

    def _note_change(self, edge: str, error: str) -> None:
        """Report that an edge's interest started or ceased to exceed the limits (rule 5)."""
        self._shared.counters.wishes_coarse += bool(error)
        if error:
            text = f"interest of {edge!r} exceeds the limits, sending it all events: {error}"
            self._shared.emit(Note("warning", text))
        else:
            text = f"interest of {edge!r} is within the limits again"
            self._shared.emit(Note("info", text))

    def _retry_coarse(self, now: float) -> None:
        self._to_ask = {edge: None for edge, known in self._interests.items() if known.is_coarse}
        if self._to_ask and self._ask_at is None:
            self._ask_at = now + _ASK_PAUSES * self._shared.options.lag_after_s

    def edge_to_ask(self, now: float) -> str:
        """The edge to ask for its interest now; "" for none."""
        if self._ask_at is None or self._ask_at > now:
            return ""
        self._ask_at = None
        if not self._to_ask:
            return ""
        edge = next(iter(self._to_ask))
        # The request may be lost, so the edge stays in the queue until its interest arrives.
        del self._to_ask[edge]
        self._to_ask[edge] = None
        self._ask_at = now + _ASK_PAUSES * self._shared.options.lag_after_s
        return edge

    def next_deadline(self) -> float | None:
        """When to call `edge_to_ask`."""
        return self._ask_at

    def _add(self, edge: str, interest: _EdgeInterest, plus: Sequence[Conjunct]) -> str:
        """Learn conjunctions; returns why the limits were exceeded, or ""."""
        found = ""
        if not plus:
            # Creating an index loads a compiler; avoid that without interest.
            return found
        if self._index is None:
            self._index = MatchIndex(limits=self._shared.limits)
        for conjunct in plus:
            key = (conjunct.text, conjunct.place)
            if key in interest.ids or interest.is_coarse:
                continue
            self._next_id += 1
            try:
                self._index.add(
                    self._next_id, conjunct.filter, place=conjunct.place, destination=edge
                )
            except LocalError as error:
                interest.is_coarse = True
                found = str(error)
            else:
                interest.ids[key] = self._next_id
                interest.bound[key] = conjunct
        return found
