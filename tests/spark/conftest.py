"""One Spark session for all tests of this directory: two cores, two partitions, no interface.

They run in one process (`scripts/test` sees to that): a second session would be a second Java. All
that need one are slow: `scripts/test --fast` starts no Java.

Most queries run once. So Java compiles quickly rather than well, here and in drivers that tests
start: with two cores, its thorough compiler would take as long as the tests.
"""

import os
import warnings
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from anabranch.spark.session import session

os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with warnings.catch_warnings():
        # Spark's own libraries warn about each other while they start.
        warnings.simplefilter("ignore")
        started = session(
            "local[2]",
            name="tests",
            **{"spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"},
        )
    started.sparkContext.setLogLevel("ERROR")
    yield started
    started.stop()
