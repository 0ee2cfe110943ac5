"""While the kernels are deferred, numpy answers; afterwards the kernels do, with equal answers."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from anabranch.matching import kernel_state
from anabranch.matching.boxes import PlainBoxes
from anabranch.matching.compiled_boxes import CompiledBoxes
from anabranch.matching.dag import ConjunctionDag
from anabranch.matching.index import MatchIndex
from anabranch.model.encoding import decode_envelope, encode_event
from anabranch.model.errors import DuplicateIdError, FilterLimitError, UnknownIdError
from anabranch.model.event import Event, EventId, Value
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS, Limits

#: One of each form: plain text, a range, a disjunction, patterns, a residue, nothing at all.
FORMS: tuple[Callable[[Random], str], ...] = (
    lambda draw: f"symbol = 's{draw.randrange(4)}' AND price < {draw.randrange(9)}",
    lambda draw: f"price > {draw.randrange(9)}",
    lambda draw: f"price = {draw.randrange(9)} OR symbol <> 's{draw.randrange(4)}'",
    lambda draw: f"symbol LIKE 's{draw.randrange(4)}%' OR symbol LIKE '%{draw.randrange(4)}'",
    lambda draw: f"price + volume > {draw.randrange(15)}",
    lambda _: "price > 1 AND price < 1",
)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """The kernels are deferred until this is called."""
    loaded = threading.Event()
    monkeypatch.setattr(kernel_state, "loaded", loaded)
    deferral = kernel_state.Deferral()
    yield loaded.set
    deferral.end()


def filters(count: int, seed: int = 1) -> list[str]:
    draw = Random(seed)
    return [draw.choice(FORMS)(draw) for _ in range(count)]


def events(count: int, seed: int = 2) -> list[Event]:
    draw = Random(seed)
    made: list[Event] = []
    for number in range(1, count + 1):
        values: dict[str, Value] = {"symbol": f"s{draw.randrange(5)}"}
        if draw.random() < 0.8:
            values |= {"price": draw.randrange(10), "volume": draw.randrange(10)}
        made.append(Event(values, id=EventId("p", 1, number)))
    return made


def answers(index: MatchIndex) -> list[object]:
    """What an index says about some events, in all the ways of asking."""
    found: list[object] = []
    for event in events(40):
        body = encode_event(event)
        envelope = decode_envelope(body)
        (among,) = index.match_bodies([body], DEFAULT_LIMITS)
        (towards,) = index.destinations_of([body], DEFAULT_LIMITS)
        sure, left = index.narrow(envelope)
        decided = {id for id, check in left if check(event.attributes)}
        matching = set(index.match(event))
        assert matching == set(index.match(envelope)) == {*sure, *decided}
        assert among is None or set(among) == matching
        assert towards is None or towards == index.destinations(event)
        found.append((matching, index.destinations(envelope)))
    return found


def test_an_index_starts_with_numpy_and_moves_with_the_same_answers(
    load: Callable[[], None],
) -> None:
    index, other = MatchIndex(), MatchIndex(engine="numba")
    for number, text in enumerate(filters(200)):
        for each in (index, other):
            each.add(number, text, destination=number % 5)
    for number in range(0, 200, 3):
        for each in (index, other):
            each.remove(number)
    assert index.engine == "numpy"
    before = answers(index)
    assert index.engine == "numpy"
    load()
    assert answers(index) == before == answers(other)
    assert index.engine == "numba"
    assert len(index) == len(other)


@pytest.mark.parametrize("first", ["add", "remove", "match", "save"])
def test_whatever_comes_first_moves_the_index(
    load: Callable[[], None], tmp_path: Path, first: str
) -> None:
    index = MatchIndex()
    index.add("a", "price > 1")
    index.add("b", Filter.parse("price > 2 OR symbol = 'x'"), place=0)
    load()
    if first == "add":
        index.add("c", "price > 3")
    elif first == "remove":
        index.remove("a")
    elif first == "match":
        assert index.match({"symbol": "x", "price": 0}) == []
    else:
        index.save(tmp_path / "snapshot")
    assert index.engine == "numba"
    assert ("a" in index) == (first != "remove")
    assert set(index.match({"price": 3})) == {"b"} | ({"a"} if first != "remove" else set())


def test_an_id_is_known_before_and_after_the_move(load: Callable[[], None]) -> None:
    index = MatchIndex()
    index.add("a", "price > 1")
    with pytest.raises(DuplicateIdError):
        index.add("a", "price > 2")
    with pytest.raises(UnknownIdError):
        index.remove("b")
    load()
    with pytest.raises(DuplicateIdError):
        index.add("a", "price > 2")
    index.remove("a")
    assert index.match({"price": 5}) == []


def test_a_full_index_moves_and_stays_full(load: Callable[[], None]) -> None:
    limits = Limits(index_attributes_max=2, index_conjunctions_max=3)
    index = MatchIndex(limits=limits)
    index.add("a", "price > 1")
    index.add("b", "symbol LIKE '%z' OR symbol LIKE 's_' AND price > 2")
    load()
    assert set(index.match({"price": 2, "symbol": "sz"})) == {"a", "b"}
    assert index.engine == "numba"
    with pytest.raises(FilterLimitError):
        index.add("c", "price > 5")
    index.remove("a")
    with pytest.raises(FilterLimitError):
        index.add("c", "volume > 5")
    index.add("c", "price > 5")


def test_an_engine_that_was_asked_for_is_not_deferred(load: Callable[[], None]) -> None:
    assert MatchIndex(engine="numba").engine == "numba"
    index = MatchIndex(engine="numpy")
    index.add("a", "price > 1")
    load()
    assert index.match({"price": 2}) == ["a"]
    assert index.engine == "numpy"


def test_the_kernels_are_used_at_once_where_nobody_defers_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_state, "loaded", threading.Event())
    # A node of another test may defer them still.
    monkeypatch.setattr(kernel_state, "_deferrals", set())
    deferral = kernel_state.Deferral()
    early = MatchIndex()
    assert early.engine == "numpy"
    deferral.end()
    assert MatchIndex().engine == "numba"
    early.add("a", "price > 1")
    assert early.engine == "numba"


def shape(dag: ConjunctionDag) -> set[tuple[frozenset[object], frozenset[frozenset[object]]]]:
    """Which ids share a node, and which nodes it covers directly."""
    return {(frozenset(node.ids), frozenset(map(frozenset, _below(node)))) for node in dag.nodes()}


def _below(node: object) -> Iterator[list[object]]:
    return (list(lower.ids) for lower in node.below)  # type: ignore[attr-defined]


def test_a_dag_starts_without_kernels_and_moves_with_the_same_edges(
    load: Callable[[], None],
) -> None:
    early, other = ConjunctionDag(), ConjunctionDag(may_defer=False)
    assert isinstance(early._boxes, PlainBoxes)
    conjunctions = [each for text in filters(200) for each in Filter.parse(text).conjunctions]
    half = len(conjunctions) // 2
    for number, conjunction in enumerate(conjunctions[:half]):
        early.add(number, conjunction)
        other.add(number, conjunction)
    assert shape(early) == shape(other)
    nodes = {id: early.node(id) for id in range(half)}
    load()
    for number in range(0, half, 4):
        early.remove(number)
        other.remove(number)
    assert isinstance(early._boxes, CompiledBoxes)
    for number, conjunction in enumerate(conjunctions[half:], half):
        early.add(number, conjunction)
        other.add(number, conjunction)
    assert shape(early) == shape(other)
    assert all(early.node(id) is node for id, node in nodes.items() if id % 4)
    for number in [id for id in range(len(conjunctions)) if id in early]:
        early.remove(number)
    assert not list(early.nodes())


def test_a_dag_that_the_kernels_have_no_room_for_stays_as_it_is(load: Callable[[], None]) -> None:
    dag = ConjunctionDag(Limits(index_attributes_max=2))
    for number, text in enumerate(("a > 1", "b > 1", "c > 1", "c > 2")):
        dag.add(number, Filter.parse(text).conjunctions[0])
    load()
    dag.add(9, Filter.parse("b > 3").conjunctions[0])
    assert [list(node.ids) for node in dag.coverers(9)] == [[1]]
    assert [list(node.ids) for node in dag.coverers(3)] == [[2]]
    dag.remove(1)
    assert dag.coverers(9) == []
