"""A client's trace, and the checker's verdict on it."""

import asyncio
import math
from pathlib import Path

from anabranch import ClientOptions, connect
from anabranch.check import history as saw
from anabranch.check.checker import check
from anabranch.client.tracing import Trace
from anabranch.core.origin.log_tail import EventRecord, decode_record
from anabranch.devnet.traces import read_trace
from anabranch.model.encoding import decode_envelope
from anabranch.model.event import Event, EventId
from tests.client_parts import Host, network, run, until

QUICK = ClientOptions(pause_last_s=0.05, resend_after_s=0.2, ack_after_s=0.01)


def logged(*hosts: Host) -> list[saw.Record]:
    """What was ever in the logs."""
    found: list[saw.Record] = []
    for host in hosts:
        for tick, data in host.ever.items():
            record = decode_record(data)
            if isinstance(record, EventRecord):
                event_id = decode_envelope(record.body).id
                name = (event_id.publisher, event_id.incarnation, event_id.sequence)
                found.append(saw.Logged(host.name, tick, *name))
    return found


def test_the_traces_of_a_stormy_run_satisfy_the_checker(tmp_path: Path) -> None:
    async def story() -> None:
        async with network("a", "b") as (a, b):
            addresses = (a.address, b.address)
            p = await connect(
                *addresses, address_order="given", name="p", trace=tmp_path / "p", options=QUICK
            )
            s = await connect(
                *addresses[::-1],
                address_order="given",
                name="s",
                trace=tmp_path / "s",
                options=QUICK,
            )
            durable = await s.subscribe("n >= 10 AND NOT n = 20", durable="d")
            reliable = await s.subscribe("n < 5")
            for subscription in (durable, reliable):
                await subscription.wait_started("a", "b")
            promises = []
            for n in range(300):
                promises.append(await p.publish_soon({"n": n % 60}))
                if n in {60, 180}:
                    b.cut_clients()
                if n in {120, 240}:
                    a.cut_clients()
                await asyncio.sleep(0)
            await asyncio.gather(*promises)
            wanted = sum(n % 60 >= 10 and n % 60 != 20 for n in range(300))
            got = [await durable.get() for _ in range(wanted)]
            assert len({each.id for each in got}) == wanted
            await s.close()
            await p.close()
            history = [*read_trace(tmp_path / "p"), *read_trace(tmp_path / "s"), *logged(a, b)]
            assert check(history) == []
            kinds = {type(record) for record in history}
            assert kinds >= {saw.Published, saw.Confirmed, saw.Subscribed, saw.Started, saw.Cut}
            assert sum(isinstance(record, saw.Delivered) for record in history) >= wanted
            # And the checker can object to such a trace.
            lost = next(
                r for r in history if isinstance(r, saw.Delivered) and "/d#" in r.subscription
            )
            assert {each.name for each in check([r for r in history if r is not lost])} == {"gap"}

    run(story)


def test_an_end_is_told_when_everything_was_read(tmp_path: Path) -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, trace=tmp_path / "t") as client:
            subscription = await client.subscribe("TRUE")
            await subscription.wait_started("a")
            await client.publish_many({"n": n} for n in range(3))
            await until(lambda: subscription.waiting_events == 3)
            await subscription.unsubscribe()
            assert not any(isinstance(r, saw.Ended) for r in read_trace(tmp_path / "t"))
            assert len([received async for received in subscription]) == 3
            await asyncio.sleep(0)
            records = read_trace(tmp_path / "t")
            assert any(isinstance(record, saw.Ended) for record in records)
            assert check([*records, *logged(a)]) == []

    run(story)


def test_a_trace_of_a_dead_process_is_closed_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "t"
    first = Trace(path)
    first.subscribed("e", "TRUE", "durable", "now", "a", latest_start={})
    first.subscribed("f", "TRUE", "durable", "now", "a", latest_start={})
    first.cut("f")
    first.published([Event({"n": 1})] * 2, [EventId("p", 7, 1), EventId("p", 7, 2)], "a")
    first.confirmed("p", 7, 1)
    first.published([Event({"n": 1})], [EventId("p", 8, 1)], "a")
    first.confirmed("p", 8, 1)
    first.close()
    with path.open("ab") as file:
        file.write(b'{"type":"Deliv')
    Trace(path).close()
    records = read_trace(path)
    assert [r.subscription for r in records if isinstance(r, saw.Cut)] == ["f", "e"]
    (gone,) = [r for r in records if isinstance(r, saw.Abandoned)]
    assert (gone.publisher, gone.incarnation) == ("p", 7)


def test_numbers_that_json_cannot_say_do_not_break_a_trace(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "t")
    event = Event({"nan": math.nan, "most": math.inf, "least": -math.inf, "n": 1.5})
    trace.published([event], [EventId("p", 1, 1)], "a")
    trace.close()
    (record,) = read_trace(tmp_path / "t")
    assert isinstance(record, saw.Published)
    assert record.attributes == {
        "most": 1.7976931348623157e308,
        "least": -1.7976931348623157e308,
        "n": 1.5,
    }


def test_what_need_not_come_is_marked(tmp_path: Path) -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address, trace=tmp_path / "t") as client:
            await client.publish({"n": 1}, persistence="transient")
            await client.publish({"n": 2}, destinations=["nobody"])
            await client.publish({"n": 3}, time_limit=1.0)
            await client.publish({"n": 4})

    run(story)
    marks = [r.optional for r in read_trace(tmp_path / "t") if isinstance(r, saw.Published)]
    assert marks == [True, True, True, False]
