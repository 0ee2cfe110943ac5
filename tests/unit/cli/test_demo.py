"""The demonstration: matches live, counts rightly, and prints only the end where nobody watches."""

import itertools

import msgspec
import typer
from typer.testing import CliRunner

from anabranch import Filter
from anabranch.cli.demo import EVENTS, EXAMPLES, Demonstration, demo
from anabranch.cli.demo_view import Tally

app = typer.Typer()
app.command()(demo)
SHORT = ["--seconds", "0.1", "--subscriptions", "300"]


def test_json_counts_what_happened() -> None:
    result = CliRunner().invoke(app, [*SHORT, "--json"])
    assert result.exit_code == 0
    report = msgspec.json.decode(result.stdout)
    assert report["subscriptions"] == 300 + len(EXAMPLES)
    assert report["events"] > 0
    assert report["seconds"] >= 0.1
    assert [example["name"] for example in report["examples"]] == list(EXAMPLES)


def test_without_a_terminal_only_the_last_tables_are_printed() -> None:
    result = CliRunner().invoke(app, SHORT)
    assert result.exit_code == 0
    assert result.stdout.count("Matching live") == 1
    assert "heavy trade in S0000" in result.stdout


def test_examples_fire_exactly_when_their_filter_matches() -> None:
    show = Demonstration(seed=1)
    show.load(50, lambda _: None)
    (first, *_) = itertools.islice(show.run(1e9), 1)
    events = show.loaded.workload.events(EVENTS)[: first.events]
    for example in first.examples:
        chosen = Filter.parse(example.filter)
        assert example.fired == sum(chosen.matches(event) for event in events)


def test_tally_ranks_symbols_by_what_they_found() -> None:
    tally = Tally()
    tally.count([{"symbol": "A"}, {"symbol": "B"}, {"symbol": "A"}], [[1], ["x", 2, 3], []], 6_000)
    report = tally.report(
        engine="numpy", subscriptions=4, load_s=0, seconds=2, examples={"x": "TRUE", "y": "FALSE"}
    )
    assert report.top_symbols == [("B", 3), ("A", 1)]
    assert [example.fired for example in report.examples] == [1, 0]
    assert report.us_per_event == 2
    assert report.events_per_s == 1.5
