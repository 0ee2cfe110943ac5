"""What a keeper tells edges, and what it does not."""

from collections.abc import Sequence
from typing import Any

import pytest

from anabranch.core.contract import LogRead, Read, Recovered, RecoveredCopy
from anabranch.core.options import Options
from anabranch.core.origin.log_tail import (
    AnyRecord,
    BlankRecord,
    EventRecord,
    MarkRecord,
    encode_record,
)
from anabranch.core.part_requests import CarryTo, PartRequest
from anabranch.core.replication.copy_reads import CopyReads
from anabranch.core.replication.keeper import CopyRow, Keeper
from anabranch.model.encoding import encode_event
from anabranch.model.errors import RemoteError
from anabranch.model.event import Control, Event, EventId
from anabranch.model.frame_parts import Hole
from anabranch.model.frames import (
    Answer,
    AnyCarried,
    NackCopy,
    NotInCopy,
    NotKept,
    Replay,
    ReplayCopy,
    Resent,
)
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.sim.mutants.catalog import planted
from tests.edge_parts import NETWORK


def event(price: int, **control: Any) -> EventRecord:
    body = encode_event(
        Event({"price": price}, id=EventId("p", 1, price), control=Control(**control))
    )
    return EventRecord(price, body)


def mark(tick: int) -> MarkRecord:
    return MarkRecord(tick, {})


class Bench:
    """A keeper with a copy of stream b; the edge a asks."""

    def __init__(
        self, records: Sequence[AnyRecord], confirmed: int, *, first: int = 1, **options: Any
    ) -> None:
        self.records = [encode_record(record) for record in records]
        self.first = first
        last = first + len(records) - 1
        recovered = Recovered(copies={"b": RecoveredCopy(first, last)})
        row = CopyRow(7, is_open=True, first=first, applied=last, confirmed=confirmed)
        self.keeper = Keeper("h1", NETWORK.edges, recovered, {"b": row}, 1)
        self.reads = CopyReads(self.keeper, NETWORK, Options(**options), DEFAULT_LIMITS)
        self.asked: list[Read] = []

    def ask(self, content: NackCopy | ReplayCopy, now: float = 10.0) -> list[AnyCarried]:
        """Ask, let the disk read, and return the answers."""
        return self.finish(now, self.reads.carried(now, "a", content))

    def finish(self, now: float, requests: Sequence[PartRequest]) -> list[AnyCarried]:
        found: list[AnyCarried] = []
        for request in requests:
            if isinstance(request, CarryTo):
                assert request.target == "a"
                found.append(request.content)
            elif isinstance(request, Read):
                self.asked.append(request)
                found += self.finish(now, self.reads.log_read(now, self.read(request)))
        return found

    def read(self, request: Read) -> LogRead:
        start, end = request.first - self.first, request.last - self.first + 1
        return LogRead(request.request, request.first, tuple(self.records[start:end]), "b")

    def nack(self, *ranges: tuple[int, int], now: float = 10.0, last: bool = False) -> list[Any]:
        return self.ask(NackCopy("b", [*ranges], last), now)

    def replay(self, first: int, *, text: str = "TRUE", last: bool = False) -> list[Any]:
        replay = Replay(5, first, 0, [text], 100, 100_000)
        return self.ask(ReplayCopy("b", replay, last))


def test_a_resend_has_all_events_and_silence_for_the_other_ticks() -> None:
    bench = Bench([mark(1), event(2), mark(3), mark(4), event(5)], confirmed=5)
    [resent] = bench.nack((1, 5))
    assert isinstance(resent, Resent)
    assert [datum.tick for datum in resent.data] == [2, 5]
    assert resent.silent == [(1, 1), (3, 4)]
    assert resent.withheld == []
    assert resent.head == 5


def test_only_ticks_that_are_known_to_be_confirmed_are_served() -> None:
    bench = Bench([event(tick) for tick in range(1, 9)], confirmed=5)
    [resent] = bench.nack((3, 8))
    assert [datum.tick for datum in resent.data] == [3, 4, 5]
    assert resent.head == 5
    [answer] = bench.replay(2)
    assert isinstance(answer, Answer)
    assert (answer.through, answer.head) == (5, 5)
    assert [datum.tick for datum in answer.data] == [2, 3, 4, 5]


def test_nothing_is_said_about_what_follows() -> None:
    bench = Bench([event(tick) for tick in range(1, 9)], confirmed=5)
    assert bench.nack((6, 8)) == []
    # An answer without ticks would say that there are none.
    assert bench.replay(6) == [NotInCopy(5)]
    assert bench.asked == []


def test_a_keeper_that_guesses_what_is_deleted_is_found() -> None:
    with planted("deleted-by-guess"):
        found = Bench([event(tick) for tick in range(1, 9)], confirmed=5).nack((6, 8))
    assert found == [Resent("b", [], withheld=[Hole(6, 8, "retention")], head=5)]


def test_a_question_without_ranges_is_answered_with_the_head() -> None:
    assert Bench([event(1), event(2)], confirmed=1).nack() == [Resent("b", [], head=1)]
    assert Bench([event(1)], confirmed=0).nack() == []


def test_only_the_requested_ticks_are_sent() -> None:
    bench = Bench([event(tick) for tick in range(1, 9)], confirmed=8)
    [resent] = bench.nack((2, 3), (6, 6))
    assert [datum.tick for datum in resent.data] == [2, 3, 6]


def test_ticks_before_the_beginning_are_deleted_at_the_origin() -> None:
    bench = Bench([event(tick) for tick in range(4, 7)], confirmed=6, first=4)
    [resent] = bench.nack((1, 5))
    assert resent.withheld == [Hole(1, 3, "retention")]
    assert [datum.tick for datum in resent.data] == [4, 5]
    assert bench.replay(2) == [NotKept(5, 4)]
    assert bench.nack((1, 2), now=20.0) == [
        Resent("b", [], withheld=[Hole(1, 2, "retention")], head=6)
    ]


def test_a_transient_event_is_left_to_an_origin_that_may_have_it() -> None:
    records: list[AnyRecord] = [event(1), BlankRecord(2, EventId("p", 1, 2)), event(3)]
    [resent] = Bench(records, confirmed=3).nack((1, 3))
    assert ([datum.tick for datum in resent.data], resent.withheld) == ([1, 3], [])
    [answer] = Bench(records, confirmed=3).replay(1)
    assert answer.through == 1
    assert Bench(records, confirmed=3).replay(2) == [NotInCopy(5)]


def test_a_transient_event_is_withheld_if_the_origin_is_away() -> None:
    records: list[AnyRecord] = [event(1), BlankRecord(2, EventId("p", 1, 2)), event(3)]
    [resent] = Bench(records, confirmed=3).nack((1, 3), last=True)
    assert resent.withheld == [Hole(2, 2, "transient")]
    [answer] = Bench(records, confirmed=3).replay(1, last=True)
    assert (answer.through, answer.withheld) == (3, [Hole(2, 2, "transient")])


def test_a_replay_is_answered_with_matches_that_may_travel_to_the_edge() -> None:
    # From b to a it is two hops.
    records = [event(1), event(2, hop_limit=1), event(3, hop_limit=2), event(4)]
    [answer] = Bench(records, confirmed=4).replay(1, text="price < 4")
    assert [datum.tick for datum in answer.data] == [1, 3]
    [resent] = Bench(records, confirmed=4).nack((1, 4))
    # The edge checks the limits of what it is sent unfiltered.
    assert [datum.tick for datum in resent.data] == [1, 2, 3, 4]


def test_a_tick_is_not_sent_to_an_edge_again_at_once() -> None:
    bench = Bench([event(tick) for tick in range(1, 5)], confirmed=4, nack_again_s=1.0)
    assert len(bench.nack((1, 2))) == 1
    [resent] = bench.nack((1, 4), now=10.1)
    assert [datum.tick for datum in resent.data] == [3, 4]
    [resent] = bench.nack((1, 1), now=11.0)
    assert [datum.tick for datum in resent.data] == [1]


def test_what_one_nack_brings_is_bounded() -> None:
    bench = Bench([event(tick) for tick in range(1, 9)], confirmed=8, nack_ticks_max=3)
    [resent] = bench.nack((1, 8))
    assert [datum.tick for datum in resent.data] == [1, 2, 3]
    assert bench.asked[0].bytes_max == Options().replay_bytes_max


def test_the_reads_in_progress_are_bounded() -> None:
    bench = Bench([event(tick) for tick in range(1, 9)], confirmed=8, reads_max=8)
    edges = [edge for edge in NETWORK.edges for _ in range(2)]
    found = [
        request
        for edge in edges
        for request in bench.reads.carried(10.0, edge, NackCopy("b", [(1, 1)]))
    ]
    assert len(found) == 2
    assert {request.stream for request in found if isinstance(request, Read)} == {"b"}


def test_a_copy_that_is_dropped_while_it_is_read_is_not_served() -> None:
    bench = Bench([event(1)], confirmed=1)
    [read] = bench.reads.carried(10.0, "a", NackCopy("b", [(1, 1)]))
    assert isinstance(read, Read)
    bench.keeper._copies.clear()
    assert bench.reads.log_read(10.0, bench.read(read)) == []


def test_a_broker_without_a_copy_says_nothing() -> None:
    bench = Bench([event(1)], confirmed=1)
    assert bench.reads.carried(10.0, "a", NackCopy("c", [(1, 1)])) == []


@pytest.mark.parametrize(
    ("source", "content"),
    [
        ("h2", NackCopy("b", [(1, 1)])),
        ("a", NackCopy("b", [(2, 1)])),
        ("a", ReplayCopy("b", Replay(5, 0, 0, ["TRUE"], 1, 1))),
        ("a", ReplayCopy("b", Replay(5, 1, 0, ["price <"], 1, 1))),
    ],
)
def test_an_invalid_request_is_refused(source: str, content: NackCopy | ReplayCopy) -> None:
    bench = Bench([event(1)], confirmed=1)
    with pytest.raises(RemoteError):
        bench.reads.carried(10.0, source, content)
