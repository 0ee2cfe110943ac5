"""`anabranch bench log` on a small scale: complete, and loud when records do not come back."""

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from anabranch.cli.bench import app, log
from anabranch.store.store import Store


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "GROUPS", {1: 3, 64: 2})


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["log", "--passes", "2", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_json_is_one_object_with_every_figure(tmp_path: Path) -> None:
    code, output, _ = run("--json", "--record-bytes", "50", "--directory", str(tmp_path))
    assert code == 0
    report = msgspec.json.decode(output)
    assert (report["record_bytes"], report["passes"]) == (50, 2)
    assert [group["in_flight"] for group in report["groups"]] == [1, 64]
    assert all(group["records_per_s"] > 0 for group in report["groups"])
    assert report["recovered_per_s"] > 0
    assert list(tmp_path.iterdir()) == []


def test_the_table_names_the_figures() -> None:
    code, output, _ = run()
    assert code == 0
    for word in ("durable, 1 in flight", "durable, 64 in flight", "recovered at start"):
        assert word in output


def test_records_that_do_not_come_back_end_the_run_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append = Store.append

    def append_spoilt(self: Store, tick: int, record: bytes) -> None:
        append(self, tick, b"something else" if tick == 2 else record)

    monkeypatch.setattr(Store, "append", append_spoilt)
    code, output, complaint = run()
    assert (code, output) == (1, "")
    assert complaint == (
        "anabranch: error: the 4 records recovered from the log differ from the 4 written\n"
    )
