"""`anabranch pipeline archive`: what it prints, and how it fails."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from anabranch.cli.main import app
from anabranch.cli.output import iso_time
from anabranch.cli.pipeline.spark_io import told_plainly
from tests.archive_parts import archived
from tests.spark_parts import PAIR, network_of


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["pipeline", "archive", *arguments])


@pytest.fixture
def here(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands use the one session that there is, and leave it."""

    @contextmanager
    def session_of_tests(*_: object, **__: object) -> Iterator[SparkSession]:
        with told_plainly():
            yield spark

    command = import_module("anabranch.cli.pipeline.archive")
    monkeypatch.setattr(command, "spark_session", session_of_tests)


def test_an_archive_is_written_shown_compacted_and_verified(here: None, tmp_path: Path) -> None:
    directory = str(tmp_path / "archive")
    with network_of(tmp_path, PAIR) as network, network.connect_blocking(name="feed") as client:
        for first in (0, 30):
            client.publish_many({"n": n, "price": n / 4} for n in range(first, first + 30))
            written = invoke(network.addresses[0], "--to", directory, "--json")
            assert written.exit_code == 0, written.output
            assert json.loads(written.stdout)["rows"] == 30
            shown = json.loads(invoke("show", directory, "--json").stdout)
            for file in shown["state"]["files"].values():
                assert file["first"] <= file["last"]
                assert iso_time(file["first_ns"]) == file["first_time"] <= file["last_time"]
        again = invoke("write", network.addresses[0], "--to", directory)
        assert again.stdout.startswith("archived 0 events of 0 ticks")
    shown = invoke("show", directory)
    assert "network pair: 60 events in 2 files, 2 commits" in shown.stdout
    assert "column price: float of price" in shown.stdout
    compacted = invoke("compact", directory)
    assert compacted.stdout.startswith("2 files became 1 (60 events rewritten")
    verified = invoke("verify", directory)
    assert verified.exit_code == 0
    assert "good: 60 events in 1 file, 3 commits, network pair" in verified.stdout


def test_a_damaged_archive_is_a_finding_and_no_failure(tmp_path: Path) -> None:
    directory = tmp_path / "archive"
    with network_of(tmp_path, PAIR) as network, network.connect_blocking(name="feed") as client:
        client.publish({"n": 1})
        archived(network, directory)
    (file,) = directory.glob("date=*/stream=*/*.parquet")
    file.write_bytes(file.read_bytes()[:-9])
    result = invoke("verify", str(directory), "--json")
    assert result.exit_code == 1
    assert file.name in json.loads(result.stdout)["problems"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("127.0.0.1:1", "--to", "x"), "127.0.0.1:1"),
        (("--to", "x"), "give the address of a broker"),
        (("host:x", "--to", "x"), "host:x"),
        (("127.0.0.1:1",), "--to"),
        (("verify", "x"), "is not an archive"),
        (("show", "x"), "is not an archive"),
        (("compact", "x"), "is not an archive"),
        (("127.0.0.1:1", "--to", "x", "--missing", "what"), "--missing"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    here: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("anabranch.spark.survey.START_PATIENCE_S", 0.2)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "x").exists()
