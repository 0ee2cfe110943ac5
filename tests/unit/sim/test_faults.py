"""A mix of faults can be asked for, and changes nothing else about a seed."""

import msgspec
import pytest

from anabranch.model.errors import LocalError
from anabranch.sim.faults import KINDS, FaultMix, asked_mix
from anabranch.sim.runner import Order, plan_of, run_seed
from anabranch.sim.simulation import Simulation


def test_any_leaves_it_to_the_seed_and_none_has_no_faults() -> None:
    assert asked_mix("any") is None
    assert asked_mix("none") == FaultMix()


def test_kinds_have_the_numbers_that_are_given_or_those_of_the_list() -> None:
    found = asked_mix("kill=0.5, partition,one-way,repeat=0.1,sync=0.02")
    assert found == FaultMix(
        kill=0.5, partition=KINDS["partition"], one_way=KINDS["one-way"], repeat=0.1, sync_s=0.02
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_asked_for_alone(kind: str) -> None:
    mix = asked_mix(kind)
    assert mix is not None
    assert mix != FaultMix()


def test_every_field_of_a_mix_has_a_kind() -> None:
    fields = {field.name.removesuffix("_s") for field in msgspec.structs.fields(FaultMix)}
    assert fields == {kind.replace("-", "_") for kind in KINDS}


@pytest.mark.parametrize("text", ["", "kill,", "quake", "kill=", "kill=x", "kill=nan", "any,kill"])
def test_what_is_no_mix_is_refused(text: str) -> None:
    with pytest.raises(LocalError):
        asked_mix(text)


def test_the_rest_of_a_plan_does_not_depend_on_the_mix() -> None:
    drawn, asked = plan_of(Order(), 3), plan_of(Order(faults="kill=2"), 3)
    assert asked.faults == FaultMix(kill=2.0)
    others = [each.name for each in msgspec.structs.fields(drawn)]
    for name in {*others} - {"faults", "network"}:
        assert getattr(asked, name) == getattr(drawn, name)
    assert asked.network.brokers == drawn.network.brokers


def test_only_what_was_asked_for_happens() -> None:
    verdict = run_seed(Order(shape="star", faults="cut=3"), 0).verdict
    assert set(verdict.faults) == {"cut"}
    assert verdict.crashes == 0


@pytest.mark.parametrize("kind", ["clog", "slow-client"])
def test_narrow_queues_get_full_and_every_promise_is_kept(kind: str) -> None:
    simulation = Simulation(plan_of(Order(shape="star", faults=f"{kind}=2"), 1))
    assert not simulation.run().anomalies
    assert simulation.world.count.full > 0
