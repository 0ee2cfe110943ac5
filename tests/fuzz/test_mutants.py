"""Mutants of brokers, and other mistakes: a fuzzer that does not find them protects nothing."""

import pytest
from hypothesis import Phase, settings

from anabranch.core.patterns.join_points.definitions import PatternDefinitions
from anabranch.sim.mutants.catalog import planted
from tests.fuzz import core_world
from tests.fuzz.run import CORE, fuzz_core

pytestmark = pytest.mark.slow

EXAMPLES = 400
#: Found is enough: nobody reads the example.
SEARCH = settings(
    derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False
)


def test_a_pattern_that_is_stored_unread_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PatternDefinitions, "_objects", lambda *_, **__: False)
    with pytest.raises(Exception, match=r"position|pattern"):
        fuzz_core(CORE["HostileClients"], SEARCH, EXAMPLES)


@pytest.mark.parametrize("name", ["ack-before-sync", "no-dedup"])
def test_harm_to_honest_clients_is_found(name: str) -> None:
    with planted(name), pytest.raises(AssertionError, match=r"honest|confirmed|subscriber"):
        fuzz_core(CORE["HostileClients"], SEARCH, EXAMPLES)


def test_a_step_that_does_too_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_world, "EFFECTS_MAX", 20)
    with pytest.raises(AssertionError, match="effects of"):
        fuzz_core(CORE["HostileClients"], SEARCH, EXAMPLES)


def test_a_catalog_that_grows_too_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_world, "CATALOG_BYTES_FREE", 400)
    monkeypatch.setattr(core_world, "CATALOG_BYTES_PER_BYTE", 0)
    with pytest.raises(AssertionError, match="the catalog of"):
        fuzz_core(CORE["HostileClients"], SEARCH, EXAMPLES)
