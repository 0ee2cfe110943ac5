"""Request and reply: a service that squares numbers, and a client that asks it.

python examples/ask.py [ADDRESS]...
"""

import asyncio
import contextlib
import sys

import anabranch


async def serve(questions: anabranch.Subscription) -> None:
    """Answer every question."""
    async for received in questions:
        number = received["square"]
        assert isinstance(number, int)
        await received.reply({"result": number * number})


async def main(*addresses: str) -> None:
    """Ask two questions."""
    async with (
        anabranch.connect(*addresses, name="squares") as service,
        anabranch.connect(*addresses, name="asker") as client,
    ):
        questions = await service.subscribe("square IS NOT NULL")
        await questions.wait_started(client.broker)
        serving = asyncio.create_task(serve(questions))
        for number in (3, 7):
            reply = await client.request({"square": number}, timeout=10)
            print(number, "squared is", reply["result"], "says", reply.id.publisher)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(main(*sys.argv[1:]))
    else:
        with anabranch.embedded() as network:
            asyncio.run(main(*network.addresses))
