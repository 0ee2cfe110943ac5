"""Batches: all events of one set of tokens, once and in order, whatever is asked and how often."""

import msgspec
import pytest

from anabranch.core.options import Options
from anabranch.core.origin import batches
from anabranch.model.client_frames import (
    BUSY,
    DEPARTING,
    OTHER_BATCH,
    OTHER_QUERY,
    UNKNOWN_TOKEN,
    Committed,
    Discard,
)
from anabranch.model.event import INT_MAX, EventId
from anabranch.model.frames import Done
from tests.origin_parts import EDGES, body, emits_in, ticks_of
from tests.staging_parts import Stager

#: A batch of a few events takes several syncs.
SLICES = Options(slice_events_max=2)


def test_a_batch_has_the_events_of_its_tokens_in_the_order_given() -> None:
    stager = Stager(SLICES)
    stager.staged("t", 1, 2)
    stager.staged("u", 3, 4, 5)
    request = stager.commit(0, "u", "t")
    stager.sync_all()
    assert stager.answer(request) == Committed(request, "sink", 0, 1, 5, was_known=False)
    assert stager.logged() == [(1, 1, 3), (1, 2, 4), (1, 3, 5), (1, 4, 1), (1, 5, 2)]
    stager.staged("v", 6)
    assert stager.committed(7, "v").first == 6
    assert stager.logged()[5:] == [(2, 1, 6)]
    assert stager.rows("stage") == {}


def test_chunks_without_events_are_nothing_of_a_batch() -> None:
    stager = Stager(SLICES)
    for index, ns in enumerate([(), (1, 2, 3), (), (), (4,), ()]):
        stager.stage("t", *ns, index=index, is_last=index == 5)
    stager.staged("u")
    stager.staged("v", 5)
    stager.committed(0, "t", "u", "v")
    assert stager.logged() == [(1, n, n) for n in range(1, 6)]


def test_batches_that_are_written_at_the_same_time_keep_their_own_events() -> None:
    stager = Stager(SLICES)
    for sink in ("one", "two"):
        stager.stage(f"{sink}-t", 1, 2, 3, is_last=False)
        stager.stage(f"{sink}-t", 4, 5, 6, 7, index=1)
    stager.sync_all()
    requests = [stager.commit(0, f"{sink}-t", sink=sink) for sink in ("one", "two")]
    stager.sync_all()
    assert [type(stager.answer(request)) for request in requests] == [Committed, Committed]
    for sink in ("one", "two"):
        assert stager.logged(sink) == [(1, n, n) for n in range(1, 8)]


def test_nothing_is_appended_before_the_intent_is_on_disk() -> None:
    stager = Stager(SLICES)
    stager.staged("t", 1, 2, 3)
    stager.commit(0, "t")
    assert stager.logged() == []
    stager.sync()
    assert "sink" in stager.rows("sinks")
    assert len(stager.logged()) == 2


def test_the_answer_comes_when_the_last_event_is_on_disk_and_so_does_the_network() -> None:
    stager = Stager(SLICES)
    stager.mark(a=1)
    stager.staged("t", 1, 2, 3)
    request = stager.commit(0, "t")
    stager.sync()
    stager.sync()
    assert len(stager.logged()) == 3
    assert stager.answer(request) is None
    stager.sync()
    assert isinstance(stager.answer(request), Committed)
    assert ticks_of(emits_in(stager.emits)) == [2, 3, 4]


def test_others_publish_while_a_batch_is_written_and_it_keeps_its_order() -> None:
    stager = Stager(SLICES)
    stager.staged("t", *range(6))
    stager.commit(0, "t")
    for sequence in range(1, 4):
        stager.sync()
        stager.publish(body(sequence))
    stager.sync_all()
    assert [n for _, _, n in stager.logged()] == list(range(6))
    publishers = [stager.events[tick].publisher for tick in sorted(stager.events)]
    assert publishers != sorted(publishers)
    assert publishers.count("p") == 3


def test_an_empty_batch_is_a_batch() -> None:
    stager = Stager(SLICES)
    assert stager.committed(0) == Committed(1, "sink", 0, 0, 0, was_known=False)
    stager.staged("t")
    assert stager.committed(1, "t").was_known is False
    assert stager.committed(1).was_known is True
    assert stager.logged() == []


def test_a_batch_that_is_over_is_known_and_what_comes_with_it_is_dropped() -> None:
    stager = Stager(SLICES)
    stager.staged("t", 1, 2)
    stager.committed(4, "t")
    stager.staged("u", 3)
    again = stager.commit(4, "u")
    assert stager.answer(again) == Committed(again, "sink", 4, 1, 2, was_known=True)
    older = stager.commit(3, "t")
    assert stager.answer(older) == Committed(older, "sink", 3, 0, 0, was_known=True)
    stager.sync_all()
    assert stager.rows("stage") == {}
    assert stager.logged() == [(1, 1, 1), (1, 2, 2)]


def test_a_commit_of_the_batch_under_way_waits_for_the_same_answer() -> None:
    stager = Stager(SLICES)
    stager.staged("t", 1, 2, 3)
    stager.staged("u", 4)
    first = stager.commit(0, "t")
    same = stager.commit(0, "t", session=2)
    other = stager.commit(0, "u", session=3)
    gone = stager.commit(0, "u", session=4)
    stager.origin.client_disconnected(stager.now, 4)
    assert not any(map(stager.answers, (first, same, other)))
    stager.sync_all()
    assert stager.answer(first) == Committed(first, "sink", 0, 1, 3, was_known=False)
    assert stager.answer(same) == Committed(same, "sink", 0, 1, 3, was_known=True)
    assert stager.answer(other) == Committed(other, "sink", 0, 1, 3, was_known=True)
    assert stager.answers(gone) == []
    assert stager.rows("stage") == {}


def test_another_batch_waits_until_the_one_under_way_is_over() -> None:
    stager = Stager(SLICES)
    stager.staged("t", 1)
    stager.staged("u", 2)
    stager.commit(5, "t")
    assert stager.refusal(stager.commit(6, "u")).code == OTHER_BATCH
    stager.sync()
    older = stager.commit(4, "t")
    assert isinstance(stager.answer(older), Committed)
    stager.sync_all()
    assert stager.committed(6, "u").last == 2


def test_a_lower_batch_is_not_told_to_be_known_before_the_intent_is_on_disk() -> None:
    stager = Stager(SLICES)
    stager.staged("t", 1)
    stager.committed(5, "t")
    stager.staged("u", 2)
    stager.staged("v", 3)
    stager.commit(7, "u")
    assert stager.refusal(stager.commit(6, "v")).code == BUSY
    stager.crash_keeping(0, 0)
    answer = stager.committed(6, "v")
    assert (answer.was_known, answer.first) == (False, 2)


def test_a_sink_belongs_to_one_query() -> None:
    stager = Stager(SLICES)
    stager.staged("t", 1)
    stager.committed(0, "t")
    stager.staged("u", 2)
    for batch in (0, 1):
        refused = stager.refusal(stager.commit(batch, "u", query="r"))
        assert refused.code == OTHER_QUERY
        assert "'q', not to 'r'" in refused.reason
    assert stager.committed(1, "u").last == 2


@pytest.mark.parametrize("tokens", [("t", "nobody"), ("t", "half"), ("t", "t")])
def test_a_commit_with_a_token_that_is_not_all_there_changes_nothing(
    tokens: tuple[str, ...],
) -> None:
    stager = Stager(SLICES)
    stager.staged("t", 1)
    stager.stage("half", 2, is_last=False)
    stager.sync_all()
    asks = len(stager.disk.unsynced_puts)
    refused = stager.refusal(stager.commit(0, *tokens))
    assert refused.code == (UNKNOWN_TOKEN if tokens[1] != "t" else "")
    assert repr(tokens[1]) in refused.reason or "twice" in refused.reason
    assert len(stager.disk.unsynced_puts) == asks
    assert stager.committed(0, "t").last == 1


def test_a_token_of_a_batch_is_neither_added_to_nor_discarded_nor_committed_again() -> None:
    stager = Stager(SLICES)
    stager.staged("t", 1, 2, 3)
    stager.commit(0, "t")
    stager.say(Discard(("t",)))
    assert "was committed" in stager.refusal(stager.stage("t", 1, 2, 3)).reason
    assert stager.refusal(stager.commit(0, "t", sink="other")).code == UNKNOWN_TOKEN
    stager.sync_all()
    assert len(stager.logged()) == 3
    assert "was committed" in stager.refusal(stager.stage("t", 9)).reason


def test_a_batch_waits_for_room_in_the_log() -> None:
    stager = Stager(Options(slice_events_max=2, log_ticks_max=3))
    stager.staged("t", *range(5))
    request = stager.commit(0, "t")
    stager.sync_all()
    assert [n for _, _, n in stager.logged()] == [0, 1, 2]
    stager.wait(1.0)
    assert stager.answer(request) is None
    for edge in EDGES:
        stager.carry(Done(3), edge)
    for _ in range(4):
        stager.wait(1.0)
        stager.sync_all()
    assert stager.answer(request) == Committed(request, "sink", 0, 1, 5, was_known=False)


def test_a_batch_goes_on_when_a_slow_disk_has_caught_up() -> None:
    stager = Stager(Options(slice_events_max=2, unsynced_ticks_max=2))
    stager.staged("t", 1, 2, 3)
    stager.commit(0, "t")
    stager.publish(body(1), body(2))
    stager.sync_all()
    stager.wait(1.0)
    stager.sync_all()
    assert [n for _, _, n in stager.logged()] == [1, 2, 3]


def test_a_lossy_log_makes_room_for_a_batch() -> None:
    stager = Stager(Options(slice_events_max=2, log_ticks_max=4, retention="lossy"))
    stager.staged("t", *range(9))
    answer = stager.committed(0, "t")
    assert (answer.first, answer.last) == (1, 9)
    assert stager.origin.oldest > 1


@pytest.mark.parametrize("is_first", [False, True])
def test_a_client_and_a_sink_of_one_name_do_not_meet(is_first: bool) -> None:
    stager = Stager(SLICES)
    if is_first:
        stager.publish_synced(body(1, "sink"), client="sink")
    stager.staged("t", 1)
    stager.committed(0, "t")
    stager.crash()
    if not is_first:
        stager.publish_synced(body(1, "sink"), client="sink")
    stager.publish_synced(body(2, "sink"), client="sink")
    stager.staged("u", 2)
    stager.committed(1, "u")
    assert stager.refusals(1) == []
    publishers = [event_id.publisher for event_id in stager.events.values()]
    assert sorted(publishers) == ["sink", "sink", "sink/sink", "sink/sink"]


@pytest.mark.parametrize("slices", [0, 1, 2])
def test_a_batch_that_an_older_version_began_is_ended_under_its_name_and_once(
    slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Version 0.1 had no prefix, and its rows lacked the last field.
    monkeypatch.setattr(batches, "SINK_PREFIX", "")
    stager = Stager(SLICES)
    stager.staged("t", 1, 2, 3)
    stager.commit(4, "t")
    for _ in range(1 + slices):
        stager.sync()
    row = msgspec.msgpack.decode(stager.disk.catalog["sinks"]["sink"])
    assert row.pop() is True
    stager.disk.catalog["sinks"]["sink"] = msgspec.msgpack.encode(row)
    stager.disk.unsynced_puts.clear()
    monkeypatch.undo()
    stager.crash()
    stager.sync_all()
    assert stager.committed(4, "t").was_known
    stager.staged("u", 4)
    stager.committed(5, "u")
    publishers = [event_id.publisher for event_id in stager.events.values()]
    assert publishers == ["sink", "sink", "sink", "sink/sink"]


def test_batch_whose_number_leads_the_clock_is_refused_and_lower_ones_go_on() -> None:
    stager = Stager(SLICES)
    stager.staged("t", 1)
    highest = int((stager.now + stager.options.incarnation_lead_s) * 1e9)
    assert "clock" in stager.refusal(stager.commit(INT_MAX, "t")).reason
    assert "clock" in stager.refusal(stager.commit(highest + 1, "t")).reason
    assert stager.committed(0, "t").last == 1
    stager.staged("u", 2)
    assert stager.committed(highest, "u").last == 2


def test_a_sink_beyond_the_publishers_that_can_be_remembered_is_refused() -> None:
    stager = Stager(Options(publishers_max=1))
    stager.publish_synced(body(1))
    stager.staged("t", 1)
    assert "1 publishers" in stager.refusal(stager.commit(0, "t")).reason
    assert stager.logged() == []


def test_sinks_without_events_are_bounded_too() -> None:
    stager = Stager(Options(publishers_max=2))
    for name in ("one", "two"):
        stager.committed(0, sink=name)
    assert "2 sinks are on record" in stager.refusal(stager.commit(0, sink="three")).reason
    assert stager.committed(1, sink="two").was_known is False


@pytest.mark.parametrize("names", [("", "q"), ("a\tb", "q"), ("s", "a\tb")])
def test_a_sink_or_query_that_is_no_name_is_refused(names: tuple[str, str]) -> None:
    stager = Stager(SLICES)
    refused = stager.refusal(stager.commit(0, sink=names[0], query=names[1]))
    assert refused.reason.split()[0] in {"sink", "query"}


def test_requests_that_wait_for_a_batch_are_bounded() -> None:
    stager = Stager(SLICES)
    stager.staged("t", 1)
    for _ in range(batches.COMMITS_WAITING_MAX):
        stager.commit(0, "t")
    assert stager.refusal(stager.commit(0, "t")).code == BUSY
    stager.sync_all()


def test_batches_under_way_are_bounded() -> None:
    stager = Stager(SLICES)
    for number in range(batches.BATCHES_IN_PROGRESS_MAX):
        stager.commit(0, sink=f"s{number}")
    assert stager.refusal(stager.commit(0, sink="one more")).code == BUSY
    waits = stager.commit(0, sink="s0")
    stager.sync_all()
    assert isinstance(stager.answer(waits), Committed)
    assert stager.committed(0, sink="one more").was_known is False


def test_a_sink_that_is_idle_takes_the_same_room_whatever_it_has_written() -> None:
    stager = Stager(SLICES)
    for sink, count in (("few", 1), ("many", 400)):
        tokens = [f"{sink}.{number}" for number in range(count)]
        for token in tokens:
            stager.stage(token, 1)
        stager.sync_all()
        stager.committed(0, *tokens, sink=sink)
        stager.sync_all()
    few, many = (len(stager.rows("sinks")[sink]) for sink in ("few", "many"))
    assert many - few <= 8
    assert stager.rows("stage") == {}


def test_only_the_newest_tokens_of_batches_are_remembered() -> None:
    stager = Stager(Options(stage_tokens_max=2))
    for batch, token in enumerate(("t", "u", "v")):
        stager.staged(token, 1)
        stager.committed(batch, token)
    assert "was committed" in stager.refusal(stager.stage("u", 1)).reason
    stager.staged("t", 2)
    assert stager.committed(3, "t").last == 4


def test_a_broker_that_departs_begins_no_batch_but_ends_those_under_way() -> None:
    stager = Stager(SLICES)
    stager.staged("t", 1, 2, 3)
    stager.staged("u", 4)
    request = stager.commit(0, "t")
    stager.origin.depart(stager.now)
    was_committing = stager.origin.is_committing
    assert stager.refusal(stager.commit(0, "u", sink="other")).code == DEPARTING
    stager.sync_all()
    assert stager.answer(request) == Committed(request, "sink", 0, 1, 3, was_known=False)
    assert (was_committing, stager.origin.is_committing) == (True, False)
    assert stager.origin.newest_committed == 3
    assert stager.refusal(stager.commit(1, "u")).code == DEPARTING
    assert stager.committed(0).was_known


def test_a_sink_is_remembered_when_its_records_are_gone() -> None:
    stager = Stager(Options(slice_events_max=2, checkpoint_ticks=2))
    for batch in range(3):
        stager.staged(f"t{batch}", 1, 2, 3)
        stager.committed(batch, f"t{batch}")
    for edge in EDGES:
        stager.carry(Done(9), edge)
    stager.wait(1.0)
    stager.sync_all()
    assert stager.origin.oldest == 10
    stager.crash_keeping(0, 0)
    answer = stager.committed(2)
    assert (answer.first, answer.last, answer.was_known) == (7, 9, True)
    stager.staged("t3", 1)
    assert stager.committed(3, "t3").first == 10
    assert stager.events[10] == EventId("sink/sink", 4, 1)
