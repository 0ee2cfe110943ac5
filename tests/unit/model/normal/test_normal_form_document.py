"""The examples of docs/explanation/normal-form.md are true."""

import re
from pathlib import Path

import pytest

from anabranch.model.filter import Filter
from anabranch.model.normal.conjunction import TRIALS_MAX
from anabranch.model.normal.normal_form import STEPS_PER_PREDICATE

DOCUMENT = (Path(__file__).parents[4] / "docs/explanation/normal-form.md").read_text()
ROWS = re.findall(r"^\| `(.+?)` \| `(.+?)` \| (.+?) \| (.+?) \|", DOCUMENT, re.MULTILINE)
EXAMPLES = re.findall(r"```sql\n(.*?)```", DOCUMENT, re.DOTALL)[0].splitlines()


def test_document_has_examples() -> None:
    assert len(ROWS) == 15
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize(("ours", "other", "covers", "intersects"), ROWS)
def test_relation_is_as_the_document_says(
    ours: str, other: str, covers: str, intersects: str
) -> None:
    assert covers in ("yes", "no", "**not seen**")
    assert intersects in ("yes", "no", "**not excluded**")
    assert Filter.parse(ours).covers(Filter.parse(other)) is (covers == "yes")
    assert Filter.parse(ours).intersects(Filter.parse(other)) is (intersects != "no")


@pytest.mark.parametrize(("index", "constraints", "residues"), [(0, 2, 0), (1, 1, 0), (2, 3, 2)])
def test_example_is_one_conjunction(index: int, constraints: int, residues: int) -> None:
    (conjunction,) = Filter.parse(EXAMPLES[index]).conjunctions
    assert len(conjunction.constraints) == constraints
    assert len(conjunction.residue) == residues


def test_document_states_the_bounds_in_force() -> None:
    assert f"more than {STEPS_PER_PREDICATE} steps per allowed predicate" in DOCUMENT
    assert f"at most {TRIALS_MAX} combinations" in DOCUMENT
