"""What sessions advertise, what an origin offers, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.core.options import Options
from anabranch.core.origin import publisher_advertisements
from anabranch.core.origin.publisher_advertisements import (
    PublisherAdvertisements,
    advertisement_reading,
)
from anabranch.core.part_requests import ChangeAdvertisements, PartRequest
from anabranch.core.routing.contract import WorkDone, finished
from anabranch.model.client_frames import ADVERTISED_CHARACTERS_MAX, ADVERTISEMENTS_MAX
from anabranch.model.encoding import decode_envelope, encode_event
from anabranch.model.errors import RemoteError
from anabranch.model.event import Event, EventId, Value
from anabranch.model.filter import Filter
from anabranch.model.limits import DEFAULT_LIMITS, Limits
from tests.matching_parts import predicates

#: As somebody may write them: without spaces, and with more of them than it takes.
_blanks = st.sampled_from(["", " ", "   "])
_tight = st.builds("{}{}>={}{}".format, st.sampled_from("pq"), _blanks, _blanks, st.integers(0, 99))
texts_of_filters = st.lists(_tight | predicates, min_size=1, max_size=6).map(" AND ".join)


def made(linger_s: float = 5.0) -> PublisherAdvertisements:
    return PublisherAdvertisements(Options(advertised_for_s=linger_s), DEFAULT_LIMITS)


def advertised(
    offers: PublisherAdvertisements, now: float, session: int, texts: list[str]
) -> list[PartRequest]:
    asks = offers.replace(now, session, texts)
    return [each for each in asks if not isinstance(each, WorkDone)]


def refusal(offers: PublisherAdvertisements, session: int, **attributes: Value) -> str:
    event = Event(attributes, id=EventId("p", 1, 1))
    found = finished(offers.refusals(session, [decode_envelope(encode_event(event))]))
    if not found:
        return ""
    assert found[0].is_final
    return found[0].reason


def test_a_session_that_publishes_without_advertising_offers_everything_once() -> None:
    offers = made()
    assert offers.published(1) == [ChangeAdvertisements(("TRUE",), ())]
    assert offers.published(1) == []
    assert offers.published(2) == []
    assert refusal(offers, 1, price=1) == ""


def test_an_event_outside_of_what_its_session_advertised_is_refused() -> None:
    offers = made()
    assert advertised(offers, 0.0, 1, ["price > 10"]) == [ChangeAdvertisements(("price > 10",), ())]
    assert offers.published(1) == []
    assert refusal(offers, 1, price=11) == ""
    assert "price > 10" in refusal(offers, 1, price=9)
    assert refusal(offers, 2, price=9) == ""


def test_a_session_that_advertises_nothing_any_more_offers_everything_when_it_publishes() -> None:
    offers = made(5.0)
    advertised(offers, 0.0, 1, ["price > 10"])
    assert advertised(offers, 1.0, 1, []) == []
    assert refusal(offers, 1, price=9) == ""
    assert offers.published(1) == [ChangeAdvertisements(("TRUE",), ())]
    assert offers.time_passed(6.0) == [ChangeAdvertisements((), ("price > 10",))]


def test_a_refusal_names_the_first_few_of_many_filters() -> None:
    offers = made()
    advertised(offers, 0.0, 1, [f"price = {n}" for n in range(1_000)])
    assert "price = 0 or price = 1 or price = 2, or one of 997 more;" in refusal(offers, 1, size=1)
    advertised(offers, 0.0, 1, [f"name = '{'x' * 10_000}'"])
    assert len(refusal(offers, 1, price=-1)) < 400


def test_of_a_frame_those_events_are_refused_that_were_not_advertised() -> None:
    offers = made()
    advertised(offers, 0.0, 1, [f"symbol = 's{n}'" for n in range(0, 200, 2)])
    events = [Event({"symbol": f"s{n}"}, id=EventId("p", 1, n + 1)) for n in range(250)]
    envelopes = [decode_envelope(encode_event(event)) for event in events]
    expected = {n for n in range(250) if n % 2 or n >= 200}
    assert set(finished(offers.refusals(1, envelopes))) == expected
    assert finished(offers.refusals(2, envelopes)) == {}
    assert finished(offers.refusals(1, [])) == {}


def test_only_so_many_sessions_have_an_index_and_those_that_lost_theirs_answer_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher_advertisements, "_INDEXES_MAX", 2)
    offers = made()
    events = [Event({"price": n}, id=EventId("p", 1, n + 1)) for n in range(60)]
    envelopes = [decode_envelope(encode_event(event)) for event in events]
    for session in (1, 2, 3):
        advertised(offers, 0.0, session, [f"price = {n}" for n in range(session, session + 40)])
    for _ in range(2):
        for session in (1, 2, 3):
            inside = range(session, session + 40)
            assert set(finished(offers.refusals(session, envelopes))) == set(range(60)) - set(
                inside
            )
    indexed = [each for each, held in offers._advertised.items() if held.is_indexed]
    assert indexed == [2, 3]
    offers.session_closed(1.0, 2)
    assert finished(offers.refusals(1, envelopes))
    assert [each for each, held in offers._advertised.items() if held.is_indexed] == [1, 3]


def test_what_nobody_advertises_any_more_goes_after_a_while() -> None:
    offers = made(5.0)
    advertised(offers, 0.0, 1, ["price > 10"])
    offers.session_closed(1.0, 1)
    assert offers.next_deadline() == 6.0
    assert offers.time_passed(5.9) == []
    assert offers.time_passed(6.0) == [ChangeAdvertisements((), ("price > 10",))]
    assert offers.next_deadline() is None


def test_a_publisher_that_comes_back_in_time_changes_nothing() -> None:
    offers = made(5.0)
    advertised(offers, 0.0, 1, ["price > 10"])
    offers.session_closed(1.0, 1)
    assert advertised(offers, 2.0, 2, ["price > 10"]) == []
    assert offers.time_passed(100.0) == []


def test_what_was_let_go_last_is_withdrawn_last_even_if_it_was_let_go_before() -> None:
    offers = made(5.0)
    advertised(offers, 0.0, 1, ["price > 10"])
    advertised(offers, 0.0, 2, ["size > 1"])
    offers.session_closed(1.0, 1)
    offers.session_closed(2.0, 2)
    advertised(offers, 3.0, 3, ["price > 10"])
    offers.session_closed(4.0, 3)
    assert offers.next_deadline() == 7.0
    assert offers.time_passed(8.9) == [ChangeAdvertisements((), ("size > 1",))]
    assert offers.next_deadline() == 9.0
    assert offers.time_passed(9.0) == [ChangeAdvertisements((), ("price > 10",))]


def test_what_a_session_goes_on_advertising_is_never_withdrawn() -> None:
    offers = made(5.0)
    advertised(offers, 0.0, 1, ["price > 10", "size > 1"])
    assert advertised(offers, 1.0, 1, ["price > 10"]) == []
    assert offers.time_passed(100.0) == [ChangeAdvertisements((), ("size > 1",))]
    assert offers.next_deadline() is None


def test_the_same_filter_of_two_sessions_is_one_offer() -> None:
    offers = made(0.0)
    advertised(offers, 0.0, 1, ["price > 10"])
    assert advertised(offers, 0.0, 2, ["price > 10"]) == []
    offers.session_closed(1.0, 1)
    assert offers.time_passed(2.0) == []
    offers.session_closed(2.0, 2)
    assert offers.time_passed(2.0) == [ChangeAdvertisements((), ("price > 10",))]


def test_batches_offer_everything_for_a_while() -> None:
    offers = made(5.0)
    assert offers.batch_written(1.0) == [ChangeAdvertisements(("TRUE",), ())]
    assert offers.batch_written(3.0) == []
    assert offers.time_passed(7.9) == []
    assert offers.time_passed(8.0) == [ChangeAdvertisements((), ("TRUE",))]


def test_an_advertisement_that_nothing_matches_allows_nothing() -> None:
    offers = made()
    assert advertised(offers, 0.0, 1, ["price > 1 AND price < 0"]) == []
    assert "nothing that can be" in refusal(offers, 1, price=1)


@pytest.mark.parametrize("texts", [["price >"], ["TRUE"] * (ADVERTISEMENTS_MAX + 1)])
def test_what_is_no_filter_or_too_much_breaks_the_protocol(texts: list[str]) -> None:
    with pytest.raises(RemoteError):
        advertised(made(), 0.0, 1, texts)


def test_advertisements_of_too_many_characters_are_refused_before_they_are_read() -> None:
    offers = made()
    text = "x" * (ADVERTISED_CHARACTERS_MAX // 2)
    with pytest.raises(RemoteError, match="is not a filter"):
        advertised(offers, 0.0, 1, [f"{text} = "[3:], text])
    with pytest.raises(RemoteError, match=r"have at most 262144 in total"):
        advertised(offers, 0.0, 1, [text, f"{text}y"])


def test_long_advertisements_are_read_in_slices_and_change_nothing_before_the_end() -> None:
    offers = made()
    texts = [f"price = {n} AND size > {n}" for n in range(500)]
    work = iter(offers.replace(0.0, 1, texts))
    spent = [next(work) for _ in texts]
    assert all(isinstance(each, WorkDone) for each in spent)
    assert offers.published(1), "it has advertised nothing yet"
    assert list(work) == [ChangeAdvertisements(tuple(texts), ())]


def test_what_was_read_ahead_is_found_and_means_the_same() -> None:
    texts = [f"price={n}" for n in range(5)] + ["price <"]
    for text in texts:
        reading = advertisement_reading(text, DEFAULT_LIMITS)
        assert not reading.is_made
        reading.read()
        reading.keep()
        assert reading.is_made
    offers = made()
    assert advertised(offers, 0.0, 1, texts[:5]) == [
        ChangeAdvertisements(tuple(f"price = {n}" for n in range(5)), ())
    ]
    with pytest.raises(RemoteError, match="is not a filter"):
        advertised(offers, 0.0, 1, texts)


def test_events_are_looked_at_in_slices_where_there_is_much_to_ask() -> None:
    offers = made()
    advertised(offers, 0.0, 1, [" OR ".join(f"a{n} LIKE '%{n}_'" for n in range(500))])
    advertised(offers, 0.0, 2, ["price > 10"])
    assert offers.is_long(1, 50)
    assert not offers.is_long(2, 256)
    events = [Event({"a7": f"{n % 9}x"}, id=EventId("p", 1, n + 1)) for n in range(50)]
    envelopes = [decode_envelope(encode_event(event)) for event in events]
    looking = offers.refusals(1, envelopes)
    assert isinstance(next(looking), WorkDone)
    assert set(finished(looking)) == {n for n in range(50) if n % 9 != 7}


def test_a_frame_with_something_that_is_no_filter_changes_nothing() -> None:
    offers = made(5.0)
    advertised(offers, 0.0, 1, ["price > 10"])
    with pytest.raises(RemoteError):
        advertised(offers, 1.0, 1, ["size > 1", "price >"])
    assert "price > 10" in refusal(offers, 1, price=9)
    assert offers.next_deadline() is None
    assert advertised(offers, 2.0, 2, ["size > 1"]) == [ChangeAdvertisements(("size > 1",), ())]
    offers.session_closed(3.0, 1)
    assert offers.time_passed(8.0) == [ChangeAdvertisements((), ("price > 10",))]


def test_a_filter_whose_normal_text_is_too_long_is_offered_as_everything() -> None:
    offers = made(5.0)
    # Shorter than the limit as it is written, and longer with spaces.
    text = " AND ".join(["price=1e9"] * 12_000)
    assert len(text) < ADVERTISED_CHARACTERS_MAX - 100
    assert len(text) <= DEFAULT_LIMITS.filter_bytes_max < len(str(Filter.parse(text)))
    assert advertised(offers, 0.0, 1, [text, "size > 1"]) == [
        ChangeAdvertisements(("TRUE", "size > 1"), ())
    ]
    assert refusal(offers, 1, price=1e9) == ""
    assert refusal(offers, 1, price=2)
    offers.session_closed(1.0, 1)
    assert offers.time_passed(6.0) == [ChangeAdvertisements((), ("TRUE", "size > 1"))]


@given(st.lists(texts_of_filters, max_size=4), st.integers(1, 80))
def test_whatever_is_offered_can_be_read_under_the_same_limits(
    texts: list[str], filter_bytes_max: int
) -> None:
    limits = Limits(filter_bytes_max=filter_bytes_max)
    offers = PublisherAdvertisements(Options(), limits)
    try:
        asks = advertised(offers, 0.0, 1, texts)
    except RemoteError:
        return
    for ask in asks:
        assert isinstance(ask, ChangeAdvertisements)
        for text in ask.added:
            assert Filter.parse(text, limits).conjunctions
