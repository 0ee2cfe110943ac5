"""Whatever strangers and clients send to real brokers: it costs them their connection, or gets them
an answer that says why not. An honest publisher and an honest subscriber go on unharmed, the link
between their brokers stays up, and nothing is lost.
"""

import asyncio
import re
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from anabranch.client.client import connect
from anabranch.client.errors import SubscriptionRefusedError
from anabranch.model.client_frames import Alive, AnyClientFrame, Connect, Cut, Refused, Subscribe
from anabranch.model.errors import RemoteError
from anabranch.model.frames import PROTOCOL_VERSION
from anabranch.node.settings import Address
from anabranch.wire.codec import encode_client
from anabranch.wire.framing import framed
from tests.broker_parts import BOUND_S, Brokers, Honest, failing
from tests.node_parts import Stranger, greeting
from tests.process_parts import BRISK, run, until_asked

pytestmark = pytest.mark.slow

CONNECTIONS_MAX = 40
PAIR = f"""
[network]
name = "pair"
[tree]
B1 = ["B2"]
[limits]
connections_max = {CONNECTIONS_MAX}
"""
PORTS = ("clients", "links", "observe")
FOUR_GIB = b"\xff\xff\xff\xff"
GARBAGE = {
    "a web browser": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "zeros": bytes(10_000),
    "a frame of 4 GiB": FOUR_GIB + bytes(10_000),
    "a frame that is no greeting": framed(b"\x93\x01\x02\x03") + b"\r\n\r\n",
    "a greeting for nobody": framed(b"\xc1" * 4_000) + b"\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(10_000),
}
#: Of each of these, a broker that took them at their word would take at least this much memory.
TOO_MUCH_BYTES = 256 * 2**20


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Two brokers that all tests here share: none of them may do any harm."""
    with Brokers(tmp_path_factory.mktemp("pair"), PAIR) as brokers:
        brokers.start("B1", "B2")
        yield brokers
        assert [brokers[name].end() for name in ("B1", "B2")] == [0, 0]


@asynccontextmanager
async def unharmed(brokers: Brokers, name: str) -> AsyncIterator[Honest]:
    """An honest pair of clients, before and after; and the link between their brokers."""
    honest = await Honest.at(brokers.address("B1"), brokers.address("B2"), name)
    before = (await brokers.status("B2")).links[0]
    yield honest
    await honest.goes_on(name)
    await honest.close()
    after = (await brokers.status("B2")).links[0]
    assert after.is_up
    assert after.times_up == before.times_up


async def met(place: Address, what: bytes) -> bytes:
    """What a broker answers before it hangs up."""
    stranger = await Stranger.at(place)
    stranger.send(what)
    answer = await stranger.end()
    await stranger.close()
    return answer


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_on_any_port_ends_its_connection_and_nothing_else(pair: Brokers, what: str) -> None:
    async def work() -> None:
        async with unharmed(pair, f"garbage-{what}"):
            places = [pair[name].places[port] for name in ("B1", "B2") for port in PORTS]
            answers = await asyncio.gather(*(met(place, GARBAGE[what]) for place in places))
            for port, answer in zip(PORTS * 2, answers, strict=True):
                if port == "observe" and answer:
                    assert answer.startswith(b"HTTP/1.1 4")

    run(work())


def test_slow_and_unfinished_requests_are_given_up(pair: Brokers) -> None:
    async def drip(place: Address, what: bytes) -> None:
        stranger = await Stranger.at(place)
        ended = asyncio.ensure_future(stranger.end())
        for byte in what:
            stranger.send(bytes([byte]))
            await asyncio.wait({ended}, timeout=0.3)
            if ended.done():
                break
        await ended
        await stranger.close()

    async def work() -> None:
        async with unharmed(pair, "slow"):
            slow = {
                "clients": greeting(network="pair"),
                "links": greeting("link", "B1", network="pair"),
                "observe": b"GET /health HTTP/1.1\r\n" + b"X-Filler: 1\r\n" * 10,
            }
            places = pair["B2"].places
            await asyncio.gather(
                *(drip(places[port], what) for port, what in slow.items()),
                *(drip(places[port], what[:1]) for port, what in slow.items()),
                *(drip(places[port], b"") for port in slow),
            )

    run(work())


def test_a_declared_4_gib_takes_neither_memory_nor_the_broker(pair: Brokers) -> None:
    async def work() -> None:
        async with unharmed(pair, "large"):
            before = (await pair.status("B1")).resident_bytes
            strangers = [await Stranger.at(pair["B1"].places["clients"]) for _ in range(8)]
            for number, stranger in enumerate(strangers):
                stranger.send(greeting(name=f"large-{number}", network="pair"))
                await stranger.greeting()
                stranger.send(FOUR_GIB + bytes(100_000))
            for stranger in strangers:
                await stranger.end()
                await stranger.close()
            assert (await pair.status("B1")).resident_bytes < before + TOO_MUCH_BYTES

    run(work())


def test_a_second_broker_of_an_earlier_life_is_told_so(pair: Brokers) -> None:
    async def work() -> None:
        async with unharmed(pair, "impostor"):
            stranger = await Stranger.at(pair["B2"].places["links"])
            stranger.send(greeting("link", "B1", network="pair", life=1))
            assert "two processes have this name" in await stranger.refusal()
            await stranger.close()

    run(work())


def test_more_connections_than_there_may_be_are_told_so(pair: Brokers) -> None:
    async def work() -> None:
        async with unharmed(pair, "many"):
            place = pair["B2"].places["clients"]
            there = [await Stranger.at(place) for _ in range(3 * CONNECTIONS_MAX)]
            answers = await asyncio.gather(*map(_come_in, there, range(len(there))))
            # The honest subscriber has one of the connections.
            assert answers.count("") == CONNECTIONS_MAX - 1
            reason = f"has reached {CONNECTIONS_MAX} connections (connections_max)"
            assert all(reason in answer for answer in answers if answer)
            await asyncio.gather(*(stranger.close() for stranger in there))
            await until_asked(_has_connections(pair, "B2", 2), "they are gone")

    run(work())


async def _come_in(stranger: Stranger, number: int) -> str:
    """Greet; why that was refused, if it was."""
    stranger.send(greeting(name=f"many-{number}", network="pair"))
    try:
        await stranger.greeting()
    except RemoteError as error:
        return str(error)
    return ""


async def _has_come(place: Address, number: int) -> Stranger:
    """Connect, greet and begin a session at once: who is slow to say who it is is cut."""
    stranger = await Stranger.at(place)
    assert await _come_in(stranger, number) == ""
    stranger.send(framed(encode_client(Connect(PROTOCOL_VERSION, f"many-{number}"))))
    return stranger


def _has_connections(brokers: Brokers, name: str, count: int) -> Callable[[], Awaitable[bool]]:
    async def has() -> bool:
        return (await brokers.status(name)).connections <= count

    return has


def test_ten_thousand_connections_are_served(tmp_path: Path) -> None:
    count = 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count + 1_000:
        pytest.skip(f"this user may open only {hard} files")

    async def work() -> None:
        file = (
            '[network]\nname = "pair"\n[tree]\nB1 = []\n[limits]\nhost_connections_max = 10_000\n'
        )
        with Brokers(tmp_path, file) as brokers:
            brokers.start("B1")
            place = brokers["B1"].places["clients"]
            there: list[Stranger] = []
            try:
                for first in range(0, count - 2, 200):
                    numbers = range(first, min(first + 200, count - 2))
                    there += await asyncio.gather(*(_has_come(place, each) for each in numbers))
                home = brokers.address("B1")
                honest = await Honest.at(home, home, "crowded")
                assert (await brokers.status("B1")).sessions == count
                await honest.goes_on("crowded")
                await honest.close()
            finally:
                await asyncio.gather(*(stranger.close() for stranger in there))
            assert brokers["B1"].end() == 0

    resource.setrlimit(resource.RLIMIT_NOFILE, (min(count + 1_000, hard), hard))
    try:
        run(work())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- what clients ask for -----------------------------------------------------------------------

FILTERS = {
    "nested too deep": ("(" * 5_000 + "a" + ")" * 5_000, "nested|depth"),
    "of too many parts": ("a OR " * 51_000 + "a", "nodes|parts"),
    "of too many conjunctions": (
        " AND ".join(f"(a{n} = 1 OR b{n} = 1)" for n in range(40)),
        "conjunctions",
    ),
    "no filter at all": ("price >>> 'x", "position"),
}


async def asked(brokers: Brokers, frame: AnyClientFrame) -> AnyClientFrame:
    """What a broker answers to a client that checks nothing itself."""
    stranger = await Stranger.at(brokers["B1"].places["clients"])
    hello = encode_client(Connect(PROTOCOL_VERSION, "careless"))
    stranger.send(greeting(name="careless", network="pair") + framed(hello))
    await stranger.greeting()
    stranger.send(framed(encode_client(frame)))
    answer = await stranger.client_frame()
    while isinstance(answer, Alive):
        # A filter that takes long to read; meanwhile the broker says that it is there.
        answer = await stranger.client_frame()
    await stranger.close()
    return answer


@pytest.mark.parametrize("what", FILTERS)
def test_a_filter_beyond_the_limits_is_refused_with_the_reason(pair: Brokers, what: str) -> None:
    text, reason = FILTERS[what]

    async def work() -> None:
        async with unharmed(pair, f"filter-{what}"):
            answer = await asked(pair, Subscribe(1, "s", text, "reliable"))
            assert isinstance(answer, Refused)
            assert re.search(reason, answer.reason)

    run(work())


def test_a_filter_that_is_too_long_for_a_frame_cuts_the_session(pair: Brokers) -> None:
    async def work() -> None:
        async with unharmed(pair, "long"):
            answer = await asked(pair, Subscribe(1, "s", "a" * 300_000, "reliable"))
            assert isinstance(answer, Cut)
            assert "invalid client frame" in answer.reason

    run(work())


def test_a_durable_subscription_that_nobody_knows_is_refused(pair: Brokers) -> None:
    async def work() -> None:
        async with unharmed(pair, "unknown"):
            resumed = Subscribe(1, "typo", "TRUE", "durable", start="resume")
            answer = await asked(pair, resumed)
            assert isinstance(answer, Refused)
            assert "typo" in answer.reason

    run(work())


def test_ticks_of_a_stream_that_does_not_exist_are_refused(pair: Brokers) -> None:
    async def work() -> None:
        async with unharmed(pair, "elsewhere"):
            client = await connect(pair.address("B1"), name="elsewhere", options=BRISK)
            with pytest.raises(SubscriptionRefusedError, match="B9"):
                await client.subscribe("TRUE", since={"B9": 3})
            await client.close()

    run(work())


LOSSY = """
[network]
name = "lossy"
[tree]
B1 = []
[options]
retention = "lossy"
log_ticks_max = 50
recent_ticks_max = 10
keep_s = 600
"""


def test_a_start_before_what_is_kept_is_refused_with_what_there_is(tmp_path: Path) -> None:
    async def work() -> None:
        with Brokers(tmp_path, LOSSY) as brokers:
            brokers.start("B1")
            home = brokers.address("B1")
            client = await connect(home, name="late", options=BRISK)
            await client.publish_many({"n": number} for number in range(200))
            with pytest.raises(SubscriptionRefusedError, match="its oldest tick is 1"):
                await client.subscribe("n >= 0", since={"B1": 1})
            said = failing("sub", home, "n >= 0", "--since", "B1=1")
            assert "'B1' no longer keeps the requested ticks; its oldest tick is 1" in said
            found = await client.subscribe("n >= 0", since="beginning")
            async with asyncio.timeout(BOUND_S):
                numbers = [(await found.get()).event["n"] for _ in range(50)]
            assert numbers == list(range(150, 200))
            await client.close()

    run(work())
