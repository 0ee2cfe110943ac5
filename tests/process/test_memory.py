"""Clients that want a broker's memory do not get much of it, and hurt nobody beside them."""

from pathlib import Path

import pytest

from tests.process.memory_attack import ATTACKS, COST_BYTES_MAX, attack
from tests.process_parts import run

pytestmark = pytest.mark.slow

#: What may stay when everybody is gone, but for what is staged, and subscriptions that are durable.
LEFT_BYTES_MAX = 160 * 1024 * 1024
STAYS = {"subscriptions"}
#: Parts of the full attacks, each large enough to cost an unbounded broker more than is allowed.
SCALES = {
    "sequential": 0.06,
    "unknown": 0.06,
    "held": 0.3,
    "subscribers": 0.1,
    "staging": 0.1,
    "fetches": 0.3,
    "handshakes": 0.4,
    "tls-sessions": 0.4,
    "subscriptions": 0.1,
    "acks": 0.1,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_on_memory_costs_a_bounded_amount(tmp_path: Path, name: str) -> None:
    async def work() -> None:
        outcome = await attack(name, tmp_path, SCALES[name])
        assert outcome.cost_bytes <= COST_BYTES_MAX, outcome
        left_bytes = outcome.after_bytes - outcome.idle_bytes
        assert left_bytes <= LEFT_BYTES_MAX or name in STAYS, outcome
        assert outcome.connections > 0
        assert outcome.honest > 20
        assert (outcome.lost, outcome.repeated) == (0, 0), outcome

    run(work())
