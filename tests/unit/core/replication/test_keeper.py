"""A keeper promises, keeps records, and refuses the rest; bad frames change nothing."""

import pytest

from anabranch.core.contract import SEPARATOR, Append, CutCopy, Put, Read
from anabranch.core.replication.keeper import FETCH_BYTES_MAX, ROWS_TABLE
from anabranch.model.errors import RemoteError
from anabranch.model.frame_parts import TICK_MAX
from anabranch.model.frames import Carry
from anabranch.model.replication import (
    AskLife,
    CopyId,
    FetchedRows,
    FetchedTicks,
    FetchRows,
    FetchTicks,
    ForgetCopy,
    Life,
    LifeAnswer,
    TicksKept,
)
from anabranch.wire.codec import encode_link
from tests.replication_parts import (
    RECORD,
    STREAM,
    KeeperOnDisk,
    copy_set,
    life,
    rows_record,
    start,
)


def promised(number: int = 5) -> KeeperOnDisk:
    """A keeper that has promised a life, and has nothing."""
    kept = KeeperOnDisk()
    kept.say(AskLife(STREAM, life(number)))
    return kept


def holding(records: int = 5, confirmed: int = 0) -> KeeperOnDisk:
    """One that has ticks 1 to `records` of life 5."""
    kept = promised()
    kept.say(kept.keep(5, 1, [RECORD] * records, start(1, 5), confirmed=confirmed))
    return kept


def last_answer(kept: KeeperOnDisk, number: int) -> LifeAnswer:
    (answer,) = kept.say(AskLife(STREAM, life(number)))
    assert isinstance(answer, LifeAnswer)
    return answer


# -- promises --------------------------------------------------------------------------------------


def test_a_promise_is_answered_after_it_is_synced() -> None:
    kept = KeeperOnDisk()
    assert not kept.tell(AskLife(STREAM, life(5)))
    (answer,) = kept.sync()
    assert isinstance(answer, LifeAnswer)
    assert answer.promised == life(5)
    kept.crash()
    assert last_answer(kept, 4).promised == life(5)


def test_a_lower_life_is_refused_and_an_equal_one_is_promised_again() -> None:
    kept = promised(5)
    assert last_answer(kept, 4).promised == life(5)
    assert last_answer(kept, 5).promised == life(5)
    assert last_answer(kept, 6).promised_before == life(5)


def test_records_of_a_lower_life_are_refused_with_the_promise() -> None:
    kept = holding()
    kept.say(AskLife(STREAM, life(7)))
    (answer,) = kept.say(kept.keep(5, 6, [RECORD], start(1, 5)))
    assert isinstance(answer, LifeAnswer)
    assert answer.promised == life(7)
    assert kept.copy().last == 5


def test_records_of_a_life_that_was_not_asked_for_are_ignored() -> None:
    kept = holding()
    assert not kept.say(kept.keep(9, 6, [RECORD], start(6, 9)))
    assert kept.copy().last == 5


def test_a_broker_that_is_not_the_origin_is_refused() -> None:
    kept = holding()
    for frame in (AskLife(STREAM, life(9)), kept.keep(5, 6, [RECORD])):
        with pytest.raises(RemoteError, match="is not the origin"):
            kept.tell(frame, source="x")
    with pytest.raises(RemoteError, match="is not the origin"):
        kept.tell(AskLife("unknown", life(9)), source="unknown")
    with pytest.raises(RemoteError, match="asks for a life of 'x'"):
        kept.tell(AskLife(STREAM, Life(9, "x", 9)))
    assert last_answer(kept, 5).last == 5


# -- records ---------------------------------------------------------------------------------------


def test_a_tick_is_acknowledged_after_it_is_synced() -> None:
    kept = holding(2)
    assert not kept.tell(kept.keep(5, 3, [RECORD], start(1, 5)))
    (told,) = kept.sync()
    assert told == TicksKept(STREAM, life(5), kept.id(), 3)


def test_a_copy_acknowledges_only_records_that_its_writer_named() -> None:
    kept = holding(5)
    kept.say(AskLife(STREAM, life(7)))
    # Life 7 has adopted ticks 1 and 2 only; it does not know of the others yet.
    (told,) = kept.say(kept.keep(7, 3, [], start(1, 5)))
    assert isinstance(told, TicksKept)
    assert told.tick == 2


def test_records_after_a_gap_are_not_taken() -> None:
    kept = holding(2)
    (told,) = kept.say(kept.keep(5, 4, [RECORD], start(1, 5)))
    assert isinstance(told, TicksKept)
    assert told.is_lacking
    assert kept.copy().last == 2


def test_records_that_follow_another_life_are_not_taken() -> None:
    kept = holding(5)
    kept.say(AskLife(STREAM, life(7)))
    (told,) = kept.say(kept.keep(7, 6, [RECORD], start(5, 6), start(6, 7)))
    assert isinstance(told, TicksKept)
    assert told.is_lacking


def test_an_unconfirmed_end_of_a_lower_life_is_cut_off() -> None:
    kept = holding(5, confirmed=3)
    kept.say(AskLife(STREAM, life(7)))
    kept.effects.clear()
    kept.say(kept.keep(7, 4, [RECORD], start(1, 5), start(4, 7)))
    assert CutCopy(STREAM, 3) in kept.effects
    answer = last_answer(kept, 7)
    assert (answer.last, answer.starts) == (4, (start(1, 5), start(4, 7)))


def test_a_confirmed_tick_is_never_cut_off() -> None:
    kept = holding(5, confirmed=4)
    kept.say(AskLife(STREAM, life(7)))
    assert not kept.say(kept.keep(7, 4, [RECORD], start(1, 5), start(4, 7)))
    assert last_answer(kept, 7).last == 5
    assert any("nothing was changed here" in note for note in kept.notes)


def test_the_lives_on_record_are_true_if_a_crash_takes_the_first_record_of_one() -> None:
    kept = holding(5)
    kept.say(AskLife(STREAM, life(7)))
    kept.tell(kept.keep(7, 6, [RECORD], start(1, 5), start(6, 7)))
    # The row with life 7 is on disk, its record is not.
    kept.sync()
    kept.crash()
    assert last_answer(kept, 8).last == 5
    kept.say(kept.keep(8, 6, [RECORD], start(1, 5), start(6, 8)))
    answer = last_answer(kept, 8)
    assert answer.end == (life(8), 6)


def test_a_life_whose_record_was_lost_does_not_name_the_records_of_a_lower_one() -> None:
    kept = holding(5)
    kept.say(AskLife(STREAM, life(7)))
    kept.tell(kept.keep(7, 6, [RECORD], start(1, 5), start(6, 7)))
    kept.sync()
    kept.crash()
    kept.say(AskLife(STREAM, life(8)))
    # Life 8 has adopted ticks 6 and 7 of life 5 from another copy.
    kept.say(kept.keep(8, 6, [RECORD] * 2, start(1, 5)))
    kept.say(kept.keep(8, 8, [RECORD], start(1, 5), start(8, 8)))
    assert last_answer(kept, 8).starts == (start(1, 5), start(8, 8))


def test_a_copy_that_is_too_far_behind_begins_anew() -> None:
    kept = holding(2)
    kept.say(kept.keep(5, 9, [RECORD], start(1, 5), oldest=9))
    answer = last_answer(kept, 5)
    assert (answer.first, answer.last) == (9, 9)


def test_ticks_are_deleted_only_when_they_are_confirmed_and_synced() -> None:
    kept = holding(5, confirmed=3)
    kept.say(kept.keep(5, 6, [], start(1, 5), confirmed=3, oldest=5))
    assert last_answer(kept, 5).first == 1
    kept.say(kept.keep(5, 6, [], start(1, 5), confirmed=5, oldest=5))
    assert last_answer(kept, 5).first == 5


def test_a_copy_that_is_lost_gets_another_identity() -> None:
    kept = holding(5)
    before = kept.id()
    kept.say(ForgetCopy(STREAM, life(5), before))
    after = last_answer(kept, 5)
    assert after.is_empty
    assert after.copy != before
    kept.disk.lose()
    kept.start()
    assert last_answer(kept, 5).copy not in {before, after.copy}


def test_another_identity_is_not_forgotten_filled_or_read() -> None:
    kept = holding(5)
    other = CopyId("k", kept.id().number + 1)
    frame = kept.keep(5, 6, [RECORD], start(1, 5))
    for wrong in (
        ForgetCopy(STREAM, life(5), other),
        FetchTicks(STREAM, other, life(5), 1),
        type(frame)(STREAM, life(5), other, frame.starts, 6, [RECORD], 0, 1),
    ):
        assert not kept.say(wrong)
    assert not kept.say(ForgetCopy(STREAM, life(4), kept.id()))
    assert last_answer(kept, 5).last == 5


# -- rows ------------------------------------------------------------------------------------------


def rows_puts(kept: KeeperOnDisk) -> list[Put]:
    return [each for each in kept.effects if isinstance(each, Put) and each.table == ROWS_TABLE]


def test_rows_are_put_when_they_are_confirmed() -> None:
    kept = promised()
    record = rows_record(("sinks", "s", b"1"))
    kept.say(kept.keep(5, 1, [RECORD, record], start(1, 5), confirmed=1))
    assert not rows_puts(kept)
    kept.say(kept.keep(5, 3, [], start(1, 5), confirmed=2))
    (put,) = rows_puts(kept)
    assert put.value == b"1"


def test_rows_are_found_again_after_a_restart() -> None:
    kept = promised()
    kept.say(kept.keep(5, 1, [RECORD, rows_record(("sinks", "s", b"1"))], start(1, 5)))
    kept.crash()
    kept.say(AskLife(STREAM, life(6)))
    kept.say(kept.keep(6, 3, [RECORD], start(1, 5), start(3, 6), confirmed=0))
    kept.say(kept.keep(6, 4, [], start(3, 6), confirmed=3))
    assert [put.value for put in rows_puts(kept)] == [b"1"]


def test_a_restart_examines_few_records_of_a_long_copy_without_rows() -> None:
    kept = promised()
    for first in range(1, 20_000, 1_000):
        kept.say(kept.keep(5, first, [RECORD] * 1_000, start(1, 5), confirmed=max(first - 1, 0)))
    kept.effects.clear()
    kept.crash()
    read = sum(each.last - each.first + 1 for each in kept.effects if isinstance(each, Read))
    assert 0 < read <= 6_000


@pytest.mark.parametrize(
    "record",
    [
        b"\x93\x05garbage",
        b"\x05\x05",
        rows_record(("broker", "life", b"1")),
        rows_record(("copies", STREAM, b"1")),
        rows_record((f"sinks{SEPARATOR}x", "s", b"1")),
    ],
)
def test_a_record_with_impossible_rows_is_refused_and_changes_nothing(record: bytes) -> None:
    kept = holding(2)
    with pytest.raises(RemoteError):
        kept.tell(kept.keep(5, 3, [RECORD, record], start(1, 5)))
    assert last_answer(kept, 5).last == 2


# -- bad frames ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "starts",
    [
        (start(3, 5), start(1, 4)),
        (start(1, 5), start(1, 5)),
        (start(1, 5), start(3, 4)),
        (start(1, 9),),
        (start(1, 5, copy_set(confirm=0)),),
        (start(1, 5, copy_set(confirm=2)),),
        (start(1, 5, copy_set(CopyId("k", 1), CopyId("k", 2))),),
    ],
)
def test_impossible_lives_are_refused(starts: tuple[object, ...]) -> None:
    kept = holding(2)
    with pytest.raises(RemoteError):
        kept.tell(kept.keep(5, 3, [RECORD], *starts))  # type: ignore[arg-type]
    assert last_answer(kept, 5).last == 2


def test_lives_that_contradict_deleted_ones_are_refused() -> None:
    kept = holding(5, confirmed=5)
    kept.say(kept.keep(5, 6, [], start(1, 5), confirmed=5, oldest=6))
    with pytest.raises(RemoteError, match="not in order"):
        kept.tell(kept.keep(5, 6, [RECORD], start(6, 3), oldest=6))
    assert last_answer(kept, 5).starts == (start(1, 5),)


def test_ticks_after_the_last_possible_one_are_refused() -> None:
    kept = holding(2)
    with pytest.raises(RemoteError, match="after the last possible"):
        kept.tell(kept.keep(5, TICK_MAX, [RECORD] * 2, start(1, 5), oldest=TICK_MAX))
    with pytest.raises(RemoteError, match="has deleted"):
        kept.tell(kept.keep(5, 3, [RECORD], start(1, 5), oldest=9))
    assert last_answer(kept, 5).last == 2


def test_a_storm_of_fetches_causes_one_read_at_a_time() -> None:
    kept = holding(5)
    for first in range(1, 6):
        assert not kept.tell(FetchTicks(STREAM, kept.id(), life(5), first))
        assert not kept.tell(FetchRows(STREAM, kept.id(), life(5), str(first)))
    assert len(kept.reads) == 1
    (found,) = kept.settle()
    assert isinstance(found, FetchedTicks)
    assert (found.first, len(found.records)) == (1, 5)
    (rows,) = kept.say(FetchRows(STREAM, kept.id(), life(5), ""))
    assert isinstance(rows, FetchedRows)


@pytest.mark.parametrize(("number", "first"), [(4, 1), (6, 1), (5, 6), (5, TICK_MAX)])
def test_ticks_that_are_not_there_and_other_lives_are_not_read(number: int, first: int) -> None:
    kept = holding(5)
    assert not kept.say(FetchTicks(STREAM, kept.id(), life(number), first))


def test_an_answer_to_a_fetch_is_not_larger_than_a_frame() -> None:
    kept = promised()
    large = RECORD + bytes(700_000)
    kept.say(kept.keep(5, 1, [large] * 3, start(1, 5)))
    (found,) = kept.say(FetchTicks(STREAM, kept.id(), life(5), 1))
    assert isinstance(found, FetchedTicks)
    assert sum(map(len, found.records)) <= FETCH_BYTES_MAX


# -- many streams ----------------------------------------------------------------------------------


def test_a_frame_of_one_stream_does_nothing_for_a_thousand_others() -> None:
    streams = [f"s{number}" for number in range(1_000)]
    kept = KeeperOnDisk(streams=streams)
    for stream in streams:
        kept.tell(AskLife(stream, Life(5, stream, 5)), source=stream)
    assert len(kept.settle()) == 1_000
    ticking = kept.keep(5, 1, [RECORD], stream="s7")
    frame = type(ticking)("s7", Life(5, "s7", 5), ticking.copy, (), 1, [RECORD], 0, 1)
    kept.effects.clear()
    kept.say(frame, source="s7")
    assert len(kept.effects) < 10
    assert sum(isinstance(each, Append) for each in kept.effects) == 1


def test_all_syncs_of_a_moment_are_one() -> None:
    streams = [f"s{number}" for number in range(100)]
    kept = KeeperOnDisk(streams=streams)
    for stream in streams:
        kept.tell(AskLife(stream, Life(5, stream, 5)), source=stream)
    assert not kept.tell(AskLife("s1", Life(6, "s1", 6)), source="s1")
    assert len(kept.sync()) == 1
    assert len(kept.sync()) == 99
    assert not kept.settle()


def test_what_a_copy_says_fits_into_a_frame() -> None:
    kept = promised()
    names = [CopyId(f"{'n' * 200}{number}", 1) for number in range(7)]
    starts = [start(tick, tick, copy_set(*names, confirm=2)) for tick in range(1, 1_025)]
    kept.say(AskLife(STREAM, life(2_000)))
    kept.say(kept.keep(2_000, 1, [RECORD] * 1_024, *starts))
    answer = last_answer(kept, 2_001)
    assert len(answer.starts) == 1_024
    assert encode_link(Carry("k", STREAM, 9, answer))
