"""Without numba everything works, and gives the same answers.

A program runs twice in processes of its own: once as it is, once with numba made impossible to
import. Both print what they found.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

BLOCKED = "import sys\nsys.modules['numba'] = sys.modules['llvmlite'] = None\n"

AGREEING = """
from random import Random
from anabranch.matching.covering import CoveringTable
from anabranch.matching.dag import ConjunctionDag
from anabranch.matching.index import MatchIndex
from tests.covering_parts import BoxCrowd
from tests.crowd_parts import STYLES
index, draw = MatchIndex(), Random(5)
for style in STYLES.values():
    for number in range(120):
        index.add(len(index), style.write(draw), destination=number % 7)
for number in range(0, len(index), 3):
    index.remove(number)
for style in STYLES.values():
    for _ in range(8):
        event = style.publish(draw)
        print(sorted(index.match(event)), sorted(index.destinations(event)))
table, dag = CoveringTable(), ConjunctionDag()
for number, each in enumerate(BoxCrowd(seed=6, count=150).conjunctions):
    table.add(number, each)
    dag.add(number, each)
for number in range(0, 150, 4):
    print(sorted(table.remove(number).added_roots))
    dag.remove(number)
print(sorted(table.roots()))
print(sorted((*a.ids, *b.ids) for a in dag.nodes() for b in a.below))
"""


def output_of(program: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.slow
def test_answers_are_the_same_without_numba() -> None:
    without = output_of(BLOCKED + AGREEING)
    assert without == output_of(AGREEING)
    assert len(without.splitlines()) > 100


def test_index_takes_the_engine_that_is_there() -> None:
    program = "from anabranch.matching.index import MatchIndex\nprint(MatchIndex().engine)"
    assert output_of(BLOCKED + program) == "numpy\n"
    assert output_of(program) == "numba\n"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("MatchIndex(engine='numba')", "numba is not installed; use engine='numpy'"),
        ("MatchIndex.load({path!r})", "a snapshot needs numba, which is not installed"),
        ("MatchIndex().save({path!r} + '2')", "only an index with the numba engine"),
    ],
)
def test_what_needs_numba_says_so(tmp_path: Path, call: str, said: str) -> None:
    from anabranch.matching.index import MatchIndex

    place = str(tmp_path / "snapshot")
    MatchIndex(engine="numba").save(place)
    program = f"""
from anabranch.matching.index import MatchIndex
from anabranch.model.errors import LocalError
try:
    {call.format(path=place)}
except LocalError as error:
    print(error)
"""
    assert said in output_of(BLOCKED + program)


def test_there_is_nothing_to_warm_without_numba() -> None:
    program = "from anabranch.matching.warm import warm\nprint(warm() >= 0, 'numba' in sys.modules)"
    assert output_of(BLOCKED + program) == "True True\n"
