"""The end of the demonstration: an archive, an audit, selectivities and a page."""

from pathlib import Path

from pyspark.sql import SparkSession

import anabranch
from anabranch.cli.demo_pipeline import conclude
from tests.spark_parts import network_of


def test_the_demonstration_ends_with_archive_audit_and_selectivities(
    spark: SparkSession, tmp_path: Path
) -> None:
    filters = {"cheap": "price < 25", "ibm": "symbol = 'IBM' AND price < 25"}
    traces = [tmp_path / f"{name}.jsonl" for name in (*filters, "feed")]
    with network_of(tmp_path) as network:
        clients = [
            anabranch.connect_blocking(network.addresses[0], name=path.stem, trace=path)
            for path in traces
        ]
        wanted = [
            client.subscribe(text) for client, text in zip(clients, filters.values(), strict=False)
        ]
        for subscription in wanted:
            subscription.wait_started("a", "b", timeout=180.0)
        clients[2].publish_many(
            {"price": n % 100, "symbol": "IBM" if n % 2 else "HPQ"} for n in range(400)
        )
        for subscription, count in zip(wanted, (100, 48), strict=True):
            assert all(subscription.get(timeout=180.0) for _ in range(count))
        said: list[str] = []
        done = conclude(
            network.addresses,
            traces,
            filters,
            archive=tmp_path / "archive",
            page=tmp_path / "audit.html",
            say=said.append,
            master="local[2]",
        )
        for client in clients:
            client.close()
    assert done.clean
    assert done.archived_events == 400
    assert done.audited_rows == 400 + 148
    assert [share.exact for share in done.shares] == [0.25, 0.12]
    for share in done.shares:
        assert share.low <= share.exact <= share.high
        assert abs(share.estimated - share.exact) < 0.02
    assert "every promise kept" in (tmp_path / "audit.html").read_text()
    assert said == [
        "starting Spark",
        "archiving all events as Parquet",
        "auditing traces against the archive",
        "computing statistics of the archive",
    ]
