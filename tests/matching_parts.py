"""What the matching index is tried on, and the naive index it is compared with.

`Watched` gives every call to a real index of each engine and to a naive one, which asks each filter
about each event. `check` then demands the same answer from all of them, by every way of asking.
The pools are small, so that filters and events meet, and hold every number and text at which keys,
codes and patterns change their form.
"""

import math
from collections.abc import Hashable, Iterable, Sequence

from hypothesis import strategies as st

from anabranch.matching.engine import EngineName
from anabranch.matching.index import MatchIndex
from anabranch.model.event import INT_MAX, INT_MIN, Event, Value
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS, Limits

ENGINES: tuple[EngineName, ...] = ("numba", "numpy")

NAMES = "pqrst"
INTEGERS = [0, 1, 2, 3, -1, 5, 2**53, 2**53 + 1, -(2**53) - 1, 2**62 + 3, INT_MAX]
FLOATS = [0.5, 1.0, 1.5, 2.25, -0.0, 1e300, 2.0**53]
#: Keys of texts change at seven bytes; é has two of them.
TEXTS = ["", "a", "b", "ab", "abc", "abcdefg", "abcdefgh", "abcdefghi", "z", "é", "aa"]
PATTERNS = ["a%", "%b", "ab%", "abcdefgh%", "%c%", "%bc%g%", "a%h", "a_", "abc", "%", "é%", "%h"]
#: What no filter can say, but an event can.
STRANGE: list[Value] = [
    INT_MIN, math.inf, -math.inf, math.nan, "nope", "abcdefghz", "cab", True, False,
]  # fmt: skip
VALUES: list[Value] = [*INTEGERS, *FLOATS, *TEXTS, *STRANGE]

Attributes = dict[str, Value]


def literal_text(value: Value) -> str:
    """A value as a filter spells it."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


names = st.sampled_from(NAMES)
_LITERALS: list[Value] = [*INTEGERS, *FLOATS, *TEXTS, True, False]
literals = st.sampled_from(_LITERALS).map(literal_text)
orders = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
lists = st.lists(literals, min_size=1, max_size=4).map(", ".join)
predicates = st.one_of(
    st.builds("{} {} {}".format, names, orders, literals),
    st.builds("{} {} {}".format, names, orders, literals),
    st.builds("{} {} ({})".format, names, st.sampled_from(["IN", "NOT IN"]), lists),
    st.builds("{} {} '{}'".format, names, st.sampled_from(["LIKE", "NOT LIKE"]),
              st.sampled_from(PATTERNS)),
    st.builds("{} IS {}NULL".format, names, st.sampled_from(["", "NOT "])),
    st.builds("{} BETWEEN {} AND {}".format, names, literals, literals),
    names,
    st.builds("{} + {} > 2".format, names, names),
    st.builds("{} < {}".format, names, names),
)  # fmt: skip


def _joined(word: str, parts: list[str]) -> str:
    return "(" + f" {word} ".join(parts) + ")"


def _larger(smaller: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(smaller, min_size=2, max_size=3)
    return st.one_of(
        several.map(lambda parts: _joined("AND", parts)),
        several.map(lambda parts: _joined("OR", parts)),
        smaller.map("NOT ({})".format),
    )


filters = st.recursive(predicates, _larger, max_leaves=6).map(Filter.parse)
#: Conjunctions of one to three predicates, which are most of what subscribers write.
plain_filters = st.lists(predicates, min_size=1, max_size=3).map(" AND ".join).map(Filter.parse)
events = st.dictionaries(st.sampled_from(NAMES + "u"), st.sampled_from(VALUES), max_size=6)


class Naive:
    """Every filter is asked about every event."""

    def __init__(self) -> None:
        self.filters: dict[Hashable, Filter] = {}
        self.links: dict[Hashable, Hashable] = {}

    def add(self, identity: Hashable, chosen: Filter, destination: Hashable = None) -> None:
        self.filters[identity] = chosen
        self.links[identity] = destination

    def remove(self, identity: Hashable) -> None:
        del self.filters[identity], self.links[identity]

    def match(self, event: Event) -> set[Hashable]:
        return {identity for identity, each in self.filters.items() if each.matches(event)}


class Watched:
    """Real indexes and a naive one that live through the same calls."""

    def __init__(
        self, engines: Iterable[EngineName] = ENGINES, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self.naive = Naive()
        self.indexes = [MatchIndex(engine=engine, limits=limits) for engine in engines]

    @property
    def ids(self) -> list[Hashable]:
        return list(self.naive.filters)

    def add(
        self, identity: Hashable, source: Filter | str, *, destination: Hashable = None
    ) -> None:
        chosen = Filter.parse(source) if isinstance(source, str) else source
        self.naive.add(identity, chosen, destination)
        for index in self.indexes:
            index.add(identity, chosen, destination=destination)

    def remove(self, identity: Hashable) -> None:
        self.naive.remove(identity)
        for index in self.indexes:
            index.remove(identity)

    def check(self, given: Sequence[Attributes]) -> int:
        """Demands equal answers to these events; returns how many matches there were."""
        asked = [Event(attributes) for attributes in given]
        wanted = [self.naive.match(event) for event in asked]
        for index in self.indexes:
            self._check_one(index, asked, wanted)
        return sum(map(len, wanted))

    def _check_one(
        self, index: MatchIndex, asked: list[Event], wanted: list[set[Hashable]]
    ) -> None:
        assert len(index) == len(self.naive.filters)
        batch = index.match_batch(asked)
        encoded = index.match_batch(index.encode(asked))
        answers = zip(asked, wanted, batch, encoded, strict=True)
        for event, ids, from_batch, from_encoded in answers:
            for found in (index.match(event), from_batch, from_encoded):
                assert_same(found, ids, self.naive, event)
            links = {self.naive.links[identity] for identity in ids} - {None}
            assert index.destinations(event) == links, dict(event)


def assert_same(found: list[Hashable], wanted: set[Hashable], naive: Naive, event: Event) -> None:
    """The ids are these, each once; says which filter was decided wrongly if not."""
    got = set(found)
    wrong = [(i, str(naive.filters.get(i))) for i in list(got ^ wanted)[:3]]
    assert got == wanted, (dict(event), wrong)
    assert len(found) == len(wanted), (dict(event), "an id came twice")
