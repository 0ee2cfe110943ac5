"""Links that prove a secret: who knows it is let in, and nobody else counts for anything."""

import asyncio
import logging
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from anabranch.config.secrets import Secret
from anabranch.core.options import Options
from anabranch.model.event import INT_MAX
from anabranch.model.frames import PROTOCOL_VERSION, Hello
from anabranch.node.links import NodeLink
from anabranch.node.node import Node
from anabranch.node.settings import Address, Timing
from anabranch.wire.codec import decode_link, encode_link
from anabranch.wire.framing import framed
from anabranch.wire.greeting import (
    NONCE_BYTES,
    Greeting,
    Proof,
    decode_greeting,
    encode_greeting,
    transcript,
)
from tests.node_parts import (
    CHAIN,
    FRAME_BYTES_MAX,
    HERE,
    NETWORK,
    NOWHERE,
    PAIR,
    RawClient,
    Stranger,
    address,
    config,
    is_linked,
    running,
    until,
)

SECRET = Secret([bytes(range(32))])
OTHER = Secret([bytes(range(100, 132))])
NONCE = bytes(NONCE_BYTES)


def greeting_of(name: str = "a", **more: Any) -> Greeting:
    """What the broker of this name would say to `m`."""
    given = {"nonce": NONCE, "life": 5, **more}
    return Greeting(
        kind="link",
        network=NETWORK,
        revision=1,
        name=name,
        frame_bytes_max=FRAME_BYTES_MAX,
        **given,
    )


def proved(secret: Secret, ours: Greeting, theirs: Greeting) -> bytes:
    (proof,) = secret.proofs(transcript("dialler", ours, theirs))
    return framed(encode_greeting(Proof(proof)))


def link_to(node: Node, peer: str) -> NodeLink:
    return next(link for link in node.links.all() if link.peer == peer)


def untouched(node: Node) -> bool:
    """Whether nobody has said anything that counts under the name of `a`."""
    link = link_to(node, "a")
    return link.life == 0 and link.connection is None and link.times_up == 0


async def dial(node: Node, ours: Greeting) -> Stranger:
    stranger = await Stranger.at(address(node, "links"))
    stranger.send(framed(encode_greeting(ours)))
    return stranger


def test_three_brokers_with_one_secret_are_linked_and_serve(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            running(config("z", tmp_path, CHAIN, secret=SECRET)) as z,
            running(config("m", tmp_path, CHAIN, z, secret=SECRET)) as m,
            running(config("a", tmp_path, CHAIN, m, secret=SECRET)) as a,
        ):
            await until(lambda: all(is_linked(node) for node in (a, m, z)))
            reader = await RawClient.at(z, "reader")
            await reader.subscribe("s", "x = 1", streams=2)
            writer = await RawClient.at(a, "writer")
            writer.publish({"x": 1})
            await until(lambda: reader.events() == [{"x": 1}])
            assert len(m.strangers) == len(z.strangers) == 0

    asyncio.run(story())


def test_a_greeting_with_the_last_life_counts_for_nothing_without_its_proof(
    tmp_path: Path,
) -> None:
    """The neighbour itself is let in afterwards, and while the pretender waits."""

    async def story() -> None:
        async with running(config("m", tmp_path, CHAIN, neighbours=NOWHERE, secret=SECRET)) as node:
            last = await dial(node, greeting_of(life=INT_MAX))
            assert "correct the wrong clock" in await last.refusal()
            soon = greeting_of(life=2**60)
            pretender = await dial(node, soon)
            theirs = await pretender.greeting()
            assert untouched(node)
            ours = greeting_of(life=6)
            neighbour = await dial(node, ours)
            neighbour.send(proved(SECRET, ours, await neighbour.greeting()))
            neighbour.send(framed(encode_link(Hello(PROTOCOL_VERSION, "a", 6))))
            assert isinstance(decode_link(await neighbour.frame()), Hello)
            assert link_to(node, "a").life == 6
            pretender.send(proved(OTHER, soon, theirs))
            assert "share no network secret" in await pretender.refusal()
            assert link_to(node, "a").life == 6
            assert link_to(node, "a").connection is not None
            for each in (last, pretender, neighbour):
                await each.close()

    asyncio.run(story())


def test_a_greeting_and_a_proof_that_were_overheard_are_good_for_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("m", tmp_path, CHAIN, neighbours=NOWHERE, secret=SECRET)) as node:
            ours = greeting_of()
            first = await dial(node, ours)
            overheard = proved(SECRET, ours, await first.greeting())
            first.send(overheard)
            assert isinstance(decode_link(await first.frame()), Hello)
            replay = await dial(node, ours)
            await replay.greeting()
            replay.send(overheard)
            assert "share no network secret" in await replay.refusal()
            assert link_to(node, "a").times_up == 1
            for each in (first, replay):
                await each.close()

    asyncio.run(story())


def test_a_proof_that_is_sent_back_is_not_one(tmp_path: Path) -> None:
    """Who dials shows the broker its own proof, made on this connection and on another one."""

    async def story() -> None:
        async with running(config("m", tmp_path, CHAIN, neighbours=NOWHERE, secret=SECRET)) as node:
            first = await dial(node, greeting_of())
            theirs = await first.greeting()
            first.send(framed(encode_greeting(Proof(theirs.proofs[0]))))
            assert "share no network secret" in await first.refusal()
            # With the broker's own nonce in the place of the dialler's.
            second = await dial(node, greeting_of(nonce=theirs.nonce))
            again = await second.greeting()
            assert again.nonce != theirs.nonce
            second.send(framed(encode_greeting(Proof(again.proofs[0]))))
            assert "share no network secret" in await second.refusal()
            assert untouched(node)
            for each in (first, second):
                await each.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    "changed",
    [
        {"life": 7},
        {"name": "z"},
        {"network": "other"},
        {"revision": 2},
        {"frame_bytes_max": 9_000},
        {"nonce": bytes([1]) * NONCE_BYTES},
        {"kind": "client"},
        {"protocol_version": 1},
    ],
    ids=lambda changed: next(iter(changed)),
)
@pytest.mark.parametrize("whose", ["dialler", "answerer"])
def test_a_proof_is_about_all_that_both_have_said(changed: dict[str, Any], whose: str) -> None:
    ours, theirs = greeting_of(), greeting_of("m", nonce=bytes([2]) * NONCE_BYTES)
    said = {"dialler": ours, "answerer": theirs}
    before = transcript("dialler", ours, theirs)
    said[whose] = replace(said[whose], **changed)
    after = transcript("dialler", said["dialler"], said["answerer"])
    assert SECRET.common(after, SECRET.proofs(before)) is None
    assert transcript("answerer", ours, theirs) != before
    assert transcript("dialler", theirs, ours) != before


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (greeting_of(nonce=b""), "'m' requires proof .* but 'a' has none"),
        (greeting_of(nonce=b"short"), "a nonce of 5 bytes"),
    ],
)
def test_who_has_no_secret_is_told_so(tmp_path: Path, said: Greeting, reason: str) -> None:
    async def story() -> str:
        async with running(config("m", tmp_path, CHAIN, neighbours=NOWHERE, secret=SECRET)) as node:
            stranger = await dial(node, said)
            told = await stranger.refusal()
            await stranger.close()
            assert untouched(node)
            return told

    assert re.search(reason, asyncio.run(story()))


def test_a_broker_without_a_secret_says_that_it_lacks_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(config("m", tmp_path, CHAIN, neighbours=NOWHERE)) as node:
            stranger = await dial(node, greeting_of())
            assert "'m' has none" in await stranger.refusal()
            await stranger.close()

    asyncio.run(story())


SECRETS = {
    "another one": (SECRET, OTHER, "share no network secret"),
    "none at the side that dials": (None, SECRET, "'m' requires proof"),
    "none at the side that answers": (SECRET, None, "'a' requires proof"),
}


@pytest.mark.parametrize("which", SECRETS)
def test_two_brokers_without_a_common_secret_say_why_on_both_sides(
    tmp_path: Path, which: str, caplog: pytest.LogCaptureFixture
) -> None:
    dials, answers, reason = SECRETS[which]
    caplog.set_level(logging.INFO, "anabranch.node")

    async def story() -> None:
        async with (
            running(config("m", tmp_path, PAIR, secret=answers)) as m,
            running(config("a", tmp_path, PAIR, m, secret=dials)) as a,
        ):
            await until(lambda: reason in link_to(a, "m").down_because)
            await until(lambda: m.counters.connections_refused)
            assert not is_linked(a)
            assert untouched(m)

    asyncio.run(story())
    told = [record.getMessage() for record in caplog.records if reason in record.getMessage()]
    assert any(text.startswith("no link to m") for text in told)
    assert any(re.search("connection from .* failed: ", text) for text in told)


def test_a_secret_is_changed_without_losing_a_link(tmp_path: Path) -> None:
    """First all get the new one beside the old one, in any order; then the old one goes."""
    old, new = bytes(range(32)), bytes(range(100, 132))
    steps = [[old], [old, new], [new, old], [new]]

    async def story() -> None:
        for ours, theirs in pairwise(steps):
            for one, other in ((ours, theirs), (theirs, ours)):
                async with (
                    running(config("m", tmp_path, PAIR, secret=Secret(one))) as m,
                    running(config("a", tmp_path, PAIR, m, secret=Secret(other))) as a,
                ):
                    await until(lambda: is_linked(a) and is_linked(m))

    asyncio.run(story())


@pytest.mark.parametrize("proofs", [(), (bytes(32),), (bytes(32), bytes(32))])
def test_who_answers_in_place_of_a_neighbour_gets_no_proof(
    tmp_path: Path, proofs: tuple[bytes, ...]
) -> None:
    """Somebody listens where the neighbour should, and greets under its name."""
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stranger = Stranger(reader, writer)
        decode_greeting(await stranger.frame())
        mine = greeting_of("m", life=9, proofs=proofs)
        stranger.send(framed(encode_greeting(mine)))
        heard.append(await stranger.frame())
        await stranger.close()

    async def story() -> None:
        server = await asyncio.start_server(answer, HERE, 0)
        port = server.sockets[0].getsockname()[1]
        there = {"m": Address(HERE, port)}
        async with running(config("a", tmp_path, PAIR, neighbours=there, secret=SECRET)) as a:
            await until(lambda: heard)
            link = link_to(a, "m")
            assert link.life == 0
            assert link.times_up == 0
        server.close()
        await server.wait_closed()

    asyncio.run(story())
    assert b"refused" in heard[0]
    assert b"proof" not in heard[0]


def test_a_proof_that_does_not_come_in_time_or_is_none_ends_the_connection(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        hasty = Timing(greeting_s=0.2)
        given = {"neighbours": NOWHERE, "secret": SECRET, "timing": hasty}
        async with running(config("m", tmp_path, CHAIN, **given)) as node:
            silent = await dial(node, greeting_of())
            await silent.greeting()
            assert len(node.strangers) == 1
            await silent.end()
            for nonsense in (framed(b"\xc1"), framed(encode_greeting(greeting_of()))):
                stranger = await dial(node, greeting_of())
                await stranger.greeting()
                stranger.send(nonsense)
                await stranger.end()
                await stranger.close()
            long = await dial(node, greeting_of())
            await long.greeting()
            long.send(framed(bytes(5_000)))
            await long.end()
            for each in (silent, long):
                await each.close()
            await until(lambda: node.connections == 0)
            assert len(node.strangers) == 0
            assert untouched(node)

    asyncio.run(story())


@pytest.mark.parametrize("secret", [None, SECRET])
def test_a_hello_with_another_life_than_the_greeting_costs_the_link(
    tmp_path: Path, secret: Secret | None
) -> None:
    async def story() -> None:
        async with running(config("m", tmp_path, CHAIN, neighbours=NOWHERE, secret=secret)) as node:
            ours = greeting_of(nonce=NONCE if secret else b"")
            stranger = await dial(node, ours)
            theirs = await stranger.greeting()
            if secret is not None:
                stranger.send(proved(secret, ours, theirs))
            stranger.send(framed(encode_link(Hello(PROTOCOL_VERSION, "a", INT_MAX))))
            await stranger.end()
            assert "another life" in link_to(node, "a").down_because
            await stranger.close()

    asyncio.run(story())


@pytest.mark.parametrize("lead_s", [86_400.0, 60.0])
def test_without_a_secret_a_life_far_ahead_does_not_keep_the_neighbour_out(
    tmp_path: Path, lead_s: float
) -> None:
    async def story() -> None:
        given = {"neighbours": NOWHERE, "options": Options(life_lead_s=lead_s)}
        async with running(config("m", tmp_path, CHAIN, **given)) as node:
            ahead_ns = int((node._driver.clock.now() + lead_s + 10) * 1e9)
            for life in (INT_MAX, ahead_ns):
                stranger = await dial(node, greeting_of(nonce=b"", life=life))
                assert "correct the wrong clock" in await stranger.refusal()
                await stranger.close()
            assert untouched(node)
            neighbour = await dial(node, greeting_of(nonce=b""))
            await neighbour.greeting()
            assert isinstance(decode_link(await neighbour.frame()), Hello)
            await neighbour.close()

    asyncio.run(story())


def test_links_with_neither_tls_nor_a_secret_are_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "anabranch.node")

    async def story() -> None:
        async with (
            running(config("m", tmp_path, PAIR)),
            running(config("z", tmp_path, CHAIN, secret=SECRET)),
            running(config("a", tmp_path)),
        ):
            pass

    asyncio.run(story())
    warned = [each.getMessage() for each in caplog.records if "secret" in each.getMessage()]
    assert len(warned) == 1
    assert "neither TLS nor a secret" in warned[0]
