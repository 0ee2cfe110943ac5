"""The load of `anabranch bench network`: which slots a subscriber receives, and wrong usage."""

import pytest
from typer.testing import CliRunner

from anabranch.cli.bench.subscribers import SLOTS, filter_of, latency_of, window_of
from anabranch.cli.main import app
from anabranch.model.filter import Filter


@pytest.mark.parametrize("selectivity", [0.001, 0.25, 0.4, 0.999, 1.0])
@pytest.mark.parametrize("subscriber", [0, 1, 2, 5])
def test_a_filter_matches_exactly_the_slots_of_its_window(
    subscriber: int, selectivity: float
) -> None:
    window = window_of(subscriber, selectivity)
    wanted = {slot % SLOTS for slot in window}
    assert len(wanted) == len(window) == round(selectivity * SLOTS)
    parsed = Filter.parse(filter_of("1a", window))
    matched = {s for s in range(SLOTS) if parsed.matches({"bench": "1a", "slot": s})}
    assert matched == wanted
    assert not parsed.matches({"bench": "1b", "slot": window.start % SLOTS})


def test_subscribers_share_the_slots() -> None:
    windows = [window_of(number, 0.25) for number in range(4)]
    assert sorted(slot for window in windows for slot in window) == list(range(SLOTS))


def test_latencies_are_told_in_milliseconds() -> None:
    latency = latency_of([each * 1_000_000 for each in range(1, 101)])
    assert (latency.p50_ms, latency.p99_ms, latency.max_ms) == (51.0, 100.0, 100.0)
    assert latency_of([]).max_ms == 0.0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--events", "5", "--seconds", "1"], "--events and --seconds are mutually exclusive"),
        (["--network", "n.toml", "--directory", "."], "--directory applies to brokers that this"),
        (["--network", "gone.toml"], "gone.toml"),
        (["--quality", "perfect"], "perfect"),
        (["--selectivity", "0"], "0.001"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(app, ["bench", "network", *arguments])
    assert result.exit_code == 2
    assert problem in result.stderr
    assert result.stderr.startswith("anabranch: error: ")
    assert result.stderr.count("\n") == 1
