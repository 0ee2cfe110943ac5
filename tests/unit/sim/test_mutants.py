"""Mutants are put into the running process, and taken out again."""

import pytest

from anabranch.core.edge.unsubscribe import Ownership
from anabranch.sim import runner
from anabranch.sim.mutants.catalog import planted
from anabranch.sim.mutants.mutant import Edit, Mutant, MutantError, applied
from tests.unit.sim import mutants_sample as sample

SAMPLE = "tests.unit.sim.mutants_sample"


def edit(path: str, old: str, new: str) -> Mutant:
    return Mutant("a test", Edit(f"{SAMPLE}:{path}", old, new), found_by="here")


def test_it_changes_a_function_for_those_who_have_it_already_and_is_undone() -> None:
    kept, code = sample.plain, sample.plain.__code__
    with applied([("more", edit("plain", "return count + 1", "return count + 2"))]):
        assert kept(1) == 3
    assert kept(1) == 2
    assert kept.__code__ is code


def test_it_is_undone_after_an_error() -> None:
    mutant = edit("plain", "count + 1", "count / 0")
    with pytest.raises(ZeroDivisionError), applied([("zero", mutant)]):
        sample.plain(1)
    assert sample.plain(1) == 2


@pytest.mark.parametrize("path", ["size", "cached", "fixed", "made", "method", "inherited"])
def test_it_finds_the_function_inside_what_wraps_it(path: str) -> None:
    with applied([("x", edit(f"Thing.{path}", "old", "new"))]):
        thing = sample.Thing()
        found = getattr(thing, path)
        assert (found() if callable(found) else found) == f"{path} new"
    assert sample.Thing.fixed() == "fixed old"


def test_it_finds_a_decorated_function() -> None:
    with applied([("x", edit("wrapped", "old", "new"))]):
        assert sample.wrapped() == "new!"


def test_the_setter_of_a_property_is_not_taken_for_its_getter() -> None:
    with applied([("x", edit("Thing.level", "self._level", "-self._level"))]):
        thing = sample.Thing()
        thing.level = 4
        assert thing.level == -4


def test_lines_that_follow_are_indented_as_the_first_one_is() -> None:
    mutant = edit(
        "nested",
        "if each > 1:\n    total += each",
        "if each > 2:\n    total += each\n    total += 1",
    )
    with applied([("x", mutant)]):
        assert sample.nested([1, 2, 3]) == 4
    assert sample.nested([1, 2, 3]) == 5


def test_several_may_change_one_function() -> None:
    mutants = [
        ("one", edit("nested", "each > 1", "each > 2")),
        ("two", edit("nested", "return total", "return -total")),
    ]
    with applied(mutants):
        assert sample.nested([1, 2, 3]) == -3


def test_contexts_may_be_nested_if_they_change_different_functions() -> None:
    one, other = edit("plain", "count + 1", "0"), edit("nested", "return total", "return -1")
    with applied([("one", one)]):
        with applied([("other", other)]):
            assert (sample.plain(1), sample.nested([])) == (0, -1)
        assert (sample.plain(1), sample.nested([])) == (0, 0)
        again = edit("plain", "return", "return 5 or")
        with pytest.raises(MutantError, match=r"'again': .*:plain is changed already"):
            applied([("again", again)]).__enter__()
        assert sample.plain(1) == 0
    assert sample.plain(1) == 2


@pytest.mark.parametrize(
    ("path", "old", "new", "problem"),
    [
        ("plain", "count + 7", "0", "has this text 0 times instead of once: 'count \\+ 7'"),
        ("nested", "total", "0", "has this text 3 times"),
        ("nested", "if each > 1:\n        total", "0", "has this text 0 times"),
        ("plain", "count + 1", "count + 1", "has this text 1 times"),
        ("plain", "count + 1", "count +", "does not compile"),
        ("plain", "return count + 1", "yield count", "function of another kind"),
        ("Thing.missing", "old", "new", "there is no"),
        ("NUMBER", "old", "new", "is not a Python function"),
    ],
)
def test_one_that_does_not_fit_is_an_error_that_names_it(
    path: str, old: str, new: str, problem: str
) -> None:
    with pytest.raises(MutantError, match=rf"mutant 'misfit'.*{problem}"):
        applied([("misfit", edit(path, old, new))]).__enter__()
    assert sample.plain(1) == 2


def test_a_name_that_nobody_has_is_refused() -> None:
    with pytest.raises(MutantError, match="no mutant 'nonsense'; there are ack-before-sync"):
        planted("nonsense").__enter__()


def test_a_seed_runs_with_its_mutants_and_leaves_none_behind() -> None:
    order = runner.Order(mutants=("skip-gap", "claim-before-held"))
    code = Ownership._may_claim.__code__
    assert runner.run_seed(order, 5).verdict.anomalies
    assert Ownership._may_claim.__code__ is code
    assert not runner.run_seed(runner.Order(), 5).verdict.anomalies


def test_processes_apply_mutants_too() -> None:
    order = runner.Order(mutants=("skip-gap",))
    alone = [timed.verdict for timed in runner.run_seeds(order, [5, 6], 1)]
    shared = [timed.verdict for timed in runner.run_seeds(order, [5, 6], 2)]
    assert [each.digest for each in alone] == [each.digest for each in shared]
    assert alone[0].anomalies
