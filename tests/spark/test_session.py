"""Sessions: what is set, what can be overridden, and what is chosen in words."""

import os
import sys

import pytest
from pyspark.sql import SparkSession

from anabranch.model.errors import LocalError
from anabranch.spark.session import MASTER_VARIABLE, chosen, defaults, session


def test_a_session_has_the_documented_settings(spark: SparkSession) -> None:
    settings = {key: spark.conf.get(key) for key in defaults("local[2]")}
    assert settings == {
        **defaults("local[2]"),
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
    }
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert "RocksDB" in str(spark.conf.get("spark.sql.streaming.stateStore.providerClass"))
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"


def test_workers_run_this_python(spark: SparkSession) -> None:
    assert os.environ["PYSPARK_PYTHON"] == sys.executable
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("sys").executable)
    assert found.collect() == [sys.executable]


def test_a_cluster_keeps_its_own_addresses_and_partitions() -> None:
    assert "spark.driver.host" not in defaults("spark://host:7077")
    assert "spark.sql.shuffle.partitions" not in defaults("spark://host:7077")


def test_the_session_that_there_is_is_given_back_with_new_settings(spark: SparkSession) -> None:
    key = "spark.sql.files.maxRecordsPerFile"
    before = spark.conf.get(key)
    assert session(**{key: "7"}) is spark
    assert spark.conf.get(key) == "7"
    spark.conf.set(key, str(before))
    assert session("local[2]", **{"spark.ui.enabled": "false"}) is spark


def test_another_master_or_a_setting_that_comes_too_late_is_an_error(spark: SparkSession) -> None:
    with pytest.raises(
        LocalError, match=r"session at local\[2\] is running, but local\[9\] was requested"
    ):
        session("local[9]")
    with pytest.raises(
        LocalError, match=r"session at local\[2\] is running, but sc://host was requested"
    ):
        session("sc://host")
    with pytest.raises(LocalError, match=r"cannot set spark\.driver\.memory=9g"):
        session(**{"spark.driver.memory": "9g"})


def test_what_was_chosen_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen("local[2]").startswith("Spark at local[2], Java ")
    assert chosen("sc://host:15002") == "Spark Connect at sc://host:15002"
    monkeypatch.setenv(MASTER_VARIABLE, "local[3]")
    assert chosen().startswith("Spark at local[3], Java ")
