"""What no client should say, said to real brokers: they survive, and serve the others as before."""

import pytest

from anabranch.core import contract
from anabranch.core.edge.delivery import LiveDelivery
from anabranch.core.edge.subscribe import NUMBER_LEAP_MAX
from anabranch.core.edge.subscriptions import EdgeStream
from anabranch.model.client_frames import (
    Ack,
    AnyClientFrame,
    Commit,
    Committed,
    Confirmed,
    Deliver,
    Discard,
    Matches,
    Publish,
    PublishRefused,
    Refused,
    Stage,
    Staged,
    StartsAt,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from anabranch.model.errors import RemoteError
from anabranch.model.event import INT_MAX
from anabranch.model.frames import Carry, Claim, Find, Found
from anabranch.model.limits import Limits
from anabranch.model.version import Version
from anabranch.wire.codec import decode_client, encode_client
from tests.bench_parts import BILLION, LAST, Bench, body, carry


@pytest.mark.parametrize(
    "frame",
    [
        Publish([b"garbage"]),
        Publish([body("bad", 1), b""]),
        Publish([body("bad", 0)]),
        Confirmed("p", 1, 1),
        Staged(1),
        Committed(1, "s", 0, 0, 0, False),
        Deliver("b", [Matches("s", 1, [])]),
        Subscribed(1, "s", 1, {}),
        Ack({"b": {"s": LAST}}),
        Ack({"nobody": {"s": 1}}),
    ],
    ids=lambda f: type(f).__name__,
)
def test_client_frame_that_cannot_be_costs_the_session_and_nothing_is_taken(
    frame: AnyClientFrame,
) -> None:
    bench = Bench()
    session = bench.client("b", "bad")
    bench.says("b", session, Subscribe(1, "s", "price > 0", "durable", number=1))
    bench.run(1.0)
    ticks = len(bench.logs["b"])
    bench.says("b", session, frame)
    assert ("b", session) in bench.cut_clients
    assert len(bench.logs["b"]) == ticks
    assert bench.served()


@pytest.mark.parametrize(
    "frame",
    [
        Publish([body("p", 1)]),
        Subscribe(1, "s", "TRUE", "reliable"),
        Ack({}),
        Stage(1, "t", 0, [], True),
        Commit(1, "sink", "q", 0, ()),
        Discard(("t",)),
    ],
)
def test_session_that_does_not_say_who_it_is_is_cut(frame: AnyClientFrame) -> None:
    bench = Bench()
    bench.give("b", contract.ClientConnected(77))
    bench.says("b", 77, frame)
    assert ("b", 77) in bench.cut_clients
    assert bench.served()


def test_events_of_a_session_that_is_over_are_void() -> None:
    bench = Bench()
    ticks = len(bench.logs["b"])
    bench.says("b", 78, Publish([body("p", 1)]))
    assert len(bench.logs["b"]) == ticks


@pytest.mark.parametrize(
    "frame",
    [
        Subscribe(1, "s", "price >", "reliable"),
        Subscribe(1, "s", "", "reliable"),
        Subscribe(1, "", "TRUE", "reliable"),
        Subscribe(1, "a\0b", "TRUE", "durable"),
        Subscribe(1, "s", "TRUE", "best-effort", "beginning"),
        Subscribe(1, "s", "TRUE", "reliable", "resume"),
        Subscribe(1, "s", "TRUE", "reliable", "tick", ticks={"nobody": 1}),
        Subscribe(1, "s", "TRUE", "reliable", "tick", ticks={"b": LAST}),
        Subscribe(1, "s", "TRUE", "reliable", "tick", ticks={"b": BILLION}),
        Unsubscribe(1, "s"),
    ],
)
def test_request_that_cannot_be_granted_is_refused_and_the_session_goes_on(
    frame: AnyClientFrame,
) -> None:
    bench = Bench()
    session = bench.client("b", "asks")
    bench.says("b", session, frame)
    bench.run(1.0)
    assert [refused.request for refused in bench.heard("b", session, Refused)] == [1]
    bench.says("b", session, Subscribe(2, "good", "TRUE", "reliable"))
    assert [each.request for each in bench.heard("b", session, Subscribed)] == [2]
    assert bench.served()


def test_window_of_nothing_is_no_frame() -> None:
    data = encode_client(Subscribe(1, "s", "TRUE", "reliable", window=0))
    with pytest.raises(RemoteError):
        decode_client(data)


def test_gap_in_a_publishers_sequences_is_refused() -> None:
    bench = Bench()
    session = bench.client("b", "feed")
    bench.says("b", session, Publish([body("feed", INT_MAX)]))
    bench.says("b", session, Publish([body("feed", 1)]))
    bench.run(1.0)
    assert [each.sequence for each in bench.heard("b", session, PublishRefused)] == [INT_MAX]
    assert [each.sequence for each in bench.heard("b", session, Confirmed)] == [1]


def test_names_used_again_stand_for_one_subscription() -> None:
    bench = Bench()
    one, two = bench.client("a", "one"), bench.client("a", "two")
    bench.says("a", one, Subscribe(1, "s", "price > 0", "durable", number=1))
    bench.run(1.0)
    bench.says("a", one, Subscribe(2, "s", "price > 0", "durable", number=1))
    bench.says("a", one, Subscribe(3, "s", "price > 5", "durable", number=2))
    bench.says("a", two, Subscribe(4, "s", "price > 0", "durable", number=9))
    assert [each.request for each in bench.heard("a", one, Subscribed)] == [1, 2]
    assert [each.request for each in bench.heard("a", one, Refused)] == [3]
    assert [each.request for each in bench.heard("a", two, Refused)] == [4]
    assert bench.served()


def test_client_that_guesses_an_id_is_refused_and_the_honest_event_is_published() -> None:
    """Another client sends the event that a publisher is about to send, and a last one."""
    bench = Bench()
    feed, forger = bench.client("b", "feed"), bench.client("b", "forger")
    guessed = [Publish([body("feed", 1)]), Publish([body("feed", 1, incarnation=INT_MAX)])]
    for frame in guessed:
        bench.says("b", forger, frame)
    bench.run(1.0)
    refusals = bench.heard("b", forger, PublishRefused)
    assert [each.is_final for each in refusals] == [True, True]
    assert all("'forger'" in each.reason for each in refusals)
    bench.says("b", feed, Publish([body("feed", 1, 77)]))
    bench.run(1.0)
    assert [each.sequence for each in bench.heard("b", feed, Confirmed)] == [1]
    # Nor is the forger told what was published: a repetition is not confirmed to it.
    bench.says("b", forger, guessed[0])
    bench.run(1.0)
    assert len(bench.heard("b", forger, PublishRefused)) == 3
    assert bench.heard("b", forger, Confirmed) == []
    assert bench.served()


@pytest.mark.parametrize("name", ["sink/feed", "sink/"])
def test_no_client_has_the_name_of_a_publisher_that_is_a_sink(name: str) -> None:
    bench = Bench()
    session = bench.client("b", name)
    assert ("b", session) in bench.cut_clients
    assert bench.served()


@pytest.mark.parametrize("number", [NUMBER_LEAP_MAX + 1, INT_MAX])
def test_ownership_number_that_leaps_is_refused_and_the_name_can_be_had(number: int) -> None:
    bench = Bench()
    session = bench.client("a", "greedy")
    bench.says("a", session, Subscribe(1, "s", "price > 0", "durable", number=number))
    bench.run(1.0)
    (refused,) = bench.heard("a", session, Refused)
    assert str(NUMBER_LEAP_MAX) in refused.reason
    bench.says("a", session, Subscribe(2, "s", "price > 0", "durable", number=NUMBER_LEAP_MAX))
    bench.run(1.0)
    assert [each.number for each in bench.heard("a", session, Subscribed)] == [NUMBER_LEAP_MAX]
    bench.give("a", contract.ClientDisconnected(session))
    # From there on it may grow by as much again.
    again = bench.client("a", "greedy")
    one = Subscribe(3, "s", "price > 0", "durable", "resume", number=2 * NUMBER_LEAP_MAX)
    bench.says("a", again, one)
    bench.run(1.0)
    assert [each.number for each in bench.heard("a", again, Subscribed)] == [2 * NUMBER_LEAP_MAX]
    assert bench.served()


def test_ownership_number_that_cannot_grow_does_not_cost_the_broker_its_links() -> None:
    bench = Bench()
    for request in (2, 3):
        bench.liar("c")
        session = bench.client("a", "greedy")
        bench.says("a", session, Subscribe(request, "s", "", "durable", "resume"))
        finds = [f.content for _, f in bench.told["c"] if isinstance(f, Carry)]
        for find in finds:
            if isinstance(find, Find):
                found = Found(find.request, "s", INT_MAX, "price > 0", {})
                bench.lie("c", carry(found, target="a"))
        bench.run(3.0)
    assert bench.honest_cuts() == []
    assert bench.heard("a", session, Refused)
    assert bench.served()


def test_claim_with_a_huge_number_ends_only_what_it_names() -> None:
    bench = Bench()
    bench.liar("c")
    session = bench.client("a", "owner")
    for name in ("mine", "other"):
        bench.says("a", session, Subscribe(1, name, "price > 0", "durable", number=1))
    bench.run(1.0)
    bench.lie("c", carry(Claim("mine", INT_MAX), target="a"))
    bench.run(1.0)
    edge = bench.brokers["a"].edge
    assert edge is not None
    assert edge.durable() == ["other"]
    bench.says("a", session, Subscribe(2, "mine", "price > 0", "durable", number=2))
    bench.run(1.0)
    assert bench.served()


def test_many_subscriptions_of_one_session_are_served_and_bounded() -> None:
    bench = Bench(limits=Limits(client_subscriptions_max=1_000))
    session = bench.client("a", "hoarder")
    for n in range(1_200):
        bench.says("a", session, Subscribe(n, f"s{n}", f"price > {n % 50}", "reliable"))
    assert len(bench.heard("a", session, Subscribed)) == 1_000
    assert len(bench.heard("a", session, Refused)) == 200
    bench.run(1.0)
    assert bench.heard("a", session, StartsAt)
    assert bench.served()
    bench.give("a", contract.ClientDisconnected(session))
    bench.run(1.0)
    edge = bench.brokers["a"].edge
    assert edge is not None
    assert edge.filters() == {}


def test_ten_thousand_subscriptions_at_once_cost_each_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[int] = []
    start = LiveDelivery._start

    def counted(
        self: LiveDelivery, now: float, stream: EdgeStream, tick: int, version: Version
    ) -> None:
        if stream.earliest_version is not None and stream.earliest_version <= version:
            looked_at.append(min(len(stream.waiting), self._starts_max))
        start(self, now, stream, tick, version)

    monkeypatch.setattr(LiveDelivery, "_start", counted)
    bench = Bench()
    session = bench.client("a", "hoarder")
    for n in range(10_000):
        bench.says("a", session, Subscribe(n, f"s{n}", f"price > {n % 50}", "reliable"))
    bench.run(1.0)
    assert len(bench.heard("a", session, Subscribed)) == 10_000
    assert len(bench.heard("a", session, StartsAt)) >= 20_000
    assert sum(looked_at) < 100_000
    assert bench.served()


def test_more_interest_than_a_frame_holds_lets_everything_pass_and_breaks_no_link() -> None:
    bench = Bench(limits=Limits(frame_bytes_max=4_096))
    session = bench.client("a", "hoarder")
    for n in range(300):
        bench.says("a", session, Subscribe(n, f"s{n}", f"price = {1_000 + n}", "reliable"))
    bench.run(3.0)
    publisher = bench.client("b", "feed")
    bench.says("b", publisher, Publish([body("feed", 1, 1_299)]))
    bench.run(1.0)
    delivered = [each for each in bench.matches("a", session) if each.data]
    assert [each.subscription for each in delivered] == ["s299"]
    assert bench.served()
