"""A life of a broker under all that its disk is for, recorded: `live` returns the write stream.

The broker is a process (`broker_child`); its clients are those of the library, in this process.
They publish, subscribe durably and acknowledge, late and early, write batches, define patterns,
and come back to what they did in earlier lives. A life ends in order, or by a kill.
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from anabranch.client.client import Client, connect
from anabranch.client.options import ClientOptions
from anabranch.client.subscription import Subscription
from tests.power.write_stream import Call, calls_of, recording

BOUND_S = 600.0
BRISK = ClientOptions(
    connect_within_s=120.0, dial_within_s=30.0, pause_last_s=0.2, dead_after_s=60.0
)
#: Where the state directory is below what is recorded; its parents do not exist at first.
STATE = "lib/brokers/a"
PATTERN = "low:{{n < 4 AND life = {life}}} THEN high:{{n > 95 AND life = {life}}} WITHIN 1 s"
BATCH_EVENTS = 9


def live(
    library: Path, root: Path, trace: Path, *, life: int, rounds: int, seed: int
) -> list[Call]:
    """Let a broker live on the disk below `root`; everything that it did there and said."""
    draw = Random(f"{seed} {life}")
    command = [sys.executable, "-m", "tests.power.broker_child", str(root / STATE)]
    if life % 2:
        command.append(str(draw.randint(2, 4)))
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=recording(library, root, trace),
        cwd=Path(__file__).parents[2],
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline().split()
            assert line[:1] == ["ready"], "the broker did not start"
            asyncio.run(_use(line[1], life, rounds, draw))
            process.send_signal(signal.SIGKILL if life % 3 == 2 else signal.SIGTERM)
            code = process.wait(BOUND_S)
            assert code in (0, -signal.SIGKILL), f"the broker ended with {code}"
        finally:
            process.kill()
    return calls_of(trace)


async def _use(address: str, life: int, rounds: int, draw: Random) -> None:
    async with asyncio.timeout(BOUND_S):
        publisher = await connect(address, name=f"publisher-{life}", options=BRISK)
        reader = await connect(address, name="reader", options=BRISK)
        await _work(publisher, reader, life, rounds, draw)
        await publisher.close()
        await reader.close()


async def _work(publisher: Client, reader: Client, life: int, rounds: int, draw: Random) -> None:
    every = await reader.subscribe("n >= 0", durable="every", manual_ack=True, window=4_096)
    few = await reader.subscribe("n < 50", durable="few", manual_ack=True, window=4_096)
    await publisher.define_pattern(f"pattern-{life}", PATTERN.format(life=life))
    # A life before this one may have left it; it would keep the log from forgetting.
    await (await reader.subscribe("n > 50", durable="brief")).unsubscribe()
    forgotten = (await reader.describe()).oldest
    for number in range(rounds):
        size = draw.choice((1, 1, 2, 7, 24))
        events = [_event(life, draw) for _ in range(size)]
        payload = draw.randbytes(draw.choice((0, 20, 300, 1_500)))
        await publisher.publish_many(events, payload=payload)
        if number % 4 == 1:
            await _write_batch(publisher, life, number)
        # The last rounds of a life stay unread, for the next one.
        if number < rounds - 2:
            await _read(every, every.waiting_events - draw.choice((0, 0, 3)))
        if number % 3 == 2 and number < rounds - 2:
            await _read(few, few.waiting_events * 3 // 4)
        if number in (rounds // 3, rounds * 2 // 3):
            forgotten = await _let_forget(reader, (every, few), forgotten)
        if number == rounds // 3:
            brief = await reader.subscribe("n > 50", durable="brief")
        if number == rounds * 2 // 3 - 1:
            await brief.unsubscribe()


def _event(life: int, draw: Random) -> dict[str, int]:
    return {"n": draw.randrange(100), "life": life}


async def _write_batch(publisher: Client, life: int, number: int) -> None:
    batch = 1_000 * life + number
    tokens = [f"{batch}-{part}" for part in range(3)]
    size = BATCH_EVENTS // len(tokens)
    for part, token in enumerate(tokens):
        events = [{"n": 50, "batch": batch, "place": part * size + i} for i in range(size)]
        await publisher.stage(token, events)
    await publisher.commit(sink="sink", query="query", batch=batch, tokens=tokens)


async def _read(subscription: Subscription, count: int) -> None:
    """Read this much of what has come, and acknowledge."""
    received = None
    for _ in range(count):
        received = await subscription.get()
    if received is not None:
        await subscription.ack(received)


async def _let_forget(reader: Client, readers: Sequence[Subscription], tick: int) -> int:
    """Read everything, until the broker has forgotten this tick; the newest one there is."""
    while (now := await reader.describe()).oldest <= tick:
        for each in readers:
            await _read(each, each.waiting_events)
        await asyncio.sleep(0.005)
    return now.head
