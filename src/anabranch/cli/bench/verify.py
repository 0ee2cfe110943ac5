"""Whether an index says what the workload knows to be right.

A fast wrong answer is worth nothing, so every benchmark compares some answers of every engine and
every path (single, batch, encoded batch) with the workload's own, and stops at a difference.
"""

from collections.abc import Iterable, Sequence

from anabranch.model.errors import AnabranchError

#: Events whose answers are compared.
VERIFIED_EVENTS = 10


class WrongAnswerError(AnabranchError):
    """The product and the workload disagree about which subscriptions match."""


def check_answers(
    what: str, answers: Iterable[Iterable[object]], expected: Sequence[Sequence[int]]
) -> None:
    """Raise unless every answer holds exactly the expected ids, each once, in any order."""
    for place, (answer, right) in enumerate(zip(answers, expected, strict=True)):
        found = list(answer)
        if len(found) == len(right) and set(found) == set(right):
            continue
        missing = sorted(set(right) - set(found))[:3]
        surplus = sorted(map(str, set(found) - set(right)))[:3]
        raise WrongAnswerError(
            f"{what}: event {place} matched {len(found)} subscriptions instead of {len(right)}"
            f" (missing, for example: {missing}; not matching: {surplus}); rerun with the same"
            " seed to reproduce it"
        )
