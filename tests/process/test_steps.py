"""Work that a client asks for at once costs others their turn for a moment, and nothing else: no
link is cut, and an honest publisher and subscriber at either end of it lose nothing.

How long a step and a silence take is measured by `step_attack`, in the soak; here only what they
may not cost. Brokers that get no processor for a second would cut their link, whatever they do.
So these are patient, and a step that would cost the link on an idle machine is told by the time
of the processor that it takes.
"""

from pathlib import Path

import pytest

from anabranch.core.options import Options
from tests.process.step_attack import attacked
from tests.process_parts import run

pytestmark = pytest.mark.slow

PATIENT = "heartbeat_s = 4.0\ndead_after_s = 40.0"


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
    async def work() -> None:
        outcome = await attacked(tmp_path, attack, routing, scale, PATIENT)
        assert outcome.times_up == 1, outcome
        assert outcome.longest_step_cpu_s < Options().dead_after_s, outcome
        assert outcome.honest > 0
        assert outcome.missing == 0

    run(work())
