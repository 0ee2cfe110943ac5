"""The blocking client, against a broker that runs in a thread of its own."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from anabranch import (
    BatchRefusedError,
    BlockingClient,
    ClosedError,
    ConnectError,
    FilterError,
    LocalError,
    NotAdvertisedError,
    PatternError,
    Subscription,
    connect_blocking,
)
from anabranch.client.options import ClientOptions
from tests.client_parts import network


@pytest.fixture
def address() -> Iterator[str]:
    """Where a broker listens while the test runs."""
    ready = threading.Event()
    place: list[str] = []
    stop: list[object] = []

    async def serve() -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with network("a") as (a,):
            place.append(a.address)
            stop.append(lambda: loop.call_soon_threadsafe(over.set))
            ready.set()
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(30)
    yield place[0]
    end = stop[0]
    assert callable(end)
    end()
    thread.join()


@pytest.fixture
def client(address: str) -> Iterator[BlockingClient]:
    with connect_blocking(address, name="c") as made:
        yield made


def test_a_script_publishes_and_reads(client: BlockingClient) -> None:
    subscription = client.subscribe("n > 1")
    subscription.wait_started("a", timeout=120)
    client.publish({"n": 1})
    ids = client.publish_many({"n": n} for n in (2, 3))
    promise = client.publish_soon({"n": 4})
    assert promise.result(10).sequence == 4
    assert [each.sequence for each in ids] == [2, 3]
    got = []
    for received in subscription:
        got.append(received["n"])
        if len(got) == 3:
            break
    assert got == [2, 3, 4]
    subscription.unsubscribe(10)
    assert list(subscription) == []


def test_a_subscription_tells_what_an_asynchronous_one_tells(client: BlockingClient) -> None:
    alarms = client.subscribe("temperature>30")
    told = (alarms.filter, alarms.is_durable, alarms.withheld_ticks, alarms.order_not_kept)
    assert told == ("temperature > 30", False, 0, 0)
    client.publish_many({"temperature": n} for n in (31, 32))
    assert alarms.get(timeout=30)["temperature"] == 31
    assert 1 <= alarms.waiting_events <= 2
    public = {name for name in dir(Subscription) if not name.startswith("_")}
    # Batches are fetched by the iteration itself.
    assert public - set(dir(alarms)) == {"get_batch"}


def test_nothing_can_be_read_after_the_end(client: BlockingClient) -> None:
    ended = client.subscribe("n > 0")
    ended.unsubscribe()
    assert list(ended) == []
    with pytest.raises(LocalError, match="has ended; there is nothing to read"):
        ended.get(timeout=30)


def test_reading_with_a_timeout_takes_nothing_that_nobody_gets(client: BlockingClient) -> None:
    subscription = client.subscribe("TRUE")
    subscription.wait_started("a", timeout=120)
    for n in range(20):
        with pytest.raises(TimeoutError, match="an event for subscription 's1' did not come"):
            subscription.get(timeout=0.001)
        client.publish({"n": n})
        received = subscription.get(timeout=120)
        assert received["n"] == n


def test_every_wait_that_is_too_long_says_for_what(client: BlockingClient) -> None:
    subscription = client.subscribe("TRUE")
    with pytest.raises(TimeoutError, match=r"start of subscription 's1' did not come within 0\.01"):
        subscription.wait_started("nowhere", timeout=0.01)
    assert not subscription.was_resumed
    assert client.origin_of(client.publish({"n": 1})) == "a"


def test_mistakes_are_raised_in_the_calling_thread(client: BlockingClient, address: str) -> None:
    with pytest.raises(FilterError):
        client.subscribe("n >")
    with pytest.raises(ConnectError):
        connect_blocking("127.0.0.1:1", options=ClientOptions(connect_within_s=0.05))
    other = connect_blocking(address)
    other.close()
    other.close()
    with pytest.raises(ClosedError):
        other.publish({"n": 1})


def test_several_threads_share_a_client(client: BlockingClient) -> None:
    subscription = client.subscribe("TRUE")
    subscription.wait_started("a", timeout=120)

    def publish(who: int) -> None:
        for n in range(20):
            client.publish({"who": who, "n": n})

    threads = [threading.Thread(target=publish, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    got: dict[object, list[object]] = {}
    for _ in range(80):
        received = subscription.get(timeout=120)
        got.setdefault(received["who"], []).append(received["n"])
    for thread in threads:
        thread.join()
    assert got == {who: list(range(20)) for who in range(4)}


def test_a_durable_subscription_goes_on_after_the_batch_that_was_read(address: str) -> None:
    with connect_blocking(address, name="s") as one:
        subscription = one.subscribe("TRUE", durable="d", batch=1)
        subscription.wait_started("a", timeout=120)
        one.publish_many({"n": n} for n in range(3))
        assert [next(subscription)["n"] for _ in range(2)] == [0, 1]
        subscription.ack()
    with connect_blocking(address, name="s") as other:
        assert next(other.subscribe("TRUE", durable="d"))["n"] == 2


def test_a_request_is_answered_across_threads(client: BlockingClient, address: str) -> None:
    questions = client.subscribe("question > 0")
    questions.wait_started("a", timeout=120)

    def answer() -> None:
        client.reply(next(questions), {"answer": 2})

    thread = threading.Thread(target=answer)
    thread.start()
    with connect_blocking(address, name="asks") as asks:
        assert asks.request({"question": 1}, timeout=120)["answer"] == 2
    thread.join()


def test_batches_are_written_without_an_event_loop(client: BlockingClient) -> None:
    found = client.subscribe("n > 0")
    assert client.stage("t", ({"n": n} for n in (1, 2))) == 2
    client.stage("u", [{"n": 3}])
    client.discard(["u"])
    batch = client.commit(sink="s", query="q", batch=0, tokens=["t"])
    assert (batch.last - batch.first, batch.was_known) == (1, False)
    assert [next(found)["n"] for _ in range(2)] == [1, 2]
    with pytest.raises(BatchRefusedError):
        client.commit(sink="s", query="q", batch=1, tokens=["u"], timeout=5.0)


def test_what_is_not_advertised_is_refused_in_the_calling_thread(client: BlockingClient) -> None:
    subscription = client.subscribe("TRUE")
    subscription.wait_started("a", timeout=120)
    cheap = client.advertise("n < 10")
    client.publish({"n": 1})
    with pytest.raises(NotAdvertisedError, match="advertisements, n < 10"):
        client.publish({"n": 11})
    with pytest.raises(LocalError, match="no event can match"):
        client.advertise("n < 1 AND n > 2")
    dear = client.advertise("n > 10")
    cheap.withdraw()
    client.publish({"n": 11})
    with pytest.raises(NotAdvertisedError):
        client.publish({"n": 1})
    dear.withdraw()
    client.publish({"n": 5})
    got = [subscription.get(timeout=120) for _ in range(3)]
    assert [received["n"] for received in got] == [1, 11, 5]


def test_matches_of_patterns_are_read_with_for(client: BlockingClient) -> None:
    matches = client.subscribe_pattern("2 TIMES e:{n > 0} WITHIN 1 h", batch=2)
    client.define_pattern("ones", "e:{n = 1} WITHIN 1 s")
    ones = client.matches("ones", durable="ones")
    assert (ones.name, ones.pattern_id, ones.was_resumed) == ("ones", "ones", False)
    ones.wait_started("a", timeout=120)
    client.publish_many({"n": n} for n in (1, 2, 3))
    found = [[each["n"] for each in next(matches).events] for _ in range(3)]
    assert sorted(found) == [[1, 2], [1, 3], [2, 3]]
    with pytest.raises(TimeoutError, match=r"a match of pattern 'sub-\w+' did not come within"):
        matches.get(timeout=0.01)
    first = ones.get(timeout=120)
    assert first["e"]["n"] == 1
    ones.ack(first)
    client.drop_pattern("ones")
    matches.unsubscribe(timeout=120)
    assert list(matches) == []
    with pytest.raises(PatternError, match="WITHIN"):
        client.subscribe_pattern("e:{n = 1}")
