"""Kill −9 of any broker at any instant loses, repeats and reorders nothing."""

from pathlib import Path
from random import Random

import pytest

from tests.process.kill_loop import kill_loop, strikes
from tests.process_parts import run

pytestmark = pytest.mark.slow


def test_five_kills_of_any_role_break_no_promise(tmp_path: Path) -> None:
    async def work() -> None:
        outcome, verdict = await kill_loop(tmp_path, seed=4, kills=5, events=1_500, rate=300)
        assert verdict.clean, f"{verdict.anomalies}: {verdict.examples}; see {tmp_path}"
        assert outcome.missing == "", f"{outcome.missing}; see {tmp_path}"
        assert outcome.kills >= 5
        assert outcome.undisturbed < outcome.published / 2
        assert outcome.confirmed == outcome.published >= 1_500

    run(work())


@pytest.mark.parametrize("seed", range(20))
def test_kills_are_spread_over_all_events(seed: int) -> None:
    found = strikes(Random(seed), 10, 40_000)
    places = [strike.events for strike in found]
    assert sum(strike.victims for strike in found) == 10
    assert places == sorted(places)
    gaps = [later - earlier for earlier, later in zip([0, *places], [*places, 40_000], strict=True)]
    # A double kill has two shares of 4,000 to fall into, and its neighbours have as much room.
    assert max(gaps) <= 4 * 4_000 * 0.9
    assert places[-1] >= 40_000 - 2 * 4_000
