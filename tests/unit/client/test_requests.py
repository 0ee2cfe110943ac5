import asyncio

import pytest

from anabranch import Client, EventError, RequestTimeoutError, connect
from tests.client_parts import network, run


async def answer(client: Client, replies: int = 1) -> None:
    """Answer every question with its double."""
    subscription = await client.subscribe("question > 0")
    await subscription.wait_started("a")
    async for received in subscription:
        question = received["question"]
        assert isinstance(question, int)
        for n in range(replies):
            await received.reply({"answer": 2 * question + n}, payload=b"!")


def test_a_request_gets_the_reply_that_belongs_to_it() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, name="asks") as asks,
            await connect(a.address, name="knows") as knows,
        ):
            answering = asyncio.create_task(answer(knows))
            while not knows.is_closed and not answering.done():
                try:
                    first = await asks.request({"question": 21}, timeout=0.5)
                except RequestTimeoutError:
                    continue
                break
            assert (first["answer"], first.payload, first.id.publisher) == (42, b"!", "knows")
            others = await asyncio.gather(*(asks.request({"question": n}) for n in range(1, 50)))
            assert [each["answer"] for each in others] == [2 * n for n in range(1, 50)]
            answering.cancel()

    run(story)


def test_only_the_first_reply_counts_and_the_others_are_no_trouble() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address) as asks,
            await connect(a.address) as knows,
        ):
            answering = asyncio.create_task(answer(knows, replies=3))
            first = await until_answered(asks, 1)
            second = await asks.request({"question": 2})
            assert (first, second["answer"]) == (2, 4)
            answering.cancel()

    async def until_answered(client: Client, question: int) -> object:
        while True:
            try:
                return (await client.request({"question": question}, timeout=0.5))["answer"]
            except RequestTimeoutError:
                continue

    run(story)


def test_a_request_that_nobody_answers_ends_in_time() -> None:
    async def story() -> None:
        async with network("a") as (a,), await connect(a.address) as client:
            with pytest.raises(RequestTimeoutError, match=r"within 0\.1 s"):
                await client.request({"question": 1}, timeout=0.1)

    run(story)


def test_others_do_not_see_a_reply() -> None:
    async def story() -> None:
        async with (
            network("a") as (a,),
            await connect(a.address, name="asks") as asks,
            await connect(a.address, name="knows") as knows,
        ):
            everything = await knows.subscribe("TRUE")
            await everything.wait_started("a")

            async def reply_once() -> None:
                await (await everything.get()).reply({"answer": 1})
                await knows.publish({"done": True})

            replying = asyncio.create_task(reply_once())
            assert (await asks.request({"question": 1}))["answer"] == 1
            await replying
            assert dict((await everything.get()).event) == {"done": True}

    run(story)


def test_a_request_is_given_as_attributes() -> None:
    async def story() -> None:
        from anabranch import Event

        async with network("a") as (a,), await connect(a.address) as client:
            with pytest.raises(EventError, match="takes attributes"):
                await client.request(Event({"question": 1}))

    run(story)
