"""Mutants of copies that seeds find too seldom: each breaks a claim of the other tests here."""

from collections.abc import Callable

import pytest

from anabranch.sim.mutants.catalog import planted
from tests.unit.core.replication import test_keeper as keeper
from tests.unit.core.replication import test_replication as replication
from tests.unit.core.replication import test_writer as writer

#: Mutant → the claim that it breaks.
CLAIMS: dict[str, Callable[[], None]] = {
    "confirm-before-keeper": writer.test_a_tick_is_confirmed_when_enough_copies_have_synced_it,
    "emit-unconfirmed": replication.test_a_sync_is_done_when_its_ticks_are_confirmed,
    "unfenced": keeper.test_records_of_a_lower_life_are_refused_with_the_promise,
    "start-too-few": writer.test_a_life_waits_until_all_that_may_be_lost_is_looked_at,
    "adopt-longest": writer.test_the_copy_with_the_newest_life_is_adopted_and_not_the_longest,
    "identity-returns": keeper.test_a_copy_that_is_lost_gets_another_identity,
    "learner-counts": writer.test_a_copy_that_is_no_member_confirms_nothing,
    "cuts-confirmed": keeper.test_a_confirmed_tick_is_never_cut_off,
    "acknowledges-unverified": keeper.test_a_copy_acknowledges_only_records_that_its_writer_named,
    "rows-not-carried": replication.test_rows_of_a_step_are_carried_in_the_stream,
    "rows-before-confirmed": keeper.test_rows_are_put_when_they_are_confirmed,
    "promise-unsynced": keeper.test_a_promise_is_answered_after_it_is_synced,
    "deletes-unconfirmed": keeper.test_ticks_are_deleted_only_when_they_are_confirmed_and_synced,
    "life-on-record-stays": (
        keeper.test_a_life_whose_record_was_lost_does_not_name_the_records_of_a_lower_one
    ),
    "first-frame-once": writer.test_a_first_frame_that_is_lost_is_asked_for_again,
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_mutant_of_copies_breaks_its_claim(name: str) -> None:
    CLAIMS[name]()
    with planted(name), pytest.raises(AssertionError):
        CLAIMS[name]()
