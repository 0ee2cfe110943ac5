"""The brute-force answers about covering that the benchmark relies on."""

import pytest

from anabranch import Filter
from evaluation.cover import CoverOracle
from evaluation.measurement import WrongAnswerError
from evaluation.workloads import interval_workload

COUNT = 250


@pytest.mark.parametrize("name", ["stock", "ranges", "nested"])
def test_oracle_and_filters_agree_about_who_covers_whom(name: str) -> None:
    workload = interval_workload(name, 1)
    oracle = CoverOracle(workload, COUNT)
    filters = [Filter.parse(text) for text in workload.filter_texts(0, COUNT)]
    for number in range(0, COUNT, 5):
        expected = {other for other, each in enumerate(filters) if each.covers(filters[number])}
        assert oracle.coverers(oracle.box(number)) == expected


def nested_roots() -> tuple[CoverOracle, set[object]]:
    oracle = CoverOracle(interval_workload("nested", 1), COUNT)
    roots: set[object] = set()
    boxes = []
    for number in range(COUNT):
        box = oracle.box(number)
        if not oracle.strict_coverers(number) and box not in boxes:
            roots.add(number)
            boxes.append(box)
    return oracle, roots


def test_true_roots_pass() -> None:
    oracle, roots = nested_roots()
    assert 0 < len(roots) < COUNT
    oracle.check_roots("roots", roots, range(COUNT))


def test_a_covered_root_is_found_out() -> None:
    oracle, roots = nested_roots()
    covered = next(number for number in range(COUNT) if oracle.strict_coverers(number))
    with pytest.raises(WrongAnswerError, match="is a root but"):
        oracle.check_roots("roots", roots | {covered}, range(COUNT))


def test_a_missing_root_is_found_out() -> None:
    oracle, roots = nested_roots()
    alone = next(
        number for number in range(COUNT) if oracle.coverers(oracle.box(number)) == {number}
    )
    with pytest.raises(WrongAnswerError, match="is not a root but"):
        oracle.check_roots("roots", roots - {alone}, range(COUNT))


def test_a_false_and_a_missing_coverer_are_found_out() -> None:
    oracle, _ = nested_roots()
    covered = next(number for number in range(COUNT) if oracle.strict_coverers(number))
    stranger = next(
        number for number in range(COUNT) if number not in oracle.coverers(oracle.box(covered))
    )
    with pytest.raises(WrongAnswerError, match="and does not"):
        oracle.check_coverers("DAG", covered, [stranger])
    with pytest.raises(WrongAnswerError, match="and has one"):
        oracle.check_coverers("DAG", covered, [])


def test_the_removed_cover_nobody() -> None:
    oracle, _ = nested_roots()
    covered = next(number for number in range(COUNT) if oracle.strict_coverers(number))
    oracle.removed.update(oracle.coverers(oracle.box(covered)) - {covered})
    assert oracle.coverers(oracle.box(covered)) == {covered}
