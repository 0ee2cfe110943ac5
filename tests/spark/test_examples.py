"""The examples that need Spark run as they are, and do what they say."""

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def test_the_pipeline_of_the_examples_ends_with_a_clean_audit(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(ROOT / "examples" / "quotes_pipeline.py"))["main"](tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert "the desk has its 57 quotes" in lines
    assert "|   IBM|     200|   182.985|" in lines
    # 600 quotes, and averages of three shares for nine minutes.
    assert "archived: 627 events" in lines
    assert "DEC, minute by minute: 17.3 17.9 18.5 19.1 19.7 20.3 20.9 21.5 22.1" in lines
    assert lines[-1] == (
        "audit: {'lost': 0, 'duplicate': 0, 'reordered': 0, 'unmatched': 0, 'phantom': 0}"
    )
    assert "every promise kept" in (tmp_path / "audit.html").read_text()


def test_the_statements_of_the_example_read_and_write_a_network(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert SparkSession.getActiveSession() is spark
    runpy.run_path(str(ROOT / "examples" / "sql.py"))["main"]()
    lines = capsys.readouterr().out.splitlines()
    assert "|   HPQ|      33.0|" in lines
    assert lines[-2:] == ["HPQ 32.0", "IBM 99.5"]
