"""Routers that may have a cycle keep the contract on rings and random graphs.

The rules themselves are tested with all trials in `test_routers`; here is what is of graphs alone.
"""

import pytest

from tests.conformance import suite
from tests.conformance.suite import CYCLIC, Findings

pytestmark = [pytest.mark.parametrize("router", CYCLIC), pytest.mark.slow]


def test_delivery_keeps_its_promises_in_graphs_with_cycles(router: str) -> None:
    trials = suite.graph_trials(router)
    assert [found.broken_promises() for found in trials if found.broken_promises()] == []
    assert all(found.verdict.deliveries > 10 for found in trials)


def test_versions_do_not_decrease_in_calm_graphs(router: str) -> None:
    calm, _, also_calm, _ = suite.graph_trials(router)
    assert [found.disorders() for found in (calm, also_calm)] == [[], []]


def test_troubled_graphs_are_put_to_the_test(router: str) -> None:
    _, ring, _, random = suite.graph_trials(router)
    assert ring.verdict.crashes + random.verdict.crashes > 0
    assert _silences(ring) + _silences(random) > 100


def _silences(found: Findings) -> int:
    return found.ledger.silences
