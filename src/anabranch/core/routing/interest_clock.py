"""The interest clock of an edge: versions of its interest, and each subscription's start.

The edge numbers the changes of its interest. A subscription's *virtual start time* is the version
that contains it: a broker that has the edge's interest in that version or a later one passes on
every event that the subscription matches. Rules:

1. A conjunction equal to an existing one starts with that one. Otherwise it starts with the
   earliest of its direct coverers, because brokers that have the coverer cover this conjunction
   too. Without a coverer it starts with the *current* version, the one of the next propagation.
2. A subscription starts with the latest start of its conjunctions.
3. Changes are batched; a propagation takes them all, and only then the clock advances by one.
   If the roots have not changed, nothing is propagated and the clock does not advance, unless the
   caller needs a new version for other information that it is about to send.
4. Removed conjunctions stay in the DAG until the propagation: until then the other brokers still
   have them, and they may serve as coverers for rule 1.
5. A conjunction that exceeds the limits of the DAG (removed ones still count, rule 4) is replaced
   by one that matches everything. So `add` never fails: extra ticks arrive, but none is missing.
6. The first propagation of a life is the whole interest, with counter 1. Every version of a later
   life is later than all versions of an earlier one.

On the wire, a conjunction is the text of a filter and its position in that filter's normal form,
because text is the one notation that every broker reads alike. The receiver parses the text and
gets the same conjunction at the same position. Conjunctions of one filter share one text. A list
that is too large for a frame is sent as a filter that matches everything (`encode_interest`), and a
removal that is too large is not sent (`encode_removals`): more ticks pass than necessary, and no
link fails over it.

State: volatile; rebuilt as clients subscribe. The broker supplies and persists the life.

Prior art: Zhao 2006, §4.1.1–4.1.5 and §4.3.1.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import NamedTuple

from anabranch.core.routing.contract import (
    InterestVersions,
    Outcome,
    VectorAdvance,
    WorkDone,
    finished,
)
from anabranch.matching.dag import ConjunctionDag, DagNode
from anabranch.model.errors import FilterError, LocalError, RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import ITEMS_MAX, Conjuncts
from anabranch.model.limits import Limits
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.version import NOTHING, Version, is_at_least, raise_to

EVERYTHING = Conjuncts("TRUE", (0,))
#: Upper bounds of encoded sizes in a frame.
_CHARACTER_BYTES = 4
_PLACE_BYTES = 9


class Conjunct(NamedTuple):
    """One conjunction of a filter."""

    text: str
    place: int
    filter: Filter

    @property
    def conjunction(self) -> Conjunction:
        return self.filter.conjunctions[self.place]

    def __str__(self) -> str:
        return self.text if len(self.filter.conjunctions) == 1 else f"{self.text} [{self.place}]"


#: A filter whose text is longer than this is expensive to parse.
LONG_CHARACTERS = 96
#: Cost of parsing and normalising one character of a filter.
PARSE_WORK = 1


def dag_work(size: int) -> int:
    """Cost of adding a conjunction to a DAG of this size, or of removing one."""
    return 50 + size // 32


def conjuncts_of(filter: Filter, limits: Limits) -> list[Conjunct]:
    """All conjunctions of a filter, or `everything` if its text is longer than a receiver accepts.
    (The text of a filter may be longer than the text it was parsed from.)"""
    text = str(filter)
    if len(text.encode()) > limits.filter_bytes_max:
        return [everything()]
    if len(text) > LONG_CHARACTERS:
        # Saves parsing when this process unpacks it.
        filter.remember(text)
    return [Conjunct(text, place, filter) for place in range(len(filter.conjunctions))]


def everything() -> Conjunct:
    """Replacement for a conjunction that exceeds a limit; it matches every event."""
    return Conjunct(EVERYTHING.text, 0, Filter.parse(EVERYTHING.text))


def encode_interest(conjuncts: Iterable[Conjunct], limits: Limits) -> list[Conjuncts]:
    """Encode conjunctions of the interest, or additions to it."""
    packed = pack(conjuncts)
    return packed if fits(packed, limits) else [EVERYTHING]


def encode_removals(conjuncts: Iterable[Conjunct], limits: Limits) -> list[Conjuncts]:
    """Encode conjunctions that have left the interest."""
    packed = pack(conjuncts)
    return packed if fits(packed, limits) else []


def fits(packed: list[Conjuncts], limits: Limits) -> bool:
    """Whether a frame has space for these and for twice their size beside them."""
    if len(packed) > ITEMS_MAX:
        return False
    size = sum(_text_bytes(item.text) + _PLACE_BYTES * len(item.places) for item in packed)
    return 3 * size <= limits.frame_bytes_max


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else _CHARACTER_BYTES * len(text)


def pack(conjuncts: Iterable[Conjunct]) -> list[Conjuncts]:
    """Group conjunctions by the text of their filter."""
    places: dict[str, list[int]] = {}
    for conjunct in conjuncts:
        places.setdefault(conjunct.text, []).append(conjunct.place)
    return [Conjuncts(text, tuple(each)) for text, each in places.items()]


def unpack(packed: Iterable[Conjuncts], limits: Limits) -> list[Conjunct]:
    """Decode conjunctions; `RemoteError` if a text is not a filter or a position is invalid."""
    return finished(unpack_in_slices(packed, limits))


def unpack_in_slices(
    packed: Iterable[Conjuncts], limits: Limits
) -> Generator[WorkDone, None, list[Conjunct]]:
    """`unpack`, interruptible."""
    found: list[Conjunct] = []
    for item in packed:
        try:
            filter = Filter.parse(item.text, limits)
            count = len(filter.conjunctions)
        except FilterError as error:
            raise RemoteError(f"received an invalid filter as interest: {error.message}") from error
        for place in item.places:
            if place >= count:
                raise RemoteError(
                    f"received interest in conjunction {place} of a filter that has {count}"
                )
            found.append(Conjunct(item.text, place, filter))
        yield WorkDone(PARSE_WORK * (1 + len(item.text)))
    return found


class Propagation(NamedTuple):
    """The change that one step of the clock propagates to the network."""

    version: Version
    #: The version before it; NOTHING at the first of a life.
    before: Version
    plus: list[Conjunct]
    minus: list[Conjunct]
    #: Still wanted but now covered by others; receivers may drop them.
    covered: list[Conjunct]


class _RegisteredSubscription(NamedTuple):
    version: Version
    #: Its ids in the DAG.
    ids: tuple[int, ...]


class InterestClock:
    """The interest of one edge name, with its versions. See the rules at the top of this module."""

    def __init__(self, edge: str, life: int, limits: Limits, covering: bool) -> None:
        self.edge = edge
        self._life = life
        self._counter = 1
        self._limits = limits
        self._covering = covering
        self._dag: ConjunctionDag | None = None
        self._next_id = 0
        self._subscriptions: dict[str, _RegisteredSubscription] = {}
        #: DAG ids of removed subscriptions; see rule 4.
        self._leaving: list[int] = []
        self._starts: dict[DagNode, Version] = {}
        self._conjuncts: dict[DagNode, Conjunct] = {}
        #: The roots as of the last propagation.
        self._propagated_roots: dict[DagNode, Conjunct] = {}
        self._touched: dict[DagNode, None] = {}
        #: Subscriptions added since the last propagation.
        self._fresh: dict[str, None] = {}
        #: Conjunctions added or removed since the last propagation.
        self.unpropagated = 0

    # -- queries ----------------------------------------------------------------------------------

    @property
    def current(self) -> Version:
        """The version of the next propagation."""
        return Version(self._life, self._counter)

    @property
    def propagated(self) -> Version:
        """The version of the last propagation; NOTHING before the first."""
        return Version(self._life, self._counter - 1) if self._counter > 1 else NOTHING

    @property
    def is_settled(self) -> bool:
        """Whether the last propagation contains all changes."""
        return not (self._fresh or self._leaving or self._touched) and self._counter > 1

    @property
    def subscriptions(self) -> dict[str, Version]:
        """Subscription → the version that contains it."""
        return {name: each.version for name, each in self._subscriptions.items()}

    def roots(self) -> list[Conjunct]:
        """The interest as of the last propagation."""
        return list(self._propagated_roots.values())

    # -- changes ----------------------------------------------------------------------------------

    def add(self, subscription: str, filter: Filter) -> Version:
        """Add a subscription; returns the version that contains it."""
        for _ in self.add_in_slices(subscription, filter):
            pass
        return self._subscriptions[subscription].version

    def add_in_slices(self, subscription: str, filter: Filter) -> Iterator[WorkDone]:
        """`add`, interruptible; the caller must not use the clock until the iterator is done."""
        if subscription in self._subscriptions:
            self.remove(subscription)
        if self._dag is None:
            self._dag = ConjunctionDag(self._limits)
        version, ids = NOTHING, []
        for conjunct in conjuncts_of(filter, self._limits):
            self._next_id += 1
            ids.append(self._next_id)
            start = self._place(self._dag, self._next_id, conjunct)
            version = start if start > version else version
            yield WorkDone(dag_work(len(self._dag)))
        self._subscriptions[subscription] = _RegisteredSubscription(version, tuple(ids))
        self._fresh[subscription] = None
        self.unpropagated += len(ids)

    def change(
        self,
        added: Mapping[str, Filter],
        removed: Iterable[str],
        unpropagated_max: int,
        propagate: Callable[[], Iterator[Outcome]],
    ) -> Iterator[Outcome]:
        """Add and remove subscriptions; `propagate` whenever too many conjunctions have changed."""
        for name, filter in added.items():
            yield from self.add_in_slices(name, filter)
            yield InterestVersions({name: self._subscriptions[name].version})
            if self.unpropagated >= unpropagated_max:
                yield from propagate()
        for name in removed:
            self.remove(name)
            if self.unpropagated >= unpropagated_max:
                yield from propagate()

    def _place(self, dag: ConjunctionDag, id: int, conjunct: Conjunct) -> Version:
        """Add a conjunction to the DAG; returns its start (rules 1 and 5)."""
        try:
            node = dag.add(id, conjunct.conjunction)
        except LocalError:
            conjunct = everything()
            node = dag.add(id, conjunct.conjunction)
        start = self._starts.get(node)
        if start is None:
            start = min((self._starts[upper] for upper in node.above), default=self.current)
            self._starts[node] = start
            self._conjuncts[node] = conjunct
            self._touched[node] = None
            self._touched.update(node.below)
        return start

    def remove(self, subscription: str) -> None:
        """Remove a subscription, if it exists."""
        gone = self._subscriptions.pop(subscription, None)
        if gone is not None:
            self._leaving.extend(gone.ids)
            self.unpropagated += len(gone.ids)
            self._fresh.pop(subscription, None)

    # -- propagation ------------------------------------------------------------------------------

    def propagate(self, *, anyway: bool = False) -> Propagation | None:
        """Advance the clock if the interest has changed, or if `anyway` is set; returns the change
        (rules 3 and 6)."""
        self.unpropagated = 0
        self._drop_removed()
        plus, minus, covered = self._root_changes()
        # Every new subscription must start with a version that is eventually propagated.
        is_awaited = any(self._subscriptions[s].version == self.current for s in self._fresh)
        self._fresh.clear()
        is_unchanged = self._counter > 1 and not plus and not minus and not is_awaited
        if is_unchanged and not anyway:
            return None
        step = Propagation(self.current, self.propagated, plus, minus, covered)
        self._counter += 1
        return step

    def _drop_removed(self) -> None:
        """Remove the conjunctions of removed subscriptions from the DAG."""
        for id in self._leaving:
            assert self._dag is not None
            node = self._dag.node(id)
            if len(node.ids) == 1:
                self._touched[node] = None
                self._touched.update(node.below)
                del self._starts[node]
                del self._conjuncts[node]
            self._dag.remove(id)
        self._leaving.clear()

    def _root_changes(self) -> tuple[list[Conjunct], list[Conjunct], list[Conjunct]]:
        plus: list[Conjunct] = []
        minus: list[Conjunct] = []
        covered: list[Conjunct] = []
        for node in self._touched:
            conjunct = self._conjuncts.get(node)
            is_root = conjunct is not None and (node.is_root or not self._covering)
            if conjunct is not None and is_root and node not in self._propagated_roots:
                self._propagated_roots[node] = conjunct
                plus.append(conjunct)
            elif not is_root and node in self._propagated_roots:
                gone = self._propagated_roots.pop(node)
                (minus if conjunct is None else covered).append(gone)
        self._touched.clear()
        return plus, minus, covered


class OriginVector:
    """The vector that this broker's origin has, or was asked to adopt; it never decreases."""

    def __init__(self) -> None:
        self._vector: dict[str, Version] = {}

    def marked(self, vector: Mapping[str, Version]) -> None:
        """The origin has a mark with this vector."""
        raise_to(self._vector, vector)

    def advance(self, vector: Mapping[str, Version]) -> list[VectorAdvance]:
        """The request to adopt these versions too, if the origin lacks one."""
        if is_at_least(self._vector, vector):
            return []
        raise_to(self._vector, vector)
        return [VectorAdvance(dict(self._vector))]


STEPS_MAX = 256


class VersionSteps:
    """How the version of one edge's interest grows along one stream.

    Vectors never decrease with the tick, so the marks at which the edge's element grew describe it
    completely. For an unknown mark, the last step before it is a lower bound.

    State: the newest `STEPS_MAX` steps. Older marks count as unknown, which is safe: it only
    lowers the version.
    """

    __slots__ = ("_marks", "_versions")

    def __init__(self) -> None:
        #: Invariant: marks ascend, and versions with them, strictly.
        self._marks: list[int] = [0]
        self._versions: list[Version] = [NOTHING]

    @property
    def newest(self) -> Version:
        """The greatest version of any known mark."""
        return self._versions[-1]

    def at(self, mark: int) -> Version:
        """A lower bound of the version at this mark."""
        place = bisect_right(self._marks, mark) - 1
        return self._versions[place] if place >= 0 else NOTHING

    def learn(self, mark: int, version: Version) -> None:
        """Record the version of a mark."""
        place = bisect_right(self._marks, mark)
        if place and self._versions[place - 1] >= version:
            return
        while place < len(self._marks) and self._versions[place] <= version:
            del self._marks[place], self._versions[place]
        self._marks.insert(place, mark)
        self._versions.insert(place, version)
        if len(self._marks) > STEPS_MAX:
            del self._marks[0], self._versions[0]
