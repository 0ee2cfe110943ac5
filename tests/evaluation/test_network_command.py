"""`scripts/evaluate network` with real processes on a small scale: complete, and honest about what
it could not measure."""

import msgspec
import pytest
import typer
from rich.console import Console
from rich.progress import Progress
from typer.testing import CliRunner

from anabranch.cli.screen import Steps
from evaluation.__main__ import app
from evaluation.network import (
    PARTS,
    ROUTINGS,
    NetworkReport,
    NetworkSize,
    chosen,
    counts,
    print_report,
    run,
    together,
)
from evaluation.network_measurements import FetchSize, LatencySize, Load, OutageSize

TINY = NetworkSize(
    latency=LatencySize(hops=(2,), rates=(200.0,), seconds=0.2, passes=1, starts=2),
    subscriptions=(20,),
    connections=2,
    fan_out=3,
    events=300,
    passes=1,
    outage=OutageSize(kills=1, around=1.5),
    fetch=FetchSize(events=2_000, passes=1),
)


@pytest.fixture(scope="module")
def report() -> NetworkReport:
    return run(("a", "b", "c", "d", "e"), TINY, None, Steps(Progress(disable=True)), ("tree",))


@pytest.mark.slow
def test_every_part_is_measured(report: NetworkReport) -> None:
    assert [(chain.hops, len(chain.deliveries)) for chain in report.chains] == [(2, 1)]
    assert [flow.load.service for flow in report.flows] == ["durable", "best-effort"]
    assert [flow.load.matches for flow in report.fan_outs] == [3]
    assert [len(outage.killed_gaps_s) for outage in report.outages] == [1]
    assert report.fetches is not None
    assert [cost.rows for cost in report.fetches.costs] == [2_000, 2_000, 20]
    assert min(cost.broker_us_per_event for cost in report.fetches.costs) > 0
    assert report.unmeasured == []


def test_all_ways_to_route_are_measured_in_one_run() -> None:
    loads = [*TINY.loads(ROUTINGS), *TINY.fan_out_loads(ROUTINGS)]
    twice = ["tree", "tree", "flood", "flood", "mesh", "mesh"]
    assert [load.routing for load in loads] == [*twice, "tree", "flood", "mesh"]


def test_the_fewest_and_the_most_subscriptions_of_a_kind_are_measured_in_turns() -> None:
    size = msgspec.structs.replace(TINY, subscriptions=(100, 1_000, 10_000))
    groups = together(size.loads(ROUTINGS))
    assert [[load.subscriptions for load in group] for group in groups] == [
        [1_000],
        [100, 10_000],
    ] * 6
    assert all(len({(load.routing, load.service) for load in group}) == 1 for group in groups)
    assert [len(group) for group in together(TINY.loads(ROUTINGS))] == [1] * 6


@pytest.mark.slow
def test_every_broker_costs_something(report: NetworkReport) -> None:
    for flow in (*report.flows, *report.fan_outs):
        assert list(flow.cpu_us_per_event) == ["origin", "relay-1", "edge"]
        assert min(flow.cpu_us_per_event.values()) > 0
        assert min(flow.resident_bytes.values()) > 0


@pytest.mark.slow
def test_a_paused_relay_is_noticed_by_the_failure_detector_alone(report: NetworkReport) -> None:
    # Whoever had closed its connections would have been noticed long before.
    for outage in report.outages:
        assert outage.paused_gap_s > outage.timeout_s / 2


@pytest.mark.slow
def test_the_report_prints_every_table(report: NetworkReport) -> None:
    console = Console(width=200, record=True, file=None, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        print_report(report, console)
    for words in (
        "delivery latency",
        "one match per event",
        "time without a delivery",
        "in bulk",
        "Bars",
    ):
        assert words in captured.get()


@pytest.mark.slow
def test_a_load_that_is_too_much_is_listed_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads = [
        Load(
            routing="tree",
            service="durable",
            subscriptions=many,
            events=50,
            passes=1,
            subscribing_s_max=bound_s,
        )
        for many, bound_s in ((500, 0.001), (5, 60.0))
    ]
    monkeypatch.setattr(NetworkSize, "loads", lambda _size, _routings: loads)
    found = run(("b",), TINY, None, Steps(Progress(disable=True)), ("tree",))
    assert [flow.load.subscriptions for flow in found.flows] == [5]
    assert [each.load.subscriptions for each in found.unmeasured] == [500]
    assert "of 500 subscriptions stood after 0.001 s" in found.unmeasured[0].reason


def test_parts_are_measured_in_their_order() -> None:
    assert chosen("d, a", PARTS, "--only", "part") == ("a", "d")
    assert chosen("mesh,tree", ROUTINGS, "--routing", "routing") == ("tree", "mesh")
    assert counts("100,10000") == (100, 10_000)


@pytest.mark.parametrize("wrong", ["f", "", "a,,b"])
def test_an_unknown_part_is_refused(wrong: str) -> None:
    with pytest.raises(typer.BadParameter, match="unknown part"):
        chosen(wrong, PARTS, "--only", "part")


@pytest.mark.parametrize("wrong", ["many", "0", "100,-1", ","])
def test_what_is_no_number_of_subscriptions_is_refused(wrong: str) -> None:
    with pytest.raises(typer.BadParameter, match="invalid numbers"):
        counts(wrong)


def test_the_command_says_what_is_wrong_before_it_starts_anything() -> None:
    result = CliRunner().invoke(app, ["network", "--only", "z"])
    assert result.exit_code == 2
    assert "unknown part" in result.output
    result = CliRunner().invoke(app, ["network", "--routing", "tree,star"])
    assert result.exit_code == 2
    assert "unknown routing 'star'" in result.output


def test_a_report_comes_back_from_json() -> None:
    report = NetworkReport(
        cores=2,
        system="",
        python="",
        size=TINY,
        chains=[],
        flows=[],
        fan_outs=[],
        outages=[],
        unmeasured=[],
        bars=[],
    )
    assert msgspec.json.decode(msgspec.json.encode(report), type=NetworkReport) == report
