"""Wishes: what the edges want of the own stream, as far as they told.

An event is matched once, here, when it enters the network; its copies say which edges they are for.
Each edge binds its interest to the origins whose advertisements it meets, with the edition it has
considered (`binding`). What was told may be late. An event is kept from an edge only if

1. the edge's interest is known in the version that the event's mark has for it, or a later one,
2. the edge has considered the advertisements of now: what was bound before knows nothing of those
   that were made since,
3. the event is younger than the last withdrawal of an advertisement: what an edge has told since
   then may leave out what only matched under that advertisement.

Otherwise the edge gets everything, and filters by itself.

4. A change applies only where exactly the version and edition of its base are known; a whole
   interest where nothing later is. What does not apply is answered, so that the edge tells it all.
5. Interest beyond our own limits is not learned, with a note: that edge gets everything. When
   interest has gone since, there may be room: such edges are asked to tell theirs anew, one every
   `_ASK_PAUSES` first timeouts, until they have.

State: volatile; bound again by every edge when it hears of the origin's new life.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from anabranch.core.contract import Note
from anabranch.core.routing.contract import CHECK_WORK, CHECKED_BYTES
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

#: The pause between two questions for interest that was too much, in first timeouts.
_ASK_PAUSES = 64

Key = tuple[str, int]
Edges = set[object] | frozenset[object]
_NOBODY: frozenset[object] = frozenset()


class InterestView(NamedTuple):
    """What is known of one edge."""

    edge: str
    version: Version
    conjunctions: list[Conjunction]


class _Wish:
    """What one edge wants."""

    __slots__ = ("bound", "edition", "ids", "is_too_much", "version")

    def __init__(self) -> None:
        self.version = NOTHING
        self.edition = NOTHING
        #: (text, place) → id in the index.
        self.ids: dict[Key, int] = {}
        self.bound: dict[Key, Conjunct] = {}
        self.is_too_much = False


class OriginInterest:
    """The interest of all edges in one stream. See the rules at the top of this module."""

    def __init__(self, around: MeshState) -> None:
        self._around = around
        self._wishes: dict[str, _Wish] = {}
        self._index: MatchIndex | None = None
        self._next_id = 0
        #: What may still be spent on checks in this step; beyond it an edge counts as interested.
        self._checks_work = 0
        #: Edge → how its element grows along the stream.
        self.steps: dict[str, VersionSteps] = {}
        #: The newest tick when an advertisement was withdrawn last, or this life began (rule 3).
        self.withdrawn_at = 0
        #: Edges to be asked for interest that was too much (rule 5), and when.
        self._to_ask: dict[str, None] = {}
        self._ask_at: float | None = None
        #: Grows with all that is learned,
        self._changes = 0
        #: and the last answer to who is unsure, with what was asked.
        self._unsure: tuple[tuple[object, ...], list[str]] = ((), [])

    # -- questions --------------------------------------------------------------------------------

    def version_at(self, edge: str, mark: int) -> Version:
        """The version of an edge's interest that a mark has."""
        steps = self.steps.get(edge)
        return NOTHING if steps is None else steps.at(mark)

    @property
    def is_empty(self) -> bool:
        """Whether no edge wants anything, as far as they told."""
        return not any(wish.ids or wish.is_too_much for wish in self._wishes.values())

    def versions(self) -> dict[str, Version]:
        """Edge → the version that is known."""
        return {edge: wish.version for edge, wish in self._wishes.items()}

    def known(self, edge: str) -> tuple[Version, Version]:
        """The version and edition in which an edge's interest is known."""
        wish = self._wishes.get(edge)
        return (NOTHING, NOTHING) if wish is None else (wish.version, wish.edition)

    def views(self, edition: Version) -> list[InterestView]:
        """The interest of all edges for which events would be filtered; for whoever checks it."""
        return [
            InterestView(edge, wish.version, [each.conjunction for each in wish.bound.values()])
            for edge, wish in self._wishes.items()
            if wish.edition >= edition and not wish.is_too_much
        ]

    def may_filter(self, edge: str, mark: int, first: int, edition: Version) -> bool:
        """Whether ticks from this one on, with this mark, may be kept from an edge."""
        wish = self._wishes.get(edge)
        if wish is None or wish.is_too_much:
            return False
        is_current = wish.edition >= edition and first > self.withdrawn_at
        return is_current and wish.version >= self.version_at(edge, mark)

    def unsure(
        self, edges: Sequence[str], mark: int, first: int, edition: Version
    ) -> Sequence[str]:
        """Those of these edges from which ticks from this one on may not be kept."""
        is_young = first > self.withdrawn_at
        key = (len(edges), edges[0], mark, edition, is_young, self._changes)
        if key != self._unsure[0]:
            found = [e for e in edges if not self.may_filter(e, mark, first, edition)]
            self._unsure = (key, found)
        return self._unsure[1]

    def match(self, data: Sequence[Datum]) -> list[Edges]:
        """Per event, the edges that want it, of those whose interest is known."""
        index = self._index
        if index is None or not data or not len(index):
            return [_NOBODY] * len(data)
        self._around.counters.matches += len(data)
        self._checks_work = self._around.options.step_work_max
        found = index.destinations_of([datum.body for datum in data], self._around.limits)
        return [
            self._match_one(index, datum) if edges is None else edges
            for datum, edges in zip(data, found, strict=True)
        ]

    def wanting(self, attributes: Mapping[str, Value]) -> list[str]:
        """The edges that want an event with these attributes, of those whose interest is known."""
        if self._index is None or not len(self._index):
            return []
        return sorted(str(edge) for edge in self._index.destinations(attributes))

    def _match_one(self, index: MatchIndex, datum: Datum) -> Edges:
        each = CHECK_WORK + len(datum.body) // CHECKED_BYTES
        try:
            envelope = decode_envelope(datum.body, self._around.limits)
            checks_max = max(0, self._checks_work // each)
            found, checks, is_short = index.destinations_within(envelope, checks_max)
            self._checks_work -= checks * each
            self._around.counters.matches_assumed += is_short
            return found
        except RemoteError:
            # For edges to tell their clients that it is withheld.
            return set(self._around.edges)

    # -- changes ----------------------------------------------------------------------------------

    def marked(self, mark: int, vector: Mapping[str, Version]) -> None:
        """The stream has this mark."""
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
        """An edge tells its interest, or a change of it; False if that does not apply (rule 4)."""
        wish = self._wishes.get(edge)
        if wish is None:
            self._changes += 1
            self._wishes[edge] = wish = _Wish()
        is_same = (version, binding.edition) == (wish.version, wish.edition)
        is_asked = is_same and wish.is_too_much and binding.is_whole
        if version <= wish.version and binding.edition <= wish.edition and not is_asked:
            return True
        if version < wish.version or binding.edition < wish.edition:
            return False
        is_base = (binding.base, binding.base_edition) == (wish.version, wish.edition)
        if not binding.is_whole and not is_base:
            return False
        gone = [(c.text, c.place) for c in minus]
        was_too_much = wish.is_too_much
        if binding.is_whole:
            kept = {(c.text, c.place) for c in plus}
            gone = [key for key in wish.ids if key not in kept]
            wish.is_too_much = False
            self._to_ask.pop(edge, None)
        for key in gone:
            wish.bound.pop(key, None)
            id = wish.ids.pop(key, None)
            if id is not None and self._index is not None:
                self._index.remove(id)
        error = self._add(edge, wish, plus)
        wish.version, wish.edition = version, binding.edition
        self._changes += 1
        if wish.is_too_much != was_too_much:
            self._note_change(edge, error)
        if gone:
            self._made_room(now)
        return True

    def _note_change(self, edge: str, error: str) -> None:
        """The interest of an edge has become too much, or is so no more (rule 5)."""
        self._around.counters.wishes_coarse += bool(error)
        if error:
            text = f"the interest of {edge!r} is too much to know; it gets everything: {error}"
            self._around.out.append(Note("warning", text))
        else:
            self._around.out.append(Note("info", f"the interest of {edge!r} is known again"))

    def _made_room(self, now: float) -> None:
        self._to_ask = {edge: None for edge, wish in self._wishes.items() if wish.is_too_much}
        if self._to_ask and self._ask_at is None:
            self._ask_at = now + _ASK_PAUSES * self._around.options.lag_after_s

    def asked(self, now: float) -> str:
        """The edge that is to be asked for its interest now; "" for none."""
        if self._ask_at is None or self._ask_at > now:
            return ""
        self._ask_at = None
        if not self._to_ask:
            return ""
        edge = next(iter(self._to_ask))
        # Until it has told: the question may be lost.
        del self._to_ask[edge]
        self._to_ask[edge] = None
        self._ask_at = now + _ASK_PAUSES * self._around.options.lag_after_s
        return edge

    def next_deadline(self) -> float | None:
        """When `asked` is to be called."""
        return self._ask_at

    def _add(self, edge: str, wish: _Wish, plus: Sequence[Conjunct]) -> str:
        """Learn conjunctions; why it was too much, or ""."""
        found = ""
        if not plus:
            # An index loads a compiler; who wants nothing needs none.
            return found
        if self._index is None:
            self._index = MatchIndex(limits=self._around.limits)
        for conjunct in plus:
            key = (conjunct.text, conjunct.place)
            if key in wish.ids or wish.is_too_much:
                continue
            self._next_id += 1
            try:
                self._index.add(
                    self._next_id, conjunct.filter, place=conjunct.place, destination=edge
                )
            except LocalError as error:
                wish.is_too_much = True
                found = str(error)
            else:
                wish.ids[key] = self._next_id
                wish.bound[key] = conjunct
        return found
