"""Replicated streams keep their promises in every state of small worlds, and mistakes are found.

The first tests search worlds completely. The others switch one rule off each, and expect the search
to find a broken promise: mistakes that an implementation might make, then readings of ADR 0030 that
were not safe or not live. A failure prints the story.
"""

import dataclasses

import pytest

from tests.model.life_model import AS_WRITTEN, SOUND, Rules, World, changed_files
from tests.model.life_protocol import Found, search

SIZES = [(2, 1), (2, 2), (3, 2), (3, 3)]

TWO_PROCESSES = World()
FOUR_LIVES = World(lives=4)
ONE_PROCESS = World(second=False, lives=4, losses=1)
CHANGE = World(second=False, losses=1, files=changed_files(3))
CHANGE_OF_TWO = World(copies=2, second=False, losses=1, files=changed_files(2))
FIGURE_8 = World(lives=4, ticks=(1, 0), second=False)
NEW_STREAM = World(copies=2, confirm=1, founded=False)
CLOSED = World(second=False, closer=True)
ROLLED_BACK = World(second=False, lives=3, rollbacks=1)

MISTAKES = {
    "unsynced_promise": TWO_PROCESSES,
    "confirm_too_few": TWO_PROCESSES,
    "start_too_few": TWO_PROCESSES,
    "adopt_longest": FOUR_LIVES,
    "equal_lives": TWO_PROCESSES,
    "identity_returns": ONE_PROCESS,
    "learner_counts": CHANGE,
    "unsealed_ticks": FIGURE_8,
    "old_set_ignored": TWO_PROCESSES,
    "repetition_cuts": FOUR_LIVES,
    "serve_unconfirmed": TWO_PROCESSES,
    "no_fencing": TWO_PROCESSES,
}
UNSAFE_READINGS = {
    "only_newest_set": FOUR_LIVES,
    "lost_acknowledge": TWO_PROCESSES,
    "founding_by_quorum": NEW_STREAM,
    "founding_asks_configured": CHANGE_OF_TWO,
    "own_copy_optional": ROLLED_BACK,
    "closed_by_promises": CLOSED,
}
STUCK_READINGS = {
    "last_proposal": NEW_STREAM,
    "lost_must_answer": World(copies=2, second=False, losses=1),
    "all_older_sets": World(second=False, losses=2),
}


def _passes(found: Found) -> None:
    assert not found.problem, "\n".join((*found.story, found.problem))
    assert found.complete


@pytest.mark.parametrize(("copies", "confirm"), SIZES)
def test_two_processes_keep_every_promise(copies: int, confirm: int) -> None:
    _passes(search(World(copies, confirm), recover_every=1))


@pytest.mark.parametrize(("copies", "confirm"), SIZES)
def test_disk_is_lost(copies: int, confirm: int) -> None:
    _passes(search(World(copies, confirm, losses=1, second=False), recover_every=2))


@pytest.mark.parametrize(("copies", "confirm"), [(2, 1), (2, 2)])
def test_two_processes_found_a_stream(copies: int, confirm: int) -> None:
    _passes(search(World(copies, confirm, founded=False), recover_every=1))


def test_keeper_is_replaced_while_the_origin_loses_its_disk() -> None:
    _passes(search(CHANGE_OF_TWO, recover_every=20))


def test_rolled_back_keeper_loses_nothing_that_the_origin_has() -> None:
    _passes(search(ROLLED_BACK, recover_every=1))


@pytest.mark.parametrize("cuts", [False, True])
@pytest.mark.parametrize(("copies", "confirm"), [(3, 2), (3, 3)])
def test_stream_is_closed_while_its_origin_writes(copies: int, confirm: int, cuts: bool) -> None:
    closed = World(copies, confirm, second=False, closer=True, cuts=cuts, ticks=(1, 0))
    _passes(search(closed, recover_every=5))


@pytest.mark.parametrize("cuts", [False, True])
def test_stream_is_closed_while_two_processes_start(cuts: bool) -> None:
    _passes(search(World(closer=True, cuts=cuts), recover_every=1))


@pytest.mark.parametrize("cuts", [False, True])
def test_stream_is_closed_after_a_disk_is_lost(cuts: bool) -> None:
    _passes(search(World(second=False, closer=True, cuts=cuts, losses=1), recover_every=20))


@pytest.mark.slow
def test_stream_is_closed_while_a_keeper_is_replaced() -> None:
    closed = World(second=False, closer=True, cuts=True, files=changed_files(3))
    _passes(search(closed, recover_every=20))


@pytest.mark.slow
def test_stream_is_closed_several_times() -> None:
    closed = World(second=False, closer=True, cuts=True, lives=4, ticks=(1, 0))
    _passes(search(closed, recover_every=200))


@pytest.mark.slow
@pytest.mark.parametrize(("copies", "confirm"), SIZES)
def test_two_processes_write_ticks(copies: int, confirm: int) -> None:
    ticks = (1,) if copies == 2 else (0, 1, 1)
    _passes(search(World(copies, confirm, ticks=ticks), recover_every=50))


@pytest.mark.slow
@pytest.mark.parametrize(("copies", "confirm"), [(2, 2), (3, 2), (3, 3)])
def test_disks_are_lost_one_after_the_other(copies: int, confirm: int) -> None:
    _passes(search(World(copies, confirm, losses=2, second=False), recover_every=20))


@pytest.mark.slow
def test_keeper_is_replaced_while_two_processes_write() -> None:
    _passes(search(World(files=changed_files(3)), recover_every=200))


@pytest.mark.slow
@pytest.mark.parametrize(("copies", "confirm"), SIZES)
def test_four_lives(copies: int, confirm: int) -> None:
    _passes(search(World(copies, confirm, lives=4), recover_every=20))


@pytest.mark.slow
@pytest.mark.parametrize(("copies", "confirm"), [(3, 2), (3, 3)])
def test_two_processes_found_a_stream_of_three_copies(copies: int, confirm: int) -> None:
    _passes(search(World(copies, confirm, founded=False), recover_every=20))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_found(mistake: str) -> None:
    world = dataclasses.replace(MISTAKES[mistake], rules=Rules(**{mistake: True}))
    assert search(world).problem


@pytest.mark.parametrize("reading", UNSAFE_READINGS)
def test_reading_is_unsafe(reading: str) -> None:
    world = dataclasses.replace(UNSAFE_READINGS[reading], rules=Rules(**{reading: True}))
    assert "start again" not in (search(world).problem or "start again")


@pytest.mark.parametrize("reading", STUCK_READINGS)
def test_reading_is_stuck(reading: str) -> None:
    world = dataclasses.replace(STUCK_READINGS[reading], rules=Rules(**{reading: True}))
    assert "can never start again" in search(world, recover_every=1).problem


def test_remembered_proposal_does_not_make_lost_members_count() -> None:
    rules = Rules(lost_acknowledge=True, last_proposal=True)
    found = search(dataclasses.replace(FOUR_LIVES, rules=rules))
    assert found.problem == "a later life lacks a confirmed tick"


def test_rules_as_first_written_are_unsafe() -> None:
    assert search(dataclasses.replace(FOUR_LIVES, rules=AS_WRITTEN)).problem


def test_every_switch_has_a_test() -> None:
    switches = {field.name for field in dataclasses.fields(SOUND)}
    assert switches == {*MISTAKES, *UNSAFE_READINGS, *STUCK_READINGS}
