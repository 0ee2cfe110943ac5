"""`anabranch trace verify`: what it prints, and how it ends."""

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from anabranch.check import history as saw
from anabranch.cli.main import app
from anabranch.local.traces import encode_line
from tests.history_parts import confirmed, delivered, published, started, subscribed
from tests.log_parts import event_record, make_state, write_segment

runner = CliRunner()
TOLD: list[saw.Record] = [
    *(published(n) for n in (1, 2, 3)),
    confirmed(3),
    subscribed(),
    started(1),
]


def verify(folder: Path, records: list[saw.Record], *options: str) -> Result:
    state = make_state(folder)
    write_segment(state, 1, [event_record(n) for n in (1, 2, 3)])
    trace = folder / "trace.jsonl"
    trace.write_bytes(b"".join(map(encode_line, records)))
    return runner.invoke(app, ["trace", "verify", str(trace), "--state", str(folder), *options])


def test_a_clean_run_is_told_and_ends_well(tmp_path: Path) -> None:
    done = verify(tmp_path, [*TOLD, *(delivered(n) for n in (1, 2, 3))], "--complete")
    assert done.exit_code == 0, done.output
    assert "published 3, confirmed 3, logged 3, delivered 3" in done.stdout
    assert "every promise kept: lost 0, gap 0, duplicate 0, reordered 0" in done.stdout
    assert "note:" not in done.stdout


def test_a_broken_promise_is_named_with_its_place_and_ends_badly(tmp_path: Path) -> None:
    done = verify(tmp_path, [*TOLD, delivered(1), delivered(3), delivered(3)])
    assert done.exit_code == 1
    assert "gap: s, o, tick 2: not delivered, but 3 was" in done.stdout
    assert "PROMISES BROKEN: lost 0, gap 1, duplicate 1, reordered 0" in done.stdout
    assert "--complete" in done.stdout


def test_json_has_everything(tmp_path: Path) -> None:
    done = verify(tmp_path, [*TOLD, delivered(1)], "--complete", "--json")
    assert done.exit_code == 1
    verdict = json.loads(done.stdout)
    assert verdict["anomalies"]["lost"] == 2
    assert verdict["accounts"][0]["delivered"] == 1
    assert verdict["examples"][0]["tick"] == 2


def test_a_directory_without_state_is_an_error(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_bytes(encode_line(published(1)))
    done = runner.invoke(app, ["trace", "verify", str(trace), "--state", str(tmp_path)])
    assert done.exit_code == 2
    assert "holds no state of a broker" in done.stderr
