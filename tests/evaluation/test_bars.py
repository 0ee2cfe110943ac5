"""Bars bind at their sizes and say by how much they are missed."""

import msgspec

from evaluation.cover import CoverFigures, cover_verdicts
from evaluation.match import MatchFigures, match_verdicts

STOCK = MatchFigures(
    workload="stock",
    subscriptions=200_000,
    batch_us_per_event=6.0,
    single_us_per_event=12.5,
    adds_per_s=29_000,
    slowdown=0.15,
    index_bytes_per_subscription=384,
    mixed_ratio=None,
)
RANGES = CoverFigures(
    workload="ranges",
    subscriptions=100_000,
    query_p50_us=5.0,
    adds_per_s=20_000,
    remove_p99_us=600,
    remove_max_us=4_000,
)


def test_a_limit_that_is_just_reached_is_met() -> None:
    met = {verdict.name: verdict.met for verdict in match_verdicts(STOCK)}
    assert met == {
        "batch, µs per event": True,
        "adds per second, from text": False,
        "slowdown under updates": True,
        "single event, µs": False,
        "bytes per subscription": True,
    }


def test_no_bar_binds_at_another_size() -> None:
    assert match_verdicts(msgspec.structs.replace(STOCK, subscriptions=100_000)) == []
    assert cover_verdicts(msgspec.structs.replace(RANGES, subscriptions=50_000)) == []


def test_a_million_has_its_own_limit_and_no_bar_for_single_events() -> None:
    verdicts = match_verdicts(msgspec.structs.replace(STOCK, subscriptions=1_000_000))
    limits = {verdict.name: verdict.limit for verdict in verdicts}
    assert limits["batch, µs per event"] == 25
    assert "single event, µs" not in limits


def test_what_has_no_sketch_is_judged_as_a_goal_against_mixed() -> None:
    wide = msgspec.structs.replace(STOCK, workload="wide", mixed_ratio=3.5)
    verdicts = {verdict.name: verdict for verdict in match_verdicts(wide)}
    assert set(verdicts) == {"bytes per subscription", "times mixed"}
    assert all(verdict.goal for verdict in verdicts.values())
    assert verdicts["bytes per subscription"].limit == 500
    assert not verdicts["times mixed"].met


def test_covering_has_a_bar_for_additions_where_one_was_stated() -> None:
    assert [verdict.met for verdict in cover_verdicts(RANGES)] == [True, True, False, True]
    stock = cover_verdicts(msgspec.structs.replace(RANGES, workload="stock"))
    assert all(verdict.name != "adds per second" for verdict in stock)
