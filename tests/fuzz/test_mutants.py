"""Mutants of brokers, and other mistakes: a fuzzer that does not find them protects nothing."""

import pytest
from hypothesis import Phase, settings

from anabranch.model.errors import EventError, FilterError
from anabranch.sim.mutants.catalog import planted
from anabranch.sim.mutants.mutant import Edit, Mutant, applied
from tests.fuzz import core_world
from tests.fuzz.run import CORE, fuzz_core

pytestmark = pytest.mark.slow

EXAMPLES = 400
#: Found is enough: nobody reads the example.
SEARCH = settings(
    derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False
)


_JOIN_POINTS = "anabranch.core.patterns.join_points"
_DEFINE = f"{_JOIN_POINTS}.definitions:PatternDefinitions.define"
#: As a broker once was, which one frame ended for good: Define(id, garbage, is_new, must_exist).
UNREAD = Mutant(
    "the text of a pattern that must exist is not read, and is_new makes the pattern",
    Edit(_DEFINE, "if frame.is_new and frame.must_exist:", "if False:"),
    Edit(
        _DEFINE,
        "elif frame.must_exist:",
        "elif frame.must_exist and not (frame.is_new and record.id not in state.gone):",
    ),
    Edit(
        _DEFINE,
        "elif (pattern := self._read(session, frame, record)) is None:",
        "elif (\n"
        "    pattern := None if frame.must_exist else self._read(session, frame, record)\n"
        ") is None and not frame.must_exist:",
    ),
    Edit(
        f"{_JOIN_POINTS}.definitions:PatternDefinitions._create",
        "assert pattern is not None, record.id",
        "pass",
    ),
    # It is read when it is on disk.
    Edit(
        f"{_JOIN_POINTS}.registry:JoinPointState._pattern",
        "known = self._patterns[record.id]",
        "known = self._patterns.get(record.id) or check_record(record, self.limits)",
    ),
    found_by="tests/fuzz/test_mutants.py",
)


def test_a_pattern_that_is_stored_unread_is_found() -> None:
    errors = (EventError, FilterError)
    with applied([("unread", UNREAD)]), pytest.raises(errors, match=r"position|pattern|filter"):
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
