"""Spark SQL: quotes of a network as a table, and their averages written back.

Filters run in the brokers: only prices above 10 leave them. An `INSERT` is written once per
`transactionId`, however often it is repeated. Here the network is inside this program; `brokers`
are the addresses that `anabranch up` prints.

Needs `pip install 'anabranch[spark]'` and Java 17 (docs/how-to/read-with-spark.md).

    python examples/sql.py
"""

from pathlib import Path

import anabranch
from anabranch.spark import session

NETWORK = Path(__file__).with_name("network.toml")
QUOTES = [("IBM", 99.5), ("HPQ", 31.0), ("HPQ", 33.0), ("DEC", 7.0)]


def main() -> None:
    """Publish quotes, average them in SQL, and read the averages as events."""
    spark = session()
    with (
        anabranch.embedded(NETWORK) as network,
        network.connect_blocking(name="quotes") as client,
        client.subscribe("average IS NOT NULL") as averages,
    ):
        averages.wait_started("north", "west", "east", timeout=30)
        client.publish_many({"symbol": symbol, "price": price} for symbol, price in QUOTES)

        brokers = ",".join(network.addresses)
        spark.sql(
            "CREATE TABLE quotes USING anabranch"
            f" OPTIONS (brokers '{brokers}', filter 'price > 10')"
        )
        spark.sql("SELECT symbol, max(price) FROM quotes GROUP BY symbol ORDER BY symbol").show()

        spark.sql(
            "CREATE TEMPORARY VIEW averages (symbol STRING, average DOUBLE) USING anabranch"
            f" OPTIONS (brokers '{brokers}', transactionId 'averages of 2026-03-02')"
        )
        for _ in range(2):  # the second time nothing is written
            spark.sql("INSERT INTO averages SELECT symbol, avg(price) FROM quotes GROUP BY symbol")
        spark.sql("DROP VIEW averages")
        spark.sql("DROP TABLE quotes")

        received = [averages.get(timeout=30) for _ in range(2)]
        for each in sorted(received, key=lambda each: each.text("symbol")):
            print(each.text("symbol"), each.float("average"))


if __name__ == "__main__":
    main()
