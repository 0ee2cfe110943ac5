"""The virtual clock of an edge: versions of its own interest, and when each subscription starts.

The edge numbers the changes of its interest. A subscription's *virtual start time* is the version
that contains it: whoever knows the edge's interest in that version, or a later one, lets
everything pass that the subscription matches. Rules:

1. A conjunction that is known already starts with the one that is known. Otherwise it starts when
   the earliest of its direct coverers did: wherever that one is known, this one is covered. With
   no coverer it starts with the version that the next propagation will have, the *current* one.
2. A subscription starts with the last of its conjunctions.
3. Changes are gathered; a propagation takes them all, and only then the clock advances, by one.
   Nothing is propagated, and the clock stands, if the roots are what they were; unless somebody
   needs a version of its own for something else that others are to know.
4. What is removed stays in the DAG until the propagation: until then it is what all others know,
   and may serve as coverer for rule 1.
5. A conjunction that the DAG has no room for (what was removed still counts there, rule 4) is held
   as wanting everything. So `add` never fails: more ticks come than must, and none is missing.
6. The first propagation of a life is the whole interest, with counter 1. A later life is later
   than all of an earlier one.

State: rebuilt by whoever subscribes; volatile. The life comes from the broker, which stores it.

Prior art: Zhao 2006, §4.1.1–4.1.5 and §4.3.1.
"""

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator
from typing import NamedTuple

from anabranch.core.routing.contract import WorkDone, finished
from anabranch.matching.dag import ConjunctionDag, DagNode
from anabranch.model.errors import FilterError, LocalError, RemoteError
from anabranch.model.filter import Filter
from anabranch.model.frame_parts import ITEMS_MAX, Conjuncts
from anabranch.model.limits import Limits
from anabranch.model.normal.conjunction import Conjunction
from anabranch.model.version import NOTHING, Version

# Conjunctions on their way between brokers.
#
# A conjunction travels as the text of a filter and its place in that filter's normal form, because
# text is the one notation that every broker reads alike. Whoever receives it parses the text and
# has the same conjunction at the same place. Conjunctions of one filter travel together.
#
# What is too much for one frame is told as wanting everything (`wanted`): that lets more pass than
# must, and no link breaks over it. Likewise nothing is told to have ended then (`ended`).


EVERYTHING = Conjuncts("TRUE", (0,))
#: At most, in a frame.
_CHARACTER_BYTES = 4
_PLACE_BYTES = 9


class Conjunct(NamedTuple):
    """One conjunction, and where it came from."""

    text: str
    place: int
    filter: Filter

    @property
    def conjunction(self) -> Conjunction:
        """The conjunction itself."""
        return self.filter.conjunctions[self.place]

    def __str__(self) -> str:
        return self.text if len(self.filter.conjunctions) == 1 else f"{self.text} [{self.place}]"


#: A filter whose text is longer than this costs much to parse.
LONG_CHARACTERS = 96
#: What it costs to read a character of a filter, and to normalise what it says.
PARSE_WORK = 1


def dag_work(size: int) -> int:
    """What it costs to put one more conjunction into a DAG of this size, or to take it out."""
    return 50 + size // 32


def conjuncts_of(filter: Filter, limits: Limits) -> list[Conjunct]:
    """All conjunctions of a filter; everything, if its text is longer than a receiver reads. (The
    text of a filter may be longer than the one it was made of.)"""
    text = str(filter)
    if len(text.encode()) > limits.filter_bytes_max:
        return [everything()]
    if len(text) > LONG_CHARACTERS:
        # Whoever unpacks it here need not parse it.
        filter.remember(text)
    return [Conjunct(text, place, filter) for place in range(len(filter.conjunctions))]


def everything() -> Conjunct:
    """What stands for a conjunction that cannot be held: it lets more pass than must."""
    return Conjunct(EVERYTHING.text, 0, Filter.parse(EVERYTHING.text))


def wanted(conjuncts: Iterable[Conjunct], limits: Limits) -> list[Conjuncts]:
    """What is wanted, or has begun to be, as a frame has it."""
    packed = pack(conjuncts)
    return packed if fits(packed, limits) else [EVERYTHING]


def ended(conjuncts: Iterable[Conjunct], limits: Limits) -> list[Conjuncts]:
    """What is wanted no more, as a frame has it."""
    packed = pack(conjuncts)
    return packed if fits(packed, limits) else []


def fits(packed: list[Conjuncts], limits: Limits) -> bool:
    """Whether a frame has room for these, and for as many others beside them."""
    if len(packed) > ITEMS_MAX:
        return False
    size = sum(_text_bytes(item.text) + _PLACE_BYTES * len(item.places) for item in packed)
    return 3 * size <= limits.frame_bytes_max


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else _CHARACTER_BYTES * len(text)


def pack(conjuncts: Iterable[Conjunct]) -> list[Conjuncts]:
    """As frames have them."""
    places: dict[str, list[int]] = {}
    for conjunct in conjuncts:
        places.setdefault(conjunct.text, []).append(conjunct.place)
    return [Conjuncts(text, tuple(each)) for text, each in places.items()]


def unpack(packed: Iterable[Conjuncts], limits: Limits) -> list[Conjunct]:
    """From a frame; `RemoteError` if a text is no filter or has no such place."""
    return finished(unpacking(packed, limits))


def unpacking(
    packed: Iterable[Conjuncts], limits: Limits
) -> Generator[WorkDone, None, list[Conjunct]]:
    """The same bit by bit."""
    found: list[Conjunct] = []
    for item in packed:
        try:
            filter = Filter.parse(item.text, limits)
            count = len(filter.conjunctions)
        except FilterError as error:
            raise RemoteError(f"an interest arrived that is no filter: {error.message}") from error
        for place in item.places:
            if place >= count:
                raise RemoteError(
                    f"an interest arrived for conjunction {place} of a filter that has {count}"
                )
            found.append(Conjunct(item.text, place, filter))
        yield WorkDone(PARSE_WORK * (1 + len(item.text)))
    return found


class Propagation(NamedTuple):
    """What a step of the clock tells the network."""

    version: Version
    #: The version before it; NOTHING at the first of a life.
    before: Version
    plus: list[Conjunct]
    minus: list[Conjunct]
    #: Still wanted, but covered by others now; who knows them may drop them.
    covered: list[Conjunct]


class _Subscription(NamedTuple):
    version: Version
    #: Its ids in the DAG.
    ids: tuple[int, ...]


class InterestClock:
    """The interest of one edge name and its versions. See the rules at the top of this module."""

    def __init__(self, edge: str, life: int, limits: Limits, covering: bool) -> None:
        self.edge = edge
        self._life = life
        self._counter = 1
        self._limits = limits
        self._covering = covering
        self._dag: ConjunctionDag | None = None
        self._next_id = 0
        self._subscriptions: dict[str, _Subscription] = {}
        #: DAG ids of removed subscriptions, see rule 4.
        self._leaving: list[int] = []
        self._starts: dict[DagNode, Version] = {}
        self._conjuncts: dict[DagNode, Conjunct] = {}
        #: The roots as the network was told of them.
        self._told: dict[DagNode, Conjunct] = {}
        self._touched: dict[DagNode, None] = {}
        #: Subscriptions added since the last propagation.
        self._fresh: dict[str, None] = {}
        #: Conjunctions that came and went since then.
        self.gathered = 0

    # -- questions --------------------------------------------------------------------------------

    @property
    def current(self) -> Version:
        """The version of the next propagation."""
        return Version(self._life, self._counter)

    @property
    def propagated(self) -> Version:
        """The version of the last one; NOTHING before the first."""
        return Version(self._life, self._counter - 1) if self._counter > 1 else NOTHING

    @property
    def is_settled(self) -> bool:
        """Whether the last propagation told all there is."""
        return not (self._fresh or self._leaving or self._touched) and self._counter > 1

    @property
    def subscriptions(self) -> dict[str, Version]:
        """Subscription → the version that contains it."""
        return {name: each.version for name, each in self._subscriptions.items()}

    def roots(self) -> list[Conjunct]:
        """The interest as of the last propagation."""
        return list(self._told.values())

    # -- changes ----------------------------------------------------------------------------------

    def add(self, subscription: str, filter: Filter) -> Version:
        """A new subscription; the version that contains it."""
        for _ in self.adding(subscription, filter):
            pass
        return self._subscriptions[subscription].version

    def adding(self, subscription: str, filter: Filter) -> Iterator[WorkDone]:
        """The same bit by bit; nothing else happens to the clock meanwhile."""
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
        self._subscriptions[subscription] = _Subscription(version, tuple(ids))
        self._fresh[subscription] = None
        self.gathered += len(ids)

    def version_of(self, subscription: str) -> Version:
        """The version that contains a subscription."""
        return self._subscriptions[subscription].version

    def _place(self, dag: ConjunctionDag, id: int, conjunct: Conjunct) -> Version:
        """Put a conjunction into the DAG; the version it starts with (rules 1 and 5)."""
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
        """A subscription ends; one that is not there is fine."""
        gone = self._subscriptions.pop(subscription, None)
        if gone is not None:
            self._leaving.extend(gone.ids)
            self.gathered += len(gone.ids)
            self._fresh.pop(subscription, None)

    # -- propagation ------------------------------------------------------------------------------

    def propagate(self, *, anyway: bool = False) -> Propagation | None:
        """Advance the clock if there is anything to tell, or anyway, and say what (rules 3 and
        6)."""
        self.gathered = 0
        self._bury()
        plus, minus, covered = self._root_changes()
        # No fresh subscription can need a version that nobody will ever be told of.
        is_waited_for = any(self._subscriptions[s].version == self.current for s in self._fresh)
        self._fresh.clear()
        is_told = self._counter > 1 and not plus and not minus and not is_waited_for
        if is_told and not anyway:
            return None
        step = Propagation(self.current, self.propagated, plus, minus, covered)
        self._counter += 1
        return step

    def _bury(self) -> None:
        """Take what was removed out of the DAG."""
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
            if conjunct is not None and is_root and node not in self._told:
                self._told[node] = conjunct
                plus.append(conjunct)
            elif not is_root and node in self._told:
                gone = self._told.pop(node)
                (minus if conjunct is None else covered).append(gone)
        self._touched.clear()
        return plus, minus, covered


STEPS_MAX = 256


class VersionSteps:
    """How the version of one edge's interest grows along one stream.

    Vectors never decrease with the tick, so what one element of them does along a stream is told by
    the few marks at which it grew. For a mark that is not known, the last step before it is a lower
    bound.

    State: the newest `STEPS_MAX` steps; what is older is taken for unknown, which promises less.
    """

    __slots__ = ("_marks", "_versions")

    def __init__(self) -> None:
        #: Invariant: marks ascend, and versions with them, strictly.
        self._marks: list[int] = [0]
        self._versions: list[Version] = [NOTHING]

    @property
    def newest(self) -> Version:
        """The greatest version that any mark is known to have."""
        return self._versions[-1]

    def at(self, mark: int) -> Version:
        """The version that this mark has, at least."""
        place = bisect_right(self._marks, mark) - 1
        return self._versions[place] if place >= 0 else NOTHING

    def learn(self, mark: int, version: Version) -> None:
        """This mark has this version."""
        place = bisect_right(self._marks, mark)
        if place and self._versions[place - 1] >= version:
            return
        while place < len(self._marks) and self._versions[place] <= version:
            del self._marks[place], self._versions[place]
        self._marks.insert(place, mark)
        self._versions.insert(place, version)
        if len(self._marks) > STEPS_MAX:
            del self._marks[0], self._versions[0]
