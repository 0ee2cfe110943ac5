"""A durable subscription: every order is booked once and in order, whatever is killed.

A shop sells orders; the accounts book them in a database. The position in each stream is stored in
the same transaction as the order, so an order that comes again after a crash is recognised. Kill
`book` and start it again, or kill a broker: it continues where it was. `survive.sh` does that.

    anabranch up examples/network.toml            # in another terminal
    python examples/orders.py open                # once: from now on the network keeps orders
    python examples/orders.py sell 100
    python examples/orders.py book 100            # until 100 orders are booked
    python examples/orders.py report
"""

import asyncio
import sqlite3
import sys
from pathlib import Path

import anabranch

NETWORK = Path(__file__).with_name("network.toml")
BOOKS = Path(__file__).with_name("books.sqlite")


class Books:
    """The application's own state: the orders, and how far each stream is booked."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(BOOKS)
        self._database.executescript(
            "CREATE TABLE IF NOT EXISTS booked (stream TEXT PRIMARY KEY, tick INTEGER);"
            "CREATE TABLE IF NOT EXISTS orders (number INTEGER, amount REAL);"
        )

    def book(self, order: anabranch.Received) -> None:
        """Book an order, unless it was booked before."""
        with self._database as transaction:
            row = transaction.execute(
                "SELECT tick FROM booked WHERE stream = ?", (order.stream,)
            ).fetchone()
            if row is not None and order.tick <= row[0]:
                return
            transaction.execute(
                "INSERT INTO orders VALUES (?, ?)", (order.int("number"), order.float("amount"))
            )
            transaction.execute(
                "INSERT OR REPLACE INTO booked VALUES (?, ?)", (order.stream, order.tick)
            )

    def numbers(self) -> list[int]:
        """The numbers of the orders, as they were booked."""
        found = self._database.execute("SELECT number FROM orders ORDER BY rowid")
        return [number for (number,) in found]


async def accounts() -> anabranch.Client:
    """The client that owns the subscription, at the first broker of the file that answers."""
    return await anabranch.connect(network_file=NETWORK, name="accounts", address_order="given")


async def subscribe(client: anabranch.Client) -> anabranch.Subscription:
    """Create the subscription, or continue it."""
    return await client.subscribe(
        "kind = 'order'", durable="orders", manual_ack=True, on_order_not_kept=print
    )


async def open_accounts() -> None:
    """Create the subscription. It stays when the client leaves."""
    async with await accounts() as client:
        orders = await subscribe(client)
        await orders.wait_started("north", "west", "east")


async def sell(count: int) -> None:
    """Publish orders. Each is in the log of a broker before the next one is made."""
    async with anabranch.connect(network_file=NETWORK, name="shop") as shop:
        for number in range(1, count + 1):
            await shop.publish({"kind": "order", "number": number, "amount": 9.5 * number})
            await asyncio.sleep(0.02)  # until the next customer
    print("sold", count, "orders")


async def book(until: int) -> None:
    """Book orders until there are so many."""
    books = Books()
    async with await accounts() as client, await subscribe(client) as orders:
        while len(books.numbers()) < until:
            order = await orders.get()
            books.book(order)
            await orders.ack(order)


def report() -> None:
    """Print what is booked."""
    numbers = Books().numbers()
    is_complete = numbers == list(range(1, len(numbers) + 1))
    print(len(numbers), "orders,", "each once, in order" if is_complete else f"wrong: {numbers}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["open"]:
            asyncio.run(open_accounts())
        case ["sell", count]:
            asyncio.run(sell(int(count)))
        case ["book", until]:
            asyncio.run(book(int(until)))
        case ["report"]:
            report()
        case _:
            sys.exit(__doc__)
