import pytest

from anabranch.core.session.effects import (
    EventDelivered,
    SessionOptions,
    SubscriptionAccepted,
    SubscriptionCut,
    SubscriptionRefused,
    SubscriptionStarted,
    TicksWithheld,
)
from anabranch.core.session.session import ClientSession
from anabranch.core.session.subscribe import ACKED_MAX
from anabranch.model.client_frames import (
    REPLACED,
    UNKNOWN,
    Ack,
    Alive,
    Connect,
    Cut,
    Deliver,
    Matches,
    Refused,
    StartsAt,
    Subscribe,
    Subscribed,
    Withheld,
)
from anabranch.model.errors import (
    DuplicateIdError,
    FilterError,
    LocalError,
    RemoteError,
    UnknownIdError,
)
from anabranch.model.frame_parts import Datum, Hole
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.sim.mutants.catalog import planted
from anabranch.wire.codec import encode_client
from tests.session_parts import (
    FILTER,
    deliver,
    frames,
    given,
    reconnect,
    subscriber,
    the_subscribe,
)

# -- subscribing


def test_a_connection_begins_with_a_greeting() -> None:
    assert frames(ClientSession("c").connected(0.0)) == [Connect(PROTOCOL_VERSION, "c")]


def test_a_subscription_is_asked_for_at_once_or_when_there_is_a_connection() -> None:
    session = ClientSession("c")
    assert session.subscribe(0.0, "s", FILTER) == []
    assert frames(session.connected(0.0))[1:] == [Subscribe(1, "s", FILTER, "reliable")]
    effects = session.subscribe(0.0, "t", FILTER, quality="best-effort", window=9)
    assert frames(effects) == [Subscribe(2, "t", FILTER, "best-effort", window=9)]


def test_a_start_is_asked_for_as_given() -> None:
    session = ClientSession("c")
    session.connected(0.0)
    after = session.subscribe(0.0, "s", FILTER, start="tick", start_ticks={"o": 4})
    assert (the_subscribe(after).start, the_subscribe(after).ticks) == ("tick", {"o": 4})
    since = session.subscribe(0.0, "t", FILTER, start="time", start_time_ns=99)
    assert (the_subscribe(since).start, the_subscribe(since).time_ns) == ("time", 99)


def test_a_subscription_stands_and_starts() -> None:
    session = ClientSession("c")
    session.connected(0.0)
    session.subscribe(0.0, "s", FILTER)
    assert session.frame(0.0, Subscribed(1, "s", 0, {})) == [SubscriptionAccepted("s", 0)]
    assert session.frame(0.0, Subscribed(1, "s", 0, {})) == []
    assert session.frame(0.0, StartsAt("s", "o", 5)) == [SubscriptionStarted("s", "o", 5)]
    assert session.frame(0.0, StartsAt("s", "o", 5)) == []


def test_a_name_is_used_once() -> None:
    with pytest.raises(DuplicateIdError):
        subscriber().subscribe(0.0, "s", FILTER)


def test_a_bad_filter_is_refused_before_it_travels() -> None:
    with pytest.raises(FilterError):
        ClientSession("c").subscribe(0.0, "s", "a >")


def test_a_reliable_subscription_resumes_after_ticks_and_a_best_effort_one_does_not() -> None:
    session = ClientSession("c")
    with pytest.raises(LocalError, match="after ticks"):
        session.subscribe(0.0, "s", FILTER, start="resume")
    with pytest.raises(LocalError, match="best-effort"):
        session.subscribe(0.0, "s", FILTER, start="resume", quality="best-effort")
    session.connected(0.0)
    asked = the_subscribe(session.subscribe(0.0, "s", FILTER, start="resume", start_ticks={"o": 4}))
    assert (asked.quality, asked.start, asked.ticks) == ("reliable", "resume", {"o": 4})
    told = session.frame(0.0, Subscribed(1, "s", 0, {"o": 4}))
    assert told == [SubscriptionAccepted("s", 0), SubscriptionStarted("s", "o", 5)]


def test_a_reliable_subscription_whose_return_is_refused_has_no_standing() -> None:
    session = ClientSession("c")
    session.connected(0.0)
    session.subscribe(0.0, "s", FILTER, start="resume", start_ticks={"o": 4})
    assert session.frame(0.0, Refused(1, "no")) == [SubscriptionRefused("s", "no")]


def test_codes_are_for_the_application_to_see() -> None:
    session = ClientSession("c")
    session.connected(0.0)
    session.subscribe(0.0, "s", FILTER)
    (refused,) = session.frame(0.0, Refused(1, "nobody has it", UNKNOWN))
    assert isinstance(refused, SubscriptionRefused)
    assert refused.code == UNKNOWN
    assert session.frame(0.0, Cut("", "anew", REPLACED)) == [
        SubscriptionCut("", "anew", None, REPLACED)
    ]


def test_the_broker_saying_that_it_is_there_is_no_news() -> None:
    session = subscriber()
    assert session.frame(0.0, Alive()) == []


def test_what_is_acknowledged_at_once_leaves_in_one_frame() -> None:
    session = crowd(3)
    for name in ("s0", "s1", "s2"):
        session.frame(1.0, Deliver("o", [Matches(name, 5, [])]))
        session.frame(1.0, Deliver("p", [Matches(name, 7, [])]))
    every = {"s0": {"o": 5}, "s1": None, "s2": {"o": 3, "p": 7}}
    told = {"o": {"s0": 5, "s1": 5, "s2": 3}, "p": {"s1": 7, "s2": 7}}
    assert frames(session.ack(2.0, every)) == [Ack(told)]
    assert frames(session.ack(2.0, every)) == []
    assert session.next_deadline() is None


def test_an_acknowledgement_of_very_many_takes_several_frames() -> None:
    names = [f"s{number}" for number in range(2 * ACKED_MAX + 1)]
    session = crowd(len(names))
    session.frame(1.0, Deliver("o", [Matches(name, 5, []) for name in names]))
    acks = frames(session.ack(2.0, dict.fromkeys(names)))
    assert [len(ack.ticks["o"]) for ack in acks if isinstance(ack, Ack)] == [
        ACKED_MAX,
        ACKED_MAX,
        1,
    ]


def test_one_frame_brings_events_for_several_subscriptions_each_its_own() -> None:
    session = crowd(2)
    data = [Datum(tick, 0, b"") for tick in (1, 2, 3)]
    matches = [Matches("s0", 3, data[:2]), Matches("gone", 3, data), Matches("s1", 3, data[2:])]
    effects = session.frame(1.0, Deliver("o", matches))
    found = [(e.subscription, e.tick) for e in effects if isinstance(e, EventDelivered)]
    assert found == [("s0", 1), ("s0", 2), ("s1", 3)]
    assert session.progress("s0") == session.progress("s1") == {"o": 3, "p": 0}


def test_what_was_dealt_with_before_the_broker_sent_it_again_is_acknowledged_when_it_has() -> None:
    session = subscriber(manual=True)
    session.frame(1.0, deliver(1, 2, 3))
    session.disconnected(1.0)
    session.ack(1.0, {"s": {"o": 3}})
    session.connected(2.0)
    session.frame(2.0, Subscribed(2, "s", 2, {"o": 1}))
    session.frame(2.0, deliver(2))
    deadline = session.next_deadline()
    assert deadline is not None
    assert frames(session.time_passed(deadline)) == [Ack({"o": {"s": 2}})]


def crowd(count: int) -> ClientSession:
    """A connected session with subscriptions s0, s1, … that have started on two streams."""
    session = ClientSession("c")
    session.connected(0.0)
    for number in range(count):
        name = f"s{number}"
        session.subscribe(0.0, name, FILTER, manual_ack=True)
        session.frame(0.0, Subscribed(number + 1, name, 0, {}))
        for stream in ("o", "p"):
            session.frame(0.0, StartsAt(name, stream, 1))
    return session


def test_of_many_subscriptions_each_acknowledges_in_its_time() -> None:
    session = ClientSession("c", options=SessionOptions(ack_after_s=1.0))
    session.connected(0.0)
    for number, name in enumerate("abc", 1):
        session.subscribe(0.0, name, FILTER)
        session.frame(0.0, Subscribed(number, name, 0, {}))
        session.frame(0.0, StartsAt(name, "o", 1))
    assert session.next_deadline() is None
    for now, name in enumerate("bca"):
        session.frame(float(now), Deliver("o", [Matches(name, 5, [])]))
    assert session.next_deadline() == 1.0
    assert frames(session.time_passed(2.5)) == [Ack({"o": {"b": 5, "c": 5}})]
    assert session.next_deadline() == 3.0
    session.frame(2.6, Cut("a", "over"))
    assert session.next_deadline() is None
    assert session.time_passed(9.0) == []


def test_a_refused_subscription_is_told_and_gone() -> None:
    session = ClientSession("c")
    session.connected(0.0)
    session.subscribe(0.0, "s", FILTER)
    assert session.frame(0.0, Refused(1, "too many")) == [SubscriptionRefused("s", "too many")]
    session.subscribe(0.0, "s", FILTER)


def test_a_refused_return_hands_the_standing_back() -> None:
    session = subscriber()
    session.frame(1.0, deliver(3))
    request = reconnect(session).request
    (told,) = session.frame(11.0, Refused(request, "not now"))
    assert isinstance(told, SubscriptionRefused)
    assert told.resume_point is not None
    assert told.resume_point.acked == {"o": 3}
    again = the_subscribe(session.resume(12.0, told.resume_point))
    assert (again.start, again.number, again.ticks) == ("resume", 3, {"o": 3})


# -- delivery


def test_matches_are_handed_over_in_order() -> None:
    effects = subscriber().frame(1.0, deliver(2, 3, through=5))
    assert effects == [
        EventDelivered("s", "o", 2, 20, b"2"),
        EventDelivered("s", "o", 3, 30, b"3"),
    ]


def test_a_repeated_tick_is_dropped() -> None:
    session = subscriber()
    assert given(session.frame(1.0, deliver(2, 3))) == [2, 3]
    assert given(session.frame(1.0, deliver(2, 3, 4))) == [4]
    assert given(session.frame(1.0, deliver(4))) == []


def test_silence_moves_the_position_without_data() -> None:
    session = subscriber()
    assert session.frame(1.0, deliver(through=9)) == []
    assert given(session.frame(1.0, deliver(9, 10))) == [10]


def test_streams_are_independent() -> None:
    session = subscriber()
    session.frame(1.0, StartsAt("s", "other", 4))
    assert given(session.frame(1.0, deliver(9))) == [9]
    assert given(session.frame(1.0, deliver(4, stream="other"))) == [4]


@pytest.mark.parametrize("frame", [deliver(3, 2, through=3), deliver(2, 2), deliver(4, through=3)])
def test_ticks_that_cannot_be_break_the_protocol(frame: Deliver) -> None:
    session = subscriber()
    with pytest.raises(RemoteError):
        session.frame(1.0, frame)
    assert given(session.frame(1.0, deliver(2, 3))) == [2, 3]


def test_ticks_that_cannot_be_cost_the_others_in_their_frame_nothing() -> None:
    session = crowd(2)
    good, bad = Matches("s0", 3, [Datum(3, 0, b"")]), Matches("s1", 3, [Datum(4, 0, b"")])
    with pytest.raises(RemoteError):
        session.frame(1.0, Deliver("o", [good, bad]))
    assert session.progress("s0") == {"o": 0, "p": 0}
    assert given(session.frame(1.0, Deliver("o", [good]))) == [3]


def test_withheld_ticks_are_told_once_and_only_where_nothing_was_given() -> None:
    session = subscriber()
    session.frame(1.0, deliver(3))
    holes = Withheld("s", "o", [Hole(2, 5, "retention"), Hole(7, 8, "transient")])
    assert session.frame(1.0, holes) == [
        TicksWithheld("s", "o", 4, 5, "retention"),
        TicksWithheld("s", "o", 7, 8, "transient"),
    ]
    assert session.frame(1.0, holes) == []
    assert given(session.frame(1.0, deliver(8, 9))) == [9]


def test_a_start_beyond_a_gap_breaks_the_protocol_but_for_best_effort() -> None:
    with pytest.raises(RemoteError, match="between"):
        subscriber("durable").frame(1.0, StartsAt("s", "o", 5))
    easy = subscriber("best-effort")
    assert easy.frame(1.0, StartsAt("s", "o", 5)) == [SubscriptionStarted("s", "o", 5)]
    assert given(easy.frame(1.0, deliver(5))) == [5]


def test_what_is_said_about_unknown_subscriptions_is_ignored() -> None:
    session = ClientSession("c")
    session.connected(0.0)
    assert session.frame(0.0, deliver(1)) == []
    assert session.frame(0.0, StartsAt("s", "o", 1)) == []
    assert session.frame(0.0, Cut("s", "gone")) == []


def test_an_answer_to_a_request_that_was_never_made_breaks_the_protocol() -> None:
    with pytest.raises(RemoteError, match="never made"):
        subscriber().frame(1.0, Subscribed(9, "s", 1, {}))


def test_a_frame_that_only_clients_say_breaks_the_protocol() -> None:
    with pytest.raises(RemoteError, match="Connect"):
        subscriber().frame(1.0, Connect(1, "c"))


@planted("client-no-dedup")
def test_the_mutant_hands_repeated_ticks_over() -> None:
    session = ClientSession("c")
    session.connected(0.0)
    session.subscribe(0.0, "s", FILTER)
    session.frame(0.0, Subscribed(1, "s", 0, {}))
    assert given(session.frame(1.0, deliver(2))) == [2]
    assert given(session.frame(1.0, deliver(2))) == [2]


# -- acknowledging


def test_acknowledgements_are_gathered_for_a_while() -> None:
    session = subscriber()
    assert frames(session.frame(1.0, deliver(2))) == []
    assert frames(session.frame(1.02, deliver(3, through=6))) == []
    assert session.next_deadline() == 1.05
    assert frames(session.time_passed(1.05)) == [Ack({"o": {"s": 6}})]
    assert session.next_deadline() is None
    assert session.time_passed(2.0) == []


def test_a_quarter_of_the_window_is_acknowledged_at_once() -> None:
    session = subscriber(window=8)
    assert frames(session.frame(1.0, deliver(2))) == []
    assert frames(session.frame(1.0, deliver(3))) == [Ack({"o": {"s": 3}})]


def test_with_manual_acknowledgement_the_application_says_what_is_dealt_with() -> None:
    session = subscriber(manual=True)
    session.frame(1.0, deliver(2, 3, 4))
    assert frames(session.time_passed(9.0)) == []
    assert frames(session.ack(9.0, {"s": {"o": 3}})) == [Ack({"o": {"s": 3}})]
    assert frames(session.ack(9.0, {"s": {"o": 2}})) == []
    assert frames(session.ack(9.0, {"s": None})) == [Ack({"o": {"s": 4}})]


def test_what_was_never_delivered_cannot_be_acknowledged() -> None:
    session = subscriber(manual=True)
    session.frame(1.0, deliver(2))
    with pytest.raises(LocalError, match="was not delivered"):
        session.ack(1.0, {"s": {"o": 3}})
    with pytest.raises(UnknownIdError):
        session.ack(1.0, {"t": None})


def test_the_broker_is_told_only_of_what_it_sent_on_this_connection() -> None:
    session = subscriber(manual=True)
    session.frame(1.0, deliver(2, 3, 4))
    asked = reconnect(session)
    session.frame(11.0, Subscribed(asked.request, "s", 2, {"o": 0}))
    assert frames(session.ack(11.0, {"s": None})) == []
    assert given(session.frame(11.0, deliver(2, 3))) == []
    assert frames(session.time_passed(12.0)) == [Ack({"o": {"s": 3}})]
    assert given(session.frame(13.0, deliver(4, 5))) == [5]
    assert frames(session.time_passed(14.0)) == [Ack({"o": {"s": 4}})]


def test_a_subscription_that_is_ending_acknowledges_nothing_more() -> None:
    session = subscriber()
    session.frame(1.0, deliver(2))
    session.unsubscribe(1.0, "s")
    assert session.time_passed(9.0) == []


def test_acknowledgements_fit_into_the_frames_of_the_broker() -> None:
    session = ClientSession("c", options=SessionOptions(frame_bytes_max=1_000))
    session.connected(0.0)
    names = [f"a rather long name of a subscription {number:03}" for number in range(60)]
    for request, name in enumerate(names, 1):
        session.subscribe(0.0, name, FILTER, quality="durable", manual_ack=True)
        session.frame(0.0, Subscribed(request, name, 1, {}))
        session.frame(0.0, StartsAt(name, "o", 1))
        session.frame(0.0, Deliver("o", [Matches(name, 1, [Datum(1, 10, b"1")])]))
    sent = frames(session.ack(0.0, dict.fromkeys(names)))
    acks = [frame for frame in sent if isinstance(frame, Ack)]
    assert [name for frame in acks for name in frame.ticks["o"]] == names
    assert max(len(encode_client(frame)) for frame in acks) <= 1_000
    assert len(acks) < 10


def test_an_acknowledgement_that_cannot_be_moves_nothing() -> None:
    session = subscriber(manual=True)
    session.frame(0.0, deliver(1, 2))
    session.subscribe(0.0, "other", FILTER, manual_ack=True)
    with pytest.raises(LocalError, match="tick 9 of 'o' was not delivered to 'other'"):
        session.ack(0.0, {"s": {"o": 2}, "other": {"o": 9}})
    assert frames(session.ack(0.0, {"s": {"o": 2}})) == [Ack({"o": {"s": 2}})]
