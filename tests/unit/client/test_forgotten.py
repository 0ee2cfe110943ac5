"""Publishers that their origin has forgotten: nothing is published twice, and nothing fails that
was never sent."""

import asyncio
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from anabranch import Client, ClientOptions, PublishUnknownError, connect
from anabranch.client import client_parts
from anabranch.core.origin.log_tail import EventRecord, decode_record
from anabranch.model.encoding import decode_event
from tests.client_parts import OPTIONS, Host, network, run, until

QUICK = ClientOptions(pause_first_s=0.01, pause_last_s=0.05, resend_after_s=60.0)
FORGETFUL = replace(OPTIONS, publisher_keep_s=0.05)


def logged(host: Host) -> list[object]:
    """The attribute `n` of every event that was ever in the log."""
    records = [decode_record(host.ever[tick]) for tick in sorted(host.ever)]
    events = [decode_event(each.body) for each in records if isinstance(each, EventRecord)]
    return [event["n"] for event in events]


async def shut_out(client: Client, host: Host) -> None:
    """The client loses its connection and is not let in."""
    host.turned_away.add(client.name)
    host.cut_clients()
    await until(lambda: not host.sessions)


async def forgotten(host: Host) -> None:
    """The broker forgets all publishers; that is on disk."""
    broker = host.broker
    assert broker is not None
    origin = broker.origin
    assert origin is not None
    await until(lambda: origin.publishers_forgotten and not origin.publishers)


def test_a_client_that_was_away_for_long_goes_on_as_if_nothing_had_happened() -> None:
    async def story() -> None:
        async with (
            network("a", options=FORGETFUL) as (a,),
            await connect(a.address, name="p", options=QUICK) as client,
        ):
            first = await client.publish({"n": 1})
            await shut_out(client, a)
            await forgotten(a)
            a.turned_away.clear()
            await until(lambda: a.sessions)
            ids = await client.publish_many({"n": n} for n in (2, 3, 4))
            assert [each.sequence for each in ids] == [1, 2, 3]
            assert {each.incarnation > first.incarnation for each in ids} == {True}
            assert logged(a) == [1, 2, 3, 4]

    run(story)


def test_an_event_sent_before_the_absence_is_unknown_and_later_ones_are_published() -> None:
    async def story() -> None:
        async with (
            network("a", options=FORGETFUL) as (a,),
            await connect(a.address, name="p", options=QUICK) as client,
        ):
            a.stall(True)
            lost = asyncio.ensure_future(client.publish({"n": 1}))
            await until(lambda: a.ever)
            await shut_out(client, a)
            a.stall(False)
            await forgotten(a)
            later = asyncio.ensure_future(client.publish({"n": 2}))
            a.turned_away.clear()
            with pytest.raises(PublishUnknownError, match="publisher_keep_s"):
                await lost
            assert (await later).sequence == 1
            # It was there, and is not there twice.
            assert logged(a) == [1, 2]

    run(story)


def test_a_client_that_comes_back_in_time_is_confirmed_what_it_sent_before() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, name="p", options=QUICK) as client,
        ):
            a.stall(True)
            lost = asyncio.ensure_future(client.publish({"n": 1}))
            await until(lambda: a.ever)
            await shut_out(client, a)
            a.stall(False)
            a.turned_away.clear()
            assert (await lost).sequence == 1
            assert logged(a) == [1]

    run(story)


def test_a_clock_that_is_far_behind_publishes_above_what_was_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        async with network("a", options=FORGETFUL) as (a,):
            async with await connect(a.address, name="p", options=QUICK) as client:
                first = await client.publish({"n": 1})
            await forgotten(a)
            monkeypatch.setattr(client_parts, "time", SimpleNamespace(time_ns=lambda: 10**9))
            async with await connect(a.address, name="q", options=QUICK) as client:
                second = await client.publish({"n": 2})
                assert second.incarnation == first.incarnation + 1
                assert logged(a) == [1, 2]

    run(story)
