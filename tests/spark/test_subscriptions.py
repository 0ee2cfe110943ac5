"""Subscriptions for bulk matching: from whatever they are in, and what is wrong with them said."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.matching.index import MatchIndex
from anabranch.model.errors import LocalError
from anabranch.spark.bulk_matching import match
from anabranch.spark.subscriptions import SubscriptionsError, prepared


def test_file_table_snapshot_and_mapping_say_the_same(spark: SparkSession, tmp_path: Path) -> None:
    given = {"cheap": "price < 10", "é": "price >= 10"}
    lines = tmp_path / "subscriptions.jsonl"
    lines.write_text(
        "\n".join(json.dumps({"id": i, "filter": text}) for i, text in given.items()) + "\n\n"
    )
    rows = list(given.items())
    spark.createDataFrame(rows, "id string, filter string").write.parquet(str(tmp_path / "table"))
    with prepared(lines) as ready:
        ready.keep(tmp_path / "snapshot")
    frame = spark.createDataFrame([(1, 5.0), (2, 15.0)], "tick bigint, price double")
    for source in (given, lines, tmp_path / "table", tmp_path / "snapshot"):
        found = match(frame, source, keys=["tick"]).collect()
        assert {(row.tick, row.subscription) for row in found} == {(1, "cheap"), (2, "é")}


def test_a_snapshot_is_kept_where_nothing_else_is(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("precious")
    with prepared({1: "a = 1"}) as ready:
        with pytest.raises(LocalError, match="letter exists and is not a snapshot"):
            ready.keep(tmp_path / "letter")
        ready.keep(tmp_path / "snapshot")
    assert (tmp_path / "letter").read_text() == "precious"
    with prepared(tmp_path / "snapshot") as again:
        again.keep(tmp_path / "snapshot")
        assert len(again) == 1


def test_bad_filter_is_named_with_its_line_and_position(tmp_path: Path) -> None:
    lines = tmp_path / "subscriptions.jsonl"
    lines.write_text('{"id": 1, "filter": "a = 1"}\n\n{"id": 2, "filter": "price => 5"}\n')
    with pytest.raises(SubscriptionsError) as caught:
        prepared(lines)
    said = str(caught.value)
    assert said.startswith(f"{lines}, line 3: ")
    assert "position" in said
    assert "near: price => 5" in said


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not {"),
        ('{"id": 1.5, "filter": "a = 1"}', "not {"),
        ('{"id": 3}', "not {"),
        ('{"id": 1, "filter": "b = 1"}', "duplicate id 1"),
        ('{"id": 3, "filter": "a + > 1"}', "position"),
    ],
)
def test_invalid_line_is_passed_over_on_request_and_noted(
    tmp_path: Path, line: str, reason: str
) -> None:
    lines = tmp_path / "subscriptions.jsonl"
    lines.write_text(f'{{"id": 1, "filter": "a = 1"}}\n{line}\n{{"id": 2, "filter": "a = 2"}}\n')
    with pytest.raises(SubscriptionsError, match="line 2"):
        prepared(lines)
    with prepared(lines, skip_invalid=True) as ready:
        assert len(ready) == 2
        assert [problem.place for problem in ready.problems] == [f"{lines}, line 2"]
        assert reason in ready.problems[0].reason


def test_ids_that_would_look_the_same_are_refused() -> None:
    index = MatchIndex()
    index.add_many([(5, "a = 1"), ("5", "a = 2")])
    with pytest.raises(SubscriptionsError, match="ids 5 and '5' are ambiguous"):
        prepared(index)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(SubscriptionsError, match="nowhere cannot be read"):
        prepared(tmp_path / "nowhere")
    with pytest.raises(SubscriptionsError, match="contains no Parquet file"):
        prepared(tmp_path)
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(SubscriptionsError, match=r"cut.parquet cannot be read as Parquet"):
        prepared(tmp_path / "cut.parquet")
