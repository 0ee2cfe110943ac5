"""Audits: exactly the anomalies there are, and the same ones that the checker finds."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import anabranch
from anabranch.check import history as saw
from anabranch.cli.main import app
from anabranch.devnet.traces import encode_line
from anabranch.model.errors import LocalError
from anabranch.sim.runner import Order, plan_of
from anabranch.spark.audit import audit, findings
from anabranch.spark.audit.inputs import Logs
from anabranch.spark.audit.runner import audit_traces
from anabranch.spark.audit.verdicts import KINDS
from evaluation.spark.audit import make_specimen
from tests.spark.spoiling import LoggedRow, Place, checked, logged_rows, simulated, spoiled


def places(findings: DataFrame) -> Counter[Place]:
    rows = findings.select("kind", "subscription", "stream", "tick").collect()
    return Counter((kind, name or "", stream, tick) for kind, name, stream, tick in rows)


# -- made up, with known anomalies


def test_exactly_the_injected_anomalies_are_found(spark: SparkSession, tmp_path: Path) -> None:
    made = make_specimen(tmp_path, rows=100_000, anomalies=60, seed=5, streams=3)
    assert len(made.injected) == 60
    tables = (tmp_path / name for name in ("published", "subscriptions", "deliveries"))
    with audit(spark, *tables) as found:
        assert places(found.findings) == Counter(made.injected)
        report = found.report()
        with pytest.MonkeyPatch.context() as patch:
            # However little is brought from Spark, sums are right.
            patch.setattr(findings, "GROUPS_MAX", 4)
            brief = found.report(0)
    assert brief.counts == report.counts
    assert "only the" in brief.notes[0]
    assert sum(line.expected for line in brief.streams) == report.expected
    assert report.counts == dict.fromkeys(KINDS, 12)
    assert report.published == made.published
    assert report.delivered == made.delivered
    lost = report.counts["lost"]
    more = sum(report.counts[kind] for kind in ("duplicate", "unmatched"))
    there = report.expected - lost
    assert made.delivered - more - report.counts["phantom"] <= there <= made.delivered - more
    assert [len([e for e in report.examples if e.kind == kind]) for kind in KINDS] == [5] * 5
    assert sum(each.count for each in report.latencies) > 0.9 * made.delivered
    hours = Counter[str]()
    for hour in report.hours:
        hours.update(hour.anomalies)
    assert dict(hours) == report.counts


def test_the_same_specimen_is_made_again(tmp_path: Path) -> None:
    first, second = (
        make_specimen(tmp_path / name, rows=2_000, anomalies=5, seed=3, streams=1) for name in "ab"
    )
    assert first.injected == second.injected
    files = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.parquet"))
    assert len(files) == 3
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


# -- the same as the checker finds


LOGGED = "stream string, tick bigint, publisher string, incarnation bigint, seq bigint"


def test_an_audit_agrees_with_the_checker_on_spoiled_traces(
    spark: SparkSession, tmp_path: Path
) -> None:
    seeds = [seed for seed in range(40) if not plan_of(Order(shape="star"), seed).sinks][:5]
    whole = [simulated(seed) for seed in seeds]
    cases = {case: spoiled(case, whole[case % len(whole)]) for case in range(30)}
    expected: Counter[Place] = Counter()
    rows: list[LoggedRow] = []
    paths = []
    for case, history in cases.items():
        expected += checked(history)
        rows += logged_rows(history)
        told = [record for record in history if not isinstance(record, saw.Logged)]
        paths.append(tmp_path / f"{case}.jsonl")
        paths[-1].write_bytes(b"".join(map(encode_line, told)) + b'{"type":"Deli')
    published = spark.createDataFrame(rows, f"{LOGGED}, attributes string")
    found, _ = audit_traces(spark, paths, lambda: Logs(published), complete=True)
    with found:
        assert places(found.findings) == expected
    assert {kind for kind, _, _, _ in expected} == set(KINDS)
    assert not [place for place in expected if re.match("(0|6|12|18|24)/", place[1] or place[2])]


# -- by the command, with a real network


def run_cli(*words: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["pipeline", "audit", *map(str, words), "--master", "local[2]"])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_judges_traces_of_a_real_network(spark: SparkSession, tmp_path: Path) -> None:
    state, traces = tmp_path / "state", [tmp_path / "reader.jsonl", tmp_path / "writer.jsonl"]
    with anabranch.embedded(state=state) as network:
        reader = network.connect_blocking(name="reader", trace=traces[0])
        writer = network.connect_blocking(name="writer", trace=traces[1])
        with reader, writer:
            wanted = reader.subscribe("price > 10 AND symbol <> 'X'")
            wanted.wait_started(timeout=180.0)
            quotes = [(number % 20, "XY"[number % 7 > 0]) for number in range(60)]
            for price, symbol in quotes:
                writer.publish({"price": price, "symbol": symbol})
            for _ in range(sum(price > 10 and symbol != "X" for price, symbol in quotes)):
                next(wanted)
    lines = traces[0].read_text().splitlines(keepends=True)
    first = next(place for place, line in enumerate(lines) if '"Delivered"' in line)
    traces[0].write_text("".join(lines[:first] + lines[first + 1 :]))
    report = tmp_path / "report.html"
    words = (*traces, "--published", state, "--complete", "--json", "--report", report)
    code, out, _ = run_cli(*words)
    assert code == 1
    found = json.loads(out)
    assert found["counts"] == dict.fromkeys(KINDS, 0) | {"lost": 1}
    assert found["examples"][0]["tick"] == json.loads(lines[first])["tick"]
    assert found["published"] == len(quotes)
    assert found["latencies"]
    assert "promises broken: 1 anomaly" in report.read_text()


def test_the_command_judges_tables_and_ends_well(spark: SparkSession, tmp_path: Path) -> None:
    made = make_specimen(tmp_path, rows=2_000, anomalies=0, streams=1, subscriptions=20)
    code, out, _ = run_cli(tmp_path)
    assert code == 0, out
    assert f"published {made.published:,}, expected {made.delivered:,}" in out
    assert "every guarantee kept: lost 0, duplicate 0, reordered 0, unmatched 0, phantom 0" in out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["gone.jsonl"], "does not exist"),
        (["torn.jsonl", "--published", "tables"], "its first line is incomplete"),
        (["trace.jsonl"], "give the source of the published events"),
        (["damaged.jsonl", "--published", "tables"], "damaged.jsonl, byte 77"),
        (["trace.jsonl", "--published", "tables"], "nothing to audit"),
    ],
)
def test_bad_input_is_told_in_one_line(
    spark: SparkSession, tmp_path: Path, words: list[str], problem: str
) -> None:
    (tmp_path / "torn.jsonl").write_text('{"type":')
    line = encode_line(saw.Confirmed(1.0, "p", 1, 1))
    (tmp_path / "trace.jsonl").write_bytes(line)
    (tmp_path / "damaged.jsonl").write_bytes(line + b'{"type":"Deli\n' + line)
    empty = spark.createDataFrame([], f"{LOGGED}, a bigint")
    empty.write.mode("overwrite").parquet(str(tmp_path / "tables"))
    known = {"gone.jsonl", "torn.jsonl", "trace.jsonl", "damaged.jsonl", "tables"}
    given = [str(tmp_path / word) if word in known else word for word in words]
    done = CliRunner().invoke(app, ["pipeline", "audit", *given, "--master", "local[2]"])
    assert done.exit_code == 2
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1


# -- tables


SUBSCRIBED = "subscription string, filter string, stream string, start bigint, end bigint"
DELIVERED = "subscription string, stream string, tick bigint, order bigint"


def one_stream(spark: SparkSession, *, filter: str = "a > 2") -> list[DataFrame]:
    """Ticks 1 to 6 of stream `o` with a = tick, and a subscription from 2 on."""
    return [
        spark.createDataFrame([("o", tick, tick) for tick in range(1, 7)], "stream string, tick"
                              " bigint, a bigint"),
        spark.createDataFrame([("s", filter, "o", 2, None)], SUBSCRIBED),
        spark.createDataFrame([("s", "o", 3, 1), ("s", "o", 4, 2), ("s", "o", 6, 3)], DELIVERED),
    ]  # fmt: skip


def test_what_was_withheld_is_not_lost(spark: SparkSession) -> None:
    published, subscriptions, deliveries = one_stream(spark)
    other = spark.createDataFrame([("t", "a > 4", "o", 1, None)], SUBSCRIBED)
    holes = "subscription string, stream string, first bigint, last bigint"
    withheld = spark.createDataFrame([("s", "o", 5, 5), ("t", "o", 1, 5)], holes)
    wanted = subscriptions.union(other)
    with audit(spark, published, wanted, deliveries, withheld=withheld) as found:
        assert places(found.findings) == Counter([("lost", "t", "o", 6)])


@pytest.mark.parametrize(
    ("filter", "problem"),
    [("a >", "the filter of subscription 's'"), ("", "the filter of subscription 's'")],
)
def test_a_filter_that_is_none_names_its_subscription(
    spark: SparkSession, filter: str, problem: str
) -> None:
    with pytest.raises(LocalError, match=problem):
        audit(spark, *one_stream(spark, filter=filter))


def test_tables_that_are_none_say_what_they_lack(spark: SparkSession) -> None:
    published, subscriptions, deliveries = one_stream(spark)
    with pytest.raises(LocalError, match="'deliveries' has no column 'order'"):
        audit(spark, published, subscriptions, deliveries.drop("order"))
    broken = published.withColumn("tick", published["tick"].cast("string"))
    with pytest.raises(LocalError, match="column 'tick' of the table 'published' is string"):
        audit(spark, broken, subscriptions, deliveries)
    with pytest.raises(LocalError, match="is empty"):
        audit(spark, published, subscriptions.limit(0), deliveries)
    with pytest.raises(LocalError, match="has two rows for stream"):
        audit(spark, published, subscriptions.union(subscriptions), deliveries)
