"""Some filters at once: when there is an index, and what is said of them."""

from anabranch.matching.any_of import FEW, PAYS_OFF_AFTER, AnyOf
from anabranch.model.encoding import decode_envelope, encode_event
from anabranch.model.event import Event, EventId, Value
from anabranch.model.filter import Filter
from anabranch.model.limits import Limits


def prices(count: int) -> AnyOf:
    return AnyOf(Filter.parse(f"price = {n}") for n in range(count))


def test_few_filters_never_have_an_index() -> None:
    some = prices(FEW)
    for _ in range(10 * PAYS_OFF_AFTER):
        assert some.matches(Event({"price": 3}))
    assert not some.is_indexed


def test_many_filters_have_an_index_once_it_has_paid_off() -> None:
    many = prices(FEW + 1)
    indexed = []
    for _ in range(PAYS_OFF_AFTER + 1):
        assert many.matches(Event({"price": FEW}))
        indexed.append(many.is_indexed)
    assert indexed == [False] * PAYS_OFF_AFTER + [True]
    assert many.matches(Event({"price": FEW}))
    assert not many.matches(Event({"price": FEW + 1}))


def test_an_index_that_was_forgotten_is_made_again_when_it_has_paid_off_again() -> None:
    many = prices(FEW + 1)
    for _ in range(2):
        for _ in range(PAYS_OFF_AFTER + 1):
            assert not many.is_indexed
            assert not many.matches(Event({"price": -1}))
        assert many.is_indexed
        many.forget_index()


def test_the_text_of_many_filters_is_that_of_the_first_few() -> None:
    assert str(prices(2)) == "price = 0 or price = 1"
    assert str(prices(3)) == "price = 0 or price = 1 or price = 2"
    assert str(prices(5)) == "price = 0 or price = 1 or price = 2, or one of 2 more"
    assert str(AnyOf(())) == "nothing that can be"
    assert len(str(AnyOf([Filter.parse(f"name = '{'x' * 1_000}'")]))) == 200


def test_nothing_matches_none_of_no_filters() -> None:
    assert not AnyOf(()).matches(Event({"price": 1}))


def test_filters_that_an_index_has_no_room_for_are_asked_beside_it() -> None:
    texts = [f"a{n} = 1" for n in range(FEW + 4)]
    many = AnyOf(map(Filter.parse, texts), Limits(index_attributes_max=2))
    events = [Event({f"a{n}": 1}, id=EventId("p", 1, n + 1)) for n in range(FEW + 6)] * 4
    last = len(events) // 4
    outside = [n for n in range(len(events)) if n % last >= FEW + 4]
    assert many.outside([decode_envelope(encode_event(event)) for event in events]) == outside
    assert many.is_indexed
    assert [n for n, event in enumerate(events) if not many.matches(event)] == outside


def test_an_index_with_expensive_conditions_is_asked_in_portions() -> None:
    texts = [f"x{n} = 1 AND t LIKE '%{n}_{'a' * 20}%'" for n in range(400)]
    found = AnyOf(Filter.parse(text) for text in texts)
    attributes: dict[str, Value] = {f"x{n}": 1 for n in range(200)}
    stamped = Event(attributes | {"t": "b" * 60_000}).stamped(EventId("p", 1, 1), 1)
    envelope = decode_envelope(encode_event(stamped))
    for _ in range(PAYS_OFF_AFTER + 1):
        found.outside([envelope])
    assert found.is_indexed
    portions = list(found.looking([envelope]))
    assert len(portions) > 5
    assert max(portions) < 3_000
    assert found.outside([envelope]) == [0]
    matching = Event({"x7": 1, "t": "7b" + "a" * 20}).stamped(EventId("p", 1, 2), 1)
    assert found.outside([decode_envelope(encode_event(matching))]) == []
