"""A benchmark's answers are held against the right ones."""

import pytest

from evaluation.measurement import WrongAnswerError, check_answers


def test_right_answers_pass_in_any_order() -> None:
    check_answers("batch", [[3, 1], []], [[1, 3], []])


@pytest.mark.parametrize("wrong", [[1], [1, 3, 4], [1, 3, 3], []])
def test_missing_surplus_and_repeated_ids_are_wrong(wrong: list[int]) -> None:
    with pytest.raises(WrongAnswerError, match="event 1 matched"):
        check_answers("batch", [[], wrong], [[], [1, 3]])
