"""Claims: what is said of runs."""

import pytest
from msgspec.structs import replace

from evaluation.routing.mesh_claims import (
    Claim,
    Overhead,
    claims,
    deep_bytes,
    direction,
    measure_overhead,
    verdict,
)
from evaluation.routing.mesh_delays import TOO_MUCH, WAYS, Delays, Middle, Scene, difference, middle


def delays(part: str, case: str, way: str, arrival_ms: float, **changes: object) -> Delays:
    plain = Delays(
        scene=Scene(part=part, case=case, way=way),
        published=100,
        arrived=200,
        notified=300,
        arrival_ms=arrival_ms,
        notification_ms=arrival_ms,
        early_ms=arrival_ms,
        late_ms=arrival_ms,
        copies=4.0,
        ends=2.0,
        busiest=0.5,
        per_s=[10.0] * 8,
        by_hops={},
    )
    return replace(plain, **changes)


def the_claim(found: list[Claim], beginning: str) -> Claim:
    (claim,) = [claim for claim in found if claim.test.startswith(beginning)]
    return claim


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (-0.01, -0.2, "no difference here"),
        (-0.1, -0.2, "same direction, smaller"),
        (-0.3, -0.2, "same direction"),
        (0.1, -0.2, "the other way round"),
        (-0.1, 0.04, "the other way round"),
        (0.2, 0.008, "worse here, no difference there"),
    ],
)
def test_verdict_goes_by_sign_and_size(ours: float, theirs: float, said: str) -> None:
    assert verdict(ours, theirs) == said


def test_what_is_worse_is_not_called_no_difference() -> None:
    said = [direction(ours) for ours in (-0.3, 0.0, 0.3)]
    assert said == ["same direction", "no difference here", "the other way round"]


def test_one_graph_does_not_decide_for_all() -> None:
    assert middle([10.0, 900.0, 12.0]) == Middle(12.0, 10.0, 900.0)


def test_middle_shows_what_it_is_the_middle_of() -> None:
    assert middle([3.0, 1.0, 2.0]).text(lambda n: f"{n:.0f}", " ms") == "2 ms (1 to 3)"
    assert middle([2.0, 2.01]).text(lambda n: f"{n:.0f}", " ms") == "2 ms"


def test_differences_are_of_each_graph_with_itself() -> None:
    found = difference([10.0, 100.0, 20.0, 0.0], [9.0, 110.0, 10.0, 5.0])
    assert found.least == pytest.approx(-0.5)
    assert found.most == pytest.approx(0.1)
    assert found.value == pytest.approx(-0.05)


def of_graphs(case: str, fixed: list[float], dynamic: list[float], **changes: object) -> Claim:
    runs = []
    for way, times in (("fixed", fixed), ("dynamic", dynamic)):
        for seed, ms in enumerate(times, 1):
            run = delays("degree", case, way, ms, **changes)
            runs.append(replace(run, scene=replace(run.scene, seed=seed)))
    (claim,) = claims(runs, [])
    return claim


def test_spread_stands_beside_the_middle() -> None:
    claim = of_graphs("degree 4", [20.0, 40.0, 30.0], [18.0, 20.0, 27.0])
    assert claim.fixed == "30.0 ms (20.0 to 40.0)"
    assert claim.dynamic == "20.0 ms (-10.0%; -50.0% to -10.0%)"
    assert claim.verdict == "same direction, smaller"


def test_graphs_that_differ_are_said_to() -> None:
    claim = of_graphs("degree 4", [20.0, 20.0, 20.0], [10.0, 15.0, 25.0])
    assert claim.verdict == "same direction; graphs differ"


def test_graphs_that_do_not_keep_up_are_counted() -> None:
    runs = []
    for way in ("fixed", "dynamic"):
        for seed, busiest in ((1, 0.9), (2, 1.2), (3, 0.8)):
            run = delays("degree", "degree 2", way, 50.0, late_ms=90.0, busiest=busiest)
            runs.append(replace(run, scene=replace(run.scene, seed=seed)))
    (claim,) = claims(runs, [])
    assert claim.verdict == "no difference here; overloaded either way in 1 of 3 graphs"


def test_difference_is_against_fixed_paths() -> None:
    times = zip(WAYS, (20.0, 18.0, 22.0), strict=True)
    found = claims([delays("degree", "degree 4", way, ms) for way, ms in times], [])
    assert found == [
        Claim(
            test="delay, degree 4",
            fixed="20.0 ms",
            dynamic="18.0 ms (-10.0%)",
            waiting="22.0 ms (+10.0%)",
            source="-20.3%",
            verdict="same direction, smaller",
        )
    ]


def test_highest_rate_is_the_last_before_delays_grow() -> None:
    runs = []
    for way, limit in zip(WAYS, (1, 2, 1), strict=True):
        for number in range(4):
            late_ms = 99.0 if number > limit else 10.0
            run = delays("rate", f"{number}", way, 10.0, late_ms=late_ms, busiest=1.1)
            scene = replace(run.scene, rate=10.0 * (number + 1))
            runs.append(replace(run, scene=scene))
    found = claims(runs, [])
    claim = the_claim(found, "highest rate")
    assert (claim.fixed, claim.dynamic) == ("600 events/s", "900 events/s")
    assert claim.verdict == "same direction"
    claim = the_claim(found, "delay at 900 events/s, the first too much")
    assert claim.verdict == "no difference here"


def test_delays_of_overloaded_networks_are_called_that() -> None:
    runs = [delays("degree", "degree 2", way, 500.0, late_ms=900.0, busiest=1.2) for way in WAYS]
    (claim,) = claims(runs, [])
    assert claim.verdict == "no difference here; overloaded either way"


def test_recovery_is_counted_from_the_end_of_the_burst() -> None:
    slow = [10.0, 10.0, 90.0, 90.0, 80.0, 40.0, 10.0, 10.0]
    quick = [10.0, 10.0, 50.0, 50.0, 20.0, 10.0, 10.0, 10.0]
    runs = [
        delays("burst", "burst", way, 10.0, per_s=per_s)
        for way, per_s in zip(WAYS, (slow, quick, quick), strict=True)
    ]
    found = claims(runs, [])
    peak = the_claim(found, "burst: highest")
    assert (peak.fixed, peak.dynamic, peak.verdict) == ("90 ms", "50 ms", "same direction")
    recovery = the_claim(found, "burst: seconds")
    assert (recovery.fixed, recovery.dynamic) == ("2 s", "1 s")


def test_distances_are_compared_one_by_one() -> None:
    times = zip(
        WAYS,
        ({"6": 40.0, "12": 80.0}, {"6": 40.0, "12": 60.0}, {"6": 40.0, "12": 80.0}),
        strict=True,
    )
    found = claims([delays("hops", "ladder", way, 1.0, by_hops=each) for way, each in times], [])
    assert the_claim(found, "delay over 6").verdict == "no difference here"
    assert the_claim(found, "delay over 12").dynamic == "60.0 ms (-25.0%)"
    assert the_claim(found, "growth").dynamic == "+50.0%"


def in_full_mesh(run: Delays) -> Delays:
    return replace(run, scene=replace(run.scene, degree=0))


def test_failures_are_held_against_the_time_before() -> None:
    per_s = [10.0, 10.0, 15.0, 10.0, 30.0, 20.0, 12.0, 12.0]
    full = [in_full_mesh(delays("failures", "full", way, 1.0, per_s=per_s)) for way in WAYS]
    assert [claim.dynamic for claim in claims(full, [])] == ["+50%", "+200%", "+20%"]
    calm = claims([in_full_mesh(delays("failures", "full", way, 1.0)) for way in WAYS], [])
    assert {claim.verdict for claim in calm} == {"no disturbance here"}


def test_too_much_on_a_ladder_is_one_line_of_its_own() -> None:
    runs = []
    for case, factor in (("ladder", 1.0), (TOO_MUCH, 10.0)):
        for way in ("fixed", "dynamic"):
            by_hops = {"6": 40.0 * factor, "10": 60.0 * factor, "12": 80.0 * factor}
            runs.append(delays("hops", case, way, 1.0, by_hops=by_hops))
    found = claims(runs, [])
    assert [claim.test for claim in found] == [
        "delay over 6 links",
        "delay over 10 links",
        "delay over 12 links",
        "growth of delay from 6 to 12 links",
        "delay over 12 links, too much to do",
    ]
    assert (found[0].fixed, found[4].fixed) == ("40.0 ms", "800.0 ms")


def test_failures_at_degree_4_are_told_apart_from_those_of_a_full_mesh() -> None:
    calm, disturbed = [10.0] * 8, [10.0, 10.0, 15.0, 10.0, 30.0, 20.0, 12.0, 12.0]
    runs = [
        delays("failures", "degree 4, two die", way, 1.0, per_s=per_s)
        for way, per_s in (("fixed", disturbed), ("dynamic", calm))
    ]
    found = claims(runs, [])
    assert {claim.test.split(", ")[1] for claim in found} == {"degree 4"}
    assert {claim.source for claim in found} == {""}
    assert {claim.verdict for claim in found} == {"not in the source; less with paths by load"}


def test_matchings_are_counted_per_event() -> None:
    runs = []
    for way in WAYS:
        run = delays("matching", "everywhere", way, 20.0)
        ends = replace(run.scene, matching_everywhere=False)
        runs += [run, replace(run, scene=ends, arrival_ms=15.0)]
    # One at the origin; four brokers get it, two of them for themselves.
    said = [claim.fixed for claim in claims(runs, [])]
    assert said == ["20.0%", "60.0%", "15.0 ms (-25.0%)"]


def test_overhead_is_dynamic_over_fixed() -> None:
    costs = [
        Overhead(way=way, published=1, event_us=cpu, copy_us=cpu, router_bytes=size)
        for way, cpu, size in (("fixed", 100.0, 1_000.0), ("dynamic", 110.0, 1_050.0))
    ]
    assert [claim.dynamic for claim in claims([], costs)] == ["+10.0%", "+5.0%"]


def test_deep_bytes_count_shared_objects_once() -> None:
    shared = ["x" * 1_000]
    assert deep_bytes([[shared, shared]]) < 1.5 * deep_bytes([shared])


def test_overhead_is_measured_for_all_ways() -> None:
    found = measure_overhead(brokers=4, seconds=1.0, times=1, seed=1)
    assert [each.way.split(",")[0] for each in found] == ["fixed", "dynamic", "dynamic"]
    assert all(each.event_us > 0 and each.router_bytes > 1_000 for each in found)
