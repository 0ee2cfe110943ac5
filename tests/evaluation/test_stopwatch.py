"""What is made of several measurements."""

import pytest

from evaluation.measurement import least_pass_ns, percentile, rates


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 2), (0.51, 3), (0.99, 4), (1.0, 4)])
def test_percentile_is_one_of_the_values(share: float, value: int) -> None:
    assert percentile([4, 2, 1, 3], share) == value


def test_rates_are_those_of_the_middle_and_the_quickest_chunk() -> None:
    found = rates(100, [2_000_000, 1_000_000, 4_000_000])
    assert found.median_per_s == pytest.approx(50_000)
    assert found.best_per_s == pytest.approx(100_000)


def test_work_is_repeated_at_least_as_often_as_asked() -> None:
    calls: list[None] = []
    least_pass_ns(lambda: calls.append(None), budget_s=0, passes_min=4)
    assert len(calls) == 4
