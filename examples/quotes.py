"""Publish and subscribe: quotes are published, and those that match a filter are printed.

The client finds the running network by its network file, and another broker if its own one fails.
An attribute has the type that the publisher gave it; `float` and `text` check that it is the
expected one.

    anabranch up examples/network.toml      # in another terminal
    python examples/quotes.py
"""

import asyncio
from pathlib import Path

import anabranch

NETWORK = Path(__file__).with_name("network.toml")
QUOTES = [("IBM", 99.5), ("MSFT", 50), ("HPQ", 101.0), ("HPQ", 98)]


async def main() -> None:
    """Publish four quotes, two of which match."""
    async with (
        anabranch.connect(network_file=NETWORK, name="quotes") as client,
        await client.subscribe("symbol IN ('IBM', 'HPQ') AND price < 100") as bargains,
    ):
        for symbol, price in QUOTES:
            await client.publish({"symbol": symbol, "price": price})

        async for received in bargains:
            # HPQ's price is the integer 98, which is accepted as a float.
            print(received.text("symbol"), received.float("price"))
            if received.text("symbol") == "HPQ":
                break


if __name__ == "__main__":
    asyncio.run(main())
