"""A pattern: a low price followed by a high one of the same symbol, detected by the brokers.

anabranch up examples/network.toml      # in another terminal
python examples/rises.py
"""

import asyncio
from pathlib import Path

import anabranch

NETWORK = Path(__file__).with_name("network.toml")
RISE = "low:{price < 20} THEN high:{price > 30} WHERE low.symbol = high.symbol WITHIN 1 min"
PRICES = [("IBM", 12), ("HPQ", 35), ("HPQ", 18), ("IBM", 25), ("IBM", 40)]


async def main() -> None:
    """Publish prices in which one symbol rises."""
    async with (
        anabranch.connect(network_file=NETWORK, name="analyst") as client,
        await client.subscribe_pattern(RISE) as rises,
    ):
        await client.publish_many({"symbol": name, "price": price} for name, price in PRICES)
        rise = await rises.get()
        low, high = rise["low"], rise["high"]
        print(low["symbol"], "rose from", low["price"], "to", high["price"])


if __name__ == "__main__":
    asyncio.run(main())
