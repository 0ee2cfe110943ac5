"""Work that a client asks for at once costs others their turn for a moment, and nothing else: no
link is cut, and an honest publisher and subscriber at either end of it lose nothing.

How long a step takes is measured by `step_attack`, in the soak; here only what it may not cost.
"""

import asyncio
from pathlib import Path

import pytest

from tests.process.step_attack import attacked

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("attack", "scale", "routing"),
    [
        ("filters", 0.2, "tree"),
        ("texts", 0.03, "tree"),
        ("likes", 0.1, "tree"),
        ("likes", 0.1, "mesh"),
        ("terms", 0.2, "tree"),
        ("advertises", 0.1, "mesh"),
        ("defines", 0.1, "tree"),
        ("drafts", 0.3, "tree"),
    ],
)
def test_no_link_is_cut_and_nothing_is_lost(
    tmp_path: Path, attack: str, scale: float, routing: str
) -> None:
    outcome = asyncio.run(attacked(tmp_path, attack, routing, scale))
    assert outcome.times_up == 1, outcome
    assert outcome.honest > 0
    assert outcome.missing == 0
