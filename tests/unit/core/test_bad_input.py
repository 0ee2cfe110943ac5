"""What nobody should say, said to real brokers: they survive, and serve the others as before."""

import tracemalloc

import pytest

from anabranch.core import contract
from anabranch.core.options import Options
from anabranch.core.routing.tree.tree import TreeRouter
from anabranch.model.client_frames import (
    Publish,
    StartsAt,
    Subscribe,
)
from anabranch.model.event import INT_MAX
from anabranch.model.frame_parts import Conjuncts, Datum, Hole
from anabranch.model.frames import (
    PROTOCOL_VERSION,
    Answer,
    AnyCarried,
    AskInterest,
    AskMark,
    Carry,
    Claim,
    Done,
    Find,
    Found,
    Held,
    Hello,
    Hold,
    InterestChange,
    InterestState,
    Knowledge,
    LinkFrame,
    MarkIs,
    Nack,
    NotKept,
    Ping,
    Replay,
    Yield,
)
from anabranch.model.limits import Limits
from anabranch.model.version import NOTHING, Version
from tests.bench_parts import BILLION, LAST, Bench, body, carry

FUTURE = Version(INT_MAX, 5)


def known(bench: Bench, edge: str) -> Version:
    """What `b` knows of an edge's interest."""
    router = bench.brokers["b"].router
    assert isinstance(router, TreeRouter)
    return router.presences()[0].versions.get(edge, NOTHING)


# -- neighbours: what costs the link -------------------------------------------------------------

OUTRAGES: list[LinkFrame] = [
    MarkIs("c", 5, {"nobody": Version(1, 1)}),
    InterestState("hub", "c", {"nobody": Version(1, 1)}, []),
    InterestChange("hub", "c", {"c": FUTURE}, [], [], {"nobody": NOTHING, "c": NOTHING}),
    AskInterest("hub", "c", {"nobody": Version(1, 1)}),
    AskInterest("hub", "c", {}, {"nobody": Version(1, 1)}),
    InterestState("hub", "c", {"a": FUTURE}, []),
    InterestState("hub", "a", {"a": FUTURE}, []),
    InterestState("hub", "c", {"c": FUTURE}, [Conjuncts("price >", (0,))]),
    InterestState("hub", "c", {"c": FUTURE}, [Conjuncts("price > 1", (9,))]),
    InterestState("b", "hub", {"a": FUTURE}, []),
    InterestChange("hub", "c", {}, [], [], {}),
    Knowledge("b", "hub", "", 0, [Datum(1, 1, body("p", 1))]),
    Knowledge("c", "b", "", 0, [Datum(1, 1, body("p", 1))]),
    Knowledge("nobody", "hub", "", 0, []),
    Knowledge("c", "nowhere", "", 0, []),
    Knowledge("c", "hub", "nobody", 0, []),
    Knowledge("c", "hub", "", 0, [], [(9, 3)]),
    Knowledge("c", "hub", "", 9, [], [(3, 8)]),
    Knowledge("c", "hub", "", 0, [], [], [Hole(5, 2, "retention")]),
    Knowledge("c", "hub", "", 0, [], [(1, LAST)]),
    Knowledge("c", "hub", "", 0, [], [], [], LAST),
    Knowledge("c", "hub", "", LAST, []),
    Knowledge("c", "hub", "", 0, [], [(2 * n, 2 * n) for n in range(1, 40_000)]),
    MarkIs("b", 5, {}),
    MarkIs("nobody", 5, {}),
    MarkIs("c", LAST, {}),
    Carry("nobody", "b", 9, Nack([(1, 1)])),
    Carry("c", "nobody", 9, Nack([(1, 1)])),
    Hello(PROTOCOL_VERSION, "c", 8),
]


@pytest.mark.parametrize("frame", OUTRAGES, ids=lambda f: f"{type(f).__name__}")
def test_frame_that_cannot_be_costs_its_sender_the_link_and_nobody_else(frame: LinkFrame) -> None:
    bench = Bench()
    bench.liar("c")
    bench.lie("c", frame)
    assert bench.is_cut("c")
    assert bench.served()


@pytest.mark.parametrize(
    "frame", [AskMark("c", 1), carry(Done(1)), Knowledge("c", "hub", "", 0, [])]
)
def test_frame_before_the_greeting_costs_the_link(frame: LinkFrame) -> None:
    bench = Bench()
    bench.connect("c", "h1")
    bench.lie("c", frame)
    assert bench.is_cut("c")
    assert bench.served()


@pytest.mark.parametrize(
    "hello",
    [
        Hello(PROTOCOL_VERSION, "c", 6),
        Hello(PROTOCOL_VERSION + 1, "c", 9),
        Hello(PROTOCOL_VERSION, "a", 9),
        Hello(PROTOCOL_VERSION, "", 9),
    ],
)
def test_life_that_is_over_and_foreign_names_and_versions_are_not_greeted(hello: Hello) -> None:
    bench = Bench()
    bench.liar("c", life=7)
    bench.give("h1", contract.LinkDown("c"))
    bench.connect("c", "h1")
    bench.lie("c", hello)
    assert bench.is_cut("c")
    assert bench.served()


def test_of_two_brokers_with_one_name_the_younger_stays() -> None:
    bench = Bench()
    bench.liar("c", life=7)
    bench.liar("c", life=9)
    assert not bench.is_cut("c")
    bench.liar("c", life=7)
    assert bench.is_cut("c")
    reason = bench.cuts["h1", "c"][-1]
    assert "life 7, older than 9" in reason
    assert "correct its clock, restore its disk or give it a new name" in reason
    bench.liar("c", life=9)
    assert not bench.is_cut("c")
    assert bench.served()


def test_an_origin_whose_log_lost_ticks_notes_what_to_do() -> None:
    bench = Bench()
    bench.liar("c")
    bench.lie("c", Carry("c", "a", 9, Done(BILLION)))
    assert any("restore the log, or stop this broker and run" in text for text in bench.notes)
    assert bench.served()


def test_one_that_is_no_neighbour_is_cut() -> None:
    bench = Bench()
    bench.connect("c", "a")
    assert bench.is_cut("c", "a")
    assert bench.served()


@pytest.mark.parametrize("greets", [True, False])
def test_one_that_says_nothing_for_ever_is_cut(greets: bool) -> None:
    bench = Bench()
    bench.connect("c", "h1")
    if greets:
        bench.lie("c", Hello(PROTOCOL_VERSION, "c", 7))
    bench.run(3.0)
    assert bench.is_cut("c")
    assert bench.served()


def test_one_that_only_pings_and_never_greets_is_cut() -> None:
    bench = Bench()
    bench.connect("c", "h1")
    for _ in range(10):
        bench.lie("c", Ping())
        bench.run(0.5)
    assert bench.is_cut("c")
    assert bench.served()


# -- neighbours: what is borne -------------------------------------------------------------------


@pytest.mark.parametrize("content", [Nack([(1, 1)]), Done(1), Find(1, "s"), Answer(1, 1, 0, 0, [])])
def test_relay_takes_nothing_that_is_carried_and_lives_on(content: AnyCarried) -> None:
    bench = Bench()
    bench.liar("c")
    bench.lie("c", carry(content, target="h1"))
    assert any("not an edge" in note for note in bench.notes)
    assert bench.served()


CARRIED: list[AnyCarried] = [
    Nack([(1, BILLION)]),
    Nack([(BILLION, LAST)]),
    Nack([(9, 3)]),
    Nack([(1, LAST)] * 5_000),
    Done(BILLION),
    Done(LAST, INT_MAX),
    Replay(1, LAST, 0, ["TRUE"], INT_MAX, INT_MAX),
    Replay(1, 1, 0, ["price >"], 1, 1),
    Replay(1, 0, INT_MAX, ["TRUE"] * 2_000, 0, 0),
    Replay(1, 0, INT_MAX, [], 0, 0),
    Hold(INT_MAX, LAST),
    Hold(0, 0),
    Answer(1, 1, LAST, LAST, []),
    Answer((1 << 32) + 1, LAST, 0, 0, [Datum(1, 1, b"")]),
    NotKept((1 << 32) + 1, LAST),
    Held((1 << 32) + 1, 0),
    Claim("s", INT_MAX),
    Claim("", 0),
    Yield("s", INT_MAX),
    Find(1, "nobody's"),
    Found(1, "s", INT_MAX, "price >", {"nobody": 1}),
]


@pytest.mark.parametrize("content", CARRIED, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("source", ["c", "h2", "b"])
def test_carried_nonsense_is_dropped_or_answered_shortly(content: AnyCarried, source: str) -> None:
    bench = Bench()
    assert bench.served()
    bench.liar("c")
    told = len(bench.told["c"])
    bench.lie("c", carry(content, source))
    assert not bench.is_cut("c")
    assert len(bench.told["c"]) - told <= 4
    assert bench.served()


def test_nack_for_a_billion_ticks_brings_a_bounded_answer() -> None:
    bench = Bench(Options(nack_ticks_max=8))
    session = bench.client("b", "feed")
    for sequence in range(1, 100):
        bench.says("b", session, Publish([body("feed", sequence)]))
    bench.liar("c")
    bench.run(1.0)
    bench.told["c"].clear()
    for _ in range(100):
        bench.lie("c", carry(Nack([(1, BILLION)])))
    frames = [frame for _, frame in bench.told["c"] if isinstance(frame, Knowledge)]
    assert 0 < sum(len(f.data) + sum(b - a + 1 for a, b in f.silent) for f in frames) <= 8 * 64
    assert bench.served()


def test_vector_from_the_future_does_not_spread_to_cut_the_innocent() -> None:
    bench = Bench()
    bench.liar("h2")
    # A peer of the relay claims to have heard of interest of `a` that `a` will never have.
    future = InterestChange("hub", "a", {"a": FUTURE}, [], [], {"a": Version(INT_MAX, 4)}, True)
    bench.lie("h2", future)
    bench.run(20.0)
    assert bench.honest_cuts() == []
    assert bench.served()


def test_mark_from_the_future_does_not_cut_the_innocent() -> None:
    bench = Bench()
    bench.liar("c")
    bench.lie("c", MarkIs("c", 1, {"a": FUTURE, "b": FUTURE}))
    bench.lie("c", Knowledge("c", "hub", "", 1, [Datum(2, 1, body("p", 1))], [(1, 1)], [], 2))
    session = bench.client("a", "watcher")
    bench.says("a", session, Subscribe(1, "s", "price > 0", "reliable"))
    bench.run(5.0)
    assert "c" not in [start.stream for start in bench.heard("a", session, StartsAt)]
    assert bench.served()


def test_ticks_below_the_release_point_are_withheld_or_refused() -> None:
    bench = Bench(Options(log_ticks_max=16, retention="lossy"))
    session = bench.client("b", "feed")
    for sequence in range(1, 100):
        bench.says("b", session, Publish([body("feed", sequence)]))
        bench.run(0.1)
    bench.liar("c")
    bench.run(1.0)
    bench.told["c"].clear()
    for content in (Nack([(1, 3)]), Replay(4, 1, 0, ["TRUE"], 9, 9), Hold(5, 0)):
        bench.lie("c", carry(content))
    frames = [frame for _, frame in bench.told["c"]]
    holes = [h for frame in frames if isinstance(frame, Knowledge) for h in frame.withheld]
    answers = [frame.content for frame in frames if isinstance(frame, Carry)]
    assert [(hole.first, hole.last, hole.reason) for hole in holes] == [(1, 3, "retention")]
    assert [type(answer) for answer in answers] == [NotKept, NotKept]
    assert bench.served()


def test_heads_and_ticks_that_go_back_are_old_news() -> None:
    bench = Bench()
    bench.liar("c")
    session = bench.client("a", "watcher")
    bench.says("a", session, Subscribe(1, "s", "price > 0", "reliable"))
    bench.run(1.0)
    for head in (9, 3, 0, 8):
        bench.lie("c", Knowledge("c", "hub", "", 0, [Datum(9, 9, body("p", 9))], [], [], head))
        bench.lie("c", Knowledge("c", "hub", "", 0, [], [(1, 4)], [], head))
    bench.run(1.0)
    ticks = [d.tick for each in bench.matches("a", session) for d in each.data]
    assert ticks == sorted(set(ticks))
    assert bench.served()


def test_garbage_in_place_of_an_event_is_never_delivered() -> None:
    bench = Bench()
    bench.liar("c")
    session = bench.client("a", "watcher")
    bench.says("a", session, Subscribe(1, "s", "price > 0", "reliable"))
    bench.run(1.0)
    for mark in (1, 2, 0):
        garbage = Datum(mark + 1, 1, b"garbage")
        bench.lie("c", Knowledge("c", "hub", "", mark, [garbage], [], [], mark + 1))
    bench.run(1.0)
    assert [d for each in bench.matches("a", session) for d in each.data] == []
    assert bench.served()


def test_peer_that_repeats_every_frame_a_hundred_times_changes_nothing() -> None:
    bench = Bench()
    bench.liar("c")
    wanted = [Conjuncts("price > 1", (0,))]
    datum = Datum(2, 2, body("p", 1))
    session = bench.client("a", "watcher")
    bench.says("a", session, Subscribe(1, "s", "price > 0", "reliable"))
    bench.run(1.0)
    frames: list[LinkFrame] = [
        InterestState("hub", "c", {"c": Version(7, 1)}, wanted, False, True),
        InterestChange("hub", "c", {"c": Version(7, 2)}, wanted, [], {"c": Version(7, 1)}),
        MarkIs("c", 1, {"a": known(bench, "a")}),
        Knowledge("c", "hub", "", 1, [], [(1, 1)], [], 1, 1),
        Knowledge("c", "hub", "", 1, [datum], [], [], 2, 2),
        AskInterest("hub", "c"),
        carry(Hold(5, 0)),
        carry(Nack([(1, 9)])),
    ]
    counts = []
    for frame in frames:
        before = len(bench.told["c"])
        for _ in range(100):
            bench.lie("c", frame)
            bench.run(0.001)
        counts.append(len(bench.told["c"]) - before)
    bench.run(1.0)
    assert not bench.is_cut("c")
    ticks = [d.tick for each in bench.matches("a", session) for d in each.data]
    assert ticks in ([2], [])
    assert max(counts) <= 110
    assert bench.served()


def test_repetition_for_a_long_time_does_not_fill_the_memory() -> None:
    bench = Bench(Options(line_ticks_max=64))
    bench.liar("c")

    def pester(rounds: range) -> None:
        for n in rounds:
            bench.lie("c", AskInterest("hub", "c", {}, {"a": Version(INT_MAX, n)}))
            bench.lie("c", AskMark("b", n))
            bench.lie("c", MarkIs("c", n + 1, {"a": NOTHING}))
            bench.lie("c", Knowledge("c", "hub", "", 0, [], [(2 * n + 5, 2 * n + 5)], [], n))
            bench.lie("c", carry(Nack([(n + 1, n + 9)])))
            bench.lie("c", carry(Hold(n, 0)))
            bench.lie("c", carry(Find(n, f"s{n}")))
            bench.lie("c", carry(Claim(f"s{n}", n)))
            bench.lie("c", carry(Found(n, f"s{n}", n, "TRUE", {})))
            bench.run(0.03)
            bench.told["c"].clear()
            bench.notes.clear()

    pester(range(300))
    tracemalloc.start()
    pester(range(300, 400))
    before = tracemalloc.get_traced_memory()[0]
    pester(range(400, 1_200))
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 50_000
    assert bench.served()


def test_interest_beyond_the_limits_of_a_relay_is_not_learned_but_survived() -> None:
    bench = Bench(limits=Limits(index_attributes_max=8))
    bench.liar("c")
    for n in range(1, 30):
        wanted = [Conjuncts(f"attribute_{n} = 1", (0,))]
        before = {"c": Version(7, n - 1) if n > 1 else NOTHING}
        bench.lie("c", InterestChange("hub", "c", {"c": Version(7, n)}, wanted, [], before))
    many = [Conjuncts(f"other_{n} = 1", (0,)) for n in range(30)]
    bench.lie("c", InterestState("hub", "c", {"c": Version(7, 99)}, many))
    assert any("exceeds the limits" in note for note in bench.notes)
    # Room is needed for the well-behaved: the liar wants nothing any more.
    bench.lie("c", InterestState("hub", "c", {"c": Version(7, 100)}, []))
    assert not bench.is_cut("c")
    assert bench.served()
