"""Every router keeps the contract, and delivery keeps its promises on top of it.

The rules are those of `core.routing.contract`, by their numbers. Trials are run once per router
and looked at by all tests.
"""

import pytest

from anabranch.core.contract import Put
from anabranch.core.routing.contract import CarriedMessage, interest_at_once
from anabranch.model.frames import Carry, Done, Nack
from tests.conformance import suite
from tests.conformance.suite import CONFORMING, Row

pytestmark = pytest.mark.parametrize("router", CONFORMING)


@pytest.mark.slow
def test_rule_1_knowledge_is_never_wrong(router: str) -> None:
    assert [found.ledger.of(1) for found in suite.all_trials(router) if found.ledger.of(1)] == []


@pytest.mark.slow
def test_rule_2_versions_do_not_decrease_while_nothing_goes_wrong(router: str) -> None:
    if router == "unruly":
        # It breaks this rule on purpose; the contract says that edges cope.
        assert any(found.disorders() for found in suite.all_trials(router))
    else:
        assert [found.disorders() for found in suite.calm_trials(router)] == [[], [], []]


@pytest.mark.slow
def test_rule_3_every_subscription_gets_a_version(router: str) -> None:
    assert [found.ledger.of(3) for found in suite.all_trials(router) if found.ledger.of(3)] == []


@pytest.mark.slow
def test_rule_3_every_version_comes_with_all_streams_in_the_end(router: str) -> None:
    unreached = [found.ledger.unreached() for found in suite.all_trials(router)]
    assert [each for each in unreached if each] == []


def test_rule_4_removing_what_is_not_there_is_fine(router: str) -> None:
    row = Row(CONFORMING[router], ())
    for _ in range(2):
        versions, outcomes = interest_at_once(row.routers["e"], row.now, {}, ["nobody knows it"])
        row.do("e", outcomes)
        assert versions == {}


def test_rule_4_removing_one_does_no_harm_to_another_with_the_same_filter(router: str) -> None:
    row = Row(CONFORMING[router], may_pass=suite.EVERY_FRAME)
    row.subscribe("stays", "goes")
    row.do("e", interest_at_once(row.routers["e"], row.now, {}, ["goes"])[1])
    row.wait(1.0)
    row.outcomes.clear()
    row.publish_ten()
    assert len(row.data()) >= 5
    assert [each.silent for each in row.arrivals() if each.silent] == []


@pytest.mark.slow
def test_rule_5_what_is_carried_arrives_as_it_was_sent(router: str) -> None:
    assert [found.ledger.of(5) for found in suite.all_trials(router) if found.ledger.of(5)] == []


@pytest.mark.parametrize("target", ["p", "e"])
def test_rule_5_carrying_works_through_routers_that_know_nothing(router: str, target: str) -> None:
    row = Row(CONFORMING[router], may_pass=(Carry,))
    for tick in range(1, 11):
        row.do("p", row.routers["p"].carry(row.now, target, Done(tick)))
        row.wait(0.5)
    there = [o for name, o in row.outcomes if name == target and isinstance(o, CarriedMessage)]
    assert len({str(delivery.content) for delivery in there}) >= 5
    assert {delivery.source for delivery in there} == {"p"}


def test_rule_5_carrying_to_nobody_is_no_error(router: str) -> None:
    row = Row(CONFORMING[router], may_pass=suite.EVERY_FRAME)
    row.do("p", row.routers["p"].carry(row.now, "a stranger", Nack([(1, 2)])))
    row.wait(0.5)
    assert not [o for _, o in row.outcomes if isinstance(o, CarriedMessage)]


@pytest.mark.slow
def test_rule_6_routers_ask_only_for_what_is_theirs_to_ask(router: str) -> None:
    assert [found.ledger.of(6) for found in suite.all_trials(router) if found.ledger.of(6)] == []


def test_rule_6_a_new_router_passes_on_what_it_knows_nothing_of(router: str) -> None:
    assert len(suite.data_through_new_relay(CONFORMING[router])) >= 5


def test_rule_6_nothing_is_on_disk_that_was_not_put(router: str) -> None:
    """A router is made of its name, the network, options, limits and a life, and of nothing else;
    two that are made alike and treated alike do the same."""
    rows = [Row(CONFORMING[router], suite.EVERY_FRAME) for _ in range(2)]
    for row in rows:
        row.publish_ten()
    assert rows[0].outcomes == rows[1].outcomes
    assert not [o for _, o in rows[0].outcomes if isinstance(o, Put)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["calm", "troubled", "crashed"])
def test_delivery_keeps_its_promises_on_top_of_any_router(router: str, kind: str) -> None:
    trials = getattr(suite, f"{kind}_trials")(router)
    assert [found.broken_promises() for found in trials if found.broken_promises()] == []
    assert sum(found.verdict.deliveries for found in trials) > 50


@pytest.mark.slow
def test_trials_put_something_to_the_test(router: str) -> None:
    trials = suite.troubled_trials(router)
    assert sum(found.verdict.crashes for found in trials) > 5
    assert sum(found.verdict.interest_changes for found in trials) > 20
    if router != "flood":
        assert sum(found.ledger.silences for found in trials) > 500
