"""What the demonstration shows of a moment; the whole of it is in tests/process."""

from pathlib import Path

import pytest
from rich.console import Console

from anabranch.cli.demo_pipeline import obstacle
from anabranch.cli.demo_view import Moment, Reader, line, tables


def moment() -> Moment:
    reader = Reader(
        name="acme",
        filter="price > 10",
        quality="durable",
        home="e3",
        received=1_200,
        outstanding=7,
        lag_ms=12.4,
        silent_s=0.5,
    )
    return Moment(
        seconds=12.0,
        phase="kill -9 of a relay: w1",
        published=5_000,
        confirmed=4_990,
        published_per_s=200.0,
        delivered_per_s=150.0,
        brokers={"w1": "down", "w2": "ready"},
        readers=(reader,),
    )


def test_a_line_says_how_much_how_fast_and_who_is_down() -> None:
    text = line(moment())
    assert "published 5,000 (200/s)" in text
    assert "delivered 1,200 (150/s)" in text
    assert "on the way 7" in text
    assert text.endswith("down: w1")


def test_the_tables_name_each_subscriber_with_its_broker_and_lag() -> None:
    console = Console(width=140, record=True, quiet=False, file=None)
    with console.capture() as captured:
        console.print(tables(moment()), markup=False)
    text = captured.get()
    assert "w1[down]" in text
    row = next(each for each in text.splitlines() if "acme" in each)
    assert all(part in row for part in ("price > 10", "durable", "e3", "1,200", "7", "12"))


def test_a_machine_without_java_is_told_so_before_anything_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert f"JAVA_HOME is {tmp_path}, which has no Java" in obstacle()
