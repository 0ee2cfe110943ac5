"""From a publisher over a broker, Spark and the same broker to a subscriber: how long that takes.

    publisher ── broker ── streaming query ── broker ── subscriber

The query reads questions and writes an answer to each, exactly once, with a checkpoint; it looks
for new ticks all the time (Spark's default trigger). Rules:

1. A question carries the time at which it was published, and so does its answer; both ends are this
   process, so there is one clock.
2. Some come alone: the query rests, and goes on resting for a time that is drawn, before the next
   one comes. Others come at a steady rate, several while a batch is made: they wait for the batch
   before theirs as well. The first ones, with which Java and Python warm up, do not count.
3. Every question must be answered once, or the run fails.

This module keeps no state.
"""

import json
import statistics
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from anabranch.cli.bench.spark_report import RoundTripFigures, SparkSize
from anabranch.cli.bench.verify import WrongAnswerError
from anabranch.client.blocking import BlockingClient, BlockingSubscription, connect_blocking
from anabranch.client.stream_reader import Fetcher
from anabranch.model.errors import LocalError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_WARM_UP = 20
_ANSWER_WITHIN_S = 120.0


def measure_round_trips(
    spark: "SparkSession", broker: str, size: SparkSize, folder: Path
) -> list[RoundTripFigures]:
    """Questions and answers, through a streaming query: alone, and at a steady rate."""
    with connect_blocking(broker, name="asker") as client:
        answers = client.subscribe("answered_ns IS NOT NULL")
        query = _query(spark, broker, folder)
        try:
            _warm_up(client, answers)
            alone = _alone(client, answers, size)
            steady = _steady(client, answers, size)
            _check_over(answers)
            return [_figures(0.0, alone), _figures(size.rate, steady)]
        except TimeoutError as error:
            problem = query.exception()
            raise LocalError(str(problem or error)) from error
        finally:
            query.stop()


def _warm_up(client: BlockingClient, answers: BlockingSubscription) -> None:
    """One by one until everything is loaded, on either side."""
    for _ in range(_WARM_UP):
        client.publish({"asked_ns": time.time_ns()})
        _answer(answers)


def _alone(client: BlockingClient, answers: BlockingSubscription, size: SparkSize) -> list[float]:
    """How long the answers to questions that come alone took, in milliseconds."""
    draw = Random(1)
    times: list[float] = []
    for _ in range(size.round_trips):
        # An answer is a tick too, which the query looks at in a batch of its own.
        time.sleep(size.rest_s * (1.0 + draw.random()))
        client.publish({"asked_ns": time.time_ns()})
        times.append(_answer(answers))
    return times


def _steady(client: BlockingClient, answers: BlockingSubscription, size: SparkSize) -> list[float]:
    """The same at a steady rate."""
    times: list[float] = []
    for _ in range(size.round_trips):
        client.publish({"asked_ns": time.time_ns()})
        times += _answers(answers, time.monotonic() + 1.0 / size.rate)
    while len(times) < size.round_trips:
        times.append(_answer(answers))
    return times


def _query(spark: "SparkSession", broker: str, folder: Path) -> "StreamingQuery":
    # A query that begins with the latest tick decides which that is some time after its start.
    with Fetcher(broker) as fetcher:
        described = fetcher.describe()
    begin = json.dumps({described.broker: described.head + 1})
    reader = spark.readStream.format("anabranch").option("brokers", broker)
    reader = reader.option("startingOffsets", begin)
    questions = reader.option("subscription", "asked_ns IS NOT NULL").schema("asked_ns BIGINT")
    answers = questions.load().withColumnRenamed("asked_ns", "answered_ns")
    writer = answers.writeStream.format("anabranch").option("brokers", broker)
    writer = writer.option("sinkId", "answers").option("checkpointLocation", str(folder / "trips"))
    return writer.start()


def _answer(answers: BlockingSubscription) -> float:
    """The next answer: how long it took, in milliseconds."""
    received = answers.get(timeout=_ANSWER_WITHIN_S)
    assert received is not None
    return (time.time_ns() - int(received["answered_ns"])) / 1e6


def _answers(answers: BlockingSubscription, deadline: float) -> list[float]:
    """Those that come until the next question is due."""
    found: list[float] = []
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            received = answers.get(timeout=left_s)
        except TimeoutError:
            break
        assert received is not None
        found.append((time.time_ns() - int(received["answered_ns"])) / 1e6)
    return found


def _check_over(answers: BlockingSubscription) -> None:
    try:
        answers.get(timeout=1.0)
    except TimeoutError:
        return
    raise WrongAnswerError("a question was answered twice")


def _figures(rate: float, times: list[float]) -> RoundTripFigures:
    parts = statistics.quantiles(times, n=10)
    return RoundTripFigures(
        rate=rate,
        count=len(times),
        p50_ms=statistics.median(times),
        p90_ms=parts[-1],
        max_ms=max(times),
    )
