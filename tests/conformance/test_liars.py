"""A router that breaks a rule is caught: by its witness, and by the checker if it does harm."""

import pytest

from anabranch.core.options import Options
from anabranch.core.routing.registry import RouterMaker
from anabranch.model.frames import Done
from anabranch.model.limits import DEFAULT_LIMITS
from anabranch.model.network import Network
from tests.conformance import liars, suite
from tests.conformance.witness import Ledger, Witness


@pytest.mark.parametrize(
    ("liar", "rule", "harm"),
    [
        (liars.SilentLiar, 1, {"gap", "lost"}),
        (liars.Forger, 1, {"phantom"}),
        (liars.Tamperer, 5, set()),
    ],
)
def test_liar_is_caught(liar: RouterMaker, rule: int, harm: set[str]) -> None:
    trials = [suite.run(liar, suite.calm_plan(seed)) for seed in (1, 2)]
    breaches = [breach for found in trials for breach in found.ledger.breaches]
    names = {anomaly.name for found in trials for anomaly in found.broken_promises()}
    assert {breach.rule for breach in breaches} == {rule}
    assert bool(harm & names) == bool(harm)


def test_router_that_never_knows_a_subscription_is_caught() -> None:
    found = suite.run(liars.Deaf, suite.calm_plan(1))
    assert found.ledger.unreached()
    assert "stuck" in {anomaly.name for anomaly in found.broken_promises()}


def test_router_that_meddles_is_caught() -> None:
    ledger, network = Ledger(), Network({"e": ["e"]})
    router = liars.Meddler("e", network, Options(), DEFAULT_LIMITS, 1)
    Witness(router, "e", ledger).carry(1.0, "e", Done(1))
    assert [breach.rule for breach in ledger.breaches] == [6]


def test_router_that_is_not_conservative_is_caught() -> None:
    assert suite.data_through_new_relay(liars.Censor) == []
