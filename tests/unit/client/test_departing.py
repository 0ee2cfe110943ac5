"""A broker leaves the network: its clients go elsewhere, with their events and subscriptions."""

import asyncio

from anabranch import ClientOptions, connect
from anabranch.core import contract
from anabranch.core.origin.log_tail import EventRecord, decode_record
from anabranch.model.encoding import decode_event
from tests.client_parts import Host, network, numbers, run, until

QUICK = ClientOptions(pause_last_s=0.05, resend_after_s=0.2, close_within_s=0.2)


def logged(host: Host) -> list[object]:
    """The attribute `n` of every event of a log."""
    records = [decode_record(data) for data in host.ever.values()]
    return [decode_event(each.body)["n"] for each in records if isinstance(each, EventRecord)]


def test_events_that_a_departing_broker_refuses_are_published_elsewhere_once() -> None:
    async def story() -> None:
        async with network("a", "b") as (a, b):
            addresses = (a.address, b.address)
            async with await connect(
                *addresses, address_order="given", name="p", options=QUICK
            ) as client:
                assert client.origin == "a"
                a.freeze(True)
                a.handle(contract.Depart())
                waiting = [asyncio.ensure_future(client.publish({"n": n})) for n in range(10)]
                await until(lambda: client.unconfirmed == 10)
                a.freeze(False)
                await asyncio.gather(*waiting)
                assert (logged(a), logged(b)) == ([], list(range(10)))
                assert client.origin == "b"

    run(story)


def test_events_that_a_departing_broker_has_are_confirmed_by_it() -> None:
    async def story() -> None:
        async with network("a", "b") as (a, b):
            addresses = (a.address, b.address)
            async with await connect(
                *addresses, address_order="given", name="p", options=QUICK
            ) as client:
                a.stall(True)
                waiting = [asyncio.ensure_future(client.publish({"n": n})) for n in range(5)]
                await until(lambda: len(logged(a)) == 5)
                a.handle(contract.Depart())
                waiting += [asyncio.ensure_future(client.publish({"n": n})) for n in range(5, 9)]
                a.stall(False)
                await asyncio.gather(*waiting)
                assert (logged(a), logged(b)) == (list(range(5)), list(range(5, 9)))

    run(story)


def test_a_durable_subscription_goes_on_at_another_broker() -> None:
    async def story() -> None:
        async with network("a", "b") as (a, b):
            addresses = (a.address, b.address)
            async with (
                await connect(
                    *addresses, address_order="given", name="s", options=QUICK
                ) as subscriber,
                await connect(b.address, name="p", options=QUICK) as publisher,
            ):
                orders = await subscriber.subscribe("n >= 0", durable="orders", new=True)
                await orders.wait_started("a", "b")
                await publisher.publish({"n": 1})
                a.handle(contract.Depart())
                await publisher.publish({"n": 2})
                assert await numbers(orders, 2) == [1, 2]
                await until(lambda: subscriber.broker == "b")
                assert a.broker is not None
                await until(lambda: a.broker is not None and a.broker.is_drained)

    run(story)
