"""The index under random updates, against asking every filter about every event.

Small indexes are drawn filter by filter, so that a failure shrinks to a few of them. Crowds are
drawn by seed: what comes into play with hundreds of filters cannot be shrunk to a handful.
"""

from collections.abc import Hashable
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule

from anabranch.matching.engine import EngineName
from anabranch.matching.index import MatchIndex
from anabranch.model.event import Event
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits
from tests import filter_parts
from tests.crowd_parts import STYLES, Crowd
from tests.matching_parts import (
    ENGINES,
    Attributes,
    Watched,
    events,
    filters,
    plain_filters,
)

some_events = st.lists(events, min_size=1, max_size=4)
destinations = st.none() | st.integers(0, 70) | st.sampled_from(["east", "west"])


class IndexMachine(RuleBasedStateMachine):
    """Both engines and the naive index live through the same calls."""

    ids: ClassVar[Bundle[Hashable]] = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.watched = Watched()
        self.next = 0

    def put(self, chosen: Filter, destination: Hashable, as_text: bool) -> Hashable:
        self.next += 1
        identity = f"id {self.next}" if as_text else self.next
        self.watched.add(identity, chosen, destination=destination)
        return identity

    @rule(target=ids, chosen=filters, destination=destinations, as_text=st.booleans())
    def add(self, chosen: Filter, destination: Hashable, as_text: bool) -> Hashable:
        return self.put(chosen, destination, as_text)

    @rule(target=ids, chosen=plain_filters, destination=destinations)
    def add_plain(self, chosen: Filter, destination: Hashable) -> Hashable:
        return self.put(chosen, destination, as_text=False)

    @rule(target=ids, identity=ids, copies=st.sampled_from([1, 1, 70]))
    def add_equal(self, identity: Hashable, copies: int) -> Hashable:
        chosen = self.watched.naive.filters.get(identity)
        if chosen is None:
            return identity
        for _ in range(copies - 1):
            self.put(chosen, None, as_text=False)
        return self.put(chosen, None, as_text=False)

    @rule(identity=consumes(ids))
    def remove(self, identity: Hashable) -> None:
        if identity in self.watched.naive.filters:
            self.watched.remove(identity)

    @rule(given_events=some_events)
    def match(self, given_events: list[Attributes]) -> None:
        self.watched.check(given_events)

    def teardown(self) -> None:
        self.watched.check([{}, {"p": 1, "q": "ab", "r": 2**53 + 1}])
        for identity in self.watched.ids:
            self.watched.remove(identity)
        for index in self.watched.indexes:
            assert len(index) == 0
            assert index.match({"p": 1}) == []
            assert all(known is None for known in index._schema.texts)


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(stateful_step_count=25)


@pytest.mark.parametrize("engine", ENGINES)
@given(st.lists(filter_parts.meeting_conditions.map(Filter.of), max_size=8),
       st.lists(filter_parts.events, min_size=1, max_size=4))  # fmt: skip
def test_any_filters_of_the_language_are_matched_exactly(
    engine: EngineName, chosen: list[Filter], published: list[Attributes]
) -> None:
    watched = Watched([engine])
    for number, each in enumerate(chosen):
        watched.add(number, each)
    watched.check(published)


@given(st.sampled_from(sorted(STYLES)), st.integers(0, 2**32), st.data())
@settings(max_examples=max(1, settings().max_examples // 5))
def test_crowds_are_matched_exactly_after_any_updates(
    style: str, seed: int, data: st.DataObject
) -> None:
    crowd = Crowd(style, seed, Watched(["numba"]))
    for _ in range(data.draw(st.integers(1, 4), "turns")):
        crowd.grow(data.draw(st.integers(1, 600), "come"))
        crowd.shrink(data.draw(st.integers(0, len(crowd.watched.ids)), "go"))
        crowd.check(4)


@given(st.lists(plain_filters, min_size=1, max_size=6), some_events, st.data())
def test_encoded_events_stay_right_after_updates(
    chosen: list[Filter], published: list[Attributes], data: st.DataObject
) -> None:
    asked = [Event(attributes) for attributes in published]
    for engine in ENGINES:
        index = MatchIndex(engine=engine, limits=Limits(index_attributes_max=12))
        encoded = index.encode(asked)
        live: dict[int, Filter] = {}
        for number, each in enumerate(chosen):
            index.add(number, each)
            live[number] = each
            if data.draw(st.booleans(), "remove one"):
                gone = data.draw(st.sampled_from(sorted(live)))
                index.remove(gone)
                del live[gone]
            wanted = [{n for n, f in live.items() if f.matches(event)} for event in asked]
            assert list(map(set, index.match_batch(encoded))) == wanted
