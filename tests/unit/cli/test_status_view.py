"""What `status` and `top` show of brokers, on a screen of 80 columns too."""

import io
from typing import Any

from rich.console import Console, RenderableType

from anabranch.cli import top
from anabranch.cli.screen import show
from anabranch.cli.status import CURSORS_MAX, Asked, picture
from anabranch.core.patterns.join_points.join_points import PatternsReport
from anabranch.core.report import (
    BatchReport,
    CursorReport,
    LogReport,
    StagingReport,
    StreamReport,
)
from anabranch.core.routing.contract import MeshReport
from anabranch.core.routing.mesh import shared
from anabranch.node.metrics import NodeCounters
from anabranch.node.status import LinkStatus, Status, counted

COUNTED = ("patterns", "active", "kept", "events", "reported", "late", "overflows", "withheld")
LIFE = 1_759_000_000_000_000_000


def link(peer: str, **more: Any) -> LinkStatus:
    given: dict[str, Any] = {
        "peer": peer,
        "is_up": True,
        "address": "127.0.0.1:4101",
        "up_s": 5.0,
        "reason": "",
        "times_up": 1,
        "is_full": False,
        "waiting_bytes": 0,
        "frames_sent": 5_000_000,
        "sent_bytes": 800_000_000,
        "frames_received": 5_000_000,
        "received_bytes": 800_000_000,
    }
    return LinkStatus(**(given | more))


def status(broker: str, **more: Any) -> Status:
    given: dict[str, Any] = {
        "broker": broker,
        "network": "pair",
        "revision": 1,
        "routing": "tree",
        "version": "1",
        "life": LIFE,
        "state": "starting",
        "is_edge": True,
        "pid": 123_456,
        "uptime_s": 1_234.0,
        "cpu_s": 3.0,
        "resident_bytes": 196_000_000,
        "addresses": {},
        "links": (),
        "connections": 100,
        "strangers": 0,
        "sessions": 100,
        "client_waiting_bytes": 12_000,
        "subscriptions": 100_000,
        "streams": (),
        "cursors": (),
        "log": None,
        "syncs": 0,
        "counters": counted(NodeCounters()),
        "routing_counters": {},
    }
    return Status(**(given | more))


def vector(**counters: int | str) -> LogReport:
    """Edge → counter, or a whole version."""
    versions = {e: v if isinstance(v, str) else f"{LIFE}.{v}" for e, v in counters.items()}
    return LogReport(
        oldest=1_000_000, head=2_345_678, unsynced=12, unsynced_bytes=1, vector=versions
    )


def asked(*statuses: Status) -> list[Asked]:
    return [Asked(each.broker, "127.0.0.1", 4_102, each) for each in statuses]


def lines(*parts: RenderableType, width: int = 80) -> list[str]:
    screen = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    show(screen, *parts)
    assert isinstance(screen.file, io.StringIO)
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


def test_links_that_are_up_are_shown_with_their_queues_and_those_that_are_not_with_the_reason() -> (
    None
):
    links = (
        link("b"),
        link("c", waiting_bytes=12_000),
        link("d", waiting_bytes=16_000_000, is_full=True),
        link("e", is_up=False, reason="connection refused"),
    )
    shown = lines(*picture(asked(status("a", links=links)), 80))
    assert "  a    b c (12 kB queued) d (full, 16 MB queued) e (down)" in shown
    assert "  a: no link to e: connection refused" in shown
    assert "3/4" in shown[1].split()


def test_vectors_are_counters_and_those_of_an_earlier_life_are_marked() -> None:
    told = asked(
        status("a", log=vector(a=3, b=12)), status("b", log=vector(a=3, b=f"{LIFE - 1}.99"))
    )
    shown = lines(*picture(told, 80))
    assert shown[shown.index("vectors") + 1 :] == ["  a    a=3 b=12", "  b    a=3 b=99*"]


def test_vectors_that_are_all_the_same_are_shown_once() -> None:
    told = asked(status("a", log=vector(a=3, b=12)), status("b", log=vector(b=12, a=3)))
    shown = lines(*picture(told, 80))
    assert shown[shown.index("vectors") + 1 :] == ["  all  a=3 b=12"]


def test_what_is_staged_and_batches_under_way_are_shown_and_nothing_where_there_is_none() -> None:
    def staging(**more: Any) -> StagingReport:
        given: dict[str, Any] = dict.fromkeys(
            ("tokens", "size_bytes", "sinks", "under_way", "committed", "written"), 0
        )
        return StagingReport(**({"batches": ()} | given | more))

    batch = BatchReport(sink="nightly", batch=42, events=5_000, written=1_024)
    busy = staging(tokens=3, size_bytes=12_000, sinks=2, under_way=5, batches=(batch,))
    told = asked(status("a", staging=busy), status("b", staging=staging()), status("m"))
    shown = lines(*picture(told, 80))
    section = shown[shown.index("batches") + 1 :]
    assert section == ["  a    sinks=2 staged=3 (12 kB) nightly:42 1024/5000 and 4 more"]
    assert "batches" not in lines(*picture(told[1:], 80))


def test_durable_subscriptions_are_shown_with_their_lag_the_slowest_first() -> None:
    def cursor(name: str, lag: int, *, there: bool = True) -> CursorReport:
        return CursorReport(
            subscription=name, client=f"c-{name}", is_connected=there, lag=lag, unacked=lag // 2
        )

    one = status("a", cursors=(cursor("quick", 1),))
    other = status("b", cursors=(cursor("slow", 12_345, there=False), cursor("none", 0)))
    shown = lines(*picture(asked(one, other), 80))
    rows = [line.split() for line in shown if "c-" in line]
    assert rows == [
        ["slow", "c-slow", "b", "away", "12345", "6172"],
        ["quick", "c-quick", "a", "connected", "1", "0"],
        ["none", "c-none", "b", "connected", "0", "0"],
    ]
    many = status("a", cursors=tuple(cursor(f"s{n}", n) for n in range(CURSORS_MAX + 3)))
    assert lines(*picture(asked(many), 80))[-1] == "and 3 more; --json lists all"


def busy(name: str, life: int = LIFE) -> Status:
    peers = tuple(link(f"america-{n}", waiting_bytes=999_000) for n in range(9))
    streams = tuple(
        StreamReport(
            stream=f"edge-{n}",
            head=10**9,
            position=1,
            done=1,
            lag=10**9,
            live=1,
            behind=0,
            waiting=0,
        )
        for n in range(3)
    )
    log = vector(**{f"edge{n}": 123 for n in range(40)})
    counters = dict.fromkeys(counted(NodeCounters()), 123_456)
    return status(name, links=peers, streams=streams, log=log, life=life, counters=counters)


def test_nothing_is_wider_than_a_screen_of_80_columns_and_nothing_is_cut() -> None:
    told = asked(busy("america-1"), busy("europe-2"))
    shown = lines(*picture(told, 80), width=200)
    assert max(map(len, shown)) <= 80
    assert not [line for line in shown if "…" in line]
    assert {"broker", "state", "links", "subs", "lag", "queued"} <= set(shown[0].split())
    wide = lines(*picture(told, 200), width=200)
    assert {"unsynced", "memory", "up", "log", "clients"} <= set(wide[0].split())


def test_top_has_as_many_columns_as_fit_and_cuts_none() -> None:
    before, after = (top.Sample(asked(busy("america-1"), busy("europe-2"))) for _ in range(2))
    shown = lines(top.picture(before, after, 80), width=200)
    assert max(map(len, shown)) <= 80
    assert not [line for line in shown if "…" in line]
    assert {"broker", "taken/s", "deliv/s", "lag", "cpu"} <= set(shown[0].split())
    assert shown[-1].startswith("all")
    wide = lines(top.picture(before, after, 200), width=200)
    assert {"in/s", "out/s", "memory", "queued"} <= set(wide[0].split())


def meshed(name: str, **more: Any) -> Status:
    """A broker of a mesh, with work done in it."""
    mesh: dict[str, Any] = {
        "trees": 14,
        "trees_lost": 0,
        "lost": (),
        "branches": 120,
        "advertisements": 1_030,
        "origins": 6,
        "costs": {"b": 1.0, "c": 2.345, "d": 123_456.0},
    }
    counted_here = {**shared.MeshCounters().as_dict(), **more.pop("counters", {})}
    return status(
        name,
        routing="mesh",
        links=(link("b"), link("c"), link("d", waiting_bytes=12_000)),
        mesh=MeshReport(**(mesh | more)),
        routing_counters=counted_here,
    )


def test_what_a_broker_knows_of_a_mesh_is_shown_with_what_it_did_and_what_links_cost() -> None:
    done = {"targets_moved": 1_200, "data_unfiltered": 40}
    shown = lines(*picture(asked(meshed("a", counters=done), meshed("m")), 80))
    assert shown[shown.index("mesh") + 1 :] == [
        "  a    trees=14 branches=120 advertisements=1030 (of 6) moved=1,200",
        "       unfiltered=40",
        "  m    trees=14 branches=120 advertisements=1030 (of 6)",
    ]
    assert "  a    b c (cost 2.3) d (cost 123,456.0, 12 kB queued)" in shown
    assert "problems" not in shown


def test_lost_trees_and_copies_in_circles_are_to_be_looked_at() -> None:
    lost = meshed("a", trees_lost=3, lost=("e1", "e2"), counters={"hop_bound_fired": 2})
    shown = lines(*picture(asked(lost), 80))
    assert any("trees=14 (3 lost)" in line for line in shown)
    assert "  a: no route to e1, e2; searching" in shown
    assert "  a: 2 copies of events looped (hop limit); please report this bug" in shown


def test_of_brokers_that_route_by_a_tree_nothing_of_a_mesh_is_shown() -> None:
    shown = lines(*picture(asked(busy("america-1")), 200), width=200)
    assert "mesh" not in shown
    assert not [line for line in shown if "cost" in line]
    before, after = (top.Sample(asked(busy("america-1"))) for _ in range(2))
    heading = lines(top.picture(before, after, 300), width=300)[0].split()
    assert not {"trees", "moved/s", "drop/s", "unfilt/s"} & set(heading)


def test_top_shows_of_a_mesh_how_many_trees_are_reached_and_what_is_moved_and_dropped() -> None:
    before = top.Sample(asked(meshed("america-1"), meshed("europe-2")))
    done = {"targets_moved": 500, "targets_dropped": 20}
    after = top.Sample(asked(meshed("america-1", counters=done, trees_lost=2), meshed("europe-2")))
    after.at_s = before.at_s + 2.0
    after.asked.append(Asked("gone", "127.0.0.1", 4_102))
    assert top.rates(before, after, "america-1")["moved/s"] == 250.0
    shown = lines(top.picture(before, after, 300), width=300)
    heading, first, second, gone, every = (line.split() for line in shown)
    assert heading[-4:] == ["trees", "moved/s", "drop/s", "unfilt/s"]
    assert first[-4:] == ["12/14", "250", "10", "0"]
    assert second[-4:] == ["14/14", "0", "0", "0"]
    assert gone == ["gone", "down"]
    assert every[-3:] == ["250", "10", "0"]
    narrow = lines(top.picture(before, after, 80), width=200)
    assert max(map(len, narrow)) <= 80
    assert {"broker", "taken/s", "deliv/s", "lag"} <= set(narrow[0].split())


def patterned(name: str, **more: Any) -> Status:
    """A broker with patterns."""
    given: dict[str, Any] = {
        "patterns": 3,
        "active": 2,
        "kept": 1_200,
        "events": 50_000,
        "reported": 400,
        "late": 0,
        "overflows": 0,
        "withheld": 0,
        "left_out": 0,
        "held_bytes": 0,
    }
    return status(name, patterns=PatternsReport(**(given | more)))


def test_patterns_are_shown_with_what_came_of_them_and_nothing_where_there_are_none() -> None:
    nothing: dict[str, Any] = dict.fromkeys((*COUNTED, "left_out", "held_bytes"), 0)
    none = status("z", patterns=PatternsReport(**nothing))
    every = asked(patterned("a"), patterned("b", late=7, withheld=1), none, status("m"))
    shown = lines(*picture(every, 80))
    first = shown.index("patterns") + 1
    assert shown[first : first + 3] == [
        "  a    detected=2/3 events=50,000 matches=400 kept=1,200",
        "  b    detected=2/3 events=50,000 matches=400 kept=1,200 late=7 withheld=1",
        "",
    ]
    troubles = shown[shown.index("problems") + 1 :]
    assert troubles == ["  b: some patterns may have missed matches; see the log"]
    assert "patterns" not in lines(*picture(asked(none), 80))


def test_top_shows_patterns_and_their_matches_if_there_are_any() -> None:
    before = top.Sample(asked(patterned("a"), status("m")))
    after = top.Sample(asked(patterned("a", reported=500), status("m")))
    after.at_s = before.at_s + 2.0
    shown = lines(top.picture(before, after, 300), width=300)
    heading, first, _, every = (line.split() for line in shown)
    assert heading[-2:] == ["patterns", "match/s"]
    assert first[-2:] == ["2/3", "50"]
    assert every[-1] == "50"
    none = top.Sample(asked(status("m")))
    assert "match/s" not in lines(top.picture(none, none, 300), width=300)[0]
