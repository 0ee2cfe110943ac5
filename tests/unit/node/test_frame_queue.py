"""Connections take turns: first come, first served, with a sign of life meanwhile."""

import asyncio
from concurrent.futures import Future

import pytest

from anabranch.node import frame_queue as module
from anabranch.node.frame_queue import FrameQueue


def test_who_comes_first_goes_first_and_only_while_the_core_is_free() -> None:
    async def story() -> None:
        is_working = True
        gone: list[str] = []

        def go(name: str) -> None:
            nonlocal is_working
            gone.append(name)
            is_working = name == "a"

        turns = FrameQueue(lambda: is_working)
        for name in "abc":
            turns.wait(lambda name=name: go(name), lambda: None)  # type: ignore[misc]
        turns.give()
        await asyncio.sleep(0)
        assert gone == []
        assert turns.are_wanted
        is_working = False
        turns.give()
        for _ in range(4):
            await asyncio.sleep(0)
        assert gone == ["a"]
        is_working = False
        turns.give()
        for _ in range(6):
            await asyncio.sleep(0)
        assert gone == ["a", "b", "c"]
        assert not turns.are_wanted

    asyncio.run(story())


def test_whoever_waits_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SIGN_S", 0.001)

    async def story() -> None:
        signs: asyncio.Queue[str] = asyncio.Queue()
        turns = FrameQueue(lambda: True)
        future: Future[None] = Future()
        turns.wait(lambda: None, lambda: signs.put_nowait("turn"))
        turns.wait_for(future, lambda: None, lambda: signs.put_nowait("thread"))
        async with asyncio.timeout(120):
            heard = {await signs.get() for _ in range(10)}
        assert heard == {"turn", "thread"}
        turns.close()
        assert not turns.are_wanted

    asyncio.run(story())


def test_what_waits_for_a_thread_has_its_turn_when_that_is_done() -> None:
    async def story() -> None:
        turns = FrameQueue(lambda: False)
        future: Future[None] = Future()
        came = asyncio.Event()
        turns.wait_for(future, came.set, lambda: None)
        await asyncio.sleep(0)
        assert not came.is_set()
        future.set_result(None)
        async with asyncio.timeout(120):
            await came.wait()
        turns.close()

    asyncio.run(story())
