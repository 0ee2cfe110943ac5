"""Advertisements of a real client: the broker is told, again on every connection, and nothing that
was accepted is refused because of a later change."""

import subprocess
import sys

import pytest

from anabranch import ClientOptions, Filter, LocalError, NotAdvertisedError, connect
from anabranch.model.client_frames import ADVERTISEMENTS_MAX, Advertises, Publish
from anabranch.model.encoding import decode_event
from tests.client_parts import Host, frames_of, network, run, until

QUICK = ClientOptions(pause_last_s=0.05, resend_after_s=0.2, close_within_s=0.2)


def told(host: Host) -> list[list[str]]:
    """The lists of advertisements that came, in order."""
    return [frame.filters for frame in host.heard if isinstance(frame, Advertises)]


def published(host: Host) -> list[object]:
    bodies = [b for f in frames_of(host, Publish) if isinstance(f, Publish) for b in f.bodies]
    return [decode_event(body)["n"] for body in bodies]


def test_only_what_was_advertised_is_published() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            stocks = client.advertise("class = 'STOCK'")
            client.advertise(Filter.parse("n > 10"))
            await client.publish({"n": 11})
            with pytest.raises(NotAdvertisedError, match=r"class = 'STOCK' or n > 10"):
                await client.publish({"n": 1})
            await client.publish({"n": 1, "class": "STOCK"})
            stocks.withdraw()
            with pytest.raises(NotAdvertisedError):
                await client.publish({"n": 1, "class": "STOCK"})
            assert published(a) == [11, 1]

    run(story)


def test_the_broker_is_told_of_changes_together_and_of_nothing_twice() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            first = client.advertise("n > 10")
            client.advertise("n > 10")
            await client.publish({"n": 11})
            client.advertise("m = 1")
            first.withdraw()
            first.withdraw()
            await until(lambda: len(told(a)) == 2)
            await client.publish({"n": 11})
            assert told(a) == [["n > 10"], ["n > 10", "m = 1"]]

    run(story)


def test_with_the_last_advertisement_gone_anything_may_be_published() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            only = client.advertise("n > 10")
            await client.publish({"n": 11})
            only.withdraw()
            await client.publish({"n": 1})
            assert told(a) == [["n > 10"], []]

    run(story)


def test_what_no_event_can_match_is_not_advertised() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            with pytest.raises(LocalError, match="no event can match n < 1 AND n > 2, so there is"):
                client.advertise("n < 1 AND n > 2")
            await client.publish({"n": 1})
            assert told(a) == []

    run(story)


def test_a_client_makes_a_bounded_number_of_advertisements() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            made = [client.advertise(f"n = {n}") for n in range(ADVERTISEMENTS_MAX)]
            with pytest.raises(LocalError, match="at most 1024 advertisements; withdraw some"):
                client.advertise("n = -1")
            made[0].withdraw()
            client.advertise("n = -1")
            await client.publish({"n": -1})

    run(story)


def test_a_new_connection_is_told_before_any_event_goes_over_it() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, options=QUICK) as client,
        ):
            client.advertise("n > 0")
            await client.publish({"n": 1})
            a.heard.clear()
            a.cut_clients()
            await client.publish({"n": 2})
            kinds = [type(f) for f in a.heard if isinstance(f, Advertises | Publish)]
            assert kinds[0] is Advertises
            assert told(a) == [["n > 0"]]
            assert Publish in kinds

    run(story)


def test_the_broker_that_the_client_goes_to_is_told() -> None:
    async def story() -> None:
        async with (
            network("a", "b") as (a, b),
            await connect(a.address, b.address, address_order="given", options=QUICK) as client,
        ):
            client.advertise("n > 0")
            await client.publish({"n": 1})
            await a.kill()
            await client.publish({"n": 2})
            assert (client.origin, told(b)) == ("b", [["n > 0"]])

    run(story)


def test_what_was_published_while_nobody_was_there_goes_out_although_it_was_withdrawn() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, name="p", options=QUICK) as client,
        ):
            early = client.advertise("n = 1")
            await client.publish({"n": 1})
            await a.kill()
            await until(lambda: not client.is_connected)
            promise = await client.publish_soon({"n": 1})
            client.advertise("n = 2")
            early.withdraw()
            with pytest.raises(NotAdvertisedError):
                await client.publish({"n": 1})
            later = await client.publish_soon({"n": 2})
            a.heard.clear()
            await a.start()
            assert (await promise) < (await later)
            # The broker was told of both, and of the withdrawal when nobody needed it any more.
            await until(lambda: told(a)[-1] == ["n = 2"])
            assert told(a)[0] == ["n = 2", "n = 1"]

    run(story)


def test_what_was_published_before_the_first_advertisement_is_taken_after_it() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, name="p", options=QUICK) as client,
        ):
            a.fill(True)
            promise = await client.publish_soon({"n": 1})
            await until(lambda: client.refusal)
            client.advertise("n = 2")
            a.cut_clients()
            await until(lambda: ["n = 2", "TRUE"] in told(a))
            a.fill(False)
            await promise
            await until(lambda: told(a)[-1] == ["n = 2"])
            await client.publish({"n": 2})

    run(story)


def test_a_publisher_that_always_has_something_unconfirmed_is_rid_of_what_it_withdrew() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, name="p") as client:
            early = client.advertise("n < 10")
            await client.publish({"n": 1})
            a.stall(True)
            promise = await client.publish_soon({"n": 2})
            client.advertise("n >= 10")
            early.withdraw()
            for n in range(10, 30):
                await client.publish_soon({"n": n})
            a.stall(False)
            await promise
            await client.flush()
            await until(lambda: told(a)[-1] == ["n >= 10"])

    run(story)


def test_many_advertisements_are_looked_through_without_a_compiler() -> None:
    """In a process of its own: this one may have loaded it for another test."""
    code = f"""
import sys
from anabranch import Event, Filter, NotAdvertisedError
from anabranch.client.publish import check_advertised, advertisement_matcher
promised = advertisement_matcher(Filter.parse(f"n = {{n}}") for n in range({ADVERTISEMENTS_MAX}))
for n in range(200):
    check_advertised(Event({{"n": n}}), promised)
assert promised.is_indexed
try:
    check_advertised(Event({{"n": -1}}), promised)
except NotAdvertisedError as error:
    print(error)
assert "numba" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "advertisements, n = 0 or n = 1 or n = 2, or one of 1021 more;" in done.stdout
