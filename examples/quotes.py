"""Publish stock quotes and read those that match a filter: everything a first program needs.

python examples/quotes.py                    a network of its own, in this process
python examples/quotes.py 127.0.0.1:4100     one that runs, for example by `anabranch up`
"""

import asyncio
import sys

import anabranch


async def main(*addresses: str) -> None:
    """Publish four quotes, two of which match."""
    async with anabranch.connect(*addresses, name="quotes") as client:
        bargains = await client.subscribe("symbol IN ('IBM', 'HPQ') AND price < 100")
        # From the start that it is told, a subscriber gets every match; wait for it here, so that
        # what is published next is certainly after it.

        for symbol, price in [("IBM", 99.5), ("MSFT", 50.0), ("HPQ", 101.0), ("HPQ", 98.0)]:
            await client.publish({"symbol": symbol, "price": price})

        for _ in range(2):
            received = await bargains.get()
            print(received["symbol"], received["price"], "at tick", received.tick)


if __name__ == "__main__":
    if sys.argv[1:]:
        asyncio.run(main(*sys.argv[1:]))
    else:
        with anabranch.embedded() as network:
            asyncio.run(main(*network.addresses))
