"""`anabranch bench match` on a small scale: complete, and loud when an answer is wrong."""

import msgspec
import pytest
from typer.testing import CliRunner

from anabranch.cli.bench import app
from anabranch.matching.index import MatchIndex

SMALL = ["match", "--subscriptions", "3000", "--events", "40"]


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*SMALL, *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_json_is_one_object_with_every_figure() -> None:
    code, output, _ = run("--json")
    assert code == 0
    report = msgspec.json.decode(output)
    assert (report["subscriptions"], report["events"]) == (3000, 40)
    assert report["engine"]
    for name in ("batch_us_per_event", "single_us_per_event", "load_s", "bytes_per_subscription"):
        assert report[name] > 0
    assert report["matches_per_event"] > 0


def test_the_same_seed_gives_the_same_matches() -> None:
    found = [msgspec.json.decode(run("--json", "--seed", seed)[1]) for seed in ("7", "7", "8")]
    matches = [each["matches_per_event"] for each in found]
    assert matches[0] == matches[1] != matches[2]


def test_the_table_names_the_figures() -> None:
    code, output, _ = run()
    assert code == 0
    for word in ("events in a batch", "one by one", "bytes per subscription"):
        assert word in output


def test_a_wrong_answer_ends_the_run_with_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MatchIndex, "match", lambda _self, _event: [0, 1])
    code, output, complaint = run("--json")
    assert (code, output) == (1, "")
    assert complaint == "anabranch: error: event 0: the index and its filters disagree\n"
