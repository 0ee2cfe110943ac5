"""The staging half of a session: every chunk and commit until it is answered, by one broker."""

import pytest

from anabranch.core.session.effects import (
    BatchCommitted,
    ChunkStaged,
    SessionEffects,
    SessionOptions,
    StagingRefused,
    SubscriptionRefused,
)
from anabranch.core.session.session import ClientSession
from anabranch.model.client_frames import (
    BUSY,
    UNKNOWN_TOKEN,
    Commit,
    Committed,
    Connect,
    Discard,
    Refused,
    Stage,
    Staged,
)
from anabranch.model.errors import LocalError
from tests.session_parts import frames


def connected(options: SessionOptions | None = None) -> ClientSession:
    session = ClientSession("c", options=options or SessionOptions())
    session.connected(0.0)
    return session


def indices(effects: SessionEffects) -> list[int]:
    """Of the chunks that are sent."""
    return [frame.index for frame in frames(effects) if isinstance(frame, Stage)]


def test_chunks_and_commits_go_out_at_once_and_are_told_when_answered() -> None:
    session = connected()
    chunk, effects = session.staging.stage("t", 0, [b"x"], True)
    assert frames(effects) == [Stage(chunk, "t", 0, [b"x"], True)]
    assert session.frame(0.1, Staged(chunk)) == [ChunkStaged(chunk)]
    commit, effects = session.staging.commit("s", "q", 3, ["t"])
    assert frames(effects) == [Commit(commit, "s", "q", 3, ("t",))]
    assert session.frame(0.2, Committed(commit, "s", 3, 5, 6, False)) == [
        BatchCommitted(commit, "s", 3, 5, 6, False)
    ]
    assert session.staging.is_idle


def test_what_is_unanswered_goes_out_again_in_order_over_the_next_connection() -> None:
    session = connected()
    first, _ = session.staging.stage("t", 0, [b"x"], False)
    second, _ = session.staging.stage("t", 1, [b"y"], True)
    session.frame(0.1, Staged(first))
    session.disconnected(1.0)
    commit, effects = session.staging.commit("s", "q", 0, ["t"])
    assert effects == []
    sent = frames(session.connected(2.0))
    assert isinstance(sent[0], Connect)
    assert sent[1:] == [Stage(second, "t", 1, [b"y"], True), Commit(commit, "s", "q", 0, ("t",))]


def test_an_answer_is_told_once() -> None:
    session = connected()
    commit, _ = session.staging.commit("s", "q", 0, [])
    session.frame(0.1, Committed(commit, "s", 0, 0, 0, False))
    assert session.frame(0.1, Committed(commit, "s", 0, 0, 0, True)) == []
    assert session.frame(0.1, Staged(commit)) == []
    assert session.frame(0.1, Refused(commit, "too late")) == []


def test_what_is_refused_for_now_is_sent_again_after_a_pause_that_doubles() -> None:
    session = connected(SessionOptions(retry_refused_after_s=1.0))
    first, _ = session.staging.stage("t", 0, [b"x"], False)
    second, _ = session.staging.stage("t", 1, [b"y"], True)
    told = session.frame(0.0, Refused(first, "full", BUSY))
    assert told == [StagingRefused(first, "full", False, BUSY)]
    told = session.frame(0.1, Refused(second, "chunk 0 is not here", UNKNOWN_TOKEN))
    assert told == [StagingRefused(second, "chunk 0 is not here", False, UNKNOWN_TOKEN)]
    assert session.next_deadline() == 1.0
    assert session.time_passed(0.9) == []
    assert indices(session.time_passed(1.0)) == [0]
    session.frame(1.0, Refused(first, "full", BUSY))
    assert session.next_deadline() == 3.0
    session.time_passed(3.0)
    session.frame(3.0, Staged(first))
    assert indices(session.time_passed(3.0)) == [1]
    session.frame(3.0, Refused(second, "full", BUSY))
    assert session.next_deadline() == 4.0


def test_a_full_broker_is_asked_with_one_chunk_of_each_token_until_there_is_room() -> None:
    session = connected(SessionOptions(retry_refused_after_s=1.0))
    numbers = [session.staging.stage("t", n, [b"x"], n == 3)[0] for n in range(4)]
    other, _ = session.staging.stage("u", 0, [b"y"], True)
    commit, _ = session.staging.commit("s", "q", 0, ["v"])
    for number in (*numbers, other, commit):
        session.frame(0.0, Refused(number, "no", BUSY))
    sent = frames(session.time_passed(1.0))
    assert [getattr(frame, "request", 0) for frame in sent] == [numbers[0], other, commit]
    assert session.next_deadline() is None
    session.frame(1.0, Refused(numbers[0], "full", BUSY))
    session.frame(1.0, Staged(other))
    assert indices(session.time_passed(session.next_deadline() or 0.0)) == [0, 1, 2, 3]


@pytest.mark.parametrize("is_answered", [True, False])
def test_what_waits_for_a_chunk_goes_out_when_that_is_refused_for_good_or_given_up(
    is_answered: bool,
) -> None:
    session = connected(SessionOptions(retry_refused_after_s=1.0))
    numbers = [session.staging.stage("t", n, [b"x"], n == 2)[0] for n in range(3)]
    for number in numbers:
        session.frame(0.0, Refused(number, "full", BUSY))
    assert indices(session.time_passed(1.0)) == [0]
    if is_answered:
        session.frame(1.0, Refused(numbers[0], "bad"))
    else:
        session.staging.withdraw(numbers[:1])
    deadline = session.next_deadline()
    assert deadline is not None
    assert indices(session.time_passed(max(deadline, 1.0)))[0] == 1


def test_a_chunk_whose_predecessors_were_dropped_is_in_vain() -> None:
    session = connected()
    first, _ = session.staging.stage("t", 0, [b"x"], False)
    second, _ = session.staging.stage("t", 1, [b"y"], True)
    other, _ = session.staging.stage("u", 0, [b"x"], True)
    session.frame(0.0, Staged(first))
    session.disconnected(1.0)
    session.connected(4_000.0)
    assert session.frame(4_000.0, Refused(second, "not here", UNKNOWN_TOKEN)) == [
        StagingRefused(second, "not here", True, UNKNOWN_TOKEN)
    ]
    assert session.frame(4_000.0, Staged(other)) == [ChunkStaged(other)]
    assert session.staging.is_idle


def test_any_other_refusal_is_final() -> None:
    session = connected()
    commit, _ = session.staging.commit("s", "q", 0, ["t"])
    assert session.frame(0.0, Refused(commit, "not staged", UNKNOWN_TOKEN)) == [
        StagingRefused(commit, "not staged", True, UNKNOWN_TOKEN)
    ]
    assert session.staging.is_idle


def test_an_answer_finds_the_part_that_it_is_for() -> None:
    session = connected()
    session.subscribe(0.0, "orders", "a > 1")
    commit, _ = session.staging.commit("s", "q", 0, [])
    (told,) = session.frame(0.0, Refused(1, "no such thing"))
    assert isinstance(told, SubscriptionRefused)
    assert not session.staging.is_idle
    (told,) = session.frame(0.0, Refused(commit, "no such thing"))
    assert isinstance(told, StagingRefused)


def test_the_client_stays_with_its_broker_as_long_as_somebody_waits() -> None:
    session = connected()
    commit, _ = session.staging.commit("s", "q", 0, [])
    assert not session.may_move_publisher()
    session.staging.withdraw([commit])
    assert session.may_move_publisher()
    session.disconnected(1.0)
    assert len(frames(session.connected(2.0))) == 1


def test_what_is_discarded_is_not_staged_any_more() -> None:
    session = connected(SessionOptions(retry_refused_after_s=1.0))
    chunk, _ = session.staging.stage("t", 0, [b"x"], True)
    other, _ = session.staging.stage("u", 0, [b"x"], True)
    session.frame(0.0, Refused(chunk, "full", BUSY))
    assert frames(session.staging.discard(["t"])) == [Discard(("t",))]
    assert session.next_deadline() is None
    session.disconnected(1.0)
    assert session.staging.discard(["t"]) == []
    assert [f.request for f in frames(session.connected(2.0)) if isinstance(f, Stage)] == [other]


def test_requests_are_bounded() -> None:
    session = connected(SessionOptions(staging_max=2))
    session.staging.stage("t", 0, [], False)
    session.staging.commit("s", "q", 0, [])
    assert not session.staging.has_room()
    with pytest.raises(LocalError, match="2 chunks and commits are unanswered"):
        session.staging.stage("t", 1, [], True)
