"""Brokers with copies of their streams: what their observe ports tell, and when they serve."""

import asyncio
from pathlib import Path

from anabranch.core.options import Options
from anabranch.core.replication.report import OwnCopiesReport
from anabranch.model.network import Network
from anabranch.node.node import Node
from tests.node_parts import (
    NETWORK,
    RawClient,
    Stranger,
    address,
    chain,
    config,
    greeting,
    running,
    until,
)

COPIES = Options(copies=2, confirm=2, start_alone_after_s=0.05)


def own(node: Node) -> OwnCopiesReport:
    replication = node.status().replication
    assert replication is not None
    assert replication.own is not None
    return replication.own


async def page(node: Node, path: str) -> tuple[str, str]:
    """The code of the answer, and its body."""
    stranger = await Stranger.at(address(node, "observe"))
    stranger.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    head, _, body = (await stranger.end()).decode().partition("\r\n\r\n")
    await stranger.close()
    return head.split()[1], body


def test_events_are_confirmed_by_two_copies_which_origin_and_keeper_show(tmp_path: Path) -> None:
    async def story() -> None:
        async with chain(tmp_path, options=COPIES) as (a, m, z):
            await until(lambda: {a.state, m.state, z.state} == {"ready"})
            reader = await RawClient.at(z, "reader")
            await reader.subscribe("dear", "price > 10", streams=2)
            publisher = await RawClient.at(a, "till")
            publisher.publish({"price": 11}, {"price": 9})
            await until(lambda: publisher.confirmed() == 2)
            await until(reader.events)
            assert reader.events() == [{"price": 11}]
            found = own(a)
            assert (found.state, found.present, found.configured) == ("leading", 2, 2)
            assert {each.broker: each.state for each in found.copies} == {
                "a": "member",
                "m": "member",
            }
            kept = m.status().replication
            assert kept is not None
            assert {each.stream for each in kept.kept} == {"a", "z"}
            assert m.status().kept_bytes > 0
            await until(lambda: own(a).unconfirmed == 0)
            text = (await page(a, "/metrics"))[1]
            assert "anabranch_copies 2.0\n" in text
            assert "anabranch_copies_below 0.0\n" in text
            assert 'anabranch_keeper_lag_ticks{keeper="m"} ' in text
            assert "anabranch_kept_copies 2.0\n" in (await page(m, "/metrics"))[1]

    asyncio.run(story())


#: Nobody else needs to say that the stream is new.
TWO = Network({"middle": ["m"], "z": ["z"]}, [("middle", "z")])


def test_an_edge_without_its_keeper_waits_says_so_and_serves_when_it_comes(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("z", tmp_path, TWO, options=COPIES)) as z:
            await until(lambda: "at 'm'" in z.broker.refusal)
            assert z.status().state == "waiting for copies"
            assert await page(z, "/health") == ("503", "waiting for copies\n")
            assert "anabranch_is_waiting_for_copies 1.0\n" in (await page(z, "/metrics"))[1]
            stranger = await Stranger.at(address(z, "clients"))
            stranger.send(greeting(network=NETWORK))
            why = await stranger.refusal()
            assert why.endswith("the broker is starting: it waits for copies of its stream at 'm'")
            await stranger.close()
            async with running(config("m", tmp_path, TWO, z, options=COPIES)) as m:
                assert m.state == "ready"
                await until(lambda: z.status().state == "ready")
                assert await page(z, "/health") == ("200", "ok\n")

    asyncio.run(story())
