"""From traces and logs to an audit, with what one should know about its verdict.

    found, notes = audit_traces(spark, paths, lambda: read_states(spark, states), complete=True)

Traces say what clients were told, `published` says what is logged: from the states of brokers
(`logged`), from an archive, or from the network itself (`archived`).

The network may run meanwhile. What a client was told is on disk before that, and what it publishes
is in its trace before that is sent. So what was told is taken from the traces before the logs are
read, and what was published after: nobody is blamed for what happened in between.

This module keeps no state.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.functions import max as greatest

from anabranch.model.errors import LocalError
from anabranch.spark.audit.episodes import Place, read_episodes
from anabranch.spark.audit.logged import Logs
from anabranch.spark.audit.running import Audit, audit
from anabranch.spark.audit.tables import has_id
from anabranch.spark.audit.traces import Traces, with_optional

#: Tables that a directory of Parquet files may have, beside those that it must have.
_REQUIRED = ("published", "subscriptions", "deliveries")
_OPTIONAL = ("withheld", "sent")


def is_prepared(directory: Path) -> bool:
    """Whether a directory has the tables of an audit."""
    return all((directory / name).is_dir() for name in _REQUIRED)


def audit_prepared(
    spark: SparkSession, directory: Path, published: Logs | None = None
) -> tuple[Audit, list[str]]:
    """Audit the tables in a directory."""
    more = {name: directory / name for name in _OPTIONAL if (directory / name).is_dir()}
    logs = published or Logs(spark.read.parquet(str(directory / "published")), {})
    tables = (logs.published, directory / "subscriptions", directory / "deliveries")
    found = audit(
        spark,
        *tables,
        withheld=more.get("withheld"),
        sent=more.get("sent"),
        beginnings=logs.beginnings,
        attributes=logs.attributes,
    )
    return found, _notes_on_beginnings(logs.beginnings)


def audit_traces(
    spark: SparkSession,
    paths: Sequence[Path],
    read_logs: Callable[[], Logs],
    *,
    complete: bool = False,
) -> tuple[Audit, list[str]]:
    """Audit what clients wrote down. `complete`: what has not come never comes."""
    traces = Traces(spark, paths)
    episodes = read_episodes(traces.told())
    if not episodes.every:
        raise LocalError("no trace tells of a subscription: there is nothing to audit")
    logs = read_logs()
    # All of it is asked for several times; and the logs have to be read before the second look.
    logged = logs.published.persist(StorageLevel.MEMORY_AND_DISK)
    logged.count()
    sent = Traces(spark, paths).sent(traces).persist(StorageLevel.MEMORY_AND_DISK)
    deliveries = traces.deliveries().persist(StorageLevel.MEMORY_AND_DISK)
    published, has_names = logged, has_id(logged)
    if has_names and not sent.where("optional").isEmpty():
        published = with_optional(logged, sent, deliveries)
        published = published.persist(StorageLevel.MEMORY_AND_DISK)
    wanted = episodes.subscriptions(_latest(deliveries), complete=complete)
    found = audit(
        spark,
        published,
        spark.createDataFrame(wanted),
        deliveries,
        withheld=spark.createDataFrame(episodes.holes()) if episodes.withheld else None,
        sent=_due(sent, logs) if has_names else None,
        beginnings=logs.beginnings,
        attributes=logs.attributes,
    )
    found.kept += [logged, published, sent, deliveries]
    notes = _notes_on_beginnings(logs.beginnings)
    if not has_names:
        notes.append("what was published has no ids, so publishers were not judged")
    if not complete:
        notes.append("what had not come when the traces ended was not judged; --complete does that")
    return found, notes


def _due(sent: DataFrame, logs: Logs) -> DataFrame:
    """What was sent; confirmed is what has to be in these logs."""
    if logs.has_optional:
        return sent
    return sent.withColumn("confirmed", col("confirmed") & ~col("optional"))


def _latest(deliveries: DataFrame) -> dict[Place, int]:
    rows = deliveries.groupBy("subscription", "stream").agg(greatest("tick").alias("tick"))
    return {(row["subscription"], row["stream"]): row["tick"] for row in rows.collect()}


def _notes_on_beginnings(beginnings: Mapping[str, int]) -> list[str]:
    return [
        f"the log of {stream} begins with tick {first}; what came before is judged by its order"
        " alone"
        for stream, first in sorted(beginnings.items())
        if first > 1
    ]
