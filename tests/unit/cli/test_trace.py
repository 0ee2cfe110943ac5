"""`anabranch trace verify`: what it prints, and how it ends."""

import json
import shutil
from pathlib import Path

from typer.testing import CliRunner, Result

from anabranch.check import history as saw
from anabranch.cli.main import app
from anabranch.devnet.traces import encode_line
from anabranch.store.files import StateDirectory
from tests.history_parts import confirmed, delivered, published, started, subscribed, withheld
from tests.log_parts import blank_record, event_record, make_state, write_segment

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
    assert "every guarantee kept: lost 0, gap 0, duplicate 0, reordered 0" in done.stdout
    assert "note:" not in done.stdout


def test_a_broken_promise_is_named_with_its_place_and_ends_badly(tmp_path: Path) -> None:
    done = verify(tmp_path, [*TOLD, delivered(1), delivered(3), delivered(3)])
    assert done.exit_code == 1
    assert "gap: s, o, tick 2: not delivered, but 3 was" in done.stdout
    assert "GUARANTEES BROKEN: lost 0, gap 1, duplicate 1, reordered 0" in done.stdout
    assert "--complete" in done.stdout


def test_json_has_everything(tmp_path: Path) -> None:
    done = verify(tmp_path, [*TOLD, delivered(1)], "--complete", "--json")
    assert done.exit_code == 1
    verdict = json.loads(done.stdout)
    assert verdict["anomalies"]["lost"] == 2
    assert verdict["accounts"][0]["delivered"] == 1
    assert verdict["examples"][0]["tick"] == 2


def test_what_is_delivered_again_in_another_episode_is_told_apart(tmp_path: Path) -> None:
    first = [saw.Delivered(95.0, "s#1", "o", n, "p", 1, n) for n in (1, 2)]
    second = [saw.Delivered(96.0, "s#2", "o", n, "p", 1, n) for n in (2, 3)]
    history = [
        *TOLD[:4],
        saw.Subscribed(0.0, "s#1", "TRUE", "durable"),
        saw.Started(0.0, "s#1", "o", 1),
        *first,
        saw.Cut(95.5, "s#1"),
        saw.Subscribed(95.6, "s#2", "TRUE", "durable", "resume"),
        saw.Started(95.7, "s#2", "o", 2),
        *second,
    ]
    done = verify(tmp_path, history, "--complete", "--json")
    assert done.exit_code == 0, done.output
    (subscriber,) = json.loads(done.stdout)["subscribers"]
    assert (subscriber["matching"], subscriber["delivered"], subscriber["again"]) == (3, 3, 1)


def test_lines_of_the_verdict_are_not_broken_at_the_width_of_a_terminal(tmp_path: Path) -> None:
    wrong = [delivered(n) for n in (3, 2, 2)] + [delivered(1, 7), delivered(1, stream="x")]
    done = verify(tmp_path, [*TOLD, *wrong, withheld(2, 2)])
    last = next(line for line in done.stdout.splitlines() if line.startswith("GUARANTEES BROKEN"))
    assert len(last) > 80
    assert "wrongly-withheld" in last


def test_events_are_named_as_everywhere(tmp_path: Path) -> None:
    done = verify(tmp_path, [*TOLD, delivered(1, 7), delivered(2), delivered(3)])
    assert "tick 1: delivered p:1:7, but the log has p:1:1" in done.stdout


def test_a_publisher_without_a_trace_is_told_and_judged_by_the_log(tmp_path: Path) -> None:
    untraced: list[saw.Record] = [subscribed(), started(1)]
    for folder in ("good", "bad"):
        (tmp_path / folder).mkdir()
    whole = [*untraced, *(delivered(n) for n in (1, 2, 3))]
    done = verify(tmp_path / "good", whole, "--complete")
    assert done.exit_code == 0, done.output
    assert "note: 3 events in the logs are from publishers without a trace (p)" in done.stdout
    assert "run publishers with --trace" in done.stdout
    missing = verify(tmp_path / "bad", [*untraced, delivered(1), delivered(3)], "--complete")
    assert missing.exit_code == 1
    assert "gap: s, o, tick 2: not delivered, but 3 was" in missing.stdout


def test_an_untraced_event_whose_content_is_gone_is_not_judged(tmp_path: Path) -> None:
    state = make_state(tmp_path)
    write_segment(state, 1, [event_record(1), blank_record(2), event_record(3)])
    trace = tmp_path / "trace.jsonl"
    history = [subscribed(((("a", ">", 0),),)), started(1), *(delivered(n) for n in (1, 2, 3))]
    trace.write_bytes(b"".join(map(encode_line, history)))
    done = runner.invoke(app, ["trace", "verify", str(trace), "--state", str(tmp_path)])
    assert done.exit_code == 0, done.output


def test_states_of_two_networks_or_of_one_broker_twice_are_refused(tmp_path: Path) -> None:
    make_state(tmp_path)
    trace = tmp_path / "trace"
    trace.write_bytes(encode_line(published(1)))
    command = ["trace", "verify", str(trace), "--state", str(tmp_path)]
    twice = runner.invoke(app, [*command, "--state", str(tmp_path / "o")])
    assert twice.exit_code == 0, twice.output
    make_state(tmp_path / "copy")
    copied = runner.invoke(app, command)
    assert (copied.exit_code, "both states of broker 'o'" in copied.stderr) == (2, True)
    shutil.rmtree(tmp_path / "copy")
    other = StateDirectory(tmp_path / "x", "other", "o")
    other.establish("other", "o")
    other.release()
    mixed = runner.invoke(app, command)
    assert (mixed.exit_code, "of 2 networks (net, other)" in mixed.stderr) == (2, True)


def test_a_directory_without_state_is_an_error(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_bytes(encode_line(published(1)))
    done = runner.invoke(app, ["trace", "verify", str(trace), "--state", str(tmp_path)])
    assert done.exit_code == 2
    assert "contains no state of a broker" in done.stderr
