import asyncio
import ssl
import time
from functools import partial
from pathlib import Path

import pytest

from anabranch import ClientOptions, ConnectError, LocalError, connect
from anabranch.model.client_frames import Alive, Connect
from anabranch.wire.transport import Connection
from tests.client_parts import frames_of, network, numbers, publish, run, until

HURRY = ClientOptions(connect_within_s=1.0, dial_within_s=0.8, pause_last_s=0.02)
#: Notices soon that a broker says nothing.
QUICK = ClientOptions(
    heartbeat_s=0.05, dead_after_s=0.4, dial_within_s=0.5, resend_after_s=0.1, pause_last_s=0.02
)


def test_the_first_broker_that_answers_is_taken() -> None:
    async def story() -> None:
        async with network("a", "b") as (a, b):
            await a.kill()
            async with await connect(a.address, b.address, address_order="given") as client:
                assert (client.broker, client.is_connected) == ("b", True)

    run(story)


def test_a_network_that_starts_a_little_later_is_waited_for() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            await a.kill()
            connecting = asyncio.create_task(connect(a.address))
            await asyncio.sleep(0.05)
            await a.start()
            async with await connecting as client:
                assert client.broker == "a"

    run(story)


def test_nobody_there_names_every_address_and_what_is_wrong_with_it() -> None:
    async def story() -> None:
        async with network("a", "b") as (a, b):
            await a.kill()
            with pytest.raises(ConnectError) as caught:
                await connect(a.address, network="other", options=HURRY)
            assert f"{a.address}: connection refused" in str(caught.value)
            with pytest.raises(ConnectError, match="network 'other' does not match 'test-net'"):
                await connect(b.address, network="other", options=HURRY)

    run(story)


@pytest.mark.slow
def test_a_port_that_is_no_broker_is_told_as_such() -> None:
    async def visit(says: bytes, dial_within_s: float, problem: str) -> None:
        left = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(says)
            await reader.read()
            writer.close()
            await writer.wait_closed()
            left.set()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        options = ClientOptions(connect_within_s=1.0, dial_within_s=dial_within_s, pause_first_s=9)
        with pytest.raises(ConnectError, match=problem):
            await connect(f"127.0.0.1:{port}", options=options)
        await left.wait()
        server.close()

    async def story() -> None:
        await visit(b"", 0.1, "received no greeting; is that a broker's client port")
        await visit(b"", 5.0, "no answer yet; is that a broker's client port")
        await visit(
            b"\xff" * 99, 5.0, "received the length of a frame of .* bytes; 1 to 4096 are allowed$"
        )
        await visit(b"\x15\x03\x01\x00\x02\x02\x46", 5.0, "requires TLS; set whom to trust")
        await visit(b"HTTP/1.1 400 Bad Request\r\n\r\n", 5.0, "use the port for clients$")

    run(story)


@pytest.mark.parametrize(
    ("addresses", "hint"),
    [
        ((), "address of a broker"),
        (("localhost",), "has no port"),
        (("10.0.0.1:4100",), "give tls="),
    ],
)
def test_what_can_be_seen_to_be_wrong_needs_no_broker(
    addresses: tuple[str, ...], hint: str
) -> None:
    async def story() -> None:
        with pytest.raises(LocalError, match=hint):
            await connect(*addresses, address_order="given", options=HURRY)

    run(story)


def test_a_name_with_control_characters_is_refused() -> None:
    async def story() -> None:
        with pytest.raises(LocalError, match="control character"):
            await connect("127.0.0.1:1", name="a\nb", options=HURRY)

    run(story)


def test_a_broker_that_does_not_speak_tls_is_told_as_such() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            context = ssl.create_default_context()
            with pytest.raises(ConnectError, match=f"{a.address}: .*, with TLS"):
                await connect(a.address, tls=context, options=HURRY)

    run(story)


def test_a_missing_authority_is_named(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(LocalError, match=r"ca\.pem"):
            await connect("127.0.0.1:1", tls=tmp_path / "ca.pem", options=HURRY)

    run(story)


def test_two_addresses_of_one_broker_make_no_quarrel() -> None:
    async def story() -> None:
        async with network("a") as (a,):
            other = f"localhost:{a.port}"
            options = ClientOptions(pause_last_s=0.02, resend_after_s=0.2)
            async with await connect(a.address, other, name="c", options=options) as client:
                await client.publish({"n": 1})
                a.stall(True)
                promise = await client.publish_soon({"n": 2})
                a.cut_clients()
                await until(lambda: not client.is_connected)
                await until(lambda: client.is_connected)
                a.stall(False)
                await promise
                assert a.sessions == 1

    run(story)


def test_a_publisher_gives_up_a_frozen_broker_and_returns_to_it_for_its_answer() -> None:
    async def story() -> None:
        async with (
            network("a", "b") as (a, b),
            await connect(a.address, b.address, address_order="given", options=QUICK) as client,
        ):
            a.freeze(True)
            promise = await client.publish_soon({"n": 1})
            await until(lambda: client.broker == "b")
            assert client.origin == "a"
            a.freeze(False)
            await promise

    run(story)


def test_an_idle_subscriber_of_a_frozen_broker_goes_elsewhere_and_misses_nothing() -> None:
    async def story() -> None:
        async with network("a", "b") as (a, b):
            addresses = (a.address, b.address)
            async with (
                await connect(
                    *addresses, address_order="given", name="reader", options=QUICK
                ) as reader,
                await connect(b.address, name="writer") as writer,
            ):
                subscription = await reader.subscribe("n > 0", durable="s")
                await publish(writer, 1)
                assert await numbers(subscription, 1) == [1]
                a.freeze(True)
                await publish(writer, 2)
                assert await numbers(subscription, 1) == [2]
                assert reader.broker == "b"
                a.freeze(False)
                await publish(writer, 3)
                assert await numbers(subscription, 1) == [3]

    run(story)


@pytest.mark.slow
def test_an_idle_client_asks_its_broker_and_stays() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, options=QUICK) as client:
            enough = 3 * QUICK.dead_after_s / QUICK.heartbeat_s
            await until(lambda: len(frames_of(a, Alive)) > enough)
            assert client.is_connected
            assert len(frames_of(a, Connect)) == 1

    run(story)


def test_a_client_that_stood_still_itself_does_not_blame_its_broker() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, options=QUICK):
            await until(lambda: frames_of(a, Alive))
            # As if the process had been stopped.
            time.sleep(2 * QUICK.dead_after_s)  # noqa: ASYNC251
            seen = len(frames_of(a, Alive))
            await until(lambda: len(frames_of(a, Alive)) > seen + 2)
            assert len(frames_of(a, Connect)) == 1

    run(story)


@pytest.mark.slow
def test_a_broker_that_hangs_up_at_once_is_not_asked_all_the_time() -> None:
    calls = 0

    async def story() -> None:
        nonlocal calls
        async with network("a") as (a,):
            real = a.opened

            def opened(connection: Connection) -> None:
                nonlocal calls
                calls += 1
                real(connection)

            a.opened = opened  # type: ignore[method-assign]
            options = ClientOptions(pause_first_s=0.05, pause_last_s=5.0)
            async with await connect(a.address, options=options) as client:

                def is_back(count: int) -> bool:
                    return calls == count and client.is_connected

                for count in range(1, 9):
                    # It may be back before anybody sees that it was away.
                    await until(partial(is_back, count))
                    a.cut_clients()
                await until(lambda: calls == 9)
                # Eight connections are eight pauses, each twice as long at most as the last.
                assert client._parts.connections._failures >= 7

    run(story)
    assert calls <= 9
