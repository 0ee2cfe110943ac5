"""A writer begins a life with enough answers, confirms with enough copies, and survives lies."""

from typing import Any

import pytest

from anabranch.core.contract import DropCopy, Put, Restart
from anabranch.core.part_requests import AppendLife
from anabranch.core.replication.keeper import CopyRow
from anabranch.core.replication.remote_checks import LIFE_NUMBER_MAX
from anabranch.core.replication.writer import WINDOW_BYTES
from anabranch.model.errors import RemoteError
from anabranch.model.event import INT_MAX
from anabranch.model.replication import (
    AskLife,
    CopyId,
    CopySet,
    FetchedRows,
    FetchedTicks,
    FetchRows,
    FetchTicks,
    ForgetCopy,
    KeepTicks,
    Life,
    LifeAnswer,
    LifeStart,
    TicksKept,
)
from tests.replication_parts import RECORD, STREAM, WriterAlone, life, rows_record

OWN = CopyId(STREAM, 1_000)
K, L = CopyId("k", 1), CopyId("l", 1)
ALONE = CopySet((K,), 1)


def row(*members: CopyId, confirm: int, last: int, confirmed: int = 0) -> dict[str, Any]:
    """What a writer finds whose log has ticks 1 to `last` of life 5."""
    starts = (LifeStart(1, life(5), CopySet(members, confirm)),)
    kept = CopyRow(OWN.number, life(5), starts=starts, is_open=True, confirmed=confirmed)
    return {"row": kept, "last": last}


def founded(confirm: int = 2) -> WriterAlone:
    """A writer of a new stream with keepers k and l, whose life record is confirmed."""
    alone = WriterAlone("k", "l", confirm=confirm)
    alone.hear("k", alone.answer("k"))
    alone.hear("l", alone.answer("l"))
    for member in (K, L):
        alone.hear(member.broker, TicksKept(STREAM, alone.writer.life, member, 1))
    assert alone.writer.is_leading
    return alone


def has(last: int, confirmed: int = 0, **more: Any) -> dict[str, Any]:
    """Fields of the answer of a copy that has ticks of life 5."""
    starts = (LifeStart(1, life(5), CopySet((OWN, K, L), 2)),)
    fields: dict[str, Any] = {
        "is_empty": False, "last": last, "starts": starts, "confirmed": confirmed,
        "promised_before": life(5),
    }  # fmt: skip
    return fields | more


def state_of(alone: WriterAlone) -> str:
    return alone.writer.state


# -- starting --------------------------------------------------------------------------------------


def test_a_new_stream_begins_when_all_keepers_have_answered() -> None:
    alone = WriterAlone("k", "l", confirm=2)
    alone.hear("k", alone.answer("k"))
    assert not any(isinstance(each, AppendLife) for each in alone.effects)
    alone.hear("l", alone.answer("l"))
    assert any(isinstance(each, AppendLife) for each in alone.effects)


def test_a_stream_is_not_new_before_all_brokers_of_the_network_have_answered() -> None:
    alone = WriterAlone("k", confirm=2, others=("x",))
    alone.hear("k", alone.answer("k"))
    alone.wait(60)
    assert state_of(alone) == "asking"
    # x was its keeper until the network file was changed, and knows the stream.
    members = CopySet((CopyId(STREAM, 1), CopyId("x", 1)), 2)
    starts = (LifeStart(1, life(5), members),)
    alone.hear("x", alone.answer("x", **has(3, 3, starts=starts)))
    alone.wait(1)
    assert state_of(alone) == "fetching"


def test_brokers_that_were_only_asked_get_no_copy() -> None:
    alone = WriterAlone("k", confirm=2, others=("x",))
    alone.hear("k", alone.answer("k"))
    alone.hear("x", alone.answer("x"))
    assert set(alone.writer.peers) == {"k"}


def test_a_life_begins_after_a_start_quorum_has_promised() -> None:
    alone = WriterAlone("k", "l", confirm=2, **row(OWN, K, L, confirm=2, last=3, confirmed=3))
    alone.wait(60)
    assert state_of(alone) == "asking"
    alone.hear("k", alone.answer("k", **has(3)))
    alone.wait(1)
    assert state_of(alone) == "complete"


def test_a_life_waits_until_all_that_may_be_lost_is_looked_at() -> None:
    both = row(OWN, K, L, confirm=3, last=3, confirmed=3)
    alone = WriterAlone("k", "l", confirm=3, **both)
    alone.hear("k", alone.answer("k", **has(3)))
    alone.wait(60)
    assert state_of(alone) == "asking"


def test_two_lost_copies_are_known_in_whatever_order_the_copies_answer() -> None:
    # The origin and k have lost their disks; confirm is 3, so l has everything.
    for first, second in (("k", "l"), ("l", "k")):
        alone = WriterAlone("k", "l", confirm=3)
        starts = (LifeStart(1, life(5), CopySet((CopyId(STREAM, 1), K, L), 3)),)
        answers = {
            "k": alone.answer("k", 9),
            "l": alone.answer("l", **has(3, 3, starts=starts)),
        }
        alone.hear(first, answers[first])
        alone.hear(second, answers[second])
        alone.wait(1)
        assert state_of(alone) == "fetching", first


def test_the_copy_with_the_newest_life_is_adopted_and_not_the_longest() -> None:
    sets = CopySet((OWN, K, L), 2)
    alone = WriterAlone("k", "l", confirm=2, **row(OWN, K, L, confirm=2, last=3))
    longest = (LifeStart(1, life(5), sets),)
    newest = (LifeStart(1, life(5), sets), LifeStart(4, life(7), sets))
    alone.hear("k", alone.answer("k", **has(9, 3, starts=longest)))
    alone.hear("l", alone.answer("l", **has(4, 3, starts=newest)))
    assert state_of(alone) == "fetching"
    asked = [content for _, content in alone.said if isinstance(content, FetchTicks)]
    assert [each.copy for each in asked] == [L]


# -- confirming ------------------------------------------------------------------------------------


def test_a_tick_is_confirmed_when_enough_copies_have_synced_it() -> None:
    alone = founded(confirm=3)
    alone.append()
    assert alone.writer.confirmed == 1
    alone.hear("k", TicksKept(STREAM, alone.writer.life, K, 2))
    assert alone.writer.confirmed == 1
    alone.hear("l", TicksKept(STREAM, alone.writer.life, L, 2))
    assert alone.writer.confirmed == 2


def test_the_own_copy_is_in_every_write_quorum() -> None:
    alone = founded(confirm=2)
    writer = alone.writer
    writer.appended(2, RECORD)
    alone.take(writer.flush(alone.now))
    for member in (K, L):
        alone.hear(member.broker, TicksKept(STREAM, writer.life, member, 2))
    assert writer.confirmed == 1
    alone.take(writer.own_synced(alone.now, 2))
    assert writer.confirmed == 2


def test_a_copy_that_is_no_member_confirms_nothing() -> None:
    alone = founded(confirm=2)
    # k has lost its disk; its new copy is a learner.
    alone.writer.peers["k"].ask_now()
    alone.wait(0.1)
    alone.hear("k", alone.answer("k", 9))
    alone.append()
    alone.hear("k", TicksKept(STREAM, alone.writer.life, CopyId("k", 9), 2))
    assert not alone.writer.is_member("k")
    assert alone.writer.confirmed == 1


def test_acknowledgements_of_other_lives_and_copies_do_not_count() -> None:
    alone = founded(confirm=2)
    alone.append()
    asked = alone.writer.life
    alone.hear("k", TicksKept(STREAM, life(5), K, 2))
    alone.hear("k", TicksKept(STREAM, asked, CopyId("k", 7), 2))
    assert alone.writer.confirmed == 1


def test_a_tick_that_does_not_exist_cannot_be_acknowledged() -> None:
    alone = founded(confirm=2)
    with pytest.raises(RemoteError, match="acknowledges tick 9"):
        alone.hear("k", TicksKept(STREAM, alone.writer.life, K, 9))
    assert alone.writer.confirmed == 1


def test_a_first_frame_that_is_lost_is_asked_for_again() -> None:
    alone = WriterAlone("k", "l", confirm=2)
    alone.hear("k", alone.answer("k"))
    alone.hear("l", alone.answer("l"))
    for number in (2, 3):
        # Both have the life record, say so in an answer, and every acknowledgement is lost.
        alone.writer.peers["k"].ask_now()
        alone.wait(5)
        starts = (LifeStart(1, alone.writer.life, CopySet((OWN, K, L), 2)),)
        fields: dict[str, Any] = {"is_empty": False, "last": 1, "starts": starts}
        alone.hear("k", alone.answer("k", **fields))
        before = len(alone.said)
        alone.wait(20)
        asked = [to for to, each in alone.said[before:] if isinstance(each, AskLife)]
        assert "k" in asked, number


# -- copies that are lost --------------------------------------------------------------------------


def test_a_copy_that_has_lost_what_it_acknowledged_is_forgotten() -> None:
    alone = founded(confirm=2)
    alone.append()
    alone.hear("k", TicksKept(STREAM, alone.writer.life, K, 2))
    alone.writer.peers["k"].ask_now()
    alone.wait(0.1)
    starts = (LifeStart(1, alone.writer.life, CopySet((OWN, K, L), 2)),)
    old = alone.answer("k", is_empty=False, last=1, starts=starts)
    assert ForgetCopy(STREAM, alone.writer.life, K) in alone.hear("k", old)
    # The frame that says so is lost: the copy is not taken for a good one.
    alone.wait(2)
    again = alone.answer("k", is_empty=False, last=1, starts=starts)
    assert ForgetCopy(STREAM, alone.writer.life, K) in alone.hear("k", again)


def test_a_lost_copy_is_replaced_when_the_new_one_has_everything() -> None:
    alone = founded(confirm=2)
    alone.writer.peers["k"].ask_now()
    alone.wait(0.1)
    alone.hear("k", alone.answer("k", 9))
    alone.hear("k", TicksKept(STREAM, alone.writer.life, CopyId("k", 9), 1))
    asked = alone.writer.life
    assert asked.number == 1_001
    alone.wait(0.1)
    for broker, number in (("k", 9), ("l", 1)):
        starts = (LifeStart(1, life(1_000), CopySet((OWN, K, L), 2)),)
        fields: dict[str, Any] = {
            "is_empty": False,
            "last": 1,
            "starts": starts,
            "promised_before": life(1_000),
        }
        alone.hear(broker, alone.answer(broker, number, **fields))
    assert alone.writer.copies is not None
    assert alone.writer.copies.members == (OWN, CopyId("k", 9), L)


# -- lies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"copy": L},
        {"promised": Life(INT_MAX, "z", 1)},
        {"promised": Life(LIFE_NUMBER_MAX + 1, "a", 1)},
        {"first": 9, "last": 3},
        {"starts": (LifeStart(3, life(5), ALONE), LifeStart(1, life(6), ALONE))},
        {"starts": (LifeStart(1, life(9_999_999), CopySet((K,), 1)),)},
        {"starts": (LifeStart(1, life(5), CopySet((K, L), 3)),)},
        {"starts": (LifeStart(1, life(5), CopySet((K,), 0)),)},
        {"starts": (LifeStart(1, life(5), CopySet((K, CopyId("k", 2)), 1)),)},
    ],
)  # fmt: skip
def test_an_impossible_answer_is_refused(fields: dict[str, Any]) -> None:
    alone = WriterAlone("k", "l", confirm=2)
    with pytest.raises(RemoteError):
        alone.hear("k", alone.answer("k", **fields))
    assert state_of(alone) == "asking"


def test_a_broker_whose_copy_nobody_wants_is_not_answered() -> None:
    alone = founded(confirm=2)
    assert alone.hear("x", alone.answer("x")) == []


def test_a_copy_that_claims_higher_lives_for_ever_is_asked_ever_later() -> None:
    alone = WriterAlone("k", "l", confirm=2)
    begun = alone.now
    asked = 0
    while alone.now < begun + 600:
        higher = Life(alone.writer.life.number + 1, STREAM, 7)
        said = alone.hear("k", alone.answer("k", promised=higher)) or alone.wait(1.0)
        asked += sum(isinstance(each, AskLife) for each in said)
    puts = sum(isinstance(each, Put) for each in alone.effects)
    assert asked < 2_000
    assert puts < 60


def test_a_writer_that_was_outranked_asks_for_a_higher_life_at_once() -> None:
    alone = founded(confirm=2)
    higher = Life(5_000, STREAM, 7)
    alone.writer.peers["k"].ask_now()
    alone.wait(0.1)
    alone.hear("k", alone.answer("k", promised=higher))
    assert alone.writer.life.number == 5_001


def test_answers_that_nobody_asked_for_and_answers_for_other_lives_are_ignored() -> None:
    alone = founded(confirm=2)
    for _ in range(10):
        alone.append(bytes(1_000_000))
    answer = alone.answer("k")
    assert not alone.hear("k", answer)
    old = LifeAnswer(STREAM, life(5), life(5), K)
    assert not alone.hear("k", old)


def test_a_copy_that_always_lacks_something_is_asked_ever_later() -> None:
    alone = founded(confirm=2)
    alone.append()
    begun, asked, sent = alone.now, 0, 0
    starts = (LifeStart(1, alone.writer.life, CopySet((OWN, K, L), 2)),)
    while alone.now < begun + 600:
        lacking = TicksKept(STREAM, alone.writer.life, K, 1, is_lacking=True)
        for said in (
            alone.hear("k", lacking),
            alone.hear("k", alone.answer("k", is_empty=False, last=1, starts=starts)),
            alone.wait(0.01),
        ):
            asked += sum(isinstance(each, AskLife) for each in said)
            sent += sum(isinstance(each, KeepTicks) for each in said)
    assert asked < 1_000
    assert sent < 1_000


def test_what_is_on_its_way_to_a_silent_copy_is_bounded() -> None:
    alone = founded(confirm=1)
    for _ in range(40):
        alone.append(RECORD + bytes(400_000))
    sent = [content for to, content in alone.said if to == "k" and isinstance(content, KeepTicks)]
    size = sum(len(record) for frame in sent for record in frame.records)
    assert size <= WINDOW_BYTES + (1 << 20)


# -- fetching --------------------------------------------------------------------------------------


def fetching() -> WriterAlone:
    """A writer that has lost its disk, and fetches three ticks from k."""
    alone = WriterAlone("k", confirm=2)
    starts = (LifeStart(1, life(5), CopySet((CopyId(STREAM, 1), K), 2)),)
    alone.hear("k", alone.answer("k", **has(3, 3, starts=starts)))
    assert state_of(alone) == "fetching"
    return alone


def test_a_lost_log_is_fetched_with_its_rows_and_the_broker_restarts() -> None:
    alone = fetching()
    asked = alone.writer.life
    assert isinstance(alone.said[-1][1], FetchRows)
    (more,) = alone.hear("k", FetchedRows(STREAM, asked, "", [("sinks", "s", b"1")], ""))
    assert isinstance(more, FetchTicks)
    records = [RECORD, rows_record(("sinks", "s", b"2")), RECORD]
    alone.hear("k", FetchedTicks(STREAM, asked, 1, records))
    puts = [each.value for each in alone.effects if isinstance(each, Put) and each.table == "sinks"]
    assert puts == [b"1", b"2"]
    assert any(isinstance(each, Restart) for each in alone.effects)


@pytest.mark.parametrize(
    "records", [[b"garbage"], [b""], [RECORD, b"\x93\x05x"], [rows_record(("broker", "life", b""))]]
)
def test_records_with_which_this_broker_could_not_start_are_refused(records: list[bytes]) -> None:
    alone = fetching()
    asked = alone.writer.life
    alone.hear("k", FetchedRows(STREAM, asked, "", [], ""))
    before = len(alone.effects)
    with pytest.raises(RemoteError):
        alone.hear("k", FetchedTicks(STREAM, asked, 1, records))
    assert len(alone.effects) == before
    alone.hear("k", FetchedTicks(STREAM, asked, 1, [RECORD] * 3))
    assert any(isinstance(each, Restart) for each in alone.effects)


def test_rows_that_no_stream_carries_are_refused() -> None:
    alone = fetching()
    with pytest.raises(RemoteError, match="in no stream"):
        alone.hear("k", FetchedRows(STREAM, alone.writer.life, "", [("broker", "life", b"1")], ""))


def test_records_for_another_life_tick_or_source_are_ignored() -> None:
    alone = fetching()
    asked = alone.writer.life
    alone.hear("k", FetchedRows(STREAM, asked, "", [], ""))
    assert not alone.hear("k", FetchedTicks(STREAM, life(5), 1, [RECORD]))
    assert not alone.hear("k", FetchedTicks(STREAM, asked, 2, [RECORD]))
    assert not alone.hear("k", FetchedRows(STREAM, asked, "x", [], ""))
    assert alone.writer.last == 0


def test_a_source_that_falls_silent_costs_a_restart_and_not_a_busy_loop() -> None:
    alone = fetching()
    said = alone.wait(60)
    assert len(said) < 60
    assert any(isinstance(each, Restart) for each in alone.effects)


def test_a_log_with_more_confirmed_ticks_than_all_copies_is_not_given_up() -> None:
    alone = WriterAlone("k", confirm=2, **row(OWN, K, confirm=2, last=9, confirmed=9))
    sets = CopySet((OWN, K), 2)
    starts = (LifeStart(1, life(5), sets), LifeStart(4, life(7), sets))
    alone.hear("k", alone.answer("k", **has(4, 4, starts=starts)))
    assert state_of(alone) == "asking"
    assert not any(isinstance(each, DropCopy) for each in alone.effects)


def test_a_log_older_than_all_that_the_copies_still_keep_is_fetched_anew() -> None:
    alone = WriterAlone("k", confirm=2, **row(OWN, K, confirm=2, last=19, confirmed=1))
    starts = (LifeStart(20, life(7), CopySet((OWN, K), 2)),)
    alone.hear("k", alone.answer("k", **has(65, 64, first=20, starts=starts)))
    assert state_of(alone) == "fetching"
    assert any(isinstance(each, DropCopy) for each in alone.effects)
