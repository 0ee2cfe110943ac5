"""A crash at every point of a commit: afterwards the batch is in the log once, or can begin anew.

A story of two batches is told step by step. After every step, and for every beginning of the
unsynced records and of the unsynced puts, the origin crashes; then the batch that may have been
under way is committed again, with other tokens, as a program does that lost its memory. Planted
bugs must be objected to.
"""

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from anabranch.core.contract import Recovered
from anabranch.core.options import Options
from anabranch.core.origin.batches import stored_sinks
from anabranch.model.client_frames import Committed
from anabranch.model.frames import Done
from anabranch.sim.mutants.catalog import planted
from tests.origin_parts import EDGES, body
from tests.staging_parts import Stager

Step = Callable[[Stager], object]
OLD = [10, 11, 12, 13, 14]
NEW = [20, 21, 22]


def sync(stager: Stager) -> None:
    if stager.syncs:
        stager.sync()


def done(stager: Stager) -> None:
    for edge in EDGES:
        stager.carry(Done(stager.origin.head), edge)
    stager.wait(1.0)


def story() -> list[Step]:
    """Batch 0 is over, and batch 1 is staged in two tokens and committed."""
    return [
        lambda stager: stager.staged("t0", 1, 2, 3),
        lambda stager: stager.committed(0, "t0"),
        lambda stager: stager.stage("a", *OLD[:2], is_last=False),
        lambda stager: stager.stage("a", OLD[2], index=1),
        sync,
        lambda stager: stager.stage("b", *OLD[3:]),
        sync,
        lambda stager: stager.commit(1, "a", "b"),
        sync,
        lambda stager: stager.publish(body(1)),
        sync,
        sync,
        done,
        sync,
        sync,
        sync,
        sync,
        done,
        sync,
    ]


def crashes(options: Options) -> Iterator[tuple[Stager, str]]:
    """The origin after every crash there can be, and which one it was."""
    for steps in range(2, len(story()) + 1):
        records, puts = 0, 0
        while True:
            stager = Stager(replace(options, slice_events_max=2))
            for step in story()[:steps]:
                step(stager)
            unsynced = stager.disk.last - stager.disk.synced
            waiting = len(stager.disk.unsynced_puts)
            was_told = told(stager)
            stager.crash_keeping(records, puts)
            yield stager, f"step {steps}, {records} records, {puts} puts"
            if was_told is not None:
                assert told_again(stager) == was_told, "the batch has other ticks now"
            records, puts = (records, puts + 1) if puts < waiting else (records + 1, 0)
            if records > unsynced:
                break


def told(stager: Stager) -> tuple[int, int] | None:
    """The ticks of batch 1, if somebody was told that it is there."""
    frames = [frame for _, frame in stager.sent if isinstance(frame, Committed)]
    return next(((each.first, each.last) for each in frames if each.batch == 1), None)


def told_again(stager: Stager) -> tuple[int, int]:
    again = stager.committed(1)
    assert again.was_known, "a batch that was confirmed is unknown"
    return again.first, again.last


def recommit(stager: Stager) -> Committed:
    """A new life of the program: it stages all of batch 1 anew, and commits it."""
    stager.sync_all()
    stager.staged("x", *NEW)
    answer = stager.committed(1, "x")
    assert stager.rows("stage").keys() <= {"a\x000", "a\x001", "b\x000"}
    return answer


def sequences_of(stager: Stager) -> list[list[int]]:
    """The sequences of each batch, as they were ever logged."""
    found: dict[int, list[int]] = {}
    for event_id in stager.events.values():
        if event_id.publisher == "sink/sink":
            found.setdefault(event_id.incarnation, []).append(event_id.sequence)
    return list(found.values())


def check(stager: Stager, answer: Committed) -> None:
    sequences = sequences_of(stager)
    assert sequences[0] == [1, 2, 3], "the batch before has changed"
    assert len(sequences) == 2, "the batch is there twice, or not at all"
    count = len(OLD) if answer.was_known else len(NEW)
    assert sequences[1] == list(range(1, count + 1)), "the batch is torn"
    wanted = OLD if answer.was_known else NEW
    kept = [n for incarnation, _, n in stager.logged() if incarnation == 2]
    assert kept == wanted[len(wanted) - len(kept) :], "events of two attempts are mixed"
    ticks = [tick for tick, each in stager.events.items() if each.publisher == "sink/sink"]
    assert (answer.first, answer.last) == (ticks[3], ticks[-1]), "the answer has other ticks"


def run(options: Options) -> list[bool]:
    """All crashes; whether the batch was known after each of them."""
    known = []
    for stager, _ in crashes(options):
        answer = recommit(stager)
        check(stager, answer)
        known.append(answer.was_known)
    return known


@pytest.mark.parametrize("checkpoint_ticks", [1, 3, 8_192])
def test_a_crash_at_any_point_leaves_a_batch_whole_or_not_begun(checkpoint_ticks: int) -> None:
    known = run(Options(checkpoint_ticks=checkpoint_ticks, recent_ticks_max=4))
    assert known.count(True) > 10
    assert known.count(False) > 10


@pytest.mark.parametrize("checkpoint_ticks", [1, 8_192])
def test_a_second_crash_changes_nothing_either(checkpoint_ticks: int) -> None:
    for stager, _ in crashes(Options(checkpoint_ticks=checkpoint_ticks)):
        stager.crash(len(stager.events))
        stager.wait(1.0)
        stager.crash(len(stager.disk.records))
        check(stager, recommit(stager))


def test_an_intent_is_redone_at_the_start_though_nobody_asks() -> None:
    stager = Stager()
    stager.staged("a", *OLD)
    stager.commit(1, "a")
    stager.sync()
    stager.crash_keeping(0, 0)
    stager.sync_all()
    assert [n for _, _, n in stager.logged()] == OLD
    assert stager.rows("stage") == {}


def test_chunks_that_a_crash_left_behind_are_swept_at_the_start() -> None:
    for stager, _ in crashes(Options()):
        stager.sync_all()
        answer = stager.committed(1)
        stager.sync_all()
        assert (
            stored_sinks(Recovered({"sinks": stager.rows("sinks")}, 1 << 40))["sink"].row.tokens
            == ()
        )
        if answer.was_known:
            assert stager.rows("stage") == {}


@pytest.mark.parametrize(
    ("name", "objection"),
    [
        ("commit-without-intent", "in the log twice|torn|mixed|not at all"),
        ("stage-dropped-early", "staged events of batch 1 are lost"),
        ("redo-forgotten", "None"),
        ("batch-not-persisted", "twice|unknown"),
        ("commit-told-early", "unknown|other ticks"),
    ],
)
def test_mutant_is_objected_to(name: str, objection: str) -> None:
    with planted(name), pytest.raises(AssertionError, match=objection):
        run(Options())
