"""Kill −9 of any broker at any instant loses, repeats and reorders nothing."""

from pathlib import Path

import pytest

from tests.process.kill_loop import kill_loop
from tests.process_parts import run

pytestmark = pytest.mark.slow


def test_five_kills_of_any_role_break_no_promise(tmp_path: Path) -> None:
    async def work() -> None:
        outcome, verdict = await kill_loop(tmp_path, seed=1, kills=5, events=1_500, rate=300)
        assert verdict.clean, f"{verdict.anomalies}: {verdict.examples}; see {tmp_path}"
        assert outcome.missing == "", f"{outcome.missing}; see {tmp_path}"
        assert outcome.kills >= 5
        assert outcome.confirmed == outcome.published >= 1_500

    run(work())
