"""Patterns that go on moving although nothing changes any more are found."""

from random import Random

import pytest

from anabranch.sim.pattern_users import Detections
from anabranch.sim.runner import Order, run_seed

#: Of meshes, with a pattern.
SEED = 20_004


def test_a_pattern_that_comes_to_rest_is_clean() -> None:
    assert not run_seed(Order(routing="mesh"), SEED).verdict.anomalies


def test_a_pattern_that_never_comes_to_rest_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    becomes_calm = Detections.calm

    def calm(self: Detections) -> None:
        becomes_calm(self)
        world, rng = self._world, Random(1)
        edges = sorted(name for name, host in world.hosts.items() if host.broker is not None)
        for turn in range(40):
            world.after(0.25 * turn, self.move_one, rng, edges)

    monkeypatch.setattr(Detections, "calm", calm)
    found = {each.name for each in run_seed(Order(routing="mesh"), SEED).verdict.anomalies}
    assert "restless-pattern" in found
