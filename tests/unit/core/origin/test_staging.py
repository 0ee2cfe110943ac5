"""What is staged: chunks in order, on disk before they are answered, bounded, and not for ever."""

import pytest

from anabranch.core.contract import Note, Recovered
from anabranch.core.options import Options
from anabranch.core.origin import batches
from anabranch.core.origin.staged_events import StagedTokens, size_of
from anabranch.model.client_frames import (
    BUSY,
    DEPARTING,
    TOO_LARGE,
    UNKNOWN_TOKEN,
    Discard,
    Refused,
    Stage,
    Staged,
)
from anabranch.model.encoding import encode_draft
from anabranch.model.event import Event
from anabranch.model.limits import Limits
from tests.origin_parts import body
from tests.staging_parts import Stager, draft


def test_a_chunk_is_answered_when_it_is_on_disk_and_not_before() -> None:
    stager = Stager()
    request = stager.stage("t", 1, 2)
    assert stager.answer(request) is None
    stager.sync()
    assert stager.answer(request) == Staged(request)
    assert list(stager.rows("stage")) == ["t\x000"]


def test_what_is_staged_is_in_memory_once_as_the_row_that_is_written() -> None:
    tokens = StagedTokens(Recovered(), Options(), 1.0)
    put = tokens.add(1.0, "t", [draft(1), draft(2)], True, "writer")
    assert put.value is not None
    found = tokens.find("t")
    assert found is not None
    assert found.chunks[0].data is put.value
    assert found.chunks[0].drafts() == [draft(1), draft(2)]
    again = StagedTokens(Recovered({put.table: {put.key: put.value}}), Options(), 1.0).find("t")
    assert again is not None
    assert again.chunks[0].data is put.value
    assert (again.events, again.size, again.client) == (found.events, found.size, "writer")


def test_staged_events_are_no_events_of_the_stream() -> None:
    stager = Stager()
    stager.staged("t", 1, 2)
    assert stager.origin.head == 0
    assert stager.events == {}


def test_chunks_come_in_order_and_one_before_its_turn_may_come_again() -> None:
    stager = Stager()
    stager.stage("t", 1, is_last=False)
    early = stager.stage("t", 3, index=2)
    assert stager.refusal(early).code == UNKNOWN_TOKEN
    assert "chunk 1 of 't' is missing" in stager.refusal(early).reason
    stager.stage("t", 2, index=1, is_last=False)
    again = stager.stage("t", 3, index=2)
    stager.sync_all()
    assert stager.answer(again) == Staged(again)
    stager.committed(0, "t")
    assert stager.logged() == [(1, 1, 1), (1, 2, 2), (1, 3, 3)]


def test_a_chunk_that_comes_again_is_answered_again_and_kept_once() -> None:
    stager = Stager()
    first = stager.stage("t", 1, is_last=False)
    again = stager.stage("t", 1, is_last=False, session=2)
    assert stager.answers(again) == []
    stager.sync_all()
    later = stager.stage("t", 1, is_last=False)
    stager.sync_all()
    for request in (first, again, later):
        assert stager.answer(request) == Staged(request)
    stager.staged("u", 2)
    stager.stage("t", 2, index=1)
    stager.sync_all()
    stager.committed(0, "t")
    assert stager.logged() == [(1, 1, 1), (1, 2, 2)]


def test_two_tasks_with_one_token_are_told_apart() -> None:
    stager = Stager()
    stager.stage("t", 1, 2, is_last=False)
    other = stager.stage("t", 1, 3, is_last=False)
    ended = stager.stage("t", 1, 2, is_last=True)
    assert "choose a new token" in stager.refusal(other).reason
    assert "choose a new token" in stager.refusal(ended).reason


def test_a_token_that_is_complete_takes_no_more() -> None:
    stager = Stager()
    stager.staged("t", 1)
    more = stager.stage("t", 2, index=1)
    assert "complete" in stager.refusal(more).reason


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"garbage",
        draft(1)[:-3],
        body(1),
        draft(1, payload=bytes(11)),
        encode_draft(Event({"n": 1, "m": 2})),
        encode_draft(Event({"n": "x" * 600})),
    ],
    ids=["empty", "garbage", "cut", "with an id", "payload", "attributes", "size"],
)
def test_a_bad_event_refuses_its_chunk_and_is_named_by_its_position(bad: bytes) -> None:
    stager = Stager(limits=Limits(attributes_max=1, payload_bytes_max=10, event_bytes_max=800))
    asks = stager.say(Stage(7, "t", 0, [draft(1), bad], True))
    refused = stager.refusal(7)
    assert refused.reason.startswith("chunk 0 of 't': event 1: ")
    assert refused.code == ""
    assert len(asks) == 1
    stager.staged("t", 1)
    assert stager.committed(0, "t").first == 1


@pytest.mark.parametrize("token", ["", "a\nb", "x" * 256, "é" * 130])
def test_a_token_that_is_no_name_is_refused(token: str) -> None:
    stager = Stager()
    assert stager.refusal(stager.stage(token, 1)).reason.startswith("token ")


def test_staged_bytes_are_bounded_and_there_is_room_again_after_a_commit() -> None:
    size = size_of([draft(1), draft(2)])
    stager = Stager(Options(stage_bytes_max=2 * size))
    stager.staged("t", 1, 2)
    stager.staged("u", 1, 2)
    full = stager.stage("v", 1)
    assert stager.refusal(full).code == BUSY
    assert f"{2 * size} bytes are staged" in stager.refusal(full).reason
    stager.committed(0, "t")
    stager.staged("v", 1, 2)
    stager.committed(1, "u", "v")
    assert len(stager.logged()) == 6


def test_tokens_are_bounded_and_empty_chunks_count_too() -> None:
    stager = Stager(Options(stage_tokens_max=2, stage_bytes_max=3 * size_of([])))
    stager.stage("t", is_last=False)
    stager.stage("u", is_last=False)
    assert stager.refusal(stager.stage("v")).code == BUSY
    stager.stage("t", index=1, is_last=False)
    assert stager.refusal(stager.stage("t", index=2)).code == BUSY


def test_a_token_that_is_more_than_may_be_staged_is_refused_for_good() -> None:
    stager = Stager(Options(stage_bytes_max=2 * size_of([draft(1), draft(2)])))
    large = stager.refusal(stager.stage("t", *range(100)))
    assert (large.code, "the most that a client may stage" in large.reason) == (TOO_LARGE, True)
    for index in range(2):
        stager.stage("u", 1, 2, index=index, is_last=False)
    stager.sync_all()
    assert stager.refusal(stager.stage("u", 1, index=2)).code == TOO_LARGE
    assert stager.refusal(stager.stage("v", 1)).code == BUSY


def test_answers_that_wait_for_a_slow_disk_are_bounded() -> None:
    stager = Stager()
    stager.staged("t", 1)
    requests = [stager.stage("t", 1) for _ in range(batches.STAGES_WAITING_MAX)]
    refused = stager.stage("t", 1)
    assert stager.refusal(refused).code == BUSY
    stager.sync_all()
    assert all(stager.answer(request) == Staged(request) for request in requests)
    again = stager.stage("t", 1)
    stager.sync_all()
    assert stager.answer(again) == Staged(again)


def test_bytes_that_wait_for_a_slow_disk_are_bounded() -> None:
    stager = Stager(Options(unsynced_bytes_max=2 * size_of([draft(1)])))
    taken = [stager.stage(f"t{number}", 1) for number in range(3)]
    refused = stager.refusal(stager.stage("u", 1))
    assert (refused.code, "disk is behind" in refused.reason) == (BUSY, True)
    # What is here already takes no further room.
    taken.append(stager.stage("t0", 1))
    stager.sync_all()
    assert all(stager.answer(request) == Staged(request) for request in taken)
    stager.staged("u", 1)
    assert stager.committed(0, "u").last == 1


def test_what_is_discarded_is_gone_and_makes_room() -> None:
    stager = Stager(Options(stage_bytes_max=size_of([draft(1)])))
    stager.staged("t", 1)
    stager.say(Discard(("t", "unknown")))
    stager.sync_all()
    assert stager.rows("stage") == {}
    stager.staged("u", 1)
    assert stager.refusal(stager.commit(0, "t")).code == UNKNOWN_TOKEN


def test_what_nobody_commits_is_dropped_with_a_note() -> None:
    stager = Stager(Options(stage_keep_s=60.0))
    stager.staged("t", 1)
    stager.wait(50.0)
    stager.stage("t2", 1, is_last=False)
    stager.sync_all()
    stager.wait(9.0)
    assert len(stager.rows("stage")) == 2
    notes = [ask for ask in stager.wait(2.0) if isinstance(ask, Note)]
    stager.sync_all()
    assert [note.text for note in notes] == [
        "1 staged tokens were dropped, 't' first: not committed within 60 s"
    ]
    assert list(stager.rows("stage")) == ["t2\x000"]
    # What is still being added to stays.
    stager.stage("t2", 2, index=1)
    stager.sync_all()
    stager.wait(55.0)
    assert stager.committed(0, "t2").last == 2


def test_what_was_staged_survives_a_crash_and_its_time_goes_on() -> None:
    stager = Stager(Options(stage_keep_s=60.0))
    stager.stage("t", 1, is_last=False)
    stager.stage("t", 2, index=1)
    stager.sync_all()
    stager.now += 50.0
    stager.crash_keeping(0, 0)
    assert stager.committed(0, "t").last == 2
    stager.staged("u", 3)
    stager.now += 50.0
    stager.crash_keeping(0, 0)
    stager.wait(11.0)
    stager.sync_all()
    assert stager.rows("stage") == {}


def test_a_clock_that_went_back_between_two_lives_makes_nothing_stay_longer() -> None:
    stager = Stager(Options(stage_keep_s=60.0))
    stager.staged("t", 1)
    stager.now -= 50.0
    stager.crash_keeping(0, 0)
    stager.wait(61.0)
    stager.sync_all()
    assert stager.rows("stage") == {}


@pytest.mark.parametrize("kept", range(4))
def test_a_crash_while_chunks_are_deleted_leaves_nothing_that_can_be_committed(kept: int) -> None:
    stager = Stager()
    for index in range(3):
        stager.stage("t", index, index=index, is_last=index == 2)
    stager.sync_all()
    stager.say(Discard(("t",)))
    stager.crash_keeping(0, kept)
    request = stager.commit(0, "t")
    stager.sync_all()
    answer = stager.answers(request)[0]
    if kept:
        assert isinstance(answer, Refused)
        assert answer.code == UNKNOWN_TOKEN
        assert stager.logged() == []
    else:
        assert len(stager.logged()) == 3


def test_a_full_disk_refuses_chunks_and_batches_for_the_time_being() -> None:
    stager = Stager()
    stager.staged("t", 1)
    stager.do(stager.origin.log_full(stager.now, True))
    assert stager.refusal(stager.stage("u", 1)).code == BUSY
    assert stager.refusal(stager.commit(0, "t")).code == BUSY
    stager.do(stager.origin.log_full(stager.now, False))
    assert stager.committed(0, "t").last == 1


def test_a_broker_that_departs_takes_no_chunk() -> None:
    stager = Stager()
    stager.origin.depart(stager.now)
    assert stager.refusal(stager.stage("t", 1)).code == DEPARTING


def test_one_client_cannot_stage_all_that_may_be_staged() -> None:
    chunk = [draft(1)]
    quota = 2 * size_of(chunk)
    stager = Stager(Options(stage_bytes_max=4 * size_of(chunk), client_stage_bytes_max=quota))
    for number in range(2):
        stager.say(Stage(number, f"greedy{number}", 0, chunk, True), client="greedy")
    stager.say(Stage(2, "greedy2", 0, chunk, True), client="greedy")
    stager.say(Stage(3, "modest", 0, chunk, True), client="modest")
    stager.sync_all()
    assert stager.refusal(2).code == BUSY
    assert f"client 'greedy' has staged {quota} of {quota} bytes" in stager.refusal(2).reason
    assert "(client_stage_bytes_max)" in stager.refusal(2).reason
    assert stager.answer(3) == Staged(3)


def test_what_a_client_staged_counts_after_a_crash_and_until_it_is_gone() -> None:
    chunk = [draft(1)]
    stager = Stager(Options(client_stage_bytes_max=size_of(chunk)))
    stager.say(Stage(1, "t1", 0, chunk, True), client="greedy")
    stager.sync_all()
    stager.crash()
    stager.say(Stage(2, "t2", 0, chunk, True), client="greedy")
    assert stager.refusal(2).code == BUSY
    stager.say(Discard(("t1",)), client="greedy")
    stager.say(Stage(3, "t3", 0, chunk, True), client="greedy")
    stager.sync_all()
    assert stager.answer(3) == Staged(3)
