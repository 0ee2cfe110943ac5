"""Request and reply: a service that squares numbers, and a client that asks it.

anabranch up examples/network.toml      # in another terminal
python examples/ask.py
"""

import asyncio
from pathlib import Path

import anabranch

NETWORK = Path(__file__).with_name("network.toml")


async def answer(question: anabranch.Received) -> None:
    """Reply to a question. Only the client that asked receives the reply."""
    number = question.int("square")
    await question.reply({"result": number * number})


async def main() -> None:
    """Ask two questions."""
    async with (
        anabranch.connect(network_file=NETWORK, name="squares") as service,
        anabranch.connect(network_file=NETWORK, name="asker") as client,
    ):
        questions = await service.subscribe("square IS NOT NULL")
        await questions.wait_started(client.broker)
        serving = asyncio.create_task(questions.each(answer))
        for number in (3, 7):
            reply = await client.request({"square": number}, timeout=10)
            print(number, "squared is", reply.int("result"), "says", reply.id.publisher)
        await questions.close()
        await serving


if __name__ == "__main__":
    asyncio.run(main())
