"""The benchmark of the pipeline: it counts what it measured, and bars bind where they should."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from evaluation.measurement import WrongAnswerError
from evaluation.spark import pipeline
from evaluation.spark.pipeline import (
    FILTER,
    PARTS,
    ArchiveFigures,
    DetectFigures,
    ReadFigures,
    Reading,
    RoundTripFigures,
    SparkReport,
    SparkSize,
    _chosen,
    measure_detection,
    measure_round_trips,
    verdicts,
)
from tests.spark_parts import network_of

ONE = """
[network]
name = "one"
[tree]
a = []
[options]
keep_s = 86_400.0
"""
TINY = SparkSize(events=200, passes=1, round_trips=2, rate=50.0, rest_s=0.0)


def report(size: SparkSize, master: str = "local[2]") -> SparkReport:
    read = ReadFigures(what="network", rows=1, seconds=1.0, ticks_per_s=2e6)
    slow = replace(read, columns="tick", ticks_per_s=5e5)
    archive = ArchiveFigures(
        rows=1, seconds=1.0, rows_per_s=4e5, read_seconds=1.0, read_rows_per_s=1e6
    )
    return SparkReport(
        cores=2,
        system="",
        python="",
        spark="",
        java="",
        master=master,
        size=size,
        reads=[read, slow, replace(read, filter=FILTER), replace(read, what="Parquet")],
        archive=archive,
        detections=[
            DetectFigures(
                pattern="", wanted_percent=share, matches=1, seconds=1.0, events_per_s=rate
            )
            for share, rate in ((20, 3e5), (50, 1e5))
        ],
        round_trips=[
            RoundTripFigures(rate=rate, count=200, p50_ms=150.0, p90_ms=200.0, max_ms=900.0)
            for rate in (0.0, 20.0)
        ],
    )


def test_bars_bind_at_their_sizes_only() -> None:
    found = verdicts(report(SparkSize()))
    assert [(each.met, each.goal) for each in found] == [
        (True, False),
        (False, False),
        (True, False),
        (True, False),
        (False, True),
        (True, False),
        (True, True),
    ]
    assert found[-1].name == "broker → Spark → broker, 20 events/s, p50 ms"
    assert len(verdicts(report(TINY))) == 2
    assert verdicts(report(SparkSize(), master="spark://host:7077")) == []


def test_parts_are_chosen_by_letter() -> None:
    assert _chosen("l,r") == ("r", "l")
    assert _chosen(",".join(PARTS)) == PARTS


@pytest.mark.slow
def test_answers_that_are_wrong_or_missing_fail_the_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_WARM_UP", 1)
    with network_of(tmp_path, ONE) as network:
        with network.connect_blocking(name="feed") as client:
            client.publish_many(
                {"symbol": f"S{n % 100}", "price": 100.5, "volume": n} for n in range(200)
            )
        reading = Reading(spark, network.addresses[0], TINY, tmp_path)
        assert reading._filtered().rows == 2
        every = measure_round_trips(spark, network.addresses[0], TINY, tmp_path)
        assert [(trips.rate, trips.count) for trips in every] == [(0.0, 2), (50.0, 2)]
        assert all(0 < trips.p50_ms <= trips.max_ms for trips in every)
        wrong = Reading(spark, network.addresses[0], replace(TINY, events=300), tmp_path)
        with pytest.raises(WrongAnswerError, match=r"network, symbol = 'S7': 2 rows of 3"):
            wrong._filtered()


@pytest.mark.slow
def test_detection_is_held_against_a_join(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "SHARES", (50,))
    monkeypatch.setattr(pipeline, "_SYMBOLS", 10)
    (found,) = measure_detection(spark, TINY, tmp_path / "right")
    assert found.matches > 10
    monkeypatch.setattr(pipeline, "_joined", lambda *_: 1)
    with pytest.raises(WrongAnswerError, match=r"matches of 1$"):
        measure_detection(spark, TINY, tmp_path / "wrong")
