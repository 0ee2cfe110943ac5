"""A durable subscription whose side effects happen exactly once, although the process may die.

Orders are booked in a database. The position up to which they were booked is kept in the same
transaction, so that an order that comes again after a crash is seen to be booked already:

    python examples/durable_orders.py [ADDRESS]...
"""

import asyncio
import sqlite3
import sys
import tempfile
from pathlib import Path

import anabranch
from anabranch import Received


class Books:
    """The application's own state: a total, and how far each stream was booked."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path)
        self._database.executescript(
            "CREATE TABLE IF NOT EXISTS booked (stream TEXT PRIMARY KEY, tick INTEGER);"
            "CREATE TABLE IF NOT EXISTS orders (number INTEGER, amount INTEGER);"
        )

    def book(self, received: Received) -> bool:
        """Book an order, once; False if it was booked before."""
        with self._database as transaction:
            row = transaction.execute(
                "SELECT tick FROM booked WHERE stream = ?", (received.stream,)
            ).fetchone()
            if row is not None and received.tick <= row[0]:
                return False
            order = (received["number"], received["amount"])
            transaction.execute("INSERT INTO orders VALUES (?, ?)", order)
            transaction.execute(
                "INSERT OR REPLACE INTO booked VALUES (?, ?)", (received.stream, received.tick)
            )
        return True

    def numbers(self) -> list[int]:
        """The orders that are booked."""
        return [number for (number,) in self._database.execute("SELECT number FROM orders")]


async def take_orders(addresses: list[str], books: Books, until: int, crash_at: int = 0) -> None:
    """Book orders up to a number; `crash_at` leaves without a word after booking one."""
    client = await anabranch.connect(*addresses, name="booking")
    orders = await client.subscribe("kind = 'order'", durable="orders", manual_ack=True)
    async for received in orders:
        is_new = books.book(received)
        print("order", received["number"], "booked" if is_new else "was booked before")
        if received["number"] == crash_at:
            # A process that is killed acknowledges nothing. The order will come again.
            break
        await orders.ack(received)
        if received["number"] == until:
            break
    await client.close()


async def main(addresses: list[str], path: Path) -> None:
    """Publish orders, and book them with a crash in between."""
    books = Books(path)
    async with anabranch.connect(*addresses, name="booking") as client:
        # The first time, the subscription is made. It stays when the client leaves.
        await client.subscribe("kind = 'order'", durable="orders")
    async with anabranch.connect(*addresses, name="shop") as shop:
        await shop.publish_many({"kind": "order", "number": n, "amount": 10 * n} for n in (1, 2, 3))
        await take_orders(addresses, books, until=3, crash_at=2)
        await shop.publish({"kind": "order", "number": 4, "amount": 40})
        await take_orders(addresses, books, until=4)
    print("booked:", books.numbers())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "books.sqlite"
        if sys.argv[1:]:
            asyncio.run(main(sys.argv[1:], place))
        else:
            with anabranch.embedded() as network:
                asyncio.run(main(list(network.addresses), place))
