"""Batches at a real broker that is killed at every turn: each is there once, whole, in order."""

import asyncio
import signal
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from anabranch.client.batches import Batch
from anabranch.client.client import Client, connect
from tests.broker_parts import Brokers
from tests.process_parts import BRISK, run, until_asked

pytestmark = pytest.mark.slow

ONE = """[network]
name = "one"
[tree]
a = []
[options]
keep_s = 3_600.0
slice_events_max = 64
"""
EVENTS = 4_000


def events(batch: int, task: int) -> Iterable[dict[str, int]]:
    return [{"batch": batch, "n": task * EVENTS + place} for place in range(EVENTS)]


async def restart(brokers: Brokers) -> None:
    await asyncio.to_thread(brokers["a"].end, signal.SIGKILL)
    await asyncio.to_thread(brokers.start, "a")


async def is_at(brokers: Brokers, tick: int) -> bool:
    log = (await brokers.status("a")).log
    assert log is not None
    return log.head >= tick


async def execute(tasks: list[Client], batch: int, attempt: int) -> list[str]:
    """Let all tasks stage a batch; the tokens."""
    tokens = [f"{batch}.{attempt}.{place}" for place in range(len(tasks))]
    staging = [
        task.stage(token, events(batch, place))
        for place, (task, token) in enumerate(zip(tasks, tokens, strict=True))
    ]
    assert await asyncio.gather(*staging) == [EVENTS] * len(tasks)
    return tokens


def commit(driver: Client, batch: int, tokens: list[str]) -> "asyncio.Task[Batch]":
    work = driver.commit(sink="sink", query="q", batch=batch, tokens=tokens, at="a")
    return asyncio.get_running_loop().create_task(work)


async def check(brokers: Brokers, batches: list[Batch]) -> None:
    """What a reader gets from the beginning is every batch, once and in order."""
    reader = await connect(brokers.address("a"), name="reader", options=BRISK)
    found = await reader.subscribe("batch >= 0", since="beginning")
    for batch in batches:
        received = [await found.get() for _ in range(2 * EVENTS)]
        assert {each["batch"] for each in received} == {batch.batch}
        assert [each["n"] for each in received] == list(range(2 * EVENTS))
        assert {each.id.incarnation for each in received} == {batch.batch + 1}
        assert (received[0].tick, received[-1].tick) == (batch.first, batch.last)
    # Nothing is behind the last one: what is published now comes next.
    await reader.publish({"batch": 99})
    assert (await found.get())["batch"] == 99
    await reader.close()


async def story(brokers: Brokers) -> None:
    names = ("driver", "task-0", "task-1")
    address = brokers.address("a")
    driver, *tasks = [await connect(address, name=name, options=BRISK) for name in names]

    # Killed while events are being staged.
    staging = asyncio.ensure_future(execute(tasks, 0, 0))
    await asyncio.sleep(0)
    await restart(brokers)
    tokens = await staging
    # Killed when all is staged, and nothing committed.
    await restart(brokers)
    first = await commit(driver, 0, tokens)
    # Killed after the confirmation; the program has not noted it, and does all of it again.
    await restart(brokers)
    again = await commit(driver, 0, await execute(tasks, 0, 1))
    assert (again.was_known, again.first, again.last) == (True, first.first, first.last)

    # Killed as soon as the commit is asked for.
    tokens = await execute(tasks, 1, 0)
    committing = commit(driver, 1, tokens)
    await asyncio.sleep(0)
    await restart(brokers)
    second = await committing

    # Killed in the middle of a batch, twice; then the driver gives up, and its successor begins
    # the batch anew.
    committing = commit(driver, 2, await execute(tasks, 2, 0))
    for part in (1_000, 3_000):
        await until_asked(partial(is_at, brokers, second.last + part), "the batch goes on")
        await restart(brokers)
    committing.cancel()
    await driver.close()
    driver = await connect(address, name="driver", options=BRISK)
    third = await commit(driver, 2, await execute(tasks, 2, 1))
    assert third.was_known

    await check(brokers, [first, second, third])
    for client in (driver, *tasks):
        await client.close()


def test_a_broker_that_is_killed_at_every_turn_has_each_batch_once(tmp_path: Path) -> None:
    with Brokers(tmp_path, ONE) as brokers:
        brokers.start("a")
        run(story(brokers))
